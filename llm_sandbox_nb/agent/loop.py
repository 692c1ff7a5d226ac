"""Loop of a run: request a reply, execute its tool calls, send the results, and repeat until the run is over."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from llm_sandbox_nb.agent.call_execution import CallExecution
from llm_sandbox_nb.agent.call_form import CallForm
from llm_sandbox_nb.agent.checks import ResultCheck
from llm_sandbox_nb.agent.compaction import Compaction
from llm_sandbox_nb.agent.control.run_control import PausePoints, RunControl
from llm_sandbox_nb.agent.conversation import Conversation, Message
from llm_sandbox_nb.agent.conversation_state import ConversationState
from llm_sandbox_nb.agent.errors import StopRun
from llm_sandbox_nb.agent.failing_calls import FailingCalls
from llm_sandbox_nb.agent.model_call import call_model, unless_failed
from llm_sandbox_nb.agent.no_call import SilentReplies, refusal
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.run_limits import Meter, estimated_tokens
from llm_sandbox_nb.agent.run_options import USUAL_NUDGES
from llm_sandbox_nb.agent.run_spec import RunSpec
from llm_sandbox_nb.agent.submission import Submission
from llm_sandbox_nb.agent.text_mode import TextMode, load_text_form
from llm_sandbox_nb.agent.workspace import Workspace
from llm_sandbox_nb.model.contract import BROKEN_OFF, ContextOverflowError, Reply, until_prepared
from llm_sandbox_nb.trajectory import events as ev

_T = TypeVar("_T")


@dataclass
class Loop:
    """Loop of a run. `start` or `restore` must be called before `run`.

    `workspace` is not awaited before the first call, so that the sandbox starts while the model writes its first reply.
    """

    spec: RunSpec
    recorder: Recorder
    meter: Meter
    workspace: asyncio.Future[Workspace]
    control: RunControl = field(default_factory=RunControl)
    check: ResultCheck | None = None
    """Checker of the result. The check runs before the run ends."""

    def __post_init__(self) -> None:
        spec = self.spec
        # A person may change model, settings and rules during the run, so the loop has its own references to them.
        self.model, self.settings, self.pause_rules = spec.model, spec.settings, spec.pause_rules
        self.tools = spec.toolbox.schemas(spec)
        self.meter.tools = estimated_tokens(json.dumps(self.tools))
        text = TextMode(load_text_form(spec.prompts.text_form), self.tools)
        self.form = CallForm(spec.tool_calls, text, self.recorder, self.meter)
        self.compaction = Compaction(spec.context, self.recorder, self.meter)
        self._submitted = False
        """True if the restored conversation ends with an accepted submission."""
        self._given_before: Mapping[str, str] = {}
        """Observations that a person has given for open calls of a restored conversation."""
        self._request_seconds = 0.0
        """Seconds that the requests of the current step have taken, including retries."""
        self._cut_noted = False
        """True if this process has recorded a note that replies may be cut off."""
        self._unpriced_noted = False
        """True if this process has recorded a note that the cost of a reply is not known."""
        self._begin_conversation()

    def _begin_conversation(self) -> None:
        self.form.begin()
        self.conversation = Conversation(self.recorder, self.meter, self.form)
        self.submission = Submission(
            self.conversation,
            self.workspace,
            self.recorder,
            self.meter,
            self.check,
            self.spec.replies,
            lambda: self.spec.remind and not self.model.scripted,
        )
        toolbox = self.spec.toolbox
        pauses = PausePoints(self.control, self.pause_rules, toolbox, self.recorder, self.meter)
        failing = FailingCalls(self.spec.same_failures)
        self.execution = CallExecution(
            self.conversation,
            self.submission,
            self.workspace,
            self.recorder,
            self.meter,
            toolbox,
            pauses,
            failing,
        )
        self._silent = SilentReplies()

    def start(self, messages: Sequence[Message]) -> None:
        """Begin a conversation with these messages. The last message is the task."""
        self._begin_conversation()
        self.conversation.begin(messages)
        if self.form.in_text:
            self.form.describe()

    def restore(self, state: ConversationState) -> None:
        """Continue a conversation. `run` executes the open calls of the conversation first."""
        self._begin_conversation()
        self.conversation.restore(state)
        self._submitted, self._given_before = state.submitted, state.given
        self.compaction.restore()
        self.meter.next_turn()

    async def run(self) -> NoReturn:
        """Execute steps until the run is over.

        Raises:
            StopRun: at the end of the run, with the reason of the end.
            SandboxLostError: if the sandbox died.
            Exception: if something else failed.
        """
        if self._submitted:
            await self.submission.repeat()
        if self.conversation.open_calls:
            await self.execution.execute(self._given_before)
            self._check_limits()
        nudge = ""
        while True:
            self.meter.leave_out(await self.control.wait_while_paused())
            self.conversation.add_user_message(self.control.take_texts(), nudge)
            reply = await self._ask_model()
            if reply.calls:
                nudge = ""
                await self.execution.execute(self.spec.given)
            else:
                nudge = await self._nudge_for_call(reply)
            self._check_limits()

    def close_open_calls(self, *, interrupted: bool = False) -> None:
        """Add a result with an explanation to each call that has no result, so that the history stays valid.

        `interrupted` is True if the run was stopped or rewound, and False if a failure or a limit ended the run.
        """
        self.execution.close_open_calls(interrupted=interrupted)

    def _check_limits(self) -> None:
        if self.execution.failing.over:
            raise StopRun("repeated", self.execution.failing.sentence)
        if reason := self.meter.over:
            if reason == "context":
                raise StopRun("tokens", self.compaction.ending)
            raise StopRun(reason)
        if self.spec.replies is not None and self.meter.step >= self.spec.replies:
            raise StopRun("steps")

    # --- the model ---

    async def _ask_model(self) -> Reply:
        self.meter.begin_step()
        self._request_seconds = 0.0
        await self._while_possible(until_prepared(self.model))
        while True:
            try:
                reply = await self._while_possible(self._fitting_reply())
                break
            except StopRun as stop:
                if not self.form.change_after(stop.__cause__, self.model):
                    raise
        reply = self.form.read(reply, self.conversation.outputs, self.conversation.task)
        # No await from here to `propose_calls`, because an interruption must not separate a reply from its calls.
        self.conversation.add_reply(reply, self.model, self._request_seconds)
        self._note_problems(reply)
        self.conversation.propose_calls()
        if reply.calls:
            self._silent = SilentReplies()
        return reply

    async def _while_possible(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Await `work`. Raise an exception if the time limit is reached first, or if the sandbox cannot start."""
        return await self.meter.in_time(unless_failed(work, self.workspace))

    async def _fitting_reply(self) -> Reply:
        """Request a reply. If the conversation does not fit into the model's context, shorten the conversation."""
        await self.compaction.prepare(self.model, self.conversation, self._request)
        self.compaction.leave_out_repeats(self.conversation, self.form.repeated, self._silent.cut_nudges)
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._request(self.conversation.messages)
            except ContextOverflowError as error:
                if not self.compaction.recover(error, self.conversation, attempt):
                    raise StopRun("tokens", str(error)) from error

    async def _request(self, messages: list[Message], summary_tokens: int | None = None) -> Reply:
        """Request a reply. If `summary_tokens` is given, request a summary of at most this number of tokens."""
        tokens = summary_tokens or self.meter.reply_tokens(self.settings.max_tokens)
        settings = dataclasses.replace(self.settings, max_tokens=tokens)
        messages, tools = self.form.request(messages, settings, summary=summary_tokens is not None)
        started = time.monotonic()
        try:
            return await call_model(
                self.model,
                messages,
                tools,
                settings,
                self.spec.retries,
                self.recorder,
                self.meter.step,
                self.compaction.learn,
            )
        finally:
            self._request_seconds += time.monotonic() - started

    def _note_problems(self, reply: Reply) -> None:
        notes = []
        if self.meter.step == 1 and reply.left_out:
            notes.append(f"{self.model.name} does not accept {', '.join(reply.left_out)}: not sent.")
        priced = reply.usage is not None and reply.usage.cost is not None
        if self.meter.limits.cost is not None and not priced and not self._unpriced_noted:
            self._unpriced_noted = True
            notes.append(
                f"The cost of step {self.meter.step} with {self.model.name} is not known, so the limit on cost counts "
                "only known costs."
            )
        if reply.finish_reason == BROKEN_OFF and not self._cut_noted:
            self._cut_noted = True
            notes.append(
                f"The reply of step {self.meter.step} broke off without the server's mark of its end, and so did the "
                "reply to a second request. The second reply was used as it is. It may be incomplete, and so may later "
                "replies."
            )
        for note in notes:
            self.recorder.emit(ev.Noted(text=note))

    # --- replies without a call ---

    async def _nudge_for_call(self, reply: Reply) -> str:
        """Return a text that asks the model for a call. The text is empty if the run ends after this step.

        Raises:
            StopRun: if the model refused, or made no call in too many replies.
        """
        if refused := refusal(reply):
            raise refused
        if self.meter.over:
            return ""
        silent = self._silent
        silent.add(reply, self.conversation.was_sent, self.form.refused_call)
        patience = USUAL_NUDGES if self.spec.nudges == "all" else self.spec.nudges
        if len(silent) > patience and self._may_switch():
            self.form.switch_to_text(f"The model made no call in {len(silent)} replies")
            nudge = silent.nudge(self.form.nudge_form)
            silent.begin_anew()
        else:
            if len(silent) > patience and self.spec.nudges != "all":
                await self.submission.end(silent.ending())
            nudge = silent.nudge(self.form.nudge_form)
            if len(silent) == patience:
                self.form.demand_call(self.model)
        self.meter.add_text(nudge)
        if len(silent) <= patience and (wait := silent.wait(self.spec.retries)):
            await self.meter.in_time(asyncio.sleep(wait))
        return nudge

    def _may_switch(self) -> bool:
        """Return True if a switch to text mode may help after replies without a call."""
        if not self.form.may_switch or not self.spec.nudges:
            return False
        never_called = not self.conversation.has_native_call and not self.model.scripted
        return self._silent.wants_to_act or (self._silent.talks and never_called)
