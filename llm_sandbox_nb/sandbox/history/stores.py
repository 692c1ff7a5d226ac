"""Functions that open a store of checkpoints for reading, and that make and remove temporary ones."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from llm_sandbox_nb.sandbox.history.pack_store import PackStore
from llm_sandbox_nb.sandbox.history.packs import storing
from llm_sandbox_nb.windows import is_windows

_PREFIX = "llm-sandbox-history-"


@contextlib.contextmanager
def reading_history(folder: Path) -> Iterator[PackStore]:
    """Return a context with the history in `folder`, open for reading. Raises HistoryError."""
    with contextlib.closing(PackStore(folder, readonly=True)) as store:
        yield store


def temporary_folder() -> Path:
    """Make a folder for a temporary history. Raises HistoryNotWrittenError."""
    with storing(Path(tempfile.gettempdir())):
        return Path(tempfile.mkdtemp(prefix=_PREFIX))


def remove_history(folder: Path) -> None:
    """Remove a history and its folder."""
    shutil.rmtree(folder, ignore_errors=True)


def remove_stale() -> None:
    """Remove temporary histories of this user whose process was killed."""
    if is_windows():
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            info = folder.lstat()
            if info.st_uid != os.getuid() or time.time() - info.st_mtime < 60 or PackStore.is_in_use(folder):
                continue
        except OSError:
            continue
        remove_history(folder)
