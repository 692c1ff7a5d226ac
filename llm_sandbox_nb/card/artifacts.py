"""Files the model made, as static HTML.

All content is hostile: names and texts are escaped, HTML and SVG are shown only in a frame that can reach neither
the page nor the network.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from llm_sandbox_nb.card.tables import delimited_table, parquet_table
from llm_sandbox_nb.card.text import card_file, escape, json_for_script, markdown_html
from llm_sandbox_nb.encoded_text import text_of
from llm_sandbox_nb.formatting import clip, format_size
from llm_sandbox_nb.trajectory.events import ArtifactSaved
from llm_sandbox_nb.trajectory.run_folder import FILES, own_file
from llm_sandbox_nb.windows import open_no_link

_PROGRAMS = ("script", "iframe", "frame", "object", "embed")
_GONE = (*_PROGRAMS, "noscript", "template")
"""Elements that go with what is in them; of others that are not allowed the content stays."""
_ADDRESSES = frozenset(["href", "xlink:href", "src"])
_WITHIN = re.compile(r"\s*(?:#|data:(?:image|audio|video|font)/)", re.IGNORECASE)
"""What a page without scripts may name: places in itself, and pictures and sound that it holds."""
_SCRIPT = re.compile(r"\s*javascript:", re.IGNORECASE)
_ROOTS = ("html", "body")
_ROOT_ATTRIBUTES = ("class", "id", "style", "lang", "dir", "bgcolor", "text")


def static_page(text: str) -> tuple[str, bool]:
    """An HTML or SVG file as it looks without its scripts, and whether it has some. It is to follow a policy.

    Nothing in it runs, loads or leads anywhere. A policy and a sandbox are not enough. Chromium looks up the host of a
    frame, a form or a link, and connects to it, before the policy refuses to go there, so that data leaves in the name:
    whatever names an address is removed. The view does the same in `labextension/src/artifacts/static-page.ts`.
    """
    import nh3

    _, elements, attributes = card_file("allowed-in-pages.txt").split("\n\n")
    cleaned = nh3.clean(
        text,
        tags=set(elements.split()[1:]),
        clean_content_tags=set(_GONE),
        attributes={"*": set(attributes.split()[1:])},
        attribute_filter=_kept_attribute,
        generic_attribute_prefixes={"data-", "aria-"},
        url_schemes={"data"},
        link_rel=None,
    )
    found = _Scan()
    found.feed(text)
    for name in reversed(_ROOTS):
        given = (f" {key}='{html.escape(value)}'" for key, value in found.roots.get(name, []))
        cleaned = f"<{name}{''.join(given)}>{cleaned}"
    return cleaned, found.runs


def _kept_attribute(tag: str, name: str, value: str) -> str | None:
    return None if name in _ADDRESSES and not _WITHIN.match(value) else value


class _Scan(HTMLParser):
    """Attributes of `html` and `body`, which a cleaned fragment lacks, and whether there are scripts."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.roots: dict[str, list[tuple[str, str]]] = {}
        self.runs = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _ROOTS and tag not in self.roots:
            self.roots[tag] = [(name, value or "") for name, value in attrs if name in _ROOT_ATTRIBUTES]
        acts = (name.startswith("on") or _SCRIPT.match(value or "") for name, value in attrs)
        self.runs = self.runs or tag in _PROGRAMS or any(acts)


TEXT_LIMIT = 4_000
"""Characters shown of a text file."""

_IMAGES = {
    ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif",
    ".webp": "image/webp",
}  # fmt: skip
_AUDIO = {".wav": "audio/wav", ".mp3": "audio/mpeg", ".ogg": "audio/ogg", ".oga": "audio/ogg"}
_VIDEO = {".mp4": "video/mp4", ".webm": "video/webm", ".ogv": "video/ogg"}
_DOWNLOADS = {".mid": "audio/midi", ".midi": "audio/midi"}
_TEXTS = {
    ".txt", ".log", ".py", ".sh", ".r", ".js", ".css", ".yaml", ".yml", ".toml", ".ini", ".tex", ".xml",
    ".sql", ".c", ".rst", ".bib",
}  # fmt: skip
_ACTIVE = {
    ".html", ".htm", ".xhtml", ".shtml", ".mht", ".mhtml", ".svg", ".svgz", ".xml", ".xsl", ".pdf", ".js",
}  # fmt: skip
"""Kinds whose scripts run when a browser opens the file: the card does not link to them."""


def _policy(scripts: str, workers: str) -> str:
    """As `policy` in `labextension/src/artifacts/frame.ts`, without a network."""
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline' data:; img-src data: blob:; "
        f"media-src data: blob:; font-src data:; worker-src {workers}; frame-src 'none'; form-action 'none'; "
        "base-uri 'none'"
    )


