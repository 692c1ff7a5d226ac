"""Requests for checkpoints and restores, and the child process that serves them. README.md describes their records."""

from __future__ import annotations

import os
import signal

from .children import ServiceProcess
from .event_loop import OUT
from .frames import HOST_PIPE_BYTES, STDOUT, enlarge_pipes, write_pending
from .light import dump
from .processes import send_signal
from .records import SHELL, TOP, RestorePack
from .request import RESTORE, Request, describe_error
from .shell_state import ShellState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from .change_watcher import ChangeWatcher
    from .mounts import Epoch
    from .request import ExecutorContext
    from .shell import Shell

READY = b"ready"
SHELL_POLL_SECONDS = 0.005  # between two checks if the old shell has ended
KILLED_OUTCOME = {
    "error": {"kind": "internal", "message": "the process with the file history was killed; try again"}
}
INTERRUPTED_OUTCOME = {"error": {"kind": "interrupted", "message": "the operation was interrupted"}}


class HistoryService(ServiceProcess):
    """The executor's side of the child that remembers all files. The first request starts the child."""

    handed = True

    def __init__(self, executor: ExecutorContext, shell: Shell, watcher: ChangeWatcher, epoch: Epoch) -> None:
        super().__init__(executor)
        self.shell = shell
        self.watcher = watcher
        self.epoch = epoch
        self.shell_state = ShellState(shell)
        self.queue: list[HistoryRequest] = []
        self.current: HistoryRequest | None = None
        self.pending: list[memoryview] = []

    def start(self) -> None:
        """Start the child, and enlarge the pipe to the host. Raises OSError."""
        enlarge_pipes(1)
        super().start()

    def serve(self) -> NoReturn:
        from .snapshotter import serve_history

        serve_history(self.executor.scope, self.executor.spill, self.epoch)
        os._exit(0)

    def died(self) -> None:
        self.close()
        self.pending = []
        if self.current:
            self.current.child_died()

    def ask(self, request: HistoryRequest) -> None:
        self.queue.append(request)
        self.next()

    def next(self) -> None:
        while not self.current and self.queue:
            request = self.queue.pop(0)
            try:
                if not self.pid:
                    self.start()
            except OSError as error:
                request.respond({"error": describe_error(error)})
                continue
            send_signal(self.pid, signal.SIGCONT)  # a command may have stopped the child
            self.current, self.outcome = request, None
            request.start()

    def ended(self, request: HistoryRequest) -> None:
        """Begin the next request, after `request` was answered."""
        if self.current is request:
            self.current = None
            self.next()

    def put(self, data: bytes) -> None:
        """Queue bytes for the child."""
        self.pending.append(memoryview(data))
        self.pump()

    def pump(self) -> None:
        """Write as many queued bytes as the child accepts."""
        written, has_reader = write_pending(self.requests_w, self.pending)
        if self.current:
            self.current.acknowledge_body(written)
        if has_reader and self.pending:
            self.executor.watch(self.requests_w, OUT, lambda _: self.pump())
            return
        self.pending = []
        if self.requests_w >= 0:
            self.executor.unwatch(self.requests_w)

    def take_data(self, data: bytes) -> None:
        if self.current:
            self.current.take_data(data)

    def finish(self, outcome: dict[str, Any]) -> None:
        if self.current:
            self.current.files_done(outcome)

    # ---------------------------------------------------------------------------------- while files are restored

    def stop_everything(self) -> bool:
        """End all commands, and all requests except those of the history. Return False if a process survives."""
        self.executor.hold_files(RESTORE)
        return self.executor.stop_everything([*self.queue, self.current])

    def release_files(self) -> None:
        """Restart the change watcher after a restore. Then let commands and file operations run again."""
        self.watcher.restart()
        self.executor.release_files(RESTORE)


