"""Text mode, in which calls and their results are text, for servers and models without native calls.

The forms are files in `prompts`. A request in text mode has no tools. Instead, the system message describes the form of
a call, and earlier native calls and their results are written in this form. Calls are read from the text of a reply.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

import yaml

from llm_sandbox_nb.agent.code_blocks import code_blocks, program_of, with_python_as_bash
from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.tools.arguments import ArgumentsError, parse_arguments
from llm_sandbox_nb.agent.tools.toolbox import TOOLS, ends_run
from llm_sandbox_nb.model.contract import Reply, ToolCall
from llm_sandbox_nb.model.text_calls import read_text_calls
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.trajectory.events import CallFinished
from llm_sandbox_nb.trajectory.messages import ResultsMessage

FORMS = ("code", "bash", "json", "brief")
"""Names of the forms in this package."""
_SUBMIT = "submit"
_BASH = "execute_bash"
_BLOCK: dict[str, Any] = {}
"""Arguments of a `submit` call that the model wrote as a code block or a lone word. `echoed` recognizes the call by
this object."""
_NAMED_END = re.compile(r"""["']name["']\s*:\s*["']submit["']""")
BLOCK_END = "\n```\n"
"""Stop sequence that ends a reply after its first block. The server omits this sequence from the text."""
_LONGEST_ANSWER = 500
"""Maximum characters of a printed line that is offered as the answer. A longer answer belongs in a file."""
_LABEL = re.compile(r"[^\W\d][^:=]* [a-z][^:=]*[:=]\s+(?=\S+\Z)")
"""Matches a label such as `Number of towns:` before a single value. A name such as `New York:` does not match, because
it may be a part of the answer."""
ABOVE = "my text above"
"""Answer that stands for the newest text of the model."""
_LONE_SUBMIT = frozenset({"submit", "`submit`", "submit.", "submit()"})


@dataclass(frozen=True)
class TextForm:
    """Texts for a model in text mode. The fields are the keys of a YAML file. `text_code.yaml` explains the keys."""

    system: str
    result: str
    form: str
    again: str
    block: str
    refused: str
    other_tools: str = ""
    said: str = ""
    """Text that is used instead of `form` and `again` after a reply with text alone. `{above}` stands for `ABOVE`."""
    cut: str = ""
    """Text that is used instead of `form` and `again` after a text that was cut off at the limit of tokens."""
    failed: str = ""
    """Text that is used instead of `result` if the call failed or wrote to stderr."""
    silent: str = ""
    """Text that is used instead of `result` if the call wrote nothing."""
    unchanged: str = ""
    """Text that is used instead of `silent` if the call did not change a file either."""
    one_line: str = ""
    """Text that is used instead of `result` if the call printed one line. `{line}` stands for the value in the line."""
    repeated: str = ""
    """Text that is sent instead of the newest replies if they are equal, because a weak model copies its own replies.
    If the replies were cut off, the newest nudge is sent instead. If empty, all replies are sent."""
    calls: Literal["block", "json"] = "json"
    python_blocks: bool = False
    first_block_ends: bool = False
    """True if the server should end a reply after its first block."""
    answer: str = ""
    """Word before an answer that ends the task, such as `ANSWER:`. Empty if the form has no such word."""
    answer_first: str = ""
    """Reason why an answer before the first call is refused once. If empty, such an answer is accepted."""
    footer_from: int | None = None
    """If more steps than this remain, a message to the model does not state the number of remaining steps.

    None if every message states the number. The message before the last step always states it.
    """

    def described(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Describe the form and the tools, as text for the end of the system message."""
        other = [tool for tool in tools if tool["function"]["name"] not in TOOLS]
        parts = [self.system.replace("{tools}", _description(tools))]
        if other and self.other_tools:
            parts.append(self.other_tools.replace("{tools}", _description(other)))
        return "\n\n".join(parts)

    def written(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Write a call in the form that the model should use."""
        if self.calls == "block" and name in (_BASH, _SUBMIT):
            command = str(arguments.get("command", "")) if name == _BASH else _SUBMIT
            return f"```bash\n{command}\n```"
        call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        return f"```json\n{call}\n```"


@functools.lru_cache(maxsize=16)
def load_text_form(name: str) -> TextForm:
    """Load a form of this package by its name, or the form in a YAML file.

    Raises:
        InputError: if the form is unknown, or the file is not a form.
    """
    try:
        if name in FORMS:
            packaged = resources.files("llm_sandbox_nb.agent").joinpath(f"prompts/text_{name}.yaml")
            text = packaged.read_text("utf-8")
        else:
            text = expanded(name).read_text("utf-8")
        content = yaml.safe_load(text)
        known = {field.name for field in dataclasses.fields(TextForm)}
        return TextForm(**{key: value for key, value in content.items() if key in known})
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError, AttributeError) as error:
        raise InputError(
            f"text_form is {', '.join(FORMS)} or a YAML file like text_code.yaml of this package, not {name[:200]!r}: "
            f"{' '.join(str(error).split())[:200]}."
        ) from error


