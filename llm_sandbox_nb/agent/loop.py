"""The loop: ask the model, execute its tool calls, show it the results, until the run is over."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, TypeVar

from llm_sandbox_nb.agent.artifacts import Collector
from llm_sandbox_nb.agent.checkpoints import Checkpoints
from llm_sandbox_nb.agent.context_window import ContextMode, ContextWindow
from llm_sandbox_nb.agent.control.decisions import Decision, edited_note
from llm_sandbox_nb.agent.control.pause_points import PausePoints
from llm_sandbox_nb.agent.control.pause_rules import PauseRules
from llm_sandbox_nb.agent.control.run_control import RunControl
from llm_sandbox_nb.agent.conversation import ConversationState
from llm_sandbox_nb.agent.errors import StopRun
from llm_sandbox_nb.agent.limits import Meter, estimated_tokens
from llm_sandbox_nb.agent.model_call import call_model, unless_failed
from llm_sandbox_nb.agent.recorder import LiveOutput, Recorder
from llm_sandbox_nb.agent.tools.arguments import ArgumentsError, parse_arguments
from llm_sandbox_nb.agent.tools.text_file import file_diffs
from llm_sandbox_nb.agent.tools.tool import Outcome, ToolContext
from llm_sandbox_nb.agent.tools.toolbox import TOOLS, Toolbox, ends_run
from llm_sandbox_nb.model.contract import ContextOverflowError, Model, ModelSettings, Reply, ToolCall
from llm_sandbox_nb.model.retries import RetryPolicy
from llm_sandbox_nb.sandbox.contract import DEFAULT_TIMEOUT, Changes, Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Call, tool_message

NUDGE = (
    "There was no tool call in your reply, so nothing was done. If the task is finished and its results are "
    "saved, call submit; if not, continue with a tool call. Nobody can answer questions."
)
NUDGE_CUT = (
    "Your reply reached the limit of tokens for one reply before it came to a tool call, so nothing was "
    "done. Think in smaller steps and make a tool call."
)
CUT_OFF = (
    "The limit of tokens for one reply cut this call off. Nothing was done: make it shorter, for example write a "
    "long file in several parts."
)
NOT_EXECUTED = "Not executed: the run ended before this call."
INTERRUPTED = "Interrupted: the run was stopped during this call."
_SETTLE = 5.0
"""Seconds that a call which is interrupted has for its result so far."""
_T = TypeVar("_T")


@dataclass
class Workspace:
    """What tool calls are executed with, as soon as the sandbox is set up."""

    box: Sandbox
    collector: Collector
    checkpoints: Checkpoints
    command_timeout: float = DEFAULT_TIMEOUT
    """Seconds for a command that names no time-out."""


@dataclass
class Loop:
    """One conversation. Begin it with `start` or `restore`, then `run` it.

    `workspace` is awaited at the first call, so that the sandbox starts while the model writes its first reply.
    """

    model: Model
    settings: ModelSettings
    recorder: Recorder
    meter: Meter
    workspace: asyncio.Future[Workspace]
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    control: RunControl = field(default_factory=RunControl)
    pause_rules: PauseRules = field(default_factory=PauseRules)
    """When it pauses automatically. They may change during the run."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Observations of calls that are not executed, by call id."""
    replies: int | None = None
    """The largest number of replies, which the model is not shown: a record that is replayed has no more."""
    toolbox: Toolbox = TOOLS
    """What executes its calls."""
    tools: list[dict[str, Any]] = field(default_factory=TOOLS.schemas)
    """The schemas of the tools, with the command time-out in force."""
    nudges: int = 2
    """Replies in a row without a call that get a request for one."""
    context: ContextMode = "mask"
    """What is sent of a conversation that nearly fills the model's context."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The conversation as it is sent."""
    last_text: str = ""
    """The text of the newest reply that had any."""
    only_talked: bool = False
    """Whether the newest reply had no call."""
    _first: Sequence[dict[str, Any]] = ()
    """The messages that begin the conversation, until they are sent."""
    _restored: ConversationState | None = None
    """The conversation that continues, until the first new message."""
    _nudged: int = 0
    _nudge: str = ""
    """The answer to a reply without a call."""
    _open: list[ToolCall] = field(default_factory=list)
    """Calls of the newest reply without a result."""
    _executing: bool = False
    _footer: str = ""
    """What the newest observation ends with: how many steps remain."""

    def __post_init__(self) -> None:
        self.meter.tools = estimated_tokens(json.dumps(self.tools))
        self.window = ContextWindow(self.context, self.recorder, self.meter)

    def start(self, messages: Sequence[dict[str, Any]]) -> None:
        """Begin a conversation with these messages, of which the last is the task."""
        self._reset()
        self._first = messages
        for message in messages:
            self.meter.add_text(message["content"])

    def restore(self, state: ConversationState) -> None:
        """Continue a conversation: `run` executes its open calls first."""
        self._reset()
        self._restored = state
        self.messages, self._open = list(state.messages), list(state.open)
        self.window.restore()
        self.meter.next_turn()

    def _reset(self) -> None:
        self.messages, self._open, self._first, self._restored = [], [], (), None
        self.last_text, self.only_talked, self._nudged, self._nudge = "", False, 0, ""

    async def run(self) -> NoReturn:
        """Execute steps until the run is over, which `StopRun` always reports; other exceptions are failures.

        Raises:
            StopRun: why it ended.
            SandboxLostError: the sandbox died.
        """
        if self._open and (restored := self._restored):
            self._restored = None
            await self._execute_calls(restored.given)
            self._check_limits()
        while True:
            self.meter.leave_out(await self.control.wait_while_paused())
            self._add_user_message()
            reply = await self._ask_model()
            if reply.calls:
                await self._execute_calls(self.given)
            else:
                self._nudge_for_call(reply)
            self._check_limits()

    def _check_limits(self) -> None:
        if reason := self.meter.over:
            if reason == "context":
                raise StopRun("tokens", self.window.ending)
            raise StopRun(reason)
        if self.replies is not None and self.meter.step >= self.replies:
            raise StopRun("steps")

    def close_open_calls(self) -> None:
        """Give every call without a result one that says so: the history stays valid whatever happened."""
        for call in tuple(self._open):
            text, error = (INTERRUPTED, "interrupted") if self._executing else (NOT_EXECUTED, "skipped")
            event = ev.CallFinished(step=self.meter.step, call_id=call.id, observation=text, error=error)
            recorded = self._recorded(call.id)
            event.stdout = self.recorder.journal.store_text(recorded.live_output if recorded else "")
            self._finish(event)

    # --- messages ---

    def _add_user_message(self) -> None:
        """Send the task, a person's texts and a nudge as one message: some servers refuse two in a row."""
        texts = self.control.take_texts()
        self.meter.add_text("".join(texts))
        message: dict[str, Any] = {"role": "user"}
        if self._first:
            *before, message = self._first
            for one in before:
                self._add_message(one)
            texts.insert(0, message["content"])
        if self._nudge:
            texts.append(f"{self._nudge}\n\n{self.meter.next_turn()}")
        elif self._first or self.meter.limits_changed or (texts and self._restored is not None):
            texts.append(self.meter.next_turn())
        if texts:
            self._add_message({**message, "content": "\n\n".join(texts)})
        self._first, self._restored, self._nudge = (), None, ""

    def _add_message(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self.recorder.emit(ev.MessageAdded(message=message))

    def _nudge_for_call(self, reply: Reply) -> None:
        if self.meter.over:
            return
        self._nudged += 1
        if self._nudged > self.nudges:
            raise StopRun("answered")
        self._nudge = NUDGE_CUT if reply.finish_reason == "length" else NUDGE
        self.meter.add_text(self._nudge)

    # --- the model ---

    async def _ask_model(self) -> Reply:
        step, started = self.meter.begin_step(), time.monotonic()
        reply = await self._in_time(unless_failed(self._fitting_reply(step), self.workspace))
        self._add_reply(reply, time.monotonic() - started)
        return reply

    async def _fitting_reply(self, step: int) -> Reply:
        """The reply to the conversation, which is shortened where it does not fit into the model's context."""
        await self.window.prepare(self.model, self.messages, partial(self._request, step))
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._request(step, self.messages)
            except ContextOverflowError as error:
                if not self.window.recover(error, self.messages, attempt):
                    raise StopRun("tokens", str(error)) from error

    async def _request(self, step: int, messages: list[dict[str, Any]], most: int | None = None) -> Reply:
        """One reply, of at most so many tokens."""
        tokens = most or self.meter.reply_tokens(self.settings.max_tokens)
        settings = dataclasses.replace(self.settings, max_tokens=tokens)
        return await call_model(
            self.model,
            list(messages),
            self.tools,
            settings,
            self.retries,
            self.recorder,
            step,
            self.window.learn,
        )

    def _add_reply(self, reply: Reply, model_time: float) -> None:
        """The reply joins the history and the record at once: no interruption can come between the two."""
        self.messages.append(reply.message)
        written = reply.text + (reply.reasoning or "") + "".join(call.arguments for call in reply.calls)
        self.meter.add_reply(reply.usage, written)
        self.last_text = reply.text.strip() or self.last_text
        self.only_talked = not reply.calls
        self._open = list(reply.calls)
        self.recorder.emit(
            ev.ModelReplied(
                step=self.meter.step,
                message=reply.message,
                reasoning=reply.reasoning,
                usage=reply.usage,
                finish_reason=reply.finish_reason,
                model_time=model_time,
                response_id=reply.response_id,
                response_model=reply.response_model,
                context_window=self.meter.context or reply.context_window,
            )
        )
        if self.meter.step == 1 and reply.left_out:
            self._note(f"{self.model.name} does not take {', '.join(reply.left_out)}: left out.")
        if self.meter.step == 1 and self.meter.limits.cost is not None and self.meter.cost is None:
            self._note(f"The price of {self.model.name} is not known, so the limit on cost cannot be kept.")
        self._nudged = 0 if reply.calls else self._nudged
        for call in reply.calls:
            self._propose(call)

    def _note(self, text: str) -> None:
        self.recorder.emit(ev.Noted(text=text))

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

    async def _in_time(self, work: Awaitable[_T]) -> _T:
        try:
            async with asyncio.timeout(self.meter.time_left):
                return await work
        except TimeoutError as error:
            if self.meter.time_left != 0:
                raise
            raise StopRun("time") from error

    # --- its calls ---

    async def _execute_calls(self, given: Mapping[str, str]) -> None:
        """Give every open call its result: execute it, or take the observation that a person gave."""
        pauses = PausePoints(self.control, self.pause_rules, self.toolbox, self.recorder, self.meter)
        while self._open:
            call = self._open[0]
            observation = given.get(call.id)
            if observation is None and (decision := await pauses.before_call(call)):
                self._open[0] = call = decision.call or call
                observation = decision.text if decision.action == "skip" else None
            if observation is not None:
                self._finish(self._result(call, Outcome(observation, error="skipped")))
                continue
            if self.meter.time_left == 0 and not ends_run(call.name):
                raise StopRun("time")
            result = await self._execute(call)
            await pauses.after_call(call, result, self._footer, partial(self._replace_observation, result))

    async def _execute(self, call: ToolCall) -> ev.CallFinished:
        self._executing = True
        try:
            arguments = self.toolbox.check(call.name, parse_arguments(call.arguments))
        except ArgumentsError as error:
            unfinished = error.kind == "malformed_json" or not call.arguments.strip()
            said, kind = (CUT_OFF, "cut_off") if unfinished and self._at_cut(call) else (error, error.kind)
            return self._finish(self._result(call, Outcome(f"Error: {said}", error=kind)))
        if ends_run(call.name):
            self._record_start(call, arguments)
            self._finish(self._result(call, Outcome(TOOLS[call.name].last_observation)), footer=False)
            raise StopRun("submitted")
        workspace = await self._in_time(asyncio.shield(self.workspace))
        await workspace.collector.settle()
        await workspace.checkpoints.settle()
        self._record_start(call, arguments)
        live = LiveOutput(call.id, self.recorder.emit)
        context = ToolContext(workspace.box, workspace.command_timeout, self.meter.time_left, live)
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

    def _at_cut(self, call: ToolCall) -> bool:
        """Whether the call was the last that the model wrote before the limit of tokens for one reply."""
        step = self.recorder.trajectory.steps[-1]
        last = step.calls[-1]
        return step.finish_reason == "length" and (last.id, last.raw_arguments) == (call.id, call.arguments)

    async def _finish_executed(self, call: ToolCall, outcome: Outcome, changes: Changes) -> ev.CallFinished:
        result = self._result(call, outcome)
        await self._add_details(result, outcome, changes)
        return self._finish(result)

    async def _finish_interrupted(self, call: ToolCall, running: asyncio.Task[Outcome], box: Sandbox) -> None:
        """End what a call executes, and give it what it did so far as its result; without an answer it stays open."""
        try:
            async with asyncio.timeout(_SETTLE):
                await box.interrupt()
                if not self.toolbox[call.name].in_sandbox:
                    return
                outcome = await asyncio.shield(running)
                changes = await box.changes()
                if outcome.result is not None and outcome.result.interrupted:
                    outcome = dataclasses.replace(outcome, error="interrupted")
                await self._finish_executed(call, outcome, changes)
        except (TimeoutError, SandboxError):
            pass
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _record_start(self, call: ToolCall, arguments: dict[str, Any]) -> None:
        self.recorder.emit(
            ev.CallStarted(step=self.meter.step, call_id=call.id, tool=call.name, arguments=arguments)
        )

    def _result(self, call: ToolCall, outcome: Outcome) -> ev.CallFinished:
        observation = str(ev.clean_text(outcome.observation))
        recorded = self._recorded(call.id)
        edited = recorded is not None and any(one.action == "edit" for one in recorded.decisions)
        if edited and outcome.error != "skipped":
            observation = f"{edited_note(call.name, parse_arguments(call.arguments))}\n\n{observation}"
        return ev.CallFinished(
            step=self.meter.step, call_id=call.id, observation=observation, error=outcome.error
        )

    def _recorded(self, call_id: str) -> Call | None:
        steps = self.recorder.trajectory.steps
        calls = steps[-1].calls if steps else []
        return next((call for call in calls if call.id == call_id), None)

    async def _add_details(self, event: ev.CallFinished, outcome: Outcome, changes: Changes) -> None:
        event.changes, event.changes_incomplete = await file_diffs(changes)
        if (result := outcome.result) is None:
            return
        event.exit_code, event.timed_out = result.exit_code, result.timed_out
        event.truncated, event.duration, event.notice = result.truncated, result.duration, result.notice
        event.stdout = await self.recorder.store(result.stdout)
        event.stderr = await self.recorder.store(result.stderr)

    def _finish(self, event: ev.CallFinished, *, footer: bool = True) -> ev.CallFinished:
        """The one result of a call joins the history; the last one of a step says how many steps remain."""
        self.meter.add_text(event.observation)
        self._open.pop(0)
        self._executing = False
        self._footer = ""
        if footer and not self._open and not self.meter.over:
            self._footer = f"\n\n{self.meter.next_turn()}"
            event.observation += self._footer
        self.messages.append(tool_message(event.call_id, event.observation))
        self.recorder.emit(event)
        return event

    def _replace_observation(self, result: ev.CallFinished, decision: Decision) -> ev.CallDecided:
        """The model reads what a person gave; the steps that remain stay below it."""
        shown = decision.text or ""
        if not shown.endswith(self._footer):
            shown += self._footer
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
