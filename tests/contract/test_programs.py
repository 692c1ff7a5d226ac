"""Programs beside the shell: exit codes, arguments, stdin, folders, users and signals."""

from __future__ import annotations

import os
from typing import Any

import pytest
from sandbox_commands import begun
from shared_sandboxes import isolated

from llm_sandbox_nb.sandbox.errors import SandboxUserError

OF_THE_C_LIBRARY = 1 << 31 | 1 << 32
"""Signals 32 and 33: glibc keeps them for itself and lets no program set them, so they are as we inherited them."""


@pytest.mark.smoke
async def test_exit_codes(box: Any) -> None:
    for argv, code, words in (
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
    ):
        result = await box.exec(argv)
        assert (result.exit_code, result.timed_out, result.interrupted) == (code, False, False), argv
        assert words in result.stderr


async def test_a_script_without_a_first_line_is_one_of_sh(box: Any) -> None:
    await box.write_file("script", b"echo from sh $1\n")
    await box.run("chmod +x script")
    result = await box.exec(["./script", "arg"])
    assert (result.exit_code, result.stdout) == (0, b"from sh arg\n")


async def test_arguments_are_not_seen_by_a_shell(box: Any) -> None:
    words = ["$HOME", "`id`", "a b", "", "'", '"', "*", "\n", "é漢", "\udcff\udc80", "-n", "\\"]
    script = "import sys,os; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
    result = await box.exec(["python3", "-X", "utf8", "-c", script, *words])
    assert result.stdout.split(b"\0") == [word.encode("utf-8", "surrogateescape") for word in words]
    with pytest.raises(ValueError, match="NUL"):
        await box.exec(["echo", "a\0b"])
    with pytest.raises(ValueError, match="argv"):
        await box.exec([])


async def test_a_megabyte_of_arguments(box: Any) -> None:
    result = await box.exec(["printf", "%s", *["x" * 65536] * 16])
    assert result.stdout == b"x" * 2**20
    result = await box.exec(["printf", "%s", "y" * 200_000])
    assert (result.exit_code, b"too long" in result.stderr) == (126, True)
    result = await box.exec(["sh", "-c", "echo ${#BIG}; cat"], env={"BIG": "z" * 100_000}, stdin=b"in")
    assert result.stdout == b"100000\nin"


async def test_stdin(box: Any) -> None:
    data = bytes(range(256)) * 10
    for argv, given, shown in (
        (["cat"], None, b""),
        (["cat"], data, data),
        (["wc", "-c"], b"a" * 50 * 2**20, b"52428800\n"),
        (["head", "-c", "3"], b"b" * 5 * 2**20, b"bbb"),
        (["true"], b"c" * 20 * 2**20, b""),
    ):
        result = await box.exec(argv, stdin=given)
        assert (result.exit_code, result.stdout) == (0, shown)
    late = await begun(
        box, ["sh", "-c", "echo begun; until [ -e go ]; do sleep 0.02; done; wc -c"], stdin=data * 999
    )
    await box.write_file("go", b"")
    assert (await late).stdout == b"begun\n%d\n" % (len(data) * 999)


async def test_working_directory_and_environment(box: Any) -> None:
    root = box.directories.root
    await box.run("cd /; export SHELL_ONLY=1")
    result = await box.exec(["sh", "-c", "pwd; echo $A-$SHELL_ONLY"], env={"A": "a b"})
    assert result.stdout.decode() == f"{root}\na b-\n"
    assert (await box.exec(["pwd"], cwd="input")).stdout.decode() == f"{root}/input\n"
    assert (await box.exec(["pwd"], cwd="/usr")).stdout == b"/usr\n"
    for name in ("", "A=B"):
        with pytest.raises(ValueError, match="cannot be an environment variable"):
            await box.exec(["pwd"], env={name: "x"})
    for missing in ("missing", "a}{b"):
        with pytest.raises(FileNotFoundError, match=missing):
            await box.exec(["pwd"], cwd=missing)
    with pytest.raises(NotADirectoryError):
        await box.exec(["pwd"], cwd="/etc/passwd")


@isolated
@pytest.mark.sandbox(profile="strict")
async def test_a_working_directory_without_permission(box: Any) -> None:
    await box.run("mkdir closed; chmod 0 closed")
    with pytest.raises(PermissionError):
        await box.exec(["pwd"], cwd="closed")


