"""Replies without a tool call: their kinds, the nudges (messages that ask the model for a call), and the run's end."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from llm_sandbox_nb.agent.code_blocks import CodeBlock, code_blocks
from llm_sandbox_nb.agent.errors import StopRun
from llm_sandbox_nb.agent.text_mode import ABOVE, TextForm
from llm_sandbox_nb.model.contract import Reply
from llm_sandbox_nb.model.message_form import NOTHING_SAID
from llm_sandbox_nb.model.retries import RetryPolicy
from llm_sandbox_nb.model.text_calls import read_text_calls

ReplyKind = Literal["text", "empty", "thought", "cut", "echo"]
_FIRST_NUDGES: dict[ReplyKind, str] = {
    "text": "There was no tool call in your reply, so nothing was done. If the task is finished and its results are "
    "saved, call submit; if not, continue with a tool call. Nobody can answer questions.",
    "cut": "Your reply reached the limit of tokens for one reply before it came to a tool call, so nothing was "
    "done. Think in smaller steps and make a tool call; call submit if the task is finished.",
    "empty": "Your reply was empty, so nothing was done. Continue the task with a tool call, or call submit if it "
    "is finished.",
    "thought": "Your reply had a thought and nothing after it, so nothing was done. End the thought, then make a "
    "tool call; call submit if the task is finished.",
    "echo": "Your reply only repeats a text that was sent to you, so nothing was done. Continue the task with a "
    "tool call, or call submit if it is finished.",
}
_NUDGE_AGAIN = (
    "Again there was no tool call, so again nothing was done. If the task is finished, call submit now. "
    'If not, make one tool call, for example execute_bash with the arguments {"command": "ls"}.'
)
_LATER_NUDGES: dict[ReplyKind, str] = {
    "cut": "Your reply was cut off again before it came to a tool call. Write no plan and no explanation now: "
    "make one short tool call, or call submit if the task is finished.",
    "empty": "Your reply was empty again. Reply with one tool call: execute_bash runs a command, submit ends the task.",
}
_NUDGE_BLOCK = (
    "Your reply has a code block and no tool call, so nothing was executed. To execute the block, call "
    "execute_bash with these arguments:\n\n{call}\n\nIf the task is finished and its results are saved, call "
    "submit."
)
_NUDGE_REFUSED = (
    "A call is written in your reply, and it was not executed: {reason}. Make the call again, as a tool "
    "call and with nothing after it. If the task is finished, call submit."
)
_IN_TEXT_MODE = {
    "text": "Nothing in your reply could be executed, so nothing was done.",
    "cut": "Your reply was cut off at the limit of tokens for one reply, so nothing was done. Write less.",
    "empty": "Your reply was empty, so nothing was done.",
    "thought": "Your reply had a thought and nothing after it, so nothing was done.",
    "echo": "Your reply only repeats a text that was sent to you, so nothing was done.",
}
_NAMES: dict[ReplyKind, tuple[str, str]] = {
    "text": ("reply with text", "replies with text"),
    "empty": ("empty reply", "empty replies"),
    "thought": ("reply with a thought alone", "replies with a thought alone"),
    "cut": ("reply that was cut off", "replies that were cut off"),
    "echo": ("reply that repeats what was sent", "replies that repeat what was sent"),
}
_STEPS_LEFT = re.compile(r"^[ \t]*\[?steps remaining: *\d+\]?[ \t]*$", re.IGNORECASE | re.MULTILINE)
_NO_WORDS = re.compile(
    r"<[|｜][^<>\n]{0,60}[|｜]>|<tool_response>[^<]*+</tool_response>|</?[A-Za-z][\w:.-]{0,40}+(?:\s[^<>\n]{0,200}+)?/?>"
    r"|\[/?(?:TOOL_CALLS|ARGS|CALL_ID|INST|THINK|AVAILABLE_TOOLS|TOOL_RESULTS)\]|&nbsp;|```\w*+(?=\s|\Z)"
)
"""Matches special tokens, tags, and markers of code blocks and calls."""
_NOTHING = frozenset({"null", "undefined", "assistant", "(no content)", NOTHING_SAID})
_REFUSALS = frozenset({"content_filter", "refusal"})
_LONGEST_QUOTE = 2_000
_LONGEST_WORDS = 500


def own_words(text: str) -> str:
    """Remove lines such as `[Steps remaining: 3]` from a text, and replace each run of white space by one space."""
    return " ".join(_STEPS_LEFT.sub("", text).split())


def says_something(text: str) -> bool:
    """Return True if a text has more than special tokens, tags, and a placeholder such as `null` or `assistant`."""
    words = own_words(_NO_WORDS.sub(" ", text))
    return any(character.isalnum() for character in words) and words.lower().rstrip(":") not in _NOTHING


def reply_kind(reply: Reply, was_sent: Callable[[str], bool]) -> ReplyKind:
    """Classify a reply without a call.

    `was_sent(words)` returns True if the model has read a text for which `own_words` returns exactly `words`.
    """
    words = own_words(read_text_calls(reply.text, ()).text)
    if not words:
        had_text = bool(reply.text.strip()) and bool(_STEPS_LEFT.search(reply.text))
        thought = bool((reply.reasoning or "").strip() or reply.text.strip().strip("\ufeff"))
        return "echo" if had_text else "thought" if thought else "empty"
    if reply.finish_reason == "length":
        return "cut"
    if not says_something(words):
        return "empty"
    return "echo" if was_sent(words) else "text"


def refusal(reply: Reply) -> StopRun | None:
    """Return the exception that ends the run if the model or its provider refused to answer. Otherwise, return None."""
    words = reply.message.get("refusal") or reply.text
    if reply.calls or not (reply.finish_reason in _REFUSALS or reply.message.get("refusal")):
        return None
    said = " ".join(str(words).split())[:_LONGEST_WORDS]
    ending = f": {said}" if said else f" (it gave no reason but {reply.finish_reason})."
    return StopRun("refused", f"The model or its provider refused to answer{ending}")


@dataclass
class SilentReplies:
    """Successive replies without a call."""

    kinds: list[ReplyKind] = field(default_factory=list)
    answer: str = ""
    """Text of the newest reply of the kind `text`."""
    wants_to_act: bool = False
    """True if a reply had an executable code block, or a call that was not executed."""
    block: CodeBlock | None = None
    """The last executable code block in the newest reply."""
    refused: str = ""
    """Reason why a call in the newest reply was not executed. Empty if there is no such call."""
    cut_nudges: list[str] = field(default_factory=list)
    """Nudges after replies that were cut off. Equal replies before them can be left out of a request: a cut reply is
    no answer, so a later reply does not refer to it."""
    _begun: int = 0
    """Index in `kinds` of the first reply that `len` counts."""
    _finish_reason: str | None = None
    _told: str = ""

    def add(self, reply: Reply, was_sent: Callable[[str], bool], refused: str = "") -> None:
        """Add the newest reply. `reply_kind` explains `was_sent`. `refused` is the new value of the field `refused`."""
        kind = reply_kind(reply, was_sent)
        self.kinds.append(kind)
        self._finish_reason, self.refused = reply.finish_reason, refused
        if kind == "text":
            self.answer = reply.text.strip()
        blocks = [block for block in code_blocks(reply.text) if block.command is not None]
        self.block = blocks[-1] if blocks else None
        self.wants_to_act = self.wants_to_act or self.block is not None or bool(refused)

    def __len__(self) -> int:
        return len(self.kinds) - self._begun

    def begin_anew(self) -> None:
        """Let `len` count from zero again after a change of the form of calls."""
        self._begun = len(self.kinds)

    @property
    def talks(self) -> bool:
        """True if a reply had text, even if the text only repeated an earlier text."""
        return "text" in self.kinds or "echo" in self.kinds

    def wait(self, retries: RetryPolicy) -> float:
        """Return the seconds to wait before the next request.

        Each successive empty reply doubles the wait, because the server may need time. After any other reply, there is
        no wait.
        """
        empty = 0
        while empty < len(self.kinds) and self.kinds[-1 - empty] == "empty":
            empty += 1
        if not empty or retries.attempts <= 1:
            return 0.0
        return min(retries.longest_wait, retries.first_wait * 2.0 ** (empty - 1))

    def nudge(self, form: TextForm | None = None) -> str:
        """Return a nudge that differs from the previous nudge.

        `form` is the form in which the model should write a call. It is None if calls are native.
        """
        told = self._nudge() if form is None else self._nudge_in_text(form)
        if told == self._told:
            told = f"{told} This is asked for again."
        self._told = told
        if self._kind == "cut":
            self.cut_nudges.append(told)
        return told

    def _nudge(self) -> str:
        kind = self._kind
        if self.refused:
            return _NUDGE_REFUSED.replace("{reason}", self.refused)
        if self.block is not None and kind != "cut":
            return _about_block(self.block, _NUDGE_BLOCK)
        return _LATER_NUDGES.get(kind, _NUDGE_AGAIN) if self._again else _FIRST_NUDGES[kind]

    def _nudge_in_text(self, form: TextForm) -> str:
        kind = self._kind
        if self.refused:
            return form.refused.replace("{reason}", self.refused)
        if self.block is not None and kind != "cut":
            return _about_block(self.block, form.block)
        if own := {"text": form.said.replace("{above}", ABOVE), "cut": form.cut}.get(kind):
            return f"{_IN_TEXT_MODE[kind]}\n{own}"
        return form.again if self._again else f"{_IN_TEXT_MODE[kind]}\n{form.form}"

    @property
    def _kind(self) -> ReplyKind:
        """Kind of the newest reply, for the choice of a nudge. A reply that reached its token limit counts as `cut`."""
        return "cut" if self._finish_reason == "length" else self.kinds[-1]

    @property
    def _again(self) -> bool:
        return len(self.kinds) > 1 and self.kinds[-1] == self.kinds[-2]

    def ending(self) -> StopRun:
        """Return the exception that ends the run after too many replies without a call."""
        return StopRun("answered") if self.answer else StopRun("no_answer", self._sentence())

    def _sentence(self) -> str:
        counts = Counter(self.kinds)
        came = " and ".join(f"{count} {_NAMES[kind][count > 1]}" for kind, count in counts.items())
        last = f"; the last ended with {self._finish_reason}" if self._finish_reason else ""
        return f"The model gave no answer: {came}{last}."


def _about_block(block: CodeBlock, template: str) -> str:
    command = block.command or ""
    call: Any = json.dumps({"command": command}, ensure_ascii=False)
    if len(call) > _LONGEST_QUOTE:
        call = '{"command": "... all of your block ..."}'
    return template.replace("{call}", call).replace(
        "{command}", command if len(command) <= _LONGEST_QUOTE else "... all of your block ..."
    )
