"""Parsing of the arguments that a model wrote for a call, and their check against the schema of the tool."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.trajectory.events import MAX_LEVELS, clean_text, is_flat

_QUOTED_LENGTH = 80
_CONTEXT_LENGTH = 30
"""Number of characters that an error message quotes before and after the place where JSON is broken."""
_MAX_NUMBER = 2**53  # larger integers are not exact in JSON parsers that use floats


class ArgumentsError(LLMSandboxError):
    """Error for a call that cannot be executed as the model wrote it. The model reads the message."""

    def __init__(self, message: str, kind: str = "bad_arguments") -> None:
        super().__init__(message)
        self.kind = kind


def parse_arguments(raw: str) -> dict[str, Any]:
    """Parse the arguments of a call from JSON. An empty text, `null` and `[]` are read as `{}`.

    Typical errors of models are repaired if the repair neither loses nor adds content: line ends in strings, `\\$`,
    extra commas, other quotes, and a fence. Text that is cut off is not repaired, because its meaning is unknown.

    Raises:
        ArgumentsError: if the text is not JSON, or not an object.
    """
    if not raw.strip():
        return {}
    try:
        value = json.loads(raw)
        if isinstance(value, str) and value.lstrip().startswith("{"):
            value = json.loads(value)  # some servers encode the arguments twice
    except (ValueError, RecursionError) as error:
        value = repaired(raw)
        if value is None:
            if raw.rstrip().endswith(("}", "]", "`")):
                advice = 'send it again, with \\" for a quote inside a text and \\n for the end of a line'
            else:
                advice = "it does not come to its end, so send it again, whole"
            raise ArgumentsError(
                f"The arguments are not valid JSON ({_place(error, raw)}). Nothing was done: {advice}.",
                "malformed_json",
            ) from error
    if value is None or value == []:
        return {}
    if not is_flat(value):
        raise ArgumentsError(
            f"The arguments are nested more than {MAX_LEVELS} levels deep. Nothing was done: send fewer levels.",
            "malformed_json",
        )
    if not isinstance(value, dict):
        raise ArgumentsError(
            f"The arguments have to be a JSON object, not {_name(value)}. Nothing was done.", "malformed_json"
        )
    cleaned: dict[str, Any] = clean_text(value)
    return cleaned


_FENCE = "```"
_FENCE_LANGUAGE = re.compile(r"[\w-]*+")
_ESCAPE_OR_BACKSLASH = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_MAX_REPAIR_LENGTH = 1_000_000
"""Maximum number of characters in broken JSON that is repaired."""


def repaired(raw: str) -> dict[str, Any] | None:
    """Return the object that broken JSON certainly means. None if the meaning is unclear, or the text is cut off."""
    text = raw.strip("\ufeff \t\r\n")
    if text.startswith(_FENCE) and text.endswith(_FENCE):
        text = _FENCE_LANGUAGE.sub("", text[len(_FENCE) : -len(_FENCE)], count=1).strip()
    if not (text.startswith("{") and text.endswith("}")) or len(text) > _MAX_REPAIR_LENGTH:
        return None
    # A backslash that begins no JSON escape is kept, because it belongs to a shell command or a regular expression.
    escaped = _ESCAPE_OR_BACKSLASH.sub(lambda found: found[0] if len(found[0]) > 1 else "\\\\", text)
    without = _STRING_OR_COMMA.sub(lambda found: "" if found[0] == "," else found[0], escaped)
    readers: tuple[Callable[[], Any], ...] = (
        lambda: json.loads(escaped, strict=False),  # allows line ends and other control characters in strings
        lambda: json.loads(without, strict=False),
        lambda: ast.literal_eval(text),
        lambda: _guessed(escaped),
    )
    for read in readers:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python warns about unknown escapes
                value = read()
        except (ValueError, SyntaxError, TypeError, IndexError, RecursionError, MemoryError):
            continue
        if isinstance(value, dict) and all(isinstance(name, str) for name in value):
            return value
    return None


def _guessed(text: str) -> Any:
    """Return the object that `json_repair` reads. None if the object has other content than the text."""
    import json_repair  # imported late: few calls need a repair

    value = json_repair.loads(text, skip_json_loads=True)
    if not isinstance(value, dict) or _substance(text) != _LAST_COMMA.sub("", _plain(value)):
        return None
    names, texts = _strings(value)
    marks = sum(text.count(quote) for quote in _QUOTES)
    inside = sum(string.count(quote) for string in (*names, *texts) for quote in _QUOTES)
    # Each text has two quotes. Either each name has two quotes too, or no name has quotes. If the number of quotes fits
    # neither case, a quote was read as a part of a text.
    if marks - inside not in (2 * len(texts), 2 * (len(texts) + len(names))):
        return None
    read = _JSON_ESCAPE.sub(_unescaped, text)
    # A quote must follow each text directly. If no quote follows, white space at the end of the text was lost.
    complete = all(any(f"{text}{quote}" in read for quote in _QUOTES) for text in texts)
    return value if complete else None


def _strings(value: Any) -> tuple[list[str], list[str]]:
    """Return all names and all texts in a JSON value, at any depth."""
    names, texts, waiting = list[str](), list[str](), [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            texts.append(item)
        elif isinstance(item, dict):
            names += map(str, item)
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return names, texts


_QUOTES = "\"'`\u201c\u201d\u2018\u2019"
_STRING_OR_COMMA = re.compile(r'"(?:[^"\\]|\\.)*+"|,(?=\s*[}\]])', re.DOTALL)
_JSON_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_IGNORED_CHARACTERS = re.compile(rf"[\s{_QUOTES}\\\x00-\x1f\x7f]+")
_LAST_COMMA = re.compile(r",(?=[}\]])")
_PYTHON_WORDS = (("True", "true"), ("False", "false"), ("None", "null"))


def _unescaped(found: re.Match[str]) -> str:
    escape = found[1]
    return chr(int(escape[1:], 16)) if len(escape) > 1 else _ESCAPES.get(escape, escape)


def _substance(text: str) -> str:
    """Remove the parts of a JSON text that a repair may change: white space, quotes, backslashes, extra commas."""
    text = _LAST_COMMA.sub("", _IGNORED_CHARACTERS.sub("", _JSON_ESCAPE.sub(_unescaped, text)))
    for name, other in _PYTHON_WORDS:
        text = text.replace(name, other)
    return text


def _plain(value: Any) -> str:
    """Return a JSON value as text in the form that `_substance` returns."""
    match value:
        case dict():
            return "{" + ",".join(f"{_plain(str(key))}:{_plain(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ",".join(map(_plain, value)) + "]"
        case str():
            text = _IGNORED_CHARACTERS.sub("", value)
            for name, other in _PYTHON_WORDS:
                text = text.replace(name, other)
            return text
    return json.dumps(value)


def _place(error: Exception, raw: str) -> str:
    """Return a phrase that says what is wrong with the JSON text `raw`, and where. Too deep nesting has no place."""
    if not isinstance(error, json.JSONDecodeError):
        return "nested too deeply"
    try:
        json.loads(error.doc, strict=False)  # repairs accept line ends in strings, so report a later error
    except json.JSONDecodeError as later:
        error = later
    except RecursionError:
        return "nested too deeply"
    text, at = error.doc, min(error.pos, len(error.doc))
    reason = f"{error.msg.removesuffix(' at')} at character {at + 1}"  # some messages end in "at"
    if error.msg.startswith("Unterminated") or not text[at:].strip():
        return f"{reason}; the text ends with {_one_line(text[-_CONTEXT_LENGTH:])}"
    before, after = text[max(0, at - _CONTEXT_LENGTH) : at], text[at : at + _CONTEXT_LENGTH]
    return f"{reason}, after {_one_line(before)} and before {_one_line(after)}"


def _one_line(text: str) -> str:
    return f"`{text}`".replace("\r", "\\r").replace("\n", "\\n").replace("\t", "\\t")


def known_arguments(properties: Mapping[str, dict[str, Any]], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that are in `properties`, converted to their types. Null and other arguments are ignored.

    Raises:
        ArgumentsError: if an argument has a wrong type.
    """
    known = {
        key: converted(arguments[key], properties[key])
        for key in properties
        if arguments.get(key) is not None
    }
    for key, value in known.items():
        _check_type(key, value, properties[key])
    return known


