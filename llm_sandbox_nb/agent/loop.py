"""The loop: ask the model, carry out its calls, tell it what came of them, until the end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_sandbox_nb.agent.checkpoints import Checkpoints
from llm_sandbox_nb.agent.collect import Collector
from llm_sandbox_nb.agent.control import RunControl
from llm_sandbox_nb.agent.decision import Decision, edited_note
from llm_sandbox_nb.agent.desk import Desk, as_decided
from llm_sandbox_nb.agent.diffs import file_diffs
from llm_sandbox_nb.agent.halting import Halting
from llm_sandbox_nb.agent.limits import Meter
from llm_sandbox_nb.agent.loop_support import LiveOutput
from llm_sandbox_nb.agent.model import Model, ModelSettings, Reply, ToolCall
from llm_sandbox_nb.agent.past import Past
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.requests import Requests, StopRun
from llm_sandbox_nb.agent.retry import RetryPolicy
from llm_sandbox_nb.agent.schemas import SUBMIT, ArgumentsError, check_arguments, parse_arguments
from llm_sandbox_nb.agent.tools import SUBMITTED, Outcome, Toolbox
from llm_sandbox_nb.sandbox.contract import Changes
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Call, tool_message

NUDGE = (
    "There was no tool call in your reply, so nothing was done. If the task is finished and its results are "
    "saved, call submit; if not, go on with a tool call. Nobody can answer questions."
)
NUDGE_CUT = (
    "Your reply reached the limit of tokens for one reply before it came to a tool call, so nothing was "
    "done. Think in smaller steps and make a tool call."
)
NOT_EXECUTED = "Not executed: the run ended before this call."
INTERRUPTED = "Interrupted: the run was stopped while this call was under way."


@dataclass
class Workplace:
    """What calls are carried out with, once the sandbox is there."""

    toolbox: Toolbox
    collector: Collector
    checkpoints: Checkpoints


@dataclass
class Loop(Requests):
    """One conversation. `workplace` is awaited at the first call, so that the sandbox can start meanwhile."""

    model: Model
    settings: ModelSettings
    recorder: Recorder
    meter: Meter
    workplace: asyncio.Future[Workplace]
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    control: RunControl = field(default_factory=RunControl)
    halting: Halting = field(default_factory=Halting)
    """When it halts by itself; may change while it goes on."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Observations of calls that are not to be executed, by their ids."""
    replies: int | None = None
    """How many replies are asked for at most, without the model being told: when a record is played again."""
    nudges: int = 2
    """Replies in a row without a call that are answered by asking for one."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    last_text: str = ""
    """The text of the newest reply that had any."""
    only_talked: bool = False
    """Whether the newest reply had no call."""
    _nudged: int = 0
    _nudge: str = ""
    """What the newest reply is to be answered with, as it had no call."""
    _open: list[ToolCall] = field(default_factory=list)
    _under_way: bool = False
    _newest: ev.CallFinished | None = None
    _told: str = ""
    """What stands below the newest observation: how many steps remain."""

    async def run(self, messages: list[dict[str, Any]]) -> None:
        """Work until the run is over, which is always told by `StopRun`; other exceptions are faults.

        Raises:
            StopRun: why it ended.
            SandboxLostError: the sandbox died.
        """
        for message in messages:
            self.meter.add_text(message["content"])
        await self._stand_by()
        self._begin(messages)
        await self._work()

    async def go_on(self, past: Past) -> None:
        """Go on with a conversation that has begun: first its open calls, then as `run`.

        Raises:
            StopRun, SandboxLostError: as `run`.
        """
        self.messages, self._open = list(past.messages), list(past.open)
        self.control.say_first(past.said)
        self.meter.next_turn()
        if self._open:
            await self._carry_out_open(past.given)
            await self._between_steps()
        else:
            await self._stand_by()
            if said := self.control.take_said():
                self.meter.add_text("".join(said))
                self._say({"role": "user", "content": "\n\n".join([*said, self.meter.next_turn()])})
        await self._work()

    async def _work(self) -> None:
        while True:
            reply = await self._ask()
            if reply.calls:
                await self._carry_out(reply.calls)
            else:
                self._ask_for_a_call(reply)
            await self._between_steps()

    async def _between_steps(self) -> None:
        if reason := self.meter.over:
            raise StopRun(reason)
        if self.replies is not None and self.meter.step >= self.replies:
            raise StopRun("steps")
        await self._stand_by()
        self._speak()

    async def _stand_by(self) -> None:
        """Halt here as long as a person wants it; that time is not counted."""
        self.meter.leave_out(await self.control.stand_by())

    def _speak(self) -> None:
        """What a person said, and what a reply without a call is answered with, as one message."""
        said = self.control.take_said()
        for text in said:
            self.meter.add_text(text)
        if self._nudge:
            said.append(f"{self._nudge}\n\n{self.meter.next_turn()}")
        elif self.meter.to_tell:
            said.append(self.meter.next_turn())
        if said:
            self._say({"role": "user", "content": "\n\n".join(said)})
        self._nudge = ""

    def close_open_calls(self) -> None:
        """Give every call without a result one that says so: the history stays valid whatever happened."""
        for call in tuple(self._open):
            text, error = (INTERRUPTED, "interrupted") if self._under_way else (NOT_EXECUTED, "skipped")
            event = ev.CallFinished(step=self.meter.step, call_id=call.id, observation=text, error=error)
            event.stdout = self.recorder.journal.store_text(self._written_so_far(call.id))
            self._finish(event)

    def _written_so_far(self, call_id: str) -> str:
        """The end of what a call that was cut short had written, both streams as they came."""
        found = self._recorded(call_id)
        return found.live_output if found else ""

    def _recorded(self, call_id: str) -> Call | None:
        steps = self.recorder.trajectory.steps
        calls = steps[-1].calls if steps else []
        return next((call for call in calls if call.id == call_id), None)

    def _begin(self, messages: list[dict[str, Any]]) -> None:
        for message in messages[:-1]:
            self._say(message)
        last, said = messages[-1], self.control.take_said()
        content = "\n\n".join([last["content"], *said])
        self.meter.add_text("".join(said))
        self._say({**last, "content": f"{content}\n\n{self.meter.next_turn()}"})

    def _say(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self.recorder.emit(ev.MessageAdded(message=message))

    def _ask_for_a_call(self, reply: Reply) -> None:
        if self.meter.over:
            return
        self._nudged += 1
        if self._nudged > self.nudges:
            raise StopRun("answered")
        self._nudge = NUDGE_CUT if reply.finish_reason == "length" else NUDGE
        self.meter.add_text(self._nudge)

    # --- its calls ---

    async def _carry_out(self, calls: tuple[ToolCall, ...]) -> None:
        self._nudged = 0
        for call in calls:
            self._propose(call)
        await self._carry_out_open(self.given)

    async def _carry_out_open(self, given: Mapping[str, str]) -> None:
        """Carry out the calls without a result; those in `given` have been decided and are not executed."""
        while self._open:
            call = self._open[0]
            if call.id in given:
                self._finish(self._record(call, Outcome(given[call.id], error="skipped")))
                continue
            call, observation = await self._decided(call)
            if observation is not None:
                self._finish(self._record(call, Outcome(observation, error="skipped")))
                continue
            if self.meter.time_left == 0 and call.name != SUBMIT:
                raise StopRun("time")
            if (await self._one(call)).submitted:
                raise StopRun("submitted")
            await self._show(call)

    async def _decided(self, call: ToolCall) -> tuple[ToolCall, str | None]:
        """The next call as a person wants it, and its observation when it is not to be executed."""
        desk = Desk(self.control, self.halting, self.recorder, self.meter)
        decision = await desk.before(call)
        self._open[0] = call = as_decided(call, decision)
        return call, decision.text if decision and decision.action == "skip" else None

    async def _show(self, call: ToolCall) -> None:
        """Halt before the model sees what came of a call, if somebody wants it."""
        result = self._newest
        assert result is not None
        desk = Desk(self.control, self.halting, self.recorder, self.meter)
        await desk.after(call, result, self._told, self._show_instead)

    def _show_instead(self, result: ev.CallFinished, decision: Decision) -> ev.CallDecided:
        """The model is shown what a person gave; how many steps remain stays below it."""
        shown = decision.text or ""
        if not shown.endswith(self._told):
            shown += self._told
        self.meter.add_text(shown)
        self.messages[-1] = tool_message(result.call_id, shown)
        original = self.recorder.journal.store_text(result.observation)
        return ev.CallDecided(
            step=result.step,
            call_id=result.call_id,
            action="observe",
            observation=shown,
            original=original,
            source=decision.source,
        )

    def _propose(self, call: ToolCall) -> None:
        try:
            arguments = parse_arguments(call.arguments)
        except ArgumentsError:
            arguments = None
        self.recorder.emit(
            ev.CallProposed(
                step=self.meter.step,
                call_id=call.id,
                tool=call.name,
                raw_arguments=call.arguments,
                arguments=arguments,
            )
        )

    async def _one(self, call: ToolCall) -> Outcome:
        self._under_way = True
        try:
            arguments = check_arguments(call.name, parse_arguments(call.arguments))
        except ArgumentsError as error:
            outcome = Outcome(f"Error: {error}", error=error.kind)
            self._finish(self._record(call, outcome))
            return outcome
        if call.name == SUBMIT:
            self._started(call, arguments)
            outcome = Outcome(SUBMITTED, submitted=True)
            self._finish(self._record(call, outcome), tell=False)
            return outcome
        workplace = await self._in_time(asyncio.shield(self.workplace))
        return await self._execute(workplace, call, arguments)

    async def _execute(self, workplace: Workplace, call: ToolCall, arguments: dict[str, Any]) -> Outcome:
        await workplace.collector.settle()
        await workplace.checkpoints.settle()
        self._started(call, arguments)
        live = LiveOutput(call.id, self.recorder.emit)
        outcome = await workplace.toolbox.execute(call.name, arguments, live)
        changes = await workplace.toolbox.box.changes()
        event = self._record(call, outcome)
        await self._add_details(event, outcome, changes)
        self._finish(event)
        workplace.checkpoints.start(self.meter.step)
        await workplace.collector.start(changes.files, self.meter.step)
        return outcome

    def _started(self, call: ToolCall, arguments: dict[str, Any]) -> None:
        self.recorder.emit(
            ev.CallStarted(step=self.meter.step, call_id=call.id, tool=call.name, arguments=arguments)
        )

    def _record(self, call: ToolCall, outcome: Outcome) -> ev.CallFinished:
        observation = str(ev.clean_text(outcome.observation))
        if self._was_edited(call.id) and outcome.error != "skipped":
            observation = f"{edited_note(call.name, parse_arguments(call.arguments))}\n\n{observation}"
        return ev.CallFinished(
            step=self.meter.step, call_id=call.id, observation=observation, error=outcome.error
        )

    def _was_edited(self, call_id: str) -> bool:
        found = self._recorded(call_id)
        return found is not None and any(decision.action == "edit" for decision in found.decisions)

    async def _add_details(self, event: ev.CallFinished, outcome: Outcome, changes: Changes) -> None:
        event.changes, event.changes_incomplete = await file_diffs(changes)
        if (result := outcome.result) is None:
            return
        event.exit_code, event.timed_out = result.exit_code, result.timed_out
        event.truncated, event.duration, event.notice = result.truncated, result.duration, result.notice
        event.stdout = await self.recorder.store(result.stdout)
        event.stderr = await self.recorder.store(result.stderr)

    def _finish(self, event: ev.CallFinished, *, tell: bool = True) -> None:
        """The one result of a call joins the history; a step's last one says how many steps remain."""
        self.meter.add_text(event.observation)
        self._open.pop(0)
        self._under_way = False
        self._newest, self._told = event, ""
        if tell and not self._open and not self.meter.over:
            self._told = f"\n\n{self.meter.next_turn()}"
            event.observation += self._told
        self.messages.append(tool_message(event.call_id, event.observation))
        self.recorder.emit(event)
