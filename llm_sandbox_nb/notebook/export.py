"""A run as one HTML file that opens anywhere, without a network: the record, the files, and their view."""

from __future__ import annotations

import html
import json
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from llm_sandbox_nb.notebook.caps import Caps
from llm_sandbox_nb.notebook.card_bundle import trajectory_json
from llm_sandbox_nb.notebook.card_files import load_artifacts
from llm_sandbox_nb.notebook.card_text import first_line, plain

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.run import Run

CAPS = Caps(artifact=25_000_000, run=100_000_000, events=200_000_000)
"""More than a notebook keeps: the file holds one run, and nobody edits it."""

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' data: blob:; "
    "style-src 'unsafe-inline' data:; img-src data: blob:; media-src data: blob:; font-src data:; "
    "worker-src blob:; frame-src 'none'; form-action 'none'; base-uri 'none'"
)
"""Nothing is loaded from anywhere and nothing is sent. Inline scripts are allowed because the frames around
HTML that the model made inherit this policy, and could not show it otherwise; they have their own as well."""

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main id="llm-sandbox-view"><noscript>Allow scripts: this page shows the run with its own.</noscript></main>
<script type="application/json" id="llm-sandbox-run">{run}</script>
<script>{script}</script>
</body>
</html>
"""


class ExportError(Exception):
    """The file cannot be made. The message is one sentence that says what to do."""


def export_html(run: Run, path: str | Path, caps: Caps = CAPS) -> Path:
    """Write the run as one HTML file; what is over `caps` is left out, and the page says so.

    A reader never sees half of the file.

    Raises:
        ExportError: this installation lacks the page's script, the record is empty, or the file cannot be written.
    """
    path = Path(path).expanduser()
    if run.trajectory.start is None:
        raise ExportError(f"There is nothing to write: no run has begun in {run.folder}.")
    text = page(run, caps)
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(text.encode("utf-8", "replace"))
        return partial.replace(path)
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error.strerror or error}.") from error


def page(run: Run, caps: Caps = CAPS) -> str:
    """The text of that file."""
    trajectory = run.trajectory
    artifacts = load_artifacts(
        trajectory.artifacts.values(), run.folder, each=caps.artifact, together=caps.run
    )
    bundle = trajectory_json(trajectory, artifacts, caps)
    title = first_line(plain(run.task), 80) or "Run"
    return _PAGE.format(
        policy=html.escape(POLICY),
        title=html.escape(title),
        style=_asset("page.css"),
        run=json_for_script(bundle),
        script=_asset("page.js"),
    )


def json_for_script(value: object) -> str:
    """JSON that nothing within a `<script>` element can mistake for its end."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _asset(name: str) -> str:
    try:
        return (files("llm_sandbox_nb.notebook") / "page" / name).read_text("utf-8")
    except FileNotFoundError as error:
        raise ExportError(
            "This installation lacks the exported page's script: install a released wheel, or run "
            "`make labextension` in the checkout (it needs Node 20.19 or later)."
        ) from error
