"""The fold: events in, a trajectory of steps out. One event at a time, constant work for each but a rewind.

Events form a tree. A trajectory shows the branch of HEAD, the one that goes on; `branches` names the others, and
`at` shows one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.tree import Branch, Tree

NOT_ANSWERED = "There is no result: the run ended while this call was under way."


@dataclass
class Call:
    """One tool call: what was proposed, what was executed, what came back."""

    id: str
    tool: str
    raw_arguments: str
    arguments: dict[str, Any] | None = None
    """As executed; as proposed until then."""
    started: float | None = None
    live_output: str = ""
    """Output so far, last part only, while the call is under way."""
    result: ev.CallFinished | None = None
    decisions: list[ev.CallDecided] = field(default_factory=list)
    """What a person decided when it was held."""

    LIVE_LIMIT = 64 * 1024

    @property
    def finished(self) -> bool:
        """Whether the one result is there."""
        return self.result is not None

    @property
    def output(self) -> str:
        """What the model was shown, or the output so far."""
        return self.result.observation if self.result else self.live_output

    @property
    def exit_code(self) -> int | None:
        """Of `execute_bash`, when it ended by itself."""
        return self.result.exit_code if self.result else None

    @property
    def changes(self) -> list[ev.FileDiff]:
        """Files the call changed."""
        return self.result.changes if self.result else []


@dataclass
class Step:
    """One reply of the model and what came of it. Steps count from 1."""

    number: int
    thought: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    usage: ev.Usage | None = None
    model_time: float = 0.0
    finish_reason: str | None = None
    nudge: str = ""
    """What a reply without any call was answered with."""
    replied: bool = False
    failures: list[ev.ModelFailed] = field(default_factory=list)
    artifacts: list[ev.ArtifactSaved] = field(default_factory=list)
    checkpoint: ev.Checkpointed | None = None
    """The files as they are kept after it; None when it changed none, or they are not kept."""


class Trajectory:
    """A run as far as it has come. Feed it events with `add`; loaded and live runs look the same.

    All but `events`, `spent`, `start` and `sandbox` is about the branch of HEAD.

    >>> trajectory = Trajectory(read_journal(path))
    >>> trajectory.steps[0].calls[0].output
    """

    def __init__(self, events: Iterable[ev.Event] = ()) -> None:
        self.events: list[ev.Event] = []
        """All that were written, in their order, of every branch."""
        self.start: ev.RunStarted | None = None
        self.sandbox: ev.SandboxReady | None = None
        self.spent = ev.Usage(cost=0.0)
        """Tokens and money of all branches together."""
        self.forks: list[ev.Forked] = []
        """Runs that began from this one."""
        self.rewinds: list[ev.Rewound] = []
        self._tree = Tree()
        self._head: str | None = None
        self._begin()
        for event in events:
            self.add(event)

    def _begin(self) -> None:
        """No event of the branch was seen yet."""
        self.path: list[ev.Event] = []
        """The events of the branch."""
        self.finish: ev.RunFinished | None = None
        self.steps: list[Step] = []
        self.artifacts: dict[str, ev.ArtifactSaved] = {}
        self.skipped: list[str] = []
        self.notes: list[str] = []
        self.controls: list[ev.Controlled] = []
        self.paused = False
        """Whether the run has halted and waits for a person."""
        self.held: ev.CallHeld | None = None
        """The call that waits for a person."""
        self.checkpoints: dict[int, ev.Checkpointed] = {}
        """The files as they are kept, by step; 0 is before the first call."""
        self.files: str | None = None
        """The newest checkpoint: the files that belong to HEAD."""
        self.uncovered: str | None = None
        """The event before the first call that was executed after that checkpoint; None when there is none.

        What such a call did to the files is not kept. A run whose sandbox is gone goes on from that event, so
        that talk and files agree.
        """
        self.changed: list[ev.SettingsChanged] = []
        self.usage = ev.Usage(cost=0.0)
        self._calls: dict[str, Call] = {}
        self._by_number: dict[int, Step] = {}

    @property
    def head(self) -> str | None:
        """Id of the event that the next one follows: the last one, or the one that the run went back to."""
        return self._head

    @property
    def branches(self) -> list[Branch]:
        """All branches, in the order of their last events; one of them is that of HEAD."""
        return self._tree.branches(self._head)

    def at(self, event: str) -> Trajectory:
        """The trajectory as it was at an event of any branch: what that branch did up to there.

        Raises:
            KeyError: there is no such event.
        """
        if event not in self._tree:
            raise KeyError(event)
        other = Trajectory()
        for one in self._tree.path(event):
            other._take(one, other._head)
        other.spent = self.spent
        return other

    def parent(self, event: str) -> str | None:
        """Id of the event that `event` follows."""
        return self._tree.parent(event)

    def step_at(self, event: str | None) -> int:
        """The number of the step under way, or just done, at an event; 0 before the first."""
        return self._tree.step(event)

    @property
    def stop_reason(self) -> str | None:
        """Why the run ended; None while it runs or when it was killed."""
        return self.finish.stop_reason if self.finish else None

    @property
    def answer(self) -> str | None:
        """The final answer, when there is one."""
        return self.finish.answer if self.finish else None

    def add(self, event: ev.Event) -> None:
        """Take one more event into account."""
        if event.kind in ev.TRANSIENT:
            self._apply(event)
            return
        parent = self._head if event.parent is None or event.parent not in self._tree else event.parent
        if parent != self._head:
            self._go_to(parent)
        self._take(event, parent)
        match event:
            case ev.ModelReplied():
                self.spent = self.spent + (event.usage or ev.Usage())
            case ev.Forked():
                self.forks.append(event)
            case ev.Rewound():
                self.rewinds.append(event)
                if event.what != "files" and event.to in self._tree:
                    files = event.target if event.what == "both" else event.safety or self.files
                    self._go_to(event.to)
                    self.files, self.uncovered = files or self.files, None

    def _take(self, event: ev.Event, parent: str | None) -> None:
        if isinstance(event, ev.CallStarted) and event.tool != "submit" and self.uncovered is None:
            self.uncovered = parent
        self.events.append(event)
        self._tree.add(event, parent)
        self._head = event.id
        self.path.append(event)
        self._apply(event)

    def _go_to(self, event: str | None) -> None:
        """HEAD is at `event` now: what its branch did up to there, and nothing of what came after."""
        path = self._tree.path(event)
        self._begin()
        self._head = event
        for one in path:
            if isinstance(one, ev.CallStarted) and one.tool != "submit" and self.uncovered is None:
                self.uncovered = self._tree.parent(one.id)
            self.path.append(one)
            self._apply(one)
        self.paused, self.held = False, None

    def _apply(self, event: ev.Event) -> None:
        match event:
            case ev.RunStarted():
                self.start = event
            case ev.SandboxReady():
                self.sandbox = event
            case ev.ModelRequested() | ev.ModelDelta() | ev.ModelFailed() | ev.ModelReplied():
                self._add_model(self._step(event.step), event)
            case ev.CallProposed() | ev.CallStarted() | ev.CallOutput() | ev.CallFinished():
                self._add_call(event)
            case ev.CallHeld() | ev.CallDecided() | ev.SettingsChanged():
                self._add_decision(event)
            case ev.Checkpointed() | ev.RewindStarted() | ev.Rewound():
                self._add_files(event)
            case ev.MessageAdded() if self.steps:
                self.steps[-1].nudge = message_text(event.message)
            case ev.ArtifactSaved():
                self.artifacts[event.path] = event
                if event.step in self._by_number:  # else one of a branch that was left meanwhile
                    self._by_number[event.step].artifacts.append(event)
            case ev.ArtifactRemoved():
                self.artifacts.pop(event.path, None)
            case ev.ArtifactSkipped():
                self.skipped.append(event.reason)
            case ev.Noted():
                self.notes.append(event.text)
            case ev.Controlled():
                self.controls.append(event)
                self.paused = event.action == "paused" or (self.paused and event.action == "say")
                self.held = self.held if event.action in ("pause", "paused", "say") else None
            case ev.Continued():
                self.finish = None
            case ev.RunFinished():
                self.finish = event
                self.paused, self.held = False, None

    def messages(self, *, answer_open: bool = False) -> Iterator[dict[str, Any]]:
        """The conversation exactly as the model saw it, rebuilt from the events.

        When the run was killed amid a step, its last reply may have calls without results; `answer_open`
        gives each of them one that says so, after which the conversation can be sent again.
        """
        unanswered: list[str] = []
        said: list[dict[str, Any]] = []
        for event in self.path:
            match event:
                case ev.MessageAdded():
                    said.append(event.message)
                case ev.ModelReplied():
                    unanswered = [call["id"] for call in event.message.get("tool_calls") or ()]
                    said.append(event.message)
                case ev.CallFinished():
                    unanswered = [id for id in unanswered if id != event.call_id]
                    said.append(tool_message(event.call_id, event.observation))
                case ev.CallDecided(action="observe", observation=str() as shown):
                    _show_instead(said, event.call_id, shown)
        yield from said
        if answer_open:
            yield from (tool_message(id, NOT_ANSWERED) for id in unanswered)

    def _step(self, number: int) -> Step:
        if number not in self._by_number:
            self._by_number[number] = Step(number)
            self.steps.append(self._by_number[number])
        return self._by_number[number]

    def _add_model(
        self, step: Step, event: ev.ModelRequested | ev.ModelDelta | ev.ModelFailed | ev.ModelReplied
    ) -> None:
        match event:
            case ev.ModelRequested():
                self.held = None
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
            return  # of a branch that was left meanwhile
        call = self._calls[event.call_id]
        match event:
            case ev.CallStarted():
                call.tool, call.arguments, call.started = event.tool, event.arguments, event.time
                self.held = None
            case ev.CallOutput():
                call.live_output = (call.live_output + event.text)[-Call.LIVE_LIMIT :]
            case ev.CallFinished():
                call.result, call.live_output = event, ""

    def _add_decision(self, event: ev.CallHeld | ev.CallDecided | ev.SettingsChanged) -> None:
        match event:
            case ev.CallHeld():
                self.held = event
            case ev.CallDecided() if event.call_id in self._calls:
                call = self._calls[event.call_id]
                call.decisions.append(event)
                self.paused, self.held = False, None
                if event.action == "observe" and event.observation is not None and call.result:
                    call.result = call.result.model_copy(update={"observation": event.observation})
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


def _show_instead(messages: list[dict[str, Any]], call_id: str, observation: str) -> None:
    """A person had the model shown another observation of a call."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].get("tool_call_id") == call_id:
            messages[index] = tool_message(call_id, observation)
            return


def tool_message(call_id: str, observation: str) -> dict[str, Any]:
    """The message that answers one tool call."""
    return {"role": "tool", "tool_call_id": call_id, "content": observation}


def message_text(message: dict[str, Any]) -> str:
    """The plain text of a message whose content is a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or () if isinstance(part, dict))
