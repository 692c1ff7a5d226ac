"""Odd trees that a person hands in: links, pipes, sockets, devices, worktrees of git. They arrive as they are."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_sandbox_nb.sandbox.errors import TransferError

ODD: dict[str, Callable[[Path], object]] = {}
"""By name: makes an odd tree in an empty folder. A docstring names what is left out."""
LOOK = """
import hashlib, json, os, stat, sys
top = os.fsencode(sys.argv[1])
found, names = {}, {}
todo = [b""]
while todo:
    below = todo.pop()
    for name in os.listdir(os.path.join(top, below)):
        inner = os.path.join(below, name)
        path = os.path.join(top, inner)
        look = os.lstat(path)
        what = [stat.S_IFMT(look.st_mode)]
        if stat.S_ISLNK(look.st_mode):
            what.append(os.fsdecode(os.readlink(path)))
        elif stat.S_ISREG(look.st_mode):
            with open(path, "rb") as file:
                what += [hashlib.sha256(file.read()).hexdigest(), look.st_mode & 0o100]
            names.setdefault((look.st_dev, look.st_ino), []).append(os.fsdecode(inner))
        elif stat.S_ISDIR(look.st_mode):
            todo.append(inner)
        found[os.fsdecode(inner)] = what
print(json.dumps([found, sorted(sorted(one) for one in names.values() if len(one) > 1)]))
"""


def odd(make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Add a tree to the table."""
    ODD[make.__name__] = make
    return make


def link(name: str, target: str) -> Callable[[Path], object]:
    """A tree with a file, a folder, and a link."""

    def make(folder: Path) -> None:
        (folder / "sub").mkdir()
        (folder / "file").write_text("content")
        (folder / name).symlink_to(target)

    return make


ODD |= {
    "link_to_a_file": link("l", "file"),
    "link_to_a_folder": link("l", "sub"),
    "link_out_to_a_folder": link(".venv", "/usr/lib"),
    "link_out_to_a_file": link("l", "/etc/passwd"),
    "link_up": link("l", ".."),
    "link_up_and_down": link("sub/l", "../file"),
    "link_out_relative": link("sub/l", "../../secret"),
    "link_to_the_root": link("l", "/"),
    "link_to_nowhere": link("l", "nowhere"),
    "link_to_itself": link("l", "l"),
    "link_to_its_folder": link("sub/l", "."),
    "link_to_the_folder_above": link("sub/l", ".."),
    "link_to_a_device": link("l", "/dev/zero"),
    "link_to_the_kernel": link("l", "/proc/self/root"),
    "link_of_odd_letters": link("l", "a\nb 'c' \"d\" é漢"),
    "link_of_a_long_target": link("l", "/".join(["x" * 200] * 20)),
    "link_with_a_name_of_an_option": link("-rf", "file"),
}


@odd
def links_in_a_circle(folder: Path) -> None:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")


@odd
def links_of_no_text(folder: Path) -> None:
    (folder / os.fsdecode(b"\xe9")).symlink_to(os.fsdecode(b"\xff\xfe"))


@odd
def pipe(folder: Path) -> None:
    """pipe"""
    os.mkfifo(folder / "pipe")
    (folder / "file").write_text("content")


@odd
def pipes_only(folder: Path) -> None:
    """a b"""
    os.mkfifo(folder / "a")
    (folder / "sub").mkdir()
    os.mkfifo(folder / "sub/b")


@odd
def socket_of_a_server(folder: Path) -> None:
    """socket"""
    with contextlib.chdir(folder), socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")


