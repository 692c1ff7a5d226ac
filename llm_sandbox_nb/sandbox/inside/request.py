"""What every request has in common."""

from __future__ import annotations

import errno

from .wire import MAX_PAYLOAD, RESPONSE, bytes_to_text, dump

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .loop import Executor
    from .poller import Timer


class Request:
    """A request under way. Its body arrives by `data` and `end`; it ends by `respond`."""

    def __init__(self, executor: Executor, number: int, params: dict[str, Any]) -> None:
        self.executor = executor
        self.number = number
        self.params = params
        self.timer: Timer | None = None
        self.done = False
        self.silent = False

    def send(self, kind: int, data: bytes) -> None:
        """Send output of this request, in as many frames as it takes, if its owner is still there."""
        if self.silent:
            return
        for start in range(0, len(data), MAX_PAYLOAD):
            self.executor.send(kind, self.number, data[start : start + MAX_PAYLOAD])

    def respond(self, outcome: dict[str, Any]) -> None:
        """Answer and forget the request."""
        if self.done:
            return
        self.done = True
        if self.timer:
            self.timer.cancel()
        if self.silent:
            return
        self.executor.requests.pop(self.number, None)
        self.executor.acknowledged.pop(self.number, None)
        payload = dump(outcome)
        if len(payload) > MAX_PAYLOAD:
            payload = dump({"error": {"kind": "internal", "message": "the outcome is too large to be told"}})
        self.executor.send(RESPONSE, self.number, payload)

    def acknowledge(self, size: int) -> None:
        """Count bytes of the body that have been used."""
        if not self.silent and not self.done:
            self.executor.acknowledge(self.number, size)

    def fail(self, kind: str, message: str) -> None:
        """Answer with an error of our own."""
        self.respond({"error": {"kind": kind, "message": message}})

    def start_timer(self) -> None:
        """Start the clock of the request's `timeout`."""
        timeout = self.params.get("timeout")
        if timeout is not None:
            self.timer = self.executor.after(float(timeout), self.timed_out)

    def begin(self) -> None:
        """The request has arrived; its body may follow."""
        raise NotImplementedError

    def data(self, data: bytes) -> None:
        """A piece of the body."""
        self.acknowledge(len(data))

    def end(self) -> None:
        """The body is complete."""

    def timed_out(self) -> None:
        """The time is over."""

    def cancel(self) -> None:
        """The host has given up."""


def describe_error(error: Exception) -> dict[str, Any]:
    """An exception as the host can raise it again."""
    if isinstance(error, OSError):
        path = error.filename
        path = bytes_to_text(path) if isinstance(path, bytes) else str(path or "")
        return {"kind": "os", "errno": error.errno or errno.EIO, "path": path[:4096]}
    kind = "user" if isinstance(error, LookupError) else "internal"
    return {"kind": kind, "message": str(error.args[0] if error.args else error)}
