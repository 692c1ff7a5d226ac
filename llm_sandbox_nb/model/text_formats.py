"""Forms in which models write calls as text: a table of marks, each with a reader, an example and a source.

A mark is a text such as `<tool_call>`, with which a call begins. To support a new model family, add a row to
`FORMATS`. A reader is a function that gets the text and the place of its mark. It returns the calls and the place after
the last call, or None if a call is incomplete. Every reader works in linear time.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

WrittenCalls = list[tuple[str, dict[str, Any]]]
"""Calls as pairs of the tool's name and the arguments."""
Reader = Callable[[str, int], tuple[WrittenCalls, int] | None]


class Written(str):
    """Value that was written without quotes. The tool's schema decides if the value is a number or a text."""

    __slots__ = ()


@dataclass(frozen=True)
class Format:
    """Form in which some models write calls."""

    families: str
    mark: str
    """Regular expression for the mark with which a call begins. It has no capturing groups."""
    read: Reader
    example: str
    """Call of the tool `ls` with the argument `d`."""
    source: str
    """Documentation of the form: a repository and a file, or a package and its fixtures."""

    @property
    def begins(self) -> tuple[str, ...]:
        """Complete marks as text, to recognize the beginning of a mark in a stream."""
        if "DSML" in self.mark:
            return tuple(
                f"<{bar}DSML{bar}{end}"
                for bar in "｜|"
                for end in ("function_calls>", "tool_calls>", " calls>")
            )
        return (f"{self.hint}[",) if self.hint == "functools" else (self.hint,)

    @property
    def hint(self) -> str:
        """Text that every mark of this form contains. A reply without this hint is not searched for the marks."""
        return next(
            (word for word in ("DSML", "functools") if word in self.mark), re.sub(r"\\(.)", r"\1", self.mark)
        )


MAX_CALLS = 256
"""Maximum number of calls in one reply. A model that writes more is repeating itself."""
_MAX_VALUES = 1000
"""Maximum number of arguments of a call, and of values in text that is not JSON."""
_MAX_LENGTH_OUTSIDE_STRINGS = 10_000
"""Maximum number of characters outside of strings in text that is not JSON.

With this limit, Python's parser is always fast. For millions of characters, it would need a second.
"""
_MAX_DEPTH = 60
_DECODER = json.JSONDecoder(strict=False)
_SPACE = re.compile(r"\s*+")
# A string that is not closed matches the rest of the text, so that each place is read only once. The set of first
# characters at the beginning makes the search fast.
_TOKENS = re.compile(
    r"[\"'{}\[\]()](?:(?<=\")(?:[^\"\\]++|\\.)*+\"?|(?<=')(?:[^'\\]++|\\.)*+'?|(?<=[{}\[\]()]))", re.DOTALL
)
_NAME = r"[A-Za-z_][\w.-]{0,127}"
END_TOKENS = re.compile(
    r"(?:\s|<\|im_end\|>|<\|eot_id\|>|<\|eom_id\|>|<\|end_of_text\|>|<\|endoftext\|>|</s>|<\|end\|>|<eos>|<end_of_turn>"
    r"|<turn\|>|<｜end▁of▁sentence｜>|<\|END_OF_TURN_TOKEN\|>|<\|observation\|>|<\|user\|>|\[e~\[|</tool_call>)*+\Z"
)
"""Matches the text that may follow the last call of a reply."""


def after_space(text: str, place: int) -> int:
    """Return the place after the white space at `place`."""
    return _SPACE.match(text, place).end()  # type: ignore[union-attr] # matches an empty text too


def _skip(text: str, place: int, *optional: str) -> int:
    """Skip white space at `place`, then each mark of `optional` that is present, with the white space after it.

    The marks must be in the order of `optional`. Return the place after all of them.
    """
    place = after_space(text, place)
    for mark in optional:
        if text.startswith(mark, place):
            place = after_space(text, place + len(mark))
    return place


