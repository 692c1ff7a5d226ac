"""Writing of files so that a reader never sees half a file."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: Path, data: bytes, *, follow_links: bool = False) -> Path:
    """Write `data` to `path` and create its folder if needed; the old file stays until the new one is complete.

    Args:
        follow_links: for a path that a person named: write the target of a link, and write into a device or a pipe
            (`/dev/stdout`). Otherwise replace whatever has the name: a run folder may be someone else's, with links
            to files of this machine.

    Raises:
        OSError: if the file cannot be written; a partial file is removed.
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
