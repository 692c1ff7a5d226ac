"""Forked child processes. Most children serve one request; a `ServiceProcess` serves all requests of one kind."""

from __future__ import annotations

import errno
import os
import signal
import time

from .capture import Capture
from .event_loop import IN, OUT
from .frames import HANDED, PIPE_READ, STDERR, STDOUT, quietly_close, text_to_bytes, write_all, write_pending
from .light import dump, parse_json
from .processes import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    exec_program,
    exit_code,
    kill_tree,
    pipe_bytes,
    prctl,
    switch_user,
    take_descriptors,
)
from .request import KILLED, Request, describe_error, ended_by, problem_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from .request import ExecutorContext

PATH_MAX = 4096
FILE_OPERATION_ENDS = {
    "timed_out": "the file operation took too long",
    "interrupted": "the file operation was interrupted",
}
FILE_OPERATIONS = frozenset(["read", "write", "list", "pack", "unpack", "describe"])


def fork_with_pipes(
    executor: ExecutorContext, fds: tuple[int, ...], child: Callable[[], None], *, handed: bool = False
) -> tuple[int, list[int]]:
    """Fork a process that calls `child`, with a pipe on each of the descriptors `fds`.

    The child reads from descriptor 0, and writes to the others. With `handed`, the child also has the executor's
    descriptor `HANDED`.

    Returns:
        The child's pid, and the executor's ends of the pipes in the order of `fds`.

    Raises:
        OSError: if commands in the sandbox have used up all processes or descriptors.
    """
    pipes: dict[int, tuple[int, int]] = {}
    try:
        for fd in fds:
            pipes[fd] = os.pipe()
        child_ends = {fd: pipe[fd != 0] for fd, pipe in pipes.items()}
        pid = executor.fork(lambda: enter_child(child_ends, child, handed))
    except OSError:
        quietly_close(*(end for pipe in pipes.values() for end in pipe))
        raise
    quietly_close(*child_ends.values())
    ends = [pipe[fd == 0] for fd, pipe in pipes.items()]
    for end in ends:
        os.set_blocking(end, False)
    return pid, ends


def enter_child(fds: dict[int, int], child: Callable[[], None], handed: bool = False) -> None:
    """Set up this process, which was just forked, and call `child`.

    Descriptor n of this process becomes a copy of `fds[n]` (n is 0 to 3). With `handed`, the descriptor `HANDED` stays
    open. All other descriptors are closed. The kernel will kill this process when the executor ends.
    """
    take_descriptors(fds)
    os.closerange(4, HANDED)
    os.closerange(HANDED + handed, 4096)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    child()


def supervise(become_program: Callable[[], None]) -> None:
    """Call `become_program` in a new process, which becomes a program. When the program ends, return.

    The exit code is written to descriptor 3 as JSON. This process adopts the program's orphans, so that all of them are
    found and killed when the request ends.
    """
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        pid = os.fork()
    except OSError as error:
        write_all(3, dump({"error": describe_error(error)}))
        os._exit(255)
    if pid == 0:
        become_program()
    quietly_close(0, 1, 2)
    while True:
        ended, status = os.wait()
        if ended == pid:
            write_all(3, dump({"exit_code": exit_code(status)}))
            os.close(3)
            return


def program_environment(added: dict[str, str]) -> dict[bytes, bytes]:
    """Return the environment of the executor with the variables `added`."""
    env = dict(os.environb)
    env.update((text_to_bytes(name), text_to_bytes(value)) for name, value in added.items())
    return env


