"""Values out of a JSON file that a stranger made: nothing of its size, depth or types is trusted.

content = parse_json(data)
for message in rows(content, "messages"):
    print(text(message, "role"))
"""

from __future__ import annotations

import datetime
import json
import math
from typing import Any

CONTAINERS_MOST = 4_000_000
"""Objects and arrays of a file: each takes up to 200 bytes of memory, and two bytes in the file."""
_COUNT_MOST = 2**53


def parse_json(data: bytes) -> Any:
    """The value that JSON text gives; numbers are finite, and the number of objects is bounded.

    Raises:
        ValueError: it is not JSON, or too deep, or has too many objects. The message says which.
    """
    if data.count(b"{") + data.count(b"[") > CONTAINERS_MOST:
        raise ValueError(f"it has more than {CONTAINERS_MOST:,} objects and arrays")
    try:
        return json.loads(data.decode("utf-8-sig"), parse_constant=_no_number, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError("it is no text in UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from error


def _no_number(name: str) -> Any:
    raise ValueError(f"it holds {name}, which is no number of JSON")


def _finite(written: str) -> float:
    value = float(written)
    if not math.isfinite(value):
        raise ValueError(f"its number {written[:20]} is too large")
    return value


def mapping(value: Any, what: str) -> dict[str, Any]:
    """`value`, which is an object; an empty one for null. Raises ValueError, naming `what` it is."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no object")
    return value


def rows(holder: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects in the array `name` of an object; none where it is missing. Raises ValueError."""
    value = holder.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ValueError(f"{name} is no array of objects")
    return value


def text(holder: dict[str, Any], name: str) -> str:
    """The text `name` of an object; empty where it is missing. Raises ValueError."""
    value = holder.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{name} is no text")
    return value


def content_text(value: Any) -> str:
    """The text of a message's content: a text, or a list of parts, of which others than text are named.

    Raises:
        ValueError: it is something else.
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
        raise ValueError("a part of a message is no object")
    if isinstance(part.get("text"), str):
        return str(part["text"])
    return f"[{str(part.get('type') or 'part')[:40]}]"


def number(holder: dict[str, Any], name: str) -> float | None:
    """The number `name` of an object; None where it is missing or something else."""
    value = holder.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _COUNT_MOST:
        return None
    return float(value)


def count(holder: dict[str, Any], name: str) -> int:
    """The whole number `name` of an object; 0 where it is missing, negative or something else."""
    return max(0, int(number(holder, name) or 0))


def seconds(value: Any) -> float | None:
    """Seconds since the epoch of a time written as ISO 8601 or as a number; None for anything else."""
    if isinstance(value, str):
        try:
            return datetime.datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError, OSError):
            return None
    return number({"": value}, "")


def iso_time(value: float | None) -> str | None:
    """A time as ISO 8601 in UTC; None for one that no calendar has, and for 0, which is not known."""
    if not value:
        return None
    try:
        return datetime.datetime.fromtimestamp(value, datetime.UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return None


def arguments(value: Any) -> tuple[dict[str, Any] | None, str]:
    """The arguments of a call, which are an object or its JSON text: the object, None without one, and the text."""
    if isinstance(value, dict):
        return value, ""
    if value is None or value == "":
        return {}, ""
    if not isinstance(value, str):
        raise ValueError("the arguments of a call are no object")
    try:
        parsed = parse_json(value.encode("utf-8", "replace"))
    except ValueError:
        return None, value
    return (parsed, value) if isinstance(parsed, dict) else (None, value)
