"""The journal of a run: a file to which each event is appended as a line of JSON."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.formatting import clip
from llm_sandbox_nb.known_keys import without_keys_in
from llm_sandbox_nb.own_folder import (
    NotOwnFileError,
    is_file,
    open_file,
    read_file,
    unshare_file,
    write_file,
)
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.older import upgraded
from llm_sandbox_nb.trajectory.run_folder import BLOBS, JOURNAL
from llm_sandbox_nb.windows import try_lock, unlock_and_close

BLOB_THRESHOLD = 64 * 1024
"""Maximum characters of a text, or bytes of data, in the journal. Longer ones are stored in separate files (blobs)."""
_MAX_BLOB_BYTES = 512 * 1024**2
"""Maximum bytes of a blob that can be read."""
MAX_LINE_BYTES = 64 * 1024**2
"""Maximum bytes of a line of a journal."""
_MAX_JOURNAL_BYTES = 1024**3
"""Maximum bytes of a journal that can be read."""
_MAX_VALUES = 20_000_000
"""Maximum number of values in the events of a journal that can be read. In memory, a value needs up to 80 bytes, but it
may have only two bytes in the file."""
_EVENT_VALUES = 10
"""Number of values that an event counts as, in addition to the values in it. An empty event needs 800 bytes."""
_JSON_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)', re.DOTALL)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PREVIEW_CHARACTERS = 4000
"""Characters of a blob that its event repeats, from the beginning and the end of the text."""


class JournalError(LLMSandboxError):
    """Raised if a journal cannot be read or started, or if another process writes to the journal.

    For example, `Run.load(folder)` raises this error if a line in the middle of the journal is damaged.
    """


class JournalNotWrittenError(LLMSandboxError, OSError):
    """Raised if the record of a run cannot be written, for example because the disk is full."""


class Journal:
    """Writer of a run's events. An event that `append` has written survives the end of this process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.path = folder / JOURNAL
        try:
            self._file = open_file(folder, JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except NotOwnFileError as error:
            raise JournalError(f"The run cannot be written: {error}.") from error
        except OSError as error:
            raise JournalError(
                f"The run cannot be written to {folder} ({error.strerror}): free disk space, or choose another "
                "output folder."
            ) from error
        self._lock()
        try:
            # if the journal has further hard links, new events must not change the files there
            if os.fstat(self._file).st_nlink > 1:
                unshare_file(folder, JOURNAL)
                shared, self._file = self._file, open_file(folder, JOURNAL, os.O_WRONLY | os.O_APPEND)
                unlock_and_close(shared)
                self._lock()
            _check_last_line(folder)
        except (OSError, JournalError):
            self.close()
            raise

    def _lock(self) -> None:
        if not _lock(self._file):
            self.close()
            raise JournalError(f"The run in {self.folder} is already running: wait for its end, or fork it.")

    def append(self, event: ev.Event) -> None:
        """Write an event as a complete line.

        Raises:
            JournalNotWrittenError: if the event cannot be written, for example because the disk is full. An incomplete
                line is removed.
        """
        data = (ev.dump_event(event) + "\n").encode()
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise JournalNotWrittenError(error.errno, error.strerror, str(self.path)) from error

    def store_text(self, text: str) -> ev.Text:
        """Return a short text itself. Store a long text in a file, and return a `Blob` that points to the file."""
        if len(text) <= BLOB_THRESHOLD:
            return text
        return self._store_blob(text.encode("utf-8", "replace"))

    def store_bytes(self, data: bytes) -> ev.Text:
        """Return short UTF-8 data as text. Store other data in a file, and return a `Blob` that points to the file."""
        if len(data) <= BLOB_THRESHOLD:
            with suppress(UnicodeDecodeError):
                return data.decode()
        return self._store_blob(data)

    def _store_blob(self, data: bytes) -> ev.Blob:
        data = without_keys_in(data)  # before the preview is cut, which may cut a key
        digest = hashlib.sha256(data).hexdigest()
        if not is_file(self.folder, f"{BLOBS}/{digest}"):
            try:
                write_file(self.folder, f"{BLOBS}/{digest}", data)
            except OSError as error:
                raise JournalNotWrittenError(error.errno, error.strerror, str(self.folder)) from error
        preview = clip(data.decode("utf-8", "replace"), _PREVIEW_CHARACTERS)
        return ev.Blob(sha256=digest, size=len(data), preview=preview)

    def close(self) -> None:
        if self._file >= 0:
            unlock_and_close(self._file)
            self._file = -1


def load_text(folder: Path, text: ev.Text) -> str:
    """Return a text. A `Blob` is read from its file. Raises FileNotFoundError if the file is missing."""
    return text if isinstance(text, str) else load_bytes(folder, text).decode("utf-8", "replace")


def load_bytes(folder: Path, text: ev.Text) -> bytes:
    """Return the bytes of a text. A `Blob` is read from its file. Raises FileNotFoundError if the file is missing."""
    if isinstance(text, str):
        return text.encode()
    try:
        if _DIGEST.fullmatch(text.sha256) is None:
            raise NotOwnFileError("its name is not a SHA-256 digest")
        return read_file(folder, f"{BLOBS}/{text.sha256}", _MAX_BLOB_BYTES)
    except NotOwnFileError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text.sha256) from error


