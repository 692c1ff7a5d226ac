"""The loop's parts that need no sandbox: the history it keeps, its budget, and its waiting."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from memory_sandbox import MemorySandbox, spec_of, workspace_of
from talking_replies import with_calls
from virtual_time import Clock, run_in_virtual_time

from llm_sandbox_nb.agent.errors import StopRun
from llm_sandbox_nb.agent.loop import Loop
from llm_sandbox_nb.agent.model_call import unless_failed, well_formed
from llm_sandbox_nb.agent.recorder import LiveOutput, Recorder
from llm_sandbox_nb.agent.run_limits import Meter, RunLimits
from llm_sandbox_nb.agent.tools.toolbox import TOOLS
from llm_sandbox_nb.model.contract import DeltaCallback, ModelSettings, Reply, SlowToBegin, ToolCall
from llm_sandbox_nb.model.model_names import make_model
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.events import Usage


class FakeModel:
    """Gives the same reply again and again."""

    name = "fake"
    scripted = True

    def __init__(
        self, *calls: tuple[str, str], usage: Usage | None = None, finish_reason: str | None = None
    ) -> None:
        self.given = calls
        self.usage = usage
        self.finish_reason = finish_reason
        self.requests: list[list[dict[str, Any]]] = []
        self.tools: list[dict[str, Any]] = []

    async def reply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        settings: ModelSettings,
        on_delta: DeltaCallback | None = None,
    ) -> Reply:
        self.requests.append(json.loads(json.dumps(messages)))
        self.tools = tools
        made = reply(*self.given, number=len(self.requests), usage=self.usage)
        return dataclasses.replace(made, finish_reason=self.finish_reason)


def reply(*given: tuple[str, str], number: int = 1, usage: Usage | None = None) -> Reply:
    calls = tuple(ToolCall(f"c{number}.{place}", name, raw) for place, (name, raw) in enumerate(given))
    return with_calls(*calls, text="x", usage=usage)


def played(folder: Path, model: FakeModel, limits: RunLimits) -> tuple[Loop, StopRun]:
    async def play() -> tuple[Loop, StopRun]:
        recorder = Recorder(folder)
        meter = Meter(limits)
        box = MemorySandbox()
        loop = Loop(spec_of(model), recorder, meter, workspace_of(box, recorder))
        loop.start([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])
        with pytest.raises(StopRun) as caught:
            await loop.run()
        loop.close_open_calls()
        recorder.close()
        return loop, caught.value

    return asyncio.run(play())


VIEW = ("str_replace_editor", '{"command": "view", "path": "/testbed"}')


def test_the_time_of_a_step_is_that_of_its_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The import of a library before the first request, and tools, are no part of it."""
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)

    class Slow(FakeModel):
        def prepare(self) -> None: ...

        async def prepared(self) -> None:
            clock.now += 0 if self.requests else 6

        async def reply(self, *given: Any) -> Reply:
            clock.now += 0.25
            return await super().reply(*given)

    loop, _ = played(tmp_path, Slow(VIEW), RunLimits(steps=2))
    assert [step.model_time for step in loop.recorder.trajectory.steps] == [0.25, 0.25]
    assert isinstance(make_model("openai/x", api_base="http://127.0.0.1:1/v1", api_key="x"), SlowToBegin)


def test_history_is_only_ever_added_to(tmp_path: Path) -> None:
    """What was sent once is sent again unchanged: provider caches hit."""
    model = FakeModel(VIEW, ("nope", "{"))
    loop, stop = played(tmp_path, model, RunLimits(steps=6))
    assert stop.reason == "steps"
    assert model.tools == loop.tools == TOOLS.schemas()
    for before, after in zip(model.requests, model.requests[1:], strict=False):
        assert after[: len(before)] == before
    assert list(loop.recorder.trajectory.messages()) == loop.conversation.messages


@pytest.mark.parametrize("raw", ['{"command": "create", "path": "/a", "file_text": "abc', "", "{"])
def test_a_call_that_the_limit_of_tokens_cut_says_so(tmp_path: Path, raw: str) -> None:
    """The call before it is whole, and its error is its own."""
    calls = (("nope", "{}"), ("str_replace_editor", raw))
    loop, _ = played(tmp_path, FakeModel(*calls, finish_reason="length"), RunLimits(steps=1))
    whole, cut = [call.result for call in loop.recorder.trajectory.steps[0].calls]
    assert whole is not None
    assert cut is not None
    assert (whole.error, cut.error) == ("unknown_tool", "cut_off")
    assert cut.observation.startswith("Error: The limit of tokens for one reply cut this call off.")
    assert "JSON" not in cut.observation


@pytest.mark.parametrize(
    ("finish_reason", "raw", "error"),
    [
        ("stop", "{", "malformed_json"),
        ("length", "{}", "bad_arguments"),
        ("length", "nonsense {}", "cut_off"),
    ],
)
def test_other_errors_of_a_call_keep_their_reason(
    tmp_path: Path, finish_reason: str, raw: str, error: str
) -> None:
    model = FakeModel(("execute_bash", raw), finish_reason=finish_reason)
    loop, _ = played(tmp_path, model, RunLimits(steps=1))
    result = loop.recorder.trajectory.steps[0].calls[0].result
    assert result is not None
    assert result.error == error


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


def test_a_reply_without_a_price_does_not_lift_the_limit_on_cost_and_is_noted_once(tmp_path: Path) -> None:
    """A server may leave the usage out of a reply, and a person may change the model, in the middle of a run."""

    class OftenFree(FakeModel):
        async def reply(self, *given: Any) -> Reply:
            self.usage = None if len(self.requests) in (1, 2) else Usage(prompt_tokens=10, cost=0.3)
            return await super().reply(*given)

    model = OftenFree(VIEW)
    loop, stop = played(tmp_path, model, RunLimits(cost=1.0, steps=20))
    assert (stop.reason, len(model.requests)) == ("cost", 6)
    notes = [note for note in loop.recorder.trajectory.notes if "cost" in note]
    assert notes == [
        "The cost of step 2 with fake is not known, so the limit on cost counts only known costs."
    ]


def test_the_call_that_submits_is_recorded_like_every_other(tmp_path: Path) -> None:
    loop, stop = played(tmp_path, FakeModel(VIEW, ("submit", "{}")), RunLimits(steps=3))
    assert stop.reason == "submitted"
    kinds = [(event.kind, event.tool) for event in loop.recorder.trajectory.path if hasattr(event, "tool")]
    for tool in ("str_replace_editor", "submit"):
        assert [kind for kind, called in kinds if called == tool] == ["call.proposed", "call.started"]


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
        assert await unless_failed(work(1), other) == "done"
        with pytest.raises(OSError, match="failed"):
            await unless_failed(work(10), asyncio.ensure_future(fail(1)))
        assert cancelled == [True]
        late = asyncio.ensure_future(fail(60))
        assert await unless_failed(work(0), late) == "done"
        with pytest.raises(OSError, match="failed"):
            await late
        pending = asyncio.ensure_future(asyncio.sleep(10))
        waiting = asyncio.ensure_future(unless_failed(work(10), pending))
        await asyncio.sleep(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert cancelled == [True, True]
        assert not pending.cancelled()
        pending.cancel()

    assert run_in_virtual_time(check())[1] == pytest.approx(63)
