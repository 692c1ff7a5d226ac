"""Form of a run's calls, and the switch from native calls to text.

Native calls come in a reply's field for tool calls. In text mode, the model writes calls into the text of its replies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.run_limits import Meter
from llm_sandbox_nb.agent.run_options import ToolCalls
from llm_sandbox_nb.agent.text_mode import BLOCK_END, TextForm, TextMode, without_echoes
from llm_sandbox_nb.model.contract import Model, ModelError, ModelSettings, Reply
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.messages import call_ids, message_text

Messages = list[dict[str, Any]]
_DEMAND_REFUSALS = ("bad_request", "setting", "tools", "server", "unknown")
"""Kinds of errors with which a server may refuse `tool_choice: required`."""
_STOP_REFUSALS = ("bad_request", "setting", "unknown")
"""Kinds of errors with which a server may refuse a stop sequence."""


class CallForm:
    """Form of the calls in requests and replies.

    With the setting `auto`, a run begins with native calls. If the server does not accept tools, or the model makes no
    calls, the run switches to text. A run switches at most once. If the model makes no calls, one request demands a
    call before the switch.
    """

    def __init__(self, setting: ToolCalls, text: TextMode, recorder: Recorder, meter: Meter) -> None:
        """Create the form.

        If the run's record has a setting `tool_calls`, the newest recorded setting is used instead of `setting`.
        """
        self.text = text
        self.in_text = False
        """True if calls are written as text."""
        self.from_text = False
        """True if the calls of the newest reply were read from its text."""
        self.refused_call = ""
        """Reason why a call in the newest reply was not executed. Empty if there is no such call."""
        self._given_setting = setting
        self._recorder = recorder
        self._meter = meter
        self._demands = False
        """True if the next request demands a call."""
        self._demanded = False
        """True if a request has demanded a call. Only one request of a run demands a call."""
        self._whole_replies = False
        """True if requests have no stop sequence.

        The server may refuse a stop sequence, or a code block in a thought may end the reply too early.
        """

    @property
    def _setting(self) -> str:
        return self._recorder.trajectory.tool_calls or self._given_setting

    @property
    def may_switch(self) -> bool:
        """True if the setting allows a switch to text."""
        return self._setting == "auto"

    @property
    def nudge_form(self) -> TextForm | None:
        """Text form in which a nudge (a request for a call) asks the model to write calls. None if calls are native."""
        return self.text.form if self.in_text else None

    @property
    def footer_from(self) -> int | None:
        """If more steps than this remain, a message to the model does not state the number of remaining steps.

        None if every message states the number. The message before the last step always states it.
        """
        return self.text.form.footer_from if self.in_text else None

    @property
    def repeated(self) -> str:
        """Text that replaces equal newest replies. Empty if all replies are sent."""
        return self.text.form.repeated if self.in_text else ""

    def begin(self) -> None:
        """Begin or continue a conversation with the form of calls (text or native) that the setting selects."""
        self._demands = False
        self.in_text = self._setting == "text"

    def describe(self) -> None:
        """Let the meter count the tokens of text mode's description, and no longer those of the tool definitions."""
        self._meter.tools = 0
        self._meter.add_text(self.text.described)

    def request(
        self, messages: Messages, settings: ModelSettings, *, summary: bool
    ) -> tuple[Messages, list[Any]]:
        """Return the messages and the tools of a request, and change `settings` in place.

        `summary` is True if the request asks for a summary instead of a call.
        """
        if not self.in_text:
            if self._demands and not summary:
                settings.extra_body = {"tool_choice": "required", **settings.extra_body}
            return list(messages), list(self.text.tools)
        if self.text.form.first_block_ends and not self._whole_replies and not summary:
            settings.extra_body = {"stop": [BLOCK_END], **settings.extra_body}
        return self.text.request(messages), []

    def read(self, reply: Reply, outputs: Callable[[], Sequence[str]], task: str) -> Reply:
        """Return the reply with the calls that its text contains, except calls that only repeat a result or the task.

        `outputs` returns the earlier results. Collecting many results takes time, so this function is called only if
        the text may contain calls.
        """
        self._demands = self.from_text = False
        self.refused_call = reply.refused_call
        if self.in_text or reply.written:
            native = bool(reply.calls)
            read = self.text.read if self.in_text else without_echoes
            reply, self.refused_call = read(reply, outputs(), task)
            self.from_text = bool(reply.calls) and not (self.in_text and native)
        self._whole_replies = self._whole_replies or bool(reply.reasoning)
        return reply

    def recorded_text(self, event: ev.ModelReplied) -> str:
        """Return the text of a recorded reply without the calls that were read from it."""
        text = message_text(event.message)
        if event.calls_from != "text" or call_ids(event.message):
            return text
        reply = Reply(event.message, text, finish_reason=event.finish_reason)
        return self.text.read(reply, outputs=[""], task="")[0].text

    def demand_call(self, model: Model) -> None:
        """Let the next request demand a call. If a request has already demanded a call, do nothing."""
        if self._setting == "auto" and not self.in_text and not self._demanded and not model.scripted:
            self._demands = self._demanded = True
            self._note("The next request demands a call (tool_choice: required); not every server obeys.")

    def switch_to_text(self, reason: str) -> None:
        self.in_text, self._demands = True, False
        self.describe()
        self._recorder.emit(ev.SettingsChanged(settings={"tool_calls": "text"}, source="run"))
        self._note(f"{reason}: from now on it writes its calls as text.")

    def change_after(self, failure: BaseException | None, model: Model) -> bool:
        """Change the form after a failed request. Omit a stop sequence or a demand for a call, or switch to text.

        Return True if the form has changed, so that the request should be sent again.
        """
        if not isinstance(failure, ModelError):
            return False
        if self.in_text:
            if (
                self._whole_replies
                or not self.text.form.first_block_ends
                or failure.kind not in _STOP_REFUSALS
            ):
                return False
            self._whole_replies = True
            return True
        if failure.kind == "tools" and self.may_switch:
            self.switch_to_text(f"{model.name} does not accept tools")
            return True
        if self._demands and failure.kind in _DEMAND_REFUSALS:
            self._demands = False
            self._note("The server refuses to demand a call: the request is repeated without the demand.")
            return True
        return False

    def _note(self, text: str) -> None:
        self._recorder.emit(ev.Noted(text=text))