class HistoryRequest(Request):
    """A request that the history service serves."""

    def __init__(self, history: HistoryService, number: int, params: dict[str, Any]) -> None:
        super().__init__(history.executor, number, params)
        self.history = history
        self.files: dict[str, Any] | None = None
        self.timed = False

    def begin(self) -> None:
        self.start_timer()
        self.history.ask(self)

    def start(self) -> None:
        """Begin to serve the request. The service calls this when no other request is being served."""
        raise NotImplementedError

    def take_data(self, data: bytes) -> None:
        """Handle data that the child has written."""
        raise NotImplementedError

    def files_done(self, outcome: dict[str, Any]) -> None:
        """Handle the outcome of the child."""
        raise NotImplementedError

    def child_died(self) -> None:
        """Handle the end of a child that was killed."""
        self.files_done(dict(KILLED_OUTCOME))

    def acknowledge_body(self, size: int) -> None:
        """Acknowledge bytes of the body after `size` more bytes were written to the child."""

    def finish(self, outcome: dict[str, Any]) -> None:
        """Send the response, and let the next request begin."""
        if self.timed and "error" in outcome:
            outcome = {"error": {"kind": "timed_out", "message": "the operation took too long"}}
        self.respond(outcome)
        self.history.ended(self)

    def timed_out(self) -> None:
        self.timed = True
        self.abort()

    def cancel(self) -> None:
        self.abort()

    def abort(self) -> None:
        """End the request. Kill the child if the child is serving this request."""
        if self in self.history.queue:
            self.history.queue.remove(self)
            self.finish(dict(INTERRUPTED_OUTCOME))
        else:
            send_signal(self.history.pid, signal.SIGKILL)


class CheckpointRequest(HistoryRequest):
    """A request for the differences from an earlier checkpoint."""

    def __init__(self, history: HistoryService, number: int, params: dict[str, Any]) -> None:
        super().__init__(history, number, params)
        self.sent = self.retried = False
        self.shell_saved: bool | None = None

    def start(self) -> None:
        names = ("op", "id", "since", "walk", "limits")
        self.history.put(dump({name: self.params.get(name) for name in names}) + b"\n")
        if not self.retried:
            self.history.shell_state.save(self.shell_done)

    def take_data(self, data: bytes) -> None:
        self.sent = True
        self.send(STDOUT, data)

    def child_died(self) -> None:
        """Retry with a new child if no data was sent yet. A new child reports all files."""
        if self.sent or self.retried or self.timed or self.done:
            super().child_died()
        else:
            self.retried = True
            self.history.queue.insert(0, self)
            self.history.ended(self)

    def shell_done(self, ok: bool) -> None:
        """Note that the attempt to save the shell's state has ended. `ok` is False after a failure."""
        self.shell_saved = ok
        self.finish_if_done()

    def files_done(self, outcome: dict[str, Any]) -> None:
        self.files = outcome
        self.finish_if_done()

    def finish_if_done(self) -> None:
        """Respond if the files and the shell are done."""
        outcome, saved = self.files, self.shell_saved
        if outcome is None or (saved is None and "error" not in outcome):
            return
        if "error" not in outcome:
            since = self.params.get("since") if outcome["incremental"] else None
            how, state = "none", b""
            if saved:
                how, state = self.history.shell_state.report(self.params["id"], since)
            outcome["shell"] = {"state": how}
            if state:
                self.send(STDOUT, bytes([SHELL]) + len(state).to_bytes(4, "big") + state)
        self.finish(outcome)

    def cancel(self) -> None:
        """Drop the result.

        If the child has already begun the checkpoint, it finishes it: a killed child would lose its list of all files.
        """
        if self in self.history.queue:
            self.abort()
        elif not self.silent:
            self.respond(dict(INTERRUPTED_OUTCOME))
            self.silent = True


