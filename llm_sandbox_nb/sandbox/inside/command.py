"""One command in the persistent shell: its output, its processes, its end."""

from __future__ import annotations

import os
import time

from .capture import Capture
from .processes import descendants, kill_all, own_tree, process_table
from .request import Request
from .wire import DATA, STDERR


class Run(Request):
    """A command in the persistent shell."""

    def begin(self) -> None:
        self.command: list[bytes] = []
        self.capture: Capture | None = None
        self.reason = ""
        self.started = 0.0
        self.notice = ""
        self.background = b""
        self.before: dict[int, tuple[int, int]] = {}
        self.held = b""
        self.gave_up = False

    def data(self, data: bytes) -> None:
        self.command.append(data)
        super().data(data)

    def end(self) -> None:
        self.executor.shell.enqueue(self)

    def start(self) -> None:
        """The shell is free: note what runs already, so that only what this command starts dies with it."""
        self.started = time.monotonic()
        limit = int(self.params["output_limit"])
        self.capture = Capture(self.send, limit, self.executor.spill_path(self.number))
        self.before = own_tree()
        self.start_timer()

    def timed_out(self) -> None:
        self.abort("timed_out")

    def cancel(self) -> None:
        if self.capture is None:
            self.executor.shell.forget(self)
            self.respond({"exit_code": None, "interrupted": True})
        else:
            self.abort("interrupted")

    def abort(self, reason: str) -> None:
        """End the command: its processes die, the shell comes back or dies too."""
        if not self.reason:
            self.reason = reason
            self.executor.shell.abort(self)

    def take(self, stream: int, data: bytes) -> None:
        """Output of the command. A bash that gives up writes a newline of its own, which is held back."""
        assert self.capture is not None
        if self.reason and stream == STDERR:
            data = self.held + data
            data, self.held = data[:-1], data[-1:]
        if data:
            self.capture.feed(stream, data)

    def own_processes(self) -> set[int]:
        """What this command started and still runs: not the shell, older jobs or other requests."""
        table = process_table()
        skip = {pid for pid, identity in self.before.items() if table.get(pid, (0, -1))[1] == identity[1]}
        skip.discard(self.executor.shell.pid)
        skip |= self.executor.helper_pids()
        return descendants(table, os.getpid(), skip) - {self.executor.shell.pid}

    def finish(self, code: int | None) -> None:
        """All output is in: answer."""
        capture = self.capture
        assert capture is not None
        if self.held and not (self.gave_up and self.held == b"\n"):
            capture.feed(STDERR, self.held)
        if (self.reason or self.params.get("kill_background")) and not kill_all(self.own_processes):
            self.add_notice("Some of its processes could not be killed.")
        outcome = capture.finish()
        outcome["exit_code"] = None if self.reason else code
        outcome["timed_out"] = self.reason == "timed_out"
        outcome["interrupted"] = self.reason == "interrupted"
        outcome["duration"] = time.monotonic() - self.started
        outcome["notice"] = self.notice
        outcome["background"] = len(self.background)
        self.send(DATA, self.background)
        self.respond(outcome)

    def add_notice(self, text: str) -> None:
        """Say something about the shell."""
        self.notice = (self.notice + " " + text).strip()
