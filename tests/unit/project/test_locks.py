"""Locks of files end when their owner closes the file, also while a child process that just begins shares the file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_sandbox_nb.benchmark.results_folder import FolderLock
from llm_sandbox_nb.sandbox.history.pack_store import PackStore
from llm_sandbox_nb.trajectory.journal import Journal


def open_journal(folder: Path) -> Callable[[], None]:
    return Journal(folder).close


def open_store(folder: Path) -> Callable[[], None]:
    return PackStore(folder).close


def open_results(folder: Path) -> Callable[[], None]:
    return FolderLock(folder).release


@pytest.mark.parametrize("opened", [open_journal, open_store, open_results])
def test_a_lock_ends_although_a_child_process_shares_the_file(
    opened: Callable[[Path], Callable[[], None]], tmp_path: Path
) -> None:
    close = opened(tmp_path)
    waits, end = os.pipe()
    child = os.fork()
    if not child:  # as between fork and exec
        os.close(end)
        os.read(waits, 1)
        os._exit(0)
    try:
        close()
        opened(tmp_path)()
    finally:
        os.close(waits)
        os.close(end)
        os.waitpid(child, 0)
