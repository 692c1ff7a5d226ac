"""Execution of the tool calls in a reply. Results go to the model and to the record. The run can pause at each call."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from llm_sandbox_nb.agent.control.decisions import edited_note
from llm_sandbox_nb.agent.control.run_control import PausePoints
from llm_sandbox_nb.agent.conversation import Conversation
from llm_sandbox_nb.agent.errors import StopRun
from llm_sandbox_nb.agent.failing_calls import FailingCalls
from llm_sandbox_nb.agent.model_call import unless_failed
from llm_sandbox_nb.agent.recorder import LiveOutput, Recorder
from llm_sandbox_nb.agent.run_limits import Meter
from llm_sandbox_nb.agent.submission import Submission
from llm_sandbox_nb.agent.tools.arguments import ArgumentsError, parse_arguments
from llm_sandbox_nb.agent.tools.text_file import file_diffs
from llm_sandbox_nb.agent.tools.tool import Outcome, ToolContext
from llm_sandbox_nb.agent.tools.toolbox import TOOLS, Toolbox, ends_run
from llm_sandbox_nb.agent.workspace import Workspace
from llm_sandbox_nb.model.contract import ToolCall
from llm_sandbox_nb.sandbox.contract import Changes, Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Call

CUT_OFF = (
    "The limit of tokens for one reply cut this call off. Nothing was done: make it shorter, for example write a "
    "long file in several parts."
)
NOT_EXECUTED = "Not executed: the run ended before this call."
INTERRUPTED = "Interrupted: the run was stopped during this call."
CUT_SHORT = "Not finished: the run ended during this call."
_INTERRUPT_TIMEOUT = 5.0
"""Seconds to wait for the partial result of an interrupted call."""


@dataclass
class CallExecution:
    """Execution of a conversation's open calls, one after the other. An open call has no result yet."""

    conversation: Conversation
    submission: Submission
    workspace: asyncio.Future[Workspace]
    recorder: Recorder
    meter: Meter
    toolbox: Toolbox
    pauses: PausePoints
    failing: FailingCalls
    _executing: bool = False
    """True from the start of the first open call until its result is added."""

    async def execute(self, given: Mapping[str, str]) -> None:
        """Execute all open calls. A call whose id is in `given` is not executed and gets the given observation.

        Raises:
            StopRun: if a call ends the run, or the time limit is reached.
            SandboxLostError: if the sandbox died.
        """
        calls = self.conversation.open_calls
        while calls:
            call = calls[0]
            observation = given.get(call.id)
            if observation is None and (
                decision := await unless_failed(self.pauses.before_call(call), self.workspace)
            ):
                calls[0] = call = decision.call or call
                observation = decision.text if decision.action == "skip" else None
            if observation is not None:
                self._finish(call, Outcome(observation, error="skipped"))
                continue
            if self.meter.time_left == 0 and not ends_run(call.name):
                raise StopRun("time")
            result = await self._execute(call)
            replace = partial(self.conversation.replace_result, result)
            await self.pauses.after_call(call, result, self.conversation.footer, replace)

    async def _execute(self, call: ToolCall) -> ev.CallFinished:
        self._executing = True
        try:
            arguments = self.toolbox.check(call.name, parse_arguments(call.arguments))
        except ArgumentsError as error:
            unfinished = error.kind == "malformed_json" or not call.arguments.strip()
            text, kind = (CUT_OFF, "cut_off") if unfinished and self._at_cut(call) else (error, error.kind)
            return self._finish(call, Outcome(f"Error: {text}", error=kind))
        if ends_run(call.name):
            return await self._submit(call, arguments)
        workspace = await self.meter.in_time(asyncio.shield(self.workspace))
        await workspace.collector.settle()
        await workspace.checkpoints.settle()
        self._record_start(call, arguments)
        live = LiveOutput(call.id, self.recorder.emit)
        context = ToolContext(
            workspace.box, workspace.options, self.meter.time_left, live, workspace.collector.output_dir
        )
        running = asyncio.ensure_future(self.toolbox[call.name].execute(arguments, context))
        try:
            outcome = await asyncio.shield(running)
        except asyncio.CancelledError:
            await self._finish_interrupted(call, running, workspace.box)
            raise
        changes = await workspace.box.changes()
        result = await self._finish_executed(call, outcome, changes)
        workspace.checkpoints.start(self.meter.step)
        await workspace.collector.start(changes.files, self.meter.step)
        return result

    async def _submit(self, call: ToolCall, arguments: dict[str, Any]) -> ev.CallFinished:
        """End the run, or return a result that tells the model why the submission is not accepted."""
        if reminder := await self.submission.reminder():
            return self._finish(call, Outcome(reminder, error="nothing_saved"))
        self._record_start(call, arguments)
        if refusal := await self.submission.refusal():
            return self._finish(call, Outcome(refusal, error="check_failed"))
        self._finish(call, Outcome(TOOLS[call.name].last_observation), footer=False)
        raise StopRun("submitted")

    def close_open_calls(self, *, interrupted: bool) -> None:
        """Add a result with an explanation to each open call. `Loop.close_open_calls` explains `interrupted`."""
        during = (INTERRUPTED, "interrupted") if interrupted else (CUT_SHORT, "cut_short")
        for call in tuple(self.conversation.open_calls):
            text, error = during if self._executing else (NOT_EXECUTED, "not_executed")
            recorded = self._recorded(call)
            output = self.recorder.journal.store_text(recorded.live_output if recorded else "")
            event = ev.CallFinished(
                step=self.meter.step, call_id=call.id, observation=text, error=error, stdout=output
            )
            self._add_result(call, event)

    def _at_cut(self, call: ToolCall) -> bool:
        """Return True if the call is the last one in a reply that reached its token limit."""
        step = self.recorder.trajectory.steps[-1]
        last = step.calls[-1]
        return step.finish_reason == "length" and (last.id, last.raw_arguments) == (call.id, call.arguments)

    async def _finish_interrupted(self, call: ToolCall, running: asyncio.Task[Outcome], box: Sandbox) -> None:
        """Interrupt the running call, and record its partial result. The call stays open if no result comes in time."""
        try:
            async with asyncio.timeout(_INTERRUPT_TIMEOUT):
                await box.interrupt()
                if not self.toolbox[call.name].in_sandbox:
                    return
                outcome = await asyncio.shield(running)
                if outcome.result is not None and outcome.result.interrupted:
                    outcome = dataclasses.replace(outcome, error="interrupted")
                await self._finish_executed(call, outcome, await box.changes())
        except (TimeoutError, SandboxError):
            pass
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _record_start(self, call: ToolCall, arguments: dict[str, Any]) -> None:
        self.recorder.emit(
            ev.CallStarted(step=self.meter.step, call_id=call.id, tool=call.name, arguments=arguments)
        )

    async def _finish_executed(self, call: ToolCall, outcome: Outcome, changes: Changes) -> ev.CallFinished:
        event = self._result(call, outcome)
        event.changes, event.changes_incomplete = await file_diffs(changes)
        event.raw_result = await self.recorder.store(outcome.raw)
        if (result := outcome.result) is not None:
            event.exit_code, event.timed_out = result.exit_code, result.timed_out
            event.truncated, event.duration, event.notice = result.truncated, result.duration, result.notice
            event.stdout = await self.recorder.store(result.stdout)
            event.stderr = await self.recorder.store(result.stderr)
            event.background = await self.recorder.store(result.background)
        self._add_result(call, event)
        return event

    def _finish(self, call: ToolCall, outcome: Outcome, *, footer: bool = True) -> ev.CallFinished:
        event = self._result(call, outcome)
        self._add_result(call, event, footer=footer)
        return event

    def _result(self, call: ToolCall, outcome: Outcome) -> ev.CallFinished:
        before = ""
        recorded = self._recorded(call)
        edited = recorded is not None and any(decision.action == "edit" for decision in recorded.decisions)
        if edited and outcome.error != "skipped":
            before = f"{edited_note(call.name, parse_arguments(call.arguments))}\n\n"
        return ev.CallFinished(
            step=self.meter.step,
            call_id=call.id,
            observation=before + str(ev.clean_text(outcome.observation)),
            before=before,
            error=outcome.error,
        )

    def _add_result(self, call: ToolCall, event: ev.CallFinished, *, footer: bool = True) -> None:
        self._executing = False
        self.failing.add(call.name, call.arguments, event.error, failed=event.failed)
        advice = "" if self.failing.over else self.failing.advice
        self.conversation.add_result(event, advice=advice, footer=footer)

    def _recorded(self, call: ToolCall) -> Call | None:
        steps = self.recorder.trajectory.steps
        calls = steps[-1].calls if steps else []
        return next((recorded for recorded in calls if recorded.id == call.id), None)
