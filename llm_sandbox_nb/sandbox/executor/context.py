"""What requests and services know of the executor that they belong to. Only type checkers import this module."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any, NoReturn, Protocol

    from .event_loop import Timer

    class ExecutorContext(Protocol):
        """The executor: its pipe, its event loop, its children and the order in which files may change."""

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
