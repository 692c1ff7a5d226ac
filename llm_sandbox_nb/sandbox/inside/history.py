"""The history of the filesystem as it travels: three requests, one form of records.

A stream of records is what a checkpoint writes (frames of STDOUT), what a description writes (the same), and
what the body of a restore holds. A record is a header `>BI` (kind, length of the payload) and its payload, at
most 2 MiB. Paths are absolute and normal (`/`, `/a/b`), in JSON as everywhere in this protocol (bytes that are
no UTF-8 as surrogates).

Kinds in what the sandbox writes:

- `C` a piece of content, raw, 1 byte to 1 MiB; it is named by its SHA-256 in hex. It comes before the entry
  that names it, and once in a stream.
- `E` a JSON array of entries. A directory comes before what is in it; of a path only the last entry counts.
- `G` a JSON array of paths that are gone, with everything below them. It comes before any entry of that path.
- `S` the state of the shell, opaque, at most 1 MiB; at most one in a stream.

An entry is a JSON array of eleven:

    [path, type, base, mode, uid, gid, mtime_ns, size, detail, link, xattrs]

- type: `d` directory, `f` file, `l` symbolic link, `p` fifo, `c` and `b` devices. Sockets are left out.
- base: 1 when nothing has touched it since the sandbox was started, so it is as in the image: a directory with
  everything below it (nothing below it is told), a file or a link with its content (detail, link and xattrs are
  null). What an image directory holds is told when anything in it was touched: then all entries in it are told,
  so what is not told is not there. Metadata is always true.
- mode: the permission bits, at most 0o7777. size: bytes of a file, else 0.
- detail: of a file an array of `[offset, length, digest]` in order, with zeros where nothing is named (a hole or
  the rest up to size), or null when the content was not kept (see `incomplete`); of a link its target; of a
  device `[major, minor]`; else null.
- link: null, or when the file has several names here, the first of these names in the order of their bytes; it is
  the same for all of them, and each of them has the whole entry.
- xattrs: null, or an object of names and base64 values.

`{"op": "checkpoint", "id": NEW, "since": OLD or null, "timeout": seconds, "limits": {...}}` tells what differs from
OLD when that is what is remembered, else everything. Digests of what OLD holds, and of what came earlier in the
stream, are named without the content being sent again; with `since` null everything is sent. Limits (all may be
missing): `entries` remembered, `file` bytes of one file, `bytes` of content in this stream, `seconds`. Outcome:

    {"id": NEW, "incremental": true when it differs from OLD, "entries": how many are remembered,
     "records": how many were written, "bytes": of content sent, "roots": [where was looked],
     "shell": {"state": "new" (an S record came) | "same" as in OLD | "none", "cwd": text, "why": text},
     "incomplete": in words what was left out, or "", "duration": seconds}

A checkpoint is remembered until the next has been told in full, and one before it: `since` may be either, so a
host that lost an answer loses nothing. `{"op": "checkpoint"}` never holds up commands; files that change while
they are read are read again, then said.

`{"op": "describe", "paths": [...], "content": bool, "below": bool, "timeout": seconds}` tells these paths as they
are now: entries (never base; `below`: of everything below them too), with `C` records if `content` is true (detail
of a file is null otherwise), and G for those that are not there. Outcome: `{"records": n, "incomplete": text}`.

`{"op": "restore", "id": ID, "since": S, "timeout": seconds}` with a body makes the files of checkpoint ID out of
those of S, the look just taken. All processes are killed first, and the shell is a new one. Kinds in its body, applied
in this order within a stream in which the host may mix them as it needs:

- `D` a JSON array of paths to delete, with everything below; a path that is not there is no error.
- `E` a JSON array of entries to make, or to replace when something is there (a directory that is there stays, with
  what is in it). Files only when they need no content: empty or all hole (detail `[]`), or `link` names another path,
  made before, of which it is to be another name.
- `F` one entry, of a file with content: the W records that follow hold it. What is there is replaced.
- `P` one entry of a file that is there: W and H records that follow change it in place, then it gets this size.
- `W` `>Q` offset, then raw bytes, at most 1 MiB, for the file of the F or P before.
- `K` `>QQQ` offset, place and length: the same, with the bytes that are at this place of the pack.
- `H` `>QQ` offset and length of a hole in it.
- `M` a JSON array of entries that are there and only get other metadata (mode, owner, mtime, xattrs).
- `S` the state of the shell, as a checkpoint gave it.

Entries are whole, as above: `detail` is remembered as what ID holds, so that the next checkpoint can be incremental
(entries of base 1 are written like the others, but their digests are not taken as known to the host). Folders get
their mtime last, also those of which only the content was changed. Outcome:

    {"id": ID, "failed": [[path, reason], ...] at most 100, "failures": how many, "written": bytes,
     "shell": what could not be brought back, or "", "incomplete": text, "duration": seconds}

After a failure the next checkpoint since ID tells the paths that failed as they really are.

With `"pack": NAME` in the request the host can put a file of this name into the top folder from outside. Its body waits
until a frame of STDOUT has said `ready`: all processes have been killed. The pack is unlinked as soon as the body
comes; when there is none although records ask for it, the outcome has `"pack": "missing"`.
"""

from __future__ import annotations

import json
import os
import signal

