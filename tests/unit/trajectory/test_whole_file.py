"""A file is whole or is not there, and a device stays a device."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llm_sandbox_nb.trajectory.whole_file import write_whole


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As on a full disk, a write beyond `size` bytes fails; Python ignores the signal."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_missing_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "ü" / "page.html"
    assert write_whole(path, b"page") == path
    assert path.read_bytes() == b"page"
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_keeps_the_file_before_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(b"before")
    with files_of_at_most(1000), pytest.raises(OSError, match="File too large"):
        write_whole(path, bytes(2000))
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_gets_the_data_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_whole(pipe, b"page", follow_links=True)
    if not pipe.is_fifo():  # the reader waits for a writer that never comes
        pytest.fail("the pipe was replaced by a file")
    reader.join()
    assert read == [b"page"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "newest.html").symlink_to("page.html")
    write_whole(tmp_path / "newest.html", b"page", follow_links=True)
    assert (tmp_path / "newest.html").is_symlink()
    assert (tmp_path / "page.html").read_bytes() == b"page"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, b"page")
    assert list(tmp_path.iterdir()) == []
