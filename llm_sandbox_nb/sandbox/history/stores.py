"""The registry of the kinds of stores of checkpoints, and functions that make, find, open and remove a store.

A new kind is a subclass of `checkpoint_store.CheckpointStore` and a row in `STORES`. The tests of the contract and of
kills read `STORES`. A new kind also needs damaged and hostile stores in tests/received_folders.py, and a description of
its files in `history/__init__.py`, docs/explanation/time-travel.md and docs/explanation/isolation.md.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from llm_sandbox_nb.sandbox.history.checkpoint_store import CheckpointStore
from llm_sandbox_nb.sandbox.history.pack_store import PackStore
from llm_sandbox_nb.sandbox.history.packs import storing
from llm_sandbox_nb.sandbox.limits import HISTORY_LIMIT
from llm_sandbox_nb.windows import is_windows

STORES: list[type[CheckpointStore]] = [PackStore]
"""Kinds of stores. A new store is of the first kind. An existing store is opened by the kind that has made it."""
_PREFIX = "llm-sandbox-history-"


def open_store(folder: Path, *, limit: int = HISTORY_LIMIT, readonly: bool = False) -> CheckpointStore:
    """Open the store in `folder`, or make a store. Raises like `CheckpointStore`."""
    return (_kind(folder) or STORES[0])(folder, limit=limit, readonly=readonly)


@contextlib.contextmanager
def reading_history(folder: Path) -> Iterator[CheckpointStore]:
    """Return a context in which the history in `folder` is open for reading. Raises HistoryError."""
    with contextlib.closing(open_store(folder, readonly=True)) as store:
        yield store


def is_history(folder: Path) -> bool:
    """Return True if a folder holds a history. Links are not followed."""
    return _kind(folder) is not None


def is_history_in_use(folder: Path) -> bool:
    """Return True if a sandbox is writing the history in `folder`."""
    return any(kind.is_in_use(folder) for kind in STORES)


def temporary_folder() -> Path:
    """Make a folder for a temporary history. Raises HistoryNotWrittenError."""
    with storing(Path(tempfile.gettempdir())):
        return Path(tempfile.mkdtemp(prefix=_PREFIX))


def remove_history(folder: Path) -> None:
    """Remove a history and its folder."""
    shutil.rmtree(folder, ignore_errors=True)


def remove_stale() -> None:
    """Remove temporary histories of this user's killed processes."""
    if is_windows():
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            info = folder.lstat()
            if info.st_uid != os.getuid() or time.time() - info.st_mtime < 60 or is_history_in_use(folder):
                continue
        except OSError:
            continue
        remove_history(folder)


def _kind(folder: Path) -> type[CheckpointStore] | None:
    return next((kind for kind in STORES if kind.holds(folder)), None)
