"""What all requests have in common, and what they know of the executor (a Protocol, for type checkers only)."""

from __future__ import annotations

import errno

from .frames import MAX_PAYLOAD, RESPONSE, bytes_to_text, dump

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any, NoReturn, Protocol

    from .event_loop import Timer

    class ExecutorContext(Protocol):
        """Its pipe, its event loop, its children and the order in which files may change."""

        cwd: bytes
        """Where commands start."""
        spill: bytes
        """The folder for output that is too large to be sent."""
        scope: bytes
        """The only folder that checkpoints cover; empty for everything that is writable."""
        remove: str
        """The folder that is the whole sandbox; empty when the sandbox has a filesystem of its own."""
        requests: dict[int, Any]
        """Requests that wait for their outcome, by number."""
        children: dict[int, Callable[[int], None]]
        """What to call with the wait status when a child ends, by pid."""
        helpers: set[int]
        """Children that serve one request each."""
        services: set[int]
        """Children that serve requests for as long as the executor runs."""
        holds: set[str]
        """Why commands and file operations must wait: `FIRST_LOOK`, `RESTORE`."""

        # ----------------------------------------------------------------------------------- pipe and loop

        def send(self, kind: int, number: int, payload: bytes) -> None:
            """Queue a frame."""

        def acknowledge(self, number: int, size: int) -> None:
            """Count bytes of a request's body that have been used."""

        def forget(self, number: int) -> None:
            """A request has been answered."""

        def watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
            """Call `handler` when something happens on `fd`."""

        def watch_output(self, fd: int, handler: Callable[[], None]) -> None:
            """Watch output of commands: paused while the host does not read it."""

        def unwatch(self, fd: int) -> None:
            """Stop watching; fine when it was not watched."""

        def after(self, delay: float, action: Callable[[], None]) -> Timer:
            """Call `action` in `delay` seconds."""

        # --------------------------------------------------------------------------------------- processes

        def fork(self, child: Callable[[], None]) -> int:
            """Fork; the child calls `child` and ends."""

        def helper_pids(self) -> set[int]:
            """Children that no command started."""

        def adopt_orphans(self) -> None:
            """Note what an ended request left running: it does not belong to the current command."""

        def leave(self) -> NoReturn:
            """End everything."""

        def spill_path(self, number: int) -> bytes:
            """Where the whole output of a request goes when it is too large to be sent."""

        # ------------------------------------------------------------------------------------------- files

        def when_files_ready(self, action: Callable[[], None]) -> None:
            """Call `action`, which may change files, as soon as nothing holds them."""

        def hold_files(self, reason: str) -> None:
            """Let commands and file operations wait."""

        def release_files(self, reason: str) -> None:
            """End a hold. With the last one, everything that waits starts."""

        def stop_everything(self, spare: Collection[object]) -> bool:
            """Cancel all requests but `spare` and kill all commands; False when one could not be killed."""


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
