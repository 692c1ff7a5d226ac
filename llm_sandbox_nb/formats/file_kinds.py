"""Description of a file that is not a trajectory, for error messages."""

from __future__ import annotations

from typing import Any

_MAGIC = (
    (b"\x89PNG", "a PNG picture"), (b"\xff\xd8\xff", "a JPEG picture"), (b"GIF8", "a GIF picture"),
    (b"%PDF", "a PDF document"), (b"PK\x03\x04", "a ZIP archive"), (b"PK\x05\x06", "an empty ZIP archive"),
    (b"\x1f\x8b", "a gzip archive"), (b"BZh", "a bzip2 archive"), (b"\xfd7zXZ", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive"), (b"SQLite format 3", "an SQLite database"),
    (b"PAR1", "a Parquet file"), (b"\x7fELF", "a program"), (b"RIFF", "a sound or a video"),
)  # fmt: skip
_KINDS_BY_KEY = {
    "nbformat": "a Jupyter notebook",
    "resourceSpans": "a file of OpenTelemetry spans",
    "lockfileVersion": "a lock file of npm",
    "preds": "a file of predictions",
}


def kind_of_bytes(data: bytes) -> str:
    """Describe a file that is not a JSON object or array. Return an empty text if it may be an object or array."""
    if not data.strip():
        return "empty"
    named = next((kind for start, kind in _MAGIC if data.startswith(start)), "")
    if named or b"\0" in data[:4096]:
        return named or "a binary file"
    return "" if data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[") else "text"


def kind_of_json(content: Any) -> str:
    """Describe parsed JSON, such as `a JSON object with id, name`."""
    if isinstance(content, dict):
        named = next((kind for key, kind in _KINDS_BY_KEY.items() if key in content), "")
        return named or f"a JSON object with {_keys(content)}"
    if isinstance(content, list):
        first = content[0] if content else None
        return (
            f"a list of JSON objects with {_keys(first)}"
            if isinstance(first, dict)
            else f"a JSON list of {len(content)}"
        )
    return "a single JSON value"


def _keys(content: dict[str, Any]) -> str:
    names = [key if key.isprintable() else repr(key) for key in content]
    shown = ", ".join(name[:40] for name in names[:5]) + (", …" if len(names) > 5 else "")
    return shown or "no keys"