class RestoreRequest(HistoryRequest):
    """A request to restore the files and the shell of a checkpoint."""

    def __init__(self, history: HistoryService, number: int, params: dict[str, Any]) -> None:
        super().__init__(history, number, params)
        self.body: list[bytes] = []
        self.unacknowledged = 0
        self.head_left = 0
        self.started = self.asked = False
        self.top_time: int | None = None
        self.state = b""
        self.notes: list[str] = []

    def data(self, data: bytes) -> None:
        self.unacknowledged += len(data)
        self.pass_on(data)

    def end(self) -> None:
        self.pass_on(bytes(5))

    def pass_on(self, data: bytes) -> None:
        """Write a piece of the body to the child. Until this request is served, keep the piece instead."""
        if not self.started:
            self.body.append(data)
            return
        if not self.asked:
            self.ask()
        self.history.put(data)

    def acknowledge_body(self, size: int) -> None:
        """Acknowledge the bytes of the body among the `size` bytes that were written to the child.

        The host has not sent all of these bytes: the executor adds a line before the body and a mark after the body.
        """
        head = min(size, self.head_left)
        self.head_left -= head
        body = min(size - head, self.unacknowledged)
        self.unacknowledged -= body
        self.acknowledge(body)

    def start(self) -> None:
        enlarge_pipes(0, size=HOST_PIPE_BYTES)
        if not self.history.stop_everything():
            self.notes.append("Some processes could not be killed.")
        self.started = True
        if self.params.get("pack"):
            if not self.params.get("handed"):
                self.top_time = os.stat(TOP).st_mtime_ns
            self.send(STDOUT, READY)
        body, self.body = self.body, []
        for data in body:
            self.pass_on(data)

    def ask(self) -> None:
        """Send the request to the child."""
        self.asked = True
        params = {name: self.params.get(name) for name in ("op", "id", "since", "pack", "handed")}
        line = dump({**params, "top_time": self.top_time}) + b"\n"
        self.head_left = len(line)
        self.history.put(line)

    def take_data(self, data: bytes) -> None:
        self.state += data

    def child_died(self) -> None:
        """Handle the end of the child.

        Without an outcome, the restore has failed. After an error, `files_done` has killed the child, and now the new
        shell starts. After a success, nothing is left to do.
        """
        if self.files is None:
            super().child_died()
        elif "error" in self.files:
            self.start_shell()

    def abort(self) -> None:
        """End the request, and kill the child.

        If the files are in place already, a time-out ends only the restore of the shell, and a cancellation has no
        effect.
        """
        if self.files is None:
            super().abort()
        elif self.timed:
            self.history.release_files()
            if not self.history.shell.pid:
                self.history.shell.start()
            self.shell_done("restoring the shell took too long")

    def files_done(self, outcome: dict[str, Any]) -> None:
        self.files = outcome
        if "error" in outcome and self.params.get("pack"):
            # If the child was killed before it removed the pack, the pack is still in the top folder.
            RestorePack(self.params["pack"], self.top_time).remove()
        if "error" in outcome and self.history.pid:
            # The rest of the body may still arrive. A living child would read this rest as its next request.
            send_signal(self.history.pid, signal.SIGKILL)
        else:
            self.start_shell()

    def start_shell(self) -> None:
        """Start a new shell as soon as the old shell has ended."""
        if self.done:
            return
        shell = self.history.shell
        if shell.pid:
            self.executor.after(SHELL_POLL_SECONDS, self.start_shell)
            return
        self.history.release_files()
        state = self.state if self.files and "error" not in self.files else b""
        shell.start(bare=bool(state))
        if state:
            self.history.shell_state.restore(state, self.shell_done)
        else:
            self.shell_done("")

    def shell_done(self, why: str) -> None:
        """Respond. `why` says why the shell's state could not be restored. It is empty after a success."""
        outcome = self.files or dict(KILLED_OUTCOME)
        if "error" not in outcome:
            self.history.shell_state.sent = (self.params["id"], self.state)
            outcome["shell"] = why
            outcome["incomplete"] = " ".join(self.notes)
        self.finish(outcome)
