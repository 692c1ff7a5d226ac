"""Single files: every byte both ways, and every error that `open` would raise."""

from __future__ import annotations

import asyncio
import os
import time

import pytest
from support import with_sandbox as body

from llm_sandbox_nb.sandbox.errors import OutputLimitExceededError


@pytest.mark.alike
def test_fifty_megabytes_both_ways(opener):
    async def test(box):
        data = os.urandom(2**20) * 50
        await box.write_file("big", data)
        assert (await box.run("stat -c %s big")).stdout == b"52428800\n"
        assert await box.read_file("big") == data

    body(opener, test)


@pytest.mark.parametrize(
    "data", [b"", b"\0\xff\r\n\t", "é漢😀".encode(), b"no newline", b"x" * 65536, b"y" * 65537]
)
def test_bytes_stay_as_they_are(process_opener, data):
    async def test(box):
        await box.write_file("file", data)
        assert await box.read_file("file") == data

    body(process_opener, test)


@pytest.mark.parametrize(
    "name",
    ["a b", "-n", "$HOME", "`id`", "a'b\"c", "é漢😀", "new\nline", "\udcff\udcfe", "deep/er/file", " "],
)
def test_odd_names(opener, name):
    async def test(box):
        await box.write_file(name, b"here")
        assert await box.read_file(name) == b"here"
        assert await box.read_file(f"{box.directories.root}/{name}") == b"here"
        entries = await box.list_files(".", depth=5)
        assert f"{box.directories.root}/{name}" in [entry.path for entry in entries if entry.kind == "file"]

    body(opener, test)


def test_errors_of_reading(opener):
    async def test(box):
        await box.run(
            "mkdir d; mkfifo fifo; ln -s fifo to-fifo; ln -s nowhere dangling; ln -s loop loop;"
            " echo x > f; ln -s f link"
        )
        with pytest.raises(FileNotFoundError, match="missing"):
            await box.read_file("missing")
        with pytest.raises(FileNotFoundError):
            await box.read_file("dangling")
        with pytest.raises(IsADirectoryError):
            await box.read_file("d")
        with pytest.raises(NotADirectoryError):
            await box.read_file("f/x")
        for special in ("fifo", "to-fifo", "/dev/zero", "/dev/null"):
            started = time.monotonic()
            with pytest.raises(PermissionError):
                await box.read_file(special)
            assert time.monotonic() - started < 60
        with pytest.raises(OSError, match="loop"):
            await box.read_file("loop")
        with pytest.raises(OSError, match="too long"):
            await box.read_file("x" * 300)
        with pytest.raises(OSError, match="too long"):
            await box.read_file("x/" * 60_000)
        with pytest.raises(ValueError, match="NUL"):
            await box.read_file("a\0b")
        assert await box.read_file("link") == b"x\n"
        assert b"Name:" in await box.read_file("/proc/self/status")

    body(opener, test)


def test_reading_has_a_limit(opener):
    async def test(box):
        await box.write_file("f", b"12345")
        assert await box.read_file("f", limit=5) == b"12345"
        with pytest.raises(OutputLimitExceededError, match="larger than the limit of 4 bytes"):
            await box.read_file("f", limit=4)
        assert await box.read_file("f", limit=5) == b"12345"

    body(opener, test)


def test_errors_of_writing(opener):
    async def test(box):
        await box.run("mkdir d; mkfifo fifo; echo old > f; ln -s nowhere/x dangling")
        with pytest.raises(IsADirectoryError):
            await box.write_file("d", b"x")
        with pytest.raises(IsADirectoryError):
            await box.write_file("new/", b"x")
        with pytest.raises((NotADirectoryError, FileExistsError)):
            await box.write_file("f/x", b"x")
        for special in ("fifo", "/dev/null"):
            with pytest.raises(PermissionError):
                await box.write_file(special, b"x")
        with pytest.raises(FileExistsError):
            await box.write_file("f", b"new", exclusive=True)
        with pytest.raises(FileExistsError):
            await box.write_file("dangling", b"new", exclusive=True)
        assert await box.read_file("f") == b"old\n"
        await box.write_file("fresh", b"new", exclusive=True)
        assert await box.read_file("fresh") == b"new"
        assert (await box.run("ls -A | grep llm-sandbox")).stdout == b""

    body(opener, test)


def test_writing_without_permission(strong_opener):
    async def test(box):
        await box.run(
            "echo old > f; chmod 444 f; mkdir closed; chmod 555 closed; echo old > half/f 2>/dev/null"
        )
        with pytest.raises(PermissionError):
            await box.write_file("f", b"x")
        with pytest.raises(PermissionError):
            await box.write_file("closed/f", b"x")
        with pytest.raises(PermissionError):
            await box.write_file("/etc/passwd", b"x")
        await box.run("chmod 000 f")
        with pytest.raises(PermissionError):
            await box.read_file("f")
        await box.run("mkdir fixed; echo old > fixed/f; chmod 555 fixed")
        await box.write_file("fixed/f", b"in place")
        assert await box.read_file("fixed/f") == b"in place"

    body(strong_opener, test, profile="strict")


