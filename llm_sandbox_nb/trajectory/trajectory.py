"""The trajectory: the steps of a run, built from its events. Adding an event takes constant time, except for a rewind.

Events form a tree. A trajectory shows the branch of HEAD, which new events extend. `branches` lists all branches, and
`at` returns the trajectory of another branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.branches import Branch, Tree
from llm_sandbox_nb.trajectory.journal import JournalError
from llm_sandbox_nb.trajectory.messages import (
    add_message,
    add_result,
    call_ids,
    message_text,
    reduced_messages,
    show_instead,
    tool_message,
    without_malformed_calls,
)
from llm_sandbox_nb.trajectory.state import RunState, Status

MAX_REREAD_EVENTS = 3_000_000
"""Maximum number of events that are read again because of rewinds and changes of branch. Without it, a hostile record
could keep a reader busy for hours."""
_LINE_EVENTS = (
    ev.ModelRequested, ev.ModelDelta, ev.ModelFailed, ev.ModelReplied,
    ev.CallProposed, ev.CallStarted, ev.CallFinished, ev.CallDecided, ev.ArtifactSaved, ev.ContextReduced,
)  # fmt: skip
"""Events that can change the summary line of a step."""
NOT_ANSWERED = "There is no result: the run ended while this call was executed."


def with_doubts(known: list[ev.Doubt], new: list[ev.Doubt]) -> list[ev.Doubt]:
    """Merge new doubts into the known ones. A new doubt replaces a known doubt of the same step and rule."""
    replaced = {(doubt.rule, doubt.step) for doubt in new}
    return [*(doubt for doubt in known if (doubt.rule, doubt.step) not in replaced), *new]


@dataclass
class Call:
    """A tool call with its proposal, its execution and its result."""

    id: str
    tool: str
    raw_arguments: str
    arguments: dict[str, Any] | None = None
    """The executed arguments, or the proposed arguments if the call has not started."""
    started: float | None = None
    live_output: str = ""
    """The end of the output so far. Empty after the call has finished."""
    result: ev.CallFinished | None = None
    decisions: list[ev.CallDecided] = field(default_factory=list)
    """A person's decisions while the call was held."""

    LIVE_LIMIT = 64 * 1024

    @property
    def finished(self) -> bool:
        """True if the call has its result."""
        return self.result is not None

    @property
    def output(self) -> str:
        """The observation that is shown to the model, or the output so far if the call has not finished."""
        return self.result.observation if self.result else self.live_output

    @property
    def body(self) -> str:
        """The result without notes about remaining steps or a person's change, or the output so far."""
        return self.result.body if self.result else self.live_output

    @property
    def exit_code(self) -> int | None:
        """Exit code of the command. None for a killed command, and for calls of other tools."""
        return self.result.exit_code if self.result else None

    @property
    def changes(self) -> list[ev.FileDiff]:
        return self.result.changes if self.result else []


@dataclass
class Step:
    """A reply of the model and the results of its calls. Steps are numbered from 1."""

    number: int
    thought: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    usage: ev.Usage | None = None
    model_time: float = 0.0
    finish_reason: str | None = None
    nudge: str = ""
    """The newest message after the reply, such as the loop's request for a call after a reply without one."""
    replied: bool = False
    failures: list[ev.ModelFailed] = field(default_factory=list)
    artifacts: list[ev.ArtifactSaved] = field(default_factory=list)
    checkpoint: ev.Checkpointed | None = None
    """The checkpoint with the files after the step. None if the step changed no file, or if files are not stored."""
    connections: list[ev.ConnectionMade] = field(default_factory=list)
    reduced: ev.ContextReduced | None = None
    """The newest event that shortened the conversation for this step. None if the step has no such event."""
    line: ev.StepLine | None = None
    """The summary line that was recorded after the end of the step. None if no line was recorded yet, or if the step
    has changed since then."""


class ChangedByOthers(NamedTuple):
    """Changes of files between the checkpoints `before` and `after`, while the run executed no step."""

    before: str
    after: str
    runs: tuple[str, ...]
    """Tasks of the other runs that used the sandbox. Empty if a person or a background program made the changes."""


