"""Compaction: the limit that is learned, the messages that are sent when they fill it, and the record."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from memory_sandbox import MemorySandbox, spec_of, workspace_of
from talking_replies import with_calls

from llm_sandbox_nb.agent.compaction import SUMMARY_REQUEST
from llm_sandbox_nb.agent.conversation_state import conversation_state
from llm_sandbox_nb.agent.errors import InputError, StopRun
from llm_sandbox_nb.agent.loop import Loop
from llm_sandbox_nb.agent.prompts import PromptConfig
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.reduction import step_groups
from llm_sandbox_nb.agent.run_limits import Meter, RunLimits, estimated_tokens
from llm_sandbox_nb.agent.run_options import ContextMode
from llm_sandbox_nb.agent.run_spec import RunSpec
from llm_sandbox_nb.model.contract import (
    ContextLimit,
    ContextOverflowError,
    DeltaCallback,
    ModelSettings,
    Reply,
    ToolCall,
)
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import read_journal
from llm_sandbox_nb.trajectory.messages import reduced_messages
from llm_sandbox_nb.trajectory.trajectory import Trajectory

TASK = "Look at every file."


class SmallModel:
    """Looks at one file after another. It counts tokens, and refuses what does not fit into `holds`."""

    scripted = False

    def __init__(
        self,
        *,
        holds: int | None = None,
        told: int | None = None,
        words: str = "tells",
        files: int = 40,
        summary: str = "I looked at files.",
        name: str = "small",
    ) -> None:
        self.name, self.holds, self.told, self.words, self.files = name, holds, told, words, files
        self.summary = summary
        self.asked = 0
        self.requests: list[list[dict[str, Any]]] = []
        self.settings: list[ModelSettings] = []
        self.counts: list[int] = []
        self.cut_to: int | None = None
        self.step = 0

    async def context_limit(self) -> ContextLimit | None:
        self.asked += 1
        return None if self.told is None else ContextLimit(self.told, True)

    async def reply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        settings: ModelSettings,
        on_delta: DeltaCallback | None = None,
    ) -> Reply:
        messages = json.loads(json.dumps(messages))
        count = counted(messages)
        if self.holds is not None and count >= self.holds:
            numbers = {"context_limit": self.holds, "prompt_tokens": count} if self.words == "tells" else {}
            raise ContextOverflowError("It does not fit.", **numbers)
        self.requests.append(messages)
        self.settings.append(settings)
        self.counts.append(min(count, self.cut_to or count))
        usage = ev.Usage(prompt_tokens=self.counts[-1], completion_tokens=20, cost=0.25)
        if SUMMARY_REQUEST in str(messages[-1]["content"]):
            return Reply({"role": "assistant", "content": self.summary}, self.summary, usage=usage)
        self.step += 1
        name, arguments = (
            ("submit", {}) if self.step > self.files else ("str_replace_editor", view(self.step))
        )
        call = ToolCall(f"c{self.step}", name, json.dumps(arguments))
        return with_calls(call, text="Next.", usage=usage)


def view(step: int) -> dict[str, Any]:
    return {"command": "view", "path": f"/testbed/{step}.txt"}


def counted(messages: list[dict[str, Any]]) -> int:
    return sum(estimated_tokens(json.dumps(message)) for message in messages)


def played(
    folder: Path,
    model: SmallModel,
    mode: ContextMode = "mask",
    *,
    limits: RunLimits | None = None,
    size: int = 400,
    restored: bool = False,
    say: str = "",
    task: str = TASK,
) -> tuple[Loop, StopRun]:
    """Play the model over files of `size` bytes; `restored` continues the run whose journal is in the folder."""

    async def play() -> tuple[Loop, StopRun]:
        past = Trajectory(read_journal(folder / "journal.jsonl")) if restored else None
        recorder = Recorder(folder, trajectory=past)
        meter = Meter(limits or RunLimits())
        box = MemorySandbox({f"/testbed/{at}.txt": b"%d " % at + b"x" * size for at in range(1, 99)})
        workspace = workspace_of(box, recorder)
        spec = spec_of(model, settings=ModelSettings(max_tokens=65_536), context=mode)
        loop = Loop(spec, recorder, meter, workspace)
        if past is None:
            loop.start([{"role": "system", "content": "s"}, {"role": "user", "content": task}])
        else:
            state = conversation_state(past)
            meter.resume_from(state.step, 0, 0.0)
            loop.restore(state)
        if say:
            loop.control.begin(recorder.emit, None)  # type: ignore[arg-type]
            loop.control.say(say)
        with pytest.raises(StopRun) as caught:
            await loop.run()
        loop.close_open_calls()
        recorder.close()
        return loop, caught.value

    return asyncio.run(play())


def of_kind(loop: Loop, kind: type[Any]) -> list[Any]:
    return [event for event in loop.recorder.trajectory.path if isinstance(event, kind)]


def check_valid(messages: list[dict[str, Any]]) -> None:
    """A call and its result stay together, and the task comes first and is whole."""
    assert [message["role"] for message in messages[:2]] == ["system", "user"]
    assert messages[1]["content"].startswith(TASK)
    for start, end in step_groups(messages):
        called = [call["id"] for call in messages[start].get("tool_calls", ())]
        assert [one["tool_call_id"] for one in messages[start + 1 : end] if one["role"] == "tool"] == called


def test_old_outputs_become_a_line_each_in_batches(tmp_path: Path) -> None:
    model = SmallModel(holds=4000, told=4000)
    loop, stop = played(tmp_path, model)
    assert stop.reason == "submitted"
    reductions = of_kind(loop, ev.ContextReduced)
    assert reductions
    assert [one.how for one in reductions] == ["mask"] * len(reductions)
    masked = next(request for request in model.requests if "[output of step 1 removed" in json.dumps(request))
    results = [message["content"] for message in masked if message["role"] == "tool"]
    assert results[0].startswith("[output of step 1 removed, ")
    assert results[0].endswith(" tokens: run the command again if you need it]")
    assert all("removed" not in text for text in results[-4:])
    changed = sum(
        after[: len(before)] != before
        for before, after in zip(model.requests, model.requests[1:], strict=False)
    )
    assert changed == len(reductions) <= len(model.requests) / 4, "a prompt cache keeps working in between"
    for request in model.requests:
        check_valid(request)


def test_the_record_has_both_what_was_recorded_and_what_was_sent(tmp_path: Path) -> None:
    model = SmallModel(told=3000)
    loop, _ = played(tmp_path, model)
    trajectory = Trajectory(read_journal(tmp_path / "journal.jsonl"))
    assert list(trajectory.messages()) == loop.conversation.messages
    assert len(trajectory.steps) == 41
    assert "xxxx" in trajectory.steps[0].calls[0].output, "the outputs themselves stay whole"
    asked = [event.id for event in trajectory.path if isinstance(event, ev.ModelRequested)]
    for id, request in zip(asked, model.requests, strict=True):
        assert list(trajectory.at(id).messages()) == request, "what was sent is rebuilt at every step"


def test_when_lines_are_not_enough_the_oldest_steps_go_and_what_a_person_said_stays(tmp_path: Path) -> None:
    model = SmallModel(holds=2000, told=2000, files=60)
    loop, stop = played(tmp_path, model, say="Write in French.")
    assert stop.reason == "submitted"
    removed = [one for one in of_kind(loop, ev.ContextReduced) if one.removed_to]
    assert removed
    for request in model.requests:
        check_valid(request)
        assert "Write in French." in json.dumps(request)
    last = model.requests[-1][1]["content"]
    assert last.count("are removed from this conversation") == 1, "the note is replaced, not repeated"
    assert "str_replace_editor: view /testbed/" in last


def test_one_output_that_is_larger_than_the_context_is_cut(tmp_path: Path) -> None:
    model = SmallModel(holds=2000, told=2000, files=6)
    _, stop = played(tmp_path, model, size=12_000)
    assert stop.reason == "submitted"
    cut = json.dumps(model.requests[1])
    assert "characters are left out here" in cut
    assert "[Steps remaining: 99]" in cut, "its end stays"


def test_a_refusal_is_learned_from_once(tmp_path: Path) -> None:
    model = SmallModel(holds=3000)
    loop, stop = played(tmp_path, model)
    assert stop.reason == "submitted"
    assert [(one.tokens, one.source) for one in of_kind(loop, ev.ContextKnown)] == [(3000, "refusal")]
    assert len(of_kind(loop, ev.ModelFailed)) == 1
    assert all(one.max_tokens and one.max_tokens <= 3000 for one in model.settings[-5:]), (
        "no more is asked for"
    )


def test_a_refusal_without_a_number_is_learned_from_too(tmp_path: Path) -> None:
    model = SmallModel(holds=3000, words="no number")
    loop, stop = played(tmp_path, model)
    assert stop.reason == "submitted"
    [known] = of_kind(loop, ev.ContextKnown)
    assert 1500 < known.tokens <= 3300
    assert known.source == "refusal"


def test_full_sends_everything_and_the_last_turn_says_why(tmp_path: Path) -> None:
    model = SmallModel(told=3000)
    loop, stop = played(tmp_path, model, "full")
    assert (stop.reason, "3000 tokens that small can take in" in str(stop.error)) == ("tokens", True)
    assert not of_kind(loop, ev.ContextReduced)
    assert (
        "near the limit of what you can take in at once: this is your last turn"
        in model.requests[-1][-1]["content"]
    )
    assert model.counts[-1] < 3000


def test_a_conversation_whose_tokens_are_kept_is_never_shortened(tmp_path: Path) -> None:
    """As that of a policy in training."""

    class Policy(SmallModel):
        append_only = True

    model = Policy(holds=3000)
    loop, stop = played(tmp_path, model)
    assert stop.reason == "tokens"
    assert not of_kind(loop, ev.ContextReduced)
    for before, after in zip(model.requests, model.requests[1:], strict=False):
        assert after[: len(before)] == before


def test_a_task_that_alone_fills_the_context_ends_with_a_last_turn_that_says_why(tmp_path: Path) -> None:
    model = SmallModel(told=1000, holds=1000)
    _, stop = played(tmp_path, model, task=TASK + "x" * 2000)
    assert stop.reason == "tokens"
    assert "1000 tokens that small can take in" in str(stop.error)
    assert all(count < 1000 for count in model.counts)
    assert "near the limit of what you can take in at once" in model.requests[-1][-1]["content"]


def test_a_summary_takes_the_place_of_old_steps_and_is_paid_for(tmp_path: Path) -> None:
    model = SmallModel(holds=3000, told=3000, summary="Files 1 to 9 hold only x.")
    loop, stop = played(tmp_path, model, "summary")
    assert stop.reason == "submitted"
    reductions = of_kind(loop, ev.ContextReduced)
    assert {one.how for one in reductions} == {"summary"}
    asked = [request for request in model.requests if SUMMARY_REQUEST in request[-1]["content"]]
    assert len(asked) == len(reductions)
    after = model.requests[model.requests.index(asked[0]) + 1]
    assert "Your summary:]\nFiles 1 to 9 hold only x." in after[1]["content"]
    assert len(step_groups(after)) == 4
    for request in model.requests:
        check_valid(request)
    assert len(model.requests) == len(loop.recorder.trajectory.steps) + len(asked)
    assert loop.recorder.trajectory.total_usage.cost == pytest.approx(0.25 * len(model.requests))
    assert loop.meter.cost == pytest.approx(0.25 * len(model.requests))


def test_without_a_summary_old_outputs_are_masked(tmp_path: Path) -> None:
    model = SmallModel(holds=3000, told=3000, summary=" ")
    loop, stop = played(tmp_path, model, "summary")
    assert stop.reason == "submitted"
    assert {one.how for one in of_kind(loop, ev.ContextReduced)} == {"mask"}


def test_a_run_that_continues_knows_the_limit_and_sends_what_was_sent(tmp_path: Path) -> None:
    first = SmallModel(holds=3000)
    loop, stop = played(tmp_path, first, limits=RunLimits(steps=25))
    assert stop.reason == "steps"
    again = SmallModel(holds=3000)
    again.step = 25
    continued, stop = played(tmp_path, again, restored=True)
    assert stop.reason == "submitted"
    assert not [one for one in of_kind(continued, ev.ModelFailed) if one.step > 25], "no second refusal"
    assert again.asked == 0
    assert again.requests[0][: len(loop.conversation.messages)] == loop.conversation.messages


def test_another_model_is_asked_anew(tmp_path: Path) -> None:
    played(tmp_path, SmallModel(holds=3000), limits=RunLimits(steps=25))
    other = SmallModel(told=50_000, name="large")
    other.step = 25
    loop, stop = played(tmp_path, other, restored=True)
    assert stop.reason == "submitted"
    known = [(one.model, one.tokens, one.source) for one in of_kind(loop, ev.ContextKnown)]
    assert known == [("small", 3000, "refusal"), ("large", 50_000, "server")]


def test_a_server_that_cuts_silently_is_noticed(tmp_path: Path) -> None:
    """Its count stops growing with the history: the note says what to raise, and the limit is kept."""

    class Cutting(SmallModel):
        async def reply(self, messages: Any, *rest: Any) -> Reply:
            self.cut_to = None if len(messages) < 16 else 700
            return await super().reply(messages, *rest)

    model = Cutting(files=20)
    loop, stop = played(tmp_path, model)
    assert stop.reason == "submitted"
    [known] = of_kind(loop, ev.ContextKnown)
    assert known.source == "cut"
    assert known.tokens == max(model.counts[: model.counts.index(700) + 1])
    notes = [note for note in loop.recorder.trajectory.notes if "Raise num_ctx" in note]
    assert len(notes) == 1
    assert f"takes in only {known.tokens} tokens" in notes[0]
    assert of_kind(loop, ev.ContextReduced)


def test_a_late_step_calls_as_many_functions_as_an_early_one(tmp_path: Path) -> None:
    """Also with a known limit that is never reached."""
    calls: Counter[int] = Counter()

    class Counting(SmallModel):
        async def reply(self, *request: Any) -> Reply:
            sys.setprofile(None)
            reply = await super().reply(*request)
            step = self.step
            sys.setprofile(lambda *_: calls.update((step,)))
            return reply

    try:
        _, stop = played(
            tmp_path, Counting(told=10**8, files=130), limits=RunLimits(steps=150, tokens=None), size=10
        )
    finally:
        sys.setprofile(None)
    assert stop.reason == "submitted"
    early, late = (
        statistics.median(calls[step] for step in steps) for steps in (range(20, 50), range(90, 120))
    )
    assert late <= 1.03 * early


def test_what_a_reduction_names_and_is_not_there_changes_nothing() -> None:
    messages = [{"role": "user", "content": "task"}, {"role": "assistant", "content": "a"}]
    event = ev.ContextReduced(step=2, how="mask", shown=[ev.ShownInstead(at=7, content="x")], removed_from=-1)
    assert reduced_messages(messages, event) == messages
    hostile = event.model_copy(update={"removed_from": 1, "removed_to": 99})
    assert reduced_messages(messages, hostile) == messages[:1]


def test_a_reply_gets_what_is_left_of_the_context() -> None:
    meter = Meter(RunLimits())
    meter.context, meter.longest_reply = 8000, 5000
    assert meter.reply_tokens(65_536) == 5000
    meter.add_reply(ev.Usage(prompt_tokens=5000, completion_tokens=500), "")
    assert meter.reply_tokens(65_536) == 8000 - 5500 - 64
    meter.add_text("x" * 4000)
    assert meter.reply_tokens(65_536) == 8000 - 6500 - 64 - 500
    assert meter.reply_tokens(100) == 100
    assert meter.reply_tokens(None) is None
    meter.add_text("x" * 40_000)
    assert meter.reply_tokens(65_536) == 256


def test_another_context_is_an_error_in_one_sentence() -> None:
    with pytest.raises(InputError, match="context must be one of mask, summary, full, not 'all'"):
        RunSpec(task="t", model=SmallModel(), prompts=PromptConfig("s", "i"), context="all")  # type: ignore[arg-type]
