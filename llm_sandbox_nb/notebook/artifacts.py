"""Files the model made, as static HTML.

Everything in them is taken to be hostile: names and texts are escaped, HTML and SVG are shown only in a
frame that has no access to the page and no network.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import quote

from llm_sandbox_nb.notebook.card_text import clip, escape, size_in_words
from llm_sandbox_nb.notebook.framing import sandboxed_frame
from llm_sandbox_nb.notebook.markdown import markdown_html
from llm_sandbox_nb.notebook.tables import delimited_table, json_text, parquet_table

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
    ".html",
    ".htm",
    ".xhtml",
    ".shtml",
    ".mht",
    ".mhtml",
    ".svg",
    ".svgz",
    ".xml",
    ".xsl",
    ".pdf",
    ".js",
}
"""Kinds that run when a browser opens them by themselves: there is no link to them."""


@dataclass(frozen=True)
class Artifact:
    """One file of the output folder, as far as it is at hand."""

    path: str
    """Relative to the output folder, with `/`."""
    mime: str
    size: int
    data: bytes | None = None
    """The content, when it may be shown."""
    omitted: str = ""
    """Why `data` is None."""
    href: str | None = None
    """Where the file lies, relative to the notebook."""

    @property
    def suffix(self) -> str:
        """The name's ending in lower case, which decides how the file is shown."""
        return PurePosixPath(self.path).suffix.lower()


def artifact_html(artifact: Artifact) -> str:
    """The file with its name, shown as its kind asks, or named with the reason why it is not."""
    if artifact.data is None:
        body = f"<p class='lsn-quiet'>{escape(artifact.omitted)}</p>"
    else:
        body = _body(artifact, artifact.data)
    return f"<figure class='lsn-artifact'><figcaption>{_caption(artifact)}</figcaption>{body}</figure>"


def _caption(artifact: Artifact) -> str:
    name = f"<code>{escape(artifact.path)}</code>"
    if artifact.href and artifact.suffix not in _ACTIVE:
        name = (
            f"<a href='{escape(quote(artifact.href))}' target='_blank' rel='noopener noreferrer'>{name}</a>"
        )
    return f"{name} <span class='lsn-quiet'>{size_in_words(artifact.size)}</span>"


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
    if suffix in _RENDERERS:
        return _RENDERERS[suffix](data)
    if suffix in _TEXTS or artifact.mime.startswith("text/"):
        return _text(data)
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


def _text(data: bytes) -> str:
    return f"<pre>{escape(clip(decode(data), TEXT_LIMIT))}</pre>"


def _json(data: bytes) -> str:
    return f"<pre>{escape(clip(json_text(decode(data)), TEXT_LIMIT))}</pre>"


def _markdown(data: bytes) -> str:
    return f"<div class='lsn-markdown'>{markdown_html(clip(decode(data), TEXT_LIMIT * 5))}</div>"


def decode(data: bytes) -> str:
    """The text of a file that is probably UTF-8."""
    return data.decode("utf-8-sig", "replace")


_RENDERERS: dict[str, Callable[[bytes], str]] = {
    ".html": sandboxed_frame,
    ".htm": sandboxed_frame,
    ".svg": lambda data: sandboxed_frame(data, height=360),
    ".csv": lambda data: delimited_table(decode(data), ","),
    ".tsv": lambda data: delimited_table(decode(data), "\t"),
    ".parquet": parquet_table,
    ".md": _markdown,
    ".markdown": _markdown,
    ".json": _json,
    ".geojson": _json,
    ".ipynb": _json,
}