class Trajectory:
    """A run up to its newest event. `add` adds an event.

    All data belongs to the branch of HEAD, except for `events`, `start`, `sandbox`, `total_usage`, `known_cost`,
    `forks`, `rewinds`, `branches` and `changed_by_others()`.

    >>> trajectory = Trajectory(read_journal(path))
    >>> trajectory.steps[0].calls[0].output
    """

    def __init__(self, events: Iterable[ev.Event] = ()) -> None:
        self.events: list[ev.Event] = []
        """The written events of all branches, in the order in which they were written."""
        self.start: ev.RunStarted | None = None
        self.sandbox: ev.SandboxReady | None = None
        self.total_usage = ev.Usage(cost=0.0)
        """Tokens and cost of all branches together."""
        self.known_cost = 0.0
        """US dollars of all branches together, without the requests whose cost is not known."""
        self.forks: list[ev.Forked] = []
        """The forks of this run."""
        self.rewinds: list[ev.Rewound] = []
        self._by_others: dict[str, tuple[ChangedByOthers, ...]] = {}
        self._tree = Tree()
        self._read_again = 0
        self._head: str | None = None
        self._begin()
        for event in events:
            try:
                self.add(event)
            except (TypeError, ValueError, KeyError, AttributeError) as error:
                raise JournalError(
                    f"event {event.id!r:.80} has values of wrong types ({error!s:.200})"
                ) from error

    def _begin(self) -> None:
        """Set all fields that belong to the branch of HEAD to their initial values."""
        self.path: list[ev.Event] = []
        self.status = Status()
        self.reward: ev.Rewarded | None = None
        """The reward in training, if the run is a rollout."""
        self.checks: list[ev.Checked] = []
        """Checks of the result. The newest check is the last one."""
        self.steps: list[Step] = []
        self.artifacts: dict[str, ev.ArtifactSaved] = {}
        self.skipped: list[str] = []
        self.notes: list[str] = []
        self.connections: list[ev.ConnectionMade] = []
        """Allowed and refused connections out of the sandbox. Empty unless the sandbox's network is an allow-list."""
        self.controls: list[ev.Controlled] = []
        self.checkpoints: dict[int, ev.Checkpointed] = {}
        """Checkpoints by step number. The key 0 belongs to the files before the first call."""
        self.files: str | None = None
        """Id of the checkpoint with the files that belong to HEAD."""
        self.uncovered: str | None = None
        """Id of the event before the first call that followed the newest checkpoint. None if no call followed.

        File changes by calls after this event are not stored. A run whose sandbox is gone resumes from this event, so
        that conversation and files agree.
        """
        self.first_failure: int | None = None
        """Number of the first step in which a call failed. An interruption is not a failure."""
        self.changed_paths: set[str] = set()
        """Paths of the files that calls have changed, according to the record."""
        self.changed: list[ev.SettingsChanged] = []
        self.doubts: list[ev.Doubt] = []
        """The doubts that were recorded so far. These are all doubts if `doubts_final` is True."""
        self.doubts_final = False
        """True if `doubts` were recorded at the end of the run."""
        self.usage = ev.Usage(cost=0.0)
        self._calls: dict[str, Call] = {}
        self._by_number: dict[int, Step] = {}
        self._reduced: ev.ContextReduced | None = None
        """The newest event that shortened the conversation. Its step may have no other event yet."""

    @property
    def head(self) -> str | None:
        """Id of the event that the next event follows: the newest event, or the target of a rewind."""
        return self._head

    @property
    def finish(self) -> ev.RunFinished | None:
        """The event of the run's end. None for a running or killed run."""
        return self.status.finish

    @property
    def paused(self) -> bool:
        """True if the run is paused and waits for a person."""
        return self.status.paused

    @property
    def held(self) -> ev.CallHeld | None:
        """The event of the call that waits for a person. None if no call waits."""
        return self.status.held

    @property
    def ready_at(self) -> int | None:
        """The step from which a rewound run can continue. None if the run is running, has ended or was not rewound."""
        return self.status.ready_at

    def state(self, *, live: bool) -> RunState:
        """Return the state of the run in words. `live` is True if a process executes the run."""
        return self.status.run_state(live=live)

    @property
    def root(self) -> str:
        """The folder in which the run works. Empty if the folder was not recorded."""
        return (self.sandbox.root if self.sandbox else None) or ""

    @property
    def branches(self) -> list[Branch]:
        """All branches, in the order of their last events. Exactly one is the branch of HEAD."""
        return self._tree.branches(self._head)

    def at(self, event: str) -> Trajectory:
        """Return the trajectory up to an event. The event may be on any branch.

        Raises:
            KeyError: if there is no such event.
        """
        if event not in self._tree:
            raise KeyError(event)
        other = Trajectory()
        for ancestor in self._tree.path(event):
            if isinstance(ancestor, ev.Facts):
                other._add_facts(ancestor)
            else:
                other._take(ancestor, other._head)
        other.total_usage, other.known_cost = self.total_usage, self.known_cost
        other._by_others = self._by_others
        return other

    def changed_by_others(self, checkpoint: str) -> tuple[ChangedByOthers, ...]:
        """Return the changes by others up to a checkpoint, oldest first. The checkpoint may be on any branch."""
        return self._by_others.get(checkpoint, ())

    def parent(self, event: str) -> str | None:
        """Return the id of the event before `event`."""
        return self._tree.parent(event)

    def step(self, number: int) -> Step | None:
        return self._by_number.get(number)

    def step_at(self, event: str | None) -> int:
        """Return the number of the step of an event. For an event between steps, return the previous step, or 0."""
        return self._tree.step(event)

    @property
    def seen_by_model(self) -> bool:
        """True if the model has received the whole history, or the run has ended. The history is then final."""
        last = next((event for event in reversed(self.path) if not isinstance(event, ev.Facts)), None)
        return isinstance(last, ev.ModelRequested | ev.ModelReplied | ev.RunFinished | ev.Checked)

    @property
    def model(self) -> str:
        """Name of the current model. A person may have changed the model during the run."""
        changed = [change.model for change in self.changed if change.model]
        return changed[-1] if changed else self.start.model if self.start else ""

    def context_limit(self, model: str) -> ev.ContextKnown | None:
        """Return the newest event with the context size of a model. None if the size is not known."""
        known = [event for event in self.path if isinstance(event, ev.ContextKnown) and event.model == model]
        return known[-1] if known else None

    def learned(self, model: str) -> dict[str, Any]:
        """Return the limits and quirks that were learned from a model's refusals; see `ModelFailed.learned`."""
        now, found = "", dict[str, Any]()
        for event in self.path:
            match event:
                case ev.RunStarted(model=str(name)) | ev.SettingsChanged(model=str(name)):
                    now = name
                case ev.ModelFailed(learned=learned) if learned and now == model:
                    found = learned
        return found

    @property
    def tool_calls(self) -> str | None:
        """The newest setting of `tool_calls`: `auto`, `native` or `text`. None if the setting was not recorded."""
        first = [self.start.settings] if self.start else []
        named = [
            settings["tool_calls"]
            for settings in (*first, *(change.settings for change in self.changed))
            if "tool_calls" in settings
        ]
        return str(named[-1]) if named else None

    @property
    def scripted(self) -> bool:
        """True if the replies are read from a script."""
        if self.start is None or self.model == self.start.model:
            return bool(self.start and self.start.scripted)
        return self.model.startswith("scripted/")

    @property
    def budget(self) -> float | None:
        """The newest cost limit in US dollars. None if the run has no cost limit."""
        first = [self.start.settings.get("limits")] if self.start else []
        limits = [*first, *(change.limits for change in self.changed)]
        named = [limit["cost"] for limit in limits if isinstance(limit, dict) and "cost" in limit]
        return named[-1] if named and isinstance(named[-1], int | float) else None

    @property
    def steps_done(self) -> int:
        """Number of steps with a reply of the model."""
        return len(self.steps) - sum(not step.replied for step in self.steps[-1:])

    @property
    def stop_reason(self) -> str | None:
        """Reason of the run's end. None for a running or killed run."""
        return self.finish.stop_reason if self.finish else None

    @property
    def has_ended(self) -> bool:
        """True if the run has ended at least once. The end may be on any branch."""
        return any(isinstance(event, ev.RunFinished) for event in self.events)

    @property
    def answer(self) -> str | None:
        """The final answer. None if the run has no answer."""
        return self.finish.answer if self.finish else None

    def add(self, event: ev.Event) -> None:
        if event.kind in ev.TRANSIENT:
            self._apply(event)
            return
        if isinstance(event, ev.Facts):
            self._add_facts(event)
            return
        parent = self._head if event.parent is None or event.parent not in self._tree else event.parent
        if parent != self._head:
            self._go_to(parent)
        if isinstance(event, ev.Checkpointed | ev.RewindStarted):
            self._follow_others(event)
        self._take(event, parent)
        match event:
            case ev.ModelReplied() | ev.ContextReduced(usage=ev.Usage()):
                used = event.usage or ev.Usage()
                self.total_usage = self.total_usage + used
                self.known_cost += used.cost or 0.0
            case ev.Forked():
                self.forks.append(event)
            case ev.Rewound():
                self.rewinds.append(event)
                if event.what != "files" and event.to in self._tree:
                    files = event.target if event.what == "both" else event.safety or self.files
                    self._go_to(event.to)
                    self.files, self.uncovered = files or self.files, None
                    self.status.rewind(self.step_at(event.to))

    def _add_facts(self, event: ev.Facts) -> None:
        """Add facts to all branches of their parent. Facts are not nodes of the tree, so HEAD does not move."""
        self.events.append(event)
        parent = self._head if event.parent is None or event.parent not in self._tree else event.parent
        self._tree.annotate(event, parent)
        if parent == self._head:
            self.path.append(event)
            self._apply(event)

    def _take(self, event: ev.Event, parent: str | None) -> None:
        if isinstance(event, ev.CallStarted) and event.tool != "submit" and self.uncovered is None:
            self.uncovered = parent
        self.events.append(event)
        self._tree.add(event, parent)
        self._head = event.id
        self.path.append(event)
        self._apply(event)

    def _follow_others(self, event: ev.Checkpointed | ev.RewindStarted) -> None:
        """Store the changes by others up to a new checkpoint, including the newest changes if no step has made them."""
        made = event.safety if isinstance(event, ev.RewindStarted) else event.checkpoint
        before = self.files
        if made is None or before is None or made == before or made in self._by_others:
            return
        known = self._by_others.get(before, ())
        if self.uncovered is None and (isinstance(event, ev.RewindStarted) or event.by_others):
            known = (*known, ChangedByOthers(before, made, tuple(event.other_runs)))
        if known:
            self._by_others[made] = known

    def _go_to(self, event: str | None) -> None:
        """Move HEAD to `event` and read its branch again from the beginning."""
        path = self._tree.path(event)
        self._read_again += len(path)
        if self._read_again > MAX_REREAD_EVENTS:
            raise JournalError(f"too many rewinds: more than {MAX_REREAD_EVENTS} events would be read again")
        self._begin()
        self._head = event
        for ancestor in path:
            if isinstance(ancestor, ev.CallStarted) and ancestor.tool != "submit" and self.uncovered is None:
                self.uncovered = self._tree.parent(ancestor.id)
            self.path.append(ancestor)
            self._apply(ancestor)
        self.status.rewind(None)

    def _apply(self, event: ev.Event) -> None:
        self.status.add(event)
        if self.doubts_final and isinstance(event, ev.ModelRequested | ev.Continued):
            self.doubts_final = False
        if isinstance(event, _LINE_EVENTS) and event.step is not None and event.step in self._by_number:
            self._by_number[event.step].line = None
        match event:
            case ev.RunStarted():
                self.start = event
                self.notes += filter(None, [event.later_version])
            case ev.SandboxReady():
                self.sandbox = event
            case ev.ModelRequested() | ev.ModelDelta() | ev.ModelFailed() | ev.ModelReplied():
                self._add_model(self._step(event.step), event)
            case ev.CallProposed() | ev.CallStarted() | ev.CallOutput() | ev.CallFinished():
                self._add_call(event)
            case ev.CallDecided() | ev.SettingsChanged():
                self._add_decision(event)
            case ev.Checkpointed() | ev.RewindStarted() | ev.Rewound():
                self._add_files(event)
            case ev.MessageAdded() if self.steps:
                self.steps[-1].nudge = message_text(event.message)
            case ev.ArtifactSaved():
                self.artifacts[event.path] = event
                if event.step in self._by_number:  # otherwise, the step is on an abandoned branch
                    self._by_number[event.step].artifacts.append(event)
            case ev.ArtifactRemoved():
                self.artifacts.pop(event.path, None)
            case ev.ArtifactSkipped():
                self.skipped.append(event.reason)
            case ev.ContextReduced():
                self.usage = self.usage + event.usage if event.usage else self.usage
                self._reduced = event
                if event.step in self._by_number:  # otherwise, `_step` adds the event to the new step
                    self._by_number[event.step].reduced = event
            case ev.ConnectionMade():
                self.connections.append(event)
                if event.step in self._by_number:
                    self._by_number[event.step].connections.append(event)
            case ev.Noted():
                self.notes.append(event.text)
            case ev.StepFacts() if event.step in self._by_number:
                self._by_number[event.step].line = event.line
            case ev.DoubtsFound():
                self.doubts = list(event.doubts) if event.final else with_doubts(self.doubts, event.doubts)
                self.doubts_final = event.final
            case ev.Controlled():
                self.controls.append(event)
            case ev.Rewarded():
                self.reward = event
            case ev.Checked():
                self.checks.append(event)

    def messages(self, *, answer_open: bool = False) -> Iterator[dict[str, Any]]:
        """Rebuild the conversation from the events, and yield its messages exactly as they are sent to the model.

        If the conversation was shortened for a small context, the messages have the shortened form, and `steps` have
        the complete texts. If the run was killed during a step, calls of the last reply may lack results. With
        `answer_open`, each of these calls gets a result with an explanation, so that the conversation can be sent
        again.
        """
        unanswered: list[str] = []
        messages: list[dict[str, Any]] = []
        in_text = False
        for event in self.path:
            match event:
                case ev.MessageAdded():
                    add_message(messages, event.message)
                case ev.ModelReplied():
                    unanswered = call_ids(event.message)
                    in_text = event.calls_from == "text" and not unanswered
                    messages.append(without_malformed_calls(event.message))
                case ev.CallFinished():
                    unanswered = [id for id in unanswered if id != event.call_id]
                    add_result(messages, event.call_id, event.observation, in_text=in_text)
                case ev.CallDecided(action="observe", observation=str() as shown):
                    show_instead(messages, event.call_id, shown)
                case ev.ContextReduced():
                    messages = reduced_messages(messages, event)
        yield from messages
        if answer_open:
            yield from (tool_message(id, NOT_ANSWERED) for id in unanswered)

    def _step(self, number: int) -> Step:
        if number not in self._by_number:
            reduced = self._reduced if self._reduced and self._reduced.step == number else None
            self._by_number[number] = Step(number, reduced=reduced)
            self.steps.append(self._by_number[number])
        return self._by_number[number]

    def _add_model(
        self, step: Step, event: ev.ModelRequested | ev.ModelDelta | ev.ModelFailed | ev.ModelReplied
    ) -> None:
        match event:
            case ev.ModelRequested():
                step.thought = step.reasoning = ""
            case ev.ModelDelta():
                step.thought += event.text
                step.reasoning += event.reasoning
            case ev.ModelFailed():
                step.failures.append(event)
            case ev.ModelReplied():
                step.thought = message_text(event.message)
                step.reasoning = event.reasoning or ""
                step.usage, step.model_time = event.usage, event.model_time
                step.finish_reason, step.replied = event.finish_reason, True
                self.usage = self.usage + (event.usage or ev.Usage())

    def _add_call(self, event: ev.CallProposed | ev.CallStarted | ev.CallOutput | ev.CallFinished) -> None:
        if isinstance(event, ev.CallProposed):
            call = Call(event.call_id, event.tool, event.raw_arguments, event.arguments)
            self._calls[event.call_id] = call
            self._step(event.step).calls.append(call)
            return
        if event.call_id not in self._calls:
            return  # the call is on an abandoned branch
        call = self._calls[event.call_id]
        match event:
            case ev.CallStarted():
                call.tool, call.arguments, call.started = event.tool, event.arguments, event.time
            case ev.CallOutput():
                call.live_output = (call.live_output + event.text)[-Call.LIVE_LIMIT :]
            case ev.CallFinished():
                call.result, call.live_output = event, ""
                self.changed_paths.update(change.path for change in event.changes)
                if event.failed and event.error != "interrupted" and self.first_failure is None:
                    self.first_failure = event.step

    def _add_decision(self, event: ev.CallDecided | ev.SettingsChanged) -> None:
        match event:
            case ev.CallDecided() if event.call_id in self._calls:
                call = self._calls[event.call_id]
                call.decisions.append(event)
                if event.action == "observe" and event.observation is not None and call.result:
                    shown = {"observation": event.observation, "before": "", "after": event.after}
                    call.result = call.result.model_copy(update=shown)
            case ev.SettingsChanged():
                self.changed.append(event)

    def _add_files(self, event: ev.Checkpointed | ev.RewindStarted | ev.Rewound) -> None:
        match event:
            case ev.Checkpointed():
                self.files, self.uncovered = event.checkpoint, None
                self.checkpoints[event.step or 0] = event
                if event.step in self._by_number:
                    self._by_number[event.step].checkpoint = event
            case ev.RewindStarted() if event.safety:
                self.files, self.uncovered = event.safety, None
            case ev.Rewound(what="files") if event.target:
                self.files, self.uncovered = event.target, None
