"""Writes a file so that a reader never sees half of it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: Path, data: bytes, *, follow_links: bool = False) -> Path:
    """Write `data` to `path`, whose folder is made if needed; the file before stays until the new one is whole.

    Args:
        follow_links: for a path that a person named: the file that a link names is written, and a device or a pipe
            (`/dev/stdout`) is written to. Else whatever has the name is replaced: a run folder may be someone
            else's, with links to files of this machine.

    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    target = path.resolve() if follow_links else path
    if follow_links and target.exists() and not target.is_file() and not target.is_dir():
        target.write_bytes(data)
        return path
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            file.write(data)
        partial.replace(target)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    return path
