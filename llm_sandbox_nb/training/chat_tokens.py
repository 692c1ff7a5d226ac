"""Conversations as token ids: the first prompt, what stands between two replies, and what a reply says.

A reply's ids are used as they were sampled. Only what the environment adds is turned into ids, each piece once, so
that the ids that are trained are those that were sampled.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from llm_sandbox_nb.model.contract import ToolCall
from llm_sandbox_nb.model.stream import Assembly, ThinkingSplitter, split_lone_end

_MARK = "\u2402mark\u2403"
"""A text that no template changes: what follows it is what a template writes after a reply."""
_PROBE = [{"role": "user", "content": "question"}]


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used."""

    eos_token: str | None
    eos_token_id: int | None
    chat_template: Any

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Text or ids of a conversation."""
        ...

    def encode(self, text: str, **options: Any) -> list[int]:
        """The ids of a text."""
        ...

    def decode(self, token_ids: Any, **options: Any) -> str:
        """The text of ids."""
        ...


class TemplateError(ValueError):
    """A tokenizer's chat template cannot be used. The message is one sentence that says what to do."""


class ChatTokens:
    """Renders with one tokenizer and its chat template.

    Raises:
        TemplateError: there is no template, or it shows no tools, no results of tools, or no end of a reply.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._check()
        self.end = int(tokenizer.eos_token_id or 0)
        """The id that ends a reply."""

    def first(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[int]:
        """The ids of a conversation that begins, up to where the reply begins."""
        return self._ids(self._text(messages, tools, reply=True))

    def between(self, messages: Sequence[dict[str, Any]], *, calls: Sequence[ToolCall] = ()) -> list[int]:
        """The ids of messages that follow a reply with these calls, up to where the next reply begins.

        The id that ends the reply is not among them.
        """
        text = self._text([*_PROBE, _asked(_MARK, calls), *messages], (), reply=True)
        rest = text.rpartition(_MARK)[2]
        return self._ids(rest.partition(str(self.tokenizer.eos_token))[2])

    def reply(self, message: dict[str, Any]) -> list[int]:
        """The ids of a reply as the template writes it, with its end: for replies that were not sampled as ids."""
        begun = self._text(_PROBE, (), reply=True)
        whole = self._text([*_PROBE, _with_objects(message)], (), reply=False)
        if not whole.startswith(begun):
            raise TemplateError(
                "The chat template writes a reply otherwise than it begins one: use the model's training template."
            )
        said = whole[len(begun) :].rpartition(str(self.tokenizer.eos_token))[0]
        return [*self._ids(said), self.end]

    def read(
        self, ids: Sequence[int], tools: Sequence[dict[str, Any]], number: int
    ) -> tuple[str, str, tuple[ToolCall, ...]]:
        """Text, reasoning and calls of reply `number`."""
        ids = ids[:-1] if ids and ids[-1] == self.end else ids
        written = self.tokenizer.decode(list(ids), skip_special_tokens=False)
        splitter = ThinkingSplitter()
        pieces = splitter.add(written), splitter.rest()
        text, reasoning = (pieces[0][part] + pieces[1][part] for part in (0, 1))
        if not reasoning:
            text, reasoning = split_lone_end(text)
        assembly = Assembly(text=text, reasoning=reasoning)
        assembly.read_written_calls(list(tools))
        calls = tuple(
            ToolCall(f"call_{number}_{place}", call.name, call.arguments)
            for place, call in enumerate(assembly.calls())
        )
        return assembly.text, assembly.reasoning, calls

    def _text(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], *, reply: bool
    ) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                list(messages), tools=list(tools) or None, add_generation_prompt=reply, tokenize=False
            )
        )

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _check(self) -> None:
        if not self.tokenizer.chat_template:
            raise TemplateError(
                "The tokenizer has no chat template: use an instruction-tuned model, or give it a template."
            )
        tool = {
            "type": "function",
            "function": {
                "name": "probe_tool",
                "description": "",
                "parameters": {"type": "object", "properties": {}},
            },
        }
        try:
            shown = self._text(_PROBE, [tool], reply=True)
            calls = (ToolCall("call_0_0", "probe_tool", "{}"),)
            result = {
                "role": "tool",
                "tool_call_id": calls[0].id,
                "name": "probe_tool",
                "content": "probe result",
            }
            after = self._text([*_PROBE, _asked(_MARK, calls), result], (), reply=True)
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            raise TemplateError(
                f"The tokenizer's chat template cannot write calls of tools ({reason}): use a model that was trained "
                "with tools."
            ) from error
        if "probe_tool" not in shown or "probe result" not in after.rpartition(_MARK)[2]:
            raise TemplateError(
                "The tokenizer's chat template shows no tools: use a model that was trained with tools, "
                "such as Qwen3."
            )
        if not self.tokenizer.eos_token or self.tokenizer.eos_token not in after.rpartition(_MARK)[2]:
            raise TemplateError(
                f"The tokenizer's chat template does not end a reply with the end token {self.tokenizer.eos_token!r}: "
                "set the tokenizer's eos_token to the one that ends a reply."
            )


def _asked(text: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """A reply whose calls stand before its text, as far as a template can: the text marks where it ends."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": {}}}
            for call in calls
        ]
    return message


def _with_objects(message: dict[str, Any]) -> dict[str, Any]:
    """The message with arguments as objects: templates write those as JSON, and texts as they are."""
    calls = [
        {**call, "function": {**call["function"], "arguments": _parsed(call["function"]["arguments"])}}
        for call in message.get("tool_calls") or ()
    ]
    return {**message, **({"tool_calls": calls} if calls else {})}


def _parsed(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return {"not_json": arguments}
