"""Arguments of each operation, the base class of all requests, and the part of the executor that requests use.

A malformed request is refused here, and never reaches the code of its operation.
"""

from __future__ import annotations

import errno

from .frames import MAX_PAYLOAD, RESPONSE, bytes_to_text
from .light import dump

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any, NoReturn, Protocol

    from .event_loop import Timer

    Check = Callable[[object], bool]

    class ExecutorContext(Protocol):
        """The part of the executor that requests use: pipe, event loop, children, and reasons to make commands wait."""

        cwd: bytes
        """Directory in which commands start."""
        spill: bytes
        """Folder for output that is too large to be sent."""
        scope: bytes
        """The only folder that checkpoints cover. Empty if they cover everything that is writable."""
        remove: str
        """Folder of the whole sandbox, which is removed at the end. Empty if the sandbox has its own filesystem."""
        requests: dict[int, Any]
        """Requests that were not answered yet, by number."""
        children: dict[int, Callable[[int], None]]
        """Functions, by the pid of a child. When the child ends, its function is called with the wait status."""
        helpers: set[int]
        """Children that serve one request each."""
        keepers: set[int]
        """Supervisors (see `ExecRequest`) whose program has ended, but whose program's descendants still run."""
        services: set[int]
        """Children that serve requests for as long as the executor runs."""
        holds: set[str]
        """Reasons why commands and file operations have to wait: `FIRST_LOOK`, `RESTORE`."""

        # `Executor` and its base classes describe these methods.
        def send(self, kind: int, number: int, payload: bytes | memoryview) -> None: ...
        def acknowledge(self, number: int, size: int) -> None: ...
        def forget(self, number: int) -> None: ...
        def watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None: ...
        def watch_output(self, fd: int, handler: Callable[[], None]) -> None: ...
        def unwatch(self, fd: int) -> None: ...
        def after(self, delay: float, action: Callable[[], None]) -> Timer: ...
        def fork(self, child: Callable[[], None]) -> int: ...
        def helper_pids(self) -> set[int]: ...
        def leave(self) -> NoReturn: ...
        def spill_path(self, number: int) -> bytes: ...
        def when_files_ready(self, action: Callable[[], None]) -> None: ...
        def hold_files(self, reason: str) -> None: ...
        def release_files(self, reason: str) -> None: ...
        def stop_everything(self, spare: Collection[object]) -> bool: ...


FIRST_LOOK, RESTORE = "first look", "restore"  # reasons to wait, see `ExecutorContext.holds`


class Request:
    """A request of the host. Its body arrives through `data` and `end`. `respond` ends the request."""

    def __init__(self, executor: ExecutorContext, number: int, params: dict[str, Any]) -> None:
        self.executor = executor
        self.number = number
        self.params = params
        self.timer: Timer | None = None
        self.done = False
        self.silent = False

    def begin(self) -> None:
        """Begin the request. Its body may follow."""

    def data(self, data: bytes) -> None:
        """Handle a piece of the body."""
        self.acknowledge(len(data))

    def end(self) -> None:
        """Handle the end of the body."""

    def timed_out(self) -> None:
        """Handle the moment when the request's `timeout` is over."""

    def cancel(self) -> None:
        """Handle a cancellation by the host."""

    def start_timer(self) -> None:
        """Start the clock of the request's `timeout`."""
        timeout = self.params.get("timeout")
        if timeout is not None:
            self.timer = self.executor.after(float(timeout), self.timed_out)

    def acknowledge(self, size: int) -> None:
        """Count `size` bytes of the body as consumed, so that the host may send more."""
        if not self.silent and not self.done:
            self.executor.acknowledge(self.number, size)

    def send(self, kind: int, data: bytes) -> None:
        """Send output of this request in frames of this kind, unless the owner that made the request is gone."""
        if self.silent:
            return
        view = memoryview(bytes(data))
        for start in range(0, len(data), MAX_PAYLOAD):
            self.executor.send(kind, self.number, view[start : start + MAX_PAYLOAD])

    def respond(self, outcome: dict[str, Any]) -> None:
        """Send the outcome and forget the request."""
        if self.done:
            return
        self.done = True
        if self.timer:
            self.timer.cancel()
        if self.silent:
            return
        self.executor.forget(self.number)
        payload = dump(outcome)
        if len(payload) > MAX_PAYLOAD:
            payload = dump({"error": {"kind": "internal", "message": "the outcome is too large to be sent"}})
        self.executor.send(RESPONSE, self.number, payload)

    def fail(self, kind: str, message: str) -> None:
        self.respond({"error": {"kind": kind, "message": message}})


