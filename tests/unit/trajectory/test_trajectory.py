"""The fold: events in, steps out; live and loaded look the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agent_scripts import check_messages

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import Journal, read_journal
from llm_sandbox_nb.trajectory.trajectory import NOT_ANSWERED, Call, Trajectory


def reply(step: int, *ids: str, text: str = "thought") -> ev.ModelReplied:
    calls = [
        {"id": id, "type": "function", "function": {"name": "execute_bash", "arguments": "{}"}} for id in ids
    ]
    message = {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})
    return ev.ModelReplied(step=step, message=message, usage=ev.Usage(prompt_tokens=10, completion_tokens=2))


def call(step: int, id: str) -> list[ev.Event]:
    return [
        ev.CallProposed(step=step, call_id=id, tool="execute_bash", raw_arguments="{}", arguments={}),
        ev.CallStarted(step=step, call_id=id, tool="execute_bash", arguments={"command": "ls"}),
        ev.CallOutput(call_id=id, stream="stdout", text="part"),
        ev.CallFinished(step=step, call_id=id, observation=f"seen {id}", exit_code=0),
    ]


def whole_run() -> list[ev.Event]:
    return [
        ev.RunStarted(run_id="r", task="t", model="m"),
        ev.MessageAdded(message={"role": "system", "content": "s"}),
        ev.MessageAdded(message={"role": "user", "content": "u"}),
        ev.ModelRequested(step=1),
        ev.ModelDelta(step=1, text="th", reasoning="why"),
        ev.ModelFailed(step=1, attempt=1, error="server", message="again", retry_in=1.0),
        ev.ModelRequested(step=1, attempt=2),
        ev.ModelDelta(step=1, text="thought"),
        reply(1, "a", "b"),
        *call(1, "a"),
        *call(1, "b"),
        ev.ArtifactSaved(step=1, path="x.png", mime="image/png", size=3, sha256="0"),
        ev.ArtifactSaved(step=1, path="y.png", mime="image/png", size=3, sha256="0"),
        ev.ArtifactRemoved(step=2, path="y.png"),
        ev.ArtifactSkipped(reason="z is a link"),
        ev.ModelRequested(step=2),
        reply(2, text="done"),
        ev.MessageAdded(message={"role": "user", "content": "nudge"}),
        ev.Noted(text="note"),
        ev.RunFinished(stop_reason="answered", answer="done"),
    ]


def test_the_whole() -> None:
    trajectory = Trajectory(whole_run())
    first, second = trajectory.steps
    assert [call.output for call in first.calls] == ["seen a", "seen b"]
    assert first.calls[0].arguments == {"command": "ls"}
    assert first.thought == "thought"
    assert [failure.message for failure in first.failures] == ["again"]
    assert (second.number, second.thought, second.calls) == (2, "done", [])
    assert list(trajectory.artifacts) == ["x.png"]
    assert (trajectory.skipped, trajectory.notes) == (["z is a link"], ["note"])
    assert (trajectory.stop_reason, trajectory.answer) == ("answered", "done")
    assert trajectory.usage.total_tokens == 24
    assert trajectory.usage.cost is None


def test_the_conversation_in_order() -> None:
    roles = [(message["role"], message.get("tool_call_id")) for message in Trajectory(whole_run()).messages()]
    assert roles == [
        ("system", None), ("user", None), ("assistant", None), ("tool", "a"), ("tool", "b"),
        ("assistant", None), ("user", None),
    ]  # fmt: skip


def test_live_and_loaded_are_the_same(tmp_path: Path) -> None:
    journal, live = Journal(tmp_path), Trajectory()
    for event in whole_run():
        live.add(event)
        if event.kind not in ev.TRANSIENT:
            journal.append(event)
    journal.close()
    loaded = Trajectory(read_journal(tmp_path))
    assert loaded.steps == live.steps
    assert loaded.events == live.events
    assert list(loaded.messages()) == list(live.messages())


def test_every_beginning_of_a_run_can_be_loaded_and_gone_on_with() -> None:
    events = [event for event in whole_run() if event.kind not in ev.TRANSIENT]
    for length in range(len(events) + 1):
        check_messages(list(Trajectory(events[:length]).messages(answer_open=True)))
    cut = list(Trajectory(events[:8]).messages(answer_open=True))
    assert [message["content"] for message in cut[-2:]] == [NOT_ANSWERED] * 2


def test_live_output_is_bounded_and_gives_way_to_the_result() -> None:
    trajectory = Trajectory([reply(1, "a"), *call(1, "a")[:2]])
    for _ in range(100):
        trajectory.add(ev.CallOutput(call_id="a", stream="stdout", text="x" * 10_000))
    running = trajectory.steps[0].calls[0]
    assert len(running.output) == Call.LIVE_LIMIT
    assert not running.finished
    trajectory.add(call(1, "a")[-1])
    assert running.output == "seen a"
    assert running.exit_code == 0


def test_cost_is_null_when_one_part_is_not_known() -> None:
    known, unknown = ev.Usage(cost=0.5), ev.Usage()
    assert (known + known).cost == 1.0
    assert (known + unknown).cost is None
    assert Trajectory().usage.cost == 0.0


def test_known_costs_of_all_branches_are_summed_although_one_is_not_known() -> None:
    one, two, three = (reply(step).model_copy(update={"id": name}) for step, name in enumerate("abc", 1))
    one.usage, three.usage, three.parent = ev.Usage(cost=0.5), ev.Usage(cost=0.25), "a"
    trajectory = Trajectory([one, two, three])
    assert (trajectory.known_cost, trajectory.total_usage.cost) == (0.75, None)
    assert trajectory.at("a").known_cost == 0.75


def test_messages_of_a_stranger_may_lack_every_field() -> None:
    said = ev.MessageAdded(message={}), ev.ModelReplied(step=1, message={"role": "tool"})
    shown = ev.CallDecided(step=1, call_id="c", action="observe", observation="x")
    trajectory = Trajectory([*said, shown])
    assert list(trajectory.messages()) == [{}, {"role": "tool"}]


@pytest.mark.parametrize(
    "calls",
    [
        [1], [{}], 7, {"a": 1}, [{"id": "b"}], [{"id": "b", "function": 3}],
        [{"id": [], "function": {"name": "submit", "arguments": "{}"}}],
        [{"id": "b", "function": {"name": "submit", "arguments": {}}}],
    ],
)  # fmt: skip
def test_malformed_calls_of_a_stranger_are_not_sent_to_a_model(calls: Any) -> None:
    sound = {"id": "a", "type": "function", "function": {"name": "submit", "arguments": "{}"}}
    said = {"role": "assistant", "content": "Done."}

    def sent(calls: Any) -> list[dict[str, Any]]:
        reply = ev.ModelReplied(step=1, message={**said, "tool_calls": calls})
        return list(Trajectory([reply]).messages(answer_open=True))

    assert sent(calls) == [said]
    if isinstance(calls, list):
        assert sent([*calls, sound]) == sent([sound])
        assert sent([sound])[0] == {**said, "tool_calls": [sound]}
