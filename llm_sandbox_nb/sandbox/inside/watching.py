"""The child that watches the working directory, seen from the loop."""

from __future__ import annotations

import json
import os
import signal

from .poller import IN
from .processes import PR_SET_PDEATHSIG, pipe_bytes, prctl, send_signal, take_descriptors
from .request import Request
from .wire import PIPE_READ, STDOUT, quietly_close

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .loop import Executor

FORGOTTEN = "What the files were like before was lost, so some changes are missing."
FIRST_LOOK = 2.0  # seconds that commands wait for the first look at the working directory


class Watcher:
    """The child that remembers the working directory, and tells what changes in it."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.pid = 0
        self.busy = False
        self.queue: list[ChangesRequest] = []
        self.waiting: list[Callable[[], None]] = []
        self.current: ChangesRequest | None = None
        self.ask_w = self.changes_r = self.told_r = -1
        self.left = 0
        self.outcome: dict[str, Any] | None = None
        self.forgotten = ""

    def start(self) -> None:
        """Fork it, if there is room; it begins with a first look, during which no command runs."""
        pipes: list[tuple[int, int]] = []
        try:
            for _ in range(3):
                pipes.append(os.pipe())
            theirs = {0: pipes[0][0], 1: pipes[1][1], 3: pipes[2][1]}
            self.pid = self.executor.fork(lambda: self.child(theirs))
        except OSError:
            quietly_close(*(fd for pipe in pipes for fd in pipe))
            self.forgotten = FORGOTTEN
            return
        quietly_close(*theirs.values())
        self.ask_w, self.changes_r, self.told_r = pipes[0][1], pipes[1][0], pipes[2][0]
        self.busy, self.outcome = True, None
        self.executor.children[self.pid] = lambda _: self.died()
        for fd in (self.changes_r, self.told_r):
            os.set_blocking(fd, False)
        self.executor.watch_output(self.changes_r, self.read_changes)
        self.executor.watch(self.told_r, IN, lambda _: self.read_told())
        self.executor.after(FIRST_LOOK, self.first_look_over)

    def child(self, fds: dict[int, int]) -> None:
        """In the child: look and tell until the executor goes."""
        take_descriptors(fds)
        os.closerange(4, 4096)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        from .changes import watch

        watch(self.executor.cwd)
        os._exit(0)

    def look_afresh(self) -> None:
        """All files have been put back to what they were: start again, and tell nothing of it."""
        if self.pid:
            self.executor.children[self.pid] = lambda _: None
            send_signal(self.pid, signal.SIGKILL)
            self.close()
            self.answer({})
        self.start()
        if not self.pid:
            self.first_look_over()

    def first_look_over(self) -> None:
        """Commands may run now, whether it is done or not."""
        self.busy = False
        if self.executor.history.restoring:
            return  # what waits, waits for the files too
        self.executor.shell.next()
        waiting, self.waiting = self.waiting, []
        for action in waiting:
            action()

    def when_looked(self, action: Callable[[], None]) -> None:
        """Do something that may change files: at once, or after the first look."""
        if self.busy or self.executor.history.restoring:
            self.waiting.append(action)
        else:
            action()

    def ask(self, request: ChangesRequest) -> None:
        """Answer it when its turn comes."""
        self.queue.append(request)
        self.next()

    def next(self) -> None:
        """Ask the child for the next request."""
        if self.current or not self.queue or self.busy:
            return
        if not self.pid:
            self.start()
            if not self.pid:
                self.current = self.queue.pop(0)
                self.answer({})
            return
        self.current, self.outcome = self.queue.pop(0), None
        os.write(self.ask_w, b"?")

    def read_changes(self) -> None:
        """The child has written changes."""
        try:
            data = os.read(self.changes_r, PIPE_READ)
        except BlockingIOError:
            return
        if self.current and data:
            self.current.send(STDOUT, data)
        self.left -= len(data)
        self.finish_if_drained()

    def read_told(self) -> None:
        """The child has finished a look."""
        try:
            data = os.read(self.told_r, 4096)
        except BlockingIOError:
            return
        if data and self.current:
            self.outcome = json.loads(data)
            self.left = pipe_bytes(self.changes_r)
            self.finish_if_drained()
        elif data:
            self.first_look_over()
            self.next()

    def finish_if_drained(self) -> None:
        """Answer when all changes have been sent."""
        if self.current and self.outcome is not None and self.left <= 0:
            self.answer(self.outcome)

    def answer(self, outcome: dict[str, Any]) -> None:
        """Answer the request under way, and go on with the next."""
        request, self.current = self.current, None
        if request:
            outcome["incomplete"] = (self.forgotten + " " + outcome.get("incomplete", "")).strip()
            self.forgotten = ""
            request.respond(outcome)
        self.next()

    def died(self) -> None:
        """Somebody killed the child, or it took too long: what it remembered is lost."""
        self.close()
        self.forgotten = FORGOTTEN
        self.first_look_over()
        self.answer({})

    def close(self) -> None:
        """The child is no more."""
        for fd in (self.changes_r, self.told_r):
            self.executor.unwatch(fd)
        quietly_close(self.ask_w, self.changes_r, self.told_r)
        self.pid = 0


class ChangesRequest(Request):
    """What changed under the working directory since the last look."""

    def begin(self) -> None:
        self.start_timer()
        self.executor.watcher.ask(self)

    def timed_out(self) -> None:
        send_signal(self.executor.watcher.pid, signal.SIGKILL)

    def cancel(self) -> None:
        watcher = self.executor.watcher
        if self in watcher.queue:
            watcher.queue.remove(self)
            self.respond({})
