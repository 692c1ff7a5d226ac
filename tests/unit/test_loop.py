"""The loop's parts that need no sandbox: the history it keeps, its budget, and its waiting."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from memory_sandbox import MemorySandbox

from llm_sandbox_nb.agent.checkpoints import Checkpoints
from llm_sandbox_nb.agent.collect import Collector
from llm_sandbox_nb.agent.limits import Meter, RunLimits
from llm_sandbox_nb.agent.loop import Loop, StopRun, Workplace
from llm_sandbox_nb.agent.loop_support import LiveOutput, unless_failed, well_formed
from llm_sandbox_nb.agent.model import DeltaCallback, ModelSettings, Reply, ToolCall
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.tools import Toolbox
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.events import Usage


class FakeModel:
    """Gives the same reply again and again."""

    name = "fake"
    scripted = True

    def __init__(self, *calls: tuple[str, str], usage: Usage | None = None) -> None:
        self.given = calls
        self.usage = usage
        self.requests: list[list[dict[str, Any]]] = []

    async def reply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        settings: ModelSettings,
        on_delta: DeltaCallback | None = None,
    ) -> Reply:
        self.requests.append(json.loads(json.dumps(messages)))
        return reply(*self.given, number=len(self.requests), usage=self.usage)


def reply(*given: tuple[str, str], number: int = 1, usage: Usage | None = None) -> Reply:
    calls = tuple(ToolCall(f"c{number}.{place}", name, raw) for place, (name, raw) in enumerate(given))
    functions = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
        for c in calls
    ]
    return Reply(
        {"role": "assistant", "content": "x", "tool_calls": functions}, "x", calls=calls, usage=usage
    )


def played(folder: Path, model: FakeModel, limits: RunLimits) -> tuple[Loop, StopRun]:
    async def play() -> tuple[Loop, StopRun]:
        recorder = Recorder(folder)
        meter = Meter(limits)
        box = MemorySandbox()
        workplace: asyncio.Future[Workplace] = asyncio.get_running_loop().create_future()
        collector = Collector(box, "/testbed/output", recorder)
        workplace.set_result(Workplace(Toolbox(box), collector, Checkpoints(box, recorder)))
        loop = Loop(model, ModelSettings(), recorder, meter, workplace)
        with pytest.raises(StopRun) as caught:
            await loop.run([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])
        loop.close_open_calls()
        recorder.close()
        return loop, caught.value

    return asyncio.run(play())


VIEW = ("str_replace_editor", '{"command": "view", "path": "/testbed"}')


def test_history_is_only_ever_added_to(tmp_path: Path) -> None:
    """What was sent once is sent again unchanged: provider caches hit."""
    model = FakeModel(VIEW, ("nope", "{"))
    loop, stop = played(tmp_path, model, RunLimits(steps=6))
    assert stop.reason == "steps"
    for before, after in zip(model.requests, model.requests[1:], strict=False):
        assert after[: len(before)] == before
    assert list(loop.recorder.trajectory.messages()) == loop.messages


def test_cost_is_a_hard_limit_with_a_warned_last_turn(tmp_path: Path) -> None:
    model = FakeModel(VIEW, usage=Usage(prompt_tokens=10, completion_tokens=5, cost=0.3))
    _, stop = played(tmp_path, model, RunLimits(cost=1.0))
    assert stop.reason == "cost"
    assert len(model.requests) == 4
    warned = ["budget is nearly spent" in str(request[-1]["content"]) for request in model.requests]
    assert warned == [False, False, False, True]


def test_cost_over_the_limit_at_once_ends_at_once(tmp_path: Path) -> None:
    model = FakeModel(VIEW, usage=Usage(prompt_tokens=10, completion_tokens=5, cost=2.0))
    _, stop = played(tmp_path, model, RunLimits(cost=1.0))
    assert (stop.reason, len(model.requests)) == ("cost", 1)


def test_arguments_that_are_not_an_object_are_wrapped_in_the_history_only() -> None:
    made = well_formed(
        reply(("execute_bash", '{"command": '), ("submit", ""), ("submit", '{"a": 1}'), ("x", "[\ud800]"))
    )
    sent = [call["function"]["arguments"] for call in made.message["tool_calls"]]
    assert sent == ['{"not_json": "{\\"command\\": "}', "{}", '{"a": 1}', '{"not_json": "[\ufffd]"}']
    assert [call.arguments for call in made.calls] == ['{"command": ', "", '{"a": 1}', "[\ufffd]"]


def test_characters_cut_by_pieces_are_put_together() -> None:
    events: list[ev.Event] = []
    live = LiveOutput("c", events.append)
    data = "a漢😀".encode()
    for place in range(len(data)):
        live("stdout", data[place : place + 1])
        live("stderr", b"e")
    texts = {"stdout": "", "stderr": ""}
    for event in events:
        assert isinstance(event, ev.CallOutput)
        texts[event.stream] += event.text
    assert texts == {"stdout": "a漢😀", "stderr": "e" * len(data)}


def test_waiting_for_two_things() -> None:
    cancelled: list[bool] = []

    async def work(seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return "done"

    async def fail(seconds: float) -> None:
        await asyncio.sleep(seconds)
        raise OSError("failed")

    async def check() -> None:
        other = asyncio.ensure_future(work(0))
        assert await unless_failed(work(0.01), other) == "done"
        with pytest.raises(OSError, match="failed"):
            await unless_failed(work(10), asyncio.ensure_future(fail(0.01)))
        assert cancelled == [True]
        late = asyncio.ensure_future(fail(0.05))
        assert await unless_failed(work(0), late) == "done"
        with pytest.raises(OSError, match="failed"):
            await late
        pending = asyncio.ensure_future(asyncio.sleep(10))
        waiting = asyncio.ensure_future(unless_failed(work(10), pending))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert cancelled == [True, True]
        assert not pending.cancelled()
        pending.cancel()

    asyncio.run(check())
