"""Single files: every byte both ways, and every error that `open` would raise."""

from __future__ import annotations

import asyncio
import io
import os
import threading
import time
from typing import Any

import pytest
from sandbox_commands import begun
from shared_sandboxes import isolated

from llm_sandbox_nb.sandbox.errors import OutputLimitExceededError

NAMES = ["a b", "-n", "$HOME", "`id`", "a'b\"c", "é漢😀", "new\nline", "\udcff\udcfe", "deep/er/file", " "]


async def test_fifty_megabytes_both_ways(box: Any) -> None:
    data = os.urandom(2**20) * 50
    await box.write_file("big", data)
    assert (await box.run("stat -c %s big")).stdout == b"52428800\n"
    assert await box.read_file("big") == data


@pytest.mark.smoke
async def test_every_byte_and_every_name(box: Any) -> None:
    contents = [b"", b"\0\xff\r\n\t", "é漢😀".encode(), b"no newline", b"x" * 65536, b"y" * 65537]
    for number, name in enumerate(NAMES):
        data = contents[number % len(contents)]
        await box.write_file(name, data)
        assert await box.read_file(name) == data
        assert await box.read_file(f"{box.directories.root}/{name}") == data
    listed = [entry.path for entry in await box.list_files(".", depth=5) if entry.kind == "file"]
    assert sorted(listed) == sorted(f"{box.directories.root}/{name}" for name in NAMES)
    await box.run("cd /")
    await box.write_file("relative", b"to the working directory, wherever the shell is")
    assert await box.read_file(f"{box.directories.root}/relative")


async def test_errors_of_reading(box: Any) -> None:
    await box.run(
        "mkdir d; mkfifo fifo; ln -s fifo to-fifo; ln -s nowhere dangling; ln -s loop loop; echo x > f; ln -s f l"
    )
    for path, error, words in (
        ("missing", FileNotFoundError, "missing"),
        ("dangling", FileNotFoundError, "."),
        ("d", IsADirectoryError, "."),
        ("f/x", NotADirectoryError, "."),
        ("fifo", PermissionError, "."),
        ("to-fifo", PermissionError, "."),
        ("/dev/zero", PermissionError, "."),
        ("/dev/null", PermissionError, "."),
        ("loop", OSError, "loop"),
        ("x" * 300, OSError, "too long"),
        ("x/" * 60_000, OSError, "too long"),
        ("a\0b", ValueError, "NUL"),
    ):
        with pytest.raises(error, match=words):
            await box.read_file(path)
    assert await box.read_file("l") == b"x\n"
    assert b"Name:" in await box.read_file("/proc/self/status")
    assert await box.read_file("f", limit=2) == b"x\n"
    with pytest.raises(OutputLimitExceededError, match="larger than the limit of 1 bytes"):
        await box.read_file("f", limit=1)
    assert await box.read_file("f", limit=2) == b"x\n"


async def test_errors_of_writing(box: Any) -> None:
    await box.run("mkdir d; mkfifo fifo; echo old > f; ln -s nowhere/x dangling")
    for path, error, options in (
        ("d", IsADirectoryError, {}),
        ("new/", IsADirectoryError, {}),
        ("f/x", (NotADirectoryError, FileExistsError), {}),
        ("fifo", PermissionError, {}),
        ("/dev/null", PermissionError, {}),
        ("f", FileExistsError, {"exclusive": True}),
        ("dangling", FileExistsError, {"exclusive": True}),
    ):
        with pytest.raises(error):
            await box.write_file(path, b"x", **options)
    assert await box.read_file("f") == b"old\n"
    await box.write_file("fresh", b"new", exclusive=True)
    assert await box.read_file("fresh") == b"new"
    assert (await box.run("ls -A | grep llm-sandbox")).stdout == b""


@isolated
@pytest.mark.own_sandbox
@pytest.mark.sandbox(profile="strict")
async def test_writing_without_permission(box: Any) -> None:
    await box.run("echo old > f; chmod 444 f; mkdir closed; chmod 555 closed")
    for path in ("f", "closed/f", "/etc/passwd"):
        with pytest.raises(PermissionError):
            await box.write_file(path, b"x")
    await box.run("chmod 000 f")
    with pytest.raises(PermissionError):
        await box.read_file("f")
    await box.run("mkdir fixed; echo old > fixed/f; chmod 555 fixed")
    await box.write_file("fixed/f", b"in place")
    assert await box.read_file("fixed/f") == b"in place"


async def test_an_existing_file_keeps_what_it_is(box: Any) -> None:
    await box.run(
        "echo old > f; chmod 4750 f; ln f hard; echo t > target; chmod 600 target; ln -s target link"
    )
    await box.write_file("f", b"through the hard link")
    assert await box.read_file("hard") == b"through the hard link"
    await box.write_file("link", b"through the link")
    assert await box.read_file("target") == b"through the link"
    kinds = (await box.run("stat -c '%F %a' link target; stat -c %a f")).stdout.decode().splitlines()
    assert kinds[:2] == ["symbolic link 777", "regular file 600"]
    assert kinds[2] in ("4750", "750")
    await box.run("echo '#!/bin/sh' > prog; chmod 755 prog")
    await box.write_file("prog", b"#!/bin/sh\necho ran\n")
    assert (await box.exec(["./prog"])).stdout == b"ran\n"


