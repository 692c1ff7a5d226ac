"""The requests of the filesystem's history: see `history.py`."""

from __future__ import annotations

import os
import signal

from .pack import TOP, Pack
from .processes import send_signal
from .request import Request
from .wire import STDOUT, dump

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SHELL_RECORD = b"S"
READY = b"ready"
SHELL_TRY = 0.005  # seconds between two looks whether the old shell is gone
KILLED = {"error": {"kind": "internal", "message": "what remembers the files was killed; ask again"}}


class HistoryRequest(Request):
    """A request that the historian serves."""

    def begin(self) -> None:
        self.history = self.executor.history
        self.timed = False
        self.start_timer()
        self.history.ask(self)

    def go(self) -> None:
        """Its turn has come."""
        raise NotImplementedError

    def records(self, data: bytes) -> None:
        """The child has written something."""
        raise NotImplementedError

    def files_done(self, outcome: dict[str, Any]) -> None:
        """The child has done its part."""
        raise NotImplementedError

    def child_died(self) -> None:
        """The child was killed."""
        self.files_done(dict(KILLED))

    def acknowledge_body(self, size: int) -> None:
        """The child has taken so much of what was put."""

    def answer(self, outcome: dict[str, Any]) -> None:
        """It is over."""
        if self.timed and "error" in outcome:
            outcome = {"error": {"kind": "timed_out", "message": "it took too long"}}
        self.respond(outcome)
        self.history.over(self)

    def timed_out(self) -> None:
        self.timed = True
        self.give_up()

    def give_up(self) -> None:
        """End it by force."""
        if self in self.history.queue:
            self.history.queue.remove(self)
            self.answer(dict(KILLED))
        else:
            send_signal(self.history.pid, signal.SIGKILL)

    def cancel(self) -> None:
        self.give_up()


class CheckpointRequest(HistoryRequest):
    """What differs from an earlier checkpoint."""

    def begin(self) -> None:
        self.sent = self.again = False
        self.why: str | None = None
        self.files: dict[str, Any] | None = None
        super().begin()

    def go(self) -> None:
        names = ("op", "id", "since", "limits")
        self.history.put(dump({name: self.params.get(name) for name in names}) + b"\n")
        if not self.again:
            self.history.states.ask(self.shell_done)

    def records(self, data: bytes) -> None:
        self.sent = True
        self.send(STDOUT, data)

    def child_died(self) -> None:
        """It was killed, perhaps before we asked; then another can still tell everything."""
        if self.sent or self.again or self.timed or self.done:
            super().child_died()
        else:
            self.again = True
            self.history.queue.insert(0, self)
            self.history.over(self)

    def shell_done(self, why: str) -> None:
        """The state of the shell is there, or is not."""
        self.why = why
        self.finish()

    def files_done(self, outcome: dict[str, Any]) -> None:
        self.files = outcome
        self.finish()

    def finish(self) -> None:
        """Answer when both parts are there."""
        if self.files is None or (self.why is None and "error" not in self.files):
            return
        outcome = self.files
        if "error" not in outcome:
            since = self.params.get("since") if outcome["incremental"] else None
            outcome["shell"], state = self.history.states.tell(self.params["id"], since, self.why or "")
            if state:
                outcome["records"] += 1
                self.send(STDOUT, SHELL_RECORD + len(state).to_bytes(4, "big") + state)
        self.answer(outcome)

    def cancel(self) -> None:
        """Nobody wants it any more; it is finished all the same, so that what is remembered stays."""
        if self in self.history.queue:
            self.give_up()
        elif not self.silent:
            self.respond(dict(KILLED))
            self.silent = True


class RestoreRequest(HistoryRequest):
    """Make the files, and the shell, what they were."""

    def begin(self) -> None:
        self.body: list[bytes] = []
        self.unacknowledged = 0
        self.head_left = 0
        self.going = self.asked = False
        self.top_time: int | None = None
        self.state = b""
        self.notes: list[str] = []
        self.files: dict[str, Any] | None = None
        super().begin()

    def data(self, data: bytes) -> None:
        self.unacknowledged += len(data)
        self.pass_on(data)

    def end(self) -> None:
        self.pass_on(bytes(5))

    def pass_on(self, data: bytes) -> None:
        """A piece of the plan: to the child when our turn has come."""
        if not self.going:
            self.body.append(data)
            return
        if not self.asked:
            self.ask()
        self.history.put(data)

    def acknowledge_body(self, size: int) -> None:
        """The host counts the body alone, not our line before it nor the end after it."""
        head = min(size, self.head_left)
        self.head_left -= head
        body = min(size - head, self.unacknowledged)
        self.unacknowledged -= body
        self.acknowledge(body)

    def go(self) -> None:
        if not self.history.stop_everything():
            self.notes.append("Some processes could not be killed.")
        self.going = True
        if self.params.get("pack"):
            self.top_time = os.stat(TOP).st_mtime_ns
            self.send(STDOUT, READY)
        body, self.body = self.body, []
        for data in body:
            self.pass_on(data)

    def ask(self) -> None:
        """Tell the child what is to come; a pack is in its place by now."""
        self.asked = True
        asked = {name: self.params.get(name) for name in ("op", "id", "since", "pack")}
        line = dump({**asked, "top_time": self.top_time}) + b"\n"
        self.head_left = len(line)
        self.history.put(line)

    def records(self, data: bytes) -> None:
        self.state += data

    def child_died(self) -> None:
        """It was killed, by us after an error; once the files are in place it is not needed."""
        if self.files is None:
            super().child_died()
        elif "error" in self.files:
            self.start_shell()

    def give_up(self) -> None:
        """Once the files are in place there is nothing to end: the shell comes, or has had its time."""
        if self.files is None:
            super().give_up()
        elif self.timed:
            self.history.let_go()
            if not self.executor.shell.pid:
                self.executor.shell.start()
            self.shell_done("it took too long")

    def files_done(self, outcome: dict[str, Any]) -> None:
        self.files = outcome
        if "error" in outcome and self.params.get("pack"):
            # A child that was stopped before it came to the pack has left it in its folder.
            Pack(self.params["pack"], self.top_time).close()
        if "error" in outcome and self.history.pid:
            # It would take what is left of the plan, and may still be on its way, for its next request.
            send_signal(self.history.pid, signal.SIGKILL)
        else:
            self.start_shell()

    def start_shell(self) -> None:
        """A new shell, as soon as the old one is gone; until then it is not replaced by another than ours."""
        if self.done:
            return
        shell = self.executor.shell
        if shell.pid:
            self.executor.after(SHELL_TRY, self.start_shell)
            return
        self.history.let_go()
        state = self.state if self.files and "error" not in self.files else b""
        shell.start(bare=bool(state))
        if state:
            self.history.states.bring_back(state, self.shell_done)
        else:
            self.shell_done("")

    def shell_done(self, why: str) -> None:
        """The shell is what it was, or what it can be."""
        outcome = self.files or dict(KILLED)
        if "error" not in outcome:
            self.history.states.told = (self.params["id"], self.state)
            outcome["shell"] = why
            outcome["incomplete"] = " ".join(self.notes)
        self.answer(outcome)
