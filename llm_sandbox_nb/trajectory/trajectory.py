"""The fold: events in, a trajectory of steps out. One event at a time, constant work for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from llm_sandbox_nb.trajectory import events as ev

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


class Trajectory:
    """A run as far as it has come. Feed it events with `add`; loaded and live runs look the same.

    >>> trajectory = Trajectory(read_journal(path))
    >>> trajectory.steps[0].calls[0].output
    """

    def __init__(self, events: Iterable[ev.Event] = ()) -> None:
        self.events: list[ev.Event] = []
        self.start: ev.RunStarted | None = None
        self.sandbox: ev.SandboxReady | None = None
        self.finish: ev.RunFinished | None = None
        self.steps: list[Step] = []
        self.artifacts: dict[str, ev.ArtifactSaved] = {}
        self.skipped: list[str] = []
        self.notes: list[str] = []
        self.controls: list[ev.Controlled] = []
        self.paused = False
        """Whether the run has halted and waits for a person."""
        self.usage = ev.Usage(cost=0.0)
        self._calls: dict[str, Call] = {}
        self._by_number: dict[int, Step] = {}
        for event in events:
            self.add(event)

    @property
    def head(self) -> str | None:
        """Id of the last written event: the parent of the next."""
        return self.events[-1].id if self.events else None

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
        if event.kind not in ev.TRANSIENT:
            self.events.append(event)
        match event:
            case ev.RunStarted():
                self.start = event
            case ev.SandboxReady():
                self.sandbox = event
            case ev.ModelRequested() | ev.ModelDelta() | ev.ModelFailed() | ev.ModelReplied():
                self._add_model(self._step(event.step), event)
            case ev.CallProposed() | ev.CallStarted() | ev.CallOutput() | ev.CallFinished():
                self._add_call(event)
            case ev.MessageAdded() if self.steps:
                self.steps[-1].nudge = message_text(event.message)
            case ev.ArtifactSaved():
                self.artifacts[event.path] = event
                if event.step is not None:
                    self._step(event.step).artifacts.append(event)
            case ev.ArtifactRemoved():
                self.artifacts.pop(event.path, None)
            case ev.ArtifactSkipped():
                self.skipped.append(event.reason)
            case ev.Noted():
                self.notes.append(event.text)
            case ev.Controlled():
                self.controls.append(event)
                self.paused = event.action == "paused" or (self.paused and event.action == "say")
            case ev.RunFinished():
                self.finish = event
                self.paused = False

    def messages(self, *, answer_open: bool = False) -> Iterator[dict[str, Any]]:
        """The conversation exactly as the model saw it, rebuilt from the events.

        When the run was killed amid a step, its last reply may have calls without results; `answer_open`
        gives each of them one that says so, after which the conversation can be sent again.
        """
        unanswered: list[str] = []
        for event in self.events:
            match event:
                case ev.MessageAdded():
                    yield event.message
                case ev.ModelReplied():
                    unanswered = [call["id"] for call in event.message.get("tool_calls") or ()]
                    yield event.message
                case ev.CallFinished():
                    unanswered = [id for id in unanswered if id != event.call_id]
                    yield tool_message(event.call_id, event.observation)
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
        call = self._calls[event.call_id]
        match event:
            case ev.CallStarted():
                call.tool, call.arguments, call.started = event.tool, event.arguments, event.time
            case ev.CallOutput():
                call.live_output = (call.live_output + event.text)[-Call.LIVE_LIMIT :]
            case ev.CallFinished():
                call.result, call.live_output = event, ""


def tool_message(call_id: str, observation: str) -> dict[str, Any]:
    """The message that answers one tool call."""
    return {"role": "tool", "tool_call_id": call_id, "content": observation}


def message_text(message: dict[str, Any]) -> str:
    """The plain text of a message whose content is a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or () if isinstance(part, dict))
