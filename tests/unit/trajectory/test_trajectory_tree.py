"""The tree of a journal: HEAD, branches, places to go back to, and the files that belong to them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from card_runs import run_events
from hypothesis import given
from hypothesis import strategies as st

from llm_sandbox_nb.runs.rewind_points import before_calls, end_of_step, files_after
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory


class Story:
    """Events with the parents that a recorder gives them."""

    def __init__(self) -> None:
        self.run = Trajectory()
        self._checkpoints = itertools.count()

    def add(self, *events: ev.Event) -> None:
        for event in events:
            if event.kind not in ev.TRANSIENT:
                event.parent = self.run.head
            self.run.add(event)

    def steps(self, first: int, last: int, **more: Any) -> Story:
        for event in run_events(last, **more):
            number = getattr(event, "step", 0)
            started = self.run.start is not None
            if isinstance(event, ev.RunFinished) or (started and not first <= number):
                continue
            self.add(event)
            if isinstance(event, ev.CallFinished):
                self.add(ev.Checkpointed(step=number, checkpoint=f"c{next(self._checkpoints)}"))
        return self

    def rewind(
        self, step: int, what: Any = "both", undo_of: str | None = None, to: str | None = None
    ) -> ev.Rewound:
        facts: dict[str, Any] = {"to": to or end_of_step(self.run, step), "step": step, "what": what}
        facts |= {"target": files_after(self.run, step), "safety": "safe"}
        self.add(ev.RewindStarted(**facts))
        self.add(done := ev.Rewound(**facts, undo_of=undo_of))
        return done


def test_a_rewind_takes_the_steps_away_and_keeps_them_as_a_branch() -> None:
    story = Story().steps(1, 4)
    before = [event.id for event in story.run.path]
    story.rewind(2)
    assert [step.number for step in story.run.steps] == [1, 2]
    assert story.run.files == "c1"
    [old, now] = story.run.branches
    assert (old.head, old.step, old.steps, now.head, now.steps) == (False, 2, 4, True, 2)
    assert [event.id for event in story.run.at(old.tip).path] == before
    story.steps(3, 3)
    assert [step.number for step in story.run.steps] == [1, 2, 3]
    assert [branch.head for branch in story.run.branches] == [False, True]
    assert len(list(story.run.messages())) == 6


def test_a_rewind_that_did_not_end_did_not_happen() -> None:
    story = Story().steps(1, 3)
    story.add(ev.RewindStarted(to=end_of_step(story.run, 1), step=1, target="c0", safety="safe"))
    assert [step.number for step in story.run.steps] == [1, 2, 3]
    assert story.run.files == "safe"
    assert [branch.head for branch in story.run.branches] == [True]


def test_only_files_or_only_the_conversation() -> None:
    story = Story().steps(1, 3)
    story.rewind(1, "files")
    assert (len(story.run.steps), story.run.files, len(story.run.branches)) == (3, "c0", 1)
    story.rewind(1, "conversation")
    assert (len(story.run.steps), story.run.files) == (1, "safe")


def test_the_files_of_a_step_are_those_at_its_end() -> None:
    """A later rewind of only the files or the conversation does not change them."""
    story = Story().steps(1, 3)
    story.rewind(1, "files")
    assert files_after(story.run, 3) == "c2"
    assert files_after(story.run, 3, before_next=True) == "c0"
    story.rewind(2, "conversation")
    story.add(ev.Checkpointed(step=2, checkpoint="safe", after_step="c1"))
    assert (story.run.files, files_after(story.run, 2), files_after(story.run, 1)) == ("safe", "c1", "c0")
    assert files_after(story.run, 2, before_next=True) == "safe"
    story.steps(3, 3)
    assert [files_after(story.run, step) for step in (1, 2, 3)] == ["c0", "c1", "c3"]


@pytest.mark.parametrize(("kept", "found"), [("c9", "c9"), ("", None)])
def test_a_checkpoint_that_is_only_on_the_left_attempt_is_named_on_this_one(
    kept: str, found: str | None
) -> None:
    story = Story().steps(1, 1)
    carried = ev.Checkpointed(step=2, checkpoint="later", after_step=kept)
    for event in run_events(2):
        if getattr(event, "step", 0) == 2:
            story.add(event)
    story.add(carried)
    assert (files_after(story.run, 2), files_after(story.run, 1)) == (found, "c0")


def test_undo_leaves_no_branch_of_its_own() -> None:
    story = Story().steps(1, 3)
    head = story.run.head
    back = story.rewind(1)
    story.rewind(3, undo_of=back.id, to=head)
    assert [branch.head for branch in story.run.branches] == [True]
    assert story.run.head == head


def test_a_call_after_the_newest_checkpoint_is_not_covered() -> None:
    story = Story().steps(1, 2)
    assert story.run.uncovered is None
    proposed = ev.CallProposed(step=3, call_id="x", tool="execute_bash", raw_arguments="{}")
    story.add(ev.ModelReplied(step=3, message={"role": "assistant"}), proposed)
    story.add(ev.CallStarted(step=3, call_id="x", tool="execute_bash", arguments={}))
    assert story.run.uncovered == proposed.id
    story.add(ev.CallFinished(step=3, call_id="x", observation=""))
    assert story.run.uncovered == proposed.id
    assert files_after(story.run, 3) is None
    assert files_after(story.run, 2) == "c1"
    story.add(ev.Checkpointed(step=3, checkpoint="c2"))
    assert (story.run.uncovered, files_after(story.run, 3)) == (None, "c2")


def test_events_of_an_abandoned_future_change_nothing() -> None:
    story = Story().steps(1, 3)
    story.rewind(1)
    story.run.add(ev.CallOutput(call_id="call_3", stream="stdout", text="late"))
    assert [call.output for step in story.run.steps for call in step.calls] == ["out\n"]


def test_places_say_which_steps_there_are() -> None:
    story = Story().steps(1, 2)
    for step in (-1, 3, True, "1"):
        with pytest.raises(ValueError, match="0 to 2"):
            end_of_step(story.run, step)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="1 to 2"):
        before_calls(story.run, 0)
    assert story.run.at(before_calls(story.run, 2)).steps[1].calls[0].result is None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=12))
def test_any_travel_is_the_same_when_it_is_loaded(moves: list[tuple[bool, int]]) -> None:
    story = Story().steps(1, 2)
    for forth, number in moves:
        last = story.run.steps[-1].number if story.run.steps else 0
        if forth or not last:
            story.steps(last + 1, last + 1)
        else:
            story.rewind(number % (last + 1))
        loaded = Trajectory(story.run.events)
        assert (loaded.head, loaded.steps, loaded.files) == (story.run.head, story.run.steps, story.run.files)
        assert [event.id for event in loaded.path] == [event.id for event in story.run.path]
        branches = story.run.branches
        assert sum(branch.head for branch in branches) == 1
        numbers = [step.number for step in story.run.steps]
        assert numbers == list(range(1, len(numbers) + 1))
