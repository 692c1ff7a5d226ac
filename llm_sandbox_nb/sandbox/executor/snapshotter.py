"""The history child: a process that remembers the state of all files, reports differences, and restores files."""

from __future__ import annotations

import errno
import gc
import os
import stat
import time

from .entries import OPEN_FOLDER, remove
from .filesystem_scan import FilesystemScan, KnownDigests, ScanLimits
from .folder_watches import (
    MIN_WATCHED_ENTRIES,
    FolderWatches,
    WalkNeeded,
    mapped_files,
    reports_changes,
)
from .frames import bytes_to_text, enlarge_pipes, text_to_bytes, write_all
from .light import dump, parse_json
from .mounts import Epoch, Mount, engine_folders, is_below, writable_mounts
from .records import GONE, RecordReader, RecordWriter, RestorePack
from .request import describe_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from .entries import Memory, Record
    from .records import Shortfall

    Look = tuple[int, int, int, int, int]

MAX_REPORTED_ROOTS = 32
CLOCK_TICK_SECONDS = 0.012  # longest step of the clock of ctimes
COARSE_CLOCK = 5  # CLOCK_REALTIME_COARSE, the source of ctimes
MAX_ENGINE_ENTRIES = 10_000
"""Maximum number of entries that are examined in the engine's folders."""
# An outcome must fit into a frame of 64 KiB, so this leaves room for its other fields.
MAX_FAILURES_BYTES = 48 * 1024
NOT_KEPT = "Not kept, and removed by a restore"
CHANGED = "only a new sandbox has the original"


class EngineFolders:
    """Folders that the engine fills, such as /dev and /sys/fs/cgroup. Checkpoints do not contain these folders.

    Commands may write into these folders. A restore removes entries that commands have added, and reports entries that
    commands have changed.

    Args:
        folders: function that returns the folders, and the paths of all mounts.
        start: start time of the sandbox in nanoseconds, on the clock of ctimes.
    """

    def __init__(self, folders: Callable[[], tuple[list[bytes], set[bytes]]], start: int) -> None:
        self.folders = folders
        self.known = {
            path: look_of(info)
            for path, info in self.entries()
            if info.st_ctime_ns < start or stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode)
        }

    def entries(self) -> Iterator[tuple[bytes, os.stat_result]]:
        """Yield path and status of each entry below the folders.

        The caller may remove a yielded folder, whose content is then not yielded.
        """
        folders, points = self.folders()
        todo, left = list(folders), MAX_ENGINE_ENTRIES
        while todo:
            try:
                with os.scandir(todo.pop()) as found:
                    here = [(entry.path, entry.stat(follow_symlinks=False)) for entry in found]
            except OSError:
                continue
            for path, info in here:
                if path not in points and left:
                    left -= 1
                    yield path, info
                    if stat.S_ISDIR(info.st_mode):
                        todo.append(path)

    def report(self, shortfall: Shortfall) -> None:
        """Add the entries that commands have made in these folders to `shortfall`."""
        for path, _ in self.entries():
            if path not in self.known:
                shortfall.add(NOT_KEPT, path)

    def restore(self) -> list[list[str]]:
        """Remove entries that commands have made in these folders.

        Return each path that still differs from the start, with the reason.
        """
        problems: list[list[str]] = []
        missing = set(self.known)
        for path, info in self.entries():
            if path not in self.known:
                problems += remove_path(path)
                continue
            missing.discard(path)
            if look_of(info) != self.known[path]:
                problems.append([bytes_to_text(path), CHANGED])
        return problems + [[bytes_to_text(path), CHANGED] for path in sorted(missing)]


def look_of(info: os.stat_result) -> Look:
    """Return values of an entry, of which at least one differs after its replacement, or a change of mode or owner."""
    return info.st_mode, info.st_uid, info.st_gid, info.st_rdev, info.st_ino


