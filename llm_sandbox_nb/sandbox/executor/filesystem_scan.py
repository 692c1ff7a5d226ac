"""A scan of all files, which finds the differences from the previous scan, and reads the content of changed files."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import deque

from .entries import CTIME_INDEX, KINDS, UNKNOWN_CTIME, row_of, same_row, signature, xattrs_of
from .files import OPEN_READ
from .folder_watches import WalkNeeded
from .frames import bytes_to_text
from .mounts import CLOCK_MARGIN_NS, is_below
from .records import CHUNK_SIZE, ENTRIES, GONE, RecordWriter, Shortfall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from .entries import Memory, Record, Signature
    from .folder_watches import FolderWatches
    from .mounts import Epoch, Mount

MAX_FILE_BYTES = 2 * 1024**3
# Default limits on the memory of the history child, and on the time of a scan. The host may send other limits.
MAX_ENTRIES = 150_000
MAX_CONTENT_BYTES = 4 * 1024**3
MAX_SCAN_SECONDS = 120.0
MAX_REPORT_BYTES = 480 * 1024 * 1024
"""Maximum bytes of the entries and deleted paths in a report. The host accepts a little more."""
MAX_NAMES_BYTES = MAX_REPORT_BYTES // 2
"""Maximum bytes of the paths of all entries, so that the next report can name each of them as deleted."""
MAX_RESCANNED_NAMES_BYTES = 1024 * 1024  # of the paths that `rescan` examines
TOO_LONG = "Left out, because the paths of all files together are too long"
PLAIN = bytes(set(range(32, 127)) - set(b'"\\'))
"""Bytes of a path that take one byte each in JSON. Any other byte takes at most six bytes."""
MAX_PATH_BYTES = 4095  # the kernel accepts no longer path
MAX_READ_TRIES = 3  # for a file that changes while it is read
NOATIME = getattr(os, "O_NOATIME", 0)


class StopScanError(Exception):
    """End of a scan at a limit. The message names the limit."""


def json_size(path: bytes) -> int:
    """Return the maximum number of bytes that a path takes in a report."""
    return len(path) + 5 * len(path.translate(None, PLAIN))


class ScanLimits:
    """Limits of a scan. The host gives these limits in a request; README.md describes their names."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.entries = int(given.get("entries", MAX_ENTRIES))
        self.bytes = int(given.get("bytes", MAX_CONTENT_BYTES))
        self.deadline = time.monotonic() + float(given.get("seconds", MAX_SCAN_SECONDS))