def _description(tools: Iterable[Mapping[str, Any]]) -> str:
    lines = []
    for function in (tool["function"] for tool in tools):
        parameters = function.get("parameters") or {}
        required = parameters.get("required") or ()
        lines.append(f"- {function['name']}: {function.get('description') or ''}".rstrip())
        for name, schema in (parameters.get("properties") or {}).items():
            need = ", required" if name in required else ""
            kind = schema.get("type", "any")
            lines.append(f"  - {name} ({kind}{need}): {schema.get('description') or ''}".rstrip(": "))
    return "\n".join(lines)


# --- requests and results ---


def printed_value(event: CallFinished) -> str:
    """Return the last line that a call printed, without a label: `14` for `Number of towns: 14`.

    The model can send this value as its answer. It is empty if the line is long.
    """
    lines = event.stdout.strip().splitlines() if isinstance(event.stdout, str) else []
    if not lines or len(lines[-1]) > _LONGEST_ANSWER:
        return ""
    last = lines[-1].strip()
    label = _LABEL.match(last)
    return last[label.end() :] if label else last


def result_kind(event: CallFinished) -> str:
    """Return the name of the `TextForm` field with which the result of a call is formatted."""
    if event.failed or event.stderr:
        return "failed"
    if event.exit_code == 0 and not event.stdout:
        return "silent" if event.changes or event.changes_incomplete else "unchanged"
    is_one_line = printed_value(event) and "\n" not in str(event.stdout).strip()
    return "one_line" if is_one_line else "result"