from .mounts import Epoch
from .poller import IN, OUT
from .processes import (
    PR_SET_PDEATHSIG,
    descendants,
    kill_all,
    pipe_bytes,
    prctl,
    process_table,
    send_signal,
    take_descriptors,
)
from .request import describe_error
from .shell_state import ShellStates
from .wire import PIPE_READ, quietly_close

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .history_requests import HistoryRequest
    from .loop import Executor


class History:
    """The child that remembers all files, seen from the loop. It is started by the first who asks."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.epoch = Epoch()
        self.scope = b""
        self.states = ShellStates(executor)
        self.pid = 0
        self.ask_w = self.records_r = self.told_r = -1
        self.queue: list[HistoryRequest] = []
        self.current: HistoryRequest | None = None
        self.restoring = False
        self.pending: list[memoryview] = []
        self.told = b""
        self.outcome: dict[str, Any] | None = None
        self.left = 0

    # ------------------------------------------------------------------------------------------ the child

    def start(self) -> None:
        """Fork it.

        Raises:
            OSError: there is no room for a process.
        """
        pipes: list[tuple[int, int]] = []
        try:
            for _ in range(3):
                pipes.append(os.pipe())
            theirs = {0: pipes[0][0], 1: pipes[1][1], 3: pipes[2][1]}
            self.pid = self.executor.fork(lambda: self.child(theirs))
        except OSError:
            quietly_close(*(fd for pipe in pipes for fd in pipe))
            raise
        quietly_close(*theirs.values())
        self.ask_w, self.records_r, self.told_r = pipes[0][1], pipes[1][0], pipes[2][0]
        self.executor.children[self.pid] = lambda _: self.died()
        for fd in (self.ask_w, self.records_r, self.told_r):
            os.set_blocking(fd, False)
        self.executor.watch_output(self.records_r, self.read_records)
        self.executor.watch(self.told_r, IN, lambda _: self.read_told())

    def child(self, fds: dict[int, int]) -> None:
        """In the child: serve until the executor goes."""
        take_descriptors(fds)
        os.closerange(4, 4096)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        from .remembering import remember

        remember(self.scope, self.executor.spill, self.epoch)
        os._exit(0)

    def died(self) -> None:
        """Somebody killed it, or it took too long: what it remembered is lost."""
        for fd in (self.ask_w, self.records_r, self.told_r):
            self.executor.unwatch(fd)
        quietly_close(self.ask_w, self.records_r, self.told_r)
        self.ask_w = self.records_r = self.told_r = -1
        self.pid, self.pending = 0, []
        if self.current:
            self.current.child_died()

    # ---------------------------------------------------------------------------------------- its requests

    def ask(self, request: HistoryRequest) -> None:
        """Serve it when its turn comes."""
        self.queue.append(request)
        self.next()

    def next(self) -> None:
        """Begin the next request."""
        while not self.current and self.queue:
            request = self.queue.pop(0)
            try:
                if not self.pid:
                    self.start()
            except OSError as error:
                request.respond({"error": describe_error(error)})
                continue
            send_signal(self.pid, signal.SIGCONT)
            self.current, self.outcome, self.told = request, None, b""
            request.go()

    def over(self, request: HistoryRequest) -> None:
        """A request has been answered."""
        if self.current is request:
            self.current = None
            self.next()

    def put(self, data: bytes) -> None:
        """Something for the child to read."""
        self.pending.append(memoryview(data))
        self.pump()

    def pump(self) -> None:
        """Pass on as much as the child takes."""
        while self.pending:
            try:
                written = os.write(self.ask_w, self.pending[0])
            except BlockingIOError:
                self.executor.watch(self.ask_w, OUT, lambda _: self.pump())
                return
            except OSError:
                self.pending = []
                break
            if self.current:
                self.current.acknowledge_body(written)
            self.pending[0] = self.pending[0][written:]
            if not self.pending[0]:
                self.pending.pop(0)
        if self.ask_w >= 0:
            self.executor.unwatch(self.ask_w)

    def read_records(self) -> None:
        """The child has written records."""
        try:
            data = os.read(self.records_r, PIPE_READ)
        except BlockingIOError:
            return
        if self.current and data:
            self.current.records(data)
        self.left -= len(data)
        self.finish_if_drained()

    def read_told(self) -> None:
        """The child has finished."""
        try:
            data = os.read(self.told_r, PIPE_READ)
        except BlockingIOError:
            return
        self.told += data
        if self.current and self.told.endswith(b"\n"):
            self.outcome = json.loads(self.told)
            self.left = pipe_bytes(self.records_r)
            self.finish_if_drained()

    def finish_if_drained(self) -> None:
        """Go on when all records have been sent."""
        if self.current and self.outcome is not None and self.left <= 0:
            outcome, self.outcome = self.outcome, None
            self.current.files_done(outcome)

    # ----------------------------------------------------------------------------------------- everything

    def stop_everything(self) -> bool:
        """End all other requests and all processes that are not ours; False when some could not be killed."""
        self.restoring = True
        for request in list(self.executor.requests.values()):
            if request not in self.queue and request is not self.current:
                request.cancel()
        ours = {self.pid, self.executor.watcher.pid}
        return kill_all(lambda: descendants(process_table(), os.getpid(), ours))

    def let_go(self) -> None:
        """The files are in place: commands and file operations may go on, after a new first look."""
        self.restoring = False
        self.executor.watcher.look_afresh()
