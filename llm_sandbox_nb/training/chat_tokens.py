"""Conversion between conversations and token ids: of the first prompt, the texts between replies, and the replies.

A reply's token ids are kept as they were sampled, so that the training uses exactly these ids. Only texts of the
environment, such as prompts and results of tools, are encoded. Each of these texts is encoded once. A chat template is
tested before use. After a reply, the template must add only the results of the tools. If the template writes a reply,
parsing this reply must give the same calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.model.contract import ToolCall
from llm_sandbox_nb.model.stream import Assembly, ThinkingSplitter, split_lone_end

_MARK = "\u2402mark\u2403"
"""Text that takes the place of a reply. No template changes it, so it shows where the text after the reply begins."""
_CUT = "\u2402cut\u2403"
"""Separator that splits a text that looks like a control token. The parts are encoded separately, as plain text."""
_QUESTION, _RESULT = "probe question", "probe result"
_PROBE = [{"role": "user", "content": _QUESTION}]
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
    },
}
_PROBE_ARGUMENTS = '{"text": "two\\nlines and \\"quotes\\""}'


class Tokenizer(Protocol):
    """Interface of the parts of a Hugging Face tokenizer that this module needs."""

    eos_token: str | None
    eos_token_id: int | None
    chat_template: Any

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...

    def encode(self, text: str, **options: Any) -> list[int]: ...

    def decode(self, token_ids: Any, **options: Any) -> str: ...


class TemplateError(LLMSandboxError, ValueError):
    """Error for a chat template that cannot be used. The message is one sentence with the remedy."""


class ChatTokens:
    """Converter between conversations and token ids, with one tokenizer and its chat template.

    If `in_text` is True, calls are written as text, so the template needs no tools.

    Raises:
        TemplateError: if the tokenizer has no template, or the template does not write the end of a reply. If `in_text`
            is False, also if the template leaves out tools, calls or results.
    """

    def __init__(self, tokenizer: Tokenizer, *, in_text: bool = False) -> None:
        self.tokenizer, self.in_text = tokenizer, in_text
        self.end = int(tokenizer.eos_token_id or 0)
        """Token id that ends a reply."""
        self._as_text = False
        """True if the template expects arguments as JSON texts. Most templates expect objects."""
        self._most_calls: int | None = None
        """Maximum number of calls that the template writes in one reply, or None if any number is possible."""
        self._special, self._control = _control_tokens(tokenizer)
        self._check()

    @property
    def family(self) -> str:
        """Name of the template for error messages: the template's family, and the tokenizer's name if it has one."""
        template = str(self.tokenizer.chat_template)
        family = next((name for mark, name in FAMILIES if mark in template), "an unknown family")
        name = str(getattr(self.tokenizer, "name_or_path", "") or "")
        return f"{family}, {name}" if name else family

    def first(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[int]:
        """Return the token ids of a conversation up to the beginning of the first reply."""
        return self._ids(messages, lambda guarded: self._text(guarded, tools, reply=True))

    def between(self, messages: Sequence[dict[str, Any]], *, calls: Sequence[ToolCall] = ()) -> list[int]:
        """Return the token ids of messages after a reply with the given calls, up to the beginning of the next reply.

        The token id that ends the first of these replies is not included.
        """
        return self._ids(messages, lambda guarded: self._after_reply(guarded, calls))

    def reply(self, message: dict[str, Any], after: Sequence[dict[str, Any]] = ()) -> list[int]:
        """Return the token ids of a reply that was not sampled: the encoded text of the template, and the id `end`.

        `after` has the messages after the reply. Some templates write a reply differently if messages follow.

        Raises:
            TemplateError: if the template cannot write the reply.
        """

        def rendered(guarded: list[dict[str, Any]]) -> str:
            begun = self._text(_PROBE, (), reply=True)
            following = [{**following_message, "content": _RESULT} for following_message in after]
            whole = self._written([*_PROBE, self._with_arguments(guarded[0]), *following], reply=False)
            if not whole.startswith(begun):
                raise TemplateError(
                    f"The chat template ({self.family}) gives a new reply another beginning than a finished reply: use "
                    "the model's training template."
                )
            return whole[len(begun) :].partition(str(self.tokenizer.eos_token))[0]

        return [*self._ids([message], rendered, self._special), self.end]

    def read(
        self, ids: Sequence[int], tools: Sequence[dict[str, Any]], number: int
    ) -> tuple[str, str, tuple[ToolCall, ...]]:
        """Return the text, the reasoning and the calls in the token ids of a reply.

        `number` is the number of the reply. The ids of its calls contain this number.
        """
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

    def check_reply(self, message: dict[str, Any], tools: Sequence[dict[str, Any]]) -> None:
        """Raise TemplateError if `read` does not find the calls of `message` in the reply that the template writes."""
        found = self.read(self.reply(message), tools, 0)[2]
        meant = [call["function"] for call in message.get("tool_calls") or ()]
        if [(call.name, _parsed(call.arguments)) for call in found] != [
            (call["name"], _parsed(call["arguments"])) for call in meant
        ]:
            raise TemplateError(
                f"The chat template ({self.family}) writes calls of a reply in a form that is not read back to the "
                "same calls: use a model whose template writes the calls of its replies, such as Qwen3."
            )

    def harmless(self, text: str) -> str:
        """Put a zero-width space into each control token in a text, for callers who encode the text themselves."""
        return self._control.sub(lambda found: found[0] + "\u200b", text)

    # --- texts ---

    def _after_reply(self, messages: Sequence[dict[str, Any]], calls: Sequence[ToolCall]) -> str:
        """Return the template's text after a reply with the given calls, without the end of the reply."""
        mark = _unused(_MARK, messages)
        text = self._written([*_PROBE, self._asked(mark, calls), *messages], reply=True)
        if text.count(mark) != 1:
            raise TemplateError(
                f"The chat template ({self.family}) does not write a reply's {'calls' if calls else 'text'}, or "
                "writes them twice: use a model whose template writes them once, such as Qwen3."
            )
        rest, end = text.partition(mark)[2], str(self.tokenizer.eos_token)
        if not self.tokenizer.eos_token or end not in rest:
            raise TemplateError(
                f"The chat template ({self.family}) does not end a reply with the end token "
                f"{self.tokenizer.eos_token!r}: set the tokenizer's eos_token to the token that ends a reply."
            )
        return rest.partition(end)[2]

    def _asked(self, mark: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
        """Return a reply that contains the mark once: in the arguments of the last call or, without calls, as text."""
        if not calls:
            return {"role": "assistant", "content": mark}
        written = [
            {"id": call.id, "type": "function", "function": {"name": _name(call), "arguments": "{}"}}
            for call in calls[: self._most_calls]
        ]
        written[-1]["function"]["arguments"] = json.dumps({"text": mark}, ensure_ascii=False)  # type: ignore[index]
        return self._with_arguments({"role": "assistant", "content": "", "tool_calls": written})

    def _with_arguments(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the message with the arguments of its calls in the form that this template expects."""
        calls = []
        for call in message.get("tool_calls") or ():
            arguments = _parsed(call["function"]["arguments"])
            if self._as_text:
                arguments = json.dumps(arguments, ensure_ascii=False)
            calls.append({**call, "function": {**call["function"], "arguments": arguments}})
        return {**message, **({"tool_calls": calls} if calls else {})}

    def _written(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = (), *, reply: bool
    ) -> str:
        """Render a conversation with calls. Raise TemplateError if the template refuses the conversation."""
        try:
            return self._text(messages, tools, reply=reply)
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            raise TemplateError(
                f"The chat template ({self.family}) cannot write calls of tools ({reason.rstrip('.')}): use a model "
                "that was trained with tools."
            ) from error

    def _text(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], *, reply: bool
    ) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                list(messages), tools=list(tools) or None, add_generation_prompt=reply, tokenize=False
            )
        )

    # --- ids ---

    def _ids(
        self,
        messages: Sequence[dict[str, Any]],
        rendered: Callable[[list[dict[str, Any]]], str],
        control: re.Pattern[str] | None = None,
    ) -> list[int]:
        """Encode the text that `rendered` makes of the messages. A message's own text never gives a control token."""
        cut, control = _unused(_CUT, messages), control or self._control

        def guard(value: Any) -> Any:
            if isinstance(value, str):
                return control.sub(lambda found: found[0] + cut, value)
            if isinstance(value, Mapping):
                return {key: guard(inner) for key, inner in value.items()}
            return [guard(inner) for inner in value] if isinstance(value, list | tuple) else value

        text = rendered([{**guard(message), "role": message["role"]} for message in messages])
        return [
            id
            for piece in text.split(cut)
            if piece
            for id in self.tokenizer.encode(piece, add_special_tokens=False)
        ]

    # --- the template ---

    def _check(self) -> None:
        if not self.tokenizer.chat_template:
            raise TemplateError(
                "The tokenizer has no chat template: use an instruction-tuned model, or give it a template."
            )
        self._after_reply([{"role": "user", "content": _RESULT}], ())
        if self.in_text:
            self.check_reply({"role": "assistant", "content": _RESULT}, ())
            return
        if "probe_tool" not in self._written(_PROBE, [_PROBE_TOOL], reply=True):
            raise TemplateError(
                f"The chat template ({self.family}) shows no tools: use a model that was trained with tools, "
                "such as Qwen3, or set rollouts.calls to text."
            )
        self._check_after(1)
        try:
            self._check_after(2)
        except TemplateError:  # Llama 3's template writes only one call; the text after a reply is the same
            self._most_calls = 1
            self._check_after(2)
        call = {"name": "probe_tool", "arguments": _PROBE_ARGUMENTS}
        calls = [{"id": "call_0_0", "type": "function", "function": call}]
        self.check_reply({"role": "assistant", "content": "", "tool_calls": calls}, [_PROBE_TOOL])

    def _check_after(self, count: int) -> None:
        """Raise TemplateError unless the template adds the results of `count` calls, each once, and nothing else."""
        calls = [ToolCall(f"call_0_{place}", "probe_tool", "{}") for place in range(count)]
        results = [
            {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": f"{_RESULT} {place}"}
            for place, call in enumerate(calls)
        ]
        try:
            after = self._after_reply(results, calls)
        except TemplateError:
            if self._as_text:
                raise
            self._as_text = True  # DeepSeek's template joins arguments as texts
            try:
                after = self._after_reply(results, calls)
            except TemplateError:
                self._as_text = False
                after = self._after_reply(results, calls)
        once = all(after.count(result["content"]) == 1 for result in results)
        if not once or _QUESTION in after:
            raise TemplateError(
                f"The chat template ({self.family}) does not write the results of tools after a reply, each once: use "
                "a model that was trained with tools, such as Qwen3."
            )


FAMILIES = (
    ("<|start_header_id|>", "Llama 3"),
    ("<|channel|>", "GPT-OSS"),
    ("<|tool_list_start|>", "LFM2"),
    ("<|tool_call_start|>", "LFM2"),
    ("<|observation|>", "GLM-4"),
    ("<|turn>", "Gemma 4"),
    ("<start_of_turn>", "Gemma"),
    ("<\uff5c", "DeepSeek"),
    ("<|START_OF_TURN_TOKEN|>", "Command R"),
    ("<|start_of_role|>", "Granite"),
    ("[INST]", "Mistral"),
    ("<|im_middle|>", "Kimi K2"),
    ("<SPECIAL_", "Nemotron"),
    ("truncate_history_thinking", "Nemotron"),
    ("<|end|>", "Phi"),
    ("<function=", "Qwen3-Coder"),
    ("<tool_call>", "Qwen"),
    ("<|im_start|>", "ChatML"),
)
"""Pairs of a text in a family's templates, and the family's name. The first pair whose text is in a template counts."""
_MARKUP = re.compile(r"<[^\s<>]{1,60}>|\[[A-Z_/ ]{1,60}\]")
"""Matches added tokens that are not special but still control tokens, such as `<tool_call>` or `[TOOL_RESULTS]`."""


def _control_tokens(tokenizer: Tokenizer) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return two patterns, which match the first character of a special token, and of any control token."""
    special = {str(tokenizer.eos_token), *map(str, getattr(tokenizer, "all_special_tokens", ()))} - {
        "None",
        "",
    }
    added = tokenizer.get_added_vocab() if hasattr(tokenizer, "get_added_vocab") else {}
    control = special | {token for token in added if _MARKUP.fullmatch(token)}

    def pattern(tokens: set[str]) -> re.Pattern[str]:
        # Only the first character is matched, because tokens may overlap. `(?!)` matches nothing.
        first = "|".join(
            f"{re.escape(token[0])}(?={re.escape(token[1:])})" for token in sorted(tokens) if len(token) > 1
        )
        return re.compile(first or r"(?!)")

    return pattern(special), pattern(control)


def _name(call: ToolCall) -> str:
    """Return the name of a call, or `unknown` for an invalid name. Some templates write the name next to a result."""
    return call.name if re.fullmatch(r"[\w.-]{1,100}", call.name) else "unknown"


def _unused(text: str, messages: Sequence[dict[str, Any]]) -> str:
    """Return a text that the messages do not contain: `text`, with a prefix if necessary."""
    whole = json.dumps(messages, ensure_ascii=False, default=str)
    while text in whole:
        text = f"\u2402{text}"
    return text


def _parsed(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return {"not_json": arguments}
