"""State machine of a run that a person controls: pause, resume, step, change a call, send a message, rewind, stop.

A run executes in one event loop. Decisions about the run arrive from any thread, such as that of a magic, the panel,
REST, `on_pause` or a program. Two rules separate the caller's thread from the event loop:

1. `RunControl._decide` runs in the caller's thread. It refuses a decision with ControlError, or accepts the decision.
   If the accepted decision releases a held call, a second decision about this call is refused.
2. `RunControl._apply` runs in the event loop of the run. It records the decision as an event and applies it. A decision
   takes effect nowhere else. `EFFECTS` lists the effects of each decision.

A pause does not suspend a running command or a reply. The run pauses at the next of three places at which it checks
its state:

    before a request            `wait_while_paused`     waits for resume or step
    before a call               `PausePoints`, `hold`   waits for resume, step, edit or skip: the call is held
    before an observation       `PausePoints`, `hold`   waits for resume, step or observe: the observation is held

A stop and a rewind interrupt the run at any point. The time limit excludes pauses.

The state has two parts. The first part is the mode, which the person sets. In every mode, `PauseRules` can hold calls.

    mode         decision that leads here     where the run pauses
    running      resume                       nowhere
    stepping     step                         at the next call or observation
    pausing      pause, a rewind              at the next of the three places
    stopped      stop                         the run ends; later decisions are ignored, except the end of the kernel

The second part is the phase, which determines the handling of a decision.

    phase        from                         decisions
    early        construction                 wait in `_early`; `begin` applies them in order
    begun        `begin`                      are passed to the event loop of the run
    over         `close`                      are refused

Two cases need care. First, `_apply` runs later than `_decide`, and meanwhile the run may hold another call, which the
decision must not release. So a decision names the held call that it is about (`Decision.hold`). Second, a person may
`resume` a run that holds no call. Before this decision is applied, the run may hold a call because of a step or a
pause. Then the `resume` releases this call too. Otherwise, the run would pause after the person let it continue. A call
that is held by a breakpoint or for an approval stays held, because the person has not seen this call.

A new kind of decision needs a row in `EFFECTS`, a method of `RunControl`, and a class in `trajectory/decisions.py`
with the method's name and arguments, which `frontends.decide` calls.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from llm_sandbox_nb.agent.control.decisions import (
    Action,
    Decision,
    Held,
    Release,
    denied,
    edited,
    given_text,
    shown,
)
from llm_sandbox_nb.agent.control.pause_rules import Moment, PauseRules, Reason
from llm_sandbox_nb.agent.control.settings_change import Changer
from llm_sandbox_nb.agent.errors import ControlError, InputError
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.run_limits import Meter, RunLimits
from llm_sandbox_nb.agent.tools.arguments import ArgumentsError, parse_arguments
from llm_sandbox_nb.agent.tools.toolbox import Toolbox
from llm_sandbox_nb.model.contract import Model, ModelSettings, ToolCall
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.trajectory import events as ev

Emit = Callable[[ev.Event], None]
PauseCallback = Callable[[], Awaitable[object]]
"""Function that is awaited when the run pauses, and cancelled when the run continues."""
T = TypeVar("T")
Move = Callable[[Recorder, Sandbox], Awaitable[T]]
"""Function that rewinds a run. Its arguments are the recorder and the sandbox of the run."""
ReplaceObservation = Callable[[Decision], ev.CallDecided]

_RUN_OVER = "The run is over, so there is nothing to control any more."
_RUN_ENDED_MEANWHILE = "The run has ended meanwhile: ask again."


@dataclass(frozen=True)
class Effect:
    """Effects of a decision. A value of None changes nothing."""

    records: ev.ControlAction | None = None
    """Action in the `Controlled` event of the decision. None if the decision has another event."""
    releases: bool = False
    """True if the decision releases the held call."""
    pausing: bool | None = None
    stepping: bool | None = None
    stops: bool = False


EFFECTS: Mapping[Action, Effect] = {
    "pause": Effect(records="pause", pausing=True),
    "resume": Effect(records="resume", releases=True, pausing=False, stepping=False),
    "step": Effect(records="step", releases=True, pausing=False, stepping=True),
    "stop": Effect(records="stop", stops=True),
    "say": Effect(records="say"),
    "edit": Effect(releases=True),
    "skip": Effect(releases=True),
    "observe": Effect(releases=True),
    "change": Effect(),
}


@dataclass(frozen=True)
class _PendingRewind:
    move: Move[Any]
    done: asyncio.Future[Any]

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class RunControl:
    """Controls of one run. `solve(control=...)` accepts them, and `Run.control` returns them.

    Decisions that are made before the run begins take effect at its first step. `clock` measures pauses in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        """Lock for the phase and `_waiting`, which `_decide` uses in other threads."""
        self._early: list[Decision] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = False
        self._waiting: Held | None = None
        """The held call. None if no call is held, or if a decision about the held call was made."""
        self._hold: tuple[Held, asyncio.Future[Decision], Release] | None = None
        """Held call, future of the decision, and function that applies the decision. None if no call is held."""
        self._emit: Emit = _nowhere
        self._changer: Changer | None = None
        self._running = asyncio.Event()
        """Event that is set unless the mode is `pausing`."""
        self._running.set()
        self._interrupted = asyncio.Event()
        """Event that a stop, a rewind or a failure sets."""
        self._failure: Exception | None = None
        """Exception with which a decision failed, for example because the disk is full. It ends the run."""
        self._rewinds: list[_PendingRewind] = []
        self._texts: list[str] = []
        """Queued messages to the model that it has not read yet."""
        self.refused: list[str] = []
        """Hosts, as HOST:PORT, to which connections of the current call were refused."""
        self.on_pause: PauseCallback | None = None
        self.stepping = False
        """True if the run pauses at the next call or observation."""
        self.stopped = False
        """True if a person, an outside agent or the end of the kernel has stopped the run."""

    def pause(self, *, source: str = "python") -> None:
        """Pause before the next request, call or observation. Raise ControlError if the run is over."""
        self._decide(Decision("pause", source))

    def resume(self, *, call_id: str | None = None, source: str = "python") -> None:
        """Continue to the next breakpoint, or to the next call that needs an approval.

        Raises:
            ControlError: if the run is over.
        """
        self._decide(Decision("resume", source), call_id)

    def step(self, *, call_id: str | None = None, source: str = "python") -> None:
        """Continue to the next call or observation. Raise ControlError if the run is over."""
        self._decide(Decision("step", source), call_id)

    def say(self, text: str, *, source: str = "python") -> None:
        """Send a message to the model. The model reads the message after the results of its newest calls.

        Raises:
            ControlError: if the text is empty, or the run is over.
        """
        text = str(ev.clean_text(given_text(text))).strip()
        if not text:
            raise ControlError("The message is empty. Type a message for the model.")
        self._decide(Decision("say", source, text=text))

    def stop(self, *, source: str = "python") -> None:
        """End the run as `interrupted`, and kill a running command. Raise ControlError if the run is over."""
        self._decide(Decision("stop", source))

    def edit(
        self,
        arguments: Mapping[str, Any] | None = None,
        *,
        tool: str | None = None,
        call_id: str | None = None,
        source: str = "python",
        **changes: Any,
    ) -> None:
        """Execute an edited call instead of the held call, and continue in the same mode.

        `arguments` replaces all proposed arguments. `changes` changes the named arguments.

        Raises:
            ControlError: if no call is held, or the tool does not accept these arguments. In this case, the call stays
                held.
        """
        self.edit_call(arguments, changes, tool=tool, call_id=call_id, source=source)

    def edit_call(
        self,
        arguments: Mapping[str, Any] | None,
        changes: Mapping[str, Any],
        *,
        tool: str | None,
        call_id: str | None,
        source: str,
    ) -> None:
        """Edit the held call like `edit`, with the changed arguments as a mapping."""
        self._decide(lambda held: edited(held, arguments, changes, tool, source), call_id)

    def deny(self, reason: str | None = None, *, call_id: str | None = None, source: str = "python") -> None:
        """Skip the held call, and continue in the same mode. The model reads `reason` instead of a result.

        Raises:
            ControlError: if no call is held.
        """
        self._decide(lambda held: denied(held, reason, source), call_id)

    def refuse(self) -> bool:
        """Skip a held call that no person can approve. Return False if the call must wait for a person."""
        held = self._waiting
        if held is None or not held.refusal:
            return False
        self.deny(held.refusal, call_id=held.call_id, source="nobody")
        return True

    def observe(self, text: str, *, call_id: str | None = None, source: str = "python") -> None:
        """Show the model `text` instead of the held observation, and continue in the same mode.

        Raises:
            ControlError: if no observation is held, or the text is empty.
        """
        self._decide(lambda held: shown(held, text, source), call_id)

    def change(
        self,
        *,
        model: str | Model | None = None,
        settings: ModelSettings | Mapping[str, Any] | None = None,
        limits: RunLimits | Mapping[str, Any] | None = None,
        breakpoints: Iterable[str] | None = None,
        approve: str | None = None,
        allow: Iterable[str] | None = None,
        allow_once: Iterable[str] | None = None,
        source: str = "python",
    ) -> None:
        """Change the model, settings, limits, breakpoints or approvals from now on, or allow further hosts.

        Arguments that are None change nothing. `breakpoints` replaces all breakpoints. `allow` adds hosts to the list
        of a sandbox with the network `"allow"`. `allow_once` allows one connection to each host.

        Raises:
            ControlError: if a value is invalid, or if the run has not begun or is over. In this case, nothing is
                changed.
        """
        if self._over:
            raise ControlError(_RUN_OVER)
        if self._changer is None:
            raise ControlError("The run has not begun: give these options to the run itself.")
        change = self._changer.checked(model, settings, limits, breakpoints, approve, allow, allow_once)
        self._decide(Decision("change", source, change=change))

    @property
    def paused(self) -> bool:
        """True if the run pauses or is about to pause."""
        return not self._running.is_set() or self._waiting is not None

    @property
    def held(self) -> Held | None:
        """The call or observation that waits for a decision. None if nothing waits."""
        return self._waiting

    @property
    def used(self) -> bool:
        """True if these controls already belong to a run."""
        return self._over or self._loop is not None

    def _decide(self, decision: Decision | Callable[[Held], Decision], call_id: str | None = None) -> None:
        """Pass a decision to the run's event loop. A further decision about the same held call is refused.

        `decision` can be a function that makes the decision from the held call. Such a function is refused if no call
        is held.
        """
        with self._lock:
            if self._over:
                raise ControlError(_RUN_OVER)
            held = self._waiting
            if call_id is not None and (held is None or held.call_id != call_id):
                raise ControlError("This call does not wait any more: it was decided already.")
            if callable(decision):
                if held is None:
                    raise ControlError("No call waits for a decision: the run is not paused at a call.")
                decision = decision(held)
            if EFFECTS[decision.action].releases and held is not None:
                decision.hold, self._waiting = held, None
            if self._loop is None:
                self._early.append(decision)
                return
            try:
                self._loop.call_soon_threadsafe(self._apply, decision)
            except RuntimeError as error:
                raise ControlError("The run's event loop has ended, and the run with it.") from error

    # --- for the session, in its event loop ---

    def begin(self, emit: Emit, changer: Changer | None = None) -> None:
        """Begin the run. `emit` is used to record events, and `changer` to change the settings of the run."""
        with self._lock:
            self._loop, self._emit, self._changer = asyncio.get_running_loop(), emit, changer
            early, self._early = self._early, []
        for decision in early:
            self._apply(decision)

    def close(self) -> list[str]:
        """End the control of a run that is over. Return the queued messages to the model that it has not read."""
        with self._lock:
            self._over, self._waiting = True, None
        self._emit, self._changer = _nowhere, None
        for pending in self._rewinds:
            pending.fail(ControlError(_RUN_ENDED_MEANWHILE))
        self._rewinds.clear()
        return self.take_texts()

    async def interruptible(self, work: Coroutine[Any, Any, NoReturn]) -> None:
        """Await `work`, which always ends with an exception. Cancel `work` at a stop, a rewind or a failed decision.

        This method returns only for a rewind.

        Raises:
            CancelledError: if the run was stopped.
            BaseException: the exception of `work`, or of a decision that could not be recorded.
        """
        task = asyncio.ensure_future(work)
        interruption = asyncio.ensure_future(self._interrupted.wait())
        try:
            if not self._interrupted.is_set():
                await asyncio.wait({task, interruption}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()
            interruption.cancel()
            await asyncio.gather(task, interruption, return_exceptions=True)
        if self._failure is not None:
            raise self._failure
        if self.stopped or not self._rewinds:
            task.result()

    async def rewind(self, move: Move[T]) -> T:
        """Interrupt the run, call `move`, and return its result. After that, the run pauses.

        Raises:
            ControlError: if the run has ended.
            Exception: the exception of `move`.
        """
        if self._over:
            raise ControlError(_RUN_ENDED_MEANWHILE)
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._rewinds.append(_PendingRewind(move, done))
        self._interrupted.set()
        return await done

    async def execute_rewinds(self, recorder: Recorder, box: Sandbox) -> None:
        """Execute the requested rewinds. Pass the results and exceptions to the callers of `rewind`."""
        while self._rewinds:
            pending = self._rewinds.pop(0)
            try:
                result = await pending.move(recorder, box)
            except Exception as error:  # noqa: BLE001 - `rewind` raises it to its caller
                pending.fail(error)
            except BaseException:
                pending.fail(ControlError("The run was interrupted meanwhile."))
                raise
            else:
                if not pending.done.done():
                    pending.done.set_result(result)
        if not self.stopped and self._failure is None:
            self._interrupted.clear()

    @property
    def pausing(self) -> bool:
        """True if a person has requested a pause."""
        return not self._running.is_set()

    async def settled(self) -> None:
        """Let the event loop apply the decisions that were already passed to it."""
        await asyncio.sleep(0)

    async def wait_while_paused(self) -> float:
        """Wait while the run is paused. Return the duration of the pause in seconds."""
        await self.settled()
        if self._running.is_set():
            return 0.0
        self._record("paused", None, "run")
        return await self._wait_for_person(self._running.wait())

    async def hold(self, held: Held, release: Release) -> tuple[Decision, float]:
        """Pause at a call until a person decides. Return the decision and the duration of the pause in seconds.

        `release` is called as soon as the decision arrives. It applies the decision to the conversation, and returns
        the event of the decision.
        """
        decided: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting = held
        self._hold = (held, decided, release)
        try:
            self._emit(held.event())
            self._record("paused", None, "run")
            waited = await self._wait_for_person(decided)
        finally:
            self._hold = None
            with self._lock:
                self._waiting = None
        return decided.result(), waited

    def insert_texts(self, texts: Iterable[str]) -> None:
        """Put messages to the model in front of the queued messages."""
        self._texts[:0] = texts

    def take_texts(self) -> list[str]:
        """Return the queued messages to the model, and empty the queue."""
        texts, self._texts = self._texts, []
        return texts

    async def _wait_for_person(self, decided: Awaitable[Any]) -> float:
        started = self._clock()
        waiting = asyncio.ensure_future(decided)
        asking = asyncio.ensure_future(self.on_pause()) if self.on_pause else None
        try:
            if asking is not None:
                await asyncio.wait({waiting, asking}, return_when=asyncio.FIRST_COMPLETED)
                if asking.done():
                    asking.result()
            await waiting
        finally:
            for task in (waiting, asking):
                if task is not None:
                    task.cancel()
        return self._clock() - started

    def _apply(self, decision: Decision) -> None:
        """Record and apply a decision. A failure ends the run. This method runs in the event loop of the run."""
        # Jupyter interrupts the cell, which stops the run, before it ends the kernel: the later stop names the cause.
        ignored = self.stopped and (decision.action, decision.source) != ("stop", "kernel")
        if self._over or ignored or self._failure is not None:
            return
        try:
            self._take_effect(decision)
        except Exception as error:  # noqa: BLE001 - kept here; `interruptible` raises it again
            self._failure = error
            self._interrupted.set()

    def _take_effect(self, decision: Decision) -> None:
        effect = EFFECTS[decision.action]
        if effect.records:
            self._record(effect.records, decision.text, decision.source)
        if decision.action == "say":
            self._texts.append(decision.text or "")
        if decision.change is not None and self._changer is not None:
            self._emit(self._changer.apply(decision.change, decision.source))
            self._texts += filter(None, [decision.change.text_for_model])
        if effect.pausing is True:
            self._running.clear()
        if effect.pausing is False:
            self._running.set()
        if effect.stepping is not None:
            self.stepping = effect.stepping
        if effect.stops:
            self.stopped = True
            self._interrupted.set()
        if effect.releases and self._hold is not None:
            held, decided, release = self._hold
            late = decision.action == "resume" and decision.hold is None and held.reason in ("step", "pause")
            if not decided.done() and (decision.hold is held or late):
                self._emit(release(decision))
                decided.set_result(decision)

    def _record(self, action: ev.ControlAction, text: str | None, source: str) -> None:
        self._emit(ev.Controlled(action=action, text=text, source=source))


def unused_control(given: RunControl | None) -> RunControl:
    """Return `given`, or new controls if it is None. Raise InputError if `given` belongs to a run."""
    control = RunControl() if given is None else given
    if not isinstance(control, RunControl):
        raise InputError(f"control is a RunControl(), not {control!r:.80}.")
    if control.used:
        raise InputError("The control belongs to another run: make a new RunControl for this run.")
    return control


def _nowhere(event: ev.Event) -> None:
    """Ignore an event, because the run has not begun or is over."""


@dataclass(frozen=True)
class PausePoints:
    """Places at which a run pauses, by a rule or at a person's request, until a person decides on the call."""

    control: RunControl
    rules: PauseRules
    toolbox: Toolbox
    recorder: Recorder
    meter: Meter

    async def before_call(self, call: ToolCall) -> Decision | None:
        """Pause before a call if there is a reason, and return the decision. Return None if there was no pause."""
        return await self._pause(call, {"at": "call"}, Decision.event)

    async def after_call(
        self, call: ToolCall, result: ev.CallFinished, footer: str, replace: ReplaceObservation
    ) -> None:
        """Pause before the model reads a result, if there is a reason.

        Args:
            call: the executed call.
            result: result of the call.
            footer: end of the observation, which the person does not see.
            replace: function that changes the observation in the conversation. It is called as soon as the decision
                arrives.
        """
        facts = {
            "at": "observation",
            "observation": result.observation.removesuffix(footer),
            "exit_code": result.exit_code,
            "error": result.error,
            "timed_out": result.timed_out,
            "duration": result.duration,
            "changed": tuple(change.path for change in result.changes),
        }

        def release(decision: Decision, held: Held) -> ev.CallDecided:
            return replace(decision) if decision.action == "observe" else decision.event(held)

        await self._pause(call, facts, release)

    async def _pause(
        self, call: ToolCall, facts: dict[str, Any], release: Callable[[Decision, Held], ev.CallDecided]
    ) -> Decision | None:
        arguments, valid = self._read(call)
        usage = self.recorder.trajectory.usage
        moment = Moment(
            step=self.meter.step,
            tool=call.name,
            call_id=call.id,
            arguments=arguments,
            cost=usage.cost,
            tokens=usage.total_tokens,
            **facts,
        )
        await self.control.settled()
        refused, self.control.refused = self.control.refused, []
        hosts = tuple(dict.fromkeys(refused)) if moment.at == "observation" else ()
        approval = None
        if moment.at == "call" and valid:  # in time, because an MCP server may take long to list its tools
            approval = await self.meter.in_time(self.toolbox[call.name].approval())
        if approval is not None and self.rules.approved_all and not approval.changed:
            approval = None
        reason = await self._reason(moment, valid, hosts)
        if approval is not None and (reason is None or reason[0] == "approval" or approval.changed):
            reason = "approval", approval.text
        if reason is None:
            return None
        held = Held(
            moment.step, call.id, moment.at, *reason, call.name, arguments, call.arguments, moment.observation,
            self.toolbox, hosts, approval.refusal if approval is not None else "",
        )  # fmt: skip
        decision, waited = await self.control.hold(held, lambda decision: release(decision, held))
        self.meter.leave_out(waited)
        return decision

    async def _reason(self, moment: Moment, valid: bool, hosts: Sequence[str]) -> tuple[Reason, str] | None:
        if reason := await self.rules.why(moment, valid or moment.at == "observation"):
            return reason
        if self.control.pausing:
            return "pause", ""
        if self.control.stepping:
            return "step", ""
        if hosts and self.rules.approve != "auto":  # a person who approves calls also decides about hosts
            return "approval", f"The list of allowed hosts has refused {', '.join(hosts[:10])}."
        return None

    def _read(self, call: ToolCall) -> tuple[dict[str, Any], bool]:
        """Parse the arguments of a call. The second value is True if the tool accepts the arguments."""
        arguments: dict[str, Any] = {}
        try:
            arguments = parse_arguments(call.arguments)
            return self.toolbox.check(call.name, arguments), True
        except ArgumentsError:
            return arguments, False