_WHOLE_NUMBER = re.compile(r"\s*[+-]?\d{1,15}(?:\.0*)?\s*")
_DECIMAL = re.compile(r"\s*[+-]?(?:\d{1,15}(?:\.\d{0,15})?|\.\d{1,15})\s*")


def converted(value: Any, schema: Mapping[str, Any]) -> Any:
    """Convert a value to the type in its schema if the meaning is certain, such as "30" to a number."""
    match schema.get("type"):
        case "integer" if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value):
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
            return converted(found, schema) if isinstance(found, list | dict) and is_flat(found) else value
        case "array" if isinstance(value, list) and isinstance(items := schema.get("items"), Mapping):
            return [converted(item, items) for item in value]
    return value


def check_required(tool: str, required: Iterable[str], known: Container[str], sent: Iterable[str]) -> None:
    """Raise ArgumentsError if a required argument is not in `known`."""
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
            return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MAX_NUMBER
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_NUMBER
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
            return f"the number {str(value)[:_QUOTED_LENGTH]}"
        case list():
            return f"the list {quoted(json.dumps(value))}"
    return "an object"


def quoted(value: str) -> str:
    """Put a text in quotes. A long text is shortened."""
    short = value if len(value) <= _QUOTED_LENGTH else value[:_QUOTED_LENGTH] + "..."
    return json.dumps(short, ensure_ascii=False)