POLICY = _policy("'unsafe-inline' 'unsafe-eval' data: blob:", "blob:")
STATIC_POLICY = _policy("'none'", "'none'")
REMAINDER = (
    "Its scripts run in a frame that cannot read this page or load from the network. A hostile page can still "
    "send a few bytes in the host name of an address that it tries to open."
)


def _head(policy: str) -> str:
    return (
        f'<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta http-equiv="x-dns-prefetch-control" content="off"><meta name="referrer" content="no-referrer">'
    )


_PRELUDE = (
    '<script>for(const name of ["RTCPeerConnection","webkitRTCPeerConnection","RTCDataChannel","RTCIceTransport",'
    '"WebTransport"])delete window[name]</script>'
)
"""As in `labextension/src/artifacts/frame.ts`."""


def sandboxed_frame(document: bytes, *, height: int = 420) -> str:
    """`document`, probably UTF-8, in a frame of `height` pixels, without its scripts until a person runs it.

    Two frames, one in the other. The origin of the inner one is opaque, so it cannot reach the page, and
    its policy lets it load nothing. The outer one is there because a policy does not keep a document from
    going elsewhere (`location = ...`, a refresh): that is forbidden by `frame-src` of the document around it.
    `frame.html` is the outer one; only its own script runs in it. While scripts of the page run, it takes the focus
    from the inner one: a script can take it without a click, and no frame learns where the pointer is.
    """
    page, runs = static_page(text_of(document))
    values = {
        "TOP": "1.8em" if runs else "0",
        "STATIC": json_for_script(_head(STATIC_POLICY)),
        "RUNNING": json_for_script(_head(POLICY) + _PRELUDE),
        "RUNS": "true" if runs else "false",
        "REMAINDER": json_for_script(REMAINDER),
        "PACKED": _pack(document),
        "SAFE": _pack(page.encode("utf-8", "replace")),
    }
    outer = _head(POLICY) + re.sub(
        "|".join(values), lambda found: values[found[0]], card_file("frame.html").strip()
    )
    style = f"border:1px solid #bbb;width:100%;height:{height}px;background:#fff"
    return (
        f'<iframe sandbox="allow-scripts" referrerpolicy="no-referrer" loading="lazy" style="{style}" '
        f'srcdoc="{html.escape(outer, quote=True)}"></iframe>'
    )


def _pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")


@dataclass(frozen=True)
class Artifact:
    """One file of the output folder, with its content where that is known."""

    path: str
    """Relative to the output folder, with `/`."""
    mime: str
    size: int
    data: bytes | None = None
    """The content; None when it is not shown."""
    omitted: str = ""
    """Why `data` is None."""
    href: str | None = None
    """Where the file lies, relative to the notebook."""

    @property
    def suffix(self) -> str:
        """The name's ending in lower case, which decides how the file is shown."""
        return PurePosixPath(self.path).suffix.lower()


def artifact_html(artifact: Artifact, unfolded: bool = False) -> str:
    """The file with its name, shown by its kind, or the reason why it is not shown. `unfolded`: at once in full."""
    body = f"<p class='lsn-quiet'>{escape(artifact.omitted)}</p>"
    if artifact.data is not None:
        body = _unfolding(artifact, _body(artifact, artifact.data), unfolded)
    css = "lsn-artifact lsn-whole" if unfolded else "lsn-artifact"
    return f"<figure class='{css}'><figcaption>{_caption(artifact)}</figcaption>{body}</figure>"


def holds_all(artifact: Artifact) -> bool:
    """Whether its figure has all its bytes, not an excerpt: then the record need not have them too."""
    whole = artifact.suffix in _IMAGES | _AUDIO | _VIDEO | _DOWNLOADS | _PAGES or artifact.suffix == ".pdf"
    excerpt = artifact.suffix in _EXCERPTS or _is_text(artifact)
    return artifact.data is not None and (whole or not excerpt)


def _is_text(artifact: Artifact) -> bool:
    return artifact.suffix in _TEXTS or artifact.mime.startswith("text/")


def _unfolding(artifact: Artifact, body: str, unfolded: bool) -> str:
    """A picture or a page is small until it is unfolded; texts and tables are hidden until then."""
    if framed := body.startswith("<iframe "):
        body = body.replace(" loading=", f" title='{escape(artifact.path)}' loading=", 1)
    if unfolded or (body.startswith(("<audio ", "<video ", "<p")) and not body.startswith("<pre")):
        return body
    summary, folded = (body, "") if framed or artifact.suffix in _IMAGES else ("Show", body)
    return f"<details><summary>{summary}</summary>{folded}</details>"


