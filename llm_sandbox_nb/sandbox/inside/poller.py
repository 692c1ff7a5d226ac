"""Waiting: for descriptors, for time, and for the host to take what was sent."""

from __future__ import annotations

import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

IN, OUT = select.EPOLLIN, select.EPOLLOUT


class Timer:
    """Something to be done later, unless cancelled."""

    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when = when
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Do not do it."""
        self.action = None


class Poller:
    """Descriptors and timers, each with what to do when they are due."""

    def __init__(self) -> None:
        self.poll = select.epoll()
        self.handlers: dict[int, Callable[[int], None]] = {}
        self.outputs: set[int] = set()
        self.paused = False
        self.timers: list[Timer] = []

    def watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        """Call `handler` when something happens on `fd`."""
        if fd in self.handlers:
            self.poll.modify(fd, events)
        else:
            self.poll.register(fd, events)
        self.handlers[fd] = handler

    def unwatch(self, fd: int) -> None:
        """Stop watching; fine when it was not watched."""
        self.outputs.discard(fd)
        if self.handlers.pop(fd, None):
            self.poll.unregister(fd)

    def watch_output(self, fd: int, handler: Callable[[], None]) -> None:
        """Watch output of commands: paused while the host does not take it."""
        self.outputs.add(fd)
        self.watch(fd, 0 if self.paused else IN, lambda _: handler())

    def pause_outputs(self, paused: bool) -> None:
        """Stop or go on reading what commands write."""
        self.paused = paused
        for fd in self.outputs:
            self.poll.modify(fd, 0 if paused else IN)

    def after(self, delay: float, action: Callable[[], None]) -> Timer:
        """Do something later."""
        timer = Timer(time.monotonic() + delay, action)
        self.timers.append(timer)
        return timer

    def run_timers(self) -> float:
        """Do what is due; how long to wait for the next, in seconds."""
        now = time.monotonic()
        due = [timer for timer in self.timers if timer.when <= now]
        self.timers = [timer for timer in self.timers if timer.when > now and timer.action]
        for timer in due:
            if timer.action:
                timer.action()
        if due:
            return 0.0
        return min([timer.when - now for timer in self.timers], default=3600.0)

    def wait(self, seconds: float) -> None:
        """Wait for descriptors and do what they are watched for."""
        for fd, events in self.poll.poll(seconds, 64):
            handler = self.handlers.get(fd)
            if handler:
                handler(events)