def remove_path(path: bytes) -> list[list[str]]:
    """Remove an entry and all its content. Return an empty list, or after a failure a list `[[path, reason]]`."""
    try:
        folder = os.open(os.path.dirname(path), OPEN_FOLDER)
        try:
            remove(folder, os.path.basename(path))
        finally:
            os.close(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        return [[bytes_to_text(path), os.strerror(error.errno or 0).lower()]]
    return []


class Snapshotter:
    """Server of checkpoints and restores, one after the other.

    Args:
        scope: the only folder that is scanned. If it is empty, everything that is writable is scanned.
        spill: the executor's folder for large outputs, which is left out.
        epoch: start time of the sandbox.
    """

    def __init__(self, scope: bytes, spill: bytes, epoch: Epoch) -> None:
        self.scope = scope
        self.spill = spill
        self.epoch = epoch
        self.memories: dict[str, Memory] = {}
        self.known = KnownDigests({})
        """Digests of the content in the latest memory."""
        self.watches: FolderWatches | None = None
        """Watches since the latest scan. None if the next scan must walk over all files."""
        self.watched_mounts: tuple[list[Mount], set[bytes]] = [], set()
        self.engine_folders = EngineFolders((lambda: ([], set())) if scope else engine_folders, epoch.start)
        self.reader = RecordReader(0)

    def serve(self) -> None:
        """Serve until the executor ends."""
        while True:
            try:
                params = parse_json(self.reader.line())
            except EOFError:
                return
            try:
                outcome = self.restore(params) if params["op"] == "restore" else self.checkpoint(params)
            except OSError as error:
                outcome = {"error": describe_error(error)}
                self.memories = {}
                self.stop_watching()
            write_all(3, dump(outcome) + b"\n")

    def mounts(self) -> tuple[list[Mount], set[bytes]]:
        """Return the mounts to scan, and the paths to leave out."""
        if self.scope:
            return [Mount(self.scope, 0)], set()
        return writable_mounts()

    def checkpoint(self, params: dict[str, Any]) -> dict[str, Any]:
        """Report the differences from the checkpoint `since`, or all files if the checkpoint is not in `memories`."""
        set_policy("SCHED_BATCH")
        since = params.get("since")
        old = self.memories.get(since) if since is not None else None
        if params.get("walk") or old is None or old is not self.known.memory:
            self.stop_watching()
        writer = RecordWriter(1)
        mounts, points = self.mounts()
        scan = self.scan(
            writer, old or {}, ScanLimits(params.get("limits") or {}), mounts, points | {self.spill}
        )
        if scan.shortfall.counts:
            self.stop_watching()
        self.engine_folders.report(scan.shortfall)
        writer.end()
        self.memories = {since: old} if since is not None and old is not None else {}
        self.memories[params["id"]] = self.known.memory
        return {
            "incremental": old is not None,
            "roots": [bytes_to_text(mount.path) for mount in mounts[:MAX_REPORTED_ROOTS]],
            "incomplete": scan.shortfall.text(),
        }

    def scan(
        self, writer: RecordWriter, old: Memory, limits: ScanLimits, mounts: list[Mount], skipped: set[bytes]
    ) -> FilesystemScan:
        """Report the differences from `old`. Examine the paths that the watches report, or walk over all files."""
        if old is not self.known.memory:
            self.known = KnownDigests(old)
        scan = FilesystemScan(writer, old, limits, known=self.known)
        scan.mapped, complete = mapped_files(old)
        if complete and self.watches and self.watched_mounts == (mounts, skipped):
            scan.always = self.watches.always
            try:
                scan.rescan(self.watches.changed(old, scan.mapped), mounts, skipped, self.epoch)
            except WalkNeeded:
                pass
            else:
                new = changed_memory(old, scan.changed) if scan.changed else old
                self.known.replace(new, scan.changed)
                return scan
        self.stop_watching()
        scan = FilesystemScan(writer, old, limits, known=self.known)
        scan.mapped, complete = mapped_files(old)
        if not complete:
            scan.shortfall.add("A process has so many mappings that a change may be missed", b"/proc")
        if len(old) >= MIN_WATCHED_ENTRIES and reports_changes([mount.path for mount in mounts], skipped):
            try:
                self.watches = scan.watches = FolderWatches()
                self.watched_mounts = mounts, skipped
                if os.path.isdir(self.spill) and any(is_below(self.spill, mount.path) for mount in mounts):
                    self.watches.add_unlisted(self.spill)
            except OSError:  # this user cannot have more inotify descriptors
                pass
        scan.scan(mounts, skipped, self.epoch)
        if self.watches:
            self.watches.always = scan.always
        self.known.replace(scan.new, scan.changed)
        return scan

    def stop_watching(self) -> None:
        """Close the folder watches, so that the next scan walks over all files."""
        if self.watches:
            self.watches.close()
        self.watches = None

    def restore(self, params: dict[str, Any]) -> dict[str, Any]:
        """Restore files as the plan says, which is the body of the request.

        Remember the new state of the files if the checkpoint `since` is in `memories`.
        """
        from .restore import MAX_NAMED_FAILURES, Restore

        set_policy("SCHED_OTHER")
        self.stop_watching()
        known = self.memories.get(params.get("since") or "")
        pack = RestorePack(params.get("pack"), params.get("top_time"), bool(params.get("handed")))
        restore = Restore(dict(known or {}), self.scope or b"/", self.epoch.start, pack)
        restore.run(self.reader)
        problems = self.engine_folders.restore()
        self.memories = {} if known is None else {params["id"]: restore.memory}
        write_all(1, restore.shell)
        wait_for_tick()
        failed, room = [], MAX_FAILURES_BYTES
        for row in [*restore.failed, *problems][:MAX_NAMED_FAILURES]:
            room -= len(dump(row))
            if room >= 0:
                failed.append(row)
        return {"failed": failed, "pack": "missing" if pack.missed else ""}


def changed_memory(memory: Memory, changed: dict[bytes, Record | None]) -> Memory:
    """Return a copy of a memory with these changes."""
    new = dict(memory)
    for path, record in changed.items():
        if record is None:
            del new[path]
        else:
            new[path] = record
    return new


def wait_for_tick() -> None:
    """Wait until the clock of ctimes has advanced, so that later changes get a later ctime than all earlier changes."""
    end = time.monotonic() + CLOCK_TICK_SECONDS
    try:
        now = time.clock_gettime_ns(COARSE_CLOCK)
        while time.clock_gettime_ns(COARSE_CLOCK) == now and time.monotonic() < end:
            time.sleep(0.0005)
    except OSError:
        time.sleep(CLOCK_TICK_SECONDS)


def set_policy(name: str) -> None:
    """Set the scheduling policy of this process, so that checkpoints yield to commands, but restores do not.

    A higher niceness for checkpoints would do the same, but an ordinary user cannot lower it again for a restore.
    """
    try:
        os.sched_setscheduler(0, getattr(os, name), os.sched_param(0))
    except OSError:
        pass


def serve_history(scope: bytes, spill: bytes, epoch: Epoch) -> None:
    """Serve in the child. Requests come from fd 0, records go to fd 1, and outcomes go to fd 3."""
    gc.disable()
    os.umask(0)
    enlarge_pipes(0, 1)
    Snapshotter(scope, spill, epoch).serve()


def describe(params: dict[str, Any]) -> dict[str, Any]:
    """Write the current state of the paths in the request to fd 1, as records."""
    writer = RecordWriter(1)
    scan = FilesystemScan(writer, {}, ScanLimits({}), content=bool(params.get("content")))
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
    return {}
