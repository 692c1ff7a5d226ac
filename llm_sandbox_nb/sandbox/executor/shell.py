"""The persistent shell: a single bash that runs one command at a time."""

from __future__ import annotations

import os
import signal
import time

from .capture import Capture
from .event_loop import IN
from .frames import DATA, PIPE_READ, STDERR, STDOUT, bytes_to_text, quietly_close, write_all
from .memory_kills import KILLED_CODE, describe_memory_kill, memory_kills
from .processes import (
    catches_signal,
    descendants,
    exec_program,
    exit_code,
    kill_all,
    own_tree,
    pipe_bytes,
    process_table,
    send_signal,
)
from .request import KILLED, RESTORE, Request, ended_by

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .request import ExecutorContext

MAX_BACKGROUND_BYTES = 64 * 1024
"""Maximum bytes that are kept of background jobs' output between two commands. They must fit into one frame."""
ABORT_TICK_SECONDS = 0.02  # between two attempts to kill the processes of a command
MAX_ABORT_TICKS = 15  # after so many attempts, a shell that has not abandoned the command is killed
RESTART_SECONDS = 1.0  # pause after a shell that could not even start
GIVE_UP_SECONDS = 5.0  # after this, processes that cannot be killed are left running
SCRIPT_SECONDS = 3.0
"""Seconds after which the processes that a script has started are killed. After three times as long, bash is killed."""
START_SECONDS = 10.0
"""Seconds that are added to a command's time-out while the command waits for the shell. The host waits even longer."""
# Private descriptors of the shell; commands never see them.
FD_ERR, FD_OUT, FD_SOURCE, FD_STATUS = 194, 195, 197, 199
ABORT_SIGNAL = signal.SIGRTMAX
# The shell is interactive, because only an interactive bash can abandon a command and keep its own state. To abort a
# command, the executor sends `ABORT_SIGNAL` and kills the command's processes. bash then runs the trap, which
# interrupts bash itself, so that the rest of the command does not run.
# bash sources a file with the command. `eval` would show job numbers and, for `exit`, the word `exit`.
SHELL = [b"bash", b"--noprofile", b"--norc", b"--noediting", b"-i", b"-s"]
SHELL_START = b"""set +m +H +o history
unset MAILCHECK PROMPT_COMMAND; PS1= PS2=
_LLM_STATUS=0
_LLM_SANDBOX() { return "$_LLM_STATUS"; }
trap 'builtin trap - INT; builtin kill -INT $$' RTMAX
builtin printf '0 0 -\\n' >&199
"""
NOT_STARTED = "The command was not started: the shell was busy, or no shell could be started."
# Every command begins with this text, which closes the descriptor of the sourced file, and restores the previous `$?`.
SHELL_PREFIX = b"exec 196<&-;_LLM_SANDBOX&&:;"
SHELL_RUN = b"""\
. /dev/fd/196 0</dev/null 196<&197 194>&- 195>&- 197<&- 199>&-
{ _LLM_STATUS=$? _LLM_FLAGS=$- PS1= PS2= PS0=; builtin set +x; unset PROMPT_COMMAND; } 2>/dev/null; \
[[ /dev/fd/1 -ef /dev/fd/195 && /dev/fd/2 -ef /dev/fd/194 ]] || _LLM_FLAGS+=!; \
builtin printf '%%s\\n' "%d $_LLM_STATUS $_LLM_FLAGS" >&199
"""
SERIAL = b"SERIAL"  # placeholder for the number of the script in its line
SHELL_RESTORE = b"exec 1>&195 2>&194\n"


