"""Conversation with the model. Only this module changes the messages, and each change is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from llm_sandbox_nb.agent.call_form import CallForm
from llm_sandbox_nb.agent.control.decisions import Decision
from llm_sandbox_nb.agent.conversation_state import ConversationState
from llm_sandbox_nb.agent.inputs import previewed
from llm_sandbox_nb.agent.no_call import own_words, says_something
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.run_limits import Meter, Thoughts
from llm_sandbox_nb.agent.text_mode import printed_value, result_kind
from llm_sandbox_nb.agent.tools.arguments import ArgumentsError, parse_arguments
from llm_sandbox_nb.model.contract import AppendOnly, Model, Reply, ToolCall
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.messages import (
    ResultsMessage,
    add_message,
    add_result,
    call_ids,
    message_text,
    reduced_messages,
    show_instead,
)

Message = dict[str, Any]
_RESULT_MARK = "\0"
"""Placeholder for a result in a text form, to find the texts that the form adds before and after the result."""


class Conversation:
    """Messages of a run, as the next request sends them.

    Each method changes the messages, the meter's token count and the record without an await, so that an interruption
    cannot separate these changes. So `Trajectory.messages()` returns exactly these messages.
    """

    def __init__(self, recorder: Recorder, meter: Meter, form: CallForm) -> None:
        self._recorder, self._meter, self._form = recorder, meter, form
        self.messages: list[Message] = []
        self.open_calls: list[ToolCall] = []
        """The calls of the newest reply that have no result yet."""
        self.last_text = ""
        """Text of the newest reply that has text."""
        self.earlier_answer = ""
        """Answer with which the run had ended before it was resumed. It holds until the model gives another answer."""
        self.only_talked = False
        """True if the newest reply had no call."""
        self.footer = ""
        """End of the newest observation, with the number of remaining steps and advice."""
        self._first: Sequence[Message] = ()
        """The first messages, until `add_user_message` adds them to `messages`. Empty after that."""
        self._resumed = False
        """True if the conversation was restored without open calls, and no message was added since."""
        self._newest_has_text = False
        self._talked = False
        """True if a reply without a call had text."""
        self._reply: Message = {}
        self._from_text = False
        """True if the calls of the newest reply were read from its text."""
        self._sent_words: set[str] = set()
        """Results of `own_words` for the user messages and tool results among the first `_words_read` messages."""
        self._words_read = 0

    def begin(self, messages: Sequence[Message]) -> None:
        """Begin with these messages, which the first call of `add_user_message` adds. The last message is the task."""
        self._first = messages
        for message in messages:
            self._meter.add_text(message["content"])

    def restore(self, state: ConversationState) -> None:
        """Continue a recorded conversation."""
        self.messages, self.open_calls = list(state.messages), list(state.open)
        self._resumed = not state.open
        self.earlier_answer = state.answer
        trajectory = self._recorder.trajectory
        for event in trajectory.path:
            match event:
                case ev.ModelReplied():
                    self._reply, self._from_text = event.message, event.calls_from == "text"
                    step = trajectory.step(event.step)
                    self._note_text(self._form.recorded_text(event), talks=not (step and step.calls))
                case ev.RunFinished():  # from here on, `earlier_answer` has the answer of the earlier replies
                    self.last_text, self._talked = "", False
                    self.only_talked = self._newest_has_text = False

    def add_user_message(self, texts: Sequence[str], nudge: str = "") -> None:
        """Add the task (the first time only), a person's texts and a nudge as one user message.

        There is only one message, because some servers refuse two user messages in a row.
        """
        parts = list(texts)
        message: Message = {"role": "user"}
        self._meter.add_text("".join(parts))
        if self._first:
            *before, message = self._first
            for earlier in before:
                self._add(earlier)
            parts.insert(0, message["content"])
        if nudge:
            parts += [nudge, self._next_turn()]
        elif self._first or self._meter.limits_changed or (parts and self._resumed):
            parts.append(self._next_turn())
        if parts:
            self._add({**message, "content": "\n\n".join(filter(None, parts))})
        self._first, self._resumed = (), False

    def add_reply(self, reply: Reply, model: Model, seconds: float) -> None:
        """Add a reply of `model`. The step's requests took `seconds` in all. `propose_calls` must be called next."""
        self.messages.append(reply.message)
        self._reply, self._from_text = reply.message, self._form.from_text
        written = reply.text + (reply.reasoning or "") + "".join(call.arguments for call in reply.calls)
        thoughts = Thoughts.of(reply.message, reply.reasoning, reply.usage)
        if isinstance(model, AppendOnly) and model.append_only:
            thoughts = Thoughts()
        self._meter.add_reply(reply.usage, written, thoughts)
        self._note_text(reply.text, talks=not reply.calls)
        self.open_calls = list(reply.calls)
        self._recorder.emit(
            ev.ModelReplied(
                step=self._meter.step,
                message=reply.message,
                reasoning=reply.reasoning,
                usage=reply.usage,
                finish_reason=reply.finish_reason,
                model_time=seconds,
                response_id=reply.response_id,
                response_model=reply.response_model,
                context_window=self._meter.context or reply.context_window,
                calls_from="text" if self._from_text else None,
                raw_text=reply.raw_text,
            )
        )

    def _note_text(self, text: str, *, talks: bool) -> None:
        """Remember the text of the newest reply, which may be the answer. `talks` is True for a reply without calls."""
        self._newest_has_text = says_something(text)
        self.last_text = text.strip() if self._newest_has_text else self.last_text
        self.only_talked = talks
        self._talked = self._talked or (self._newest_has_text and talks)

    def propose_calls(self) -> None:
        """Record the open calls of a new reply as proposed calls."""
        for call in self.open_calls:
            try:
                arguments = parse_arguments(call.arguments)
            except ArgumentsError:
                arguments = None
            self._recorder.emit(
                ev.CallProposed(
                    step=self._meter.step,
                    call_id=call.id,
                    tool=call.name,
                    raw_arguments=call.arguments,
                    arguments=arguments,
                )
            )

    def add_result(self, event: ev.CallFinished, *, advice: str = "", footer: bool = True) -> None:
        """Add the result of the first open call. The result of the last open call ends with a footer.

        The text that the model reads is stored in `event`. The footer has the number of remaining steps and `advice`.
        """
        call = self.open_calls.pop(0)
        in_text = self._from_text and call.id not in call_ids(self._reply)
        if in_text:
            write = partial(
                self._form.text.result, self._reply, kind=result_kind(event), line=printed_value(event)
            )
            start, _, end = write(_RESULT_MARK).partition(_RESULT_MARK)
            event.observation = write(event.observation)
            # A form that a user wrote may contain the result twice. Then no single text is before and after the result.
            event.before, event.after = ("", "") if _RESULT_MARK in end else (start + event.before, end)
        self._meter.add_text(event.observation)
        self.footer = ""
        if footer and not self.open_calls and not self._meter.over:
            text = "\n".join(filter(None, [self._next_turn(), advice]))
            self.footer = f"\n\n{text}" if text else ""
            event.observation += self.footer
            event.after += self.footer
        add_result(self.messages, event.call_id, event.observation, in_text=in_text)
        self._recorder.emit(event)

    def replace_result(self, result: ev.CallFinished, decision: Decision) -> ev.CallDecided:
        """Replace the newest observation by a person's text and the footer. Return the event of this change."""
        shown = (decision.text or "").removesuffix(self.footer) + self.footer
        self._meter.add_text(shown)
        show_instead(self.messages, result.call_id, shown)
        return ev.CallDecided(
            step=result.step,
            call_id=result.call_id,
            action="observe",
            observation=shown,
            after=self.footer,
            original=self._recorder.journal.store_text(result.observation),
            source=decision.source,
        )

    def reduce(self, event: ev.ContextReduced) -> None:
        """Replace and remove the messages that `event` names, and record the event."""
        self._recorder.emit(event)
        self.messages = reduced_messages(self.messages, event)
        self._sent_words.clear()
        self._words_read = 0

    # --- reading ---

    @property
    def has_answer_text(self) -> bool:
        """True if the model has written text that may be its answer. In text mode, text around calls is ignored."""
        return self._newest_has_text or self._talked or bool(self.last_text and not self._form.in_text)

    @property
    def has_native_call(self) -> bool:
        return any(message.get("tool_calls") for message in self.messages)

    def outputs(self) -> list[str]:
        """Return the results of earlier calls, and the preview of the input files if there is one."""
        results = [
            message_text(message)
            for message in self.messages
            if message["role"] == "tool" or type(message) is ResultsMessage
        ]
        return [*results, *filter(None, (previewed(message_text(first)) for first in self.messages[:2]))]

    def was_sent(self, words: str) -> bool:
        """Return True if the model has read a text for which `own_words` returns exactly `words`."""
        for message in self.messages[self._words_read :]:
            if message["role"] in ("user", "tool"):
                self._sent_words.add(own_words(message_text(message)))
        self._words_read = len(self.messages)
        return words in self._sent_words or words in (own_words(self.task), own_words(self.footer))

    @property
    def task(self) -> str:
        start = self._recorder.trajectory.start
        return start.task if start else ""

    # --- writing ---

    def _next_turn(self) -> str:
        return self._meter.next_turn(self._form.footer_from)

    def _add(self, message: Message) -> None:
        add_message(self.messages, message)
        self._recorder.emit(ev.MessageAdded(message=message))
