"""The change watcher: a child process that remembers the files of the working directory, and reports their changes."""

from __future__ import annotations

import binascii
import os
import signal
import stat
import time

from .children import ServiceProcess
from .frames import STDOUT, bytes_to_text, write_all
from .light import dump
from .mounts import CLOCK_MARGIN_NS
from .processes import send_signal
from .request import FIRST_LOOK, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from .request import ExecutorContext

LOST_MEMORY_NOTICE = "The earlier state of the files was lost, so some changes are missing."
FIRST_LOOK_SECONDS = 2.0
"""Maximum seconds that commands wait for the first look at the working directory."""
IGNORED_FOLDERS = frozenset([b".git", b"__pycache__", b"node_modules"])
"""Names of folders in which changes are not reported."""
# These limits bound the child's memory, the size of a report on the host, and the time that a request waits.
MAX_WATCHED_FILES = 50_000
MAX_TEXT_BYTES = 256 * 1024
MAX_TEXTS_BYTES = 32 * 1024 * 1024
MAX_REPORTED_CHANGES = 2_000
MAX_REPORT_BYTES = 16 * 1024 * 1024
MAX_SCAN_SECONDS = 5.0


class ChangeWatcher(ServiceProcess):
    """The executor's side of the change watcher: the child, and the requests that wait for it."""

    def __init__(self, executor: ExecutorContext) -> None:
        super().__init__(executor)
        self.looking = False
        self.queue: list[ChangesRequest] = []
        self.current: ChangesRequest | None = None
        self.forgotten = ""

    def start(self) -> None:
        """Start the child if possible, and make commands wait during its first look at the files."""
        try:
            super().start()
        except OSError:
            self.forgotten = LOST_MEMORY_NOTICE
            self.first_look_over()
            return
        self.looking = True
        self.executor.hold_files(FIRST_LOOK)
        self.executor.after(FIRST_LOOK_SECONDS, self.first_look_over)

    def serve(self) -> NoReturn:
        track_changes(self.executor.cwd)
        os._exit(0)

    def restart(self) -> None:
        """Restart the child after a restore has replaced files, so that these changes are not reported."""
        if self.pid:
            self.executor.children[self.pid] = lambda _: None
            send_signal(self.pid, signal.SIGKILL)
            self.close()
            self.respond({})
        if not self.pid:
            self.start()

    def first_look_over(self) -> None:
        """Let commands run, even if the first look has not ended."""
        self.executor.release_files(FIRST_LOOK)

    def ask(self, request: ChangesRequest) -> None:
        self.queue.append(request)
        self.next()

    def next(self) -> None:
        if self.current or not self.queue or self.looking:
            return
        if self.pid:
            self.current, self.outcome = self.queue.pop(0), None
            try:
                os.write(self.requests_w, b"?")
            except BrokenPipeError:  # a command has just killed the child: `died` responds
                pass
            return
        self.start()
        if not self.pid:
            self.current = self.queue.pop(0)
            self.respond({})

    def take_data(self, data: bytes) -> None:
        if self.current:
            self.current.send(STDOUT, data)

    def finish(self, outcome: dict[str, Any]) -> None:
        if self.looking:
            self.looking = False
            self.first_look_over()
            self.next()
        else:
            self.respond(outcome)

    def respond(self, outcome: dict[str, Any]) -> None:
        """Respond to the current request, and begin the next."""
        request, self.current = self.current, None
        if request:
            outcome["incomplete"] = (self.forgotten + " " + outcome.get("incomplete", "")).strip()
            # Without a child, further changes are lost, so the next response needs the notice too.
            if self.pid:
                self.forgotten = ""
            request.respond(outcome)
        self.next()

    def died(self) -> None:
        self.close()
        self.forgotten = LOST_MEMORY_NOTICE
        if self.looking and self.queue:
            self.current = self.queue.pop(0)
        self.looking = False
        self.first_look_over()
        self.respond({})


class ChangesRequest(Request):
    """A request for the changes in the working directory since the last look."""

    def __init__(self, watcher: ChangeWatcher, number: int, params: dict[str, Any]) -> None:
        super().__init__(watcher.executor, number, params)
        self.watcher = watcher

    def begin(self) -> None:
        self.start_timer()
        self.watcher.ask(self)

    def timed_out(self) -> None:
        send_signal(self.watcher.pid, signal.SIGKILL)

    def cancel(self) -> None:
        if self in self.watcher.queue:
            self.watcher.queue.remove(self)
            self.respond({})


# ------------------------------------------------------------------------------------------------ in the child


CTIME_INDEX = 3  # place of the ctime in a signature


def file_signature(info: os.stat_result) -> tuple[int, ...]:
    """Return type, size, times and inode of a file. After a change of the file, at least one of them differs."""
    return (stat.S_IFMT(info.st_mode), info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)


