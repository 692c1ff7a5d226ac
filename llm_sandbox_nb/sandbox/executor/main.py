"""The executor, which serves the requests of its owner: the host that holds the other end of the pipe.

The executor ends if the owner is silent for longer than the lease. It also collects child processes that have ended.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import time

from .change_watcher import ChangesRequest, ChangeWatcher
from .children import FILE_OPERATIONS, ExecRequest, FileRequest
from .disk_watch import DiskUsage, DiskWatch, describe_disk
from .event_loop import IN
from .frames import (
    BYE,
    CANCEL,
    DATA,
    END,
    HEADER,
    HELLO,
    MAX_PAYLOAD,
    PING,
    PONG,
    REQUEST,
    HostPipe,
    text_to_bytes,
)
from .light import dump, parse_json
from .mounts import Epoch
from .processes import (
    IGNORED_SIGNALS,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    Crowd,
    descendants,
    first_kilobytes,
    has_program,
    kill_all,
    prctl,
    process_table,
)
from .request import Request, describe_error, problem_of
from .shell import Shell, ShellCommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any, NoReturn

    from .door import DoorListener
    from .history import HistoryService

IO_URING_SETUP = 425  # number of a system call
KEYCTL = {"x86_64": 250, "aarch64": 219}  # number of a system call, by architecture
GET_KEYRING_ID, SESSION_KEYRING = 0, -3
AF_VSOCK, SOCK_STREAM = 40, 1
CALL_REFUSALS = (errno.EPERM, errno.ENOSYS, errno.EACCES)
REMOVE_SCRIPT = 'rm -rf -- "$1" 2>/dev/null || { chmod -R u+rwx -- "$1"; rm -rf -- "$1"; }'


class Executor(HostPipe):
    """Server for one host. The server ends when the host leaves, or is silent for longer than `lease` seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: dict[int, Request] = {}
        self.helpers: set[int] = set()
        self.keepers: set[int] = set()
        self.services: set[int] = set()
        self.children: dict[int, Callable[[int], None]] = {}
        self.holds: set[str] = set()
        self.waiting: list[Callable[[], None]] = []
        self.cwd = b"/"
        self.spill = b"/tmp/llm-sandbox"
        self.scope = b""
        self.epoch = Epoch()
        self.remove = os.environ.pop("LLM_SANDBOX_FOLDER", "")
        self.lease = 45.0
        self.owned = False
        self.set_up_process()
        self.shell = Shell(self)
        self.watcher = ChangeWatcher(self)
        if "executor.name_server" in sys.modules:  # `close_network` has imported the module before
            from .name_server import NameServer

            NameServer(self)
        self.disk_watch = DiskWatch(self, self.shell, self.epoch)
        self.door: DoorListener | None = None
        self.history: HistoryService | None = None

    def set_up_process(self) -> None:
        """Set up signals and process flags."""
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        wake_r, wake_w = os.pipe()
        for fd in (wake_r, wake_w):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        self.watch(wake_r, IN, lambda _: self.reap(wake_r))
        prctl(PR_SET_DUMPABLE, 0)
        Crowd.expect(self.after)
        if os.getpid() != 1:
            prctl(PR_SET_CHILD_SUBREAPER, 1)

    def handle(self, kind: int, number: int, payload: bytes) -> None:
        request = self.requests.get(number)
        if kind == REQUEST:
            self.begin(number, payload)
        elif kind == HELLO:
            self.welcome(parse_json(payload))
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

    def begin(self, number: int, payload: bytes) -> None:
        """Start a request, or respond with an error if its arguments are invalid."""
        try:
            params = parse_json(payload)
            problem = problem_of(params)
        except (ValueError, RecursionError):
            params, problem = {}, "the request is malformed: not JSON"
        if problem:
            Request(self, number, params).fail("internal", problem)
            return
        request = self.requests[number] = self.new_request(number, params)
        try:
            request.begin()
        except OSError as error:
            request.respond({"error": describe_error(error)})

    def new_request(self, number: int, params: dict[str, Any]) -> Request:
        """Return the object for a request. Import rarely needed modules only here, because importing takes time."""
        operation = params["op"]
        if operation == "run":
            return ShellCommand(self.shell, number, params)
        if operation == "exec":
            return ExecRequest(self, number, params)
        if operation in FILE_OPERATIONS:
            return FileRequest(self, number, params)
        if operation == "changes":
            return ChangesRequest(self.watcher, number, params)
        if operation in ("checkpoint", "restore"):
            from .history import CheckpointRequest, HistoryService, RestoreRequest

            if self.history is None:
                self.history = HistoryService(self, self.shell, self.watcher, self.epoch)
            kind = CheckpointRequest if operation == "checkpoint" else RestoreRequest
            return kind(self.history, number, params)
        if operation == "renew":
            from .renewal import RenewalRequest

            return RenewalRequest(self, number, params, self.shell, self.disk_watch)
        if operation in ("connection", "hand_out"):
            from .door import ConnectionRequest, HandOutRequest

            of_door = HandOutRequest if operation == "hand_out" else ConnectionRequest
            return of_door(self, number, params, self.open_door(0))
        assert operation == "terminal", operation
        from .terminal import TerminalRequest

        return TerminalRequest(self, number, params)

    def open_door(self, port: int) -> DoorListener:
        """Return the door, which is the only way out of the sandbox. Unless `port` is 0, listen on this port first.

        Raises:
            OSError: if the port is in use.
        """
        from .door import DoorListener

        self.door = self.door or DoorListener(self)
        if port and not self.door.open(port):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), str(port))
        return self.door

    def welcome(self, hello: dict[str, Any]) -> None:
        """Serve a new owner: cancel the old owner's requests, make the directories in `hello`, and answer the HELLO."""
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
        self.scope = text_to_bytes(hello.get("history", ""))
        answer: dict[str, Any] = {"nonce": hello.get("nonce"), "pid": os.getpid(), "failed": failed[:8]}
        answer["bash"] = has_program("bash")
        answer["calls"] = open_calls()
        if "disk" in hello:
            self.disk_watch.watch(DiskUsage(*(int(limit or 0) for limit in hello["disk"])))
        answer["disk"] = describe_disk(self.disk_watch.limits, self.remove)
        if "door" in hello:
            self.open_door(int(hello["door"]))
        answer["door"] = self.door.port if self.door else 0
        if hello.get("reach"):
            from .firewall import reachable

            answer["reach"] = reachable()
        answer["files"] = {name: first_kilobytes(name) for name in hello.get("files", [])[:16]}
        self.send(HELLO, 0, dump(answer))
        if not self.owned:
            self.owned = True
            self.flush()
            self.shell.start()
            self.watcher.start()

    def drop_old_owner(self) -> None:
        """Cancel the old owner's requests, and drop unsent output.

        Zeros follow a frame that was sent only in part. They fill up the frame, so that the new owner finds the next.
        """
        requests, self.requests = list(self.requests.values()), {}
        for request in requests:
            request.silent = True
            request.cancel()
        self.acknowledged.clear()
        self.outgoing = [bytes(MAX_PAYLOAD + HEADER.size)]
        self.outgoing_size = len(self.outgoing[0])

    def fork(self, child: Callable[[], None]) -> int:
        """Fork a process that calls `child` and then ends. Return its pid."""
        pid = os.fork()
        if pid:
            return pid
        try:
            signal.set_wakeup_fd(-1)
            child()
        finally:
            os._exit(254)

    def forget(self, number: int) -> None:
        """Drop a request that was answered."""
        self.requests.pop(number, None)
        self.acknowledged.pop(number, None)

    # ------------------------------------------------------------------------------------------------ files

    def when_files_ready(self, action: Callable[[], None]) -> None:
        """Call `action`, which may change files, as soon as `holds` has no reason to wait."""
        if self.holds:
            self.waiting.append(action)
        else:
            action()

    def hold_files(self, reason: str) -> None:
        """Add a reason to `holds`. Commands and file operations wait until `release_files` has removed all reasons."""
        self.holds.add(reason)

    def release_files(self, reason: str) -> None:
        """Remove a reason to wait. If no reason is left, start the waiting commands and file operations."""
        self.holds.discard(reason)
        if self.holds:
            return
        self.shell.next()
        waiting, self.waiting = self.waiting, []
        for action in waiting:
            action()

    # -------------------------------------------------------------------------------------------- processes

    def helper_pids(self) -> set[int]:
        """Return the pids of all children that the executor has forked itself, except the shell."""
        return self.helpers | self.services | self.keepers

    def stop_everything(self, spare: Collection[object]) -> bool:
        """Cancel all requests that are not in `spare`, and kill all commands. Return False if a process survives."""
        for request in list(self.requests.values()):
            if request not in spare:
                request.cancel()
        return kill_all(lambda: descendants(process_table(), os.getpid(), self.services))

    def reap(self, wake_r: int) -> None:
        """Collect ended children and call their handlers."""
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
        """Return the path of the file for a request's complete output, in case the output is too large to be sent."""
        return self.spill + b"/%d-%x.out" % (number, time.time_ns())

    def leave(self) -> NoReturn:
        """End all processes. Then remove the folder of the sandbox, if `remove` names a folder.

        If the executor is PID 1, the kernel kills all descendants. Otherwise, the executor kills them first.
        """
        if os.getpid() != 1:
            kill_all(lambda: descendants(process_table(), os.getpid(), set()))
        if self.remove:
            os.chdir("/")
            os.execvp("sh", ["sh", "-c", REMOVE_SCRIPT, "sh", self.remove])
        os._exit(0)

    def loop(self) -> None:
        """Run until the host is gone."""
        while True:
            until_lease = self.heard + self.lease - time.monotonic()
            if until_lease < 0:
                self.leave()
            delay = min(self.run_timers(), until_lease)
            self.flush()
            self.wait(delay + 0.0005)  # half a millisecond longer, so that the timer is surely due afterwards
            self.flush()


def open_calls() -> dict[str, bool]:
    """Try the system calls that the filter should refuse. Return a dictionary: by name, True if the call can be used.

    Trying is necessary, because a process cannot read the filter that is installed for it.
    """
    made: int = ctypes.CDLL(None).socket(AF_VSOCK, SOCK_STREAM | os.O_CLOEXEC, 0)
    if made >= 0:
        os.close(made)
    return {  # with these arguments, the calls change nothing
        "io_uring": answers_call(IO_URING_SETUP, 0, None),
        "kernel keys": answers_call(KEYCTL.get(os.uname().machine, -1), GET_KEYRING_ID, SESSION_KEYRING, 0),
        "vsock": made >= 0,
    }


def answers_call(number: int, *arguments: int | None) -> bool:
    """Return True if no filter refuses a system call. The kernel then rejects the call's arguments."""
    libc = ctypes.CDLL(None, use_errno=True)
    if number < 0 or libc.syscall(number, *arguments) != -1:
        return number >= 0
    return ctypes.get_errno() not in CALL_REFUSALS


def main() -> None:
    """Serve until the host leaves."""
    os.umask(0o022)
    os.closerange(3, 256)
    Executor().loop()
