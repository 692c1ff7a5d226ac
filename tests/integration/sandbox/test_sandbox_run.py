"""The persistent shell: state, exit codes, time-outs, what happens when the shell itself is hurt."""

from __future__ import annotations

import asyncio
import os
import re
import time

import pytest
from support import with_sandbox as body


def test_state_survives(opener):
    async def test(box):
        await box.run(
            "cd /tmp; export A=1; b=2; f() { echo f$b; }; declare -A m=([k]=v); alias ll='echo aliased'"
        )
        result = await box.run('pwd; echo "$A"; f; echo "${m[k]}"; ll')
        assert result.stdout == b"/tmp\n1\nf2\nv\naliased\n"
        assert (result.exit_code, result.stderr, result.notice) == (0, b"", "")

    body(opener, test)


def test_starts_in_the_working_directory(opener):
    async def test(box):
        result = await box.run("pwd; ls -d input documents output")
        assert result.stdout.decode().split() == [box.directories.root, "documents", "input", "output"]

    body(opener, test)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("true", 0),
        ("false", 1),
        ("(exit 124)", 124),
        ("(exit 143)", 143),
        ("sh -c 'kill -TERM $$'", 143),
        ("sh -c 'kill -KILL $$'", 137),
        ("no-such-program", 127),
        ("/etc/passwd", 126),
        ("false | true", 0),
        ("if", 2),
        ("return 9", 9),
    ],
)
def test_exit_code_is_the_command_s_own(process_opener, command, code):
    async def test(box):
        result = await box.run(command, timeout=20)
        assert (result.exit_code, result.timed_out, result.interrupted) == (code, False, False)
        assert (await box.run("echo $?")).stdout == b"%d\n" % code

    body(process_opener, test)


def test_streams_apart_and_live(opener):
    async def test(box):
        seen = []

        def on_output(stream, data):
            seen.append((stream, data, time.monotonic()))

        result = await box.run("echo out; echo err >&2; sleep 2; echo late", on_output=on_output)
        assert (result.stdout, result.stderr) == (b"out\nlate\n", b"err\n")
        assert b"".join(data for stream, data, _ in seen if stream == "stdout") == result.stdout
        first = next(when for _, data, when in seen if data.startswith(b"out"))
        assert seen[-1][2] - first > 0.3

    body(opener, test)


def test_odd_commands(opener):
    async def test(box):
        heredoc = "cat <<'X'\n$HOME `id` \"quoted\" 'single' \\ back\n\tTab\nX"
        assert (await box.run(heredoc)).stdout == b"$HOME `id` \"quoted\" 'single' \\ back\n\tTab\n"
        assert (await box.run("cat <<X\nno end")).stdout == b"no end\n"
        assert (await box.run("echo a # comment")).stdout == b"a\n"
        assert (await box.run("echo a; # it's a comment")).stdout == b"a\n"
        assert (await box.run("echo a \\")).stdout == b"a \\\n"
        assert (await box.run("echo 'one\ntwo'")).stdout == b"one\ntwo\n"
        assert (await box.run("")).exit_code == 0
        assert (await box.run("\n\n")).exit_code == 0
        assert (await box.run("echo 'é 漢 😀'")).stdout.decode() == "é 漢 😀\n"
        broken = await box.run("echo 'never closed")
        assert broken.exit_code == 2
        assert b"unexpected EOF" in broken.stderr
        assert (await box.run('echo "after"; fi')).exit_code == 2
        assert (await box.run("echo fine")).stdout == b"fine\n"

    body(opener, test)


def test_command_of_five_megabytes(opener):
    async def test(box):
        text = "x'\"$`\\" * 800_000
        result = await box.run(f"cat <<'END-OF-IT' | wc -c\n{text}\nEND-OF-IT\n")
        assert int(result.stdout) == len(text) + 1
        result = await box.run(": '" + "y" * 5_000_000 + "'; echo $?")
        assert result.stdout == b"0\n"

    body(opener, test)


def test_nul_and_invalid_utf8_in_output(opener):
    async def test(box):
        result = await box.run(r"printf 'a\0b\377\300\200c'; printf '\0\377' >&2")
        assert (result.stdout, result.stderr) == (b"a\0b\xff\xc0\x80c", b"\0\xff")
        with pytest.raises(ValueError, match="NUL"):
            await box.run("echo \0")

    body(opener, test)


def test_stdin_is_empty(opener):
    async def test(box):
        result = await box.run(
            "cat; read -r x; echo $?; python3 -c 'print(repr(__import__(\"sys\").stdin.read()))'"
        )
        assert result.stdout == b"1\n''\n"
        await box.run("exec < /etc/passwd")
        assert (await box.run("cat | wc -c")).stdout.strip() == b"0"

    body(opener, test)


MARK = os.getpid()
"""A fraction of a second that tells what these tests start from all else: `process` sees the whole machine."""
LEFT = f"ps -eo args 2>/dev/null | grep -c '[s]leep.4[0-9][0-9]\\.{MARK}'"


def mark(command: str) -> str:
    """The command with our mark in each `sleep 4xx`."""
    return re.sub(r"(sleep[ (]4\d\d)\b", rf"\1.{MARK}", command)


