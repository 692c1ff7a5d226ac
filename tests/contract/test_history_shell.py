"""The state of the shell: asked without a trace, given to a new bash, whatever the model has made of the old one."""

from __future__ import annotations

from typing import Any

import pytest
from history_channel import Host
from sandbox_commands import begun

pytestmark = pytest.mark.own_sandbox

SETUP = r"""
shopt -s extglob
mkdir -p 'a b' && cd 'a b'
export EXPORTED=$'two\nlines \'"' EMPTY=; plain='not exported'; declare -a list=(1 '2 3' 4)
declare -A map=([k]='v w' [k2]=x); declare -i number=7; readonly FIXED=yes; declare -n ref=plain
greet() { local who=$1; echo "hello $who"; case $who in @(x|y)) echo glob;; esac; }
eval 'match() { [[ $1 == +([0-9]) ]] && echo digits; }'
exported_function() { echo from function; }; export -f exported_function
alias hi='echo hi there'; umask 027; set -o pipefail -u; trap 'echo trapped' USR1; unset HOME
"""
CHECK = r"""
pwd; declare -p EXPORTED EMPTY plain list map number FIXED; echo "$ref"; greet x; match 12; hi; umask
bash -c exported_function; set -o | grep -E 'pipefail|nounset'; shopt extglob; trap -p USR1; echo "${HOME-unset}"
bash -c 'echo "$EXPORTED" "${plain-none}"'
"""


@pytest.mark.smoke
async def test_it_comes_back_whole(box: Any) -> None:
    host = Host(box)
    await host.checkpoint()
    assert (await box.run(SETUP)).exit_code == 0
    before = await box.run(CHECK)
    assert before.stderr == b"", before.text
    told = await host.checkpoint()
    assert told.outcome["shell"]["state"] == "new"
    manifest, shell = dict(host.manifest), host.shell
    await box.run(
        "cd /; unset EXPORTED list; unset -f greet; unalias hi; umask 0; export NEW=1; trap - USR1; set +u"
    )
    await host.checkpoint()
    done = await host.restore(manifest, shell)
    assert done.outcome["shell"] == ""
    after = await box.run(CHECK + 'echo "${NEW-no NEW}"')
    assert after.stdout == before.stdout + b"no NEW\n"
    assert after.stderr == b""
    assert after.notice == ""
    await host.checkpoint()
    fresh = await host.restore(manifest)
    assert fresh.outcome["shell"] == ""
    assert (await box.run("pwd; echo ${plain-none}")).stdout == f"{box.directories.root}\nnone\n".encode()


@pytest.mark.isolations("process")
async def test_asking_leaves_no_trace(box: Any) -> None:
    host = Host(box)
    await box.run("f() { echo f; }; trap 'echo usr1' USR1; sleep infinity & (exit 3)")
    await host.checkpoint()
    seen = await box.run('echo "$? ${PIPESTATUS[0]}"; jobs | wc -l; echo "$!" | grep -c .; trap -p USR1')
    again = await box.run(":")
    assert b"3 " in seen.stdout
    assert b"trap -- 'echo usr1' SIGUSR1" in seen.stdout
    assert seen.background == again.background == b""
    assert (await host.checkpoint()).outcome["shell"]["state"] == "new"
    for command in ("true", "echo x; true", "sleep 0.01"):
        await box.run(command)
        assert (await host.checkpoint()).outcome["shell"]["state"] == "same", command
    await box.run("cd input")
    assert (await host.checkpoint()).outcome["shell"]["state"] == "new"


REDEFINED = (
    'builtin() { command builtin echo stolen >> log; command builtin "$@"; }',
    "declare() { echo stolen >> log; }; printf() { echo stolen >> log; }; umask() { :; }; shopt() { :; }",
    "set() { echo stolen >> log; }; unset() { echo stolen >> log; }; trap() { echo stolen >> log; }; alias() { :; }",
    "shopt -s expand_aliases; alias builtin='echo stolen >> log;' unset='echo stolen >> log;' trap='sleep infinity;'",
    "set -eE; trap 'echo stolen >> log' ERR",
    "set -T; trap 'echo stolen >> log' EXIT RETURN",
    "set -o posix",
    "set -f; IFS=x; LC_ALL=C; PATH=/nowhere",
    "exec 5>&1 6</dev/null; set -x",
)


