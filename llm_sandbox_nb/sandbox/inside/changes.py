"""The watcher process: remembers what is below a folder, and tells what has changed."""

from __future__ import annotations

import binascii
import json
import os
import stat
import time

from .files import OPEN_READ
from .wire import bytes_to_text, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

QUIET = frozenset(
    [b".git", b"__pycache__", b"node_modules"]
)  # folders whose files nobody wants to see change
WATCHED = 50_000
TEXT_SIZE = 256 * 1024
TEXTS_SIZE = 32 * 1024 * 1024
CHANGES_TOLD = 2_000
TOLD_SIZE = 16 * 1024 * 1024
SCAN_SECONDS = 5.0


def signature(look: os.stat_result) -> tuple[int, ...]:
    """What differs when a file was changed; its type and size come first."""
    return (stat.S_IFMT(look.st_mode), look.st_size, look.st_mtime_ns, look.st_ctime_ns, look.st_ino)


class Watcher:
    """Remembers what is below a folder, with the text of small files, and tells what has changed since."""

    def __init__(self, root: bytes) -> None:
        self.root = root
        self.seen: dict[bytes, tuple[int, ...]] = {}
        self.texts: dict[bytes, bytes] = {}
        self.texts_size = 0
        self.incomplete = ""
        self.told = 0
        self.told_size = 0

    def look(self) -> dict[bytes, tuple[int, ...]]:
        """Every file and link now, as far as the limits allow."""
        found: dict[bytes, tuple[int, ...]] = {}
        deadline = time.monotonic() + SCAN_SECONDS
        todo = [self.root]
        while todo:
            try:
                with os.scandir(todo.pop()) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            if entry.name not in QUIET:
                                todo.append(entry.path)
                            continue
                        look = entry.stat(follow_symlinks=False)
                        found[entry.path] = signature(look)
                        if len(found) >= WATCHED:
                            self.incomplete = "Only %d files are watched." % WATCHED
                            return found
            except OSError:
                continue
            if time.monotonic() > deadline:
                self.incomplete = "Looking at all files took too long; only some were looked at."
                return found
        return found

    def text(self, path: bytes, look: tuple[int, ...]) -> bytes | None:
        """The content of a small text file."""
        if not stat.S_ISREG(look[0]) or look[1] > TEXT_SIZE:
            return None
        try:
            fd = os.open(path, OPEN_READ | os.O_NOFOLLOW)
            try:
                data = os.read(fd, TEXT_SIZE + 1)
            finally:
                os.close(fd)
        except OSError:
            return None
        return None if b"\0" in data or len(data) > TEXT_SIZE else data

    def keep(self, path: bytes, text: bytes | None) -> None:
        """Remember a text as far as there is room, or forget it."""
        self.texts_size -= len(self.texts.pop(path, b""))
        if text is not None and self.texts_size + len(text) <= TEXTS_SIZE:
            self.texts[path] = text
            self.texts_size += len(text)

    def start(self) -> None:
        """The first look: nothing is told."""
        self.seen = self.look()
        for path, look in self.seen.items():
            self.keep(path, self.text(path, look))

    def tell(self) -> None:
        """Write what has changed since the last look to fd 1, one JSON line each."""
        self.incomplete, self.told, self.told_size = "", 0, 0
        now = self.look()
        for path in sorted(self.seen.keys() | now.keys()):
            old, new = self.seen.get(path), now.get(path)
            if old == new or (new is None and self.incomplete):
                continue
            before = self.texts.get(path)
            after = None if new is None else self.text(path, new)
            if old is None or new is None or before is None or before != after:
                self.report(path, old, new, before, after)
            self.keep(path, after)
        self.seen = now

    def report(self, path: bytes, old: Any, new: Any, before: bytes | None, after: bytes | None) -> None:
        """One line: path, kind, size, text before, text after."""
        self.told += 1
        if self.told > CHANGES_TOLD:
            self.incomplete = "More than %d files changed; the others are not named." % CHANGES_TOLD
            return
        kind = "added" if old is None else "deleted" if new is None else "modified"
        self.told_size += len(before or b"") + len(after or b"")
        if self.told_size > TOLD_SIZE:
            self.incomplete = "So much text changed that not all of it is shown."
            before = after = None
        row = [bytes_to_text(path), kind, (new or old)[1], in_base64(before), in_base64(after)]
        write_all(1, json.dumps(row, separators=(",", ":")).encode("ascii") + b"\n")


def in_base64(data: bytes | None) -> str | None:
    """Bytes for JSON."""
    return None if data is None else binascii.b2a_base64(data, newline=False).decode("ascii")


def watch(root: bytes) -> None:
    """The watcher process: one byte on fd 0 asks for the changes; fd 3 tells when they are all written."""
    watcher = Watcher(root)
    watcher.start()
    while True:
        write_all(3, json.dumps({"incomplete": watcher.incomplete}).encode("ascii") + b"\n")
        if not os.read(0, 1):
            return
        watcher.tell()