def _caption(artifact: Artifact) -> str:
    name = f"<code>{escape(artifact.path)}</code>"
    if artifact.href and artifact.suffix not in _ACTIVE:
        name = (
            f"<a href='{escape(quote(artifact.href))}' target='_blank' rel='noopener noreferrer'>{name}</a>"
        )
    return f"{name} <span class='lsn-quiet'>{format_size(artifact.size)}</span>"


def _body(artifact: Artifact, data: bytes) -> str:
    suffix, name = artifact.suffix, escape(artifact.path)
    if suffix in _IMAGES:
        return f"<img alt='{name}' src='{_uri(_IMAGES[suffix], data)}' style='max-width:100%'>"
    if suffix in _AUDIO:
        return f"<audio controls preload='metadata' src='{_uri(_AUDIO[suffix], data)}'></audio>"
    if suffix in _VIDEO:
        return f"<video controls style='max-width:100%' src='{_uri(_VIDEO[suffix], data)}'></video>"
    if suffix in _DOWNLOADS:
        return _download(artifact, _DOWNLOADS[suffix], data)
    if suffix == ".pdf":
        return _pdf(artifact, data)
    if suffix in _PAGES or suffix in _EXCERPTS:
        return (_PAGES | _EXCERPTS)[suffix](data)
    if _is_text(artifact):
        return f"<pre>{escape(clip(text_of(data), TEXT_LIMIT))}</pre>"
    return _download(artifact, "application/octet-stream", data)


def _uri(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode('ascii')}"


def _download(artifact: Artifact, mime: str, data: bytes) -> str:
    name = escape(PurePosixPath(artifact.path).name)
    return f"<p><a download='{name}' href='{_uri(mime, data)}'>Download {name}</a></p>"


def _pdf(artifact: Artifact, data: bytes) -> str:
    uri = _uri("application/pdf", data)
    inside = (
        f"<p>This page cannot show PDF files; the file is {escape(artifact.path)} in the run's folder.</p>"
    )
    return f"<object type='application/pdf' data='{uri}' style='width:100%;height:480px'>{inside}</object>"


def _json(data: bytes) -> str:
    """Indented; anything else, or what is nested too deep, as it is."""
    text = text_of(data)
    with suppress(ValueError, RecursionError):
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return f"<pre>{escape(clip(text, TEXT_LIMIT))}</pre>"


def _markdown(data: bytes) -> str:
    return f"<div class='lsn-markdown'>{markdown_html(clip(text_of(data), TEXT_LIMIT * 5))}</div>"


_PAGES: dict[str, Callable[[bytes], str]] = {
    ".html": sandboxed_frame,
    ".htm": sandboxed_frame,
    ".svg": lambda data: sandboxed_frame(data, height=360),
}
_EXCERPTS: dict[str, Callable[[bytes], str]] = {
    ".csv": lambda data: delimited_table(text_of(data), ","),
    ".tsv": lambda data: delimited_table(text_of(data), "\t"),
    ".parquet": parquet_table,
    ".md": _markdown,
    ".markdown": _markdown,
    ".json": _json,
    ".geojson": _json,
    ".ipynb": _json,
}


def load_artifacts(
    saved: Iterable[ArtifactSaved], folder: Path | None, *, each: int, together: int
) -> list[Artifact]:
    """The files with their content, when one has at most `each` bytes and all have at most `together`."""
    artifacts = []
    for one in saved:
        artifact = _load(one, folder, min(each, together), each)
        together -= len(artifact.data or b"")
        artifacts.append(artifact)
    return artifacts


def _load(saved: ArtifactSaved, folder: Path | None, room: int, each: int) -> Artifact:
    path = None if folder is None else own_file(folder / FILES, saved.path)
    size = max(saved.size, path.lstat().st_size if path else 0)  # a received record may name another
    data = None
    why = (
        "Shown when the run is over." if folder is None else "Cannot be read: it is not in the run's folder."
    )
    if size > room:
        bound = f"the bound of {format_size(each)} a file" if size > each else "the bound of a run"
        why = f"Not shown: larger than {bound}; it is in the run's folder."
    elif path:
        try:
            with os.fdopen(open_no_link(path), "rb") as file:
                data, why = file.read(room), ""
        except OSError as error:
            path, why = None, f"Cannot be read: {error.strerror}."
    return Artifact(saved.path, saved.mime, saved.size, data, why, relative_path(path))


def relative_path(path: Path | None) -> str | None:
    """The path from the working directory, which is the notebook's folder; None when it is elsewhere."""
    if path is None:
        return None
    try:
        return path.absolute().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return None
