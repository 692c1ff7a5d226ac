"""A look at all files that can have changed, and what differs from the look before."""

from __future__ import annotations

import os
import stat
import time
from collections import deque

from .contents import ContentReader, UnkeptError
from .entries import CTIME, KINDS, UNSURE, mapped_files, row_of, same_row, signature, xattrs_of
from .mounts import MARGIN
from .records import ENTRIES, GONE, RecordWriter, Shortfall
from .wire import bytes_to_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .entries import Memory, Record, Signature
    from .mounts import Epoch, Mount

ENTRIES_KEPT = 150_000
FILE_SIZE = 2 * 1024**3
CONTENT_SIZE = 4 * 1024**3
LOOK_SECONDS = 120.0
PATH_SIZE = 4095


class StopLookError(Exception):
    """The look has reached a limit. Says which."""


class Limits:
    """What a look may take."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.entries = int(given.get("entries") or ENTRIES_KEPT)
        self.file = int(given.get("file") or FILE_SIZE)
        self.bytes = int(given.get("bytes") or CONTENT_SIZE)
        self.deadline = time.monotonic() + float(given.get("seconds") or LOOK_SECONDS)


class Look:
    """One look.

    Args:
        writer: takes what differs.
        old: the look before, as `new` was then.
        content: whether to read files at all.
    """

    def __init__(self, writer: RecordWriter, old: Memory, limits: Limits, *, content: bool = True) -> None:
        self.writer = writer
        self.old = old
        self.new: Memory = {}
        self.limits = limits
        self.content = content
        self.digests: set[str] | None = None
        self.reader = ContentReader(
            writer.chunk if content else None, self.is_known, limits.file, limits.bytes
        )
        self.shortfall = Shortfall()
        self.mapped: set[bytes] = set()
        self.linked: dict[tuple[int, int], list[tuple[bytes, os.stat_result]]] = {}
        self.opened: list[tuple[bytes, int]] = []
        self.unlisted: set[bytes] = set()
        self.since = 0
        self.by_inode: dict[tuple[int, ...], Record] | None = None
        self.stopped = ""
        self.stopped_at: set[bytes] = set()

    def is_known(self, digest: str) -> bool:
        """Whether the host has it: the look before held it, and not as a part of the image."""
        if self.digests is None:
            self.digests = {
                part[2]
                for sign, base, detail, _, _ in self.old.values()
                if detail and not base and stat.S_ISREG(sign[0])
                for part in detail
            }
        return digest in self.digests

    # -------------------------------------------------------------------------------------------- walking

    def at(self, mounts: Iterable[Mount], points: set[bytes], left_out: set[bytes], epoch: Epoch) -> None:
        """Look at all mounts."""
        epoch.check_clock()
        self.mapped, self.since = mapped_files(), epoch.start - epoch.back
        for mount in mounts:
            try:
                look = os.lstat(mount.path)
            except OSError:
                continue
            self.walk(mount.path, look, (points | left_out) - {mount.path}, epoch.since(mount))
        self.finish()

    def walk(self, path: bytes, look: os.stat_result, skip: set[bytes], since: tuple[int, int]) -> None:
        """An entry, and everything below it; what is near comes before what is deep, should there be too much."""
        todo = deque([(path, look)])
        while todo:
            path, look = todo.popleft()
            try:
                if self.stopped:
                    raise StopLookError(self.stopped)
                if self.entry(path, look, since):
                    todo += [child for child in self.children(path, look, len(todo)) if child[0] not in skip]
            except StopLookError as stop:
                self.stopped = str(stop)
                self.stopped_at.add(os.path.dirname(path))
                self.unlisted.add(path)

    def children(self, path: bytes, look: os.stat_result, waiting: int) -> list[tuple[bytes, os.stat_result]]:
        """What is in a folder, in the order in which it is found; nothing when it is too much."""
        room = self.limits.entries - len(self.new) - waiting
        self.open_up(path, look)
        children: list[tuple[bytes, os.stat_result]] = []
        try:
            with os.scandir(path) as found:
                for entry in found:
                    if len(children) >= room:
                        self.unlisted.add(path)
                        self.shortfall.add(self.too_many(), path)
                        return []
                    if len(entry.path) > PATH_SIZE:
                        self.shortfall.add("Too deep to be looked at", entry.path)
                        continue
                    try:
                        children.append((entry.path, entry.stat(follow_symlinks=False)))
                    except FileNotFoundError:
                        continue
        except FileNotFoundError:
            pass
        except OSError as error:
            self.unlisted.add(path)
            if look.st_ctime_ns >= self.since:
                self.shortfall.add(
                    "Could not be looked into (%s)" % os.strerror(error.errno or 0).lower(), path
                )
        return children

    def too_many(self) -> str:
        """What to say of what there is no room for."""
        return "Left out, as there are more than %d files" % self.limits.entries

    def open_up(self, path: bytes, look: os.stat_result) -> None:
        """A folder that its owner has closed to itself is open while we look."""
        mode = stat.S_IMODE(look.st_mode)
        if mode & 0o500 != 0o500 and 0 < os.geteuid() == look.st_uid:
            try:
                os.chmod(path, mode | 0o500)
                self.opened.append((path, mode))
            except OSError:
                pass

    def close_up(self) -> None:
        """The reverse of `open_up`."""
        while self.opened:
            path, mode = self.opened.pop()
            try:
                os.chmod(path, mode)
                if path in self.new:
                    self.new[path] = (signature(os.lstat(path)), *self.new[path][1:])
            except OSError:
                continue

    # ------------------------------------------------------------------------------------------- an entry

    def entry(self, path: bytes, look: os.stat_result, since: tuple[int, int]) -> bool:
        """Note an entry; whether to go into it. `since`: see `Epoch.since`."""
        if time.monotonic() > self.limits.deadline:
            raise StopLookError("Left out, as looking took too long")
        if len(self.new) >= self.limits.entries:
            raise StopLookError(self.too_many())
        kind = stat.S_IFMT(look.st_mode)
        if kind not in KINDS:
            return False
        if look.st_ctime_ns < since[kind != stat.S_IFDIR]:
            self.note(path, (signature(look), 1, None, None, None))
            return False
        if kind == stat.S_IFREG and look.st_nlink > 1:
            self.linked.setdefault((look.st_dev, look.st_ino), []).append((path, look))
            return False
        record = self.remembered(path, look)
        if record is None:
            try:
                record = self.examine(path, look)
            except FileNotFoundError:
                return False
        self.note(path, record)
        return kind == stat.S_IFDIR

    def remembered(self, path: bytes, look: os.stat_result) -> Record | None:
        """The record of before, if it still holds."""
        sign = signature(look)
        record = self.old.get(path)
        if record is None and look.st_size and stat.S_ISREG(look.st_mode):
            record = self.moved(sign)
        if record is None or record[0] != sign or path in self.mapped:
            return None
        return record

    def moved(self, sign: Signature) -> Record | None:
        """The record of a file whose folder was renamed."""
        if self.by_inode is None:
            self.by_inode = {
                record[0][CTIME:]: record for record in self.old.values() if record[2] and not record[1]
            }
        return self.by_inode.get(sign[CTIME:])

    def examine(self, path: bytes, look: os.stat_result) -> Record:
        """Look at an entry closely."""
        detail: Any = None
        unsure = False
        if stat.S_ISREG(look.st_mode) and self.content:
            detail, look, unsure = self.read(path, look)
        elif stat.S_ISLNK(look.st_mode):
            detail = bytes_to_text(os.readlink(path))
        elif stat.S_ISCHR(look.st_mode) or stat.S_ISBLK(look.st_mode):
            detail = [os.major(look.st_rdev), os.minor(look.st_rdev)]
        sign = signature(look)
        if unsure:
            sign = (*sign[:CTIME], UNSURE, *sign[CTIME + 1 :])
        return sign, 0, detail, None, xattrs_of(path)

    def read(self, path: bytes, look: os.stat_result) -> tuple[Any, os.stat_result, bool]:
        """Content of a file, how it looked then, and whether it must be read again the next time."""
        begun = time.time_ns()
        try:
            found, look, stable = self.reader.read(path, look)
            detail: Any = [list(part) for part in found]
        except FileNotFoundError:
            raise
        except (UnkeptError, OSError) as error:
            reason = str(error) if isinstance(error, UnkeptError) else "Could not be read"
            if not isinstance(error, PermissionError) or look.st_ctime_ns >= self.since:
                self.shortfall.add(reason, path)
            return None, look, reason.startswith("No room")
        if not stable:
            self.shortfall.add("Changed while it was read", path)
        return detail, look, not stable or path in self.mapped or look.st_ctime_ns > begun - MARGIN

    def note(self, path: bytes, record: Record) -> None:
        """Remember an entry, and tell it if it is new."""
        self.new[path] = record
        was = self.old.get(path)
        if was is record:
            return
        if was is None or not same_row(was, record):
            if was is not None and stat.S_ISDIR(was[0][0]) and not stat.S_ISDIR(record[0][0]):
                self.writer.row(GONE, bytes_to_text(path))
            self.writer.row(ENTRIES, row_of(path, record))

    # --------------------------------------------------------------------------------------------- the end

    def finish(self) -> None:
        """Hard links, then what is gone."""
        for group in self.linked.values():
            self.note_group(sorted(group, key=lambda member: member[0]))
        self.close_up()
        if self.stopped:
            self.shortfall.add(
                self.stopped + ", so not everything was looked at", next(iter(self.unlisted), b"/")
            )
        missing = self.old.keys() - self.new.keys()
        if self.unlisted:
            unseen = [path for path in missing if self.is_unseen(path)]
            self.new.update((path, self.old[path]) for path in unseen)
            missing = missing.difference(unseen)
        for path in sorted(missing):
            if os.path.dirname(path) not in missing:
                self.writer.row(GONE, bytes_to_text(path))

    def is_unseen(self, path: bytes) -> bool:
        """Whether nobody has looked if it is still there."""
        while path not in self.unlisted:
            folder = os.path.dirname(path)
            if folder == path:
                return False
            path = folder
        return True

    def note_group(self, group: list[tuple[bytes, os.stat_result]]) -> None:
        """Files that are one file with several names."""
        first, look = group[0]
        known = next(
            (record for path, look in group for record in [self.remembered(path, look)] if record), None
        )
        try:
            record = known or self.examine(first, look)
        except FileNotFoundError:
            return
        link = bytes_to_text(first) if len(group) > 1 else None
        for path, _ in group:
            self.note(path, (record[0], 0, record[2], link, record[4]))