def find_operation(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return the function of a file operation. Import the function's module only now, because importing takes time."""
    if name == "describe":
        from .snapshotter import describe

        return describe
    if name in ("pack", "unpack"):
        from .tree_stream import pack, unpack

        return pack if name == "pack" else unpack
    from .files import list_files, read, write

    return {"read": read, "write": write, "list": list_files}[name]


class ServiceProcess:
    """The executor's side of a child that serves requests for as long as the executor runs.

    The child reads requests from fd 0, writes data to fd 1, and ends each request with one JSON line on fd 3.
    """

    handed = False
    """True if the child gets the descriptor `HANDED`."""

    def __init__(self, executor: ExecutorContext) -> None:
        self.executor = executor
        self.pid = 0
        self.requests_w = self.data_r = self.outcome_r = -1
        self.line = b""
        self.outcome: dict[str, Any] | None = None
        self.left = 0

    def start(self) -> None:
        """Fork the child. Raises OSError."""
        self.pid, ends = fork_with_pipes(self.executor, (0, 1, 3), self.serve, handed=self.handed)
        self.requests_w, self.data_r, self.outcome_r = ends
        self.executor.services.add(self.pid)
        self.executor.children[self.pid] = lambda _: self.died()
        self.executor.watch_output(self.data_r, self.read_data)
        self.executor.watch(self.outcome_r, IN, lambda _: self.read_outcome())

    def serve(self) -> NoReturn:
        """Serve in the child until the executor ends."""
        raise NotImplementedError

    def take_data(self, data: bytes) -> None:
        """Handle data that the child has written."""
        raise NotImplementedError

    def finish(self, outcome: dict[str, Any]) -> None:
        """Handle the outcome of a request, after all data of the request was handled."""
        raise NotImplementedError

    def died(self) -> None:
        """Handle the end of the child, which was killed. Everything that the child has remembered is lost."""
        raise NotImplementedError

    def read_data(self) -> None:
        try:
            data = os.read(self.data_r, PIPE_READ)
        except BlockingIOError:
            return
        if data:
            self.take_data(data)
        self.left -= len(data)
        self.finish_if_drained()

    def read_outcome(self) -> None:
        try:
            data = os.read(self.outcome_r, PIPE_READ)
        except BlockingIOError:
            return
        self.line += data
        if self.line.endswith(b"\n"):
            line, self.line = self.line, b""
            self.outcome = parse_json(line)
            self.left = pipe_bytes(self.data_r)
            self.finish_if_drained()

    def finish_if_drained(self) -> None:
        """Finish the request if its outcome and all its data have arrived."""
        if self.outcome is not None and self.left <= 0:
            outcome, self.outcome = self.outcome, None
            self.finish(outcome)

    def close(self) -> None:
        """Forget the child, which has ended or is ending."""
        for fd in (self.requests_w, self.data_r, self.outcome_r):
            self.executor.unwatch(fd)
        quietly_close(self.requests_w, self.data_r, self.outcome_r)
        self.requests_w = self.data_r = self.outcome_r = -1
        self.executor.services.discard(self.pid)
        self.pid, self.line, self.outcome = 0, b"", None


class ChildRequest(Request):
    """A request that a forked child serves.

    The body is the child's stdin. The child's stdout and stderr are the output. The child writes its outcome as JSON to
    fd 3 and ends.
    """

    def begin(self) -> None:
        self.pid = 0
        self.outcome = b""
        self.reason = ""
        self.status: int | None = None
        self.started = time.monotonic()
        self.body: list[memoryview] = []
        self.stdin_w = self.stdout_r = self.stderr_r = self.result_r = -1
        self.left: dict[int, int] = {}
        self.head_left = self.params.get("head") or 0
        self.body_ended = not self.params.get("body")
        if not self.head_left:
            self.executor.when_files_ready(self.launch)

    def launch(self) -> None:
        """Fork the child and watch its pipes, unless the request was cancelled."""
        if self.done:
            return
        self.prepare()
        try:
            self.pid, ends = fork_with_pipes(self.executor, (0, 1, 2, 3), self.child)
        except OSError as error:
            self.respond({"error": describe_error(error)})
            return
        self.stdin_w, self.stdout_r, self.stderr_r, self.result_r = ends
        self.start_timer()
        self.executor.helpers.add(self.pid)
        self.executor.children[self.pid] = self.ended
        self.executor.watch_output(self.stdout_r, lambda: self.read_stream(STDOUT, self.stdout_r))
        self.executor.watch_output(self.stderr_r, lambda: self.read_stream(STDERR, self.stderr_r))
        self.executor.watch(self.result_r, IN, lambda _: self.result_arrived())
        self.pump()

    def prepare(self) -> None:
        """Prepare the request in the executor, before the fork."""

    def child(self) -> None:
        """Serve the request in the child. Write output to fd 1 and 2 and the outcome to fd 3, and exit."""
        raise NotImplementedError

    def data(self, data: bytes) -> None:
        if self.head_left:
            self.take_head(data)
            return
        self.body.append(memoryview(data))
        if self.pid:
            self.pump()

    def take_head(self, data: bytes) -> None:
        """Collect the arguments at the beginning of the body. Launch the child when the arguments are complete."""
        self.body.append(memoryview(data))
        self.acknowledge(len(data))
        joined = b"".join(self.body)
        if len(joined) < self.head_left:
            return
        try:
            params = {
                **parse_json(joined[: self.head_left]),
                "op": self.params["op"],
                "body": True,
                "head": None,
            }
            problem = problem_of(params)
        except (ValueError, TypeError, RecursionError):
            problem = "the request is malformed: head"
        rest = joined[self.head_left :]
        self.acknowledge(-len(rest))
        self.head_left, self.body = 0, [memoryview(rest)] if rest else []
        if problem:
            self.fail("internal", problem)
            return
        self.params = params
        self.executor.when_files_ready(self.launch)

    def end(self) -> None:
        self.body_ended = True
        if self.pid:
            self.pump()

    def pump(self) -> None:
        """Write as much of the body as the pipe to the child accepts."""
        if self.stdin_w >= 0:
            written, has_reader = write_pending(self.stdin_w, self.body)
            self.acknowledge(written)
            if has_reader and self.body:
                self.executor.watch(self.stdin_w, OUT, lambda _: self.pump())
                return
            self.executor.unwatch(self.stdin_w)
            if self.body_ended or not has_reader:
                self.close_stdin()
        if self.stdin_w < 0:
            self.acknowledge(sum(map(len, self.body)))
            self.body = []

    def close_stdin(self) -> None:
        """Close the child's stdin, because the body is complete or the child does not read it any more."""
        self.executor.unwatch(self.stdin_w)
        quietly_close(self.stdin_w)
        self.stdin_w = -1

    def read_stream(self, stream: int, fd: int) -> None:
        try:
            data = os.read(fd, min(PIPE_READ, self.left.get(stream, PIPE_READ)))
        except BlockingIOError:
            return
        if data:
            self.output(stream, data)
        else:
            self.executor.unwatch(fd)
        if stream in self.left:
            self.left[stream] = self.left[stream] - len(data) if data else 0
            self.finish_if_drained()

    def output(self, stream: int, data: bytes) -> None:
        """Send output of the child."""
        self.send(stream, data)

    def result_arrived(self) -> None:
        """Handle data in the outcome pipe, or the end of the pipe."""
        self.read_result()

    def read_result(self) -> bool:
        """Read a part of the child's outcome. Return True at the end of the pipe."""
        try:
            data = os.read(self.result_r, PIPE_READ)
        except BlockingIOError:
            return False
        self.outcome += data
        if not data:
            self.executor.unwatch(self.result_r)
        return not data

    def timed_out(self) -> None:
        self.abort("timed_out")

    def cancel(self) -> None:
        self.abort("interrupted")

    def abort(self, reason: str) -> None:
        """Kill the child and its descendants. The response follows when the child is reaped.

        If the child has ended already, drop its remaining output and respond.
        """
        if not self.reason:
            self.reason = reason
        if (
            self.status is not None
        ):  # the child has ended, so its number may already belong to another process
            self.left = {}
            self.finish_if_drained()
        elif self.pid:
            kill_tree(self.pid)
        else:
            self.finish()

    def ended(self, status: int) -> None:
        """Read the rest of the pipes after the child has ended, then respond."""
        self.status = status
        self.executor.helpers.discard(self.pid)
        if self.done:
            return
        for _ in range(pipe_bytes(self.result_r) // PIPE_READ + 1):
            self.read_result()
        self.drain()

    def drain(self) -> None:
        """Respond as soon as everything that is in the output pipes now has been read."""
        self.left = {STDOUT: pipe_bytes(self.stdout_r), STDERR: pipe_bytes(self.stderr_r)}
        self.finish_if_drained()

    def finish_if_drained(self) -> None:
        if self.done or any(self.left.values()):
            return
        for fd in (self.stdout_r, self.stderr_r, self.result_r):
            self.executor.unwatch(fd)
            quietly_close(fd)
        self.close_stdin()
        self.finish()

    def finish(self) -> None:
        """Respond with the outcome of the child."""
        try:
            outcome = parse_json(self.outcome)
        except ValueError:
            outcome = {"error": {"kind": "internal", "message": "the file operation was killed"}}
        if self.reason:
            outcome = {"error": {"kind": self.reason, "message": FILE_OPERATION_ENDS[self.reason]}}
        self.respond(outcome)


class ExecRequest(ChildRequest):
    """A program separate from the shell. The child of this request is a supervisor, which starts the program.

    The supervisor adopts the program's orphans, and lives until the last orphan has ended. So orphans never become
    children of the executor, which would mistake them for orphans of the shell's command.
    """

    notice = ""

    def prepare(self) -> None:
        self.argv = [text_to_bytes(word) for word in self.params["argv"]]
        self.env = program_environment(self.params["env"])
        limit = int(self.params["output_limit"])
        self.capture = Capture(self.send, limit, self.executor.spill_path(self.number))

    def end_with(self, text: str) -> bool:
        """End the program because a limit was exceeded, and report the notice `text`.

        Return False if no program runs, or if the program is already being ended.
        """
        if not self.pid or self.reason:
            return False
        self.notice = text
        self.abort(KILLED)
        return True

    def output(self, stream: int, data: bytes) -> None:
        self.capture.feed(stream, data)

    def child(self) -> None:
        supervise(self.become_program)
        while True:
            try:
                os.wait()
            except ChildProcessError:  # the last orphan has ended
                os._exit(0)

    def result_arrived(self) -> None:
        if self.read_result() and self.outcome and self.status is None:  # in other cases `ended` responds
            self.executor.helpers.discard(self.pid)
            self.executor.keepers.add(self.pid)
            self.drain()

    def ended(self, status: int) -> None:
        self.executor.keepers.discard(self.pid)
        super().ended(status)

    def become_program(self) -> None:
        """Switch user and directory, then execute the program. Report an error if switching fails."""
        try:
            os.setsid()
            if self.params["user"] is not None:
                switch_user(self.params["user"], self.env, "HOME" in self.params["env"])
            os.chdir(text_to_bytes(self.params["cwd"]))
        except (OSError, LookupError) as error:
            write_all(3, dump({"error": describe_error(error)}) + b"\n")  # `finish` reads only the first line
            os._exit(255)
        os.set_inheritable(3, False)
        exec_program(self.argv, self.env, {}, None)

    def finish(self) -> None:
        if not self.pid:  # the program was not started
            self.respond(ended_by(self.reason, None))
            return
        outcome = self.capture.finish()
        try:
            outcome.update(parse_json(self.outcome.partition(b"\n")[0]))
        except ValueError:
            outcome["exit_code"] = exit_code(self.status or 0) or 255
        outcome.update(ended_by(self.reason, outcome.get("exit_code")))
        outcome["notice"] = self.notice
        if self.reason:
            outcome.pop("error", None)
        outcome["duration"] = time.monotonic() - self.started
        self.respond(outcome)


class FileRequest(ChildRequest):
    """A file operation. It runs in a child, because the executor must not wait if the filesystem hangs."""

    def prepare(self) -> None:
        self.operation = find_operation(self.params["op"])

    def child(self) -> None:
        try:
            if len(text_to_bytes(self.params.get("path", ""))) >= PATH_MAX:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
            outcome = self.operation(self.params)
        except (OSError, ValueError) as error:
            outcome = {"error": describe_error(error)}
        except RecursionError:
            outcome = {"error": {"kind": "internal", "message": "folders are nested too deep"}}
        write_all(3, dump(outcome))
        os._exit(0)