class Shell:
    """The persistent bash, and two pipes for the stdout and stderr of bash and its jobs."""

    def __init__(self, executor: ExecutorContext) -> None:
        self.executor = executor
        self.pid = 0
        self.command_w = self.status_r = self.source = -1
        self.queue: list[ShellCommand] = []
        self.current: ShellCommand | None = None
        self.commands = 0
        self.scripts: list[ShellScript] = []
        self.script: ShellScript | None = None
        self.bare = False
        self.code: int | None = None
        self.serial = 0
        self.left = {STDOUT: 0, STDERR: 0}
        self.ready = False
        self.trace = b""
        self.restore = False
        self.status = b""
        self.background = b""
        self.notice = ""
        """Sentence about an event between two commands. The next command reports it."""
        self.out = os.pipe()
        self.err = os.pipe()
        for fd in (self.out[0], self.err[0]):
            os.set_blocking(fd, False)
        executor.watch_output(self.out[0], lambda: self.read_output(STDOUT, self.out[0]))
        executor.watch_output(self.err[0], lambda: self.read_output(STDERR, self.err[0]))

    def start(self, bare: bool = False) -> None:
        """Start a bash now, or as soon as a process can be made. Commands wait until bash is ready.

        A `bare` bash has no variables except PATH, because a restore will set them.
        """
        if self.pid:  # a restore has started a bash while this retry was waiting
            return
        self.bare = bare
        try:
            self.fork_bash()
        except OSError:
            self.pid = 0
            self.executor.after(RESTART_SECONDS, lambda: self.start(bare))
            return
        os.set_blocking(self.status_r, False)
        self.executor.watch(self.status_r, IN, lambda _: self.read_status())
        self.executor.children[self.pid] = self.died
        self.write_line(SHELL_START)

    def fork_bash(self) -> None:
        """Make the private descriptors, and fork the process."""
        self.ready, self.status, self.trace, self.restore = False, b"", b"", False
        made: list[int] = []
        try:
            for _ in range(2):
                made += os.pipe()
            command_r, self.command_w, self.status_r, status_w = made
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

    def write_source(self, text: bytes) -> None:
        """Put text into the file that bash sources."""
        os.ftruncate(self.source, 0)
        os.lseek(self.source, 0, os.SEEK_SET)
        write_all(self.source, text)

    def write_line(self, line: bytes) -> None:
        """Write a line to bash. The line must fit into the pipe. Ignore a dead bash, because `died` handles its end."""
        try:
            os.write(self.command_w, line)
        except BrokenPipeError:
            pass

    def enqueue(self, command: ShellCommand) -> None:
        self.queue.append(command)
        self.next()

    def next(self) -> None:
        """Start the next script, or else the next command, if the shell is free. A command also waits for `holds`."""
        if not self.ready or self.current or self.script:
            return
        if self.scripts:
            self.serial += 1
            self.script = self.scripts.pop(0)
            self.script.start()
            return
        if not self.queue or self.executor.holds:
            return
        self.commands += 1
        command = self.queue.pop(0)
        self.take_background()
        command.background, self.background = self.background, b""
        command.notice, self.notice = self.notice, ""
        command.start()
        self.current, self.code = command, None
        self.serial += 1
        self.write_source(SHELL_PREFIX + self.trace + b"".join(command.text))
        command.text = []
        self.write_line((SHELL_RESTORE if self.restore else b"") + SHELL_RUN % self.serial)
        self.restore = False

    def enqueue_script(self, script: ShellScript) -> None:
        """Run a script of the executor before the next command."""
        self.scripts.append(script)
        self.next()

    def script_ended(self, ok: bool) -> None:
        """Handle the end of a script. `ok` is False if the shell died."""
        script, self.script = self.script, None
        if script:
            script.done(ok)
            self.next()

    def take_background(self) -> None:
        """Read the output of background jobs from the pipes, just before a command starts."""
        for stream, ends in ((STDOUT, self.out), (STDERR, self.err)):
            for _ in range(pipe_bytes(ends[0]) // PIPE_READ + 1):
                self.read_output(stream, ends[0])

    def read_output(self, stream: int, fd: int) -> None:
        """Read stdout or stderr of the shell, which is output of the current command or of background jobs."""
        try:
            data = os.read(fd, PIPE_READ)
        except BlockingIOError:
            return
        command = self.current
        if command is None:
            if self.ready:
                self.background = (self.background + data)[-MAX_BACKGROUND_BYTES:]
            return
        assert command.capture is not None
        if self.code is None:
            command.take(stream, data)
            return
        mine, later = data[: self.left[stream]], data[self.left[stream] :]
        self.left[stream] -= len(mine)
        command.take(stream, mine)
        self.background = (self.background + later)[-MAX_BACKGROUND_BYTES:]
        self.finish_if_drained()

    def read_status(self) -> None:
        """Read reports from the status pipe. A line is `<number of command or script> <exit code> <shell's flags>`."""
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
        """Handle a report about the current command or script.

        Ignore all other reports, because any process of a command can write to the status pipe.
        """
        if len(words) != 3 or not words[0].isdigit() or not words[1].isdigit():
            return
        if not self.ready:
            self.take_background()
            self.ready = True
            self.next()
        elif self.script and int(words[0]) == self.serial:
            self.script_ended(True)
        elif self.current and self.code is None and int(words[0]) == self.serial:
            self.trace = b"set -x;" if b"x" in words[2] else b""
            if b"!" in words[2]:
                self.restore = True
                self.current.add_notice(
                    "The command closed or redirected the shell's own output; it was restored."
                )
            self.current.abandoned = bool(self.current.reason)
            self.command_ended(int(words[1]) & 255)

    def command_ended(self, code: int) -> None:
        """Note that the command has ended. The bytes that are in the pipes now are the rest of its output."""
        self.code = code
        self.left = {STDOUT: pipe_bytes(self.out[0]), STDERR: pipe_bytes(self.err[0])}
        self.finish_if_drained()

    def finish_if_drained(self) -> None:
        """Respond if the last output has been read."""
        command, code = self.current, self.code
        if command and not any(self.left.values()):
            self.current = None
            command.finish(code)
            self.next()

    def abort(self, command: ShellCommand) -> None:
        """Make bash abandon the command, and kill the processes of the command."""
        if catches_signal(self.pid, ABORT_SIGNAL):
            send_signal(self.pid, ABORT_SIGNAL)
        else:
            send_signal(self.pid, signal.SIGKILL)
        self.abort_tick(command, 0)

    def abort_tick(self, command: ShellCommand, tick: int) -> None:
        if self.current is not command or self.code is not None:
            return
        killed = kill_all(command.own_processes)
        if tick == MAX_ABORT_TICKS:
            send_signal(self.pid, signal.SIGKILL)
        if tick * ABORT_TICK_SECONDS > GIVE_UP_SECONDS and not killed:
            command.add_notice("Some processes of the command could not be killed.")
            self.command_ended(255)
            return
        self.executor.after(ABORT_TICK_SECONDS, lambda: self.abort_tick(command, tick + 1))

    def died(self, status: int) -> None:
        """Handle the end of the shell: end the current command, and start a new shell unless a restore will do so."""
        self.executor.unwatch(self.status_r)
        quietly_close(self.command_w, self.status_r, self.source)
        command = self.current
        self.pid = 0
        if RESTORE in self.executor.holds:
            self.ready = False
        elif self.ready:
            self.start()
        else:
            self.executor.after(RESTART_SECONDS, self.start)
        self.script_ended(False)
        if command and self.code is None:
            command.add_notice(self.describe_end(command, status))
            self.command_ended(exit_code(status))

    def describe_end(self, command: ShellCommand, status: int) -> str:
        """Return the notice for the model about the end of the shell."""
        if command.reason:
            how = "had to be killed to end the command"
        elif os.WIFSIGNALED(status):
            how = "was killed by signal %d" % os.WTERMSIG(status)
        else:
            how = "ended with exit code %d" % os.WEXITSTATUS(status)
        folder = bytes_to_text(self.executor.cwd)
        return "The shell %s; a new one was started in %s, without the old variables and functions." % (
            how,
            folder,
        )


class ShellCommand(Request):
    """A command in the persistent shell, with its output and its processes."""

    def __init__(self, shell: Shell, number: int, params: dict[str, Any]) -> None:
        super().__init__(shell.executor, number, params)
        self.shell = shell
        self.text: list[bytes] = []
        self.capture: Capture | None = None
        self.reason = ""
        self.started = 0.0
        self.notice = ""
        self.background = b""
        self.before: dict[int, tuple[int, int]] = {}
        self.memory_kills = 0
        self.held = b""
        self.abandoned = False

    def data(self, data: bytes) -> None:
        self.text.append(data)
        super().data(data)

    def end(self) -> None:
        if self.params.get("timeout") is not None:
            self.timer = self.executor.after(float(self.params["timeout"]) + START_SECONDS, self.timed_out)
        self.shell.enqueue(self)

    def start(self) -> None:
        """Prepare to run the command. Remember all running processes, so that an abort spares them."""
        self.started = time.monotonic()
        limit = int(self.params["output_limit"])
        self.capture = Capture(self.send, limit, self.executor.spill_path(self.number))
        self.before = own_tree()
        self.memory_kills = memory_kills()
        if self.timer:
            self.timer.cancel()
        self.start_timer()

    def timed_out(self) -> None:
        self.abort("timed_out")

    def cancel(self) -> None:
        self.abort("interrupted")

    def abort(self, reason: str) -> None:
        """End the command, or remove it from the queue. `reason` is as in `ended_by`."""
        if self.capture is None:
            if self in self.shell.queue:
                self.shell.queue.remove(self)
            self.respond({**ended_by(reason, None), "notice": NOT_STARTED})
        elif not self.reason:
            self.reason = reason
            self.shell.abort(self)

    def end_with(self, text: str) -> bool:
        """End the command because a limit was exceeded, and report the notice `text`.

        Return False if the command is not running, or if it is already being ended.
        """
        if self.capture is None or self.reason:
            return False
        self.add_notice(text)
        self.abort(KILLED)
        return True

    def take(self, stream: int, data: bytes) -> None:
        """Handle output of the command.

        During an abort, hold back the last byte of stderr, because it may be a newline that bash itself writes.
        """
        assert self.capture is not None
        if self.reason and stream == STDERR:
            data = self.held + data
            data, self.held = data[:-1], data[-1:]
        if data:
            self.capture.feed(stream, data)

    def own_processes(self) -> set[int]:
        """Return the pids of this command's living processes, without the shell, older jobs and other requests."""
        table = process_table()
        skip = {pid for pid, identity in self.before.items() if table.get(pid, (0, -1))[1] == identity[1]}
        skip.discard(self.shell.pid)
        skip |= self.executor.helper_pids()
        return descendants(table, os.getpid(), skip) - {self.shell.pid}

    def finish(self, code: int | None) -> None:
        """Respond after all output was read."""
        capture = self.capture
        assert capture is not None
        if self.held and not (self.abandoned and self.held == b"\n"):
            capture.feed(STDERR, self.held)
        if (self.reason or self.params.get("kill_background")) and not kill_all(self.own_processes):
            self.add_notice("Some processes of the command could not be killed.")
        if code == KILLED_CODE and not self.reason and memory_kills() > self.memory_kills:
            self.add_notice(describe_memory_kill())
        outcome = capture.finish()
        outcome.update(ended_by(self.reason, code))
        outcome["duration"] = time.monotonic() - self.started
        outcome["notice"] = self.notice
        outcome["background"] = len(self.background)
        self.send(DATA, self.background)
        self.respond(outcome)

    def add_notice(self, text: str) -> None:
        self.notice = (self.notice + " " + text).strip()


class ShellScript:
    """A script of the executor that the shell runs between two commands.

    Args:
        line: line for the shell's stdin. The last command in the line must write a report to the status pipe.
        script: text of the file that the line sources. If it is empty, the line may write to the file instead.
        done: function that is called with True after the shell has run the line, or with False if the shell ended.
    """

    def __init__(self, shell: Shell, line: bytes, script: bytes, done: Callable[[bool], None]) -> None:
        self.shell = shell
        self.line = line
        self.script = script
        self.done = done
        self.before: dict[int, tuple[int, int]] = {}
        self.tries = 0

    def start(self) -> None:
        shell = self.shell
        self.before = own_tree()
        shell.write_source(b"exec 196<&-;" + self.script if self.script else b"")
        shell.executor.after(SCRIPT_SECONDS, self.late)
        send_signal(shell.pid, signal.SIGCONT)  # a command may have stopped the shell
        shell.write_line(self.line.replace(SERIAL, b"%d" % shell.serial))

    def late(self) -> None:
        """Kill the processes of a late script. At the third try, kill the shell."""
        shell = self.shell
        if shell.script is not self:
            return
        self.tries += 1
        if self.tries < 3:
            skip = shell.executor.helper_pids() | {shell.pid}
            kill_all(lambda: set(own_tree()) - set(self.before) - skip)
            shell.executor.after(SCRIPT_SECONDS, self.late)
        else:
            send_signal(shell.pid, signal.SIGKILL)
