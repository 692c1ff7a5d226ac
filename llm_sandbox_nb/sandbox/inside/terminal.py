"""A program on a terminal of its own, beside the shell: for a person who types, not for a model.

Its body is a stream of records, a header `>cI` each: `i` and so many bytes that were typed, `r` and so many that the
terminal itself reports (its answers to a program, the mouse), `s` with the size as rows * 65536 + columns, `a` and
how many bytes of output may come on top of those that were asked for. No more is ever read from the terminal than
may be sent, so a program that prints without end waits, and nothing piles up.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios

from .poller import IN, OUT
from .processes import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    descendants,
    exec_program,
    exit_code,
    kill_all,
    prctl,
    process_table,
    send_signal,
    take_descriptors,
)
from .request import Request, describe_error
from .wire import PIPE_READ, STDOUT, dump, quietly_close, text_to_bytes, write_all

RECORD = struct.Struct(">cI")
TYPED, REPORTED, SIZE, ASKED = b"i", b"r", b"s", b"a"
TIOCGSID = 0x5429  # of a terminal, the leader of its session; Python has no name for it
LAST_WORDS = 1.0  # seconds for output that is left when the program has ended


class Terminal(Request):
    """A program whose stdin, stdout and stderr are a terminal; it and all it started end with the request."""

    def begin(self) -> None:
        self.pid = 0
        self.master_r = self.master_w = self.result_r = -1
        self.head = b""
        self.left = 0
        self.heard = True
        self.typed: list[bytes] = []
        self.room = 0
        self.outcome: dict[str, object] = {}
        self.reason = ""
        self.over = False
        self.executor.watcher.when_looked(self.launch)

    def launch(self) -> None:
        """Make the terminal and the program, unless the host has given up meanwhile."""
        if self.done:
            return
        try:
            self.fork_child()
        except OSError as error:
            self.respond({"error": describe_error(error)})
            return
        self.executor.helpers.add(self.pid)
        self.executor.children[self.pid] = self.ended
        for fd in (self.master_r, self.master_w):
            os.set_blocking(fd, False)
        self.executor.watch(self.result_r, IN, lambda _: self.program_ended())
        self.set_room(self.room)
        self.pump()

    def fork_child(self) -> None:
        """The terminal, a pipe for the outcome, and the child."""
        master, slave = os.openpty()
        try:
            set_size(master, int(self.params["rows"]) << 16 | int(self.params["columns"]))
            self.master_w = os.dup(master)
            self.result_r, result_w = os.pipe()
            theirs = {0: slave, 1: slave, 2: slave, 3: result_w}
            try:
                self.pid = self.executor.fork(lambda: self.child(theirs))
            finally:
                os.close(result_w)
            self.master_r = master
        except OSError:
            quietly_close(master, self.master_w, self.result_r)
            self.master_w = self.result_r = -1
            raise
        finally:
            os.close(slave)

    # ---------------------------------------------------------------------------------------- in the child

    def child(self, fds: dict[int, int]) -> None:
        """Watch over the program: its orphans come here, so that all of them can be found when it ends."""
        take_descriptors(fds)
        os.closerange(4, 4096)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        pid = os.fork()
        if pid == 0:
            self.become_program()
        quietly_close(0, 1, 2)
        while True:
            ended, status = os.wait()
            if ended == pid:
                break
        write_all(3, dump({"exit_code": exit_code(status)}))
        os.close(3)
        while True:  # until the executor has killed what is left, and us
            signal.pause()

    def become_program(self) -> None:
        """A session of its own, whose terminal this is."""
        env = dict(os.environb)
        env.update((text_to_bytes(k), text_to_bytes(v)) for k, v in self.params["env"].items())
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        try:
            os.chdir(text_to_bytes(self.params["cwd"]))
        except OSError:
            os.chdir("/")
        os.set_inheritable(3, False)
        exec_program([text_to_bytes(word) for word in self.params["argv"]], env, {}, None)

    # ------------------------------------------------------------------------------------------- from the host

    def data(self, data: bytes) -> None:
        """Records, cut anywhere. What was typed is acknowledged when the terminal has taken it."""
        data, self.head = self.head + data, b""
        used = 0
        while data:
            if self.left:
                piece, data = data[: self.left], data[self.left :]
                self.left -= len(piece)
                if self.heard:
                    self.typed.append(piece)
                else:
                    used += len(piece)
            elif len(data) < RECORD.size:
                self.head, data = data, b""
                self.acknowledge(used)
                return
            else:
                kind, value = RECORD.unpack_from(data)
                data = data[RECORD.size :]
                used += RECORD.size
                self.take_record(kind, value)
        self.acknowledge(used)
        self.pump()

    def take_record(self, kind: bytes, value: int) -> None:
        """One header."""
        if kind in (TYPED, REPORTED):
            self.left = value
            self.heard = kind == TYPED or self.reports_are_read()
        elif kind == SIZE:
            self.params["rows"], self.params["columns"] = value >> 16, value & 0xFFFF
            if self.master_w >= 0:
                set_size(self.master_w, value)
        elif kind == ASKED:
            self.set_room(self.room + value)

    def reports_are_read(self) -> bool:
        """Whether a program in front of the shell reads key by key, as those do that ask a terminal something.

        The shell itself does too, but it asks nothing: what some program printed would type into its next line.
        """
        try:
            if termios.tcgetattr(self.master_w)[3] & termios.ICANON:
                return False
            (leader,) = struct.unpack("i", fcntl.ioctl(self.master_w, TIOCGSID, bytes(4)))
            return bool(os.tcgetpgrp(self.master_w) != leader)
        except (OSError, ValueError, termios.error):
            return False

    def pump(self) -> None:
        """Type what has come, as far as the terminal takes it."""
        if self.master_w < 0:
            return
        while self.typed:
            try:
                written = os.write(self.master_w, self.typed[0])
            except BlockingIOError:
                self.executor.watch(self.master_w, OUT, lambda _: self.pump())
                return
            except OSError:  # nobody is there to read it
                written = len(self.typed[0])
            self.acknowledge(written)
            self.typed[0] = self.typed[0][written:]
            if not self.typed[0]:
                self.typed.pop(0)
        self.executor.unwatch(self.master_w)

    # --------------------------------------------------------------------------------------------- to the host

    def set_room(self, room: int) -> None:
        """So much may be sent now; with none the terminal is not even looked at."""
        self.room = room
        if self.master_r < 0:
            return
        if room > 0 and self.master_r not in self.executor.handlers:
            self.executor.watch_output(self.master_r, self.read_output)
        elif room <= 0:
            self.executor.unwatch(self.master_r)

    def read_output(self) -> None:
        """The terminal shows something, or everybody has let go of it."""
        try:
            data = os.read(self.master_r, min(PIPE_READ, self.room))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.send(STDOUT, data)
            self.set_room(self.room - len(data))
        else:
            self.executor.unwatch(self.master_r)
            self.over = True
            self.finish_if_ended()

    # ---------------------------------------------------------------------------------------------- the end

    def program_ended(self) -> None:
        """The program tells its exit code, or was killed before it could; what it left running ends too."""
        try:
            told = os.read(self.result_r, 4096)
        except OSError:
            told = b""
        self.executor.unwatch(self.result_r)
        if told.startswith(b'{"exit_code":') and told.endswith(b"}"):
            self.outcome = {"exit_code": int(told[13:-1])}
        self.kill()

    def cancel(self) -> None:
        self.abort("interrupted")

    def abort(self, reason: str) -> None:
        """End it; the answer comes when it is reaped."""
        self.reason = self.reason or reason
        if not self.pid:
            self.respond({"exit_code": None, "interrupted": True})
        else:
            self.kill()

    def kill(self) -> None:
        """The program and everything below it."""
        if self.pid and self.master_r >= 0:
            send_signal(self.pid, signal.SIGSTOP)
            kill_all(self.own_processes)
            send_signal(self.pid, signal.SIGKILL)

    def own_processes(self) -> set[int]:
        """What the program has started, and itself."""
        table = process_table()
        return descendants(table, self.pid, set()) if self.pid in table else set()

    def ended(self, _status: int) -> None:
        """All are gone; what they wrote last may still be read, if somebody wants it."""
        self.executor.helpers.discard(self.pid)
        self.executor.adopt_orphans()
        self.outcome.setdefault("exit_code", None)
        self.pid = 0
        if self.reason or self.over:
            self.finish()
        else:
            self.timer = self.executor.after(LAST_WORDS, self.finish)

    def finish_if_ended(self) -> None:
        """The terminal is silent for good: answer, once the program is reaped."""
        if not self.pid:
            self.finish()

    def finish(self) -> None:
        """Let go of the terminal and answer."""
        if self.done:
            return
        for fd in (self.master_r, self.master_w, self.result_r):
            if fd >= 0:
                self.executor.unwatch(fd)
        quietly_close(self.master_r, self.master_w, self.result_r)
        self.master_r = self.master_w = self.result_r = -1
        if self.reason:
            self.outcome = {"exit_code": None}
        self.respond({**self.outcome, "interrupted": bool(self.reason)})


def set_size(fd: int, value: int) -> None:
    """Tell a terminal its size; programs on it are told by the kernel."""
    rows, columns = max(1, min(value >> 16, 4096)), max(1, min(value & 0xFFFF, 4096))
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
