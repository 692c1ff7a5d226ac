"""Trees and processes that want to mislead, block or exhaust what remembers the files."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import struct
from typing import Any

import pytest
from history_channel import Host, record, rows, truth
from sandbox_commands import begun
from shared_sandboxes import isolated

pytestmark = pytest.mark.own_sandbox

KILL = (
    "for p in /proc/[0-9]*; do p=${p#/proc/}; "
    '[ "$p" != 1 ] && [ "$p" != $$ ] && [ "$(cut -d" " -f4 /proc/$p/stat)" = 1 ] && kill -%s $p; done; true'
)


@isolated
async def test_killed_or_stopped_by_the_model(box: Any) -> None:
    host = Host(box)
    await host.checkpoint()
    await box.run(f"echo 1 > a; {KILL % 'KILL'}")
    told = await host.checkpoint()
    assert not told.outcome["incremental"]
    assert host.content("/testbed/a") == b"1\n"
    await box.run(f"echo 2 > a; {KILL % 'STOP'}")
    told = await host.checkpoint()
    assert told.outcome["incremental"]
    assert host.content("/testbed/a") == b"2\n"


@isolated
async def test_a_killed_one_answers_the_request_under_way(box: Any) -> None:
    host = Host(box)
    await box.run("head -c 60000000 /dev/urandom > big")
    begun = asyncio.Event()
    params = {"op": "checkpoint", "id": "x", "since": None, "timeout": 60}
    asking = asyncio.ensure_future(box.channel.call(params, sink=lambda *_: begun.set()))
    await begun.wait()
    box.channel.hold(host)
    killing = asyncio.ensure_future(box.exec(["bash", "-c", KILL % "KILL"]))
    # on purpose: while the connection is held, nothing can say that it was killed
    await asyncio.sleep(0.5)
    box.channel.release(host)
    await killing
    outcome = await asking
    assert outcome["error"]["kind"] == "internal"
    assert not (await host.checkpoint()).outcome["incremental"]
    assert len(host.content("/testbed/big")) == 60_000_000


@isolated
async def test_values_that_only_files_in_memory_have(box: Any) -> None:
    """The kernel keeps times, sizes and attributes for them that no disk holds; to report them must end nothing."""
    script = f"""
import contextlib, os
os.chdir("/dev/shm")
open("f", "w").close()
for name, size in (("user.a", 60_000), ("user.b", 9), ("user.c", 60_000)):
    with contextlib.suppress(OSError):
        os.setxattr("f", name, bytes(size))
with contextlib.suppress(OSError):
    os.truncate("f", {7 * 2**60})
os.utime("f", ns=({9 * 10**27}, {9 * 10**27}))
open("early", "w").close()
os.utime("early", ns=({-9 * 10**27}, {-9 * 10**27}))
"""
    shown = "stat -c '%n %Y' /dev/shm/*"
    await box.exec(["python3", "-c", script])
    before = (await box.run(shown)).text
    assert str(9 * 10**18) in before, "the canary"
    checkpoint = await box.checkpoint()
    listed = {entry.path: entry.mtime for entry in await box.list_files("/dev/shm")}
    assert listed == {"/dev/shm/f": 9e18, "/dev/shm/early": -9e18}
    await box.run("rm /dev/shm/early")
    await box.restore(checkpoint)
    assert (await box.run(shown)).text == before
    assert box.lost is None


@pytest.mark.isolations("docker")
@pytest.mark.sandbox(profile="strict")
async def test_many_long_paths_that_cannot_be_restored(box: Any) -> None:
    """The user in the sandbox cannot change root's files. A problem is reported for as many as fit into an answer."""
    script = """
import os
os.chdir("/testbed")
for _ in range(14):
    os.makedirs("d" * 250, exist_ok=True)
    os.chdir("d" * 250)
for number in range(60):
    open("f" * 200 + str(number), "a").write("x")
"""
    assert (await box.exec(["python3", "-c", script], user="root")).exit_code == 0
    checkpoint = await box.checkpoint()
    assert (await box.exec(["python3", "-c", script], user="root")).exit_code == 0
    restored = await box.restore(checkpoint)
    assert len(restored.problems) > 5
    assert [problem[-60:] for problem in restored.problems if "permitted" not in problem] == []


