"""Reading of values from an untrusted JSON file, with checks of size, depth and types.

For example:

    content = parse_json(data)
    for message in rows(content, "messages"):
        print(text(message, "role"))
"""

from __future__ import annotations

import datetime
import json
import math
from typing import Any

from llm_sandbox_nb.trajectory.events import MAX_TIME_SECONDS, clean_text

MAX_CONTAINERS = 4_000_000
"""Maximum number of objects and arrays in a file. Each needs up to 200 bytes of memory, but may have only two bytes in
the file."""
_MAX_COUNT = 2**53  # floats hold larger whole numbers inexactly


def parse_json(data: bytes) -> Any:
    """Parse JSON text. Lone surrogates, which are not characters, are replaced in all texts.

    Raises:
        ValueError: if the text is not UTF-8 or not JSON, is nested too deeply, has a number that is not finite, or has
            more than `MAX_CONTAINERS` objects and arrays.
    """
    check_containers(data)
    try:
        content = json.loads(data.decode("utf-8-sig"), parse_constant=_no_number, parse_float=_finite)
        return clean_text(content) if b"\\ud" in data or b"\\uD" in data else content
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from error


def check_containers(data: bytes, before: int = 0) -> int:
    """Return the sum of `before` and the number of objects and arrays in JSON text.

    Braces and brackets in strings are counted too.

    Raises:
        ValueError: if the sum is larger than `MAX_CONTAINERS`.
    """
    found = before + data.count(b"{") + data.count(b"[")
    if found > MAX_CONTAINERS:
        raise ValueError(f"it has more than {MAX_CONTAINERS:,} objects and arrays")
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"it holds {name}, which is not a JSON number")


def _finite(written: str) -> float:
    value = float(written)
    if not math.isfinite(value):
        raise ValueError(f"its number {written[:20]} is too large")
    return value


def mapping(value: Any, what: str) -> dict[str, Any]:
    """Return `value` if it is an object, or `{}` for null. `what` is the name of the value in error messages.

    Raises:
        ValueError: if the value is neither an object nor null.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not an object")
    return value


def rows(holder: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the objects in the array `name` of an object, or an empty list if the array is missing.

    Raises:
        ValueError: if the value has another type.
    """
    value = holder.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError(f"{name} is not an array of objects")
    return value


def text(holder: dict[str, Any], name: str) -> str:
    """Return the text `name` of an object, or an empty text if the text is missing.

    Raises:
        ValueError: if the value has another type.
    """
    value = holder.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a text")
    return value


def content_text(value: Any) -> str:
    """Return the text of a message's content, which is a text or a list of parts.

    A part without text, such as a picture, becomes its type in brackets.

    Raises:
        ValueError: if the content has another type.
    """
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise ValueError("the content of a message is neither text nor a list of parts")
    return "".join(_part_text(part) for part in value)


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise ValueError("a part of a message is not an object")
    if isinstance(part.get("text"), str):
        return str(part["text"])
    return f"[{str(part.get('type') or 'part')[:40]}]"


def number(holder: dict[str, Any], name: str) -> float | None:
    """Return the number `name` of an object, or None if the value is missing, beyond `_MAX_COUNT`, or not a number."""
    value = holder.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _MAX_COUNT:
        return None
    return float(value)


def count(holder: dict[str, Any], name: str) -> int:
    """Return the whole number `name` of an object, or 0 if the value is missing, negative or of another type."""
    return max(0, int(number(holder, name) or 0))


def seconds(value: Any) -> float | None:
    """Convert a time in ISO 8601 to seconds since 1970 (Unix time). Return a number unchanged.

    Return None for other values, and for times that an event cannot have.
    """
    if isinstance(value, str):
        try:
            value = datetime.datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError, OSError):
            return None
    found = number({"": value}, "")
    return found if found is not None and 0 <= found <= MAX_TIME_SECONDS else None


def iso_time(value: float | None) -> str | None:
    """Format a Unix time in seconds as ISO 8601 in UTC. Return None for 0, which means unknown, and invalid times."""
    if not value:
        return None
    try:
        return datetime.datetime.fromtimestamp(value, datetime.UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return None


def arguments(value: Any) -> tuple[dict[str, Any] | None, str]:
    """Return the arguments of a call as an object and as JSON text.

    If `value` is a text, it is returned too, and the object is None if the text is not a JSON object. If `value` is an
    object or is missing, the text is empty.
    """
    if isinstance(value, dict):
        return value, ""
    if value is None or value == "":
        return {}, ""
    if not isinstance(value, str):
        raise ValueError("the arguments of a call are not an object")
    try:
        parsed = parse_json(value.encode("utf-8", "replace"))
    except ValueError:
        return None, value
    return (parsed, value) if isinstance(parsed, dict) else (None, value)
