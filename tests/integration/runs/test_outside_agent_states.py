"""Calls of an outside agent before its sandbox is set up, and after its run has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support import eventually, run

from llm_sandbox_nb.agent import session
from llm_sandbox_nb.agent.control.pause_rules import PauseRules, pause_rules
from llm_sandbox_nb.card.card import card_text
from llm_sandbox_nb.mcp_server.tools import STOPPED
from llm_sandbox_nb.runs import outside_agent
from llm_sandbox_nb.runs.outside_agent import start_agent
from llm_sandbox_nb.runs.outside_calls import OutsideCalls
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.open import open_sandbox

WITHOUT_STEP = [("rewind", {"to": "0"}), ("fork", {"from": "0"}), ("show_changes", {"from": "0"})]


def with_calls(
    folder: Path, work: Callable[[OutsideCalls], Awaitable[None]], rules: PauseRules = PauseRules()
) -> None:
    """Call `work` as soon as a run has begun in a new sandbox, before the set-up."""

    async def working() -> None:
        async with open_sandbox("process") as box:
            agent = await start_agent(box, output_dir=folder, name=None, rules=rules)
            calls = OutsideCalls(agent)
            try:
                await work(calls)
            finally:
                await calls.close()

    run(working(), timeout=120)


@pytest.mark.parametrize(("tool", "arguments"), WITHOUT_STEP)
def test_a_call_that_is_not_a_step_waits_for_the_set_up(
    tmp_path: Path, tool: str, arguments: dict[str, Any]
) -> None:
    async def work(calls: OutsideCalls) -> None:
        before = await calls.call("list_sandboxes", {}, "agent")
        assert before["data"]["sandboxes"][0]["state"] == "starting"
        result = await calls.call(tool, arguments, "agent")
        assert not result["error"], result
        after = await calls.call("list_sandboxes", {}, "agent")
        assert after["data"]["sandboxes"][0]["state"] == "ready"

    with_calls(tmp_path, work)


def test_results_of_the_newest_calls_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(calls: OutsideCalls) -> None:
        monkeypatch.setattr(outside_agent, "_MAX_ENDED_CALLS", 4)
        (agent,) = calls.agents.values()
        made = []
        for _ in range(6):
            call = agent.submit("execute_bash", {"command": "true"}, "agent")
            await call.done
            made.append(call.id)
        assert list(agent.calls) == made[-4:], "the newest four"

    with_calls(tmp_path, work)


@pytest.mark.parametrize(("tool", "arguments"), WITHOUT_STEP)
def test_a_set_up_that_takes_too_long_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, arguments: dict[str, Any]
) -> None:
    async def work(calls: OutsideCalls) -> None:
        monkeypatch.setattr(outside_agent, "_SET_UP_SECONDS", 0)
        result = await calls.call(tool, arguments, "agent")
        assert result["data"] == {"error": "The sandbox is still being set up: try again in a moment."}

    with_calls(tmp_path, work)


def test_only_a_person_who_stopped_the_work_is_named_as_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(*_: Any) -> None:
        raise SandboxError("The disk is full.")

    async def fails(calls: OutsideCalls) -> None:
        result = await calls.call("rewind", {"to": "0"}, "agent")
        assert result["text"].startswith("The work of outside agents in this sandbox has ended with an error")
        step = await calls.call("run_command", {"command": "true"}, "agent")
        assert step["text"] == result["text"]

    async def stopped(calls: OutsideCalls) -> None:
        await calls.call("run_command", {"command": "true", "wait": 60.0}, "agent")
        await calls.close()
        assert (await calls.call("rewind", {"to": "0"}, "agent"))["text"] == STOPPED

    with_calls(tmp_path, stopped)
    monkeypatch.setattr(session, "_make_folders", failing)
    with_calls(tmp_path, fails)


def test_a_held_call_that_its_agent_withdraws_was_not_denied_by_a_person(tmp_path: Path) -> None:
    async def work(calls: OutsideCalls) -> None:
        held = await calls.call("run_command", {"command": "true", "wait": 1.0}, "agent")
        (agent,) = calls.agents.values()
        await eventually(lambda: agent.run.held is not None)
        stopped = await calls.call("stop_command", {"command_id": held["data"]["command_id"]}, "agent")
        assert stopped["text"] == outside_agent.WITHDRAWN
        await eventually(lambda: "withdrawn by the agent" in card_text(agent.run.trajectory, live=True))

    with_calls(tmp_path, work, pause_rules(approve="ask"))


def test_an_undo_names_the_last_step_that_was_executed(tmp_path: Path) -> None:
    async def work(calls: OutsideCalls) -> None:
        await calls.call("run_command", {"command": "echo x > a", "wait": 60.0}, "agent")
        for to, step, place in (("0", 0, "as at the beginning"), ("undo", 1, "as after step 1:")):
            went = await calls.call("rewind", {"to": to}, "agent")
            assert (went["data"]["step"], went["data"]["files"]) == (step, 1)
            assert place in went["text"]

    with_calls(tmp_path, work)


def test_changes_are_shown_for_each_form_of_a_path(tmp_path: Path) -> None:
    async def work(calls: OutsideCalls) -> None:
        made = {"command": "mkdir sub; echo x > sub/a; echo y > b", "wait": 60.0}
        assert not (await calls.call("run_command", made, "agent"))["error"]
        sandboxes = await calls.call("list_sandboxes", {}, "agent")
        root = sandboxes["data"]["sandboxes"][0]["working_directory"]
        for path, names in (
            (None, {"b", "sub", "sub/a"}),
            (".", {"b", "sub", "sub/a"}),
            (f"{root}/", {"b", "sub", "sub/a"}),
            ("./sub/", {"sub", "sub/a"}),
            ("sub/../b", {"b"}),
            (f"{root}//sub/a", {"sub/a"}),
            ("su", set()),
        ):
            shown = await calls.call("show_changes", {"from": "0", "path": path}, "agent")
            found = {file["path"].removeprefix(f"{root}/") for file in shown["data"]["files"]}
            assert found == names, path

    with_calls(tmp_path, work)


def test_forks_at_the_same_time_have_their_own_names_and_end_with_the_work(tmp_path: Path) -> None:
    roots: list[str] = []

    async def work(calls: OutsideCalls) -> None:
        fork = {"label": "x"}
        forks = await asyncio.gather(*(calls.call("fork", fork, "agent") for _ in range(6)))
        made = [fork["data"] for fork in forks if not fork["error"]]
        assert [fork["sandbox"] for fork in made] == ["x", "x-2", "x-3", "x-4"]
        assert list(calls.agents) == ["main", "x", "x-2", "x-3", "x-4"]
        assert all("There are 4 forks already" in fork["text"] for fork in forks[4:])
        roots.extend(fork["working_directory"] for fork in made)

    with_calls(tmp_path, work)
    assert not [root for root in roots if Path(root).exists()]


def test_a_fork_that_is_being_made_ends_with_the_work(tmp_path: Path) -> None:
    forks: list[asyncio.Future[Any]] = []

    async def work(calls: OutsideCalls) -> None:
        await calls.call("run_command", {"command": "true", "wait": 60.0}, "agent")
        forks.append(asyncio.ensure_future(calls.call("fork", {}, "agent")))
        await asyncio.sleep(0)
        await calls.close()
        made = await forks[0]
        assert made["error"] or not Path(made["data"]["working_directory"]).exists()

    with_calls(tmp_path, work)
