"""Kill a process at its n-th change of the files below a folder, so that a test can try every one of them.

No code of the package knows of this: Python tells (`sys.addaudithook`) of every file that is opened for writing,
renamed, linked or removed; `os.write`, `sqlite3.connect` and `os.open` relative to a folder are replaced.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CHANGES = {"os.rename", "os.link", "os.remove", "os.truncate"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class CrashPoints:
    """Counts the changes in this process, and kills it just before the one with a given number.

    Args:
        folder: changes elsewhere do not count.
        fatal: the number, from 0. The bytes of an `os.write` count twice: none of them, and half of them, are written.
    """

    def __init__(self, folder: Path, fatal: int) -> None:
        self.folder = str(folder)
        self.fatal = fatal
        self.seen = 0
        self._write, self._connect, self._open = os.write, sqlite3.connect, os.open
        sys.addaudithook(self._audit)
        os.write = self._counted_write  # type: ignore[assignment]
        sqlite3.connect = self._counted_connect
        os.open = self._counted_open

    def _change(self, first: Callable[[], object] = lambda: None) -> None:
        if self.seen == self.fatal:
            first()
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen += 1

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES or (event == "open" and arguments[2] and arguments[2] & WRITES):
            relative = arguments[1:] if event not in ("open", "os.truncate") else ()
            folders = [one for one in relative if isinstance(one, int) and one >= 0]
            self._if_below(_relative(arguments[0], folders[0]) if folders else arguments[0])

    def _counted_open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None and flags & WRITES:
            self._if_below(_relative(path, dir_fd))
        return self._open(path, flags, mode, dir_fd=dir_fd)

    def _if_below(self, path: object) -> None:
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(self.folder):
            self._change()

    def _counted_connect(self, *arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = self._connect(*arguments, **options)
        connection.set_trace_callback(self._about_to)
        return connection

    def _about_to(self, statement: str) -> None:
        if not statement.lstrip().upper().startswith(("SELECT", "WITH", "PRAGMA", "--")):
            self._change()

    def _counted_write(self, descriptor: int, data: Any) -> int:
        if str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith(self.folder):
            self._change()
            self._change(lambda: self._write(descriptor, bytes(data)[: len(data) // 2]))
        return self._write(descriptor, data)


def _relative(path: object, folder: int) -> object:
    return f"{Path(f'/proc/self/fd/{folder}').readlink()}/{path}" if isinstance(path, str) else path


def at_every_change(
    work: Callable[[Path, int], None], parent: Path, *, every: int = 1
) -> Iterator[tuple[Path, list[str]]]:
    """Do some work in child processes, killed at the first change, at the second, and so on to the end.

    Args:
        work: gets a new folder, and a descriptor to write a line to for all that it acknowledges.
        parent: where the folders are made.
        every: 3 tries each third change only.

    Yields:
        each folder, and the lines.
    """
    number, code = 0, int(signal.SIGKILL)
    while code == signal.SIGKILL:
        folder = parent / str(number)
        folder.mkdir()
        mine, its = os.pipe()
        child = os.fork()
        if not child:
            try:
                CrashPoints(folder, number)
                work(folder, its)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                os._exit(1)
        os.close(its)
        with os.fdopen(mine, "rb") as words:
            lines = words.read().decode().split("\n")[:-1]
        code = os.waitpid(child, 0)[1]
        assert code in (0, signal.SIGKILL), f"the child failed before change {number}: {code}"
        yield folder, lines
        number += every
