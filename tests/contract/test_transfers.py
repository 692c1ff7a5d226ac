"""Trees in and out of real sandboxes, with what a hostile model would leave in the output folder."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from sandbox_commands import begun, until

from llm_sandbox_nb.sandbox.errors import TransferError


def tree(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.mark.smoke
async def test_there_and_back(box: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("a b/c d/é漢😀.txt", "deep/" * 20 + "f", "-n", "quote'\"$`", "new\nline", ".hidden/.f"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(os.urandom(3000))
    (source / os.fsdecode(b"latin-\xe9")).write_bytes(b"\xff")
    (source / "empty").mkdir()
    (source / "big").write_bytes(os.urandom(2**20) * 20)
    (source / "prog").write_bytes(b"#!/bin/sh\necho ran\n")
    (source / "prog").chmod(0o755)
    await box.upload(source, "input/up")
    assert (await box.exec(["./prog"], cwd="input/up")).stdout == b"ran\n"
    assert (await box.run("cat 'input/up/a b/c d/é漢😀.txt' | wc -c")).stdout.strip() == b"3000"
    assert await box.download("input/up", tmp_path / "back") == []
    assert tree(tmp_path / "back") == tree(source)
    await box.run("echo old > input/prog; echo kept > input/other")
    await box.upload(source / "prog", "input")
    assert (await box.run("ls input")).stdout.split() == [b"other", b"prog", b"up"]
    assert await box.download("input/prog", tmp_path / "one") == []
    assert tree(tmp_path / "one") == {"prog": b"#!/bin/sh\necho ran\n"}


async def test_a_transfer_that_cannot_be_made_is_an_error_and_the_sandbox_goes_on(
    box: Any, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "f").write_bytes(b"x")
    with pytest.raises(FileNotFoundError):
        await box.upload(tmp_path / "missing", "input")
    with pytest.raises(FileNotFoundError, match="nothing"):
        await box.download("nothing", tmp_path / "t")
    with pytest.raises(TransferError, match="cannot take the upload"):
        await box.upload(source, "/proc/self/nothing")
    await box.run("mkdir input/f")
    with pytest.raises(TransferError):
        await box.upload(source, "input")
    assert (await box.run("echo fine")).stdout == b"fine\n"


@pytest.mark.smoke
async def test_a_hostile_output_folder(box: Any, tmp_path: Path) -> None:
    """The seed's defect: a link in the output folder that made the host print one of its own files."""
    canary, target = tmp_path / "canary", tmp_path / "target"
    canary.write_text("host secret")
    await box.run(f"""cd output; echo fine > fine
        cp fine setuid; chmod 6777 setuid; mkdir sticky; chmod 1777 sticky
        ln -s {canary} answer.txt; ln -s / root; ln -s ../../../../etc up; mkfifo fifo; ln fine hard
        mknod device c 1 3; python3 -c 'import socket; socket.socket(1).bind("socket")'
        mkdir -p d/d; ln -s ../d d/loop
        touch "$(printf 'odd\\nname')" "$(printf '\\033[31mred')"; ln -s x "$(printf 'odd\\nlink')" """)
    told = await box.download("output", target)
    names = {str(path.relative_to(target)) for path in target.rglob("*")}
    assert names == {"fine", "setuid", "sticky", "hard", "d", "d/d", "odd\nname", "\033[31mred"}
    assert not [path for path in target.rglob("*") if path.is_symlink()]
    assert stat.S_IMODE((target / "setuid").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "sticky").stat().st_mode) & 0o7000 == 0
    for name in ("answer.txt", "root", "up", "fifo", "d/loop", "socket"):
        assert any(sentence.startswith(f"{name} was left out") for sentence in told), (name, told)
    assert all(sentence.isprintable() for sentence in told)
    assert canary.read_text() == "host secret"


async def test_a_tree_that_is_too_deep_and_a_link(box: Any, tmp_path: Path) -> None:
    deep = "import os\nfor n in range(1500): os.mkdir('d'); os.chdir('d')"
    assert (await box.exec(["python3", "-c", deep], cwd="output")).exit_code == 0
    await box.run("echo x > output/v3.txt; ln -s v3.txt output/latest.txt")
    told = await box.download("output", tmp_path / "t")
    assert [sentence for sentence in told if "it lies too deep" in sentence] == [told[0]]
    assert len(told) == 2
    assert await box.download("output/latest.txt", tmp_path / "one") == []
    assert tree(tmp_path / "one") == {"latest.txt": b"x\n"}
    await box.run("mkdir output/v1.2; touch output/v1.2/f")
    with pytest.raises(TransferError, match=r"If it is a folder, write a slash after its name\.$"):
        await box.download("output/v1.2", tmp_path / "two")
    await box.download("output/v1.2/", tmp_path / "two")
    assert tree(tmp_path / "two") == {"f": b""}


async def test_a_file_that_grows_while_it_is_taken(box: Any, tmp_path: Path) -> None:
    growing = await begun(
        box, ["sh", "-c", "yes > output/growing & until [ -s output/growing ]; do :; done; echo begun; wait"]
    )
    await box.download("output", tmp_path / "t", limit=5_000_000)
    growing.cancel()
    assert sum(len(data or b"") for data in tree(tmp_path / "t").values()) <= 5_000_000
    assert (await box.run("stat -c %s output/growing")).exit_code == 0


async def test_cancelled_transfers_leave_a_usable_sandbox(box: Any, tmp_path: Path) -> None:
    """Each is cancelled once a part of the file is there, and one before it begins."""
    (tmp_path / "big").write_bytes(bytes(80_000_000))
    target = tmp_path / "down"

    async def arrived() -> bool:
        return bool((await box.exec(["find", "input", "-size", "+1k", "-type", "f"])).stdout)

    async def cancelled(transfer: Any, *, when: Any) -> None:
        task = asyncio.ensure_future(transfer)
        await until(when)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def at_once() -> bool:
        await asyncio.sleep(0)
        return True

    for when in (at_once, arrived):
        await cancelled(box.upload(tmp_path / "big", "input"), when=when)
    await box.upload(tmp_path / "big", "input")
    await cancelled(box.download("input", target), when=at_once)
    assert (await box.run("stat -c %s input/big")).stdout == b"80000000\n"
    assert await box.download("input", target) == []
    assert (target / "big").stat().st_size == 80_000_000
