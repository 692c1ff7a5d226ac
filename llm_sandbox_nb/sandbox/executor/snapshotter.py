"""The history child: remembers what all files were like, reports what differs, and restores them."""

from __future__ import annotations

import errno
import gc
import json
import os
import time

from .engine_folders import EngineFolders
from .filesystem_scan import FilesystemScan, ScanLimits
from .frames import bytes_to_text, dump, text_to_bytes, write_all
from .mounts import Epoch, Mount, engine_folders, writable_mounts
from .records import GONE, RecordReader, RecordWriter, RestorePack
from .request import describe_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .entries import Memory

ROOTS_TOLD = 32
PIPE_SIZE = 1024 * 1024
F_SETPIPE_SZ = 1031
TICK = 0.012  # seconds after which the clock of the files has certainly moved on
COARSE_CLOCK = 5  # CLOCK_REALTIME_COARSE: what a file's ctime is, or not later than that


class Snapshotter:
    """Serves one request after the other.

    Args:
        scope: the only folder to scan; empty for everything that is writable.
        spill: the executor's folder, left out.
        epoch: when the sandbox began.
    """

    def __init__(self, scope: bytes, spill: bytes, epoch: Epoch) -> None:
        self.scope = scope
        self.spill = spill
        self.epoch = epoch
        self.memories: dict[str, Memory] = {}
        self.engine_folders = EngineFolders((lambda: ([], set())) if scope else engine_folders, epoch.start)
        self.reader = RecordReader(0)

    def serve(self) -> None:
        """Serve until the executor ends."""
        while True:
            try:
                params = json.loads(self.reader.line())
            except EOFError:
                return
            started = time.monotonic()
            try:
                outcome = self.restore(params) if params["op"] == "restore" else self.checkpoint(params)
            except OSError as error:
                outcome = {"error": describe_error(error)}
                self.memories = {}
            outcome["duration"] = time.monotonic() - started
            write_all(3, dump(outcome) + b"\n")

    def mounts(self) -> tuple[list[Mount], set[bytes]]:
        """Which mounts to scan, and which paths to leave out."""
        if self.scope:
            return [Mount(self.scope, 0)], set()
        return writable_mounts()

    def checkpoint(self, params: dict[str, Any]) -> dict[str, Any]:
        """Report what differs from a checkpoint that is remembered, or everything."""
        set_policy("SCHED_BATCH")
        since = params.get("since")
        old = self.memories.get(since) if since is not None else None
        writer = RecordWriter(1)
        scan = FilesystemScan(writer, old or {}, ScanLimits(params.get("limits") or {}))
        mounts, points = self.mounts()
        scan.scan(mounts, points, {self.spill}, self.epoch)
        self.engine_folders.report(scan.shortfall)
        writer.end()
        self.memories = {since: old} if since is not None and old is not None else {}
        self.memories[params["id"]] = scan.new
        return {
            "id": params["id"],
            "incremental": old is not None,
            "entries": len(scan.new),
            "records": writer.records,
            "bytes": writer.bytes,
            "roots": [bytes_to_text(mount.path) for mount in mounts[:ROOTS_TOLD]],
            "incomplete": scan.shortfall.text(),
        }

    def restore(self, params: dict[str, Any]) -> dict[str, Any]:
        """Make the files what the plan says, and remember them if it started from what we know."""
        from .restore import FAILURES_NAMED, Restore

        set_policy("SCHED_OTHER")
        known = self.memories.get(params.get("since") or "")
        pack = RestorePack(params.get("pack"), params.get("top_time"))
        restore = Restore(dict(known or {}), self.scope or b"/", self.epoch.start, pack)
        restore.run(self.reader)
        pack.close()
        problems = self.engine_folders.restore()
        self.memories = {} if known is None else {params["id"]: restore.memory}
        write_all(1, restore.shell)
        wait_for_tick()
        return {
            "id": params["id"],
            "failed": [*restore.failed, *problems][:FAILURES_NAMED],
            "failures": restore.failures + len(problems),
            "written": restore.written,
            "shell_size": len(restore.shell),
            "pack": "missing" if pack.missed else "",
        }


def wait_for_tick() -> None:
    """Wait until a change gets a later ctime than all changes before."""
    end = time.monotonic() + TICK
    try:
        now = time.clock_gettime_ns(COARSE_CLOCK)
        while time.clock_gettime_ns(COARSE_CLOCK) == now and time.monotonic() < end:
            time.sleep(0.0005)
    except OSError:
        time.sleep(TICK)


def set_policy(name: str) -> None:
    """Scans leave the processor to commands; restores do not, as all wait for them. (`nice` could not be undone.)"""
    try:
        os.sched_setscheduler(0, getattr(os, name), os.sched_param(0))
    except OSError:
        pass


def serve_history(scope: bytes, spill: bytes, epoch: Epoch) -> None:
    """The child: requests on fd 0, records on fd 1, outcomes on fd 3."""
    import fcntl

    gc.disable()
    os.umask(0)
    try:
        for fd in (0, 1):
            fcntl.fcntl(fd, F_SETPIPE_SZ, PIPE_SIZE)
    except OSError:  # no more room for pipes, or no right
        pass
    Snapshotter(scope, spill, epoch).serve()


def describe(params: dict[str, Any]) -> dict[str, Any]:
    """Write what some paths are like now to fd 1."""
    writer = RecordWriter(1)
    scan = FilesystemScan(
        writer, {}, ScanLimits(params.get("limits") or {}), content=bool(params.get("content"))
    )
    points = writable_mounts()[1] if params.get("below") else set()
    for name in params["paths"]:
        path = text_to_bytes(name)
        try:
            info = os.lstat(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
            writer.row(GONE, name)
            continue
        if params.get("below"):
            scan.walk(path, info, points - {path}, (0, 0))
        else:
            scan.entry(path, info, (0, 0))
    scan.finish()
    writer.end()
    return {"records": writer.records, "bytes": writer.bytes, "incomplete": scan.shortfall.text()}
