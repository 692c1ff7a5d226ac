"""What each operation takes. A request that is malformed gets an answer; it never reaches the code that serves it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Check = Callable[[object], bool]

MOST = 2**63 - 1
HEAD_MOST = 256 * 1024 * 1024


def is_text(value: object) -> bool:
    """Whether the kernel can take it: a path, a name, an argument."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def is_count(value: object) -> bool:
    """A size or a number of things."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST


def is_flag(value: object) -> bool:
    """Yes or no."""
    return isinstance(value, bool)


def is_present(value: object) -> bool:
    """A body without which the operation would wait for ever."""
    return value is True


def is_seconds(value: object) -> bool:
    """A time."""
    if isinstance(value, float):
        return value == value  # not NaN
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MOST


def is_program(value: object) -> bool:
    """A program and its arguments."""
    return bool(value) and are_texts(value)


def are_texts(value: object) -> bool:
    """Paths or names."""
    return isinstance(value, list) and all(map(is_text, value))


def is_environment(value: object) -> bool:
    """Variables and their values."""
    return isinstance(value, dict) and all(is_text(text) for pair in value.items() for text in pair)


def is_window(value: object) -> bool:
    """Rows or columns of a terminal."""
    return isinstance(value, int) and 0 < value < 65536


def are_limits(value: object) -> bool:
    """Limits of a scan."""
    return isinstance(value, dict) and all(
        limit is None or is_count(limit) or (name == "seconds" and is_seconds(limit))
        for name, limit in value.items()
    )


def optional(check: Check) -> Check:
    """What may be missing."""
    return lambda value: value is None or check(value)


ALWAYS: dict[str, Check] = {"timeout": optional(is_seconds), "body": optional(is_flag)}
OPERATIONS: dict[str, dict[str, Check]] = {
    "run": {"body": is_present, "output_limit": is_count, "kill_background": optional(is_flag)},
    "exec": {
        "argv": is_program, "cwd": is_text, "env": is_environment, "user": optional(is_text), "output_limit": is_count,
    },
    "read": {"path": is_text, "limit": optional(is_count)},
    "write": {"path": is_text, "size": is_count, "exclusive": is_flag},
    "list": {"path": is_text, "depth": is_count, "limit": is_count},
    "pack": {"path": is_text, "limit": is_count},
    "unpack": {"path": is_text},
    "changes": {},
    "terminal": {
        "body": is_present, "argv": is_program, "cwd": is_text, "env": is_environment,
        "rows": is_window, "columns": is_window,
    },
    "checkpoint": {"id": is_text, "since": optional(is_text), "limits": optional(are_limits)},
    "describe": {
        "paths": are_texts, "content": optional(is_flag), "below": optional(is_flag), "limits": optional(are_limits),
    },
    "restore": {"body": is_present, "id": is_text, "since": optional(is_text), "pack": optional(is_text)},
}  # fmt: skip
HEAD = frozenset(["exec", "read", "write", "list", "pack", "unpack", "describe"])
"""Operations whose arguments may travel at the head of the body."""


def problem_of(params: object) -> str:
    """What is wrong with a request, or nothing."""
    if not isinstance(params, dict) or not isinstance(params.get("op"), str):
        return "the request does not say what is to be done"
    operation = params["op"]
    if operation not in OPERATIONS:
        return "the executor does not know this operation"
    if operation in HEAD and params.get("head") is not None:
        ready = is_count(params["head"]) and params["head"] <= HEAD_MOST and params.get("body") is True
        return "" if ready else "the request is malformed: head"
    for name, check in [*ALWAYS.items(), *OPERATIONS[operation].items()]:
        if not check(params.get(name)):
            return "the request is malformed: " + name
    return ""