KILLED = "killed"
"""Reason in `ended_by`: the executor has ended the command because a limit was exceeded."""


def ended_by(reason: str, code: int | None) -> dict[str, Any]:
    """Return the fields of an outcome that say how a command has ended.

    `reason` is empty if the executor did not end the command. `code` is the exit code, or None if it is unknown.
    """
    return {
        "exit_code": 137 if reason == KILLED else None if reason else code,
        "timed_out": reason == "timed_out",
        "interrupted": reason == "interrupted",
    }


def describe_error(error: Exception) -> dict[str, Any]:
    """Convert an exception to a dictionary, from which the host makes the same exception."""
    if isinstance(error, OSError):
        path = error.filename
        path = bytes_to_text(path) if isinstance(path, bytes) else str(path or "")
        return {"kind": "os", "errno": error.errno or errno.EIO, "path": path[:4096]}
    kind = "user" if isinstance(error, LookupError) else "internal"
    return {"kind": kind, "message": str(error.args[0] if error.args else error)}


MAX_COUNT = 2**63 - 1
MAX_HEAD_BYTES = 256 * 1024 * 1024


def is_text(value: object) -> bool:
    """Return True if the kernel accepts the value as a path, name or argument."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT


def is_flag(value: object) -> bool:
    return isinstance(value, bool)


def is_present(value: object) -> bool:
    """Return True if the argument `body` announces a body. Without a body, the operation would wait for ever."""
    return value is True


def is_seconds(value: object) -> bool:
    if isinstance(value, float):
        return value == value  # not NaN
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_COUNT


def is_program(value: object) -> bool:
    """Return True for a list of a program and its arguments."""
    return bool(value) and are_texts(value)


def are_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def is_environment(value: object) -> bool:
    return isinstance(value, dict) and all(is_text(text) for pair in value.items() for text in pair)


def is_window(value: object) -> bool:
    """Return True for a possible number of rows or columns of a terminal."""
    return isinstance(value, int) and 0 < value < 65536


def are_limits(value: object) -> bool:
    """Return True for a dictionary of limits of a scan."""
    return isinstance(value, dict) and all(
        limit is None or is_count(limit) or (name == "seconds" and is_seconds(limit))
        for name, limit in value.items()
    )


def optional(check: Check) -> Check:
    """Return a check that also accepts None."""
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
    "connection": {"body": is_present},
    "hand_out": {},
    "checkpoint": {
        "id": is_text, "since": optional(is_text), "walk": optional(is_flag), "limits": optional(are_limits),
    },
    "describe": {
        "paths": are_texts, "content": optional(is_flag), "below": optional(is_flag),
    },
    "renew": {},
    "restore": {
        "body": is_present, "id": is_text, "since": optional(is_text), "pack": optional(is_text),
        "handed": optional(is_flag),
    },
}  # fmt: skip
HEAD_OPERATIONS = frozenset(["exec", "read", "write", "list", "pack", "unpack", "describe"])
"""Operations whose arguments may be at the beginning of the body, because they may be too large for a frame."""


def problem_of(params: object) -> str:
    """Return the error in a request's arguments, or an empty text if there is none."""
    if not isinstance(params, dict) or not isinstance(params.get("op"), str):
        return "the request has no operation (`op`)"
    operation = params["op"]
    if operation not in OPERATIONS:
        return "the operation is unknown"
    if operation in HEAD_OPERATIONS and params.get("head") is not None:
        ready = is_count(params["head"]) and params["head"] <= MAX_HEAD_BYTES and params.get("body") is True
        return "" if ready else "the request is malformed: head"
    for name, check in [*ALWAYS.items(), *OPERATIONS[operation].items()]:
        if not check(params.get(name)):
            return "the request is malformed: " + name
    return ""