@pytest.mark.parametrize(
    "command",
    [
        "sleep 411",
        "setsid sleep 412 & setsid setsid sh -c 'sleep 413 & sleep 414' & sleep 415",
        "sh -c \"trap '' TERM INT HUP; sleep 416; sleep 417\"",
        "(trap '' TERM INT HUP; setsid nohup sleep 418 & wait) & wait",
        "x=$(sleep 419)",
        "sleep 420 | cat",
        "while :; do :; done",
        "f() { while :; do sleep 421; done; }; f",
        "for i in 1 2 3; do f() { sleep 422; }; f; done >/dev/null",
        "python3 -c 'import os,time; os.fork(); os.setsid() if os.fork() else 0; time.sleep(423)'",
        "eval 'eval \"sleep 424\"'",
        "trap 'sleep 425' INT TERM EXIT; sleep 426",
    ],
)
def test_time_out_ends_everything_and_keeps_the_shell(process_opener, command):
    async def test(box):
        await box.run("kept=yes; cd /tmp")
        marked = f"echo before; echo error >&2; {mark(command)}; echo AFTER; touch AFTER"
        result = await box.run(marked, timeout=2)
        assert result.timed_out
        assert result.exit_code is None
        assert (result.stdout, result.stderr) == (b"before\n", b"error\n")
        assert result.notice == ""
        assert (await box.run('echo "$kept"; pwd')).stdout == b"yes\n/tmp\n"
        assert (await box.run(LEFT)).stdout == b"0\n"

    body(process_opener, test)


@pytest.mark.parametrize(
    "command",
    [
        "trap '' INT RTMAX; while :; do :; done",
        "exec sleep 431",
        "mkfifo fifo; read x < fifo",
        "trap - RTMAX; sleep 432",
        "kill -STOP $$",
    ],
)
def test_time_out_of_a_shell_that_does_not_come_back(process_opener, command):
    async def test(box):
        result = await box.run(f"echo before; {mark(command)}; echo AFTER", timeout=2)
        assert result.timed_out
        assert result.stdout == b"before\n"
        assert "new one was started" in result.notice
        assert (await box.run("echo fine")).stdout == b"fine\n"
        assert (await box.run(LEFT)).stdout == b"0\n"

    body(process_opener, test)


def test_time_out_everywhere(opener):
    async def test(box):
        command = mark("setsid sleep 441 & sh -c \"trap '' TERM; sleep 442\" & sleep 443")
        found = f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '^44[0-9][.]{MARK}$'"
        begun = f"echo before; setsid sleep 441.{MARK} & until {found}; do sleep 0.05; done; {command}"
        result = await box.run(f"{begun}; echo AFTER", timeout=4)
        assert result.timed_out
        assert result.stdout.split()[0] == b"before"
        assert int(result.stdout.split()[-1]) > 0, "the canary: those that run are found"
        assert (await box.run(found)).stdout == b"0\n"

    body(opener, test)


def test_background_job_of_an_earlier_call_survives_a_time_out(opener):
    async def test(box):
        await box.run("sleep 451 & old=$!; (while :; do sleep 0.05; done) & old2=$!")
        result = await box.run("sleep 452 & echo $!; sleep 453", timeout=2)
        young = int(result.stdout)
        alive = await box.run(
            f"kill -0 $old && kill -0 $old2 && echo old; kill -0 {young} 2>/dev/null && echo young"
        )
        assert alive.stdout == b"old\n"

    body(opener, test)


def test_kill_background_is_for_this_call_only(opener):
    async def test(box):
        await box.run("sleep 461 & old=$!")
        result = await box.run("setsid sleep 462 & echo $!", kill_background=True)
        alive = await box.run(
            f"kill -0 $old && echo old; kill -0 {int(result.stdout)} 2>/dev/null && echo young"
        )
        assert alive.stdout == b"old\n"

    body(opener, test)


def test_background_output_is_told_apart(opener):
    async def test(box):
        late = "(until [ -e go ]; do sleep 0.05; done; echo from the background; echo and error >&2; touch said) &"
        result = await box.run(f"{late} echo at once")
        assert result.stdout == b"at once\n"
        await box.exec(["sh", "-c", "touch go; until [ -e said ]; do sleep 0.05; done; sleep 0.5"])
        result = await box.run("echo second")
        assert result.stdout == b"second\n"
        assert result.background == b"from the background\nand error\n"
        assert (await box.run("true")).background == b""

    body(opener, test)


