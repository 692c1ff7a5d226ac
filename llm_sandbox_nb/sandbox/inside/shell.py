"""The persistent shell that commands run in, one at a time."""

from __future__ import annotations

import os
import signal

from .command import Run
from .poller import IN
from .processes import (
    catches_signal,
    exec_program,
    exit_code,
    kill_all,
    pipe_bytes,
    send_signal,
)
from .wire import PIPE_READ, STDERR, STDOUT, bytes_to_text, quietly_close, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop import Executor
    from .shell_state import Talk

BACKGROUND_KEPT = 64 * 1024
ABORT_TICK = 0.02
ABORT_TICKS = 15  # after so many, a shell that does not come back is killed
RESTART_DELAY = 1.0  # seconds to wait after a shell that could not even start
GIVE_UP = 5.0  # seconds after which processes that cannot be killed are left alone
# Private descriptors of the shell; commands never see them.
FD_ERR, FD_OUT, FD_SOURCE, FD_STATUS = 194, 195, 197, 199
ABORT_SIGNAL = signal.SIGRTMAX
# The shell is interactive because only an interactive bash can give up a command half-way and keep its state:
# the trap turns our signal into an interrupt once the killed child is reaped, before the next command runs.
# Commands are sourced, not evaluated, so that it behaves as a script inside: no job numbers, no `exit` echo.
SHELL = [b"bash", b"--noprofile", b"--norc", b"--noediting", b"-i", b"-s"]
SHELL_START = b"""set +m +H +o history
unset MAILCHECK PROMPT_COMMAND; PS1= PS2=
_LLM_STATUS=0
_LLM_SANDBOX() { return "$_LLM_STATUS"; }
trap 'builtin trap - INT; builtin kill -INT $$' RTMAX
builtin printf '0 0 -\\n' >&199
"""
# Before every command: close the descriptor it is read from, and bring back the `$?` of the one before.
SHELL_PREFIX = b"exec 196<&-;_LLM_SANDBOX&&:;"
SHELL_RUN = b"""\
. /dev/fd/196 0</dev/null 196<&197 194>&- 195>&- 197<&- 199>&-
{ _LLM_STATUS=$? _LLM_FLAGS=$- PS1= PS2= PS0=; builtin set +x; unset PROMPT_COMMAND; } 2>/dev/null; \
[[ /dev/fd/1 -ef /dev/fd/195 && /dev/fd/2 -ef /dev/fd/194 ]] || _LLM_FLAGS+=!; \
builtin printf '%%s\\n' "%d $_LLM_STATUS $_LLM_FLAGS" >&199
"""
SHELL_RESTORE = b"exec 1>&195 2>&194\n"


