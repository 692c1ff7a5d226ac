"""What a person decides while a run goes on: pause, go on, step, change a call, say something, stop.

A decision may come from any thread. It takes effect in the run's own loop, where it is recorded as an event
before anything else. A command or a reply that is under way is not paused; the run halts where it next would
ask the model, carry out a call, or show the model what came of it. The time limit does not count the time that
a run has halted.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from llm_sandbox_nb.agent.decision import Decision, Held, Release, edited, shown, skipped
from llm_sandbox_nb.agent.failures import ControlError as ControlError
from llm_sandbox_nb.agent.limits import RunLimits
from llm_sandbox_nb.agent.model import Model, ModelSettings
from llm_sandbox_nb.agent.settings_change import Changer
from llm_sandbox_nb.trajectory import events as ev

Emit = Callable[[ev.Event], None]
OnHalt = Callable[[], Awaitable[object]]
"""Awaited when the run has come to a halt, and cancelled when it goes on."""

_OVER = "The run is over, so there is nothing to control any more."


class RunControl:
    """The controls of one run. Give it to `solve(control=...)`, or take them from the `Run`.

    What is decided before the run begins takes effect at its first step.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._early: list[Decision] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._emit: Emit = _nowhere
        self._end: Callable[[], object] = _nothing
        self._changer: Changer | None = None
        self._go_on = asyncio.Event()
        self._go_on.set()
        self._said: list[str] = []
        self._over = False
        self._waiting: Held | None = None
        """The held call that nobody has decided about yet; for all threads."""
        self._hold: tuple[Held, asyncio.Future[Decision], Release] | None = None
        self.on_halt: OnHalt | None = None
        self.stepping = False
        """Whether the run halts at the next call or observation."""
        self.stopped = False
        """Whether a person has stopped the run."""

    def pause(self, *, source: str = "python") -> None:
        """Halt before the next request, call or observation. Raises ControlError when the run is over."""
        self._decide(Decision("pause", source))

    def resume(self, *, call_id: str | None = None, source: str = "python") -> None:
        """Go on, to the next breakpoint or call to approve. Raises ControlError when the run is over."""
        self._decide(Decision("resume", source), call_id)

    def step(self, *, call_id: str | None = None, source: str = "python") -> None:
        """Go on to the next call or observation. Raises ControlError when the run is over."""
        self._decide(Decision("step", source), call_id)

    def say(self, text: str, *, source: str = "python") -> None:
        """Tell the model something; it reads it with the results of its newest calls.

        Raises:
            ControlError: there is no text, or the run is over.
        """
        text = str(ev.clean_text(text)).strip()
        if not text:
            raise ControlError("There is nothing to say: give some text.")
        self._decide(Decision("say", source, text=text))

    def stop(self, *, source: str = "python") -> None:
        """End the run as `interrupted`; a command under way is killed. Raises ControlError when it is over."""
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
        """Carry this out in place of the held call, and go on as before: in steps, or not.

        `arguments` are all of them; `changes` are put into these, or else into those that were proposed.

        Raises:
            ControlError: no call is held, or the tool cannot take these arguments; nothing was decided.
        """
        self._decide(lambda held: edited(held, arguments, changes, tool, source), call_id)

    def skip(
        self, observation: str | None = None, *, call_id: str | None = None, source: str = "python"
    ) -> None:
        """Do not carry out the held call; the model is shown `observation`, and the run goes on as before.

        Raises:
            ControlError: no call is held.
        """
        self._decide(lambda held: skipped(held, observation, source), call_id)

    def observe(self, text: str, *, call_id: str | None = None, source: str = "python") -> None:
        """Show the model `text` in place of the held observation, and go on as before.

        Raises:
            ControlError: no observation is held, or there is no text.
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
        source: str = "python",
    ) -> None:
        """What follows is done with this model, these settings, limits and rules of halting.

        What is not named stays. `breakpoints` are all of them from now on.

        Raises:
            ControlError: something in it makes no sense, or the run has not begun or is over; nothing changed.
        """
        if self._over or self._changer is None:
            raise ControlError(
                _OVER if self._over else "The run has not begun: give these to it when it does."
            )
        change = self._changer.checked(model, settings, limits, breakpoints, approve)
        self._decide(Decision("change", source, change=change))

    @property
    def paused(self) -> bool:
        """Whether the run halts or is about to."""
        return not self._go_on.is_set() or self._waiting is not None

    @property
    def held(self) -> Held | None:
        """The call or observation that waits for a decision; None while none does."""
        return self._waiting

    @property
    def used(self) -> bool:
        """Whether it has a run already."""
        return self._over or self._loop is not None

    def _decide(self, decision: Decision | Callable[[Held], Decision], call_id: str | None = None) -> None:
        """Pass a decision to the run's loop; one about a held call ends its waiting here and now."""
        with self._lock:
            if self._over:
                raise ControlError(_OVER)
            held = self._waiting
            if call_id is not None and (held is None or held.call_id != call_id):
                raise ControlError("This call does not wait any more: it was decided already.")
            if callable(decision):
                if held is None:
                    raise ControlError("No call waits for a decision: the run has not halted at one.")
                decision = decision(held)
            if decision.releases and held is not None:
                decision.hold, self._waiting = held, None
            self._pass_on(decision)

    def _pass_on(self, decision: Decision) -> None:
        if self._loop is None:
            self._early.append(decision)
            return
        try:
            self._loop.call_soon_threadsafe(self._apply, decision)
        except RuntimeError as error:
            raise ControlError("The run's event loop has ended, and the run with it.") from error

    # --- for the run, in its loop ---

    def begin(self, emit: Emit, end: Callable[[], object], changer: Changer | None = None) -> None:
        """The run begins: `emit` records an event, `end` cancels the work, `changer` changes its settings."""
        with self._lock:
            self._loop, self._emit, self._end = asyncio.get_running_loop(), emit, end
            self._changer = changer
            early, self._early = self._early, []
        for decision in early:
            self._apply(decision)

    def close(self) -> list[str]:
        """The run has ended; what was said and never read."""
        with self._lock:
            self._over, self._waiting = True, None
        self._emit, self._end, self._changer = _nowhere, _nothing, None
        return self.take_said()

    @property
    def pausing(self) -> bool:
        """Whether a person has asked for a halt."""
        return not self._go_on.is_set()

    async def settled(self) -> None:
        """What was decided during the last event has taken effect."""
        await asyncio.sleep(0)

    async def stand_by(self) -> float:
        """Wait as long as the run is paused; the seconds that took."""
        await self.settled()
        if self._go_on.is_set():
            return 0.0
        self._record("paused", None, "run")
        return await self._wait_for_person(self._go_on.wait())

    async def hold(self, held: Held, release: Release) -> tuple[Decision, float]:
        """Halt at a call until a person decides; what they decided, and the seconds that took.

        `release` carries the decision into the conversation and gives the event that records it: both happen
        at once, when the decision arrives.
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

    def say_first(self, texts: Iterable[str]) -> None:
        """The model is to read this before what else was said."""
        self._said[:0] = texts

    def take_said(self) -> list[str]:
        """What was said since this was last asked."""
        said, self._said = self._said, []
        return said

    async def _wait_for_person(self, decided: Awaitable[Any]) -> float:
        started = time.monotonic()
        waiting = asyncio.ensure_future(decided)
        asking = asyncio.ensure_future(self.on_halt()) if self.on_halt else None
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
        return time.monotonic() - started

    def _apply(self, decision: Decision) -> None:
        if self._over or self.stopped:
            return
        match decision.action:
            case "edit" | "skip" | "observe":
                pass
            case "change":
                if self._changer is not None and decision.change is not None:
                    self._emit(self._changer.apply(decision.change, decision.source))
            case action:
                self._record(action, decision.text, decision.source)
        self._take_effect(decision)

    def _take_effect(self, decision: Decision) -> None:
        match decision.action:
            case "pause":
                self._go_on.clear()
            case "resume" | "step":
                self._go_on.set()
                self.stepping = decision.action == "step"
            case "say":
                self._said.append(decision.text or "")
            case "stop":
                self.stopped = True
                self._end()
        self._let_go(decision)

    def _let_go(self, decision: Decision) -> None:
        """End the halt that the decision is about; or one that came while it was on its way and is not wanted."""
        if self._hold is None or not decision.releases:
            return
        held, decided, release = self._hold
        unwanted = decision.action == "resume" and decision.hold is None and held.reason in ("step", "pause")
        if decided.done() or not (decision.hold is held or unwanted):
            return
        self._emit(release(decision))
        decided.set_result(decision)

    def _record(self, action: ev.ControlAction, text: str | None, source: str) -> None:
        self._emit(ev.Controlled(action=action, text=text, source=source))


def _nowhere(event: ev.Event) -> None:
    """Record nothing: the run does not go on."""


def _nothing() -> None:
    """There is nothing to cancel."""
