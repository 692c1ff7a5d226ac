"""Pauses of a run at a call: before the execution, and before the model sees the observation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llm_sandbox_nb.agent.control.breakpoints import Moment
from llm_sandbox_nb.agent.control.decisions import Decision, Held
from llm_sandbox_nb.agent.control.pause_rules import PauseRules, Reason
from llm_sandbox_nb.agent.control.run_control import RunControl
from llm_sandbox_nb.agent.limits import Meter
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.tools.arguments import ArgumentsError, parse_arguments
from llm_sandbox_nb.agent.tools.tool import Approval
from llm_sandbox_nb.agent.tools.toolbox import Toolbox
from llm_sandbox_nb.model.contract import ToolCall
from llm_sandbox_nb.trajectory import events as ev

ReplaceObservation = Callable[[Decision], ev.CallDecided]


@dataclass(frozen=True)
class PausePoints:
    """Pauses at calls, by rules or on request of a person, until a decision arrives."""

    control: RunControl
    rules: PauseRules
    toolbox: Toolbox
    recorder: Recorder
    meter: Meter

    async def before_call(self, call: ToolCall) -> Decision | None:
        """Return the decision about a call before the execution; None if the run does not pause at the call."""
        return await self._pause(call, {"at": "call"}, None)

    async def after_call(
        self, call: ToolCall, result: ev.CallFinished, footer: str, replace: ReplaceObservation
    ) -> None:
        """Pause before the model sees a result, if there is a reason for a pause.

        Args:
            call: the executed call.
            result: result of the call.
            footer: end of the observation that the person does not see.
            replace: changes the observation in the conversation as soon as the decision arrives.
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
        await self._pause(call, facts, replace)

    async def _pause(
        self, call: ToolCall, facts: dict[str, Any], replace: ReplaceObservation | None
    ) -> Decision | None:
        arguments, readable = self._read(call)
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
        approval = await self._approval(call) if moment.at == "call" and readable else None
        reason = await self._reason(moment, readable)
        if approval is not None and (reason is None or reason[0] == "approval" or approval.changed):
            reason = "approval", approval.text
        if reason is None and hosts and self.rules.approve != "auto":
            # A person who approves calls also decides about refused hosts.
            reason = "approval", f"The list of allowed hosts has refused {', '.join(hosts[:10])}."
        if reason is None:
            return None
        held = Held(
            moment.step, call.id, moment.at, *reason, call.name, arguments, call.arguments, moment.observation,
            self.toolbox, hosts, approval.refusal if approval is not None else "",
        )  # fmt: skip

        def release(decision: Decision) -> ev.CallDecided:
            if decision.action == "observe" and replace is not None:
                return replace(decision)
            return decision.event(held)

        decision, waited = await self.control.hold(held, release)
        self.meter.leave_out(waited)
        return decision

    async def _approval(self, call: ToolCall) -> Approval | None:
        """Return the tool's own reason for a question, unless a person has approved all calls."""
        found = await self.toolbox[call.name].approval()
        return None if found is not None and self.rules.approved_all and not found.changed else found

    async def _reason(self, moment: Moment, readable: bool) -> tuple[Reason, str] | None:
        if reason := await self.rules.why(moment, readable or moment.at == "observation"):
            return reason
        if self.control.pausing:
            return "pause", ""
        return ("step", "") if self.control.stepping else None

    def _read(self, call: ToolCall) -> tuple[dict[str, Any], bool]:
        """Parse the arguments of a call as far as possible; the second value is True if the tool accepts them."""
        try:
            arguments = parse_arguments(call.arguments)
        except ArgumentsError:
            return {}, False
        try:
            return self.toolbox.check(call.name, arguments), True
        except ArgumentsError:
            return arguments, False