class KnownDigests:
    """Digests of the content in a `Memory`, with counts. The first use makes the counts; `replace` updates them."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.counts: dict[str, int] = {}
        self.counted = False

    def __contains__(self, digest: str) -> bool:
        if not self.counted:
            self.counted = True
            for record in self.memory.values():
                self.count(record, 1)
        return self.counts.get(digest, 0) > 0

    def count(self, record: Record | None, number: int) -> None:
        """Add `number` to the count of each digest of an entry. An entry that is as in the image has no digests."""
        if record and record[2] and not record[1] and stat.S_ISREG(record[0][0]):
            for _, _, digest in record[2]:
                self.counts[digest] = self.counts.get(digest, 0) + number

    def replace(self, memory: Memory, changed: dict[bytes, Record | None]) -> None:
        """Update the counts for the next memory, which differs from the present one at the paths in `changed`."""
        if self.counted:
            for path, record in changed.items():
                self.count(self.memory.get(path), -1)
                self.count(record, 1)
        self.memory = memory


class FilesystemScan:
    """A scan that writes the differences from the previous scan.

    The method `scan` walks over all files; `rescan` examines only some paths.

    Args:
        writer: writer of the differences.
        old: all entries of the previous scan.
        limits: limits on entries, bytes and seconds.
        content: False to read only metadata.
        known: digests in `old`, if they were counted before.
    """

    def __init__(
        self,
        writer: RecordWriter,
        old: Memory,
        limits: ScanLimits,
        *,
        content: bool = True,
        known: KnownDigests | None = None,
    ) -> None:
        self.writer = writer
        self.old = old
        self.new: Memory = {}
        """All entries after a walk, but only the examined entries after a rescan."""
        self.changed: dict[bytes, Record | None] = {}
        """Entries that differ from `old`, by path. None stands for a deleted entry."""
        self.limits = limits
        self.content = content
        self.digests = known or KnownDigests(old)
        self.watches: FolderWatches | None = None
        self.walking = True
        self.always: set[bytes] = set()
        """Paths whose changes the watch of their folder may not report, so that each rescan must examine them."""
        self.reader = ContentReader(writer.chunk if content else None, self.is_known, limits.bytes)
        self.shortfall = Shortfall()
        self.mapped: set[bytes] = set()
        self.linked: dict[tuple[int, int], list[tuple[bytes, os.stat_result]]] = {}
        self.opened: list[tuple[bytes, int]] = []
        self.unlisted: set[bytes] = set()
        self.since = 0
        self.names_left = MAX_NAMES_BYTES
        self.old_names_size: int | None = None
        self.by_inode: dict[tuple[int, ...], Record] | None = None
        self.stopped = ""

    def is_known(self, digest: str) -> bool:
        """Return True if the host has this content already, because the previous scan has reported a file with it."""
        return digest in self.digests

    # -------------------------------------------------------------------------------------------- walking

    def scan(self, mounts: Iterable[Mount], skipped: set[bytes], epoch: Epoch) -> None:
        """Walk over all files of these mounts, except the paths `skipped`, and report the differences."""
        epoch.check_clock()
        self.since = epoch.start - epoch.back
        for mount in mounts:
            try:
                info = os.lstat(mount.path)
            except OSError:
                continue
            self.walk(mount.path, info, skipped - {mount.path}, epoch.since(mount))
        self.finish()

    def rescan(self, paths: set[bytes], mounts: list[Mount], skipped: set[bytes], epoch: Epoch) -> None:
        """Examine only these paths, and the top folders of the mounts. All other entries are as in the previous scan.

        Raises:
            WalkNeeded: if other paths may differ too. In this case, nothing was reported.
        """
        epoch.check_clock()
        self.since, self.walking = epoch.start - epoch.back, False
        since = {mount.path: epoch.since(mount) for mount in mounts}
        found = [
            (path, self.status(path))
            for path in sorted(paths)
            if path not in skipped and self.is_inside(path)
        ]
        found += [(path, self.status(path)) for path in since]
        if len(self.old) + len(found) > self.limits.entries:
            raise WalkNeeded("there may be too many files")
        if sum(json_size(path) for path, _ in found) > MAX_RESCANNED_NAMES_BYTES:
            raise WalkNeeded("the names of all files may be too long together")
        try:
            for path, info in found:
                if info is not None:
                    top = max((top for top in since if is_below(path, top)), key=len)
                    self.entry(path, info, since[top])
        except StopScanError as stop:
            self.shortfall.add(str(stop), path)
        self.note_groups()
        self.note_missing({path for path, info in found if info is None and path in self.old})

    def is_inside(self, path: bytes) -> bool:
        """Return True if the previous scan has listed the folder of a path."""
        folder = self.old.get(os.path.dirname(path))
        return folder is not None and stat.S_ISDIR(folder[0][0]) and not folder[1]

    def status(self, path: bytes) -> os.stat_result | None:
        """Return the status of a path that may have changed. Return None if a scan would report no entry at this path.

        Raises:
            WalkNeeded: if other paths may have changed together with this path.
        """
        was = self.old.get(path)
        was_folder = was is not None and stat.S_ISDIR(was[0][0])
        info: os.stat_result | None = None
        try:
            info = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise WalkNeeded(os.strerror(error.errno or 0)) from None
        if info is not None and stat.S_IFMT(info.st_mode) not in KINDS:
            info = None
        if was_folder != (info is not None and stat.S_ISDIR(info.st_mode)):
            raise WalkNeeded("a folder was made or removed")
        if was is not None and info is not None and was_folder and was[1] and was[0] != signature(info):
            raise WalkNeeded("a folder of the image has changed")
        if info is not None and not was_folder and info.st_nlink > 1 and path not in self.always:
            raise WalkNeeded("a file has got another name")
        return info

    def walk(self, path: bytes, info: os.stat_result, skip: set[bytes], since: tuple[int, int]) -> None:
        """Note an entry and all entries below, breadth first, so that limits leave out the deepest entries."""
        todo = deque([(path, info)])
        while todo:
            path, info = todo.popleft()
            try:
                if self.stopped:
                    raise StopScanError(self.stopped)
                if self.entry(path, info, since):
                    todo += [child for child in self.children(path, info, len(todo)) if child[0] not in skip]
            except StopScanError as stop:
                self.stopped = str(stop)
                self.unlisted.add(path)

    def children(self, path: bytes, info: os.stat_result, waiting: int) -> list[tuple[bytes, os.stat_result]]:
        """Return paths and statuses of the entries of a folder, unsorted.

        The list is empty if its entries would exceed the limit on entries. `waiting` is the number of entries that the
        walk has found but not noted yet.
        """
        room = self.limits.entries - len(self.new) - waiting
        self.open_up(path, info)
        if self.watches:
            self.watches.add(path)
        children: list[tuple[bytes, os.stat_result]] = []
        try:
            with os.scandir(path) as found:
                for entry in found:
                    if len(children) >= room:
                        self.unlisted.add(path)
                        self.shortfall.add(self.too_many(), path)
                        return []
                    if len(entry.path) > MAX_PATH_BYTES:
                        self.shortfall.add("Too deep to be kept", entry.path)
                        continue
                    try:
                        children.append((entry.path, entry.stat(follow_symlinks=False)))
                    except FileNotFoundError:
                        continue
        except FileNotFoundError:
            pass
        except OSError as error:
            self.unlisted.add(path)
            if info.st_ctime_ns >= self.since:
                self.shortfall.add("Could not be read (%s)" % os.strerror(error.errno or 0).lower(), path)
        return children

    def too_many(self) -> str:
        """Return the reason for leaving out an entry: the limit on entries is reached."""
        return "Left out, because there are more than %d files" % self.limits.entries

    def open_up(self, path: bytes, info: os.stat_result) -> None:
        """Make a folder readable for the scan if its owner has made it unreadable."""
        mode = stat.S_IMODE(info.st_mode)
        if mode & 0o500 != 0o500 and 0 < os.geteuid() == info.st_uid:
            try:
                os.chmod(path, mode | 0o500)
                self.opened.append((path, mode))
            except OSError:
                pass

    def close_up(self) -> None:
        """Undo `open_up`."""
        while self.opened:
            path, mode = self.opened.pop()
            try:
                os.chmod(path, mode)
                if path in self.new:
                    self.new[path] = (signature(os.lstat(path)), *self.new[path][1:])
            except OSError:
                continue

    # ------------------------------------------------------------------------------------------- an entry

    def entry(self, path: bytes, info: os.stat_result, since: tuple[int, int]) -> bool:
        """Note an entry. Return True for a folder whose content must be scanned too.

        `since` is the result of `Epoch.since` for the mount of the entry.

        Raises:
            StopScanError: if the time is over, or there are too many entries.
        """
        if time.monotonic() > self.limits.deadline:
            raise StopScanError("Left out, because the scan took too long")
        if self.walking and len(self.new) >= self.limits.entries:
            raise StopScanError(self.too_many())
        self.names_left -= json_size(path)
        if self.names_left < 0 or self.is_full():
            raise StopScanError(TOO_LONG)
        kind = stat.S_IFMT(info.st_mode)
        if kind not in KINDS:
            return False
        several = kind != stat.S_IFDIR and info.st_nlink > 1
        if several:
            self.always.add(path)
        if info.st_ctime_ns < since[kind != stat.S_IFDIR]:
            if kind == stat.S_IFDIR:
                self.always.add(path)
            self.note(path, (signature(info), 1, None, None, None))
            return False
        if several and kind == stat.S_IFREG:
            self.linked.setdefault((info.st_dev, info.st_ino), []).append((path, info))
            return False
        record = self.remembered(path, info)
        if record is None:
            try:
                record = self.examine(path, info)
            except FileNotFoundError:
                return False
        self.note(path, record)
        return kind == stat.S_IFDIR

    def is_full(self) -> bool:
        """Return True if the report has no room for further entries.

        Room for the paths of all old entries is reserved, because the end of the scan may report them as deleted.
        """
        if self.writer.rows_size <= MAX_REPORT_BYTES - MAX_NAMES_BYTES:
            return False
        if self.old_names_size is None:
            self.old_names_size = sum(map(json_size, self.old))
        return self.writer.rows_size + self.old_names_size > MAX_REPORT_BYTES

    def remembered(self, path: bytes, info: os.stat_result) -> Record | None:
        """Return the record that the previous scan has made of an entry, or None if this record is no longer valid."""
        sign = signature(info)
        record = self.old.get(path)
        if record is None and self.walking and info.st_size and stat.S_ISREG(info.st_mode):
            record = self.moved(sign)
        if record is None or record[0] != sign or path in self.mapped:
            return None
        return record

    def moved(self, sign: Signature) -> Record | None:
        """Return the record that the previous scan made of this file under another path, or None.

        There is such a record if a folder above the file was renamed. Renaming the file itself changes its ctime, so
        the file must then be examined again.
        """
        if self.by_inode is None:
            self.by_inode = {
                record[0][CTIME_INDEX:]: record for record in self.old.values() if record[2] and not record[1]
            }
        return self.by_inode.get(sign[CTIME_INDEX:])

    def examine(self, path: bytes, info: os.stat_result) -> Record:
        """Return a new record of an entry. Read its content, its target or its device number, and its attributes."""
        detail: Any = None
        unsure = False
        if stat.S_ISREG(info.st_mode) and self.content:
            detail, info, unsure = self.read(path, info)
        elif stat.S_ISLNK(info.st_mode):
            detail = bytes_to_text(os.readlink(path))
        elif stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode):
            detail = [os.major(info.st_rdev), os.minor(info.st_rdev)]
        sign = signature(info)
        if unsure:
            sign = (*sign[:CTIME_INDEX], UNKNOWN_CTIME, *sign[CTIME_INDEX + 1 :])
        return sign, 0, detail, None, xattrs_of(path)

    def read(self, path: bytes, info: os.stat_result) -> tuple[Any, os.stat_result, bool]:
        """Return the pieces of a file, its status, and True if the next scan must read the file again.

        A piece is a list of offset, length and digest. The pieces are None if the content was not kept.
        """
        started = time.time_ns()
        try:
            found, info, stable = self.reader.read(path, info)
            detail: Any = [list(part) for part in found]
        except FileNotFoundError:
            raise
        except (UnkeptError, OSError) as error:
            reason = str(error) if isinstance(error, UnkeptError) else "Could not be read"
            if not isinstance(error, PermissionError) or info.st_ctime_ns >= self.since:
                self.shortfall.add(reason, path)
            return None, info, isinstance(error, CheckpointFullError)
        if not stable:
            self.shortfall.add("Changed while it was read", path)
        return detail, info, not stable or path in self.mapped or info.st_ctime_ns > started - CLOCK_MARGIN_NS

    def note(self, path: bytes, record: Record) -> None:
        """Remember an entry. Report a new or changed entry."""
        was = self.old.get(path)
        if was is not None and (was is record or was == record):
            self.new[path] = was
            return
        self.new[path] = self.changed[path] = record
        if was is None or not same_row(was, record):
            if was is not None and stat.S_ISDIR(was[0][0]) and not stat.S_ISDIR(record[0][0]):
                self.writer.row(GONE, bytes_to_text(path))
            self.writer.row(ENTRIES, row_of(path, record))

    # --------------------------------------------------------------------------------------------- the end

    def finish(self) -> None:
        """End a walk. Report hard links, then deleted paths."""
        self.note_groups()
        self.close_up()
        if self.stopped:
            self.shortfall.add(
                self.stopped + ", so not everything was scanned", next(iter(self.unlisted), b"/")
            )
        missing = self.old.keys() - self.new.keys()
        if self.unlisted:
            unseen = [path for path in missing if self.is_unseen(path)]
            self.new.update((path, self.old[path]) for path in unseen)
            missing = missing.difference(unseen)
        self.note_missing(missing)

    def note_missing(self, missing: set[bytes]) -> None:
        """Report deleted paths."""
        for path in sorted(missing):
            self.changed[path] = None
            if os.path.dirname(path) not in missing:
                self.writer.row(GONE, bytes_to_text(path))

    def is_unseen(self, path: bytes) -> bool:
        """Return True if the scan has not reached a path."""
        while path not in self.unlisted:
            folder = os.path.dirname(path)
            if folder == path:
                return False
            path = folder
        return True

    def note_groups(self) -> None:
        """Note all files with several names."""
        for group in self.linked.values():
            self.note_group(sorted(group, key=lambda member: member[0]))

    def note_group(self, group: list[tuple[bytes, os.stat_result]]) -> None:
        """Note all names of one file. `group` is a list of pairs of path and status, sorted by path."""
        first, info = group[0]
        known = next(
            (record for path, info in group for record in [self.remembered(path, info)] if record), None
        )
        try:
            record = known or self.examine(first, info)
        except FileNotFoundError:
            return
        link = bytes_to_text(first) if len(group) > 1 else None
        for path, _ in group:
            if self.is_full():
                self.unlisted.add(path)
                self.shortfall.add(TOO_LONG, path)
                continue
            self.note(path, (record[0], 0, record[2], link, record[4]))


# ------------------------------------------------------------------------------------------ content of files


class UnkeptError(Exception):
    """Error for a file whose content cannot be kept. The message is the reason."""


class CheckpointFullError(UnkeptError):
    """Error for a file that is too large for the rest of this checkpoint. The next checkpoint may keep the file."""


class ContentReader:
    """A reader of files that sends new pieces to the host.

    Args:
        send: function that is called with each new piece; None if no content is sent.
        known: function that gets a digest, and returns True if the host already has the piece with this digest.
        limit: maximum number of bytes to send.
    """

    def __init__(
        self, send: Callable[[memoryview], None] | None, known: Callable[[str], bool], limit: int
    ) -> None:
        from hashlib import sha256

        self.sha256 = sha256
        self.send = send
        self.known = known
        self.left = limit
        self.sent: set[str] = set()
        # All pieces share this buffer, because allocating memory for a piece takes longer than reading the piece.
        self.buffer: memoryview | None = None

    def read(self, path: bytes, info: os.stat_result) -> tuple[list[Any], os.stat_result, bool]:
        """Return the pieces of a file, the status after reading, and True if the file did not change meanwhile.

        Raises:
            FileNotFoundError: if the file is gone, or its name now leads to something else.
            UnkeptError: if the file is too large, or cannot be read.
        """
        fd = open_same(path, info)
        try:
            for _ in range(MAX_READ_TRIES):
                before = os.fstat(fd)
                if before.st_size > MAX_FILE_BYTES:
                    raise UnkeptError("Too large to be kept")
                detail = [self.piece(fd, *part) for part in parts(fd, before)]
                after = os.fstat(fd)
                if same_content(before, after):
                    return [part for part in detail if part], after, True
            return [part for part in detail if part], after, False
        except OSError as error:
            raise UnkeptError("Could not be read (%s)" % os.strerror(error.errno or 0).lower()) from None
        finally:
            os.close(fd)

    def piece(self, fd: int, offset: int, size: int) -> tuple[int, int, str] | None:
        """Read one piece, and send it if the host does not have it. Return offset, length and digest.

        Return None if the file has no data there any more.
        """
        if self.buffer is None:
            self.buffer = memoryview(bytearray(CHUNK_SIZE))
        got = 0
        while got < size:
            more = os.preadv(fd, [self.buffer[got:size]], offset + got)
            if not more:
                break
            got += more
        if not got:
            return None
        data = self.buffer[:got]
        digest = self.sha256(data).hexdigest()
        if digest not in self.sent and not self.known(digest) and self.send:
            if len(data) > self.left:
                raise CheckpointFullError("Left out, because the checkpoint is full")
            self.left -= len(data)
            self.send(data)
            self.sent.add(digest)
        return offset, len(data), digest


def same_content(before: os.stat_result, after: os.stat_result) -> bool:
    """Return True if nothing was written to a file between the moments of two statuses."""
    return (before.st_size, before.st_mtime_ns, before.st_ctime_ns) == (
        after.st_size, after.st_mtime_ns, after.st_ctime_ns,
    )  # fmt: skip


def open_same(path: bytes, info: os.stat_result) -> int:
    """Open a file for reading. Raise FileNotFoundError if there is no regular file at this path any more."""
    fd = open_unnoticed(path, info)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return fd


def open_unnoticed(path: bytes, info: os.stat_result) -> int:
    """Open a file, even if its mode forbids reading. If possible, do not change its times."""
    try:
        return os.open(path, OPEN_READ | os.O_NOFOLLOW | NOATIME)
    except PermissionError:
        pass
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
        raise
    try:
        return os.open(path, OPEN_READ | os.O_NOFOLLOW)
    except PermissionError:
        if info.st_uid != os.geteuid() or info.st_mode & stat.S_IRUSR:
            raise
    os.chmod(path, stat.S_IMODE(info.st_mode) | stat.S_IRUSR)
    try:
        return os.open(path, OPEN_READ | os.O_NOFOLLOW)
    finally:
        os.chmod(path, stat.S_IMODE(info.st_mode))


def parts(fd: int, info: os.stat_result) -> Iterator[tuple[int, int]]:
    """Yield offset and length of each piece of a file's data. Holes are left out.

    The data is cut at multiples of `CHUNK_SIZE`, so that few pieces change when the file grows.
    """
    end = info.st_size
    if info.st_blocks * 512 >= end:
        yield from cut(0, end)
        return
    start = 0
    while start < end:
        try:
            start = os.lseek(fd, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return
        stop = min(os.lseek(fd, start, os.SEEK_HOLE), end)
        if stop <= start:
            return
        yield from cut(start, stop)
        start = stop


def cut(start: int, stop: int) -> Iterator[tuple[int, int]]:
    while start < stop:
        size = min(stop, (start // CHUNK_SIZE + 1) * CHUNK_SIZE) - start
        yield start, size
        start += size
