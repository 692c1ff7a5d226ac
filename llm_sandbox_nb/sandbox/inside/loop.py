"""The executor: requests, children, its owner and the lease."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from .command import Run
from .helpers import Exec, FileRequest
from .history import History
from .history_requests import CheckpointRequest, RestoreRequest
from .link import Link
from .poller import IN
from .processes import (
    IGNORED_SIGNALS,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    descendants,
    first_kilobytes,
    has_program,
    kill_all,
    own_tree,
    prctl,
    process_table,
)
from .request import Request, describe_error
from .shell import Shell
from .watching import ChangesRequest, Watcher
from .wire import BYE, CANCEL, DATA, END, HEADER, HELLO, MAX_PAYLOAD, PING, PONG, REQUEST, dump, text_to_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

VERSION = 1
REMOVE = 'rm -rf -- "$1" 2>/dev/null || { chmod -R u+rwx -- "$1"; rm -rf -- "$1"; }'


OPERATIONS: dict[str, type[Request]] = {
    "run": Run,
    "exec": Exec,
    "read": FileRequest,
    "write": FileRequest,
    "list": FileRequest,
    "pack": FileRequest,
    "unpack": FileRequest,
    "changes": ChangesRequest,
    "checkpoint": CheckpointRequest,
    "describe": FileRequest,
    "restore": RestoreRequest,
}


def find_operation(name: str) -> type[Request] | None:
    """What serves an operation. Terminals are seldom, so theirs is compiled when the first is opened."""
    if name == "terminal":
        from .terminal import Terminal

        return Terminal
    return OPERATIONS.get(name)


class Executor(Link):
    """Serves one host until it leaves, or is not heard for longer than the lease."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: dict[int, Request] = {}
        self.helpers: set[int] = set()
        self.children: dict[int, Callable[[int], None]] = {}
        self.cwd = b"/"
        self.spill = b"/tmp/llm-sandbox"
        self.remove = os.environ.pop("LLM_SANDBOX_FOLDER", "")
        self.lease = 45.0
        self.owned = False
        self.set_up_process()
        self.shell = Shell(self)
        self.watcher = Watcher(self)
        self.history = History(self)

    def set_up_process(self) -> None:
        """Signals, pipes and the flags of our process."""
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        wake_r, wake_w = os.pipe()
        for fd in (wake_r, wake_w):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        self.watch(wake_r, IN, lambda _: self.reap(wake_r))
        prctl(PR_SET_DUMPABLE, 0)
        if os.getpid() != 1:
            prctl(PR_SET_CHILD_SUBREAPER, 1)

    def handle(self, kind: int, number: int, payload: bytes) -> None:
        """One frame of the host."""
        request = self.requests.get(number)
        if kind == REQUEST:
            self.begin(number, json.loads(payload))
        elif kind == HELLO:
            self.welcome(json.loads(payload))
        elif kind == PING:
            self.send(PONG, number, payload)
        elif kind == BYE:
            self.leave()
        elif request and kind == DATA:
            request.data(payload)
        elif request and kind == END:
            request.end()
        elif request and kind == CANCEL:
            request.cancel()

    def begin(self, number: int, params: dict[str, Any]) -> None:
        """Start a request."""
        operation = find_operation(params.get("op", ""))
        if operation is None:
            Request(self, number, params).fail("internal", "the executor does not know this operation")
            return
        request = operation(self, number, params)
        self.requests[number] = request
        try:
            request.begin()
        except OSError as error:
            request.respond({"error": describe_error(error)})

    def welcome(self, hello: dict[str, Any]) -> None:
        """A new owner: end what the old one had under way, make the directories, and introduce ourselves."""
        if self.owned:
            self.drop_old_owner()
        self.lease = float(hello.get("lease", self.lease))
        failed = []
        for name in hello.get("directories", []):
            try:
                os.makedirs(text_to_bytes(name), exist_ok=True)
            except OSError as error:
                failed.append(describe_error(error))
        self.cwd = text_to_bytes(hello.get("cwd", "/"))
        self.spill = text_to_bytes(hello.get("spill", "/tmp/llm-sandbox"))
        self.history.scope = text_to_bytes(hello.get("history", ""))
        version = ".".join(map(str, sys.version_info[:3]))
        answer = {"nonce": hello.get("nonce"), "version": VERSION, "pid": os.getpid(), "uid": os.getuid()}
        answer.update(
            {"python": version, "failed": failed[:8], "adopted": self.owned, "bash": has_program("bash")}
        )
        answer["files"] = {name: first_kilobytes(name) for name in hello.get("files", [])[:16]}
        self.send(HELLO, 0, dump(answer))
        if not self.owned:
            self.owned = True
            self.flush()
            self.shell.start()
            self.watcher.start()

    def drop_old_owner(self) -> None:
        """Cancel its requests and forget what it was to be told; zeros end a frame that went out half."""
        requests, self.requests = list(self.requests.values()), {}
        for request in requests:
            request.silent = True
            request.cancel()
        self.acknowledged.clear()
        self.outgoing = [bytes(MAX_PAYLOAD + HEADER.size)]
        self.outgoing_size = len(self.outgoing[0])

    def fork(self, child: Callable[[], None]) -> int:
        """Fork; the child runs `child` and ends."""
        pid = os.fork()
        if pid:
            return pid
        try:
            signal.set_wakeup_fd(-1)
            child()
        finally:
            os._exit(254)

    def helper_pids(self) -> set[int]:
        """Children that are ours: no command started them."""
        return self.helpers | {self.watcher.pid, self.history.pid}

    def adopt_orphans(self) -> None:
        """What an ended `exec` left running does not belong to a command that is under way in the shell."""
        run = self.shell.current
        if run:
            known = run.before
            mine = self.helper_pids() | {self.shell.pid}
            for pid, identity in own_tree().items():
                if identity[0] == os.getpid() and pid not in mine:
                    known.setdefault(pid, identity)

    def reap(self, wake_r: int) -> None:
        """Children have ended."""
        try:
            os.read(wake_r, 4096)
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            ended = self.children.pop(pid, None)
            if ended:
                ended(status)

    def spill_path(self, number: int) -> bytes:
        """Where the whole output of a request goes when there is too much of it."""
        return self.spill + b"/%d-%x.out" % (number, time.time_ns())

    def leave(self) -> NoReturn:
        """End everything. As PID 1 our end is everybody's; elsewhere the descendants are killed first."""
        if os.getpid() != 1:
            kill_all(lambda: descendants(process_table(), os.getpid(), set()))
        if self.remove:
            os.chdir("/")
            os.execvp("sh", ["sh", "-c", REMOVE, "sh", self.remove])
        os._exit(0)

    def loop(self) -> None:
        """Until the host is gone."""
        while True:
            until_lease = self.heard + self.lease - time.monotonic()
            if until_lease < 0:
                self.leave()
            delay = min(self.run_timers(), until_lease)
            self.flush()
            self.wait(delay + 0.0005)
            self.flush()


def main() -> None:
    """Serve until the host leaves."""
    os.umask(0o022)
    os.closerange(3, 256)
    Executor().loop()
