"""Files below one folder: read, written and removed without following a link."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_sandbox_nb import own_folder
from llm_sandbox_nb.own_folder import (
    NotOwnFileError,
    file_names,
    is_file,
    names_below,
    open_file,
    read_file,
    remove_file,
    write_file,
)


@pytest.fixture(params=["relative", "looked at first"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file, and one of the host beside it; also as on a system that opens by whole paths only."""
    monkeypatch.setattr(own_folder, "_OPENS_RELATIVE", request.param == "relative")
    (tmp_path / "run" / "below").mkdir(parents=True)
    (tmp_path / "run" / "below" / "x").write_bytes(b"own")
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "x").write_bytes(b"of the host")
    return tmp_path / "run"


def link_to_file(folder: Path) -> str:
    (folder / "l").symlink_to(folder.parent / "host" / "x")
    return "l"


def link_to_folder(folder: Path) -> str:
    (folder / "l").symlink_to(folder.parent / "host")
    return "l/x"


def link_inside(folder: Path) -> str:
    (folder / "l").symlink_to("below")
    return "l/x"


def folder_itself(folder: Path) -> str:
    return "below"


def pipe(folder: Path) -> str:
    os.mkfifo(folder / "p")
    return "p"


def path_up(folder: Path) -> str:
    return "../host/x"


def path_up_and_back(folder: Path) -> str:
    return "below/../../host/x"


def whole_path(folder: Path) -> str:
    return str(folder.parent / "host" / "x")


def null(folder: Path) -> str:
    return "below/x\0"


def listening(folder: Path) -> str:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(folder / "s"))
    return "s"


FOREIGN = [
    link_to_file, link_to_folder, link_inside, folder_itself, pipe, path_up, path_up_and_back, whole_path, null,
    listening,
]  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", FOREIGN)
def test_nothing_else_is_opened(
    make: Callable[[Path], str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    name = make(folder)
    with pytest.raises(NotOwnFileError) as caught:
        read_file(folder, name, 100)
    assert str(caught.value)
    assert "\n" not in str(caught.value)
    assert not is_file(folder, name)
    with pytest.raises(NotOwnFileError):
        open_file(folder, name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    assert (folder.parent / "host" / "x").read_bytes() == b"of the host"


@pytest.mark.parametrize("make", [link_to_folder, path_up, path_up_and_back, whole_path])
def test_nothing_else_is_written_or_removed(make: Callable[[Path], str], folder: Path) -> None:
    name = make(folder)
    with pytest.raises(NotOwnFileError):
        write_file(folder, name, b"new")
    with pytest.raises(NotOwnFileError):
        remove_file(folder, name)
    assert [path.read_bytes() for path in (folder.parent / "host").iterdir()] == [b"of the host"]


def test_a_link_is_replaced_and_removed_itself(folder: Path) -> None:
    link_to_file(folder)
    write_file(folder, "l", b"new")
    assert not (folder / "l").is_symlink()
    assert read_file(folder, "l", 100) == b"new"
    (folder / "l").unlink()
    link_to_file(folder)
    remove_file(folder, "l")
    assert not (folder / "l").is_symlink()
    assert (folder.parent / "host" / "x").read_bytes() == b"of the host"


def test_own_files_are_read_written_and_removed(folder: Path) -> None:
    """Also where a person reaches the folder through a link."""
    link = folder.parent / "link"
    link.symlink_to(folder)
    for place in (folder, link):
        write_file(place, "new/deep/file", b"content")
        assert read_file(place, "new/deep/file", 7) == b"content"
        with pytest.raises(NotOwnFileError, match="larger than 6 bytes"):
            read_file(place, "new/deep/file", 6)
        remove_file(place, "new/deep/file")
        with pytest.raises(FileNotFoundError):
            read_file(place, "new/deep/file", 7)
    assert read_file(folder, "below/x", 100) == b"own"
    assert sorted(file_names(folder)) == ["below/x"]


def test_links_are_not_walked_into(folder: Path) -> None:
    link_to_folder(folder)
    (folder / "dangling").symlink_to("nowhere")
    os.mkfifo(folder / "p")
    assert list(file_names(folder)) == ["below/x"]
    (folder.parent / "link").symlink_to(folder)
    assert list(file_names(folder.parent / "link")) == []
    assert sorted(path.name for path in names_below(folder, lambda name: name in ("p", "x"))) == ["p", "x"]


def test_a_file_is_whole_or_not_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", fails)
    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OSError, match="No space left"):
        write_file(folder, "new", b"content")
    assert [path.name for path in folder.iterdir()] == ["below"]
