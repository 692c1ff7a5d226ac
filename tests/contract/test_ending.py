"""A command that is ended in its midst: by its time, an interrupt or a cancelled task; with all that it started."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sandbox_commands import begun, living, start, timed_out, until_living
from support import own_mark

from llm_sandbox_nb.sandbox.errors import SandboxLostError

HEADLESS = """
import ctypes, os, threading, time
def work():
    print("begun", flush=True)
    while True:
        with open("written", "a") as file:
            file.write("x")
        time.sleep(0.01)
threading.Thread(target=work).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""
TREES = {
    "sleep": "sleep MARK",
    "sessions": "setsid sleep MARK & setsid setsid sh -c 'sleep MARK & sleep MARK' & sleep MARK",
    "ignored signals": "sh -c \"trap '' TERM INT HUP; sleep MARK; sleep MARK\"",
    "nohup": "(trap '' TERM INT HUP; setsid nohup sleep MARK & wait) & wait",
    "substitution": "x=$(sleep MARK)",
    "pipeline": "sleep MARK | cat",
    "function": "f() { while :; do sleep MARK; done; }; f",
    "loop": "for i in 1 2 3; do f() { sleep MARK; }; f; done >/dev/null",
    "fork": "python3 -c 'import os, sys, time\nos.fork(); os.setsid() if os.fork() else 0; time.sleep(600)' MARK",
    "eval": "eval 'eval \"sleep MARK\"'",
    "traps": "trap 'sleep MARK' INT TERM EXIT; sleep MARK",
}


@pytest.mark.parametrize("command", TREES.values(), ids=TREES)
async def test_a_time_out_ends_the_tree_and_keeps_the_shell(box: Any, command: str) -> None:
    mark = own_mark()
    await box.run("kept=yes; cd /tmp; (while :; do sleep 0.05; done) & job=$!")
    marked = f"echo begun; echo error >&2; {command.replace('MARK', mark)}; echo AFTER; touch AFTER"
    result = await timed_out(box, marked, mark=mark)
    assert (result.exit_code, result.stdout, result.stderr, result.notice) == (
        None,
        b"begun\n",
        b"error\n",
        "",
    )
    assert living(mark) == 0
    kept = await box.run('echo "$kept"; pwd; kill -0 $job && echo job; ls AFTER')
    assert kept.stdout == b"yes\n/tmp\njob\n", "what an earlier call started stays"


@pytest.mark.smoke
async def test_a_time_out_ends_a_program_whose_first_thread_has_ended(box: Any) -> None:
    """The kernel shows such a program as a zombie; it writes as long as it lives."""
    await box.write_file("program.py", HEADLESS.encode())
    assert (await timed_out(box, "python3 program.py")).timed_out
    sizes = await box.run("wc -c < written; sleep 0.5; wc -c < written")
    first, second = sizes.stdout.split()
    assert first == second


@pytest.mark.smoke
@pytest.mark.own_sandbox
async def test_a_restore_ends_a_program_whose_first_thread_has_ended(box: Any) -> None:
    await box.write_file("program.py", HEADLESS.encode())
    before = await box.checkpoint()
    await box.run(
        "python3 program.py > log 2>&1 & until grep -q '^State.*Z' /proc/$!/status; do sleep 0.01; done"
    )
    await box.run("until [ -s written ]; do sleep 0.01; done")
    assert (await box.restore(before)).problems == ()
    assert (await box.run("sleep 0.5; ls written")).exit_code != 0


async def test_a_time_out_of_a_command_that_never_sleeps(box: Any) -> None:
    result = await timed_out(box, "kept=yes; echo begun; while :; do :; done")
    assert (result.stdout, result.notice) == (b"begun\n", "")
    assert (await box.run("echo $kept")).stdout == b"yes\n"


SEEN = "s=$$; (until [ \"$(cut -d' ' -f3 /proc/$s/stat)\" = {} ]; do sleep 0.02; done; echo begun) &"
"""Prints when the shell is in this state, as /proc has it."""


@pytest.mark.parametrize(
    "command",
    [
        "trap '' INT RTMAX; echo begun; while :; do :; done",
        "exec sh -c 'echo begun; exec sleep MARK'",
        f"mkfifo fifo; {SEEN.format('S')} read x < fifo",
        "trap - RTMAX; sh -c 'echo begun; exec sleep MARK'",
        f"{SEEN.format('T')} kill -STOP $$",
    ],
)
async def test_a_shell_that_does_not_come_back_is_replaced(box: Any, command: str) -> None:
    mark = own_mark()
    command = command.replace("MARK", mark)
    running = await begun(box, f"{command}; echo AFTER")
    await box.interrupt()
    result = await running
    assert (result.interrupted, result.stdout) == (True, b"begun\n")
    assert "new one was started" in result.notice
    assert (await box.run("echo fine")).stdout == b"fine\n"
    again = await timed_out(box, f"rm -f fifo; {command}")
    assert "new one was started" in again.notice
    assert (await box.run("echo fine")).stdout == b"fine\n"
    assert living(mark) == 0


WAYS = ("time-out", "interrupt", "cancelled task")


@pytest.mark.smoke
@pytest.mark.parametrize("way", WAYS)
async def test_every_way_ends_all_that_a_command_started(box: Any, way: str) -> None:
    mark, kept = own_mark(), own_mark()
    await box.run(f"x=kept; sleep {kept} &")
    command = f"echo begun; setsid sleep {mark} & sh -c \"trap '' TERM; sleep {mark}; :\" & sleep {mark}; touch AFTER"
    if way == "time-out":
        result = await timed_out(box, command, mark=mark, least=3)
        assert (result.timed_out, result.interrupted, result.exit_code) == (True, False, None)
    else:
        running = await begun(box, command)
        await until_living(mark, 3)
        if way == "interrupt":
            await box.interrupt()
            result = await running
            assert (result.timed_out, result.interrupted, result.exit_code) == (False, True, None)
            assert result.stdout == b"begun\n"
        else:
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
    assert (await box.run("echo $x; ls AFTER")).stdout == b"kept\n"
    assert (living(mark), living(kept)) == (0, 1)
    await box.interrupt()  # of nothing
    assert (await box.run("echo fine")).stdout == b"fine\n"