def test_an_existing_file_keeps_what_it_is(opener):
    async def test(box):
        await box.run(
            "echo old > f; chmod 4750 f; ln f hard; echo t > target; chmod 600 target; ln -s target link"
        )
        await box.write_file("f", b"through the hard link")
        assert await box.read_file("hard") == b"through the hard link"
        await box.write_file("link", b"through the link")
        kinds = await box.run("stat -c '%F %a' link target; stat -c %a f")
        assert kinds.stdout == b"symbolic link 777\nregular file 600\n4750\n" or kinds.stdout.endswith(
            b"750\n"
        )
        assert await box.read_file("target") == b"through the link"
        await box.run("echo '#!/bin/sh' > prog; chmod 755 prog")
        await box.write_file("prog", b"#!/bin/sh\necho ran\n")
        assert (await box.exec(["./prog"])).stdout == b"ran\n"

    body(opener, test)


@pytest.mark.alike
def test_a_reader_never_sees_half_a_file(opener):
    async def test(box):
        sizes = (3_000_000, 2_999_999)
        await box.write_file("f", b"a" * sizes[0])
        watching = asyncio.ensure_future(
            box.exec(
                [
                    "python3",
                    "-c",
                    "for _ in range(150): d = open('f','rb').read(); print(len(d), len(set(d)))",
                ]
            )
        )
        for turn in range(12):
            await box.write_file("f", bytes([97 + turn]) * sizes[turn % 2])
        seen = {tuple(map(int, line.split())) for line in (await watching).stdout.splitlines()}
        assert seen <= {(sizes[0], 1), (sizes[1], 1)}

    body(opener, test)


def test_files_where_the_shell_is_not(opener):
    async def test(box):
        await box.run("cd /")
        await box.write_file("rel", b"x")
        assert await box.read_file(f"{box.directories.root}/rel") == b"x"

    body(opener, test)


@pytest.mark.own_sandbox
def test_full_disk(strong_opener):
    async def test(box):
        found = (
            await box.run(
                "df --output=size,target -k 2>/dev/null | awk '$1 > 0 && $1 < 70000 {print $2; exit}'"
            )
        ).stdout
        place = found.decode().strip()
        if not place or (await box.run(f"touch {place}/probe")).exit_code:
            place = "/dev/shm"
        room = int((await box.run(f"df --output=avail -k {place} | tail -1")).stdout)
        if room > 200_000:
            await box.run(
                f"fallocate -l {room - 1000}K {place}/fill 2>/dev/null"
                f" || head -c {room - 1000}K /dev/zero > {place}/fill"
            )
        with pytest.raises(OSError, match=r"[Nn]o space|quota|allocate"):
            await box.write_file(f"{place}/big", b"x" * 80_000_000)
        assert (await box.run(f"ls -A {place} | grep -c -e big -e .llm-sandbox")).stdout == b"0\n"
        assert (await box.run("echo fine")).stdout == b"fine\n"

    body(strong_opener, test, timeout=120)


def test_listing(opener):
    async def test(box):
        await box.run(
            "mkdir -p a/b/c; echo 12345 > a/f; chmod 640 a/f;"
            " ln -s /etc a/link; mkfifo a/b/fifo; echo > a/.hidden"
        )
        root = box.directories.root
        one = await box.list_files("a")
        assert [(entry.path, entry.kind) for entry in one] == [
            (f"{root}/a/.hidden", "file"),
            (f"{root}/a/b", "directory"),
            (f"{root}/a/f", "file"),
            (f"{root}/a/link", "link"),
        ]
        assert (one[2].size, one[2].mode) == (6, 0o640)
        assert abs(one[2].mtime - time.time()) < 3600
        two = await box.list_files("a", depth=2)
        assert [entry.path[len(root) :] for entry in two] == [
            "/a/.hidden",
            "/a/b",
            "/a/b/c",
            "/a/b/fifo",
            "/a/f",
            "/a/link",
        ]
        assert {entry.kind for entry in two} == {"file", "directory", "link", "other"}
        assert [entry.path for entry in await box.list_files("a/f")] == [f"{root}/a/f"]
        with pytest.raises(FileNotFoundError):
            await box.list_files("missing")
        assert await box.list_files("a/b/c") == []

    body(opener, test)


@pytest.mark.alike
def test_long_listing_is_cut(opener):
    async def test(box):
        await box.run("mkdir many; cd many; seq 1 12000 | xargs touch; cd ..")
        assert len(await box.list_files("many")) == 10_000
        assert len(await box.list_files("many", limit=7)) == 7

    body(opener, test)
