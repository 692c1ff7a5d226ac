"""Requests that a forked child serves: programs beside the shell, and file operations."""

from __future__ import annotations

import json
import os
import signal
import time

from .capture import Capture
from .poller import IN, OUT
from .processes import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    descendants,
    exec_program,
    exit_code,
    kill_all,
    pipe_bytes,
    prctl,
    process_table,
    send_signal,
    switch_user,
    take_descriptors,
)
from .request import Request, describe_error
from .wire import PIPE_READ, STDERR, STDOUT, dump, quietly_close, text_to_bytes, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    pass


class Helper(Request):
    """A request served by a forked child: stdin is the request's body, stdout and stderr come back as output.

    The child writes its outcome as JSON to a pipe of its own and ends.
    """

    def begin(self) -> None:
        self.pid = 0
        self.outcome = b""
        self.reason = ""
        self.status: int | None = None
        self.started = time.monotonic()
        self.body: list[bytes] = []
        self.stdin_w = self.stdout_r = self.stderr_r = self.result_r = -1
        self.left: dict[int, int] = {}
        self.head_left = int(self.params.get("head", 0))
        self.body_ended = not self.params.get("body")
        if not self.head_left:
            self.executor.watcher.when_looked(self.launch)

    def launch(self) -> None:
        """Fork the child and watch its pipes, unless the host has given up meanwhile."""
        if self.done:
            return
        self.prepare()
        try:
            self.fork_child()
        except OSError as error:  # no process or descriptor is left: the commands inside have taken them
            self.respond({"error": describe_error(error)})
            return
        self.start_timer()
        self.executor.helpers.add(self.pid)
        self.executor.children[self.pid] = self.ended
        for fd in (self.stdin_w, self.stdout_r, self.stderr_r, self.result_r):
            os.set_blocking(fd, False)
        self.executor.watch_output(self.stdout_r, lambda: self.read_stream(STDOUT, self.stdout_r))
        self.executor.watch_output(self.stderr_r, lambda: self.read_stream(STDERR, self.stderr_r))
        self.executor.watch(self.result_r, IN, lambda _: self.read_result())
        self.pump()

    def fork_child(self) -> None:
        """Make the pipes and the child."""
        pipes: list[tuple[int, int]] = []
        try:
            for _ in range(4):
                pipes.append(os.pipe())
            theirs = {0: pipes[0][0], 1: pipes[1][1], 2: pipes[2][1], 3: pipes[3][1]}
            self.pid = self.executor.fork(lambda: self.enter_child(theirs))
        except OSError:
            quietly_close(*(fd for pipe in pipes for fd in pipe))
            raise
        quietly_close(*theirs.values())
        self.stdin_w, self.stdout_r, self.stderr_r, self.result_r = (
            pipes[0][1], pipes[1][0], pipes[2][0], pipes[3][0],
        )  # fmt: skip

    def prepare(self) -> None:
        """Check the parameters before the fork."""

    def enter_child(self, fds: dict[int, int]) -> None:
        """In the child: keep its own four descriptors (0 to 3), nothing else, and serve."""
        take_descriptors(fds)
        os.closerange(4, 4096)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        self.child()

    def child(self) -> None:
        """In the child: serve the request with fd 0 to 2, tell the outcome on fd 3, and exit."""
        raise NotImplementedError

    def data(self, data: bytes) -> None:
        if self.head_left:
            self.take_head(data)
            return
        self.body.append(data)
        if self.pid:
            self.pump()

    def take_head(self, data: bytes) -> None:
        """Large arguments travel as the first bytes of the body."""
        self.body.append(data)
        self.acknowledge(len(data))
        joined = b"".join(self.body)
        if len(joined) < self.head_left:
            return
        self.params.update(json.loads(joined[: self.head_left]))
        rest = joined[self.head_left :]
        self.acknowledge(-len(rest))
        self.head_left, self.body = 0, [rest] if rest else []
        self.executor.watcher.when_looked(self.launch)

    def end(self) -> None:
        self.body_ended = True
        if self.pid:
            self.pump()

    def pump(self) -> None:
        """Pass the body on as far as the child takes it."""
        while self.stdin_w >= 0 and self.body:
            try:
                written = os.write(self.stdin_w, self.body[0])
            except BlockingIOError:
                self.executor.watch(self.stdin_w, OUT, lambda _: self.pump())
                return
            except BrokenPipeError:
                self.close_stdin()
                break
            self.acknowledge(written)
            self.body[0] = self.body[0][written:]
            if not self.body[0]:
                self.body.pop(0)
        if self.stdin_w < 0:
            self.acknowledge(sum(map(len, self.body)))
            self.body = []
        else:
            self.executor.unwatch(self.stdin_w)
            if self.body_ended:
                self.close_stdin()

    def close_stdin(self) -> None:
        """No more body, or nobody to take it."""
        self.executor.unwatch(self.stdin_w)
        quietly_close(self.stdin_w)
        self.stdin_w = -1

    def read_stream(self, stream: int, fd: int) -> None:
        """The child has written."""
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
        """Send what the child wrote."""
        self.send(stream, data)

    def read_result(self) -> None:
        """The child tells its outcome."""
        try:
            data = os.read(self.result_r, PIPE_READ)
        except BlockingIOError:
            return
        self.outcome += data
        if not data:
            self.executor.unwatch(self.result_r)

    def own_processes(self) -> set[int]:
        """The child and all below it."""
        table = process_table()
        return descendants(table, self.pid, set()) if self.pid in table else set()

    def timed_out(self) -> None:
        self.abort("timed_out")

    def cancel(self) -> None:
        self.abort("interrupted")

    def abort(self, reason: str) -> None:
        """Kill the child and all below it; the answer comes when it is reaped."""
        if not self.reason:
            self.reason = reason
        if not self.pid:
            self.respond({"exit_code": None, reason: True})
            return
        send_signal(self.pid, signal.SIGSTOP)
        kill_all(self.own_processes)
        send_signal(self.pid, signal.SIGKILL)

    def ended(self, status: int) -> None:
        """The child is gone: read what is left in its pipes, then answer."""
        self.status = status
        self.executor.helpers.discard(self.pid)
        for _ in range(pipe_bytes(self.result_r) // PIPE_READ + 1):
            self.read_result()
        self.left = {STDOUT: pipe_bytes(self.stdout_r), STDERR: pipe_bytes(self.stderr_r)}
        self.finish_if_drained()

    def finish_if_drained(self) -> None:
        """Answer when the last output has been read."""
        if self.done or any(self.left.values()):
            return
        for fd in (self.stdout_r, self.stderr_r, self.result_r):
            self.executor.unwatch(fd)
            quietly_close(fd)
        self.close_stdin()
        self.executor.adopt_orphans()
        self.finish()

    def finish(self) -> None:
        """Answer with what the child told."""
        try:
            outcome = json.loads(self.outcome)
        except ValueError:
            outcome = {"error": {"kind": "internal", "message": "the file operation was killed"}}
        if self.reason:
            outcome = {"error": {"kind": self.reason, "message": "the file operation took too long"}}
        self.respond(outcome)


class Exec(Helper):
    """A program beside the shell. A supervisor collects its orphans, so that all of them can be killed."""

    def prepare(self) -> None:
        self.argv = [text_to_bytes(word) for word in self.params["argv"]]
        self.env = dict(os.environb)
        self.env.update((text_to_bytes(k), text_to_bytes(v)) for k, v in self.params["env"].items())
        limit = int(self.params["output_limit"])
        self.capture = Capture(self.send, limit, self.executor.spill_path(self.number))

    def output(self, stream: int, data: bytes) -> None:
        self.capture.feed(stream, data)

    def child(self) -> None:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            pid = os.fork()
        except OSError as error:
            write_all(3, dump({"error": describe_error(error)}))
            os._exit(255)
        if pid == 0:
            self.become_program()
        quietly_close(0, 1, 2)
        while True:
            ended, status = os.wait()
            if ended == pid:
                write_all(3, dump({"exit_code": exit_code(status)}))
                os._exit(0)

    def become_program(self) -> None:
        """In the grandchild: user, directory, program; what fails before the program is told as an error."""
        try:
            os.setsid()
            if self.params["user"] is not None:
                switch_user(self.params["user"], self.env, "HOME" in self.params["env"])
            os.chdir(text_to_bytes(self.params["cwd"]))
        except (OSError, LookupError) as error:
            write_all(3, dump({"error": describe_error(error)}))
            os._exit(255)
        os.set_inheritable(3, False)
        exec_program(self.argv, self.env, {}, None)

    def finish(self) -> None:
        outcome = self.capture.finish()
        end = self.outcome[: self.outcome.find(b"}{") + 1] if b"}{" in self.outcome else self.outcome
        try:
            outcome.update(json.loads(end))
        except ValueError:
            outcome["exit_code"] = exit_code(self.status or 0) or 255
        outcome["timed_out"] = self.reason == "timed_out"
        outcome["interrupted"] = self.reason == "interrupted"
        if self.reason:
            outcome["exit_code"] = None
            outcome.pop("error", None)
        outcome["duration"] = time.monotonic() - self.started
        self.respond(outcome)


class FileRequest(Helper):
    """A file operation of `executor_files.py`, in a child."""

    def prepare(self) -> None:
        from . import operations  # noqa: F401 - compiled only when it is needed, and before the fork

    def child(self) -> None:
        from .operations import OPERATIONS

        try:
            outcome = OPERATIONS[self.params["op"]](self.params)
        except (OSError, ValueError) as error:
            outcome = {"error": describe_error(error)}
        write_all(3, dump(outcome))
        os._exit(0)
