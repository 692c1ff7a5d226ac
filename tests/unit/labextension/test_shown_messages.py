"""What the view shows as seen by the model is what was sent: in text mode too, where results join, and when masked."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from memory_sandbox import MemorySandbox, spec_of, workspace_of
from talking_replies import TalkingReplies, said
from test_labextension import node

from llm_sandbox_nb.agent.errors import StopRun
from llm_sandbox_nb.agent.loop import Loop
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.run_limits import Meter, RunLimits, estimated_tokens
from llm_sandbox_nb.agent.run_options import ContextMode
from llm_sandbox_nb.agent.text_mode import TextMode, load_text_form
from llm_sandbox_nb.agent.tools.toolbox import TOOLS
from llm_sandbox_nb.card.bundle import Caps, trajectory_json
from llm_sandbox_nb.model.contract import ContextLimit, DeltaCallback, ModelSettings, Reply
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import read_journal
from llm_sandbox_nb.trajectory.messages import ResultsMessage
from llm_sandbox_nb.trajectory.trajectory import Trajectory

STEPS = 30
SUMMARY = "I looked at the first files."


class SmallWriter(TalkingReplies):
    """Looks at two files in each reply and writes its calls as text; a person speaks to it between its steps."""

    def __init__(self, holds: int) -> None:
        looks = [said(look(2 * at) + "\n" + look(2 * at + 1)) for at in range(STEPS)]
        super().__init__(*looks[:9], said("Now I think."), *looks[9:], said("```bash\nsubmit\n```"))
        self.holds = holds
        self.loop: Loop | None = None

    async def context_limit(self) -> ContextLimit | None:
        return ContextLimit(self.holds, True)

    async def reply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        settings: ModelSettings,
        on_delta: DeltaCallback | None = None,
    ) -> Reply:
        count = sum(estimated_tokens(json.dumps(message)) for message in messages)
        assert count < self.holds
        usage = ev.Usage(prompt_tokens=count, completion_tokens=60)
        if "Write a summary" in messages[-1]["content"]:
            return said(SUMMARY, usage=usage)
        reply = await super().reply(messages, tools, settings, on_delta)
        if self.loop is not None and len(self.requests) % 5 == 0:
            self.loop.control.say(f"hurry after request {len(self.requests)}")
        return dataclasses.replace(reply, usage=usage)


def look(at: int) -> str:
    arguments = {"command": "view", "path": f"/testbed/{at}.txt"}
    call = json.dumps({"name": "str_replace_editor", "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def played(folder: Path, mode: ContextMode) -> tuple[SmallWriter, Loop]:
    model = SmallWriter(4000)

    async def play() -> Loop:
        recorder = Recorder(folder)
        box = MemorySandbox({f"/testbed/{at}.txt": b"%d " % at + b"x" * 400 for at in range(99)})
        spec = spec_of(
            model,
            settings=ModelSettings(max_tokens=65_536),
            context=mode,
            tool_calls="text",
            remind=False,
        )
        loop = Loop(spec, recorder, Meter(RunLimits()), workspace_of(box, recorder))
        model.loop = loop
        loop.start([{"role": "system", "content": "s"}, {"role": "user", "content": "Look at every file."}])
        loop.control.begin(recorder.emit, None)
        with pytest.raises(StopRun) as caught:
            await loop.run()
        assert caught.value.reason == "submitted"
        loop.close_open_calls()
        recorder.close()
        return loop

    return model, asyncio.run(play())


def shown(streams: Sequence[Sequence[ev.Event]]) -> list[list[list[str]]]:
    given = [[json.loads(ev.dump_event(event)) for event in stream] for stream in streams]
    found: list[list[list[str]]] = json.loads(node("tests/said.mjs", given=json.dumps(given)))
    return found


@pytest.mark.parametrize("mode", ["mask", "summary"])
def test_in_text_mode_a_shortened_conversation_is_rebuilt_and_shown_as_it_was_sent(
    tmp_path: Path, mode: ContextMode
) -> None:
    model, loop = played(tmp_path, mode)
    events = list(read_journal(tmp_path / "journal.jsonl"))
    run = Trajectory(events)
    reduced = [event for event in run.path if isinstance(event, ev.ContextReduced)]
    assert len(reduced) > 2
    assert {event.how for event in reduced} == {mode}
    assert list(run.messages()) == loop.conversation.messages
    asked = [at for at, event in enumerate(events) if isinstance(event, ev.ModelReplied)]
    assert len(asked) == len(model.requests) == STEPS + 2
    described = TextMode(load_text_form("code"), TOOLS.schemas()).request
    before = [list(Trajectory(events[:at]).messages()) for at in asked]
    for rebuilt, sent in zip(before, model.requests, strict=True):
        assert described(rebuilt) == sent
        roles = [message["role"] for message in sent]
        assert roles == ["system", *["user", "assistant"] * len(sent)][: len(sent)], "no two in a row"
    kept = [
        one for one in loop.conversation.messages if "removed" in one["content"] and "hurry" in one["content"]
    ]
    assert mode == "summary" or kept, "what a person said stays in a message whose results are masked"
    views = shown([events[:at] for at in asked])
    assert views == [[[one["role"], one["content"]] for one in rebuilt] for rebuilt in before]


def test_what_is_said_after_a_reduction_joins_the_shortened_results() -> None:
    """As when a run ends before the reply to a shortened conversation, and a person resumes it with a text."""
    masked = ev.ContextReduced(
        step=1, how="mask", shown=[ev.ShownInstead(at=2, content="cut")], removed_from=0, removed_to=0,
        tokens_before=9, tokens_after=5, limit=9,
    )  # fmt: skip
    events: list[ev.Event] = [
        ev.MessageAdded(message={"role": "user", "content": "task"}),
        ev.ModelReplied(step=1, message={"role": "assistant", "content": "two blocks"}, calls_from="text"),
        ev.CallFinished(step=1, call_id="a", observation="one"),
        ev.CallFinished(step=1, call_id="b", observation="two"),
        masked,
        ev.MessageAdded(message={"role": "user", "content": "hurry"}),
    ]
    rebuilt = list(Trajectory(events).messages())
    assert [one["content"] for one in rebuilt] == ["task", "two blocks", "cut\n\nhurry"]
    assert shown([events]) == [[[one["role"], one["content"]] for one in rebuilt]]


def test_what_is_said_after_equal_replies_were_left_out_joins_the_task() -> None:
    """The task then has the newest result, and some servers refuse two user messages in a row."""
    left_out = ev.ContextReduced(
        step=3,
        how="repeats",
        shown=[ev.ShownInstead(at=0, content="task\n\nfailed")],
        removed_from=1,
        removed_to=5,
    )
    steps: list[ev.Event] = [
        event
        for step in (1, 2)
        for event in (
            ev.ModelReplied(step=step, message={"role": "assistant", "content": "block"}, calls_from="text"),
            ev.CallFinished(step=step, call_id=str(step), observation="failed"),
        )
    ]
    task, said = (ev.MessageAdded(message={"role": "user", "content": text}) for text in ("task", "hurry"))
    events: list[ev.Event] = [task, *steps, left_out, said]
    assert [one["content"] for one in Trajectory(events).messages()] == ["task\n\nfailed\n\nhurry"]
    assert shown([events]) == [[["user", "task\n\nfailed\n\nhurry"]]]


def test_a_saved_card_knows_which_calls_of_a_reply_were_native() -> None:
    """The model client makes native calls of those that some models write: their results are messages of their own."""
    asked = {"id": "a", "type": "function", "function": {"name": "submit", "arguments": "{}"}}
    events: list[ev.Event] = [
        ev.MessageAdded(message={"role": "user", "content": "task"}),
        ev.ModelReplied(
            step=1, message={"role": "assistant", "content": "", "tool_calls": [asked]}, calls_from="text"
        ),
        ev.CallProposed(step=1, call_id="a", tool="submit", raw_arguments="{}", arguments={}),
        ev.CallFinished(step=1, call_id="a", observation="one"),
    ]
    saved = trajectory_json(Trajectory(events), [], Caps())["events"]
    found = json.loads(node("tests/said.mjs", given=json.dumps([saved])))
    assert found == [[["user", "task"], ["assistant", ""], ["tool", "one"]]]


def test_cut_replies_that_were_left_out_had_no_result() -> None:
    """So the task stays a message without a result, in which no answer can be found."""
    left_out = ev.ContextReduced(
        step=3,
        how="repeats",
        shown=[ev.ShownInstead(at=0, content="task\n\ncut off")],
        removed_from=1,
        removed_to=5,
    )
    task, nudge, later = (
        ev.MessageAdded(message={"role": "user", "content": text}) for text in ("task", "cut off", "hurry")
    )
    reply = ev.ModelReplied(step=1, message={"role": "assistant", "content": "block"}, finish_reason="length")
    events: list[ev.Event] = [
        task,
        reply,
        nudge,
        reply.model_copy(update={"id": "2", "step": 2}),
        nudge,
        left_out,
    ]
    rebuilt = list(Trajectory(events).messages())
    assert rebuilt == [{"role": "user", "content": "task\n\ncut off"}]
    assert not isinstance(rebuilt[0], ResultsMessage)
    events.append(later)
    assert shown([events]) == [[[one["role"], one["content"]] for one in Trajectory(events).messages()]]