@pytest.mark.smoke
async def test_users(box: Any) -> None:
    for unknown in ("nonexistent", "4294967000"):
        with pytest.raises(SandboxUserError, match=unknown[:7]):
            await box.exec(["id"], user=unknown)
    if (await box.run("id -u")).stdout.strip() != b"0":
        with pytest.raises(SandboxUserError, match="may not switch"):
            await box.exec(["id"], user="nobody")
        return
    await box.run("chmod 755 . .. 2>/dev/null; echo secret > mine; chmod 600 mine")
    mine = f"{box.directories.root}/mine"
    look = f"id -un; id -Gn; echo $HOME $USER; cat {mine}; umask"
    result = await box.exec(["sh", "-c", look], user="nobody", cwd="/")
    name, groups, home, mask = result.stdout.decode().splitlines()
    assert (name, groups, mask) == ("nobody", "nogroup", "0022")
    assert home.endswith(" nobody")
    assert b"denied" in result.stderr
    for user, number in (("65534", b"65534\n"), ("root", b"0\n"), (None, b"0\n")):
        assert (await box.exec(["id", "-u"], user=user, cwd="/")).stdout == number
    piped = await box.exec(["cat", "/dev/stdin"], user="nobody", cwd="/", stdin=b"through a pipe")
    assert piped.stdout == b"through a pipe" or b"denied" in piped.stderr.lower()
    own = await box.exec(["sh", "-c", "echo $HOME"], user="nobody", cwd="/", env={"HOME": "/x"})
    assert own.stdout == b"/x\n"


async def test_what_a_program_leaves_running_is_not_waited_for(box: Any) -> None:
    pid = int((await box.exec(["sh", "-c", "sleep infinity & echo $!"])).stdout)
    assert (await box.run(f"kill -0 {pid} && echo lives; kill {pid}")).stdout == b"lives\n"


async def test_commands_yield_the_processor_to_the_executor(box: Any) -> None:
    """Hundreds of commands that never sleep cannot keep the executor from its turn, so that it can end them."""
    isolation = box.protection.isolation
    own = os.getpriority(os.PRIO_PROCESS, 0) if isolation != "docker" else 0
    for result in (await box.exec(["nice"]), await box.run("nice")):
        assert int(result.stdout) == min(own + 5, 19)
    again = await box.exec(["python3", "-c", "import os; os.nice(-1)"])
    assert b"PermissionError" in again.stderr or isolation == "process"
    if isolation == "docker":  # the first steps have the right to it, commands do not
        assert (await box.run("ps -o ni= -p 1")).stdout.split() == [b"-20"]
        assert b"denied" in (await box.run("renice -n 0 $$ 2>&1")).stdout


async def test_signals_are_as_the_kernel_has_them(box: Any) -> None:
    for result in (
        await box.exec(["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"]),
        await box.run("grep -E 'Sig(Blk|Ign)' /proc/self/status"),
    ):
        fields = [line.split() for line in result.stdout.decode().splitlines()]
        masks = {name: int(mask, 16) & ~OF_THE_C_LIBRARY for name, mask in fields}
        assert masks == {"SigBlk:": 0, "SigIgn:": 0}


@pytest.mark.smoke
async def test_git_commits_without_being_told_who_works(box: Any) -> None:
    commit = (
        "git init -q work && cd work && git commit -q --allow-empty -m one && git log -1 --format='%an <%ae>'"
    )
    done = await box.exec(["bash", "-c", commit])
    assert done.stdout.endswith(b" <sandbox@localhost>\n"), done.text
    named = "cd work && git config user.email me@example.org && git commit -q --allow-empty -m two"
    done = await box.exec(["bash", "-c", f"{named} && git log -1 --format=%ae"])
    assert done.stdout == b"me@example.org\n", done.text


@isolated
async def test_shared_memory_is_as_large_as_the_memory_allows(box: Any) -> None:
    """The engine's own 64 MB are too few for what shares data between processes."""
    done = await box.exec(
        ["bash", "-c", "head -c 200M /dev/zero > /dev/shm/x && stat -c %s /dev/shm/x; rm /dev/shm/x"]
    )
    assert done.stdout == b"209715200\n", done.text
