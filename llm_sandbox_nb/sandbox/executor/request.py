"""What all requests have in common."""

from __future__ import annotations

import errno

from .frames import MAX_PAYLOAD, RESPONSE, bytes_to_text, dump

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .context import ExecutorContext
    from .event_loop import Timer

FIRST_LOOK, RESTORE = "first look", "restore"  # reasons to hold files, see `ExecutorContext.holds`


class Request:
    """A request of the host. Its body arrives by `data` and `end`; it ends by `respond`."""

    def __init__(self, executor: ExecutorContext, number: int, params: dict[str, Any]) -> None:
        self.executor = executor
        self.number = number
        self.params = params
        self.timer: Timer | None = None
        self.done = False
        self.silent = False

    def begin(self) -> None:
        """The request has arrived; its body may follow."""

    def data(self, data: bytes) -> None:
        """A piece of the body has arrived."""
        self.acknowledge(len(data))

    def end(self) -> None:
        """The body is complete."""

    def timed_out(self) -> None:
        """The request's `timeout` is over."""

    def cancel(self) -> None:
        """The host no longer wants the result."""

    def start_timer(self) -> None:
        """Start the clock of the request's `timeout`."""
        timeout = self.params.get("timeout")
        if timeout is not None:
            self.timer = self.executor.after(float(timeout), self.timed_out)

    def acknowledge(self, size: int) -> None:
        """Count bytes of the body that have been used."""
        if not self.silent and not self.done:
            self.executor.acknowledge(self.number, size)

    def send(self, kind: int, data: bytes) -> None:
        """Send output of this request, in as many frames as it takes, unless its owner is gone."""
        if self.silent:
            return
        for start in range(0, len(data), MAX_PAYLOAD):
            self.executor.send(kind, self.number, data[start : start + MAX_PAYLOAD])

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
        """Respond with an error."""
        self.respond({"error": {"kind": kind, "message": message}})


KILLED = "killed"
"""Why a command ended: it did what it may not."""


def ended_by(reason: str, code: int | None) -> dict[str, Any]:
    """The fields of an outcome that say how a command ended; without a reason its exit code is `code`."""
    return {
        "exit_code": 137 if reason == KILLED else None if reason else code,
        "timed_out": reason == "timed_out",
        "interrupted": reason == "interrupted",
    }


def describe_error(error: Exception) -> dict[str, Any]:
    """An exception as the host can raise it again."""
    if isinstance(error, OSError):
        path = error.filename
        path = bytes_to_text(path) if isinstance(path, bytes) else str(path or "")
        return {"kind": "os", "errno": error.errno or errno.EIO, "path": path[:4096]}
    kind = "user" if isinstance(error, LookupError) else "internal"
    return {"kind": kind, "message": str(error.args[0] if error.args else error)}
