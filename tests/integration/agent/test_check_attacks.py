"""A check cannot be tampered with from the sandbox: each way that works on a check in the model's own sandbox fails."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import PATIENCE, require, run

from llm_sandbox_nb.agent.checks import CHECK_FOLDER, Check, ResultCheck, check_folder
from llm_sandbox_nb.agent.inputs import check_inputs
from llm_sandbox_nb.agent.prompts import load_prompts
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.run_record import RunRecord
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.open import open_sandbox
from llm_sandbox_nb.trajectory import events as ev

GRADE = """
import os, sys
with open(os.path.join(os.environ["WORKSPACE"], "output", "answer.txt")) as file:
    found = file.read().strip()
with open("expected.txt") as file:
    wrong = found != file.read().strip()
print("wrong" if wrong else "right")
sys.exit(wrong)
"""
FILES = {
    "grade.py": GRADE.encode(),
    "expected.txt": b"42\n",
    "test_answer.py": b"def test_answer():\n    open('expected.txt').read() == '42' or 1/0\n    assert open('/testbed/"
    b"output/answer.txt').read().strip() == '42'\n",
}
GRADED = "python3 grade.py"
WATCH = (
    "(exec >/dev/null 2>&1 </dev/null; while [ ! -e {check}/expected.txt ]; do sleep 0.02; done; {then}) &"
    " echo $! > /tmp/watcher"
)
"""A process that the model leaves running: it waits for the files of the check, then attacks."""
WATCHER_ENDED = 'while kill -0 "$(cat /tmp/watcher)" 2> /dev/null; do sleep 0.05; done'
"""Wait for the end of the attack, however busy the machine is; returns at once where the watcher was killed."""


@dataclass(frozen=True)
class Attack:
    """A way to make a wrong answer pass."""

    prepare: str
    """What the model's commands do before it submits."""
    command: str = GRADED
    """The check that it is good against."""
    needs: tuple[str, ...] = ()
    """Programs and isolations that it needs."""


def watching(then: str, command: str = f"{WATCHER_ENDED}; {GRADED}") -> Attack:
    """An attack by a program that the model left running."""
    return Attack(WATCH.format(check=CHECK_FOLDER, then=then), command)


_PYTHON = (
    "found=$(command -v python3); rm -f $found; printf '#!/bin/sh\\nexit 0\\n' > $found; chmod +x $found"
)
_SITE = "$(python3 -c 'import site; print(site.getsitepackages()[0])')"
_EXIT = "import os; os._exit(0)"
_KILL = (
    "while :; do for one in /proc/[0-9]*; do grep -qs sl[o]wly $one/cmdline && kill -9 ${one#/proc/}; done; "
    "sleep 0.02; done"
)
_SLOW = f"bash -c '{WATCHER_ENDED}' slowly"
ATTACKS = {
    "a program of its own in PATH": Attack(
        f"if [ -w $(dirname $(command -v python3)) ]; then {_PYTHON}; else exit 9; fi"
    ),
    "a function of the shell": Attack("python3() { return 0; }; export -f python3"),
    "an alias": Attack("shopt -s expand_aliases; alias python3=true"),
    "BASH_ENV and profiles": Attack(
        "echo 'python3() { return 0; }; export -f python3' | tee ~/.bashrc ~/.profile ~/.bash_profile > ~/env.sh; "
        "export BASH_ENV=~/env.sh",
        f"bash -c '{GRADED}'",
    ),
    "LD_PRELOAD": Attack("export LD_PRELOAD=/testbed/input/exit.so", needs=("gcc",)),
    "PYTHONPATH and sitecustomize": Attack(
        f"mkdir ~/evil; echo '{_EXIT}' > ~/evil/sitecustomize.py; export PYTHONPATH=~/evil"
    ),
    "a .pth file": Attack(f"mkdir -p {_SITE}; echo '{_EXIT}' > {_SITE}/evil.pth"),
    "a module in the place of one of the library": Attack(
        f"echo '{_EXIT}' > json.py", "cd \"$WORKSPACE\" && python3 -c 'import json; raise SystemExit(1)'"
    ),
    "a program that copies the expected answer": watching(
        f"cp {CHECK_FOLDER}/expected.txt output/answer.txt"
    ),
    "a FIFO in the place of the answer": Attack(
        "rm output/answer.txt; mkfifo output/answer.txt; "
        + WATCH.format(check=CHECK_FOLDER, then=f"cat {CHECK_FOLDER}/expected.txt > output/answer.txt")
    ),
    "a link to the expected answer": Attack(f"ln -sf {CHECK_FOLDER}/expected.txt output/answer.txt"),
    "a program that kills the check": watching(_KILL, f"! ({_SLOW} && {GRADED}) | grep -q wrong"),
    "a program that changes the files of the check": watching(f"echo 41 > {CHECK_FOLDER}/expected.txt"),
    "a race for a file in /tmp": watching(
        "until grep -qs wrong /tmp/verdict; do sleep 0.02; done; echo right > /tmp/verdict",
        f"{GRADED} > /tmp/verdict; {WATCHER_ENDED}; grep -q right /tmp/verdict",
    ),
    "a pytest.ini above the tests": Attack(
        "printf '[pytest]\\naddopts = --collect-only\\n' > /tmp/pytest.ini",
        "python3 -m pytest -q test_answer.py",
        needs=("bubblewrap",),
    ),
    "a hook of git": Attack(
        "git init -q repo && cd repo && printf '#!/bin/sh\\ntouch right\\n' > .git/hooks/pre-commit && "
        "chmod +x .git/hooks/pre-commit",
        'cd "$WORKSPACE/repo" && git -c user.name=a -c user.email=b commit -q --allow-empty -m x; test -e right',
    ),
    "a full disk": Attack(
        WATCH.format(check=CHECK_FOLDER, then="head -c 3G /dev/zero > /tmp/fill"),
        f"{WATCHER_ENDED}; {GRADED} > /tmp/said; test ! -s /tmp/said",
        needs=("bubblewrap",),
    ),
}


