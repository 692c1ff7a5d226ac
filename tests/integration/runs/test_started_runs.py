"""Runs that an outside agent starts in its sandbox: recorded like a cell's, watched by their handle, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support import eventually, own_mark, run

from llm_sandbox_nb.agent.control.pause_rules import PauseRules
from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.run_record import in_use_by_another, release_sandbox, reserve_sandbox
from llm_sandbox_nb.runs import started_runs
from llm_sandbox_nb.runs.outside_agent import OTHER_RUN, start_agent
from llm_sandbox_nb.runs.outside_calls import OutsideCalls
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.runs.started_runs import RunRequest
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.open import open_sandbox

SLEEPER = 'turns: [{calls: [{tool: execute_bash, arguments: {command: "sleep %s"}}]}]'
Call = Callable[..., Awaitable[dict[str, Any]]]


class Agent:
    """An outside agent in a sandbox in which runs can be started."""

    def __init__(self, calls: OutsideCalls, box: Sandbox) -> None:
        self.calls, self.box = calls, box

    async def call(self, tool: str, principal: str = "p1", **arguments: Any) -> dict[str, Any]:
        arguments = ({"max_steps": 5} if tool == "start_run" else {}) | arguments
        return await self.calls.call(tool, arguments, "agent", principal=principal)


def with_agent(
    tmp_path: Path, work: Callable[[Agent], Awaitable[None]], model: str = "scripted/strawberry"
) -> None:
    """Call `work` with an outside agent of a new sandbox."""

    async def working() -> None:
        box = await open_sandbox("process")
        agent = await start_agent(box, output_dir=tmp_path, name=None, rules=PauseRules())

        async def starter(request: RunRequest, listener: Any, begun: Callable[[Run], None]) -> object:
            if request.task == "Fail.":
                raise InputError("The model has no key: set one.")
            limits = {"steps": request.max_steps}
            return await solve(
                request.task, model=request.model or model, isolation="process", sandbox=box, limits=limits,
                listeners=[listener], on_run=begun, output_dir=tmp_path, show=False,
            )  # fmt: skip

        calls = OutsideCalls(agent, None, starter)
        try:
            await work(Agent(calls, box))
        finally:
            await calls.close()
            await box.close()

    run(working(), timeout=300)


def sleeper(tmp_path: Path) -> str:
    """A model whose first command does not end."""
    script = tmp_path / "sleeper.yaml"
    script.write_text(SLEEPER % own_mark())
    return f"scripted/{script}"


def test_a_run_is_followed_by_its_handle_to_its_answer(tmp_path: Path) -> None:
    async def work(agent: Agent) -> None:
        assert not (await agent.call("run_command", command="echo mine > mine.txt"))["error"]
        begun = await agent.call("start_run", task="How many r's are in strawberry?")
        assert not begun["error"], begun
        handle = begun["data"]["run_id"]
        ended, since = False, 0
        while not ended:
            data = (await agent.call("get_run", run_id=handle, since=since, wait=20))["data"]
            ended, since = data["ended"], max([since, *(step["step"] for step in data["steps"])])
        found = await agent.call("get_run", run_id=handle)
        assert "There are 3 r's" in found["data"]["answer"]
        assert [step["calls"][0]["tool"] for step in found["data"]["steps"]] == [
            "execute_bash", "execute_bash", "submit",
        ]  # fmt: skip
        after = await agent.call("run_command", command="cat mine.txt answer.txt")
        assert after["data"]["stdout"] == "mine\nThere are 3 r's in strawberry.\n"
        undone = await agent.call("rewind", to="1")
        assert "answer.txt" in undone["ask"]  # the run changed files since, so a person is asked
        assert (await agent.call("get_run"))["data"]["run_id"] != handle

    with_agent(tmp_path, work)
    runs = [Run.load(journal.parent) for journal in tmp_path.rglob("journal.jsonl")]
    assert sorted(one.stop_reason or "" for one in runs) == ["interrupted", "submitted"]


def test_one_run_works_in_a_sandbox_and_is_stopped_by_its_starter_only(tmp_path: Path) -> None:
    async def work(agent: Agent) -> None:
        begun = await agent.call("start_run", task="Wait.")
        handle = begun["data"]["run_id"]
        await eventually(lambda: len(list(tmp_path.rglob("journal.jsonl"))) == 2)
        assert started_runs.YOUR_RUN in (await agent.call("start_run", task="Wait."))["text"]
        assert "uses this sandbox now" in (await agent.call("run_command", command="true"))["text"]
        for tool in ("get_run", "stop_run"):
            assert (await agent.call(tool, principal="p2", run_id=handle))["text"] == started_runs.UNKNOWN
        assert not (await agent.call("get_run", run_id=handle))["data"]["ended"]
        stopped = await agent.call("stop_run", run_id=handle)
        assert stopped["data"]["ended"], stopped
        assert stopped["data"]["state"] == "Stopped by the outside agent"
        assert (await agent.call("stop_run", run_id=handle))["data"] == stopped["data"]
        assert not (await agent.call("run_command", command="true"))["error"]

    with_agent(tmp_path, work, sleeper(tmp_path))


def test_a_sandbox_in_use_starts_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(started_runs, "MAX_STARTED_RUNS", 1)

    async def work(agent: Agent) -> None:
        await agent.call("run_command", command="true")  # the sandbox is set up
        await eventually(lambda: not in_use_by_another(agent.box, tmp_path))
        reserve_sandbox(agent.box, tmp_path)
        assert (await agent.call("start_run", task="Wait."))["text"] == OTHER_RUN
        release_sandbox(agent.box, tmp_path)

        running = await agent.call("run_command", command=f"sleep {own_mark()}", wait=0)
        assert (await agent.call("start_run", task="Wait."))["text"] == started_runs.YOUR_CALL
        await agent.call("stop_command", command_id=running["data"]["command_id"])

        fork = (await agent.call("fork"))["data"]["sandbox"]
        assert (await agent.call("start_run", task="Wait.", sandbox=fork))["text"] == started_runs.NOT_IN_FORK

        assert (await agent.call("start_run", task="Fail."))["text"] == "The model has no key: set one."
        assert (await agent.call("start_run", task=" \n"))["text"] == started_runs.EMPTY_TASK
        begun = await agent.call("start_run", task="Wait.")
        await agent.call("stop_run", run_id=begun["data"]["run_id"])
        assert (await agent.call("start_run", task="Wait."))["text"] == started_runs.TOO_MANY

    with_agent(tmp_path, work, sleeper(tmp_path))


def test_the_end_of_access_ends_a_run(tmp_path: Path) -> None:
    async def work(agent: Agent) -> None:
        begun = await agent.call("start_run", task="Wait.")
        started = agent.calls._started.find(begun["data"]["run_id"], "p1")
        await agent.calls.close()
        assert started.ended
        assert started.run.stop_reason == "interrupted"

    with_agent(tmp_path, work, sleeper(tmp_path))


def test_a_sandbox_without_a_notebook_starts_no_run(tmp_path: Path) -> None:
    async def work() -> None:
        async with await open_sandbox("process") as box:
            agent = await start_agent(box, output_dir=tmp_path, name=None, rules=PauseRules())
            calls = OutsideCalls(agent)
            refused = await calls.call("start_run", {"task": "Wait.", "max_steps": 5}, "agent")
            assert refused["text"] == started_runs.NOT_HERE
            await asyncio.shield(calls.close())

    run(work(), timeout=300)
