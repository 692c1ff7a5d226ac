"""What a call changed under the working directory, with the texts for a diff."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from llm_sandbox_nb.sandbox.contract import Directories
from llm_sandbox_nb.sandbox.open import open_sandbox


async def told(box: Any) -> list[tuple[str, str, bytes | None, bytes | None]]:
    root = box.directories.root
    files = (await box.changes()).files
    return [(change.path[len(root) + 1 :], change.kind, change.before, change.after) for change in files]


@pytest.mark.smoke
async def test_added_modified_deleted(box: Any, tmp_path: Path) -> None:
    assert await told(box) == []
    await box.run(
        "echo one > a; mkdir -p d/e empty; printf 'no newline' > d/e/b; printf '\\0bin' > c; ln -s a link"
    )
    changes = await box.changes()
    assert [(change.path.rpartition("/")[2], change.kind, change.after) for change in changes.files] == [
        ("a", "added", b"one\n"),
        ("c", "added", None),
        ("b", "added", b"no newline"),
        ("link", "added", None),
    ]
    assert [change.size for change in changes.files][:3] == [4, 4, 10]
    assert changes.incomplete == ""
    await box.run("echo two >> a; rm c; printf '\\303\\251\\377' > d/e/b; mv link link2")
    assert await told(box) == [
        ("a", "modified", b"one\n", b"one\ntwo\n"),
        ("c", "deleted", None, None),
        ("d/e/b", "modified", b"no newline", b"\xc3\xa9\xff"),
        ("link", "deleted", None, None),
        ("link2", "added", None, None),
    ]
    (tmp_path / "u").write_text("up\n")
    await box.upload(tmp_path / "u", "input")
    await box.exec(["sh", "-c", "echo x > output/x"])
    assert await told(box) == [("input/u", "added", None, b"up\n"), ("output/x", "added", None, b"x\n")]
    assert await told(box) == []


async def test_same_size_same_second_and_touch(box: Any) -> None:
    await box.run("echo aaa > f; touch -d 2020-01-01 f")
    await box.changes()
    await box.run("echo bbb > f; touch -d 2020-01-01 f")
    assert await told(box) == [("f", "modified", b"aaa\n", b"bbb\n")]
    await box.run("touch f")
    assert await told(box) == []
    await box.write_file("f", b"ccc\n")
    assert await told(box) == [("f", "modified", b"bbb\n", b"ccc\n")]


async def test_big_files_have_no_texts(box: Any) -> None:
    async def by_name() -> dict[str, Any]:
        return {change.path.rpartition("/")[2]: change for change in (await box.changes()).files}

    await box.run(
        "head -c 300000 /dev/zero | tr '\\0' x > big; head -c 200000 /dev/zero | tr '\\0' y > small"
    )
    changes = await by_name()
    assert (changes["big"].after, changes["big"].size) == (None, 300_000)
    assert changes["small"].after == b"y" * 200_000
    await box.run("head -c 5 big > part; mv part big; rm small")
    sizes = await by_name()
    assert (sizes["big"].size_before, sizes["big"].size) == (300_000, 5)
    assert sizes["small"].size_before == 200_000


async def test_too_many_changes_are_said(box: Any) -> None:
    await box.run("mkdir many; cd many; seq 1 3000 | xargs touch")
    changes = await box.changes()
    assert len(changes.files) == 2000
    assert "2000 files" in changes.incomplete
    await box.run("for i in {1..100}; do head -c 200000 /dev/zero | tr '\\0' x > text$i; done")
    changes = await box.changes()
    assert len(changes.files) == 100
    assert "text" in changes.incomplete
    assert sum(len(change.after or b"") for change in changes.files) <= 16 * 2**20
    await box.run("rm -rf ../many")
    assert "2000 files" in (await box.changes()).incomplete


@pytest.mark.own_sandbox
async def test_more_files_than_are_watched(box: Any) -> None:
    make = "mkdir -p w; cd w; python3 -c 'for n in range(50500): open(str(n), \"w\").close()'"
    await box.run(make)
    changes = await box.changes()
    assert "watched" in changes.incomplete or "2000" in changes.incomplete
    await box.run("cd ..; rm -rf w; echo 1 > one")
    await box.changes()
    await box.run("echo 2 > one")
    assert await told(box) == [("one", "modified", b"1\n", b"2\n")]


@pytest.mark.own_sandbox
async def test_hostile_trees(box: Any) -> None:
    await box.run(
        "ln -s . loop; ln -s / root; mkfifo fifo; ln -s fifo tofifo; mkdir shut; echo x > shut/f; chmod 0 shut"
    )
    assert {name for name, *_ in await told(box)} >= {"loop", "root", "fifo", "tofifo"}
    deep = "import os\nfor n in range(3000):\n  os.mkdir('d'); os.chdir('d')\nopen('f', 'w').close()"
    await box.exec(["python3", "-c", deep])
    await box.changes()
    await box.run("echo fine > fine")
    assert ("fine", "added", None, b"fine\n") in await told(box)
    await box.run("chmod 700 shut; rm -rf d")


async def test_quiet_folders(box: Any) -> None:
    folders = "mkdir -p .git/objects x/__pycache__ node_modules/m"
    await box.run(f"{folders}; touch .git/objects/1 x/__pycache__/y node_modules/m/z seen")
    assert [path for path, *_ in await told(box)] == ["seen"]


async def test_files_that_were_there_before(tmp_path: Path) -> None:
    """The first look is over before the first command runs."""
    (tmp_path / "testbed").mkdir()
    (tmp_path / "testbed/old").write_text("before\n")
    async with open_sandbox("process", directories=Directories(str(tmp_path / "testbed"))) as box:
        await box.run("echo after > old")
        assert await told(box) == [("old", "modified", b"before\n", b"after\n")]


async def signal_watcher(box: Any, signal: str) -> None:
    """Send a signal to the services of the executor, of which the watcher is one."""
    # In `process` the children of process 1 are those of the host: only those of this executor are searched.
    # on purpose: children are searched for by name below one parent
    own = "" if box.protection.isolation == "process" else "pgrep -P 1 python;"
    one = f"[ $p = 1 ] || {{ kill -{signal} $p; echo $p; }}"
    reached = (await box.run(f"for p in $({own} pgrep -P $PPID python); do {one}; done")).stdout
    assert reached.split(), "the canary: there is one"


@pytest.mark.own_sandbox
async def test_the_watcher_may_be_killed(box: Any) -> None:
    await box.run("echo 1 > a")
    assert [change.kind for change in (await box.changes()).files] == ["added"]
    await signal_watcher(box, "KILL")
    lost = await box.changes()
    assert "lost" in lost.incomplete
    for number in range(3):
        await box.run(f"echo 2 > b{number}")
        found = await box.changes()
        seen = [Path(change.path).name for change in found.files]
        assert seen == [f"b{number}"] or "lost" in found.incomplete
    assert (seen, found.incomplete) == (["b2"], "")


@pytest.mark.own_sandbox
async def test_a_watcher_that_is_killed_while_it_is_asked(box: Any) -> None:
    """What is written before the next one has looked for the first time is not seen, and that is said."""
    await signal_watcher(box, "STOP")
    asked = asyncio.ensure_future(box.changes())
    await box.run("true")  # what was asked has arrived
    await signal_watcher(box, "KILL")
    assert "lost" in (await asked).incomplete
    await box.run("echo 1 > a")
    found = await box.changes()
    assert found.files or "lost" in found.incomplete
    await box.run("echo 2 > a")
    assert await told(box) == [("a", "modified", b"1\n", b"2\n")]
    assert (await box.changes()).incomplete == ""