@odd
def device(folder: Path) -> None:
    """device"""
    try:
        os.mknod(folder / "device", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        os.mkfifo(folder / "device")  # whoever is not root has no device to hand in


@odd
def hard_links(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "b").write_text("content")
    (folder / "sub/a").hardlink_to(folder / "b")
    (folder / "c").hardlink_to(folder / "b")


@odd
def hard_link_to_what_stays_outside(folder: Path) -> None:
    (folder.parent / "outside").write_text("content")
    (folder / "file").hardlink_to(folder.parent / "outside")


@odd
def hard_links_of_a_link(folder: Path) -> None:
    (folder / "a").symlink_to("/etc/passwd")
    os.link(folder / "a", folder / "b", follow_symlinks=False)


@odd
def nothing(folder: Path) -> None:
    pass


@odd
def very_deep(folder: Path) -> None:
    place = folder
    for _ in range(300):
        place /= "deep"
    place.mkdir(parents=True)
    (place / "file").write_text("content")


@odd
def too_deep(folder: Path) -> None:
    """d.../d..."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=here)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


@odd
def very_wide(folder: Path) -> None:
    for number in range(2000):
        (folder / f"{number}").symlink_to(f"{number + 1}")


@odd
def odd_names(folder: Path) -> None:
    for name in (b"-rf", b"new\nline", b"\xff", "é漢😀".encode(), b" ", b"*", b"x" * 255, b"...", b"~"):
        with open(os.fsencode(folder) + b"/" + name, "wb") as file:
            file.write(name)


@odd
def unwritable_folder(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub/file").write_text("content")
    (folder / "sub").chmod(0o555)


def git(*words: str, cwd: Path) -> str:
    """What a command of git says on this machine."""
    person = ("-c", "user.name=A Person", "-c", "user.email=person@example.com")
    return subprocess.run(
        ["git", *person, *words], cwd=cwd, check=True, capture_output=True, text=True
    ).stdout


def make_repository(folder: Path) -> None:
    """A repository with links of all kinds, with changes that are not committed."""
    git("init", "--quiet", cwd=folder)
    (folder / "src").mkdir()
    (folder / "src/run.sh").write_text("#!/bin/sh\n")
    (folder / "src/run.sh").chmod(0o755)
    (folder / "linked.sh").symlink_to("src/run.sh")
    (folder / "linked").symlink_to("src")
    (folder / "outside").symlink_to("/usr/lib/python3")
    (folder / "dangling").symlink_to("nowhere")
    git("add", ".", cwd=folder)
    git("commit", "--quiet", "--message", "first", cwd=folder)
    (folder / "src/run.sh").write_text("#!/bin/sh\necho changed\n")
    (folder / "new").symlink_to("src")


@odd
def repository_of_git(folder: Path) -> None:
    make_repository(folder)


@odd
def worktree_of_git(folder: Path) -> None:
    """worktree"""
    main = folder.parent / "main"
    main.mkdir()
    make_repository(main)
    git("worktree", "add", "--quiet", str(folder / "here"), cwd=main)


def look(folder: Path) -> Any:
    """What is in a folder of this machine."""
    said = subprocess.run([sys.executable, "-c", LOOK, folder], check=True, capture_output=True).stdout
    return json.loads(said)


async def test_what_lies_too_deep_is_left_out(box: Any, tmp_path: Path) -> None:
    too_deep(tmp_path)
    (left_out,) = await box.upload(tmp_path, "input/up")
    assert "too long" in left_out


@pytest.mark.smoke
async def test_all_odd_trees_arrive_in_one(box: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    left_out = []
    for name in sorted(ODD.keys() - {"too_deep"}):
        (source / name).mkdir(parents=True)
        ODD[name](source / name)
        left_out += (ODD[name].__doc__ or "").split()
    told = await box.upload(source, "input/up")
    assert len(told) == len(left_out), told
    assert all(any(word in sentence for sentence in told) for word in left_out), told
    there, linked = json.loads((await box.exec(["python3", "-c", LOOK, "input/up"])).stdout)
    here, linked_here = look(source)
    special = (stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR)
    assert there == {path: what for path, what in here.items() if what[0] not in special}
    assert linked == linked_here


async def test_git_sees_no_difference(box: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    make_repository(source)
    await box.upload(source, "input/up")
    said = await box.run("cd input/up && git status --porcelain --untracked-files=all")
    assert said.exit_code == 0, said.text
    expected = git("status", "--porcelain", "--untracked-files=all", cwd=source)
    assert said.stdout.decode() == expected
    assert " M src/run.sh" in expected  # the canary: a link that became a file would be a line too
    await box.run("rm linked && cp -r src linked")
    assert (await box.run("git status --porcelain")).stdout.decode() != expected


async def test_nothing_is_written_through_a_link_that_came_before(box: Any, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        (folder / "sub").mkdir(parents=True)
    (first / "a").symlink_to("../kept")
    (first / "b").symlink_to("../kept/file")
    (second / "a").mkdir()
    (second / "a/new").write_text("new")
    (second / "b").write_text("new")
    await box.run("mkdir input/kept; echo precious > input/kept/file")
    await box.upload(first, "input/up")
    await box.upload(second, "input/up")
    assert (await box.run("ls input/kept; cat input/kept/file")).stdout == b"file\nprecious\n"
    assert (await box.run("cat input/up/a/new input/up/b")).stdout == b"newnew"


async def test_what_cannot_be_read_is_named_before_anything_is_sent(
    box: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/secret").write_text("x")
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "secret" not in str(path) and real(path, mode))
    with pytest.raises(TransferError, match=r"secret cannot be read .Permission denied.; make it readable"):
        await box.upload(tmp_path / "source", "input/up")
    assert (await box.run("ls input")).stdout == b""
