"""Replacements for `json` and `namedtuple`, because importing them takes longer than importing the whole executor.

The executor needs only the part of `json` that is written in C, but the package also imports `re` and `enum`. The C
part is not a public interface. So the package is used if an interpreter lacks the expected functions.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


class _Decoding:
    """The settings with which `json.loads` calls the C part."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": -float("inf")}.__getitem__


def _refuse(value: object) -> object:
    raise TypeError("not a JSON value: " + type(value).__name__)


try:
    import _json

    decoding: Any = _Decoding()
    _scan: Callable[[str, int], tuple[Any, int]] = _json.make_scanner(decoding)
    # The arguments mean: no check for circles, no indentation, compact separators, keys in the given order, no key
    # skipped, and NaN allowed.
    _encode: Callable[[object, int], Iterable[str]] = _json.make_encoder(
        None, _refuse, _json.encode_basestring_ascii, None, ":", ",", False, False, True
    )
except (ImportError, AttributeError, TypeError):
    from json import dumps as _dumps
    from json import loads as _loads

    def _scan(text: str, start: int) -> tuple[Any, int]:
        return _loads(text), len(text)

    def _encode(value: object, level: int) -> Iterable[str]:
        return (_dumps(value, separators=(",", ":")),)


def parse_json(data: str | bytes | bytearray) -> Any:
    """Return the value of a JSON text. Raises ValueError if the text is something else."""
    text = data if isinstance(data, str) else str(data, "utf-8", "surrogatepass")
    text = text.strip(" \t\n\r")
    try:
        value, end = _scan(text, 0)
    # The C part raises SystemError if it cannot find the module json.decoder, which has its usual exception.
    except (StopIteration, SystemError):
        raise ValueError("not JSON") from None
    if end != len(text):
        raise ValueError("more than one JSON value")
    return value


def dump(value: object) -> bytes:
    """Return compact JSON in ASCII."""
    return "".join(_encode(value, 0)).encode("ascii")


def named_tuple(name: str, fields: str) -> Any:
    """Return a class of tuples with named fields and `_replace`, without importing `collections`."""
    names = fields.split()

    def new(cls: type, *values: object) -> Any:
        if len(values) != len(names):
            raise TypeError("%s has the fields %s" % (name, fields))
        return tuple.__new__(cls, values)

    def replace(self: Any, **changed: object) -> Any:
        return type(self)(*map(changed.get, names, self))

    members: dict[str, Any] = {"__slots__": (), "__new__": new, "_replace": replace}
    members["__getnewargs__"] = lambda self: tuple(self)  # for copies and pickles
    for position, field in enumerate(names):
        members[field] = property(_item_getter(position))
    return type(name, (tuple,), members)


def _item_getter(position: int) -> Callable[[Any], Any]:
    return lambda values: values[position]
