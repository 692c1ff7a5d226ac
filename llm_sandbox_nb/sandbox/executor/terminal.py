"""A program on its own terminal, separate from the shell, for a person and not for a model.

The body has records as in `stream_request`, each with a kind and a number. There are three further kinds. `i`: typed
bytes follow, and the number is their count. `r`: the same for bytes that the terminal itself reports, such as answers
to a program's queries, and mouse events. `s`: the number is the size of the terminal, as rows * 65536 + columns.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios

from .children import enter_child, program_environment, supervise
from .event_loop import IN
from .frames import STDOUT, quietly_close, text_to_bytes
from .processes import exec_program, kill_tree
from .request import describe_error
from .stream_request import StreamRequest

TYPED, REPORTED, SIZE = b"i", b"r", b"s"
TIOCGSID = 0x5429  # returns the session leader of a terminal; Python has no name for this request
LAST_OUTPUT_SECONDS = 1.0  # time to read the remaining output after the program has ended


class TerminalRequest(StreamRequest):
    """A program whose stdin, stdout and stderr are a terminal. All its processes end with the request."""

    def begin(self) -> None:
        self.pid = 0
        super().begin()
        self.result_r = -1
        self.outcome: dict[str, object] = {}
        self.reason = ""
        self.over = False
        self.executor.when_files_ready(self.launch)

    def launch(self) -> None:
        """Start the program on a new terminal, unless the request was cancelled."""
        if self.done:
            return
        try:
            self.fork_child()
        except OSError as error:
            self.respond({"error": describe_error(error)})
            return
        self.executor.helpers.add(self.pid)
        self.executor.children[self.pid] = self.ended
        for fd in (self.reads, self.writes):
            os.set_blocking(fd, False)
        self.executor.watch(self.result_r, IN, lambda _: self.program_ended())
        self.set_room(self.room)
        self.pump()

    def fork_child(self) -> None:
        """Make the terminal, a pipe for the outcome, and the child."""
        master, slave = os.openpty()
        try:
            set_size(master, int(self.params["rows"]) << 16 | int(self.params["columns"]))
            self.writes = os.dup(master)
            self.result_r, result_w = os.pipe()
            child_ends = {0: slave, 1: slave, 2: slave, 3: result_w}
            try:
                self.pid = self.executor.fork(lambda: enter_child(child_ends, self.child))
            finally:
                os.close(result_w)
            self.reads = master
        except OSError:
            quietly_close(master, self.writes, self.result_r)
            self.writes = self.result_r = -1
            raise
        finally:
            os.close(slave)

    # ---------------------------------------------------------------------------------------- in the child

    def child(self) -> None:
        supervise(self.become_program)
        while True:  # until the executor kills all orphans, and this child
            signal.pause()

    def become_program(self) -> None:
        """Start a session on this terminal, and execute the program."""
        env = program_environment(self.params["env"])
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        try:
            os.chdir(text_to_bytes(self.params["cwd"]))
        except OSError:
            os.chdir("/")
        os.set_inheritable(3, False)
        exec_program([text_to_bytes(word) for word in self.params["argv"]], env, {}, None)

    # ------------------------------------------------------------------------------------------- from the host

    def take_record(self, kind: bytes, value: int) -> None:
        if kind in (TYPED, REPORTED):
            self.left = value
            self.heard = kind == TYPED or self.reports_are_read()
        elif kind == SIZE:
            self.params["rows"], self.params["columns"] = value >> 16, value & 0xFFFF
            if self.writes >= 0:
                set_size(self.writes, value)

    def reports_are_read(self) -> bool:
        """Return True if a foreground program, other than the shell, reads key by key.

        Programs that query the terminal do this. For all other programs, reports are dropped. Otherwise, a report for a
        program that has ended would appear in the shell's input line.
        """
        try:
            if termios.tcgetattr(self.writes)[3] & termios.ICANON:
                return False
            (leader,) = struct.unpack("i", fcntl.ioctl(self.writes, TIOCGSID, bytes(4)))
            return bool(os.tcgetpgrp(self.writes) != leader)
        except (OSError, ValueError, termios.error):
            return False

    # --------------------------------------------------------------------------------------------- to the host

    def ended_writing(self) -> None:
        """Handle the moment when no program has the terminal open any more."""
        self.over = True
        if not self.pid:  # otherwise the request ends when the program is reaped
            self.finish()

    # ---------------------------------------------------------------------------------------------- the end

    def program_ended(self) -> None:
        """Read the exit code, and kill all processes that the program has left running."""
        try:
            line = os.read(self.result_r, 4096)
        except OSError:
            line = b""
        self.executor.unwatch(self.result_r)
        if line.startswith(b'{"exit_code":') and line.endswith(b"}"):
            self.outcome = {"exit_code": int(line[13:-1])}
        self.kill()

    def cancel(self) -> None:
        self.abort("interrupted")

    def end_with(self, text: str) -> bool:
        """End the program because a limit was exceeded. Show `text` on its terminal.

        Return False: the text is shown to a person only, so a command of the shell must report it too.
        """
        if self.pid and not self.reason:
            self.send(STDOUT, ("\r\n%s\r\n" % text).encode())
            self.abort("interrupted")
        return False

    def abort(self, reason: str) -> None:
        """End the program. The response follows when the child is reaped."""
        self.reason = self.reason or reason
        if not self.pid:
            self.finish()
        else:
            self.kill()

    def kill(self) -> None:
        if self.pid and self.reads >= 0:
            kill_tree(self.pid)

    def ended(self, _status: int) -> None:
        """Finish after the last process has ended and the host has had time to read the last output."""
        self.executor.helpers.discard(self.pid)
        self.outcome.setdefault("exit_code", None)
        self.pid = 0
        if self.reason or self.over:
            self.finish()
        else:
            self.timer = self.executor.after(LAST_OUTPUT_SECONDS, self.finish)

    def finish(self) -> None:
        if self.done:
            return
        for fd in (self.reads, self.writes, self.result_r):
            if fd >= 0:
                self.executor.unwatch(fd)
        quietly_close(self.reads, self.writes, self.result_r)
        self.reads = self.writes = self.result_r = -1
        if self.reason:
            self.outcome = {"exit_code": None}
        self.respond({**self.outcome, "interrupted": bool(self.reason)})


def set_size(fd: int, value: int) -> None:
    """Set the size of a terminal. The kernel sends a signal to the programs on the terminal."""
    rows, columns = max(1, min(value >> 16, 4096)), max(1, min(value & 0xFFFF, 4096))
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
