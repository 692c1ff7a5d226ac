"""Programs beside the shell: exit codes, errors, stdin, users, and their end."""

from __future__ import annotations

import asyncio
import os

import pytest
from support import with_sandbox as body

from llm_sandbox_nb.sandbox.errors import SandboxUserError

OF_THE_C_LIBRARY = 1 << 31 | 1 << 32
"""Signals 32 and 33: glibc keeps them for itself and lets no program set them, so they are as we inherited them."""


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["true"], 0, b""),
        (["sh", "-c", "exit 124"], 124, b""),
        (["sh", "-c", "exit 143"], 143, b""),
        (["sh", "-c", "kill -TERM $$"], 143, b""),
        (["sh", "-c", "kill -SEGV $$"], 139, b""),
        (["no-such-program", "x"], 127, b"no-such-program: command not found"),
        (["/no/such/program"], 127, b"/no/such/program: No such file or directory"),
        (["/etc/passwd"], 126, b"/etc/passwd: Permission denied"),
        (["/"], 126, b"denied"),
        ([""], 127, b"not found"),
    ],
)
def test_exit_codes(opener, argv, code, words):
    async def test(box):
        result = await box.exec(argv, timeout=20)
        assert (result.exit_code, result.timed_out, result.interrupted) == (code, False, False)
        assert words in result.stderr

    body(opener, test)


def test_script_without_a_first_line(opener):
    async def test(box):
        await box.write_file("script", b"echo from sh $1\n")
        await box.run("chmod +x script")
        result = await box.exec(["./script", "arg"])
        assert (result.exit_code, result.stdout) == (0, b"from sh arg\n")

    body(opener, test)


def test_arguments_are_not_seen_by_a_shell(opener):
    async def test(box):
        words = ["$HOME", "`id`", "a b", "", "'", '"', "*", "\n", "é漢", "\udcff\udc80", "-n", "\\"]
        script = "import sys,os; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
        result = await box.exec(["python3", "-X", "utf8", "-c", script, *words])
        assert result.stdout.split(b"\0") == [word.encode("utf-8", "surrogateescape") for word in words]
        with pytest.raises(ValueError, match="NUL"):
            await box.exec(["echo", "a\0b"])
        with pytest.raises(ValueError, match="argv"):
            await box.exec([])

    body(opener, test)


def test_a_megabyte_of_arguments(opener):
    async def test(box):
        result = await box.exec(["printf", "%s", *["x" * 65536] * 16])
        assert result.stdout == b"x" * 2**20
        result = await box.exec(["printf", "%s", "y" * 200_000])
        assert (result.exit_code, b"too long" in result.stderr) == (126, True)
        result = await box.exec(["sh", "-c", "echo ${#BIG}; cat"], env={"BIG": "z" * 100_000}, stdin=b"in")
        assert result.stdout == b"100000\nin"

    body(opener, test)


def test_stdin(opener):
    async def test(box):
        assert (await box.exec(["cat"])).stdout == b""
        data = bytes(range(256)) * 10
        assert (await box.exec(["cat"], stdin=data)).stdout == data
        assert (await box.exec(["wc", "-c"], stdin=b"a" * 50 * 2**20)).stdout.strip() == b"52428800"
        assert (await box.exec(["head", "-c", "3"], stdin=b"b" * 5 * 2**20)).stdout == b"bbb"
        assert (await box.exec(["true"], stdin=b"c" * 20 * 2**20)).exit_code == 0
        slow = await box.exec(["sh", "-c", "sleep 0.5; wc -c"], stdin=b"d" * 3 * 2**20)
        assert slow.stdout.strip() == b"3145728"

    body(opener, test)


def test_stdin_that_nobody_reads_blocks_nobody_else(opener):
    async def test(box):
        unread = b"x" * 30 * 2**20
        stuck = asyncio.ensure_future(box.exec(["sleep", "511"], stdin=unread))
        await asyncio.sleep(0.2)
        assert (await box.run("echo free")).stdout == b"free\n"
        assert not stuck.done()
        stuck.cancel()
        assert (await box.exec(["sleep", "511"], stdin=unread, timeout=1)).timed_out

    body(opener, test)


def test_working_directory_and_environment(opener):
    async def test(box):
        root = box.directories.root
        await box.run("cd /; export SHELL_ONLY=1; mkdir -p /tmp/closed; chmod 0 /tmp/closed")
        result = await box.exec(["sh", "-c", "pwd; echo $A-$SHELL_ONLY"], env={"A": "a b"})
        assert result.stdout.decode() == f"{root}\na b-\n"
        assert (await box.exec(["pwd"], cwd="input")).stdout.decode() == f"{root}/input\n"
        assert (await box.exec(["pwd"], cwd="/usr")).stdout == b"/usr\n"
        with pytest.raises(FileNotFoundError, match="missing"):
            await box.exec(["pwd"], cwd="missing")
        with pytest.raises(NotADirectoryError):
            await box.exec(["pwd"], cwd="/etc/passwd")

    body(opener, test)


def test_working_directory_without_permission(strong_opener):
    async def test(box):
        await box.run("mkdir closed; chmod 0 closed")
        with pytest.raises(PermissionError):
            await box.exec(["pwd"], cwd="closed")

    body(strong_opener, test, profile="strict")


