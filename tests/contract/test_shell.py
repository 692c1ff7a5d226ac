"""The persistent shell: its state, exit codes and streams, and what happens when the shell itself is hurt."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sandbox_commands import begun, start, until
from support import eventually


@pytest.mark.smoke
async def test_it_begins_in_the_working_directory_and_keeps_its_state(box: Any) -> None:
    first = await box.run("pwd; ls -d input documents output")
    assert first.stdout.decode().split() == [box.directories.root, "documents", "input", "output"]
    await box.run(
        "cd /tmp; export A=1; b=2; f() { echo f$b; }; declare -A m=([k]=v); alias ll='echo aliased'"
    )
    result = await box.run('pwd; echo "$A"; f; echo "${m[k]}"; ll')
    assert result.stdout == b"/tmp\n1\nf2\nv\naliased\n"
    assert (result.exit_code, result.stderr, result.notice) == (0, b"", "")


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
async def test_exit_code_is_the_command_s_own(box: Any, command: str, code: int) -> None:
    result = await box.run(command)
    assert (result.exit_code, result.timed_out, result.interrupted) == (code, False, False)
    assert (await box.run("echo $?")).stdout == b"%d\n" % code


async def test_streams_are_apart_and_live(box: Any) -> None:
    """The command prints more only after its first line was seen."""
    command = "echo out; echo err >&2; until [ -e seen ]; do sleep 0.02; done; echo late"
    pieces: list[tuple[str, bytes]] = []
    running = start(box, command, on_output=lambda *piece: pieces.append(piece))
    await eventually(lambda: {("stdout", b"out\n"), ("stderr", b"err\n")} <= {*pieces})
    await box.write_file("seen", b"")
    result = await running
    assert (result.stdout, result.stderr) == (b"out\nlate\n", b"err\n")
    assert b"".join(data for stream, data in pieces if stream == "stdout") == result.stdout


async def test_odd_commands(box: Any) -> None:
    heredoc = "cat <<'X'\n$HOME `id` \"quoted\" 'single' \\ back\n\tTab\nX"
    for command, shown in {
        heredoc: "$HOME `id` \"quoted\" 'single' \\ back\n\tTab\n",
        "cat <<X\nno end": "no end\n",
        "echo a # comment": "a\n",
        "echo a; # it's a comment": "a\n",
        "echo a \\": "a \\\n",
        "echo 'one\ntwo'": "one\ntwo\n",
        "echo 'é 漢 😀'": "é 漢 😀\n",
        "": "",
        "\n\n": "",
    }.items():
        result = await box.run(command)
        assert (result.exit_code, result.stdout.decode()) == (0, shown), command
    for broken in ("echo 'never closed", 'echo "after"; fi'):
        result = await box.run(broken)
        assert (result.exit_code, b"syntax" in result.stderr or b"unexpected EOF" in result.stderr) == (
            2,
            True,
        )
    assert (await box.run("echo fine")).stdout == b"fine\n"


async def test_command_of_five_megabytes(box: Any) -> None:
    text = "x'\"$`\\" * 800_000
    result = await box.run(f"cat <<'END-OF-IT' | wc -c\n{text}\nEND-OF-IT\n")
    assert int(result.stdout) == len(text) + 1
    assert (await box.run(": '" + "y" * 5_000_000 + "'; echo $?")).stdout == b"0\n"


async def test_bytes_that_are_no_text(box: Any) -> None:
    result = await box.run(r"printf 'a\0b\377\300\200c'; printf '\0\377' >&2")
    assert (result.stdout, result.stderr) == (b"a\0b\xff\xc0\x80c", b"\0\xff")
    program = await box.exec(["printf", r"a\0b\377"])
    assert (program.stdout, "�" in program.text) == (b"a\0b\xff", True)
    with pytest.raises(ValueError, match="NUL"):
        await box.run("echo \0")


async def test_stdin_is_empty(box: Any) -> None:
    result = await box.run(
        "cat; read -r x; echo $?; python3 -c 'print(repr(__import__(\"sys\").stdin.read()))'"
    )
    assert result.stdout == b"1\n''\n"
    await box.run("exec < /etc/passwd")
    assert (await box.run("cat | wc -c")).stdout.strip() == b"0"


# ------------------------------------------------------------------------------------------- in the background


async def test_a_background_job_survives_the_call_that_started_it(box: Any) -> None:
    """`kill_background` ends the jobs of its own call only."""
    await box.run("sleep infinity & old=$!")
    young = int((await box.run("setsid sleep infinity & echo $!", kill_background=True)).stdout)
    alive = await box.run(f"kill -0 $old && echo old; kill -0 {young} 2>/dev/null && echo young")
    assert alive.stdout == b"old\n"


async def test_background_output_is_told_apart(box: Any) -> None:
    late = (
        "(until [ -e go ]; do sleep 0.05; done; echo from the background; echo and error >&2; touch said) &"
    )
    assert (await box.run(f"{late} echo at once")).stdout == b"at once\n"
    await box.exec(["sh", "-c", "touch go; until [ -e said ]; do sleep 0.05; done"])
    told = bytearray()

    async def all_told() -> bool:
        result = await box.run("echo second")
        assert result.stdout == b"second\n"
        told.extend(result.background)
        return told.endswith(b"error\n")

    await until(all_told)
    assert told == b"from the background\nand error\n"
    assert (await box.run("true")).background == b""


async def test_endless_background_output_harms_nobody(box: Any) -> None:
    await box.run("yes & yes=$!")

    async def heard() -> bytes:
        background: bytes = (await box.run("true")).background
        return background

    await until(heard)
    result = await box.run("echo hello >&2; kill $yes; wait $yes 2>/dev/null; true")
    assert result.stderr.startswith(b"hello\n")
    assert len(result.background) <= 65536

    async def quiet() -> bool:
        return not await heard()

    await until(quiet)
    assert (await box.run("echo quiet")).stdout == b"quiet\n"


# ------------------------------------------------------------------------------------------------ a hurt shell


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
async def test_the_end_of_the_shell(box: Any, command: str, code: int, words: str) -> None:
    await box.run("x=1; cd /")
    result = await box.run(f"echo before; {command}")
    assert result.stdout.startswith(b"before\n")
    assert result.exit_code == code
    assert words in result.notice
    again = await box.run("echo ${x-unset}; pwd")
    assert (again.stdout.decode(), again.notice) == (f"unset\n{box.directories.root}\n", "")


@pytest.mark.parametrize("command", ["exec >&-", "exec 2>&-", "exec >/dev/null 2>&1", "exec > gone; rm gone"])
async def test_output_that_was_closed_is_put_back(box: Any, command: str) -> None:
    result = await box.run(f"x=1; {command}; echo lost; echo lost >&2; true")
    assert "restored" in result.notice
    again = await box.run("echo out $x; echo err >&2")
    assert (again.stdout, again.stderr, again.notice) == (b"out 1\n", b"err\n", "")


async def test_shell_options_do_not_show_our_own_commands(box: Any) -> None:
    await box.run("set -x")
    result = await box.run("echo traced")
    assert (result.stdout, result.stderr) == (b"traced\n", b"++ echo traced\n")
    await box.run("set +x; set -u")
    assert (await box.run("echo plain")).stderr == b""
    assert (await box.run("set -v; echo a")).exit_code == 0
    await box.run("set +v")
    await box.run("trap 'echo ERR' ERR; false")
    assert (await box.run("false; true")).stdout == b"ERR\n"
    await box.run("trap - ERR; PROMPT_COMMAND='echo prompt'; PS1='(venv) '; PS0=zero")
    for _ in range(2):
        result = await box.run("echo clean")
        assert (result.stdout, result.stderr, result.background) == (b"clean\n", b"", b"")


async def test_private_descriptors_are_out_of_reach(box: Any) -> None:
    listed = await box.run(
        "ls /proc/self/fd; python3 -c \"import os; print(sorted(os.listdir('/proc/self/fd')))\""
    )
    assert set(listed.stdout.split(b"[")[0].split()) == {b"0", b"1", b"2", b"3"}
    forge = "for fd in {10..20} {190..199}; do (echo '1 0 -' >&$fd) 2>/dev/null; done; (exit 5)"
    assert (await box.run(forge)).exit_code in (0, 5)
    for _ in range(3):
        result = await box.run("echo fine; (exit 6)")
        assert (result.stdout, result.exit_code) == (b"fine\n", 6)
    await box.run('for fd in {3..255}; do eval "exec $fd>&-"; done')
    assert (await box.run("echo still")).stdout == b"still\n"
    await box.run("exec 10>x 11>x 12>x 13>x 14>x 15>x 194>x 195>x 197>x 199>x")
    assert (await box.run("echo here")).stdout == b"here\n"


@pytest.mark.isolations("docker")
@pytest.mark.own_sandbox
async def test_a_shell_that_cannot_be_started_again(box: Any) -> None:
    await box.run("mv $(readlink -f $(type -P bash)) /tmp/moved; exit")
    result = await box.run("echo never", timeout=1)  # a time-out is what is tested
    assert (result.exit_code, result.timed_out, result.stdout) == (None, True, b"")
    assert "not started" in result.notice
    moved = await box.exec(["sh", "-c", "mv /tmp/moved /usr/bin/bash"])
    assert (moved.exit_code, moved.text) == (0, "")
    assert (await box.run("echo again")).stdout == b"again\n"


@pytest.mark.own_sandbox
async def test_a_shell_whose_own_functions_are_replaced(box: Any) -> None:
    """The report of a command cannot be forged; a shell that reports nothing more is interrupted and replaced."""
    functions = "_LLM_STATUS() { :; }; printf() { :; }; builtin() { :; }; eval() { :; }; kill() { :; }"
    variables = (
        "readonly _LLM_STATUS PS1; declare -i _LLM_STATUS; PROMPT_COMMAND='echo p'; PS1='$(echo ps1)> '"
    )
    for change in (functions, variables):
        for command in (change, "true"):
            running = start(box, command)
            # on purpose: some of these commands report their end, and some never do
            await asyncio.wait({running}, timeout=1)
            await box.interrupt()  # what has ended is not interrupted
            await running
        await box.run("unset -f printf builtin eval kill; exit")
        result = await box.run("x=1; echo works $((x + 1))")
        assert (result.stdout, result.exit_code) == (b"works 2\n", 0)


async def test_output_that_looks_like_frames(box: Any) -> None:
    frame = b"LS\x07\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x00{}"
    await box.write_file("frames", frame * 5000)
    result = await box.run("cat frames; cat frames >&2")
    assert result.stdout == result.stderr == frame * 5000
    assert (await box.exec(["echo", "works"])).stdout == b"works\n"


# -------------------------------------------------------------------------------------------- several at once


async def test_a_second_command_waits_for_the_first(box: Any) -> None:
    first = await begun(box, "echo begun; until [ -e go ]; do sleep 0.02; done; echo a >> order")
    second = start(box, "echo b >> order; cat order")
    assert (await box.exec(["echo", "beside"])).stdout == b"beside\n"
    assert not first.done()
    await box.write_file("go", b"")
    assert (await second).stdout == b"a\nb\n"
    assert (await first).exit_code == 0


async def test_many_calls_at_once(box: Any) -> None:
    async def one(n: int) -> bytes:
        result = await box.exec(["sh", "-c", f"echo {n}; cat"], stdin=b"%d" % n)
        assert result.stdout == b"%d\n%d" % (n, n)
        await box.write_file(f"f{n}", b"%d" % n * 1000)
        assert await box.read_file(f"f{n}") == b"%d" % n * 1000
        shown: bytes = (await box.run(f"echo {n}")).stdout
        return shown

    assert await asyncio.gather(*map(one, range(20))) == [b"%d\n" % n for n in range(20)]