IN_BUBBLEWRAP = [*ATTACKS][::4]
"""Attacks of each kind: a program, a library, a watcher, a file of the check, the disk. The others are a campaign."""
IN_DOCKER = ("a program of its own in PATH", "a program that changes the files of the check")
"""The others take many seconds there."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """A library whose constructor ends each Python with exit code 0; None without a compiler."""
    folder = tmp_path_factory.mktemp("library")
    source, made = folder / "exit.c", folder / "exit.so"
    source.write_text(
        "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\nextern char *program_invocation_short_name;\n"
        "__attribute__((constructor)) void go(void) "
        '{ if (strstr(program_invocation_short_name, "python")) _exit(0); }\n'
    )
    try:
        command = ["gcc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", str(made), str(source)]
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        yield None
        return
    assert done.returncode == 0, done.stderr
    yield made


def check_of(box: Sandbox, folder: Path, command: str) -> ResultCheck:
    recorder = Recorder(folder)
    check = Check(command, check_inputs(FILES), timeout=PATIENCE)
    return ResultCheck(check, recorder, RunRecord(folder, recorder.trajectory), load_prompts(None))


async def without_protection(box: Sandbox, command: str) -> bool:
    folder = check_folder(box)
    await check_inputs(FILES).upload(box, folder)
    done = await box.run(
        f"cd {folder} && export WORKSPACE={box.directories.root} && {{ {command}; }}", timeout=PATIENCE
    )
    return done.exit_code == 0


@pytest.mark.parametrize(
    ("isolation", "name"),
    [
        *(
            pytest.param("bubblewrap", name, marks=[] if name in IN_BUBBLEWRAP else pytest.mark.campaign)
            for name in ATTACKS
            if "docker" not in ATTACKS[name].needs
        ),
        *(
            pytest.param("docker", name, marks=[] if name in IN_DOCKER else pytest.mark.campaign)
            for name in ATTACKS
            if "bubblewrap" not in ATTACKS[name].needs
        ),
    ],
)
def test_an_attack_works_in_the_shell_of_the_model_and_not_on_a_check(
    name: str, isolation: str, library: Path | None, tmp_path: Path
) -> None:
    attack = ATTACKS[name]
    if "gcc" in attack.needs and library is None:
        (pytest.fail if os.environ.get("LLM_SANDBOX_REQUIRE_ENGINES") == "1" else pytest.skip)("needs gcc")
    require(isolation)

    async def attacked() -> tuple[ev.Checked, bool]:
        options: dict[str, Any] = {"network": "none"}
        async with open_sandbox(isolation, **options) as box:
            if library is not None:
                await box.upload(library, box.directories.input)
            await box.run("cd /testbed && mkdir -p output && echo 41 > output/answer.txt", timeout=PATIENCE)
            prepared = await box.run(attack.prepare, timeout=PATIENCE)
            assert prepared.exit_code in (0, 1), prepared.text
            found = await check_of(box, tmp_path, attack.command).run(box, "41")
            return found, await without_protection(box, attack.command)

    found, unprotected = run(attacked())
    assert unprotected, "the attack works where nothing protects the check"
    assert found.verdict.outcome != "passed", found
    assert found.verdict.protected


@pytest.mark.parametrize("isolation", ["bubblewrap", "docker", "process"])
def test_the_same_check_passes_a_right_answer_and_says_where_it_can_be_tampered_with(
    isolation: str, tmp_path: Path
) -> None:
    require(isolation)

    async def checked() -> list[ev.Checked]:
        found = []
        async with open_sandbox(isolation, network="none" if isolation != "process" else None) as box:
            for number, answer in enumerate(("42", "41")):
                await box.run(f"mkdir -p output && echo {answer} > output/answer.txt", timeout=PATIENCE)
                folder = tmp_path / str(number)
                folder.mkdir()
                found.append(await check_of(box, folder, GRADED).run(box, answer))
        return found

    right, wrong = run(checked())
    assert [one.verdict.outcome for one in (right, wrong)] == ["passed", "failed"], (right, wrong)
    assert right.verdict.protected == (isolation != "process")
    assert "wrong" in str(wrong.output)


def test_in_process_a_program_that_the_model_left_changes_the_check(tmp_path: Path) -> None:
    leave = (
        "(exec >/dev/null 2>&1 </dev/null; while :; do "
        f"for one in {tempfile.gettempdir()}/llm-sandbox-*/check/expected.txt; do "
        "echo 41 > $one~ && mv $one~ $one; done; sleep 0.02; done) &"
    )

    async def attacked() -> ev.Checked:
        async with open_sandbox("process") as box:
            await box.run(f"mkdir -p output && echo 41 > output/answer.txt; {leave}", timeout=PATIENCE)
            return await check_of(box, tmp_path, f"sleep 1; {GRADED}").run(box, "41")

    found = run(attacked())
    assert (found.verdict.outcome, found.verdict.protected) == ("passed", False), found