async def test_a_reader_never_sees_half_a_file(box: Any) -> None:
    sizes = (3_000_000, 2_999_999)
    await box.write_file("f", b"a" * sizes[0])
    look = "d = open('f','rb').read(); print(len(d), len(set(d)), flush=True)"
    look = f"import os\nwhile not os.path.exists('over'): {look}"
    watching = await begun(box, ["python3", "-c", look], b"1\n")
    for turn in range(12):
        await box.write_file("f", bytes([97 + turn]) * sizes[turn % 2])
    await box.write_file("over", b"")
    seen = {tuple(map(int, line.split())) for line in (await watching).stdout.splitlines()}
    assert seen <= {(sizes[0], 1), (sizes[1], 1)}


class Slow(io.BytesIO):
    """A file of which the second half cannot be read before `go` is set."""

    def __init__(self) -> None:
        super().__init__(bytes(8 * 2**20))
        self.half_read, self.go = threading.Event(), threading.Event()

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() >= 4 * 2**20:
            self.half_read.set()
            self.go.wait(60)
        return super().read(size)


@pytest.mark.smoke
async def test_a_cancelled_writing_leaves_nothing(box: Any) -> None:
    await box.write_file("f", b"old")
    for path in ("f", "new"):
        source = Slow()
        writing = asyncio.create_task(box.write_from(path, source, 8 * 2**20))
        assert await asyncio.to_thread(source.half_read.wait, 60)
        writing.cancel()
        source.go.set()
        with pytest.raises(asyncio.CancelledError):
            await writing
    assert (await box.run("cat f; ls -A | grep -v -e input -e documents -e output")).stdout == b"oldf\n"


@pytest.mark.isolations("docker")
@pytest.mark.own_sandbox
@pytest.mark.sandbox(profile="strict")
async def test_a_file_of_a_group_to_which_the_user_does_not_belong(box: Any) -> None:
    await box.run("echo old > f")
    assert (await box.exec(["sh", "-c", "chgrp 12345 f; chmod 664 f"], user="root")).exit_code == 0
    await box.write_file("f", b"new")
    assert (await box.run("cat f; stat -c ' %g' f; ls -A | grep llm-sandbox")).stdout == b"new 12345\n"


# In Docker no place is small: /dev/shm is as large as the memory, which is used up first.
@pytest.mark.isolations("bubblewrap")
@pytest.mark.own_sandbox
async def test_full_disk(box: Any) -> None:
    place = "/dev/shm"
    room = int((await box.run(f"df --output=avail -k {place} | tail -1")).stdout)
    size = f"{room - 1000}K"
    filled = await box.run(f"fallocate -l {size} {place}/fill && df --output=avail -k {place} | tail -1")
    assert int(filled.stdout) <= 1000, filled.text
    with pytest.raises(OSError, match=r"[Nn]o space|quota|allocate"):
        await box.write_file(f"{place}/big", b"x" * 80_000_000)
    assert (await box.run(f"ls -A {place} | grep -c -e big -e .llm-sandbox")).stdout == b"0\n"
    assert (await box.run("echo fine")).stdout == b"fine\n"


@pytest.mark.smoke
async def test_listing(box: Any) -> None:
    make = "mkdir -p a/b/c; echo 12345 > a/f; chmod 640 a/f; ln -s /etc a/link; mkfifo a/b/fifo; echo > a/.hidden"
    await box.run(make)
    root = box.directories.root
    one = await box.list_files("a")
    assert [(entry.path[len(root) :], entry.kind) for entry in one] == [
        ("/a/.hidden", "file"),
        ("/a/b", "directory"),
        ("/a/f", "file"),
        ("/a/link", "link"),
    ]
    assert (one[2].size, one[2].mode) == (6, 0o640)
    assert abs(one[2].mtime - time.time()) < 3600
    two = await box.list_files("a", depth=2)
    below = ["/.hidden", "/b", "/b/c", "/b/fifo", "/f", "/link"]
    assert [entry.path for entry in two] == [f"{root}/a{name}" for name in below]
    assert {entry.kind for entry in two} == {"file", "directory", "link", "other"}
    assert [entry.path for entry in await box.list_files("a/f")] == [f"{root}/a/f"]
    with pytest.raises(FileNotFoundError):
        await box.list_files("missing")
    assert await box.list_files("a/b/c") == []
    await box.run("mkdir many; cd many; seq 1 12000 | xargs touch")
    assert len(await box.list_files("many")) == 10_000
    assert len(await box.list_files("many", limit=7)) == 7


@pytest.mark.alike
@pytest.mark.parametrize(("name", "depth", "listed"), [("d" * 250, 17, 16), ("d", 1100, 1100)])
async def test_listing_deeper_than_paths_can_be(box: Any, name: str, depth: int, listed: int) -> None:
    """A folder that no path leads to hides no other file."""
    script = "import os\nfor _ in range({}): os.mkdir('{}'); os.chdir('{}')\nopen('{}', 'w')"
    await box.exec(["python3", "-c", script.format(depth, name, name, "f" * 250)])
    await box.run("touch seen")
    names = [entry.path.rpartition("/")[2] for entry in await box.list_files(".", depth=5000)]
    assert "seen" in names
    assert names.count(name) == listed