def read_value(text: str, place: int) -> tuple[Any, int] | None:
    """Read a JSON value, or a value in Python's form (`True`, single quotes). Return None for an incomplete value."""
    try:
        return _DECODER.raw_decode(text, place)
    except (ValueError, RecursionError):
        pass
    end = _bracket_end(text, place)
    value = None if end is None else _literal_value(text[place:end])
    return None if end is None or value is None else (value, end)


def _bracket_end(text: str, place: int) -> int | None:
    """Return the place after the bracket that closes the bracket at `place`.

    Return None if the closing bracket is missing, or if the text between them is too long or too deeply nested.
    """
    depth, before, outside = 0, place, 0
    for token in _TOKENS.finditer(text, place):
        begin, end = token.span()
        outside += begin - before + 1
        before = end
        if outside > _MAX_LENGTH_OUTSIDE_STRINGS or (depth == 0 and begin != place):
            return None
        depth += (text[begin] in "{[(") - (text[begin] in "}])")
        if depth <= 0:
            return end
        if depth > _MAX_DEPTH:
            return None
    return None


def _literal_value(source: str) -> Any:
    """Parse a value in Python's form. Return None if JSON has no such value."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about invalid escapes, for example
            value = ast.literal_eval(source)
        json.dumps(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return value


_NAME_KEYS, _ARGUMENT_KEYS = ("name", "tool_name", "tool", "function"), ("arguments", "parameters")
_CALL_KEYS = frozenset({"type", "id", "tool_call_id", *_NAME_KEYS, *_ARGUMENT_KEYS})


def named_call(value: Any) -> tuple[str, dict[str, Any]] | None:
    """Return the call that a JSON object means, or None if the value is not a call."""
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("function"), dict) and set(value) <= {"type", "id", "function", "index"}:
        value = value["function"]
    name = next((value[key] for key in _NAME_KEYS if isinstance(value.get(key), str)), None)
    if name is None or not set(value) <= _CALL_KEYS:
        return None
    arguments: Any = next((value[key] for key in _ARGUMENT_KEYS if key in value), {}) or {}
    if isinstance(arguments, str):  # as in OpenAI's protocol: JSON within a string
        decoded = read_value(arguments, after_space(arguments, 0))
        arguments = decoded[0] if decoded and not arguments[decoded[1] :].strip() else arguments
    return (name.removeprefix("functions."), arguments) if isinstance(arguments, dict) else None


def read_json_calls(text: str, place: int) -> tuple[WrittenCalls, int] | None:
    """Read a JSON object that is a call, or a list of such objects."""
    place = after_space(text, place)
    found = read_value(text, place) if text.startswith(("{", "["), place) else None
    if found is None:
        return None
    value, place = found
    calls = [named_call(entry) for entry in (value if isinstance(value, list) else [value])]
    return ([call for call in calls if call], place) if calls and all(calls) else None


def _json_between(begin: str, *ends: str) -> Reader:
    """Make a reader of JSON calls between marks. If `ends` are given, one of them must follow the calls."""

    def read(text: str, place: int) -> tuple[WrittenCalls, int] | None:
        found = read_json_calls(text, _skip(text, place, begin, "<|plugin|>"))
        if found is None or not ends:
            return found
        calls, place = found
        place = after_space(text, place)
        end = next((end for end in ends if text.startswith(end, place)), None)
        return (calls, place + len(end)) if end else None

    return read


# --- XML: <function=name> <parameter=key> ---

_XML_NAME = re.compile(rf"<function=\s*[\"']?({_NAME})[\"']?\s*>")
_XML_KEY = re.compile(r"\s*+<parameter=\s*+[\"']?([^>\n\"']{1,200}+)[\"']?\s*+>")
# If the end mark of a value is missing, the value ends before the next value, or before the end of the function.
_XML_END = re.compile(
    r"<(?:/parameter>(?=\s*+(?:<parameter=|</function>|</?(?:seed:)?tool_call>|\Z))"
    r"|(?<=\n<)(?=parameter=[^>\n]{1,200}>\n)|(?=/function>\s*+(?:</?(?:seed:)?tool_call>|<function=|\Z)))"
)


def _tagged_values(
    text: str, place: int, key: re.Pattern[str], end: re.Pattern[str]
) -> tuple[list[tuple[re.Match[str], str]], int] | None:
    """Read the values between marks. Return the values with their keys, and the place after the last value.

    Return None if an end mark is missing, or if there are too many values. If a value has no end mark of its own, `end`
    matches the beginning of the next mark, and the returned place is before this mark.
    """
    found: list[tuple[re.Match[str], str]] = []
    while begun := key.match(text, place):
        closed = end.search(text, begun.end())
        if closed is None or len(found) == _MAX_VALUES:
            return None
        found.append((begun, text[begun.end() : closed.start()]))
        place = closed.end() if closed[0].endswith(">") else closed.start()
    return found, place


def _function_xml(text: str, place: int) -> tuple[WrittenCalls, int] | None:
    name = _XML_NAME.match(text, place)
    found = _tagged_values(text, name.end(), _XML_KEY, _XML_END) if name else None
    if name is None or found is None:
        return None
    # Between its marks, an empty value has a single newline, which must be removed only once.
    arguments = {
        key[1].strip(): Written(value.removeprefix("\n").removesuffix("\n")) for key, value in found[0]
    }
    place = after_space(text, found[1])
    return ([(name[1], arguments)], place + 11) if text.startswith("</function>", place) else None


def _bare_function(text: str, place: int) -> tuple[WrittenCalls, int] | None:
    """Read a call whose begin mark is missing.

    The usual end mark, another call, or the end of the text must follow the call.
    """
    found = _function_xml(text, place)
    if found is None:
        return None
    end = after_space(text, found[1])
    if text.startswith("</tool_call>", end):
        return found[0], end + len("</tool_call>")
    return found if end == len(text) or text.startswith("<function=", end) else None


# --- <tool_call>: JSON, XML, or GLM's keys ---

_GLM_NAME = re.compile(rf"\s*+({_NAME})\s*+(?=<arg_key>|<tool_sep>|</tool_call>)")
_GLM_KEY = re.compile(r"\s*+<arg_key>([^<]{1,200})</arg_key>\s*+<arg_value>")
_GLM_END = re.compile(
    r"</(?:arg_value>(?=\s*+(?:<arg_key>|</tool_call>))|(?=tool_call>\s*+(?:<tool_call>|\Z)))"
)


def _glm_keys(text: str, place: int) -> tuple[WrittenCalls, int] | None:
    name = _GLM_NAME.match(text, place)
    found = _tagged_values(text, _skip(text, name.end(), "<tool_sep>"), _GLM_KEY, _GLM_END) if name else None
    if name is None or found is None:
        return None
    return [(name[1], {key[1].strip(): Written(value) for key, value in found[0]})], found[1]


def _tool_call(text: str, place: int) -> tuple[WrittenCalls, int] | None:
    place = after_space(text, place + len("<tool_call>"))
    if text.startswith(("{", "["), place):
        found = read_json_calls(text, place)
    elif text.startswith("<function=", place):
        found = _function_xml(text, place)
        while (
            found and len(found[0]) < MAX_CALLS and text.startswith("<function=", after_space(text, found[1]))
        ):
            more = _function_xml(text, after_space(text, found[1]))
            found = (found[0] + more[0], more[1]) if more else None
    else:
        found = _glm_keys(text, place)
    if found is None:
        return None
    end = after_space(text, found[1])
    return (found[0], end + len("</tool_call>")) if text.startswith("</tool_call>", end) else None


def _wrapped(begin: str, end: str, inner: Reader) -> Reader:
    """Make a reader of one or more calls between marks. `inner` reads a single call."""

    def read(text: str, place: int) -> tuple[WrittenCalls, int] | None:
        place, calls = after_space(text, place + len(begin)), WrittenCalls()
        while not text.startswith(end, place):
            found = inner(text, place)
            if found is None or len(calls) >= MAX_CALLS:
                return None
            calls += found[0]
            place = after_space(text, found[1])
        return (calls, place + len(end)) if calls else None

    return read


def _hunyuan(text: str, place: int) -> tuple[WrittenCalls, int] | None:
    place = after_space(text, place + len("<tool_calls>"))
    read = (
        _json_between("", "</tool_calls>")
        if text.startswith("[", place)
        else _wrapped("", "</tool_calls>", _tool_call)
    )
    return read(text, place)


# --- DeepSeek ---

_DEEPSEEK_CALL = re.compile(
    rf"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>({_NAME})\s*+```(?:json)?\s*+|({_NAME})<｜tool▁sep｜>\s*+)"
)


def _deepseek(text: str, place: int) -> tuple[WrittenCalls, int] | None:
    end, calls = "<｜tool▁calls▁end｜>", WrittenCalls()
    place = _skip(text, place, "<｜tool▁calls▁begin｜>")
    while len(calls) < MAX_CALLS and (call := _DEEPSEEK_CALL.match(text, place)):
        found = read_value(text, call.end())
        if found is None or not isinstance(found[0], dict):
            return _whole(calls, place)
        after = _skip(text, found[1], "```")
        if not text.startswith("<｜tool▁call▁end｜>", after):
            return _whole(calls, place)
        calls.append((call[1] or call[2], found[0]))
        place = after_space(text, after + len("<｜tool▁call▁end｜>"))
    return (calls, place + len(end)) if calls and text.startswith(end, place) else _whole(calls, place)


def _whole(calls: WrittenCalls, place: int) -> tuple[WrittenCalls, int] | None:
    """Return the complete calls before an incomplete call, or None if there are none.

    The code that called the reader checks the rest of the text.
    """
    return (calls, place) if calls else None


# DeepSeek's newer models write DSML, whose bars are the character U+FF5C. Some servers change the bars to ASCII bars,
# double bars, or U+2016.
_BAR = r"(?:[｜|‖]{1,2})"
_DSML = rf"{_BAR}DSML{_BAR} ?"
_DSML_BLOCK = re.compile(rf"<{_DSML}(function_calls|tool_calls|calls)>")
_DSML_INVOKE = re.compile(rf"\s*+<{_DSML}invoke name=\"([^\"\n]{{1,128}})\"\s*(/?)>")
_DSML_KEY = re.compile(rf"\s*+<{_DSML}parameter name=\"([^\"\n]{{1,200}})\"(?: string=\"(true|false)\")?>")
_DSML_VALUE_END = re.compile(rf"</{_DSML}parameter>(?=\s*+<(?:{_DSML}parameter|/{_DSML}invoke))")
_DSML_INVOKE_END = re.compile(rf"\s*+</{_DSML}invoke>")
_DSML_END = re.compile(rf"\s*+</{_DSML}(?:function_calls|tool_calls|calls)>")


def _dsml(text: str, place: int) -> tuple[WrittenCalls, int] | None:
    block = _DSML_BLOCK.match(text, place)
    if block is None:
        return None
    calls, place = WrittenCalls(), block.end()
    while len(calls) < MAX_CALLS and (invoke := _DSML_INVOKE.match(text, place)):
        arguments: dict[str, Any] = {}
        inside = invoke.end()
        if not invoke[2]:
            found = _tagged_values(text, inside, _DSML_KEY, _DSML_VALUE_END)
            closed = _DSML_INVOKE_END.match(text, found[1]) if found else None
            if found is None or closed is None:
                return _whole(calls, place)
            arguments = {key[1]: value if key[2] == "true" else Written(value) for key, value in found[0]}
            inside = closed.end()
        calls.append((invoke[1], arguments))
        place = inside
    end_block = _DSML_END.match(text, place)
    return (calls, end_block.end()) if calls and end_block else _whole(calls, place)


# --- MiniMax, Step (a family of models): <invoke name=""> ---

_INVOKE = re.compile(r"<(?:steptml:)?invoke name=[\"']?([^\"'>\n]{1,128})[\"']?>")
_INVOKE_KEY = re.compile(r"\s*+<(?:steptml:)?parameter name=[\"']?([^\"'>\n]{1,200})[\"']?>")
_INVOKE_VALUE_END = re.compile(
    r"</(?:steptml:)?parameter>(?=\s*+<(?:/?(?:steptml:)?invoke|(?:steptml:)?parameter))"
)
_INVOKE_END = re.compile(r"\s*+</(?:steptml:)?invoke>")


def _invoke(text: str, place: int) -> tuple[WrittenCalls, int] | None:
    invoke = _INVOKE.match(text, place)
    found = _tagged_values(text, invoke.end(), _INVOKE_KEY, _INVOKE_VALUE_END) if invoke else None
    closed = _INVOKE_END.match(text, found[1]) if found else None
    if invoke is None or found is None or closed is None:
        return None
    return [(invoke[1], {key[1]: Written(value) for key, value in found[0]})], closed.end()


def _step(text: str, place: int) -> tuple[WrittenCalls, int] | None:
    begin, sep, end = "<｜tool_call_begin｜>", "function<｜tool_sep｜>", "<｜tool_call_end｜>"

    def read_call(text: str, place: int) -> tuple[WrittenCalls, int] | None:
        found = _invoke(text, _skip(text, place, begin, sep))
        return (found[0], _skip(text, found[1], end)) if found else None

    return _wrapped("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>", read_call)(text, place)


# --- Kimi K2 ---

_KIMI_CALL = re.compile(
    rf"<\|tool_call_begin\|>\s*+(?:functions\.)?({_NAME}?)(?::\d+)?\s*+<\|tool_call_argument_begin\|>\s*+"
)


def _kimi(text: str, place: int) -> tuple[WrittenCalls, int] | None:
    calls, end = WrittenCalls(), "<|tool_calls_section_end|>"
    place += len("<|tool_calls_section_begin|>")
    while len(calls) < MAX_CALLS:
        begin = text.find("<|tool_call_begin|>", place)
        done = text.find(end, place, len(text) if begin < 0 else begin)  # other text may precede both marks
        if done >= 0:
            return calls, done + len(end)
        if begin < 0:
            return _whole(calls, place)
        call = _KIMI_CALL.match(text, begin)
        found = read_value(text, call.end()) if call else None
        if call is None or found is None or not isinstance(found[0], dict):
            return _whole(calls, place)
        after = after_space(text, found[1])
        if not text.startswith("<|tool_call_end|>", after):
            return _whole(calls, place)
        calls.append((call[1], found[0]))
        place = after + len("<|tool_call_end|>")
    return calls, place


# --- Gemma ---

_GEMMA_NAME = re.compile(r"call:([\w.-]{1,128})\s*+\{")
_GEMMA_BARE = re.compile(r"[^,:{}\[\]<]{1,500}")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")


class _GemmaArguments:
    """Parser of objects with bare keys, and strings between marks: `{d:<|"|>.<|"|>,n:[1,true]}`."""

    def __init__(self, text: str, place: int, quote: str) -> None:
        self.text, self.place, self.quote = text, place, quote
        self.values = 0

    def object(self, depth: int = 0) -> dict[str, Any]:
        """Parse the rest of an object after its brace. Raise ValueError if the object is incomplete."""
        found: dict[str, Any] = {}
        while True:
            self.place = after_space(self.text, self.place)
            if self.text.startswith("}", self.place):
                self.place += 1
                return found
            key = (
                self._string()
                if self.text.startswith(self.quote, self.place)
                else self._bare().strip().strip("\"'")
            )
            self._expect(":")
            found[key] = self._value(depth)
            self._comma("}")

    def _value(self, depth: int) -> Any:
        self.values += 1
        if depth > _MAX_DEPTH or self.values > _MAX_VALUES:
            raise ValueError("too deep, or too many")
        self.place = after_space(self.text, self.place)
        if self.text.startswith(self.quote, self.place):
            return self._string()
        first = self.text[self.place : self.place + 1]
        if first == '"':
            value, self.place = _DECODER.raw_decode(self.text, self.place)
            return value
        if first in ("{", "["):
            self.place += 1
            return self.object(depth + 1) if first == "{" else self._list(depth + 1)
        word = self._bare().strip()
        if _NUMBER.fullmatch(word):
            return json.loads(word)
        return {"true": True, "false": False, "null": None, "None": None}.get(word, word)

    def _list(self, depth: int) -> list[Any]:
        found: list[Any] = []
        while True:
            self.place = after_space(self.text, self.place)
            if self.text.startswith("]", self.place):
                self.place += 1
                return found
            found.append(self._value(depth))
            self._comma("]")

    def _string(self) -> str:
        begin = self.place + len(self.quote)
        end = self.text.index(self.quote, begin)
        self.place = end + len(self.quote)
        return self.text[begin:end]

    def _bare(self) -> str:
        found = _GEMMA_BARE.match(self.text, self.place)
        if found is None:
            raise ValueError("nothing")
        self.place = found.end()
        return found[0]

    def _expect(self, mark: str) -> None:
        self.place = after_space(self.text, self.place)
        if not self.text.startswith(mark, self.place):
            raise ValueError(mark)
        self.place += 1

    def _comma(self, end: str) -> None:
        self.place = after_space(self.text, self.place)
        if not self.text.startswith(end, self.place):
            self._expect(",")


def _gemma(begin: str, quote: str, end: str) -> Reader:
    def read(text: str, place: int) -> tuple[WrittenCalls, int] | None:
        name = _GEMMA_NAME.match(text, after_space(text, place + len(begin)))
        if name is None:
            return None
        arguments = _GemmaArguments(text, name.end(), quote)
        try:
            found = arguments.object()
        except (ValueError, RecursionError):
            return None
        place = after_space(text, arguments.place)
        return ([(name[1], found)], place + len(end)) if text.startswith(end, place) else None

    return read


# --- lists of Python calls: Llama 4, Gemma 3, LFM2 ---


def read_python_calls(text: str, place: int) -> tuple[WrittenCalls, int] | None:
    """Read a list of Python calls with literal keyword arguments, such as `[ls(d='.'), ls(d='..')]`."""
    place = after_space(text, place)
    end = _bracket_end(text, place) if text.startswith("[", place) else None
    calls = [] if end is None else python_calls(text[place:end])
    return (calls, end) if calls and end is not None else None


def python_calls(source: str) -> WrittenCalls:
    """Return the calls in a Python list of calls, or a single Python call. For any other source, return no calls."""
    outside = before = 0
    for token in _TOKENS.finditer(source):
        outside += token.start() - before + 1
        before = token.end()
        if outside > _MAX_LENGTH_OUTSIDE_STRINGS:
            return []
    if outside + len(source) - before > _MAX_LENGTH_OUTSIDE_STRINGS:
        return []
    try:
        with warnings.catch_warnings(action="ignore"):
            body = ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return []
    calls: WrittenCalls = []
    for node in body.elts if isinstance(body, ast.List) else [body]:
        if not isinstance(node, ast.Call) or node.args or any(key.arg is None for key in node.keywords):
            return []
        try:
            arguments = {str(key.arg): _literal(key.value) for key in node.keywords}
            calls.append((ast.unparse(node.func), arguments))
        except (ValueError, TypeError, RecursionError):
            return []
    return calls


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Name(id="true" | "false" | "null"):
            return {"true": True, "false": False, "null": None}[node.id]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_literal(element) for element in elements]
        case ast.Dict(keys=keys, values=values) if all(keys):
            return {
                str(_literal(key)): _literal(value) for key, value in zip(keys, values, strict=True) if key
            }
    value = ast.literal_eval(node)
    if not isinstance(value, str | int | float | bool | None):
        raise ValueError("not a value that JSON has")
    return value


def _python_between(begin: str, end: str) -> Reader:
    def read(text: str, place: int) -> tuple[WrittenCalls, int] | None:
        found = read_python_calls(text, place + len(begin)) or read_json_calls(text, place + len(begin))
        if found is None:
            return None
        after = after_space(text, found[1])
        return (found[0], after + len(end)) if text.startswith(end, after) else None

    return read


def _python_tag(text: str, place: int) -> tuple[WrittenCalls, int] | None:
    place += len("<|python_tag|>")
    calls: WrittenCalls = []
    while len(calls) < MAX_CALLS and (found := read_json_calls(text, place)):
        calls += found[0]
        place = found[1]
        separator = after_space(text, place)
        if not text.startswith(";", separator):  # the separator of several calls
            return calls, place
        place = separator + 1
    return (calls, place) if calls else read_python_calls(text, place)


# --- Mistral ---

_MISTRAL_CALL = re.compile(
    rf"\[TOOL_CALLS\]\s*+({_NAME})\s*+(?:\[CALL_ID\]\s*+\w{{1,64}}\s*+)?(?:\[ARGS\]\s*+)?(?=\{{)"
)


def _mistral(text: str, place: int) -> tuple[WrittenCalls, int] | None:
    call = _MISTRAL_CALL.match(text, place)
    if call is None:
        return read_json_calls(text, place + len("[TOOL_CALLS]"))
    found = read_value(text, call.end())
    if found is None or not isinstance(found[0], dict):
        return None
    return [(call[1], found[0])], found[1]


def _quoted(*marks: str) -> str:
    return "|".join(re.escape(mark) for mark in marks)


FORMATS: tuple[Format, ...] = (
    Format(
        "Hermes, Qwen 2.5, Qwen 3, Granite 4, Ernie 4.5 (JSON); Qwen3-Coder, Qwen 3.5, Nemotron 3 (XML);"
        " GLM 4.5 to 5 (keys)",
        _quoted("<tool_call>"),
        _tool_call,
        '<tool_call>{"name": "ls", "arguments": {"d": "."}}</tool_call>',
        "canitoolcall qwen3-hermes, qwen3-xml, glm",
    ),
    Format(
        "Qwen3-Coder without the mark before the call",
        _quoted("<function="),
        _bare_function,
        "<function=ls>\n<parameter=d>\n.\n</parameter>\n</function>\n</tool_call>",
        "canitoolcall qwen3-xml",
    ),
    Format(
        "DeepSeek V3, R1, V3.1",
        _quoted("<｜tool▁calls▁begin｜>"),
        _deepseek,
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>ls<｜tool▁sep｜>{"d": "."}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "canitoolcall deepseek",
    ),
    Format(
        "DeepSeek V3.2, V4, V4.1",
        rf"<{_DSML}(?:function_calls|tool_calls|calls)>",
        _dsml,
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="ls">\n'
        '<｜DSML｜parameter name="d" string="true">.</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "canitoolcall deepseek",
    ),
    Format(
        "Kimi K2",
        _quoted("<|tool_calls_section_begin|>"),
        _kimi,
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.ls:0<|tool_call_argument_begin|>"
        '{"d": "."}<|tool_call_end|><|tool_calls_section_end|>',
        "canitoolcall kimi",
    ),
    Format(
        "Gemma 4",
        _quoted("<|tool_call>"),
        _gemma("<|tool_call>", '<|"|>', "<tool_call|>"),
        '<|tool_call>call:ls{d:<|"|>.<|"|>}<tool_call|>',
        "canitoolcall gemma4",
    ),
    Format(
        "FunctionGemma",
        _quoted("<start_function_call>"),
        _gemma("<start_function_call>", "<escape>", "<end_function_call>"),
        "<start_function_call>call:ls{d:<escape>.<escape>}<end_function_call>",
        "vllm-project/vllm docs/features/tool_calling.md",
    ),
    Format(
        "Llama 3.1 to 3.3",
        _quoted("<|python_tag|>"),
        _python_tag,
        '<|python_tag|>{"name": "ls", "parameters": {"d": "."}}',
        "canitoolcall llama",
    ),
    Format(
        "Llama 4",
        _quoted("<|python_start|>"),
        _python_between("<|python_start|>", "<|python_end|>"),
        "<|python_start|>[ls(d='.')]<|python_end|>",
        "canitoolcall llama",
    ),
    Format(
        "Mistral: a list; a name with [ARGS]; a name with [CALL_ID] and [ARGS]",
        _quoted("[TOOL_CALLS]"),
        _mistral,
        '[TOOL_CALLS]ls[ARGS]{"d": "."}',
        "canitoolcall mistral",
    ),
    Format(
        "MiniMax M2",
        _quoted("<minimax:tool_call>"),
        _wrapped("<minimax:tool_call>", "</minimax:tool_call>", _invoke),
        '<minimax:tool_call>\n<invoke name="ls">\n<parameter name="d">.</parameter>\n</invoke>\n</minimax:tool_call>',
        "sgl-project/sglang python/sglang/srt/function_call/minimax_m2.py",
    ),
    Format(
        "Granite 3",
        _quoted("<|tool_call|>"),
        _json_between("<|tool_call|>"),
        '<|tool_call|>[{"name": "ls", "arguments": {"d": "."}}]',
        "vllm-project/vllm vllm/tool_parsers/granite_tool_parser.py",
    ),
    Format(
        "Phi-4-mini",
        r"functools(?=\[)",
        _json_between("functools"),
        'functools[{"name": "ls", "arguments": {"d": "."}}]',
        "vllm-project/vllm vllm/tool_parsers/phi4mini_tool_parser.py",
    ),
    Format(
        "Command A",
        _quoted("<|START_ACTION|>"),
        _json_between("<|START_ACTION|>", "<|END_ACTION|>"),
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "ls", "parameters": {"d": "."}}]<|END_ACTION|>',
        "sgl-project/sglang python/sglang/srt/function_call/cohere_command4_detector.py",
    ),
    Format(
        "Nemotron before 3",
        _quoted("<TOOLCALL>"),
        _json_between("<TOOLCALL>", "</TOOLCALL>"),
        '<TOOLCALL>[{"name": "ls", "arguments": {"d": "."}}]</TOOLCALL>',
        "vllm-project/vllm vllm/tool_parsers/nemotron_json",
    ),
    Format(
        "Hunyuan A13B (JSON), Hy3 (keys)",
        _quoted("<tool_calls>"),
        _hunyuan,
        '<tool_calls>[{"name": "ls", "arguments": {"d": "."}}]</tool_calls>',
        "vllm-project/vllm vllm/tool_parsers/hunyuan_a13b_tool_parser.py",
    ),
    Format(
        "Seed-OSS",
        _quoted("<seed:tool_call>"),
        _wrapped("<seed:tool_call>", "</seed:tool_call>", _function_xml),
        "<seed:tool_call><function=ls><parameter=d>.</parameter></function></seed:tool_call>",
        "ggml-org/llama.cpp common/chat",
    ),
    Format(
        "Step 3",
        _quoted("<｜tool_calls_begin｜>"),
        _step,
        '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="ls">'
        '<steptml:parameter name="d">.'
        "</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>",
        "vllm-project/vllm vllm/tool_parsers/step3_tool_parser.py",
    ),
    Format(
        "LFM2",
        _quoted("<|tool_call_start|>"),
        _python_between("<|tool_call_start|>", "<|tool_call_end|>"),
        '<|tool_call_start|>[ls(d=".")]<|tool_call_end|>',
        "vllm-project/vllm vllm/tool_parsers/lfm2",
    ),
    Format(
        "InternLM 2.5",
        _quoted("<|action_start|>"),
        _json_between("<|action_start|>", "<|action_end|>"),
        '<|action_start|><|plugin|>{"name": "ls", "parameters": {"d": "."}}<|action_end|>',
        "vllm-project/vllm vllm/tool_parsers/internlm2_tool_parser.py",
    ),
)