async def test_too_many_files(box: Any) -> None:
    root = box.directories.root
    host = Host(box)
    await box.run("echo kept > a; mkdir sub; echo 1 > sub/b")
    await host.checkpoint(entries=2000)
    await box.exec(
        [
            "python3",
            "-c",
            "import os\nos.mkdir('many')\nfor i in range(5000): open('many/%d' % i, 'w').close()",
        ]
    )
    await box.run("rm a; echo 2 > sub/b")
    told = await host.checkpoint(entries=2000)
    assert f"Left out, because there are more than 2000 files: {root}/many" in told.outcome["incomplete"]
    assert len(host.manifest) <= 2010
    assert told.gone == [f"{root}/a"]
    assert host.content(f"{root}/sub/b") == b"2\n"
    await box.exec(
        ["python3", "-c", "import os\nfor i in range(5000): os.makedirs('tree/%d/%d' % (i // 100, i))"]
    )
    told = await host.checkpoint(entries=2000)
    assert "Left out, because there are more than 2000 files: " in told.outcome["incomplete"]
    assert told.gone == []
    await box.run("rm -rf tree many", timeout=60)
    told = await host.checkpoint(entries=2000)
    assert told.outcome["incomplete"] == ""
    assert not any(path.startswith((f"{root}/tree", f"{root}/many")) for path in host.manifest)


async def test_too_much_content(box: Any) -> None:
    root = box.directories.root
    host = Host(box)
    await box.run("head -c 3000000 /dev/urandom > a; truncate -s 2147483649 b; echo small > c")
    told = await host.checkpoint()
    assert told.outcome["incomplete"] == f"Too large to be kept: {root}/b."
    assert host.manifest[f"{root}/b"][8] is None
    assert host.content(f"{root}/c") == b"small\n"
    told = await host.checkpoint(bytes=2_000_000, since=None)
    assert "Left out, because the checkpoint is full" in told.outcome["incomplete"]
    assert sum(map(len, told.chunks.values())) <= 2_000_000
    await host.checkpoint()
    assert len(host.content(f"{root}/a")) == 3_000_000
    assert (await host.checkpoint()).outcome["incomplete"] == ""


async def test_deep_trees_and_odd_names(box: Any) -> None:
    root = box.directories.root
    host = Host(box)
    await host.checkpoint()
    manifest = dict(host.manifest)
    await box.exec(
        [
            "python3",
            "-c",
            "import os\nos.mkdir('deep'); os.chdir('deep')\n"
            "for i in range(600):\n os.mkdir('x' * 200); os.chdir('x' * 200)\n"
            "open('bottom', 'w').close()",
        ]
    )
    await box.run(
        "for name in $'\\n' $'\\001' '*' '\\\\' $'\\377\\376' '-rf'; do mkdir -p -- \"odd/$name\"; done"
    )
    told = await host.checkpoint()
    assert "Too deep to be kept" in told.outcome["incomplete"]
    assert len([path for path in told.entries if path.startswith(f"{root}/odd/")]) == 6
    done = await host.restore(manifest)
    assert done.outcome["failed"] == [], done.outcome
    assert [entry.path for entry in await box.list_files(".")] == sorted(
        f"{root}/{name}" for name in ("documents", "input", "output")
    )


async def test_files_that_never_hold_still(box: Any) -> None:
    host = Host(box)
    await host.checkpoint()
    await box.run(
        "(while :; do echo x >> growing; done) & (while :; do rm -rf t; mkdir t; echo 1 > t/f; ln -s f t/l; done) &"
        " (while :; do mv a b; mv b a; done) 2>/dev/null & mkfifo pipe; head -c 3000000 /dev/zero > a"
    )
    for _ in range(10):
        await host.checkpoint()
        assert len(host.manifest) > 4
    still = await box.run("kill %1 %2 %3 && echo they ran all the time")
    assert still.stdout == b"they ran all the time\n"


async def test_commands_are_not_held_up(box: Any) -> None:
    host = Host(box)
    await box.run("head -c 150000000 /dev/urandom > big", timeout=60)
    order = []

    async def look():
        await host.checkpoint()
        order.append("look")

    looking = asyncio.ensure_future(look())
    await asyncio.sleep(0)
    await box.run("true")
    order.append("run")
    await box.exec(["true"])
    await box.read_file("/etc/passwd")
    order.append("others")
    await looking
    assert order == ["run", "others", "look"]


async def test_a_look_that_nobody_waits_for_loses_no_memory(box: Any) -> None:
    host = Host(box)
    await host.checkpoint()
    await box.run("head -c 30000000 /dev/urandom > big")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await host.ask("checkpoint", id="given up", since="c1")
    told = await host.checkpoint()
    assert told.outcome["incremental"]
    assert len(host.content(f"{box.directories.root}/big")) == 30_000_000


# ---------------------------------------------------------------------------------------------- restoring