def test_endless_background_output_harms_nobody(opener):
    async def test(box):
        await box.run("yes & yes=$!")
        await asyncio.sleep(0.3)
        result = await box.run("echo hello >&2; kill $yes; wait $yes 2>/dev/null; true")
        assert result.stderr.startswith(b"hello\n")
        assert len(result.background) <= 65536
        await asyncio.sleep(0.2)
        assert (await box.run("echo quiet")).stdout == b"quiet\n"

    body(opener, test)


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("exit 7", 7, "ended with exit code 7"),
        ("kill -9 $$", 137, "killed by signal 9"),
        ("exec sh -c 'echo replaced; exit 3'", 3, "ended with exit code 3"),
        ("set -e; false", 1, "ended with exit code 1"),
        ("kill -9 -$$; kill -9 0", 137, "killed by signal 9"),
    ],
)
def test_the_end_of_the_shell(opener, command, code, words):
    async def test(box):
        await box.run("x=1; cd /")
        result = await box.run(f"echo before; {command}")
        assert result.stdout.startswith(b"before\n")
        assert result.exit_code == code
        assert words in result.notice
        again = await box.run("echo ${x-unset}; pwd")
        assert again.stdout.decode() == f"unset\n{box.directories.root}\n"
        assert again.notice == ""

    body(opener, test)


@pytest.mark.parametrize("command", ["exec >&-", "exec 2>&-", "exec >/dev/null 2>&1", "exec > gone; rm gone"])
def test_output_that_was_closed_is_put_back(opener, command):
    async def test(box):
        result = await box.run(f"x=1; {command}; echo lost; echo lost >&2; true")
        assert "restored" in result.notice
        again = await box.run("echo out $x; echo err >&2")
        assert (again.stdout, again.stderr, again.notice) == (b"out 1\n", b"err\n", "")

    body(opener, test)


def test_shell_options_do_not_leak_our_own_commands(opener):
    async def test(box):
        await box.run("set -x")
        result = await box.run("echo traced")
        assert (result.stdout, result.stderr) == (b"traced\n", b"++ echo traced\n")
        await box.run("set +x; set -u")
        assert (await box.run("echo plain")).stderr == b""
        assert (await box.run("set -v; echo a")).exit_code == 0
        await box.run("set +v")
        await box.run("trap 'echo ERR' ERR; false")
        assert (await box.run("false; true")).stdout == b"ERR\n"

    body(opener, test)


def test_private_descriptors_are_out_of_reach(opener):
    async def test(box):
        listed = await box.run(
            "ls /proc/self/fd; python3 -c \"import os; print(sorted(os.listdir('/proc/self/fd')))\""
        )
        assert set(listed.stdout.split(b"[")[0].split()) == {b"0", b"1", b"2", b"3"}
        forge = (
            "for fd in {10..20} {190..199}; do (echo '1 0 -' >&$fd) 2>/dev/null; done; sleep 0.2; (exit 5)"
        )
        assert (await box.run(forge)).exit_code in (0, 5)
        await asyncio.sleep(0.4)
        assert (await box.run("echo fine; (exit 6)")).stdout == b"fine\n"
        await box.run('for fd in {3..255}; do eval "exec $fd>&-"; done')
        assert (await box.run("echo still")).stdout == b"still\n"
        await box.run("exec 10>x 11>x 12>x 13>x 14>x 15>x 194>x 195>x 197>x 199>x")
        assert (await box.run("echo here", timeout=60)).stdout == b"here\n"

    body(opener, test)


def test_interrupt(opener):
    async def test(box):
        began = asyncio.Event()
        command = "x=kept; echo started; sleep 471; echo AFTER"
        task = asyncio.ensure_future(box.run(command, on_output=lambda *_: began.set()))
        await began.wait()
        await box.interrupt()
        result = await task
        assert (result.interrupted, result.timed_out, result.exit_code) == (True, False, None)
        assert result.stdout == b"started\n"
        assert (await box.run("echo $x")).stdout == b"kept\n"
        await box.interrupt()
        assert (await box.run("echo fine")).stdout == b"fine\n"

    body(opener, test)


def test_cancelling_the_task_ends_the_command(opener):
    async def test(box):
        task = asyncio.ensure_future(
            box.run("echo $BASHPID > pid; sleep 472 & echo $! >> pid; wait; touch AFTER")
        )
        await box.exec(["sh", "-c", "until [ $(cat pid | wc -l) = 2 ]; do sleep 0.05; done"])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        result = await box.run("kill -0 $(sed -n 2p pid) 2>/dev/null; echo $?; ls AFTER")
        assert result.stdout == b"1\n"

    body(opener, test)


def test_a_second_command_waits_for_the_first(opener):
    async def test(box):
        first = asyncio.ensure_future(box.run("sleep 0.3; echo a >> order"))
        await asyncio.sleep(0.05)
        beside = await box.exec(["echo", "beside"], timeout=60)
        second = await box.run("echo b >> order; cat order", timeout=60)
        assert beside.stdout == b"beside\n"
        assert second.stdout == b"a\nb\n"
        assert (await first).exit_code == 0

    body(opener, test)


def test_many_calls_at_once(opener):
    async def test(box):
        async def one(n):
            result = await box.exec(["sh", "-c", f"echo {n}; cat"], stdin=b"%d" % n)
            assert result.stdout == b"%d\n%d" % (n, n)
            await box.write_file(f"f{n}", b"%d" % n * 1000)
            assert await box.read_file(f"f{n}") == b"%d" % n * 1000
            return (await box.run(f"echo {n}")).stdout

        assert await asyncio.gather(*map(one, range(20))) == [b"%d\n" % n for n in range(20)]

    body(opener, test)