def is_being_written(folder: Path) -> bool:
    """Return True if a process holds the lock of the journal in `folder`. Raises OSError if there is no journal."""
    descriptor = open_file(folder, JOURNAL)
    try:
        return not try_lock(descriptor)
    finally:
        unlock_and_close(descriptor)


def _lock(file: int) -> bool:
    """Lock the file until it is closed. Return False if another process has the lock.

    If the file system has no locks, return True.
    """
    try:
        return try_lock(file)
    except OSError:
        return True


def _check_last_line(folder: Path) -> None:
    """Remove an incomplete last line, which a crash has left, so that the next event begins a new line.

    Raises:
        JournalError: if the last complete line is not an event. With a line after it, no reader would read the journal.
    """
    if not (folder / JOURNAL).stat().st_size:
        return
    with os.fdopen(open_file(folder, JOURNAL, os.O_RDWR), "r+b") as file:
        end = _line_start(file, file.seek(0, os.SEEK_END))
        file.truncate(end)
        file.seek(_line_start(file, end - 1))
        line = file.read()
    try:
        if line:
            ev.parse_event(line)
    except ValueError as error:
        raise JournalError(
            f"The last line of {folder / JOURNAL} is not an event ({first_problem(error)}): update llm_sandbox_nb, "
            "because a later version may have written it, or remove the line."
        ) from error


def _line_start(file: BinaryIO, end: int) -> int:
    """Return the beginning of the line that contains the byte before the position `end`."""
    while end > 0:
        start = max(0, end - 65536)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def first_problem(error: ValueError) -> str:
    """Describe the first problem of an invalid event in a few words."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    first = errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else str(first["msg"])


def journal_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a journal. `path` is the journal file or its run folder.

    Raises:
        FileNotFoundError: if there is no journal at `path`.
        JournalError: if the file is not a regular file, or the file or a line is too large.
    """
    folder, name = (path, JOURNAL) if path.is_dir() else (path.parent, path.name)
    try:
        descriptor = open_file(folder, name)
    except NotOwnFileError as error:
        raise JournalError(f"There is no record to read: {error}") from error
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_size > _MAX_JOURNAL_BYTES:
            raise JournalError(f"{folder / name} is larger than {_MAX_JOURNAL_BYTES} bytes")
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise JournalError(f"{folder / name}, line {number}: longer than {MAX_LINE_BYTES} bytes")
            yield line


def read_journal(path: Path) -> Iterator[ev.Event]:
    """Yield the events of a journal, upgraded to this version. `path` is the journal file or its run folder.

    Raises:
        FileNotFoundError: if there is no journal at `path`.
        JournalError: if the file is not a regular file, is too large or has too many values, or a line is not an event.
            A last line that is incomplete or invalid is ignored if an event precedes it.
    """
    pending: tuple[int, ValueError] | None = None
    begun, values = False, 0
    path = path / JOURNAL if path.is_dir() else path
    for number, line in enumerate(journal_lines(path), 1):
        if pending:
            raise JournalError(f"{path}, line {pending[0]}: not an event ({first_problem(pending[1])})")
        if not line.endswith(b"\n"):
            return
        values += _count_values(line)
        if values > _MAX_VALUES:
            raise JournalError(f"{path}, line {number}: the journal has more than {_MAX_VALUES:,} values")
        try:
            event = ev.parse_event(line)
        except ValueError as error:
            pending = (number, error)
            continue
        begun = True
        yield upgraded(event)
    if pending and not begun:
        raise JournalError(f"{path}, line {pending[0]}: not an event ({first_problem(pending[1])})")


def _count_values(line: bytes) -> int:
    bare = _JSON_TEXT.sub(b"", line)
    return _EVENT_VALUES + bare.count(b",") + bare.count(b"{") + bare.count(b"[")