@pytest.mark.smoke
async def test_nothing_runs_on_over_a_restore(box: Any) -> None:
    root = box.directories.root
    host = Host(box)
    await host.checkpoint()
    manifest = dict(host.manifest)
    await box.run(
        "setsid sh -c 'while :; do echo alive >> survivor; sleep 0.01; done' >/dev/null 2>&1 &"
        " (trap '' TERM HUP INT; while :; do date > other; sleep 0.01; done) &"
        " until [ -e survivor -a -e other ]; do sleep 0.01; done"
    )
    running = await begun(box, "echo more > third; echo begun; while :; do echo more > third; done")
    again = "echo more > fourth; echo begun; while :; do echo more > fourth; done"
    program = await begun(box, ["sh", "-c", again])
    await host.checkpoint()
    done = await host.restore(manifest)
    assert done.outcome["failed"] == []
    assert done.outcome["incomplete"] == ""
    assert (await running).interrupted
    assert (await program).interrupted
    result = await box.run("ls; ps -e >/dev/null; ls")
    assert result.stdout.split() == [b"documents", b"input", b"output"] * 2
    assert (await host.checkpoint()).entries == {}
    assert (await box.changes()).files == ()
    await box.run("echo now > file")
    assert [change.path for change in (await box.changes()).files] == [f"{root}/file"]


async def test_what_is_asked_during_a_restore_comes_after_it(box: Any) -> None:
    root = box.directories.root
    host = Host(box)
    await box.run("head -c 40000000 /dev/urandom > big; echo old > word")
    await host.checkpoint()
    manifest = dict(host.manifest)
    await box.run("rm big; echo new > word")
    await host.checkpoint()
    going = asyncio.ensure_future(host.restore(manifest))
    await asyncio.sleep(0)  # it is sent first
    said = [
        asyncio.ensure_future(box.run("cat word")),
        asyncio.ensure_future(box.exec(["cat", "word"])),
        asyncio.ensure_future(box.read_file("word")),
    ]
    await going
    run, program, content = await asyncio.gather(*said)
    assert (run.stdout, program.stdout, content) == (b"old\n", b"old\n", b"old\n")
    assert len(await box.read_file(f"{root}/big")) == 40_000_000


@pytest.mark.isolations("process")
async def test_a_restore_stays_in_the_working_directory(box: Any, tmp_path) -> None:
    """With no isolation, a plan (or a link) that leads out of it does nothing there."""
    root = box.directories.root
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    host = Host(box)
    await box.run("mkdir d; echo 1 > d/f")
    await host.checkpoint()
    assert all(path.startswith(root) for path in host.manifest)
    row = host.manifest[f"{root}/d/f"]
    await box.run(f"rm -rf d; ln -s {outside} d")
    plan = rows("D", str(outside / "mine"), f"{root}/../outside", f"{root}/d/mine", "/etc/never")
    plan += rows("M", [str(outside), "d", 0, 0o700, 0, 0, 0, 0, None, None, None])
    plan += rows("E", [f"{root}/d/x", "d", 0, 0o700, os.getuid(), os.getgid(), 0, 0, None, None, None])
    plan += host.file_records([f"{root}/d/f", *row[1:]])
    plan += host.file_records([str(outside / "f"), *row[1:]])
    done = await host.ask("restore", plan, id="r", since="c1")
    assert len(done.outcome["failed"]) == 7, done.outcome
    assert sorted(path.name for path in outside.iterdir()) == ["mine"]
    told = await host.ask("checkpoint", id="next", since="r")
    assert told.entries[f"{root}/d"][1] == "l"


@isolated
async def test_what_fails_is_told_and_the_next_look_tells_the_truth(box: Any) -> None:
    host = Host(box)
    await host.checkpoint()
    good = ["/testbed/good", "d", 0, 0o755, 0, 0, 10**18, 0, None, None, None]
    bad = ["/testbed/missing/folder", *good[1:]]
    socket = ["/proc/x", *good[1:]]
    lost = ["/testbed/input", "f", 0, 0o644, 0, 0, 0, 3, [], None, None]
    plan = rows("E", bad, socket, good) + rows("M", lost)
    done = await host.ask("restore", plan, id="r", since=host.last)
    assert {path for path, _ in done.outcome["failed"]} == {bad[0], socket[0], lost[0]}, done.outcome
    told = await host.ask("checkpoint", id="next", since="r")
    assert told.outcome["incremental"]
    assert told.gone == ["/proc/x", "/testbed/missing/folder"]
    assert told.entries["/testbed/input"][1] == "d"
    assert "/testbed/good" not in told.entries


