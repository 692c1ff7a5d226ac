"""Files that the model made, drawn as static HTML. In JupyterLab, the viewers of labextension/src/artifacts show them.

All content may be hostile: names and texts are escaped, and HTML and SVG are shown only in a frame that can reach
neither the page nor the network.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import PurePosixPath
from urllib.parse import quote

from llm_sandbox_nb.card.artifacts import Artifact
from llm_sandbox_nb.card.frame import sandboxed_frame
from llm_sandbox_nb.card.page_cost import decoded_warning, unfolding_warning
from llm_sandbox_nb.card.picture_size import MAX_DECODED_BYTES, picture_size
from llm_sandbox_nb.card.tables import delimited_table, parquet_table
from llm_sandbox_nb.card.text import escape, markdown_html
from llm_sandbox_nb.encoded_text import text_of
from llm_sandbox_nb.formatting import clip, format_size

TEXT_LIMIT = 4_000
"""Maximum number of shown characters of a text file."""

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


def artifact_html(artifact: Artifact, unfolded: bool = False) -> str:
    """Return the file's name and content as HTML, or the reason why the content is missing.

    The content is folded until a click, unless `unfolded` is true.
    """
    body = f"<p class='lsn-quiet'>{escape(artifact.omitted)}</p>"
    if artifact.data is not None:
        body = _unfolding(artifact, _body(artifact, artifact.data), unfolded)
    css = "lsn-artifact lsn-whole" if unfolded else "lsn-artifact"
    return f"<figure class='{css}'><figcaption>{_caption(artifact)}</figcaption>{body}</figure>"


def holds_all(artifact: Artifact) -> bool:
    """Return True if the figure contains the whole file. The record then does not store the file again."""
    whole = artifact.suffix in _IMAGES | _AUDIO | _VIDEO | _DOWNLOADS | _PAGES or artifact.suffix == ".pdf"
    excerpt = artifact.suffix in _EXCERPTS or artifact.suffix == ".parquet" or _is_text(artifact)
    return artifact.data is not None and (whole or not excerpt)


def _is_text(artifact: Artifact) -> bool:
    return artifact.suffix in _TEXTS or artifact.mime.startswith("text/")


def _unfolding(artifact: Artifact, body: str, unfolded: bool) -> str:
    """Fold the body of a figure. Until a click, a picture or a page is small, and a text or a table is hidden.

    A file that needs much memory is hidden behind a warning, because browsers load hidden files only after a click.
    """
    if framed := body.startswith("<iframe "):
        body = body.replace(" loading=", f" title='{escape(artifact.path)}' loading=", 1)
    if warning := decoding_warning(artifact):
        return f"<details><summary>{escape(warning)} Show it anyway</summary>{body}</details>"
    if unfolded or (body.startswith(("<audio ", "<video ", "<p")) and not body.startswith("<pre")):
        return body
    summary, folded = (body, "") if framed or artifact.suffix in _IMAGES else ("Show", body)
    return f"<details><summary>{summary}</summary>{folded}</details>"


def decoding_warning(artifact: Artifact) -> str:
    """Return why the file is shown only after a click, for example its decoded size. Return "" for any other file."""
    if artifact.data is None:
        return ""
    if artifact.suffix in _PAGES:
        return decoded_warning(text_of(artifact.data))
    if artifact.suffix not in _IMAGES:
        return ""
    if artifact.data[4:8] == b"ftyp":
        return "Named as another kind of picture, but it is AVIF."
    size = picture_size(artifact.data)
    if size is None or size.decoded <= MAX_DECODED_BYTES:
        return ""
    return f"This picture decodes to {format_size(size.decoded)} ({size.width} × {size.height} pixels)."


def _caption(artifact: Artifact) -> str:
    name = f"<code>{escape(artifact.path)}</code>"
    if artifact.href and artifact.suffix in _LINKED:
        name = (
            f"<a href='{escape(quote(artifact.href))}' target='_blank' rel='noopener noreferrer'>{name}</a>"
        )
    return f"{name} <span class='lsn-quiet'>{format_size(artifact.size)}</span>"


def _body(artifact: Artifact, data: bytes) -> str:
    suffix, name = artifact.suffix, escape(artifact.path)
    if suffix in _IMAGES:
        return f"<img alt='{name}' loading='lazy' src='{_uri(_IMAGES[suffix], data)}' style='max-width:100%'>"
    if suffix in _AUDIO:
        return f"<audio controls preload='metadata' src='{_uri(_AUDIO[suffix], data)}'></audio>"
    if suffix in _VIDEO:
        return f"<video controls preload='none' style='max-width:100%' src='{_uri(_VIDEO[suffix], data)}'></video>"
    if suffix in _DOWNLOADS:
        return _download(artifact, _DOWNLOADS[suffix], data)
    if suffix == ".pdf":
        return _pdf(artifact, data)
    if suffix in _PAGES and (unfolds := unfolding_warning(text_of(data))):
        return _download(artifact, "application/octet-stream", data, f"{unfolds} It is not shown here.")
    if suffix == ".parquet":
        return parquet_table(artifact.table)
    if suffix in _PAGES or suffix in _EXCERPTS:
        return (_PAGES | _EXCERPTS)[suffix](data)
    if _is_text(artifact):
        return f"<pre>{escape(clip(text_of(data), TEXT_LIMIT))}</pre>"
    return _download(artifact, "application/octet-stream", data)


def _uri(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode('ascii')}"


def _download(artifact: Artifact, mime: str, data: bytes, note: str = "") -> str:
    name = escape(PurePosixPath(artifact.path).name)
    note = f"<span class='lsn-quiet'>{escape(note)}</span> " if note else ""
    return f"<p>{note}<a download='{name}' href='{_uri(mime, data)}'>Download {name}</a></p>"


def _pdf(artifact: Artifact, data: bytes) -> str:
    uri = _uri("application/pdf", data)
    inside = (
        f"<p>This page cannot show PDF files; the file is {escape(artifact.path)} in the run's folder.</p>"
    )
    return f"<object type='application/pdf' data='{uri}' style='width:100%;height:480px'>{inside}</object>"


def _json(data: bytes) -> str:
    """Return indented JSON as HTML. Other text, and JSON that is nested too deep, is not indented."""
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
    ".md": _markdown,
    ".markdown": _markdown,
    ".json": _json,
    ".geojson": _json,
    ".ipynb": _json,
}
_LINKED = {
    *_IMAGES,
    *_AUDIO,
    *_VIDEO,
    *_DOWNLOADS,
    *_TEXTS,
    *_EXCERPTS,
    ".parquet",
    ".zip",
    ".gz",
    ".xlsx",
    ".docx",
}
_LINKED -= {".xml", ".js"}
"""Suffixes of files to which the card links. A browser runs scripts in files of many kinds, for example `.xht` and
`.rss`, so there is no link to a file of any other kind."""