@dataclass
class TextMode:
    """Converter between a conversation and its requests and replies in text mode."""

    form: TextForm
    tools: Sequence[Mapping[str, Any]]
    _source: list[dict[str, Any]] = field(default_factory=list)
    """The messages of the history that `_sent` contains as text."""
    _sent: list[dict[str, Any]] = field(default_factory=list)
    _asked_for_block: bool = False
    """True if an answer before any call was refused."""
    _refused_example: bool = False
    """True if an answer was refused because it is only the example in the newest message."""
    _joins: bool = False
    """True if the newest message of `_sent` has the result of a native call, to which the next user text is joined."""

    @property
    def _has_results(self) -> bool:
        """True if the newest request has the result of a call. The preview of the input files is no result."""
        return any(
            message["role"] == "tool" or isinstance(message, ResultsMessage) for message in self._source
        )

    @property
    def described(self) -> str:
        """Text that is added to the system message."""
        return self.form.described(self.tools)

    def request(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the history with native calls and results as text. Only new messages are converted."""
        known = len(self._source)
        if len(messages) < known or any(
            a is not b for a, b in zip(self._source, messages[:known], strict=True)
        ):
            self._source, self._sent, self._joins, known = [], [], False, 0
        for message in messages[known:]:
            self._append(message)
            self._source.append(message)
        return list(self._sent)

    def _append(self, message: dict[str, Any]) -> None:
        role, content = message["role"], message.get("content") or ""
        if not self._sent:
            described = self.described
            if role == "system":
                message = {**message, "content": f"{content}\n\n{described}"}
            else:
                self._sent.append({"role": "system", "content": described})
        if role == "tool" or (role == "user" and self._joins):
            # Only the part of the form before the result is added. The part after it is advice on the next reply, which
            # an earlier result does not need.
            text = f"{self.form.result.partition('{output}')[0]}{content}" if role == "tool" else content
            if self._joins:
                text = f"{self._sent.pop()['content']}\n\n{text}"
            self._sent.append({"role": "user", "content": text})
            self._joins = True
            return
        self._joins = False
        if role == "assistant" and (calls := message.get("tool_calls")):
            written = [self._written(call.get("function") or {}) for call in calls]
            message = {"role": role, "content": "\n\n".join(filter(None, [content, *written]))}
        self._sent.append(message)

    def _written(self, function: Mapping[str, Any]) -> str:
        try:
            arguments = json.loads(function.get("arguments") or "{}")
        except (ValueError, RecursionError):
            arguments = {}
        return self.form.written(
            str(function.get("name")), arguments if isinstance(arguments, Mapping) else {}
        )

    def result(self, reply: Mapping[str, Any], observation: str, kind: str = "result", line: str = "") -> str:
        """Format the result of a call for the model. Use the form that the model used in `reply`.

        `kind` is a key of the form: `result`, `one_line`, `failed`, `silent` or `unchanged`. `line` is the value that
        the model can send as its answer.
        """
        if "<tool_call>" in str(reply.get("content")):
            return f"<tool_response>\n{observation}\n</tool_response>"
        words = {"{output}": observation, "{line}": line}
        form = (
            getattr(self.form, kind) or (self.form.silent if kind == "unchanged" else "") or self.form.result
        )
        if "{line}" in form and not line:
            form = f"{form.partition('{output}')[0]}{{output}}\n\n{self.form.form}"
        return re.sub("|".join(map(re.escape, words)), lambda found: words[found[0]], form)

    def read(self, reply: Reply, outputs: Sequence[str], task: str) -> tuple[Reply, str]:
        """Return the reply with the calls that its text contains, and the reason why a call is not executed, or "".

        `outputs` are earlier results. A call that only repeats a text in `outputs` or `task` is not executed.
        """
        if reply.calls or reply.finish_reason == "length":
            return reply, ""
        if self.form.first_block_ends:
            reply = _with_closed_block(reply)
        if self.form.answer and (answer := answer_in(reply.text, self.form.answer)):
            # A recorded reply is read before the first request of the session, and was accepted then.
            newest = str(self._sent[-1]["content"]) if self._sent else ""
            # The model may write `ABOVE` in quotes, with a full stop, or with further lines behind it.
            first_line = answer.partition("\n")[0].strip(" .'\"*_`").casefold()
            means_above = bool(self.form.said) and first_line == ABOVE
            answer = ABOVE if means_above else answer
            line = re.escape(f"{self.form.answer} {answer}")
            shown = re.search(rf"{line}\W*$", newest, re.MULTILINE) is not None
            if means_above:
                if newest and not shown:
                    return reply, "there is no text above it that could be the answer"
                answer = ""  # so the newest text remains the answer
            elif shown and not self._refused_example and not any(answer in output for output in outputs):
                self._refused_example = True
                return reply, "it is the example of an answer, and no output has it"
            elif self.form.answer_first and newest and not self._has_results and not self._asked_for_block:
                self._asked_for_block = True
                return reply, self.form.answer_first
            submit = ToolCall(f"call_{uuid.uuid4().hex[:12]}", _SUBMIT, "{}")
            return dataclasses.replace(reply, text=answer, calls=(submit,)), ""
        text = reply.text
        if self.form.answer:
            # The last block may end with an answer, which the model guessed before the block was executed. This answer
            # is removed.
            text = re.sub(rf"\n{re.escape(self.form.answer)}[^\n]*(?=\n```\s*\Z)", "", text)
        text = with_python_as_bash(text) if self.form.python_blocks else text
        found = read_text_calls(text, self.tools, bash_blocks=True)
        calls = [(call.name, call.arguments) for call in found.calls]
        if not calls and found.text.strip().lower() in _LONE_SUBMIT:
            calls, found = [(_SUBMIT, _BLOCK)], dataclasses.replace(found, text="", refused="")
        calls = [
            (_SUBMIT, _BLOCK)
            if name == _BASH and str(arguments.get("command")).strip() in _LONE_SUBMIT
            else (name, arguments)
            for name, arguments in calls
        ]
        if why := next((why for call in calls if (why := echoed(*call, outputs, task))), ""):
            return reply, why
        made = tuple(
            ToolCall(f"call_{uuid.uuid4().hex[:12]}", name, json.dumps(arguments, ensure_ascii=False))
            for name, arguments in calls
        )
        # The message keeps the calls as the model wrote them. The text of the reply is the text around the calls.
        text = found.text if made else reply.text
        reasoning = reply.reasoning or found.reasoning or None
        return dataclasses.replace(reply, text=text, reasoning=reasoning, calls=made), found.refused


def _with_closed_block(reply: Reply) -> Reply:
    """Add the end of the last block to a reply, if the server has omitted this end."""
    closed = f"{reply.text.rstrip()}\n```"
    if reply.finish_reason != "stop" or len(code_blocks(closed)) <= len(code_blocks(reply.text)):
        return reply
    return dataclasses.replace(reply, text=closed, message={**reply.message, "content": closed})


def answer_in(text: str, word: str) -> str:
    """Return the answer after `word` at the beginning of a line or of the only code block. Empty without an answer."""
    blocks = code_blocks(text)
    if len(blocks) == 1 and blocks[0].content.strip().upper().startswith(word.upper()):
        text = blocks[0].content
    elif blocks:
        return ""
    found = re.search(
        rf"^(?:[*_#>]|[^\S\n])*{re.escape(word)}[*_]*(.*)", text, re.IGNORECASE | re.MULTILINE | re.DOTALL
    )
    return found[1].strip().strip("*_`").strip() if found else ""


# --- calls that a model only repeats ---


def echoed(name: str, arguments: Mapping[str, Any], outputs: Iterable[str], task: str) -> str:
    """Return the reason not to execute a call in the text of a reply if the call only repeats an earlier text.

    Return an empty text if the call should be executed. A call is a repetition if an output or the task contains the
    tool's name and all text values of the call. A command is also a repetition if an output contains all lines of the
    command in a row. For `submit`, only the last output counts.
    """
    if ends_run(name):
        ended = any(_NAMED_END.search(output) for output in list(outputs)[-1:])
        return (
            "it repeats a call that stands in the output of the last command"
            if ended and arguments is not _BLOCK
            else ""
        )
    values = [value for value in arguments.values() if isinstance(value, str) and value.strip()]
    command = str(arguments.get("command", "")).strip() if name == _BASH else ""
    code = program_of(command) or command
    for output in outputs:
        if code and f"\n{code}\n" in f"\n{output}\n":
            return "it repeats the output of an earlier command"
        if _has_call(output, name, values):
            return "it repeats a call that stands in the output of an earlier command"
    return "it repeats a call that stands in the task" if _has_call(task, name, values) else ""


def without_echoes(reply: Reply, outputs: Sequence[str], task: str) -> tuple[Reply, str]:
    """Remove all calls from a reply if one of them only repeats an earlier text.

    The model client has read these calls from the text of the reply. The second returned value is the reason why calls
    in the text are not executed, or an empty text.
    """
    for call in reply.calls:
        try:
            why = echoed(call.name, parse_arguments(call.arguments), outputs, task)
        except ArgumentsError:
            why = ""
        if why:
            message = {key: value for key, value in reply.message.items() if key != "tool_calls"}
            return dataclasses.replace(reply, message=message, calls=()), why
    return reply, reply.refused_call


def _has_call(text: str, name: str, values: Sequence[str]) -> bool:
    def has(value: str) -> bool:
        quoted = (json.dumps(value), json.dumps(value, ensure_ascii=False), f"'{value}'")
        return any(form in text for form in (*quoted, f">{value}<", f">\n{value}\n<"))

    return bool(values) and name in text and all(map(has, values))