@pytest.mark.parametrize("way", ["time-out", "cancelled task"])
@pytest.mark.parametrize(
    "script",
    [
        "trap '' TERM INT; sleep MARK; sleep MARK",
        "setsid sleep MARK & setsid setsid sleep MARK & sleep MARK; :",
        "(setsid sh -c 'sleep MARK & sleep MARK; :' &) ; sleep MARK; :",
    ],
)
async def test_every_way_ends_all_that_a_program_started(box: Any, way: str, script: str) -> None:
    mark, kept = own_mark(), own_mark()
    await box.run(f"sleep {kept} &")
    program = ["sh", "-c", f"echo begun; echo err >&2; {script.replace('MARK', mark)}"]
    count = 1 if "trap" in script else 3
    if way == "time-out":
        result = await timed_out(box, program, mark=mark, least=count)
        assert (result.exit_code, result.stdout, result.stderr) == (None, b"begun\n", b"err\n")
    else:
        running = await begun(box, program)
        await until_living(mark, count)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert (living(mark), living(kept)) == (0, 1)


async def test_the_end_of_a_command_spares_what_runs_beside_it(box: Any) -> None:
    """Also what a program beside it started in a session of its own; and the reverse."""
    spared = (
        "(setsid sh -c 'until [ -e go ]; do sleep 0.02; done; echo orphan >&2; touch said') & echo begun; "
    )
    spared += "until [ -e said ]; do sleep 0.02; done; echo whole"
    for kept, ended in (
        (["sh", "-c", spared], "echo begun; sleep infinity"),
        (spared, ["sh", "-c", "echo begun; sleep infinity"]),
    ):
        beside = await begun(box, kept)
        await timed_out(box, ended)
        assert not beside.done()
        await box.write_file("go", b"")
        result = await beside
        assert (result.stdout, result.stderr, result.timed_out) == (b"begun\nwhole\n", b"orphan\n", False)
        await box.run("rm go said")


async def test_the_end_of_a_program_takes_no_orphan_from_the_command(box: Any) -> None:
    """A command ends with its orphans, also when programs beside it ended first; what those left stays."""
    mark, kept = own_mark(), own_mark()
    running = await begun(box, f"(setsid sleep {mark} &); echo begun; sleep infinity")
    await until_living(mark, 1)
    for left in ("true", f"sleep {kept} &", f"(setsid sleep {kept} &)"):
        assert (await box.exec(["sh", "-c", left])).exit_code == 0
    await until_living(kept, 2)
    await box.interrupt()
    assert (await running).interrupted
    assert (living(mark), living(kept)) == (0, 2)


async def test_output_before_the_end_is_kept(box: Any) -> None:
    result = await timed_out(box, "head -c 3000000 /dev/zero; echo end; sleep infinity", b"end")
    assert result.stdout == bytes(3_000_000) + b"end\n"
    result = await timed_out(box, "yes", b"y\n", output_limit=10_000)
    assert len(result.stdout) < 10_100
    assert (await box.run("echo fine")).stdout == b"fine\n"


async def test_filling_everything_with_output(box: Any) -> None:
    many = [
        await begun(box, ["sh", "-c", "echo begun; yes | head -c 30000000; yes >&2"], output_limit=1000)
        for _ in range(4)
    ]
    assert (await timed_out(box, "yes background & yes", b"y\n", output_limit=1000)).timed_out
    for task in many:
        assert not task.done()
        task.cancel()
    assert all(
        isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*many, return_exceptions=True)
    )
    assert (await box.run("echo works")).stdout == b"works\n"


async def test_an_input_that_nobody_reads_blocks_nobody_else(box: Any) -> None:
    unread, mark = b"x" * 30 * 2**20, own_mark()
    stuck = start(box, ["sleep", mark], stdin=unread)
    await until_living(mark, 1)
    assert (await box.run("echo free")).stdout == b"free\n"
    assert not stuck.done()
    stuck.cancel()
    await until_living(mark, 0)
    assert (await timed_out(box, ["sh", "-c", "echo begun; sleep infinity"], stdin=unread)).timed_out


@pytest.mark.isolations("process")
@pytest.mark.own_sandbox
async def test_a_dead_executor_is_said(box: Any) -> None:
    waiting = await begun(box, ["sh", "-c", "echo begun; sleep infinity"])
    with pytest.raises(SandboxLostError, match="program ended"):
        await box.run("kill -9 $PPID; sleep infinity")
    with pytest.raises(SandboxLostError):
        await waiting
    with pytest.raises(SandboxLostError, match="open a new one"):
        await box.run("true")
    with pytest.raises(SandboxLostError):
        await box.read_file("x")
    await box.interrupt()


async def test_a_process_of_somebody_else_is_never_ended(box: Any) -> None:
    """The canary lives while the sandbox ends commands, and is gone when it is killed itself."""
    mark = own_mark()
    canary = await asyncio.create_subprocess_exec("sleep", mark)
    await timed_out(box, f"echo begun; setsid sleep {mark} & sleep {mark}", mark=mark, least=3)
    assert (canary.returncode, living(mark)) == (None, 1)
    canary.kill()
    await canary.wait()