@pytest.mark.isolations("process")
async def test_a_plan_that_makes_no_sense_is_an_error_and_the_sandbox_lives(box: Any, busy_machine) -> None:
    host = Host(box)
    await host.checkpoint()
    unknown, too_large, cut_off = record("?", b"x"), b"D\xff\xff\xff\xff", rows("D", "/a")[:-1]
    for plan in (unknown, too_large, cut_off, unknown, too_large):
        asking = await host.ask("restore", plan, id="r", since=host.last)
        assert "error" in asking.outcome, asking.outcome
        # What is left of one plan is not taken for a part of the next.
        assert plan == cut_off or asking.outcome["error"].get("errno") == errno.EINVAL, asking.outcome
        assert (await box.run("echo here")).stdout == b"here\n"
    told = await host.checkpoint()
    assert not told.outcome["incremental"]


async def test_only_changed_pieces_and_holes(box: Any) -> None:
    root = box.directories.root
    host = Host(box)
    await box.run("head -c 5000000 /dev/urandom > f; ln -s f l")
    await host.checkpoint()
    before, row = await truth(box, root), host.manifest[f"{root}/f"]
    await box.run("printf x | dd of=f bs=1 seek=2500000 conv=notrunc status=none; echo more >> f")
    told = await host.checkpoint()
    assert sum(map(len, told.chunks.values())) < 2_500_000
    offset, _, digest = row[8][2]
    plan = record("P", json.dumps(row).encode())
    plan += record("W", struct.pack(">Q", offset) + host.chunks[digest])
    folder = host.manifest[root]
    done = await host.ask("restore", plan + rows("M", folder), id="r", since=host.last)
    assert done.outcome["failed"] == []
    assert (await truth(box, root))[0][f"{root}/f"] == before[0][f"{root}/f"]
    row = [*row[:6], 123_456_789, *row[7:]]
    row[8] = [row[8][0], *row[8][2:]]
    plan = record("P", json.dumps(row).encode()) + record("H", struct.pack(">QQ", 1 << 20, 1 << 20))
    await host.ask("restore", plan, id="r2", since="r")
    data = await box.read_file("f")
    assert data[1 << 20 : 2 << 20] == bytes(1 << 20)
    assert data[:1024] == host.chunks[row[8][0][2]][:1024]
    told = await host.ask("checkpoint", id="next", since="r2")
    assert told.entries == {}
    assert int((await box.run("stat -c %b f")).stdout) * 512 < 4_500_000


# -------------------------------------------------------------------------------------------------- strict


@isolated
@pytest.mark.sandbox(profile="strict")
async def test_the_strict_profile_without_root(box: Any) -> None:
    host = Host(box)
    await host.checkpoint()
    assert (await box.run("id -u")).stdout != b"0\n"
    await box.run(
        "mkdir -p shut/inner; echo 1 > shut/inner/x; chmod 0 shut/inner/x shut/inner shut;"
        " echo 2 > none; chmod 0 none"
    )
    told = await host.checkpoint()
    assert told.outcome["incomplete"] == ""
    assert host.content("/testbed/shut/inner/x") == b"1\n"
    assert (await host.checkpoint()).entries == {}
    manifest, modes = dict(host.manifest), await box.run("stat -c '%a %n' shut none")
    await box.run("chmod 700 shut shut/inner; rm -rf shut none; echo other > new")
    await host.checkpoint()
    done = await host.restore(manifest)
    assert done.outcome["failed"] == [], done.outcome
    assert (await box.run("stat -c '%a %n' shut none")).stdout == modes.stdout
    assert (
        await box.run("chmod 700 shut shut/inner; chmod 600 shut/inner/x; cat shut/inner/x")
    ).stdout == b"1\n"


@isolated
async def test_describe(box: Any) -> None:
    host = Host(box)
    await zoo_of_two(box)
    told = await host.ask(
        "describe", paths=["/testbed/d", "/testbed/d/f", "/nowhere", "/testbed/l"], content=True
    )
    assert sorted(told.entries) == ["/testbed/d", "/testbed/d/f", "/testbed/l"]
    assert told.gone == ["/nowhere"]
    assert list(told.chunks.values()) == [b"one\n"]
    below = await host.ask("describe", paths=["/testbed"], content=False, below=True)
    assert below.entries["/testbed/d/f"][7:9] == [4, None]
    assert below.chunks == {}
    large = await host.ask("describe", paths=[f"/nowhere/{number}" for number in range(20_000)], content=True)
    assert len(large.gone) == 20_000


async def zoo_of_two(box):
    await box.run("mkdir d; echo one > d/f; ln -s d l")
