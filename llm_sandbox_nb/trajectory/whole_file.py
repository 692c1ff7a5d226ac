"""Atomic writing of files: a reader never sees a partial file."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: Path, data: bytes, *, follow_links: bool = False) -> Path:
    """Write `data` to `path` atomically. Make missing folders.

    Args:
        follow_links: True for a path that a person named: links are followed, and devices and pipes such as
            `/dev/stdout` are written to. False for a path in a run folder: a link at `path` is replaced. A run folder
            may come from anyone, and its links may lead to other files of this machine.

    Raises:
        OSError: if the file cannot be written. A partial file is removed.
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