class ChangeTracker:
    """The child's memory of a folder: the signatures of its files, and the texts of small files."""

    def __init__(self, root: bytes) -> None:
        self.root = root
        self.seen: dict[bytes, tuple[int, ...]] = {}
        self.texts: dict[bytes, bytes] = {}
        self.texts_size = 0
        self.incomplete = ""
        self.partial = False
        """True if the last scan has not reached all files."""
        self.scanned_at = 0
        """Start of the last scan in nanoseconds, on the clock of ctimes. It may be too early, but never too late."""
        self.reported = 0
        self.report_size = 0

    def scan(self) -> dict[bytes, tuple[int, ...]]:
        """Return the signature of each file and link below the root, by path. Stop after too many files or seconds."""
        found: dict[bytes, tuple[int, ...]] = {}
        self.partial, self.scanned_at = True, time.time_ns() - CLOCK_MARGIN_NS
        deadline = time.monotonic() + MAX_SCAN_SECONDS
        todo = [self.root]
        while todo:
            try:
                with os.scandir(todo.pop()) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            if entry.name not in IGNORED_FOLDERS:
                                todo.append(entry.path)
                            continue
                        try:
                            found[entry.path] = file_signature(entry.stat(follow_symlinks=False))
                        except FileNotFoundError:  # the file was renamed or removed meanwhile
                            continue
                        if len(found) >= MAX_WATCHED_FILES:
                            self.incomplete = "Only %d files are watched." % MAX_WATCHED_FILES
                            return found
            except OSError:
                continue
            if time.monotonic() > deadline:
                self.incomplete = "The scan of all files took too long; only some were scanned."
                return found
        self.partial = False
        return found

    def text(self, path: bytes, signature: tuple[int, ...]) -> bytes | None:
        """Return the content of a small text file, or None for any other file."""
        if not stat.S_ISREG(signature[0]) or signature[1] > MAX_TEXT_BYTES:
            return None
        from .files import OPEN_READ

        try:
            fd = os.open(path, OPEN_READ | os.O_NOFOLLOW)
            try:
                data = os.read(fd, MAX_TEXT_BYTES + 1)
            finally:
                os.close(fd)
        except OSError:
            return None
        return None if b"\0" in data or len(data) > MAX_TEXT_BYTES else data

    def keep(self, path: bytes, text: bytes | None) -> None:
        """Forget the old text of a file. Remember the new text if the limit `MAX_TEXTS_BYTES` allows it."""
        self.texts_size -= len(self.texts.pop(path, b""))
        if text is not None and self.texts_size + len(text) <= MAX_TEXTS_BYTES:
            self.texts[path] = text
            self.texts_size += len(text)

    def start(self) -> None:
        """Remember the first state of the files. Report nothing."""
        self.seen = self.scan()
        for path, signature in self.seen.items():
            self.keep(path, self.text(path, signature))

    def report_changes(self) -> None:
        """Write a JSON line to fd 1 for each change since the last look."""
        self.incomplete, self.reported, self.report_size = "", 0, 0
        seen_all, since = not self.partial, self.scanned_at
        now = self.scan()
        for path in sorted(self.seen.keys() | now.keys()):
            old, new = self.seen.get(path), now.get(path)
            if old == new or (new is None and self.partial):
                continue
            before = self.texts.get(path)
            after = None if new is None else self.text(path, new)
            is_news = old is not None or seen_all or (new is not None and new[CTIME_INDEX] >= since)
            if is_news and (old is None or new is None or before is None or before != after):
                self.report(path, old, new, before, after)
            self.keep(path, after)
        for path in self.seen.keys() - now.keys() if self.partial else ():
            if len(now) < MAX_WATCHED_FILES:
                now[path] = self.seen[path]
        self.seen = now

    def report(self, path: bytes, old: Any, new: Any, before: bytes | None, after: bytes | None) -> None:
        """Write a JSON array to fd 1: path, kind, size, text before, text after, and size before.

        `old` and `new` are the file's signatures before and after the change, or None. Texts are in base64.
        """
        self.reported += 1
        if self.reported > MAX_REPORTED_CHANGES:
            self.incomplete = "More than %d files changed; the others are not named." % MAX_REPORTED_CHANGES
            return
        kind = "added" if old is None else "deleted" if new is None else "modified"
        self.report_size += len(path) + len(before or b"") + len(after or b"")
        if self.report_size > MAX_REPORT_BYTES:
            self.incomplete = "So much text changed that not all of it is shown."
            before = after = None
        row = [
            bytes_to_text(path),
            kind,
            (new or old)[1],
            in_base64(before),
            in_base64(after),
            old and old[1],
        ]
        write_all(1, dump(row) + b"\n")


def in_base64(data: bytes | None) -> str | None:
    return None if data is None else binascii.b2a_base64(data, newline=False).decode("ascii")


def track_changes(root: bytes) -> None:
    """Serve in the child. A byte on fd 0 asks for a report. A line on fd 3 ends the first look and each report."""
    tracker = ChangeTracker(root)
    tracker.start()
    while True:
        write_all(3, dump({"incomplete": tracker.incomplete}) + b"\n")
        if not os.read(0, 1):
            return
        tracker.report_changes()
