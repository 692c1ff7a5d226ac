"""The arguments of a call as the model wrote them: parsed, and checked against the schema of the tool."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.trajectory.events import clean_text

_SHOWN = 80
_AROUND = 30
"""Characters shown before and after the place where JSON is broken."""
_LARGEST = 2**53


class ArgumentsError(LLMSandboxError):
    """A call cannot be executed as it was written. The message is for the model."""

    def __init__(self, message: str, kind: str = "bad_arguments") -> None:
        super().__init__(message)
        self.kind = kind


def parse_arguments(raw: str) -> dict[str, Any]:
    """The arguments of a call from their JSON text; an empty text, `null` and `[]` are `{}`.

    JSON that is broken as models break it is repaired, if the repair loses nothing and adds nothing: line ends in
    strings, `\\$`, commas too many, quotes of other kinds, a fence. What is cut off never is: it may do another thing.

    Raises:
        ArgumentsError: it is not JSON, or not an object.
    """
    if not raw.strip():
        return {}
    try:
        value = json.loads(raw)
        if isinstance(value, str) and value.lstrip().startswith("{"):
            value = json.loads(value)  # some servers write it as JSON twice
    except (ValueError, RecursionError) as error:
        value = repaired(raw)
        if value is None:
            raise ArgumentsError(
                f"The arguments are not valid JSON ({_place(error, raw)}). Nothing was done: {_what_to_do(raw)}.",
                "malformed_json",
            ) from error
    if value is None or value == []:
        return {}
    if not isinstance(value, dict):
        raise ArgumentsError(
            f"The arguments have to be a JSON object, not {_name(value)}. Nothing was done.", "malformed_json"
        )
    cleaned: dict[str, Any] = clean_text(value)
    return cleaned


_FENCE = "```"
_INFO = re.compile(r"[\w-]*+")
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_LONGEST_REPAIR = 1_000_000
"""Characters above which broken JSON is not repaired."""


def repaired(raw: str) -> dict[str, Any] | None:
    """The object that broken JSON surely means; None when it may mean another one, or is cut off."""
    text = raw.strip("\ufeff \t\r\n")
    if text.startswith(_FENCE) and text.endswith(_FENCE):
        text = _INFO.sub("", text[len(_FENCE) : -len(_FENCE)], count=1).strip()
    if not (text.startswith("{") and text.endswith("}")) or len(text) > _LONGEST_REPAIR:
        return None
    # A backslash that JSON does not know is one of the shell or of a regular expression: it stays.
    escaped = _ESCAPE.sub(lambda found: found[0] if len(found[0]) > 1 else "\\\\", text)
    without = _STRING_OR_COMMA.sub(lambda found: "" if found[0] == "," else found[0], escaped)
    readers: tuple[Callable[[], Any], ...] = (
        lambda: json.loads(escaped, strict=False),  # with line ends and other control characters in strings
        lambda: json.loads(without, strict=False),
        lambda: _python_literal(text),
        lambda: _guessed(escaped),
    )
    for read in readers:
        try:
            value = read()
        except (ValueError, SyntaxError, TypeError, IndexError, RecursionError, MemoryError):
            continue
        if isinstance(value, dict) and all(isinstance(name, str) for name in value):
            return value
    return None


def _python_literal(text: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes that Python does not know
        return ast.literal_eval(text)


def _guessed(text: str) -> Any:
    """What the package for broken JSON reads, if that has all of the text and nothing else."""
    import json_repair  # only for calls that need it

    value = json_repair.loads(text, skip_json_loads=True)
    if not isinstance(value, dict) or _substance(text) != _LAST_COMMA.sub("", _plain(value)):
        return None
    names, texts = _strings(value)
    marks = sum(text.count(one) for one in _QUOTES)
    inside = sum(one.count(quote) for one in (*names, *texts) for quote in _QUOTES)
    # Each text is in two quotes, and so is each name or none: otherwise a quote was taken for a part of a text.
    if marks - inside not in (2 * len(texts), 2 * (len(texts) + len(names))):
        return None
    read = _JSON_ESCAPE.sub(_unescaped, text)
    return value if all(f"{one}{end}" in read for one in texts for end in _end_of(one, read)) else None


def _end_of(text: str, read: str) -> tuple[str]:
    """The quote after a text: white space before it would be lost."""
    return (next((quote for quote in _QUOTES if f"{text}{quote}" in read), '"'),)


def _strings(value: Any) -> tuple[list[str], list[str]]:
    """The names and the texts of a JSON value, at any depth."""
    names, texts, waiting = list[str](), list[str](), [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            texts.append(one)
        elif isinstance(one, dict):
            names += map(str, one)
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return names, texts


_QUOTES = "\"'`\u201c\u201d\u2018\u2019"
_STRING_OR_COMMA = re.compile(r'"(?:[^"\\]|\\.)*+"|,(?=\s*[}\]])', re.DOTALL)
_JSON_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_EMPTY = re.compile(rf"[\s{_QUOTES}\\\x00-\x1f\x7f]+")
_LAST_COMMA = re.compile(r",(?=[}\]])")
_WORDS = (("True", "true"), ("False", "false"), ("None", "null"))


def _unescaped(found: re.Match[str]) -> str:
    said = found[1]
    return chr(int(said[1:], 16)) if len(said) > 1 else _ESCAPES.get(said, said)


def _substance(text: str) -> str:
    """A JSON text without what a repair may change: white space, quotes, backslashes, commas too many."""
    text = _LAST_COMMA.sub("", _EMPTY.sub("", _JSON_ESCAPE.sub(_unescaped, text)))
    for name, other in _WORDS:
        text = text.replace(name, other)
    return text


def _plain(value: Any) -> str:
    """The same of the object that was read."""
    match value:
        case dict():
            return "{" + ",".join(f"{_plain(str(key))}:{_plain(one)}" for key, one in value.items()) + "}"
        case list():
            return "[" + ",".join(map(_plain, value)) + "]"
        case str():
            text = _EMPTY.sub("", value)
            for name, other in _WORDS:
                text = text.replace(name, other)
            return text
    return json.dumps(value)


def _place(error: Exception, raw: str) -> str:
    """What is wrong with a JSON text, and where, in words."""
    if not isinstance(error, json.JSONDecodeError):
        return "nested too deeply"
    try:
        json.loads(error.doc, strict=False)  # line ends in strings are not what has to be changed
    except json.JSONDecodeError as later:
        error = later
    except RecursionError:
        return "nested too deeply"
    text, at = error.doc, min(error.pos, len(error.doc))
    reason = f"{error.msg.removesuffix(' at')} at character {at + 1}"  # some of its messages end in "at"
    if error.msg.startswith("Unterminated") or not text[at:].strip():
        return f"{reason}; the text ends with {_one_line(text[-_AROUND:])}"
    before, after = text[max(0, at - _AROUND) : at], text[at : at + _AROUND]
    return f"{reason}, after {_one_line(before)} and before {_one_line(after)}"


def _what_to_do(raw: str) -> str:
    if not raw.rstrip().endswith(("}", "]", "`")):
        return "it does not come to its end, so send it again, whole"
    return 'send it again, with \\" for a quote inside a text and \\n for the end of a line'


def _one_line(text: str) -> str:
    return f"`{text}`".replace("\r", "\\r").replace("\n", "\\n").replace("\t", "\\t")


def known_arguments(properties: Mapping[str, dict[str, Any]], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that `properties` names, of the right types; others are ignored, null counts as left out.

    Raises:
        ArgumentsError: an argument is of a wrong type.
    """
    known = {
        key: converted(arguments[key], properties[key])
        for key in properties
        if arguments.get(key) is not None
    }
    for key, value in known.items():
        _check_type(key, value, properties[key])
    return known


