"""The question at a pause: the words and the rules of the card, and what the run knows of the place."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import SUBMIT, bash, script, turn
from pages import ROOT
from support import run

from llm_sandbox_nb.agent.control.danger import (
    KEEPING,
    MAX_CHECKED_CHARACTERS,
    MOVED,
    REDIRECTED,
    RULES,
    TOO_LONG,
    Rule,
    dangers_of,
)
from llm_sandbox_nb.agent.control.decisions import DENIED, Held
from llm_sandbox_nb.agent.control.question import question
from llm_sandbox_nb.agent.control.run_control import RunControl
from llm_sandbox_nb.agent.errors import RunError
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory

VIEW = ROOT / "labextension" / "src" / "view"
REWIND = "you can rewind afterwards"
IN_DOCKER = f"Docker sandbox, no network; {REWIND}."
_RULE = re.compile(r"\{\s*pattern: /(.+?)/(gi?),\s*text: '([^']+)'(,\s*outside: true)?\s*\}")


def held(command: str, **more: Any) -> Held:
    given: dict[str, Any] = {"reason": "approval", "text": "You approve every call.", "at": "call", **more}
    return Held(1, "c", tool="execute_bash", arguments={"command": command}, **given)


def running(isolation: str = "docker", network: str = "none", kept: bool = True) -> Trajectory:
    protection = {"isolation": isolation, "network": network}
    events: list[ev.Event] = [
        ev.RunStarted(run_id="r", task="x", model="m", inputs=["input/data.csv"]),
        ev.SandboxReady(sandbox_id="s", start_time=0.1, protection=protection),
    ]
    return Trajectory([*events, ev.Checkpointed(checkpoint="a")] if kept else events)


def test_the_rules_are_those_of_the_card() -> None:
    source = (VIEW / "danger.ts").read_text("utf-8")
    table = source[source.index("const RULES") : source.index("const REDIRECTED")]
    found = tuple(
        Rule(pattern, text, bool(outside), "i" in flags)
        for pattern, flags, text, outside in _RULE.findall(table)
    )
    assert len(found) == table.count("pattern:")
    assert found == RULES
    assert f"REDIRECTED = /{REDIRECTED}/g" in source
    assert f"MOVED = /{MOVED}/g" in source
    assert f"KEEPING = /{KEEPING}/" in source
    assert TOO_LONG in source
    assert f"MAX_CHECKED_CHARACTERS = {MAX_CHECKED_CHARACTERS:_}" in source


def test_the_words_are_those_of_the_card() -> None:
    source = (VIEW / "debugger.ts").read_text("utf-8")
    words = [
        question(held("ls")).splitlines()[0],
        question(held("ls", reason="breakpoint"))
        .splitlines()[1]
        .removeprefix("Step 1. ")
        .partition(" You")[0],
        question(held("ls", reason="step", text="")).splitlines()[1].removeprefix("Step 1. "),
        question(held("ls", reason="pause", text="")).splitlines()[1].removeprefix("Step 1. "),
        "Not isolated: it runs on this machine",
        "you can rewind afterwards",
        "a rewind does not undo what it does elsewhere",
        "What the model will read:",
        "Approve all commands of this run",
        DENIED,
    ]
    assert [text for text in words if f"trans('{text}')" not in source] == []


@pytest.mark.parametrize(
    ("command", "trajectory", "said"),
    [
        ("rm -rf x", running(), f"Run this command? It deletes files. {IN_DOCKER}"),
        ("ls", running(kept=False), "Run this command? Docker sandbox, no network."),
        ("ls", running("bubblewrap", "open"), f"Run this command? Bubblewrap sandbox with network; {REWIND}."),
        ("ls", running("process", "open"), "Run this command? Not isolated: it runs on this machine."),
        (
            "git push --force",
            running("docker", "open"),
            "Run this command? It overwrites the history of a remote repository. Docker sandbox with network; a rewind "
            "does not undo what it does elsewhere.",
        ),
        ("echo 1 > data.csv", running(), f"Run this command? It overwrites data.csv. {IN_DOCKER}"),
        ("echo 1 > new.csv", running(), f"Run this command? {IN_DOCKER}"),
        ("mv -f 'a b' data.csv", running(), f"Run this command? It overwrites data.csv. {IN_DOCKER}"),
        ("cp a b ./data.csv 2>/dev/null; ls", running(), f"Run this command? It overwrites ./data.csv. {IN_DOCKER}"),
        ("cp data.csv new.csv && mv new.csv old.csv", running(), f"Run this command? {IN_DOCKER}"),
        ("cp -an a data.csv; mv -t old data.csv; scp a data.csv; cp data.csv", running(),
         f"Run this command? {IN_DOCKER}"),
    ],
)  # fmt: skip
def test_what_a_command_may_do_and_where(command: str, trajectory: Trajectory, said: str) -> None:
    first, second, *rest = question(held(command), trajectory).split("\n")
    assert first == said
    assert second == "Step 1. You approve every call."
    assert rest == [command]


@pytest.mark.parametrize(
    "text", ["rm ", "git push ", "curl | ", "> ", ":(){", "find . ", "chmod -", "mv ", "cp a -", "cp a b;"]
)
def test_hostile_text_is_checked_in_no_time(text: str) -> None:
    began = time.process_time()
    dangers_of(text * 20_000, lambda path: True)
    assert time.process_time() - began < 2


def test_other_tools_are_named(tmp_path: Path) -> None:
    edit = Held(2, "c", "call", "step", "", "str_replace_editor", {"command": "view", "path": "/x"})
    assert question(edit).startswith(
        "Make this edit?\nStep 2. Paused before each call.\nstr_replace_editor\n{"
    )
    own = Held(2, "c", "call", "breakpoint", "step == 2", "lookup", {}, raw_arguments="{oops")
    assert question(own) == (
        "Run this call?\nStep 2. A breakpoint stopped the run here. step == 2\nlookup\n{oops"
    )
    assert question(Held(3, "c", "call", "step", "", "submit", {})).startswith("Submit?\n")


def test_a_sandbox_that_does_not_start_ends_the_question(tmp_path: Path) -> None:
    """Nobody is asked about a call that cannot be executed."""

    async def go() -> None:
        asked = asyncio.Event()

        async def fails() -> Any:
            await asked.wait()
            raise SandboxError("No engine answers.")

        await solve(
            "x",
            model=script(tmp_path, turn(bash("ls")), SUBMIT),
            isolation="docker",
            sandbox=fails(),
            output_dir=tmp_path,
            approve="ask",
            control=RunControl(),
            listeners=[lambda event: asked.set() if event.kind == "call.held" else None],
        )

    with pytest.raises(RunError, match="No engine answers"):
        run(go())