class Shell:
    """The persistent bash, and the two pipes that it and its jobs write to."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.pid = 0
        self.command_w = self.status_r = self.source = -1
        self.queue: list[Run] = []
        self.current: Run | None = None
        self.commands = 0
        self.talks: list[Talk] = []
        self.talk: Talk | None = None
        self.bare = False
        self.code: int | None = None
        self.serial = 0
        self.left = {STDOUT: 0, STDERR: 0}
        self.ready = False
        self.trace = b""
        self.restore = False
        self.status = b""
        self.background = b""
        self.out = os.pipe()
        self.err = os.pipe()
        for stream, ends in ((STDOUT, self.out), (STDERR, self.err)):
            os.set_blocking(ends[0], False)
            executor.watch_output(ends[0], self.reader(stream, ends[0]))

    def reader(self, stream: int, fd: int) -> Callable[[], None]:
        """What to do when `fd` can be read."""
        return lambda: self.read_output(stream, fd)

    def start(self, bare: bool = False) -> None:
        """Start a bash, now or when there is room for a process; commands wait until it is ready.

        A bare one has no variables: it is about to get those that another had.
        """
        if self.pid:  # this is a second try, and a restore was quicker
            return
        self.bare = bare
        try:
            self.fork_bash()
        except OSError:
            self.pid = 0
            self.executor.after(RESTART_DELAY, lambda: self.start(bare))
            return
        os.set_blocking(self.status_r, False)
        self.executor.watch(self.status_r, IN, lambda _: self.read_status())
        self.executor.children[self.pid] = self.died
        self.tell(SHELL_START)

    def fork_bash(self) -> None:
        """Make the private descriptors and the process."""
        made = [*os.pipe(), *os.pipe()]
        command_r, self.command_w, self.status_r, status_w = made
        self.ready, self.status, self.trace, self.restore = False, b"", b"", False
        try:
            self.source = os.memfd_create("command", os.MFD_CLOEXEC)
            made.append(self.source)
            inherited = {
                0: command_r, 1: self.out[1], 2: self.err[1],
                FD_ERR: self.err[1], FD_OUT: self.out[1], FD_SOURCE: self.source, FD_STATUS: status_w,
            }  # fmt: skip
            environment = {b"PATH": os.environb.get(b"PATH", b"/bin:/usr/bin")} if self.bare else os.environb
            self.pid = self.executor.fork(
                lambda: exec_program(SHELL, environment, inherited, self.executor.cwd)
            )
        except OSError:
            quietly_close(*made)
            raise
        quietly_close(command_r, status_w)

    def tell(self, line: bytes) -> None:
        """Give bash a line, short enough for the pipe; a shell that has died is noticed elsewhere."""
        try:
            os.write(self.command_w, line)
        except BrokenPipeError:
            pass

    def enqueue(self, run: Run) -> None:
        """Run it when its turn comes."""
        self.queue.append(run)
        self.next()

    def forget(self, run: Run) -> None:
        """Take a command that has not started out of the queue."""
        if run in self.queue:
            self.queue.remove(run)

    def next(self) -> None:
        """Start the next command if the shell is free."""
        if not self.ready or self.current or self.talk:
            return
        if self.talks:
            self.serial += 1
            self.talk = self.talks.pop(0)
            self.talk.start(self)
            return
        if not self.queue or self.executor.watcher.busy:
            return
        self.commands += 1
        run = self.queue.pop(0)
        self.take_background()
        run.background, self.background = self.background, b""
        run.start()
        self.current, self.code = run, None
        self.serial += 1
        os.ftruncate(self.source, 0)
        os.lseek(self.source, 0, os.SEEK_SET)
        write_all(self.source, SHELL_PREFIX + self.trace + b"".join(run.command))
        run.command = []
        self.tell((SHELL_RESTORE if self.restore else b"") + SHELL_RUN % self.serial)
        self.restore = False

    def say(self, talk: Talk) -> None:
        """Something of ours for the shell, before the next command."""
        self.talks.append(talk)
        self.next()

    def talked(self, well: bool) -> None:
        """The shell has done what we said, or never will."""
        talk, self.talk = self.talk, None
        if talk:
            talk.done(well)
            self.next()

    def take_background(self) -> None:
        """Read what waits in the pipes: it was written before the command that is about to start."""
        for stream, ends in ((STDOUT, self.out), (STDERR, self.err)):
            for _ in range(pipe_bytes(ends[0]) // PIPE_READ + 1):
                self.read_output(stream, ends[0])

    def read_output(self, stream: int, fd: int) -> None:
        """Something can be read from the shell's stdout or stderr."""
        try:
            data = os.read(fd, PIPE_READ)
        except BlockingIOError:
            return
        run = self.current
        if run is None:
            if self.ready:
                self.background = (self.background + data)[-BACKGROUND_KEPT:]
            return
        assert run.capture is not None
        if self.code is None:
            run.take(stream, data)
            return
        mine, later = data[: self.left[stream]], data[self.left[stream] :]
        self.left[stream] -= len(mine)
        run.take(stream, mine)
        self.background = (self.background + later)[-BACKGROUND_KEPT:]
        self.finish_if_drained()

    def read_status(self) -> None:
        """The shell has said something on its status pipe: `<request> <exit code> <flags>`."""
        try:
            data = os.read(self.status_r, 4096)
        except BlockingIOError:
            return
        *lines, self.status = (self.status + data)[-4096:].split(b"\n")
        for line in lines:
            self.take_status(line.split(b" "))
        if not data:
            self.executor.unwatch(self.status_r)

    def take_status(self, words: list[bytes]) -> None:
        """Believe a report only when it is about the command under way; anybody could write to this pipe."""
        if len(words) != 3 or not words[0].isdigit() or not words[1].isdigit():
            return
        if not self.ready:
            self.take_background()
            self.ready = True
            self.next()
        elif self.talk and int(words[0]) == self.serial:
            self.talked(True)
        elif self.current and self.code is None and int(words[0]) == self.serial:
            self.trace = b"set -x;" if b"x" in words[2] else b""
            if b"!" in words[2]:
                self.restore = True
                self.current.add_notice(
                    "The command closed or redirected the shell's own output; it was put back."
                )
            self.current.gave_up = bool(self.current.reason)
            self.command_ended(int(words[1]) & 255)

    def command_ended(self, code: int) -> None:
        """The command is over; what it wrote is in the pipes, so read exactly that much more."""
        self.code = code
        self.left = {STDOUT: pipe_bytes(self.out[0]), STDERR: pipe_bytes(self.err[0])}
        self.finish_if_drained()

    def finish_if_drained(self) -> None:
        """Answer when the last output has been read."""
        run, code = self.current, self.code
        if run and not any(self.left.values()):
            self.current = None
            run.finish(code)
            self.next()

    def abort(self, run: Run) -> None:
        """Make bash give the command up, and kill what it started."""
        if catches_signal(self.pid, ABORT_SIGNAL):
            send_signal(self.pid, ABORT_SIGNAL)
        else:
            send_signal(self.pid, signal.SIGKILL)
        self.abort_tick(run, 0)

    def abort_tick(self, run: Run, tick: int) -> None:
        if self.current is not run or self.code is not None:
            return
        killed = kill_all(run.own_processes)
        if tick == ABORT_TICKS:
            send_signal(self.pid, signal.SIGKILL)
        if tick * ABORT_TICK > GIVE_UP and not killed:
            run.add_notice("Some of its processes could not be killed.")
            self.command_ended(255)
            return
        self.executor.after(ABORT_TICK, lambda: self.abort_tick(run, tick + 1))

    def died(self, status: int) -> None:
        """The shell is gone: report it as the command's end, and start another."""
        self.executor.unwatch(self.status_r)
        quietly_close(self.command_w, self.status_r, self.source)
        run = self.current
        self.pid = 0
        if self.executor.history.restoring:
            self.ready = False
        elif self.ready:
            self.start()
        else:
            self.executor.after(RESTART_DELAY, self.start)
        self.talked(False)
        if run and self.code is None:
            run.add_notice(self.epitaph(run, status))
            self.command_ended(exit_code(status))

    def epitaph(self, run: Run, status: int) -> str:
        """What to tell the model about the end of the shell."""
        if run.reason:
            how = "had to be killed to end the command"
        elif os.WIFSIGNALED(status):
            how = "was killed by signal %d" % os.WTERMSIG(status)
        else:
            how = "ended with exit code %d" % os.WEXITSTATUS(status)
        place = bytes_to_text(self.executor.cwd)
        return "The shell %s; a new one was started in %s, without its variables and functions." % (
            how,
            place,
        )