_WHOLE = re.compile(r"\s*[+-]?\d{1,15}(?:\.0*)?\s*")
_DECIMAL = re.compile(r"\s*[+-]?(?:\d{1,15}(?:\.\d{0,15})?|\.\d{1,15})\s*")


def converted(value: Any, schema: Mapping[str, Any]) -> Any:
    """A value in the type of its schema, where it is surely meant so: "30" is a number, "[1, 5]" a list."""
    match schema.get("type"):
        case "integer" if isinstance(value, str) and _WHOLE.fullmatch(value):
            return int(float(value))
        case "integer" if isinstance(value, float) and value.is_integer():
            return int(value)
        case "number" if isinstance(value, str) and _DECIMAL.fullmatch(value):
            return int(value) if value.strip().lstrip("+-").isdecimal() else float(value)
        case "boolean" if isinstance(value, str) and value.strip().casefold() in ("true", "false"):
            return value.strip().casefold() == "true"
        case "array" | "object" if isinstance(value, str) and value.strip()[:1] in ("[", "{"):
            try:
                found = json.loads(value)
            except (ValueError, RecursionError):
                return value
            return converted(found, schema) if isinstance(found, list | dict) else value
        case "array" if isinstance(value, list) and isinstance(items := schema.get("items"), Mapping):
            return [converted(one, items) for one in value]
    return value


def check_required(tool: str, required: Iterable[str], known: Container[str], sent: Iterable[str]) -> None:
    """Raises ArgumentsError when a required argument is missing among the `known` ones."""
    if missing := [key for key in required if key not in known]:
        names = ", ".join(sent)
        had = f"it has {names}" if names else "it has no arguments"
        raise ArgumentsError(f"{tool} needs `{'` and `'.join(missing)}`, but {had:.200}. Nothing was done.")


def _check_type(key: str, value: Any, schema: dict[str, Any]) -> None:
    if not _fits(value, schema):
        raise ArgumentsError(f"`{key}` has to be {_type_name(schema)}, not {_name(value)}. Nothing was done.")
    if "enum" in schema and value not in schema["enum"]:
        raise ArgumentsError(
            f"`{key}` has to be one of {', '.join(schema['enum'])}, not {quoted(value)}. Nothing was done."
        )


def _fits(value: Any, schema: dict[str, Any]) -> bool:
    match schema["type"]:
        case "string":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST
        case "boolean":
            return isinstance(value, bool)
        case _:
            return isinstance(value, list) and all(_fits(item, schema["items"]) for item in value)


def _type_name(schema: dict[str, Any]) -> str:
    names = {
        "string": "text",
        "integer": "a whole number",
        "number": "a number",
        "boolean": "true or false",
        "array": "a list of whole numbers",
    }
    return names[schema["type"]]


def _name(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case str():
            return f"the text {quoted(value)}"
        case int() | float():
            return f"the number {str(value)[:_SHOWN]}"
        case list():
            return f"the list {quoted(json.dumps(value))}"
    return "an object"


def quoted(value: str) -> str:
    """A text in quotes, cut when it is long."""
    return json.dumps(value if len(value) <= _SHOWN else value[:_SHOWN] + "...", ensure_ascii=False)
