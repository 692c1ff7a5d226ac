"""The event loop, which waits for descriptors and timers."""

from __future__ import annotations

import select
import time

from .processes import Crowd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

IN, OUT = select.EPOLLIN, select.EPOLLOUT
LATE_SECONDS = 0.1  # an action that is called with a longer delay counts as late


class Timer:
    """An action that is called later unless `cancel` was called."""

    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when = when
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class EventLoop:
    """Loop that waits for events of descriptors and for timers, and calls their functions."""

    def __init__(self) -> None:
        self.poll = select.epoll()
        self.handlers: dict[int, Callable[[int], None]] = {}
        self.registered: set[int] = set()
        """Descriptors that were registered since the last wait."""
        self.outputs: set[int] = set()
        self.paused = False
        self.timers: list[Timer] = []

    def watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        """Call `handler` when one of `events` occurs on `fd`. The argument is the set of events that have occurred."""
        if fd in self.handlers:
            self.poll.modify(fd, events)
        else:
            self.poll.register(fd, events)
            self.registered.add(fd)
        self.handlers[fd] = handler

    def unwatch(self, fd: int) -> None:
        """Stop watching `fd`. Do nothing for a descriptor that is not watched."""
        self.outputs.discard(fd)
        if self.handlers.pop(fd, None):
            self.poll.unregister(fd)

    def watch_output(self, fd: int, handler: Callable[[], None]) -> None:
        """Call `handler` when a command has written to `fd`, but not while the host does not read."""
        self.outputs.add(fd)
        self.watch(fd, 0 if self.paused else IN, lambda _: handler())

    def pause_outputs(self, paused: bool) -> None:
        """Stop or continue reading output of commands."""
        self.paused = paused
        for fd in self.outputs:
            self.poll.modify(fd, 0 if paused else IN)

    def after(self, delay: float, action: Callable[[], None]) -> Timer:
        """Call `action` in `delay` seconds."""
        timer = Timer(time.monotonic() + delay, action)
        self.timers.append(timer)
        return timer

    def run_timers(self) -> float:
        """Call all due actions. Return the seconds until the next action is due, or 0 if an action was called.

        Late actions can be a sign of a crowd of processes (see `Crowd`). Such a crowd is stopped meanwhile, because a
        single action could otherwise take many seconds.
        """
        now = time.monotonic()
        due = [timer for timer in self.timers if timer.when <= now]
        self.timers = [timer for timer in self.timers if timer.when > now and timer.action]
        if not due:
            return min([timer.when - now for timer in self.timers], default=3600.0)
        if any(now - timer.when > LATE_SECONDS for timer in due):
            Crowd.call_stopped(lambda: self.call(due))
        else:
            self.call(due)
        return 0.0

    def call(self, due: list[Timer]) -> None:
        for timer in due:
            if timer.action:
                timer.action()

    def wait(self, seconds: float) -> None:
        """Wait at most this many seconds for descriptors, and call their handlers."""
        found = self.poll.poll(seconds, 64)
        self.registered.clear()
        for fd, events in found:
            handler = self.handlers.get(fd)
            # The event of a descriptor in `registered` belongs to a closed file that had the same number.
            if handler and fd not in self.registered:
                handler(events)