async def stolen(box):
    """How often something of the model's was called instead of what was meant."""
    return (await box.run("command -p cat log 2>/dev/null || :")).stdout.count(b"stolen")


@pytest.mark.parametrize("how", REDEFINED)
@pytest.mark.isolations("process")
async def test_nothing_that_the_model_redefined_is_called(box: Any, how) -> None:
    host = Host(box)
    await host.checkpoint()
    await box.run(f"kept='a value'; shown() {{ echo \"$kept\"; }}; {how}")
    counts = [await stolen(box), await stolen(box)]
    told = await host.checkpoint()
    counts.append(await stolen(box))
    assert counts[2] - counts[1] == counts[1] - counts[0], "only running a command calls it"
    assert told.outcome["shell"] == {"state": "new"}
    assert b"shown ()" in told.shell
    assert b"kept=" in told.shell
    manifest = dict(host.manifest)
    await host.checkpoint()
    done = await host.restore(manifest, told.shell)
    assert done.outcome["shell"] == ""
    assert b"a value" in (await box.run("shown")).stdout


@pytest.mark.isolations("process")
async def test_traced_commands_stay_traced(box: Any) -> None:
    host = Host(box)
    await box.run("set -x")
    before = await box.run("echo 1")
    assert b"+ echo 1" in before.stderr
    await host.checkpoint()
    await host.restore(dict(host.manifest), host.shell)
    assert (await box.run("echo 1")).stderr == before.stderr


@pytest.mark.isolations("process")
async def test_a_shell_that_ends_or_is_busy_or_too_large(box: Any) -> None:
    host = Host(box)
    await host.checkpoint()
    await box.run("mine=1; exit 3")
    told = await host.checkpoint()
    assert told.outcome["shell"]["state"] == "same", "a new shell is like the first"
    assert b"mine=" not in host.shell
    running = await begun(box, "echo begun; until [ -e go ]; do sleep 0.02; done")
    told = await host.checkpoint()
    assert told.outcome["shell"] == {"state": "none"}
    await box.write_file("go", b"")
    await running
    await box.run("x=$(printf %2000000s)")
    told = await host.checkpoint()
    assert told.outcome["shell"]["state"] == "none"
    assert (await box.run("unset x; echo $((1 + 1))")).stdout == b"2\n"
    assert (await host.checkpoint()).outcome["shell"]["state"] == "new"


async def test_a_shell_whose_folder_is_gone(box: Any) -> None:
    host = Host(box)
    await box.run("mkdir gone; cd gone; rmdir ../gone; v=1")
    told = await host.checkpoint()
    assert told.outcome["shell"]["state"] == "new"
    done = await host.restore(dict(host.manifest), told.shell)
    assert done.outcome["shell"] == ""
    assert (await box.run("pwd; echo $v")).stdout == f"{box.directories.root}\n1\n".encode()


@pytest.mark.isolations("process")
async def test_a_stopped_shell_answers_all_the_same(box: Any) -> None:
    host = Host(box)
    await box.run(
        "v=1; shell=$$; (until [ -e idle ]; do sleep 0.02; done; kill -STOP $shell; touch stopped) & "
    )
    await box.write_file("idle", b"")
    await box.exec(["sh", "-c", "until [ -e stopped ]; do sleep 0.05; done"])
    told = await host.checkpoint()
    assert told.outcome["shell"]["state"] == "new"
    assert b"v=" in told.shell


@pytest.mark.isolations("process")
async def test_a_state_that_cannot_be_brought_back_is_told(box: Any) -> None:
    host = Host(box)
    await host.checkpoint()
    done = await host.restore(dict(host.manifest), b"exit 3\n")
    assert "could not be restored" in done.outcome["shell"]
    assert (await box.run("echo alive")).stdout == b"alive\n"
