"""What a call changed under the working directory, with the texts for a diff."""

from __future__ import annotations

import pytest
from support import with_sandbox as body


def told(box, changes):
    root = box.directories.root
    return [
        (change.path[len(root) + 1 :], change.kind, change.before, change.after) for change in changes.files
    ]


def test_added_modified_deleted(opener):
    async def test(box):
        assert (await box.changes()).files == ()
        await box.run(
            "echo one > a; mkdir -p d/e empty; printf 'no newline' > d/e/b; printf '\\0bin' > c; ln -s a link"
        )
        changes = await box.changes()
        assert told(box, changes) == [
            ("a", "added", None, b"one\n"),
            ("c", "added", None, None),
            ("d/e/b", "added", None, b"no newline"),
            ("link", "added", None, None),
        ]
        assert [change.size for change in changes.files][:3] == [4, 4, 10]
        assert changes.incomplete == ""
        await box.run("echo two >> a; rm c; printf '\\303\\251\\377' > d/e/b; mv link link2")
        assert told(box, await box.changes()) == [
            ("a", "modified", b"one\n", b"one\ntwo\n"),
            ("c", "deleted", None, None),
            ("d/e/b", "modified", b"no newline", b"\xc3\xa9\xff"),
            ("link", "deleted", None, None),
            ("link2", "added", None, None),
        ]
        assert (await box.changes()).files == ()

    body(opener, test)


def test_same_size_same_second_and_touch(opener):
    async def test(box):
        await box.run("echo aaa > f; touch -d 2020-01-01 f")
        await box.changes()
        await box.run("echo bbb > f; touch -d 2020-01-01 f")
        assert told(box, await box.changes()) == [("f", "modified", b"aaa\n", b"bbb\n")]
        await box.run("touch f")
        assert (await box.changes()).files == ()
        await box.write_file("f", b"ccc\n")
        assert told(box, await box.changes()) == [("f", "modified", b"bbb\n", b"ccc\n")]

    body(opener, test)


def test_uploads_and_other_programs_count_too(opener, tmp_path):
    (tmp_path / "u").write_text("up\n")

    async def test(box):
        await box.upload(tmp_path / "u", "input")
        await box.exec(["sh", "-c", "echo x > output/x"])
        assert told(box, await box.changes()) == [
            ("input/u", "added", None, b"up\n"),
            ("output/x", "added", None, b"x\n"),
        ]

    body(opener, test)


def test_big_files_have_no_texts(opener):
    async def test(box):
        await box.run(
            "head -c 300000 /dev/zero | tr '\\0' x > big; head -c 200000 /dev/zero | tr '\\0' y > small"
        )
        changes = {change.path.rpartition("/")[2]: change for change in (await box.changes()).files}
        assert (changes["big"].after, changes["big"].size) == (None, 300_000)
        assert changes["small"].after == b"y" * 200_000
        await box.run("head -c 5 big > part; mv part big; rm small")
        sizes = {change.path.rpartition("/")[2]: change for change in (await box.changes()).files}
        assert (sizes["big"].size_before, sizes["big"].size) == (300_000, 5)
        assert sizes["small"].size_before == 200_000

    body(opener, test)


@pytest.mark.alike
def test_too_many_changes_are_said(opener):
    async def test(box):
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

    body(opener, test)


@pytest.mark.alike
@pytest.mark.own_sandbox
def test_more_files_than_are_watched(opener):
    async def test(box):
        await box.run(
            "mkdir -p w; cd w; python3 -c 'for n in range(50500): open(str(n), \"w\").close()'", timeout=60
        )
        changes = await box.changes()
        assert "watched" in changes.incomplete or "2000" in changes.incomplete
        await box.run("cd ..; rm -rf w; echo 1 > one")
        await box.changes()
        await box.run("echo 2 > one")
        assert told(box, await box.changes()) == [("one", "modified", b"1\n", b"2\n")]

    body(opener, test, timeout=120)


@pytest.mark.alike
@pytest.mark.own_sandbox
def test_hostile_trees(opener):
    async def test(box):
        await box.run(
            "ln -s . loop; ln -s / root; mkfifo fifo; ln -s fifo tofifo;"
            " mkdir closed; echo x > closed/f; chmod 0 closed"
        )
        assert {change.path.rpartition("/")[2] for change in (await box.changes()).files} >= {
            "loop",
            "root",
            "fifo",
            "tofifo",
        }
        deep = "import os\nfor n in range(3000):\n  os.mkdir('d'); os.chdir('d')\nopen('f', 'w').close()"
        await box.exec(["python3", "-c", deep])
        await box.changes()
        await box.run("echo fine > fine")
        assert ("fine", "added", None, b"fine\n") in told(box, await box.changes())
        await box.run("chmod 700 closed; rm -rf d")

    body(opener, test)


def test_quiet_folders(opener):
    async def test(box):
        await box.run(
            "mkdir -p .git/objects x/__pycache__ node_modules/m;"
            " touch .git/objects/1 x/__pycache__/y node_modules/m/z seen"
        )
        assert [path for path, *_ in told(box, await box.changes())] == ["seen"]

    body(opener, test)


def test_files_that_were_there_before(process_opener, tmp_path):
    """The first look is over before the first command runs."""
    from llm_sandbox_nb.sandbox.contract import Directories

    (tmp_path / "testbed").mkdir()
    (tmp_path / "testbed/old").write_text("before\n")

    async def test(box):
        await box.run("echo after > old")
        assert told(box, await box.changes()) == [("old", "modified", b"before\n", b"after\n")]

    body(process_opener, test, directories=Directories(str(tmp_path / "testbed")))