def test_users(opener):
    async def test(box):
        if (await box.run("id -u")).stdout.strip() != b"0":
            with pytest.raises(SandboxUserError, match="may not switch"):
                await box.exec(["id"], user="nobody")
            return
        await box.run("chmod 755 . .. 2>/dev/null; touch /tmp/llm-mine; chmod 600 /tmp/llm-mine")
        result = await box.exec(
            ["sh", "-c", "id -un; id -Gn; echo $HOME $USER; cat /tmp/llm-mine; umask"], user="nobody", cwd="/"
        )
        name, groups, home, mask = result.stdout.decode().splitlines()
        assert (name, groups, mask) == ("nobody", "nogroup", "0022")
        assert home.endswith(" nobody")
        assert b"denied" in result.stderr
        assert (await box.exec(["id", "-u"], user="65534", cwd="/")).stdout == b"65534\n"
        assert (await box.exec(["id", "-u"], user="root")).stdout == b"0\n"
        assert (await box.exec(["id", "-u"])).stdout == b"0\n"
        result = await box.exec(["cat", "/dev/stdin"], user="nobody", cwd="/", stdin=b"through a pipe")
        assert (
            await box.exec(["sh", "-c", "echo $HOME"], user="nobody", cwd="/", env={"HOME": "/x"})
        ).stdout == b"/x\n"
        await box.run("rm -f /tmp/llm-mine")

    body(opener, test)


def test_unknown_user(opener):
    async def test(box):
        with pytest.raises(SandboxUserError, match="nonexistent"):
            await box.exec(["id"], user="nonexistent")
        with pytest.raises(SandboxUserError, match="4294967"):
            await box.exec(["id"], user="4294967000")

    body(opener, test)


@pytest.mark.parametrize(
    "script",
    [
        "sleep 521",
        "trap '' TERM INT; sleep 522; sleep 522",
        "setsid sleep 523 & setsid setsid sleep 524 & sleep 525",
        "(setsid sh -c 'sleep 526 & sleep 527' &) ; sleep 528",
        "while :; do :; done",
    ],
)
def test_time_out_kills_the_whole_tree(opener, script):
    async def test(box):
        await box.run("sleep 531 & kept=$!")
        result = await box.exec(["sh", "-c", f"echo out; echo err >&2; {script}"], timeout=2)
        assert (result.timed_out, result.exit_code) == (True, None)
        assert (result.stdout, result.stderr) == (b"out\n", b"err\n")
        left = await box.run(
            "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o 'sleep 52[0-9]';"
            " kill -0 $kept && echo kept"
        )
        assert left.stdout == b"kept\n"

    body(opener, test)


def test_cancelling_kills_the_whole_tree(opener):
    async def test(box):
        task = asyncio.ensure_future(box.exec(["sh", "-c", "setsid sleep 541 & sleep 542"]))
        await asyncio.sleep(0.4)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        left = await box.run("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o 'sleep 54[0-9]'")
        assert left.stdout == b""

    body(opener, test)


def test_time_out_in_the_shell_spares_exec_and_the_reverse(opener):
    async def test(box):
        beside = asyncio.ensure_future(
            box.exec(["sh", "-c", "(setsid sleep 1.2; echo orphan >&2) & sleep 1.5; wait; echo whole"])
        )
        await asyncio.sleep(0.2)
        assert (await box.run("sleep 551", timeout=0.3)).timed_out
        result = await beside
        assert (result.stdout, result.stderr, result.timed_out) == (b"whole\n", b"orphan\n", False)
        shell = asyncio.ensure_future(
            box.run("(setsid sleep 0.9; echo orphan >&2) & sleep 1.2; wait $!; echo whole")
        )
        await asyncio.sleep(0.2)
        assert (await box.exec(["sleep", "552"], timeout=0.3)).timed_out
        result = await shell
        assert (result.stdout, result.stderr) == (b"whole\n", b"orphan\n")

    body(opener, test)


def test_what_exec_leaves_running_is_not_waited_for(opener):
    async def test(box):
        result = await box.exec(["sh", "-c", "sleep 561 & echo $!"])
        pid = int(result.stdout)
        assert (await box.run(f"kill -0 {pid} && echo lives; kill {pid}")).stdout == b"lives\n"

    body(opener, test)


def test_commands_yield_the_processor_to_the_executor(opener):
    """Hundreds of commands that never sleep cannot keep the executor from its turn, so that it can end them."""

    async def test(box):
        started_by_us = opener.isolation != "docker"
        own = os.getpriority(os.PRIO_PROCESS, 0) if started_by_us else 0
        for result in (await box.exec(["nice"]), await box.run("nice")):
            assert int(result.stdout) == min(own + 5, 19)
        again = await box.exec(["python3", "-c", "import os; os.nice(-1)"])
        assert b"PermissionError" in again.stderr or opener.isolation == "process"

    body(opener, test)


def test_signals_are_as_the_kernel_has_them(opener):
    async def test(box):
        for result in (
            await box.exec(["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"]),
            await box.run("grep -E 'Sig(Blk|Ign)' /proc/self/status"),
        ):
            masks = {
                line.split()[0]: int(line.split()[1], 16) & ~OF_THE_C_LIBRARY
                for line in result.stdout.decode().splitlines()
            }
            assert masks == {"SigBlk:": 0, "SigIgn:": 0}

    body(opener, test)


def test_nul_and_invalid_utf8(opener):
    async def test(box):
        result = await box.exec(["printf", r"a\0b\377"])
        assert result.stdout == b"a\0b\xff"
        assert "�" in result.text

    body(opener, test)
