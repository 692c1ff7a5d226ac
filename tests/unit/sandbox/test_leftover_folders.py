"""Folders whose owners were killed are removed; the folder of an owner that lives is not, from its first moment on."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from llm_sandbox_nb.sandbox.leftover_folders import make_owned_folder, remove_left_folders

PREFIX, LOCK = "owned-", "lock"


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_goes_with_its_owner() -> None:
    folder, lock = make_owned_folder(PREFIX, LOCK)
    assert remove_left_folders(PREFIX, LOCK) == 1
    assert folder.is_dir()
    os.close(lock)
    assert remove_left_folders(PREFIX, LOCK) == 0
    assert not folder.exists()


def test_a_folder_that_is_being_made_is_not_taken_for_a_dead_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process looks just before the owner has its lock."""
    lock_file = fcntl.flock

    def flock(file: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock_file)
        remove_left_folders(PREFIX, LOCK)
        lock_file(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    folder, lock = make_owned_folder(PREFIX, LOCK)
    assert (folder / LOCK).is_file()
    os.close(lock)


def test_nothing_is_left_of_a_folder_that_could_not_be_made(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: int, operation: int) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="no locks here"):
        make_owned_folder(PREFIX, LOCK)
    assert list(folders.iterdir()) == []
