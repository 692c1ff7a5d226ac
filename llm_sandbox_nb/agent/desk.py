"""Where a run halts at a call: before it is executed, and before the model sees what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from llm_sandbox_nb.agent.breakpoints import Moment
from llm_sandbox_nb.agent.control import RunControl
from llm_sandbox_nb.agent.decision import Decision, Held
from llm_sandbox_nb.agent.halting import Halting, Reason
from llm_sandbox_nb.agent.limits import Meter
from llm_sandbox_nb.agent.model import ToolCall
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.schemas import ArgumentsError, check_arguments, parse_arguments
from llm_sandbox_nb.trajectory import events as ev

ShowInstead = Callable[[ev.CallFinished, Decision], ev.CallDecided]


def as_decided(call: ToolCall, decision: Decision | None) -> ToolCall:
    """What is executed."""
    return decision.call if decision is not None and decision.call is not None else call


@dataclass(frozen=True)
class Desk:
    """Asks a person about calls."""

    control: RunControl
    halting: Halting
    recorder: Recorder
    meter: Meter

    async def before(self, call: ToolCall) -> Decision | None:
        """Halt before a call, if there is a reason to; what was decided on it."""
        arguments, readable = _read(call)
        moment = self._moment(Moment("call", self.meter.step, call.name, call.id, arguments))
        why = await self._why(moment, readable)
        if why is None:
            return None
        held = Held(moment.step, call.id, "call", *why, call.name, arguments, call.arguments)
        decision, waited = await self.control.hold(held, lambda decision: self._release(held, decision))
        self.meter.leave_out(waited)
        return decision

    async def after(self, call: ToolCall, result: ev.CallFinished, told: str, instead: ShowInstead) -> None:
        """Halt before the model sees a result, if there is a reason to. `told` stands below it and is ours."""
        arguments, _ = _read(call)
        moment = self._moment(
            Moment(
                "observation",
                self.meter.step,
                call.name,
                call.id,
                arguments,
                observation=result.observation.removesuffix(told),
                exit_code=result.exit_code,
                error=result.error,
                timed_out=result.timed_out,
                duration=result.duration,
                changed=tuple(change.path for change in result.changes),
            )
        )
        why = await self._why(moment)
        if why is None:
            return
        held = Held(
            moment.step,
            call.id,
            "observation",
            *why,
            call.name,
            arguments,
            call.arguments,
            moment.observation,
        )

        def release(decision: Decision) -> ev.CallDecided:
            return (
                instead(result, decision) if decision.action == "observe" else self._release(held, decision)
            )

        _, waited = await self.control.hold(held, release)
        self.meter.leave_out(waited)

    def _moment(self, moment: Moment) -> Moment:
        usage = self.recorder.trajectory.usage
        return replace(moment, cost=usage.cost, tokens=usage.total_tokens)

    async def _why(self, moment: Moment, readable: bool = True) -> tuple[Reason, str] | None:
        await self.control.settled()
        why = await self.halting.why(moment, readable)
        if why is not None:
            return why
        if self.control.pausing:
            return "pause", "a person asked for a pause"
        return ("step", "in steps") if self.control.stepping else None

    def _release(self, held: Held, decision: Decision) -> ev.CallDecided:
        event = ev.CallDecided(step=held.step, call_id=held.call_id, action="run", source=decision.source)
        match decision.action:
            case "edit":
                assert decision.call is not None
                event.action, event.tool, event.arguments = "edit", decision.call.name, decision.arguments
            case "skip":
                event.action, event.observation = "skip", decision.text
            case _ if held.at == "call":
                event.tool, event.arguments = held.tool, dict(held.arguments)
        return event


def _read(call: ToolCall) -> tuple[dict[str, Any], bool]:
    """The arguments of a call as far as they can be read, and whether the tool can take them."""
    try:
        arguments = parse_arguments(call.arguments)
    except ArgumentsError:
        return {}, False
    try:
        return check_arguments(call.name, arguments), True
    except ArgumentsError:
        return arguments, False
