"""A run as one HTML file that opens anywhere, without a network: the record, the files, and their view."""

from __future__ import annotations

import html
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from llm_sandbox_nb.agent.run_record import RunRecord
from llm_sandbox_nb.card.artifacts import load_artifacts
from llm_sandbox_nb.card.bundle import Caps, trajectory_json
from llm_sandbox_nb.card.card import Card
from llm_sandbox_nb.card.frame import POLICY
from llm_sandbox_nb.card.text import card_file, json_for_script
from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.plain_text import first_line, plain
from llm_sandbox_nb.trajectory.whole_file import write_whole

CAPS = Caps(artifact=25_000_000, run=100_000_000, events=200_000_000)
"""Caps of an exported file. They are larger than in a notebook, because the file holds one run and nobody edits it."""

_VIEW = """\
<main id="llm-sandbox-view"><noscript>Allow scripts: this page needs its scripts to show the run.</noscript></main>
<script type="application/json" id="llm-sandbox-run">{run}</script>
<script>{script}</script>
<details class="lsn-licenses">
<summary>Licences of the libraries in this page</summary><pre>{licenses}</pre></details>"""

_CARD_STYLE = ":root{color-scheme:light dark}body{max-width:1100px;margin:16px auto;padding:0 12px}"

NO_VIEW = (
    "The interactive view is not built in this installation, so pages and notebooks show the plain card: install a "
    "released wheel, or run `make labextension` in the checkout (it needs Node 20.19 or later)."
)


def has_view() -> bool:
    """Return True if this installation has the view, which is built with Node."""
    return (_assets() / "page.js").is_file()


def _assets() -> Traversable:
    return files("llm_sandbox_nb") / "notebook" / "page"


class ExportError(LLMSandboxError):
    """Raised if the page of a run cannot be written.

    For example, `result.to_html("/proc/run.html")`: this folder is not writable.
    """


def export_html(run: RunRecord, path: str | Path, caps: Caps = CAPS) -> Path:
    """Write the run as one HTML file; data beyond `caps` is left out, and the page reports this.

    The file is replaced atomically. If this installation lacks the view, the file holds the card, which needs no
    script. A symbolic link at `path` is followed. In the run's own folder, however, the link is replaced, because
    someone else may have made it.

    Raises:
        ExportError: if the record is empty, or the file cannot be written.
    """
    path = expanded(path)
    if run.trajectory.start is None:
        raise ExportError(f"There is nothing to write: no run has begun in {run.folder}.")
    text = page(run, caps)
    try:
        elsewhere = path.parent.resolve() != run.folder.resolve()
        return write_whole(path, text.encode("utf-8", "replace"), follow_links=elsewhere)
    except OSError as error:
        raise ExportError(
            f"{path} cannot be written ({error.strerror or error}): choose another file."
        ) from error


def page(run: RunRecord, caps: Caps = CAPS) -> str:
    """Return the HTML of the exported file."""
    trajectory = run.trajectory
    title = first_line(plain(trajectory.start.task if trajectory.start else ""), 80) or "Run"
    # The page loads and sends nothing. Frames with HTML of the model inherit this policy and add another policy.
    head = {"policy": html.escape(POLICY), "title": html.escape(title)}
    if not has_view():
        card = Card(caps, run.folder, trajectory)
        return card_file("exported.html").format(
            **head, style=_CARD_STYLE, body=f"<main>{card.final()['text/html']}</main>"
        )
    artifacts = load_artifacts(
        trajectory.artifacts.values(), run.folder, each=caps.artifact, together=caps.run
    )
    bundle = trajectory_json(trajectory, artifacts, caps)
    view = _VIEW.format(
        run=json_for_script(bundle),
        script=_asset("page.js"),
        licenses=html.escape(_asset("LICENSES.txt"), quote=False),
    )
    return card_file("exported.html").format(**head, style=_asset("page.css"), body=view)


def _asset(name: str) -> str:
    return (_assets() / name).read_text("utf-8")
