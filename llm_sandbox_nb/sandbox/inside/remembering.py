"""The historian process: remembers how all files looked, tells what differs, and makes them so again."""

from __future__ import annotations

import errno
import gc
import json
import os
import time

from .looking import Limits, Look
from .mounts import Epoch, Mount, writable_mounts
from .records import GONE, RecordReader, RecordWriter
from .request import describe_error
from .wire import bytes_to_text, dump, text_to_bytes, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .entries import Memory

ROOTS_TOLD = 32
PIPE_SIZE = 1024 * 1024
F_SETPIPE_SZ = 1031
TICK = 0.012  # seconds after which the clock of the files has certainly moved on
COARSE_CLOCK = 5  # CLOCK_REALTIME_COARSE: what a file's ctime is, or not later than that


class Historian:
    """Serves one request after the other.

    Args:
        scope: the only folder to look at, or nothing for all that can be written.
        spill: our own folder, left out.
        epoch: when the sandbox began.
    """

    def __init__(self, scope: bytes, spill: bytes, epoch: Epoch) -> None:
        self.scope = scope
        self.spill = spill
        self.epoch = epoch
        self.memories: dict[str, Memory] = {}
        self.reader = RecordReader(0)

    def serve(self) -> None:
        """Until the executor goes."""
        while True:
            try:
                ask = json.loads(self.reader.line())
            except EOFError:
                return
            begun = time.monotonic()
            try:
                outcome = self.restore(ask) if ask["op"] == "restore" else self.checkpoint(ask)
            except OSError as error:
                outcome = {"error": describe_error(error)}
                self.memories = {}
            outcome["duration"] = time.monotonic() - begun
            write_all(3, dump(outcome) + b"\n")

    def mounts(self) -> tuple[list[Mount], set[bytes]]:
        """Where to look, and where not."""
        if self.scope:
            return [Mount(self.scope, 0)], set()
        return writable_mounts()

    def checkpoint(self, ask: dict[str, Any]) -> dict[str, Any]:
        """Tell what differs from a checkpoint that is remembered, or everything."""
        set_policy("SCHED_BATCH")
        since = ask.get("since")
        old = self.memories.get(since) if since is not None else None
        writer = RecordWriter(1)
        look = Look(writer, old or {}, Limits(ask.get("limits") or {}))
        mounts, points = self.mounts()
        look.at(mounts, points, {self.spill}, self.epoch)
        writer.end()
        self.memories = {since: old} if since is not None and old is not None else {}
        self.memories[ask["id"]] = look.new
        return {
            "id": ask["id"],
            "incremental": old is not None,
            "entries": len(look.new),
            "records": writer.records,
            "told": writer.told,
            "bytes": writer.bytes,
            "roots": [bytes_to_text(mount.path) for mount in mounts[:ROOTS_TOLD]],
            "incomplete": look.shortfall.text(),
        }

    def restore(self, ask: dict[str, Any]) -> dict[str, Any]:
        """Make the files what the plan says; they are remembered if it started from what we know."""
        from .pack import Pack
        from .restoring import Restoring

        set_policy("SCHED_OTHER")
        known = self.memories.get(ask.get("since") or "")
        pack = Pack(ask.get("pack"), ask.get("top_time"))
        work = Restoring(dict(known or {}), self.scope or b"/", self.epoch.start, pack)
        work.run(self.reader)
        pack.close()
        self.memories = {} if known is None else {ask["id"]: work.memory}
        write_all(1, work.shell)
        wait_for_tick()
        return {
            "id": ask["id"],
            "failed": work.failed,
            "failures": work.failures,
            "written": work.written,
            "shell_size": len(work.shell),
            "pack": "missing" if pack.missed else "",
        }


def wait_for_tick() -> None:
    """Until whatever is changed now gets a later ctime than what was changed before."""
    end = time.monotonic() + TICK
    try:
        now = time.clock_gettime_ns(COARSE_CLOCK)
        while time.clock_gettime_ns(COARSE_CLOCK) == now and time.monotonic() < end:
            time.sleep(0.0005)
    except OSError:
        time.sleep(TICK)


def set_policy(name: str) -> None:
    """Looking leaves the processor to commands; for restoring everybody waits. (`nice` could not be undone.)"""
    try:
        os.sched_setscheduler(0, getattr(os, name), os.sched_param(0))
    except OSError:
        pass


def remember(scope: bytes, spill: bytes, epoch: Epoch) -> None:
    """The historian process: requests on fd 0, records on fd 1, outcomes on fd 3."""
    import fcntl

    gc.disable()
    os.umask(0)
    try:
        for fd in (0, 1):
            fcntl.fcntl(fd, F_SETPIPE_SZ, PIPE_SIZE)
    except OSError:  # no more room for pipes, or no right
        pass
    Historian(scope, spill, epoch).serve()


def describe(params: dict[str, Any]) -> dict[str, Any]:
    """What some paths are like now, to fd 1."""
    writer = RecordWriter(1)
    look = Look(writer, {}, Limits(params.get("limits") or {}), content=bool(params.get("content")))
    points = writable_mounts()[1] if params.get("below") else set()
    for name in params["paths"]:
        path = text_to_bytes(name)
        try:
            there = os.lstat(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
            writer.row(GONE, name)
            continue
        if params.get("below"):
            look.walk(path, there, points - {path}, (0, 0))
        else:
            look.entry(path, there, (0, 0))
    look.finish()
    writer.end()
    return {"records": writer.records, "bytes": writer.bytes, "incomplete": look.shortfall.text()}
