"""Loop of a run: request a reply, execute its tool calls, send the results, until the run is over."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, TypeVar

from llm_sandbox_nb.agent.artifacts import AnswerFiles, Collector
from llm_sandbox_nb.agent.checkpoints import Checkpoints
from llm_sandbox_nb.agent.checks import ResultCheck
from llm_sandbox_nb.agent.context_window import ContextMode, ContextWindow
from llm_sandbox_nb.agent.control.decisions import Decision, edited_note
from llm_sandbox_nb.agent.control.pause_points import PausePoints
from llm_sandbox_nb.agent.control.pause_rules import PauseRules
from llm_sandbox_nb.agent.control.run_control import RunControl
from llm_sandbox_nb.agent.conversation import ConversationState
from llm_sandbox_nb.agent.errors import StopRun
from llm_sandbox_nb.agent.failing_calls import FailingCalls
from llm_sandbox_nb.agent.inputs import previewed
from llm_sandbox_nb.agent.limits import Meter, Thoughts, estimated_tokens
from llm_sandbox_nb.agent.model_call import call_model, unless_failed
from llm_sandbox_nb.agent.no_call import USUAL_NUDGES, Nudges, SilentReplies, refusal, says_something
from llm_sandbox_nb.agent.recorder import LiveOutput, Recorder
from llm_sandbox_nb.agent.text_mode import (
    BLOCK_END,
    TextMode,
    ToolCalls,
    is_native,
    last_line,
    load_text_form,
    result_kind,
    without_echoes,
)
from llm_sandbox_nb.agent.tools.arguments import ArgumentsError, parse_arguments
from llm_sandbox_nb.agent.tools.text_file import file_diffs
from llm_sandbox_nb.agent.tools.tool import Outcome, ToolContext
from llm_sandbox_nb.agent.tools.toolbox import TOOLS, Toolbox, ends_run
from llm_sandbox_nb.model.contract import (
    BROKEN_OFF,
    AppendOnly,
    ContextOverflowError,
    Model,
    ModelError,
    ModelSettings,
    Reply,
    ToolCall,
    until_prepared,
)
from llm_sandbox_nb.model.retries import RetryPolicy
from llm_sandbox_nb.sandbox.contract import DEFAULT_TIMEOUT, Changes, Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.messages import (
    ResultsMessage,
    add_message,
    add_result,
    message_text,
    show_instead,
)
from llm_sandbox_nb.trajectory.trajectory import Call

CUT_OFF = (
    "The limit of tokens for one reply cut this call off. Nothing was done: make it shorter, for example write a "
    "long file in several parts."
)
NOTHING_SAVED = (
    "The task is not ended yet: nothing is saved in {folder}, and your reply says nothing, so there is "
    "no answer. Save the result, for example: echo 'the answer' > {folder}/answer.txt. Then call submit "
    "again. If the task asks for no result, call submit again now."
)
CHECK_FAILED = "check_failed"
NOT_EXECUTED = "Not executed: the run ended before this call."
INTERRUPTED = "Interrupted: the run was stopped during this call."
CUT_SHORT = "Not finished: the run ended during this call."
_RESULT_MARK = "\0"
"""Placeholder that no result contains, to find the place of a result in a form."""
_INTERRUPT_TIMEOUT = 5.0
"""Seconds to wait for the result so far of an interrupted call."""
_T = TypeVar("_T")


@dataclass
class Workspace:
    """Sandbox that is set up, with everything that the execution of tool calls needs."""

    box: Sandbox
    collector: Collector
    checkpoints: Checkpoints
    command_timeout: float = DEFAULT_TIMEOUT
    """Default command timeout in seconds."""
    answers: AnswerFiles | None = None
    """Possible answer files."""


@dataclass
class Loop:
    """Loop over one conversation: call `start` or `restore`, then `run`.

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
    """Rules for automatic pauses, which may change during the run."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Observations of calls that are not executed, by call id."""
    check: ResultCheck | None = None
    """Check of the result before the run ends."""
    replies: int | None = None
    """Maximum number of replies, hidden from the model: the length of a record that is replayed."""
    toolbox: Toolbox = TOOLS
    """Tools that execute the calls."""
    tools: list[dict[str, Any]] = field(default_factory=TOOLS.schemas)
    """Schemas of the tools, with the default command timeout."""
    nudges: Nudges = USUAL_NUDGES
    tool_calls: ToolCalls = "auto"
    """Form of calls, unless the record has one."""
    text_form: str = "code"
    """Form of calls in text mode; see `load_text_form`."""
    remind: bool = True
    """True to remind the model once if it submits with no saved files and no text."""
    failing: FailingCalls = field(default_factory=FailingCalls)
    context: ContextMode = "mask"
    """Form of a conversation that nearly fills the model's context."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """Conversation in the form of the next request."""
    last_text: str = ""
    """Text of the newest reply with text."""
    only_talked: bool = False
    """True if the newest reply had no call."""
    without_answer: bool = False
    """True if the model has submitted with no saved files and no text."""
    _first: Sequence[dict[str, Any]] = ()
    """First messages of the conversation, until they are sent."""
    _restored: ConversationState | None = None
    """Conversation to continue, until the first new message."""
    _silent: SilentReplies = field(default_factory=SilentReplies)
    _nudge: str = ""
    """Answer to a reply without a call."""
    _request_seconds: float = 0.0
    """Duration of the requests of a step, including retries."""
    _in_text: bool = False
    """True if calls are written as text."""
    _demand: bool = False
    """True if the next request demands a call."""
    _demanded: bool = False
    """True once a request has demanded a call: a run tries this only once."""
    _reminded: bool = False
    _refused_call: str = ""
    """Reason why a call in the newest reply was not executed."""
    _written: bool = False
    """True if the calls of the newest reply were read from its text."""
    _reply: dict[str, Any] = field(default_factory=dict)
    """Newest reply as a message of the history."""
    _whole_replies: bool = False
    """True if replies continue after their first block: a server refuses a stop sequence, or thoughts have blocks."""
    _said: bool = False
    """True if the newest reply has text."""
    _spoke: bool = False
    """True if a reply without a call had text."""
    verdict: ev.Verdict | None = None
    """Verdict of the check at the end."""
    _open: list[ToolCall] = field(default_factory=list)
    """Calls of the newest reply without a result."""
    _cut_noted: bool = False
    """True if the record already notes that replies may be cut off."""
    _executing: bool = False
    _footer: str = ""
    """End of the newest observation: the remaining steps and advice."""

    def __post_init__(self) -> None:
        self._text = TextMode(load_text_form(self.text_form), self.tools)
        self.meter.tools = estimated_tokens(json.dumps(self.tools))
        self.window = ContextWindow(self.context, self.recorder, self.meter)

    def start(self, messages: Sequence[dict[str, Any]]) -> None:
        """Begin a conversation with these messages; the last one is the task."""
        self._reset()
        self._first = messages
        for message in messages:
            self.meter.add_text(message["content"])
        if self._in_text:
            self.meter.tools = 0  # the system message has them
            self.meter.add_text(self._text.described)

    def restore(self, state: ConversationState) -> None:
        """Continue a conversation: `run` executes its open calls first."""
        self._reset()
        self._restored = state
        self.messages, self._open = list(state.messages), list(state.open)
        replies = [event for event in self.recorder.trajectory.path if isinstance(event, ev.ModelReplied)]
        if replies:
            self._reply, self._written = replies[-1].message, replies[-1].calls_from == "text"
        self.window.restore()
        self.meter.next_turn()

    def _reset(self) -> None:
        self.messages, self._open, self._first, self._restored = [], [], (), None
        self.last_text, self.only_talked, self._nudge = "", False, ""
        self._silent = SilentReplies()
        self.failing = FailingCalls(self.failing.limit)
        self.without_answer = self._reminded = self._demand = self._written = self._said = self._spoke = False
        self._in_text = self._way == "text"

    @property
    def _way(self) -> str:
        """Form of calls now: `auto`, `native` or `text`."""
        return self.recorder.trajectory.tool_calls or self.tool_calls

    async def run(self) -> NoReturn:
        """Execute steps until the run is over.

        Raises:
            StopRun: at the end of the run, with the reason.
            SandboxLostError: if the sandbox died.
            Exception: after any other failure.
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
                await self._nudge_for_call(reply)
            self._check_limits()

    def _check_limits(self) -> None:
        if self.failing.over:
            raise StopRun("repeated", self.failing.sentence)
        if reason := self.meter.over:
            if reason == "context":
                raise StopRun("tokens", self.window.ending)
            raise StopRun(reason)
        if self.replies is not None and self.meter.step >= self.replies:
            raise StopRun("steps")

    def close_open_calls(self, *, interrupted: bool = False) -> None:
        """Add a result with an explanation to every call without a result, so that the history stays valid.

        `interrupted` is True if the run was stopped or rewound, False if a failure or a limit ended the run.
        """
        during = (INTERRUPTED, "interrupted") if interrupted else (CUT_SHORT, "cut_short")
        for call in tuple(self._open):
            text, error = during if self._executing else (NOT_EXECUTED, "not_executed")
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
            for earlier in before:
                self._add_message(earlier)
            texts.insert(0, message["content"])
        if self._nudge:
            texts += [self._nudge, self._next_turn()]
        elif self._first or self.meter.limits_changed or (texts and self._restored is not None):
            texts.append(self._next_turn())
        if texts:
            self._add_message({**message, "content": "\n\n".join(filter(None, texts))})
        self._first, self._restored, self._nudge = (), None, ""

    def _next_turn(self) -> str:
        return self.meter.next_turn(self._text.form.footer_from if self._in_text else None)

    def _add_message(self, message: dict[str, Any]) -> None:
        add_message(self.messages, message)
        self.recorder.emit(ev.MessageAdded(message=message))

    async def _nudge_for_call(self, reply: Reply) -> None:
        """Request a call with a different text each time. Raise StopRun after too many replies without a call."""
        if refused := refusal(reply):
            raise refused
        if self.meter.over:
            return
        silent = self._silent
        sent = [message_text(message) for message in self.messages if message["role"] in ("user", "tool")]
        silent.add(reply, [*sent, self._task, self._footer], self._refused_call)
        patience = USUAL_NUDGES if self.nudges == "all" else self.nudges
        if len(silent) > patience and not self._may_switch() and self.nudges != "all":
            await self._check_answer(silent.ending())
        if len(silent) > patience and self._may_switch():
            self._switch_to_text(f"The model made no call in {len(silent)} replies")
            self._nudge = silent.nudge(self._text.form)
            silent.begin_anew()
        else:
            self._nudge = silent.nudge(self._text.form if self._in_text else None)
            if len(silent) == patience:
                self._demand_call()
        self.meter.add_text(self._nudge)
        if len(silent) <= patience and (wait := silent.wait(self.retries)):
            await self._in_time(asyncio.sleep(wait))

    @property
    def _task(self) -> str:
        start = self.recorder.trajectory.start
        return start.task if start else ""

    # --- native calls, or text mode ---

    def _may_switch(self) -> bool:
        """Return True if a switch to text mode may help after replies without a call."""
        if self._way != "auto" or not self.nudges:
            return False
        called = any(message.get("tool_calls") for message in self.messages)
        return self._silent.wants_to_act or (self._silent.talks and not called and not self.model.scripted)

    def _switch_to_text(self, why: str) -> None:
        self._in_text, self._demand = True, False
        self.meter.tools = 0
        self.meter.add_text(self._text.described)
        self.recorder.emit(ev.SettingsChanged(settings={"tool_calls": "text"}, source="run"))
        self._note(f"{why}: from now on it writes its calls as text.")

    def _demand_call(self) -> None:
        """Make the next request demand a call, at most once per run."""
        if self._way == "auto" and not self._in_text and not self._demanded and not self.model.scripted:
            self._demand = self._demanded = True
            self._note("The next request demands a call (tool_choice: required); not every server obeys.")

    # --- the model ---

    async def _ask_model(self) -> Reply:
        step, self._request_seconds = self.meter.begin_step(), 0.0
        await self._in_time(unless_failed(until_prepared(self.model), self.workspace))
        while True:
            try:
                reply = await self._in_time(unless_failed(self._fitting_reply(step), self.workspace))
                break
            except StopRun as stop:
                if not self._other_way(stop.__cause__):
                    raise
        reply = self._with_written_calls(reply)
        self._add_reply(reply)
        return reply

    async def _fitting_reply(self, step: int) -> Reply:
        """Request a reply; shorten the conversation if it does not fit into the model's context."""
        await self.window.prepare(self.model, self.messages, partial(self._request, step))
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._request(step, self.messages)
            except ContextOverflowError as error:
                if not self.window.recover(error, self.messages, attempt):
                    raise StopRun("tokens", str(error)) from error

    async def _request(
        self, step: int, messages: list[dict[str, Any]], summary_tokens: int | None = None
    ) -> Reply:
        """Request a reply, or a summary of at most `summary_tokens` tokens."""
        tokens = summary_tokens or self.meter.reply_tokens(self.settings.max_tokens)
        settings = dataclasses.replace(self.settings, max_tokens=tokens)
        messages, tools = list(messages), self.tools
        if self._in_text:
            messages, tools = self._text.request(messages), []
            if self._text.form.first_block_ends and not self._whole_replies and summary_tokens is None:
                settings.extra_body = {"stop": [BLOCK_END], **settings.extra_body}
        elif self._demand and summary_tokens is None:
            settings.extra_body = {"tool_choice": "required", **settings.extra_body}
        started = time.monotonic()
        try:
            return await call_model(
                self.model, messages, tools, settings, self.retries, self.recorder, step, self.window.learn
            )
        finally:
            self._request_seconds += time.monotonic() - started

    def _other_way(self, failure: BaseException | None) -> bool:
        """Return True if a failed request should be sent again in another way: without a demand, or in text mode."""
        if not isinstance(failure, ModelError):
            return False
        if self._in_text:
            refused = failure.kind in ("bad_request", "setting", "unknown") and not self._whole_replies
            self._whole_replies = True
            return refused and self._text.form.first_block_ends
        if failure.kind == "tools" and self._way == "auto":
            self._switch_to_text(f"{self.model.name} takes no tools")
            return True
        if self._demand and failure.kind in ("bad_request", "setting", "tools", "server", "unknown"):
            self._demand = False
            self._note("The server refuses to demand a call: it is asked without.")
            return True
        return False

    def _with_written_calls(self, reply: Reply) -> Reply:
        """Read the calls in the text of a reply, except for calls that only repeat an earlier text."""
        self._demand = False
        self._written, self._refused_call = False, reply.refused_call
        if not self._in_text and not reply.written:  # skip the work below, which grows with the history
            return reply
        outputs = [
            message_text(message)
            for message in self.messages
            if message["role"] == "tool" or type(message) is ResultsMessage
        ]
        outputs += filter(None, (previewed(message_text(message)) for message in self.messages[:2]))
        native, read = bool(reply.calls), self._text.read if self._in_text else without_echoes
        reply, self._refused_call = read(reply, outputs, self._task)
        self._written = bool(reply.calls) and not (self._in_text and native)
        return reply

    def _add_reply(self, reply: Reply) -> None:
        """Add the reply to the history and the record, without an await: no interruption may separate the two."""
        self.messages.append(reply.message)
        self._reply = reply.message
        written = reply.text + (reply.reasoning or "") + "".join(call.arguments for call in reply.calls)
        thoughts = Thoughts.of(reply.message, reply.reasoning, reply.usage)
        if isinstance(self.model, AppendOnly) and self.model.append_only:
            thoughts = Thoughts()
        self.meter.add_reply(reply.usage, written, thoughts)
        self._whole_replies = self._whole_replies or bool(reply.reasoning)
        self._said = says_something(reply.text)
        self.last_text = reply.text.strip() if self._said else self.last_text
        self.only_talked = not reply.calls
        self._spoke = self._spoke or (self._said and self.only_talked)
        self._open = list(reply.calls)
        self.recorder.emit(
            ev.ModelReplied(
                step=self.meter.step,
                message=reply.message,
                reasoning=reply.reasoning,
                usage=reply.usage,
                finish_reason=reply.finish_reason,
                model_time=self._request_seconds,
                response_id=reply.response_id,
                response_model=reply.response_model,
                context_window=self.meter.context or reply.context_window,
                calls_from="text" if self._written and reply.calls else None,
                raw_text=reply.raw_text,
            )
        )
        if self.meter.step == 1 and reply.left_out:
            self._note(f"{self.model.name} does not take {', '.join(reply.left_out)}: left out.")
        if self.meter.step == 1 and self.meter.limits.cost is not None and self.meter.cost is None:
            self._note(f"The price of {self.model.name} is not known, so the limit on cost cannot be kept.")
        if reply.finish_reason == BROKEN_OFF and not self._cut_noted:
            self._cut_noted = True
            self._note(
                f"The reply of step {self.meter.step} broke off without the server's mark of its end, and did so again "
                "when it was repeated: it was taken as it came, and may be cut off, as later ones may be."
            )
        if reply.calls:
            self._silent = SilentReplies()
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
        """Execute every open call, or use the observation that a person gave."""
        pauses = PausePoints(self.control, self.pause_rules, self.toolbox, self.recorder, self.meter)
        while self._open:
            call = self._open[0]
            observation = given.get(call.id)
            if observation is None and (
                decision := await unless_failed(pauses.before_call(call), self.workspace)
            ):
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
            text, kind = (CUT_OFF, "cut_off") if unfinished and self._at_cut(call) else (error, error.kind)
            return self._finish(self._result(call, Outcome(f"Error: {text}", error=kind)))
        if ends_run(call.name):
            if reminder := await self._nothing_saved():
                return self._finish(self._result(call, Outcome(reminder, error="nothing_saved")))
            self._record_start(call, arguments)
            if not_accepted := await self._check_result():
                return self._finish(self._result(call, Outcome(not_accepted, error=CHECK_FAILED)))
            self._finish(self._result(call, Outcome(TOOLS[call.name].last_observation)), footer=False)
            raise StopRun("submitted")
        workspace = await self._in_time(asyncio.shield(self.workspace))
        await workspace.collector.settle()
        await workspace.checkpoints.settle()
        self._record_start(call, arguments)
        live = LiveOutput(call.id, self.recorder.emit)
        context = ToolContext(
            workspace.box,
            workspace.command_timeout,
            self.meter.time_left,
            live,
            workspace.collector.output_dir,
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

    async def _nothing_saved(self) -> str:
        """Return a reminder for a model that submits with no saved files and no text; empty without a reminder."""
        self.without_answer = False
        # In text mode, the words around a block are not an answer.
        said = self._said or self._spoke or (self.last_text and not self._in_text)
        if not self.remind or self.model.scripted or said:
            return ""
        workspace = await self._in_time(asyncio.shield(self.workspace))
        await workspace.collector.settle()
        if not self.recorder.trajectory.artifacts:
            await workspace.collector.collect_all()
        if self.recorder.trajectory.artifacts or (workspace.answers and await workspace.answers.read()):
            return ""
        if self._reminded or self.meter.over:
            self.without_answer = True
            return ""
        self._reminded = True
        return NOTHING_SAVED.replace("{folder}", workspace.collector.output_dir)

    async def _check_result(self) -> str:
        """Check the submitted result. Return the text for the model if it may try again, otherwise an empty text."""
        self.verdict = None
        if self.check is None:
            return ""
        workspace = await self._in_time(asyncio.shield(self.workspace))
        await workspace.collector.settle()
        await workspace.collector.collect_all()
        await workspace.checkpoints.settle()
        started = time.monotonic()
        written = await workspace.answers.read() if workspace.answers else None
        found = await self.check.run(workspace.box, written or self.last_text or None)
        self.meter.leave_out(time.monotonic() - started)  # the duration of a check is not the model's fault
        again = self.check.may_try_again(found)
        at_end = self.meter.over or (self.replies is not None and self.meter.step >= self.replies)
        if not again or at_end:
            self.verdict = found.verdict
            return ""
        return self.check.observation(found)

    async def _check_answer(self, ending: StopRun) -> NoReturn:
        """Raise `ending` after a single check of the answer, if the model gave one in its text or a file."""
        if self.check is not None:
            workspace = await self._in_time(asyncio.shield(self.workspace))
            if ending.reason == "answered" or (workspace.answers and await workspace.answers.read()):
                await self._check_result()
                self.verdict = self.verdict or self.recorder.trajectory.checks[-1].verdict
        raise ending

    def _at_cut(self, call: ToolCall) -> bool:
        """Return True if the call was the last one before the reply reached its token limit."""
        step = self.recorder.trajectory.steps[-1]
        last = step.calls[-1]
        return step.finish_reason == "length" and (last.id, last.raw_arguments) == (call.id, call.arguments)

    async def _finish_executed(self, call: ToolCall, outcome: Outcome, changes: Changes) -> ev.CallFinished:
        result = self._result(call, outcome)
        await self._add_details(result, outcome, changes)
        return self._finish(result)

    async def _finish_interrupted(self, call: ToolCall, running: asyncio.Task[Outcome], box: Sandbox) -> None:
        """Interrupt an executing call and record its result so far. Without a result in time, the call stays open."""
        try:
            async with asyncio.timeout(_INTERRUPT_TIMEOUT):
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
        observation, before = str(ev.clean_text(outcome.observation)), ""
        recorded = self._recorded(call.id)
        edited = recorded is not None and any(decision.action == "edit" for decision in recorded.decisions)
        if edited and outcome.error != "skipped":
            before = f"{edited_note(call.name, parse_arguments(call.arguments))}\n\n"
        return ev.CallFinished(
            step=self.meter.step,
            call_id=call.id,
            observation=before + observation,
            before=before,
            error=outcome.error,
        )

    def _recorded(self, call_id: str) -> Call | None:
        steps = self.recorder.trajectory.steps
        calls = steps[-1].calls if steps else []
        return next((call for call in calls if call.id == call_id), None)

    async def _add_details(self, event: ev.CallFinished, outcome: Outcome, changes: Changes) -> None:
        event.changes, event.changes_incomplete = await file_diffs(changes)
        event.raw_result = await self.recorder.store(outcome.raw)
        if (result := outcome.result) is None:
            return
        event.exit_code, event.timed_out = result.exit_code, result.timed_out
        event.truncated, event.duration, event.notice = result.truncated, result.duration, result.notice
        event.stdout = await self.recorder.store(result.stdout)
        event.stderr = await self.recorder.store(result.stderr)
        event.background = await self.recorder.store(result.background)

    def _finish(self, event: ev.CallFinished, *, footer: bool = True) -> ev.CallFinished:
        """Add the result of a call to the history; the last result of a step ends with the remaining steps."""
        call = self._open.pop(0)
        self._executing = False
        in_text = self._written and not is_native(self._reply, call.id)
        if in_text:
            form = partial(self._text.result, self._reply, kind=result_kind(event), line=last_line(event))
            start, _, end = form(_RESULT_MARK).partition(_RESULT_MARK)
            event.observation = form(event.observation)
            # A user's form may contain the result twice: then the text around the result is unknown.
            event.before, event.after = ("", "") if _RESULT_MARK in end else (start + event.before, end)
        self.failing.add(call.name, call.arguments, event.error, failed=event.failed)
        self.meter.add_text(event.observation)
        self._footer = ""
        if footer and not self._open and not self.meter.over:
            advice = f"\n{self.failing.advice}" if self.failing.advice and not self.failing.over else ""
            text = f"{self._next_turn()}{advice}".strip()
            self._footer = f"\n\n{text}" if text else ""
            event.observation += self._footer
            event.after += self._footer
        add_result(self.messages, event.call_id, event.observation, in_text=in_text)
        self.recorder.emit(event)
        return event

    def _replace_observation(self, result: ev.CallFinished, decision: Decision) -> ev.CallDecided:
        """Replace an observation in the history by a person's text, with the footer below, and return the event."""
        shown = (decision.text or "").removesuffix(self._footer) + self._footer
        self.meter.add_text(shown)
        show_instead(self.messages, result.call_id, shown)
        original = self.recorder.journal.store_text(result.observation)
        return ev.CallDecided(
            step=result.step,
            call_id=result.call_id,
            action="observe",
            observation=shown,
            after=self._footer,
            original=original,
            source=decision.source,
        )
