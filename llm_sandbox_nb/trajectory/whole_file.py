"""Writes a file so that a reader never sees half of it."""

from __future__ import annotations

from pathlib import Path


def write_whole(path: Path, data: bytes) -> Path:
    """Write `data` to `path`, whose folder is made if needed; the file before stays until the new one is whole.

    A link stays a link: the file that it names is written. A device or a pipe (`/dev/stdout`) is written to, never
    replaced.

    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    target = path.resolve()
    if target.exists() and not target.is_file() and not target.is_dir():
        target.write_bytes(data)
        return path
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(target)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    return path
