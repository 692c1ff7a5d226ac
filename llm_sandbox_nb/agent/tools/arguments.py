"""The arguments of a call as the model wrote them: parsed, and checked against the schema of the tool."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from typing import Any

from llm_sandbox_nb.trajectory.events import clean_text

_SHOWN = 80
_LARGEST = 2**53


class ArgumentsError(Exception):
    """A call cannot be executed as it was written. The message is for the model."""

    def __init__(self, message: str, kind: str = "bad_arguments") -> None:
        super().__init__(message)
        self.kind = kind


def parse_arguments(raw: str) -> dict[str, Any]:
    """The arguments of a call from their JSON text; an empty text is `{}`.

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
        reason = "nested too deeply"
        if isinstance(error, json.JSONDecodeError):
            reason = f"{error.msg.removesuffix(' at')} at character {error.pos + 1}"  # some of its messages end in "at"
        raise ArgumentsError(
            f"The arguments are not valid JSON ({reason}). Nothing was done: send it again.",
            "malformed_json",
        ) from error
    if not isinstance(value, dict):
        raise ArgumentsError(
            f"The arguments have to be a JSON object, not {_name(value)}. Nothing was done.", "malformed_json"
        )
    cleaned: dict[str, Any] = clean_text(value)
    return cleaned


def known_arguments(properties: Mapping[str, dict[str, Any]], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that `properties` names, of the right types; others are ignored, null counts as left out.

    Raises:
        ArgumentsError: an argument is of a wrong type.
    """
    known = {key: arguments[key] for key in properties if arguments.get(key) is not None}
    for key, value in known.items():
        _check_type(key, value, properties[key])
    return known


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
        case _:
            return isinstance(value, list) and all(_fits(item, schema["items"]) for item in value)


def _type_name(schema: dict[str, Any]) -> str:
    names = {
        "string": "text",
        "integer": "a whole number",
        "number": "a number",
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
