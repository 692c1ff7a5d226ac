"""The state of a run, with its words and the meaning of its colour, for card, terminal, lists and server.

`labextension/src/trajectory/status.ts` does the same for a run that a page watches. The cases in
tests/data/runs.json test both files.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal

from llm_sandbox_nb.formatting import (
    format_cost,
    format_count,
    format_duration,
    format_model_failure,
    sentence_case,
)
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.protection import ISOLATION_WORDS
from llm_sandbox_nb.trajectory.replay_outcome import replayed_run

Meaning = Literal["ok", "bad", "plain", "wait", "run", "away"]
"""Meaning of a colour. `ok`: a check passed. `bad`: a failure. `plain`: neutral. `wait`: the run waits for a person, or
was stopped. `run`: the run executes or can continue. `away`: the server or the kernel cannot be reached."""


class State(Enum):
    """State of a run. The parts of a value are `label`, `alone`, `together` and `meaning`."""

    STARTING = "starting", "Starting the sandbox", "Starting the sandbox ({})", "run"
    RUNNING = "running", "Running", "Running · step {}", "run"
    PAUSING = "pausing", "Pausing after this command", "", "run"
    PAUSED = "paused", "Paused", "", "wait"
    HELD = "held", "Waiting for you", "", "wait"
    READY = "ready", "Ready to continue", "Ready to continue from step {}", "run"
    CHECKING = "checking", "Checking the result", "", "run"
    CUT_OFF = "cut_off", "Cut off", "Cut off at step {}", "bad"
    SUBMITTED = "submitted", "Submitted", "", "plain"
    WITHOUT_ANSWER = "without_answer", "Submitted without an answer", "", "bad"
    ANSWERED = "answered", "Answered", "", "plain"
    NO_ANSWER = "no_answer", "No answer", "", "bad"
    REFUSED = "refused", "Refused", "", "bad"
    REPEATED = "repeated", "Stopped: the same call kept failing", "", "bad"
    REPLAYED = "replayed", "Replayed", "Replay of {}", "plain"
    INTERRUPTED = "interrupted", "Interrupted", "Stopped by {}", "wait"
    STEPS = "steps", "Step limit reached", "Step limit reached ({})", "bad"
    TOKENS = "tokens", "Conversation limit reached", "Conversation limit reached ({} tokens)", "bad"
    TOTAL_TOKENS = "total_tokens", "Token limit reached", "Token limit reached ({} in all)", "bad"
    CONTEXT = "context", "The model's context is full", "", "bad"
    COST = "cost", "Budget reached", "Budget reached ({})", "bad"
    TIME = "time", "Time limit reached", "Time limit reached ({})", "bad"
    MODEL_ERROR = "model_error", "Model error", "Model error: {}", "bad"
    SANDBOX_LOST = "sandbox_lost", "Sandbox lost", "", "bad"
    ERROR = "error", "Error", "", "bad"
    SERVER_AWAY = "server_away", "The server does not answer", "", "away"
    KERNEL_AWAY = "kernel_away", "The kernel is silent", "", "away"

    def __init__(self, label: str, alone: str, together: str, meaning: Meaning) -> None:
        self.label = label
        """Name in records, REST and TypeScript."""
        self.alone = alone
        """Text without a detail."""
        self.together = together
        """Text with a placeholder `{}` for a detail, such as a limit or a step number. Empty if there is no detail."""
        self.meaning = meaning


NOT_CHECKED: Final = "{}, not checked"
"""Words for the end of a run whose result was not checked."""
CHECKED: Final[dict[str, tuple[str, str, Meaning]]] = {
    "passed": ("{}, checked: {}", "{}, checked without protection: {}", "ok"),
    "failed": ("{}, check failed: {}", "{}, check failed: {}", "bad"),
    "score": ("{}, scored {}", "{}, scored {} without protection", "plain"),
    "text": ("{}, checked: {}", "{}, checked without protection: {}", "plain"),
    "error": ("{}, the check could not run: {}", "{}, the check could not run: {}", "bad"),
}
"""Maps the outcome of a check to three values: the words for the end of a run, the words if the model could have
changed the check, and the meaning of the colour."""
CHECK_LABELS: Final = {
    "passed": "Check passed",
    "failed": "Check failed",
    "score": "Score",
    "text": "Check",
    "error": "The check could not run",
}
"""Heading of a check by its outcome."""
UNPROTECTED: Final = (
    "This check can be tampered with: its isolation does not separate it from the model's programs."
)
"""Warning about a check that the model could have changed."""
CHECKED_ENDS: Final = ("submitted", "answered")
"""Stop reasons after which the result is checked. All other stop reasons mean that the work was not completed."""

_BY_LABEL = {state.label: state for state in State}


def state_words(state: str, detail: str = "") -> str:
    """Return the words for a state. For a state that this version does not know, return its name as words."""
    known = _BY_LABEL.get(state)
    if known is None:
        return sentence_case(state)
    return known.together.replace("{}", detail) if detail and known.together else known.alone


@dataclass(frozen=True)
class RunState:
    """The state of one run in words."""

    state: str
    """Label of a `State`, or a stop reason that only a later version knows."""
    words: str
    meaning: Meaning
    check: str = ""
    """`Verdict.outcome` of the check of the result. Empty if the result was not checked."""

    def to_json(self) -> dict[str, str]:
        return {"state": self.state, "words": self.words, "meaning": self.meaning, "check": self.check}


_STOPPERS = {
    "on_pause": "the rule for its pauses",
    "mcp": "the outside agent",
    "kernel": "the end of the kernel",
}
"""Words for the one who stopped a run, by the source of the stop. For all other sources, the word is `you`."""
_FAILED_REPLAY_ENDS = ("interrupted", "model_error", "sandbox_lost", "error")
"""Stop reasons of a failed replay. After any other stop reason, the replay has reached the end of the record."""
_RUN_NAME = re.compile(r"[0-9A-Za-z-]{1,80}")
_LIMITS: dict[str, Callable[[Any], str]] = {
    "steps": format_count,
    "tokens": format_count,
    "total_tokens": format_count,
    "time": format_duration,
    "cost": format_cost,
}


class Status:
    """State of a run, computed from the events of a branch. The events are not stored."""

    def __init__(self) -> None:
        self.step: int | None = None
        """Number of the last step that began. None before the first step."""
        self.finish: ev.RunFinished | None = None
        self.check: ev.Verdict | None = None
        """The verdict of the newest check. None if the result was not checked, or if the run has continued since."""
        self.checking = False
        """True while a check of the result runs."""
        self.paused = False
        """True if the run is paused and waits for a person."""
        self.pausing = False
        """True if a person asked for a pause and the run has not paused yet."""
        self.held: ev.CallHeld | None = None
        """The event of the call that waits for a person. None if no call waits."""
        self.ready_at: int | None = None
        """The step from which a rewound run, or a fork that has not begun, can continue. None for all other runs."""
        self._forked_at: ev.ForkedFrom | None = None
        """The parent of a fork. None if the run is not a fork."""
        self._isolation = ""
        """Displayed name of the isolation. Empty if the isolation is not known before the sandbox is open."""
        self._opened = False
        """True as soon as the sandbox is open. The first request to the model may be sent earlier."""
        self._stopped_by = ""
        """Words for the stopper of the run, such as a person or a rule. Empty if the run was not stopped."""
        self.replays: str | None = None
        """Id of the replayed run. None if this run is not a replay, or was resumed."""
        self._limits: dict[str, int | float] = {}
        self._failure = ""
        """Short name of the newest failure of the model in the last step. Empty if no request failed."""
        self._before: dict[str, Status] = {}
        """The status before each of the newest rewinds, by the id of the rewind."""

    def add(self, event: ev.Event) -> None:
        """Update the state with an event of the branch."""
        self._add(event)
        if self._forked_at and event.id == self._forked_at.event:
            self.rewind(self._forked_at.step)

    def _add(self, event: ev.Event) -> None:
        match event:
            case ev.RunStarted():
                self._set_limits(event.settings.get("limits"))
                self.replays = replayed_run(event)
                self._forked_at = event.forked_from
                self._isolation = ISOLATION_WORDS.get(str(event.settings.get("isolation")), "")
            case ev.SandboxReady():
                self._opened = True
            case ev.SettingsChanged():
                self._set_limits(event.limits)
            case (
                ev.ModelRequested()
                | ev.ModelReplied()
                | ev.ModelFailed()
                | ev.ModelDelta()
                | ev.CallProposed()
            ):
                self._add_to_step(event)
            case ev.CallHeld():
                self.held = event
            case ev.Controlled():
                self.paused = event.action == "paused" or (self.paused and event.action == "say")
                self.pausing = event.action == "pause" or (self.pausing and event.action == "say")
                self.held = self.held if event.action in ("pause", "paused", "say") else None
                if event.action == "stop":
                    self._stopped_by = _STOPPERS.get(event.source, "you")
            case ev.CallDecided():
                self.paused, self.held = False, None
            case ev.CallStarted():
                self.paused, self.held, self.ready_at = False, None, None
            case ev.CheckStarted():
                self.checking, self.check = True, None
            case ev.Checked():
                self.checking, self.check = False, event.verdict
            case ev.Continued():
                self.finish, self._stopped_by, self.replays, self.check = None, "", None, None
                self._clear()
            case ev.RunFinished():
                self.finish, self.check = event, event.check
                self._clear()

    @staticmethod
    def needs_all(finish: ev.RunFinished) -> bool:
        """Return True if the words for `finish` also depend on events between start and end, such as changed limits."""
        others = (State.MODEL_ERROR.label, State.INTERRUPTED.label)
        return finish.stop_reason in _LIMITS or finish.stop_reason in others

    def rewind(self, step: int | None) -> None:
        """Update the state after HEAD has moved. `step` is the target of a rewind, or None after a change of branch."""
        self._clear()
        self.ready_at = None if self.finish else step
        self.check = self.check if self.finish else None

    def follow(self, event: ev.Event) -> None:
        """Update the state with the next event. Unlike `add`, this method handles rewinds and undos."""
        self.add(event)
        if not isinstance(event, ev.Rewound) or event.what == "files":
            return
        self._before = {**dict(list(self._before.items())[-9:]), event.id: copy.copy(self)}
        if event.undo_of in self._before:
            known = self._before
            self.__dict__.update(self._before[event.undo_of].__dict__, _before=known)
        else:
            self.finish, self.step, self._failure = None, event.step or None, ""
        self.rewind(event.step)

    def run_state(self, *, live: bool, away: State | None = None) -> RunState:
        """Return the state in words.

        Args:
            live: True if a process executes the run.
            away: the state for a server or a kernel that cannot be reached at this moment.
        """
        last = "" if self.step is None else str(self.step)
        if self.finish:
            return self._ending(self.finish)
        if not live:
            return _in_words(State.CUT_OFF if self.ready_at is None else State.READY, last)
        if away:
            return _in_words(away)
        if self.held:
            return _in_words(State.HELD)
        if self.paused:
            return _in_words(State.PAUSED)
        if self.pausing:
            return _in_words(State.PAUSING)
        if self.checking:
            return _in_words(State.CHECKING)
        if not self._opened and self.step is None:
            return _in_words(State.STARTING, self._isolation)
        return _in_words(State.RUNNING, last)

    def _ending(self, finish: ev.RunFinished) -> RunState:
        reason: str = finish.stop_reason
        if self.replays and reason not in _FAILED_REPLAY_ENDS:
            name = self.replays if _RUN_NAME.fullmatch(self.replays) else ""
            found = _in_words(State.REPLAYED, name.rpartition("-")[2])
            return _checked(found, self.check) if self.check and reason in CHECKED_ENDS else found
        if reason in CHECKED_ENDS and (self.check or not finish.without_answer):
            return _checked(_in_words(_BY_LABEL[reason]), self.check)
        if finish.without_answer:
            reason = State.WITHOUT_ANSWER.label
        # the model's context was full: the conversation did not reach a limit of the run
        elif reason == State.TOKENS.label and finish.error:
            reason = State.CONTEXT.label
        detail = format_model_failure(self._failure) if reason == State.MODEL_ERROR.label else ""
        detail = self._stopped_by if reason == State.INTERRUPTED.label else detail
        if reason in self._limits and reason in _LIMITS:
            detail = _LIMITS[reason](self._limits[reason])
        known = _BY_LABEL.get(reason)
        return RunState(reason, state_words(reason, detail), known.meaning if known else "bad")

    def _add_to_step(
        self, event: ev.ModelRequested | ev.ModelReplied | ev.ModelFailed | ev.ModelDelta | ev.CallProposed
    ) -> None:
        if event.step != self.step:
            self.step, self._failure = event.step, ""
        if isinstance(event, ev.ModelFailed):
            self._failure = event.error
        elif isinstance(event, ev.ModelRequested):
            self.paused, self.held, self.ready_at = False, None, None
            self.check, self.checking = None, False

    def _set_limits(self, limits: Any) -> None:
        if isinstance(limits, dict):
            numbers = {
                name: value
                for name, value in limits.items()
                if name in _LIMITS and isinstance(value, int | float) and not isinstance(value, bool)
            }
            self._limits = {**self._limits, **numbers}

    def _clear(self) -> None:
        self.paused, self.pausing, self.held, self.ready_at = False, False, None, None
        self.checking = False


def _in_words(state: State, detail: str = "") -> RunState:
    return RunState(state.label, state_words(state.label, detail), state.meaning)


def _checked(end: RunState, check: ev.Verdict | None) -> RunState:
    """Return the state of an end with the verdict of the check."""
    if check is None:
        return dataclasses.replace(end, words=NOT_CHECKED.format(end.words))
    known = CHECKED.get(check.outcome)
    if known is None:  # an outcome of a later version
        return dataclasses.replace(end, check=check.outcome)
    protected, unprotected, meaning = known
    words = (protected if check.protected else unprotected).format(end.words, check.summary)
    return RunState(end.state, words, meaning, check.outcome)
