"""Checks of an executor's answers, and the conversion of answers to values and exceptions of `contract.py`."""

from __future__ import annotations

import base64
import errno
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

from llm_sandbox_nb.plain_text import plain
from llm_sandbox_nb.sandbox.contract import (
    Changes,
    CommandResult,
    FileChange,
    FileEntry,
    OutputCallback,
    StreamName,
)
from llm_sandbox_nb.sandbox.errors import (
    OutputLimitExceededError,
    SandboxError,
    SandboxUserError,
    TransferError,
)
from llm_sandbox_nb.sandbox.protocol.frames import MAX_PAYLOAD, Kind, ProtocolError

_T = TypeVar("_T")
_CONNECTION_BROKE_NOTICE = (
    "The connection to the Jupyter server broke during this command, and the command was ended. The server is "
    "connected again, with the same sandbox and files."
)
_MAX_TIME = 2**63  # seconds; a file's time may be any 64-bit number on a filesystem in memory
MAX_CHANGES = 10_000
"""Maximum number of changes that an executor may report at a time. An honest one reports far fewer."""
_STREAMS: dict[int, StreamName] = {Kind.STDOUT: "stdout", Kind.STDERR: "stderr"}


class CommandOutput:
    """Collector of the output frames of one command. The executor may send at most `limit` bytes of each stream."""

    def __init__(self, limit: int, on_output: OutputCallback | None) -> None:
        self.limit = limit
        self.background = b""
        self.omitted: dict[StreamName, int] = {}
        self._texts: dict[StreamName, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._sizes: dict[StreamName, int] = {"stdout": 0, "stderr": 0}
        self._on_output = on_output

    def take(self, kind: int, payload: bytes) -> None:
        """Add one frame.

        Raises:
            ProtocolError: if the executor sends more than it may, or a frame of another kind.
        """
        if kind in _STREAMS:
            self._add(_STREAMS[Kind(kind)], payload)
        elif kind == Kind.GAP:
            self._gap(payload)
        elif kind == Kind.DATA and len(self.background) + len(payload) <= MAX_PAYLOAD:
            self.background += payload
        else:
            raise ProtocolError(f"it sent a command's output in a frame of kind {kind}")

    def _add(self, stream: StreamName, data: bytes) -> None:
        self._sizes[stream] += len(data)
        if self._sizes[stream] > self.limit:
            raise ProtocolError("it sent more output than it may")
        self._texts[stream] += data
        if self._on_output:
            self._on_output(stream, data)

    def _gap(self, payload: bytes) -> None:
        try:
            gap = json.loads(payload)
            stream, omitted = gap["stream"], gap["omitted"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ProtocolError("its report of left-out output is invalid") from error
        if stream not in ("stdout", "stderr") or stream in self.omitted or not _is_count(omitted):
            raise ProtocolError("its report of left-out output is invalid")
        self.omitted[stream] = omitted
        marker = b"\n[... %d bytes left out ...]\n" % omitted
        self._texts[stream] += marker
        if self._on_output:
            self._on_output(stream, marker)

    def text(self, stream: StreamName) -> bytes:
        """Return the output received so far on a stream."""
        return bytes(self._texts[stream])

    def broken_off(self) -> CommandResult:
        """Return the result of a command that ended because the connection broke. It has the output received so far."""
        sizes = {name: size + self.omitted.get(name, 0) for name, size in self._sizes.items()}
        return CommandResult(
            exit_code=None,
            stdout=self.text("stdout"),
            stderr=self.text("stderr"),
            interrupted=True,
            truncated=bool(self.omitted),
            stdout_bytes=sizes["stdout"],
            stderr_bytes=sizes["stderr"],
            notice=_CONNECTION_BROKE_NOTICE,
        )


class Gathered:
    """Collector of the content of a file or a listing, up to a limit of bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._content = bytearray()

    def take(self, kind: int, payload: bytes) -> None:
        """Add one frame.

        Raises:
            ProtocolError: if the executor sends more than it may, or a frame of another kind.
        """
        if kind != Kind.STDOUT or len(self._content) + len(payload) > self._limit:
            raise ProtocolError("it sent more of a file than it may")
        self._content += payload

    def bytes(self) -> bytes:
        """Return the content received so far."""
        return bytes(self._content)


_FACTS: tuple[tuple[str, type, Any], ...] = (
    ("pid", int, 1),
    ("bash", bool, False),
    ("door", int, 0),
    ("failed", list, []),
    ("files", dict, {}),
)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_path(value: object) -> bool:
    """Return True if the value can be a path. Raises UnicodeEncodeError for text that cannot be converted to bytes."""
    return isinstance(value, str) and b"\0" not in os.fsencode(value)


def _field(answer: Mapping[str, Any], name: str, kind: type[_T], default: _T) -> _T:
    value = answer.get(name, default)
    if not isinstance(value, kind) or (kind is int and not _is_count(value)):
        raise ProtocolError(f"its answer has an invalid {name}")
    return value


def _seconds(value: object) -> float:
    """Return a time in seconds. Raise ProtocolError unless `value` is a number from -`_MAX_TIME` to `_MAX_TIME`."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= _MAX_TIME:
        raise ProtocolError("its answer has an invalid time")
    return float(value)


def executor_facts(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Check and return an executor's answer to HELLO.

    Raises:
        ProtocolError: if a field is invalid.
    """
    for name, kind, default in _FACTS:
        _field(answer, name, kind, default)
    if not all(isinstance(text, str | None) for text in answer.get("files", {}).values()):
        raise ProtocolError("its answer has invalid files")
    return dict(answer)


def texts_by_name(answer: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return the field `name` of an answer. The field must be an object of names and texts.

    Raises:
        ProtocolError: if the field is invalid.
    """
    found = _field(answer, name, dict, {})
    if not all(isinstance(text, str) for text in found.values()):
        raise ProtocolError(f"its answer has an invalid {name}")
    return dict(found)


def command_result(answer: Mapping[str, Any], output: CommandOutput) -> CommandResult:
    """Return the result of `run` or `exec`, from the answer and the collected output.

    Raises:
        ProtocolError: if the answer is invalid.
    """
    code = answer.get("exit_code")
    if code is not None and not (_is_count(code) and code < 256):
        raise ProtocolError("its answer has an invalid exit_code")
    full_output = answer.get("full_output")
    return CommandResult(
        exit_code=code,
        stdout=output.text("stdout"),
        stderr=output.text("stderr"),
        timed_out=_field(answer, "timed_out", bool, False),
        interrupted=_field(answer, "interrupted", bool, False),
        truncated=bool(output.omitted),
        duration=_seconds(answer.get("duration", 0.0)),
        stdout_bytes=_field(answer, "stdout_bytes", int, 0),
        stderr_bytes=_field(answer, "stderr_bytes", int, 0),
        full_output=full_output if isinstance(full_output, str) else None,
        notice=_field(answer, "notice", str, ""),
        background=output.background,
    )


def file_entry(row: bytes) -> FileEntry:
    """Parse one line of a listing.

    Raises:
        ProtocolError: if the line is invalid.
    """
    try:
        path, kind, size, mode, mtime = json.loads(row)
        known = _is_path(path) and kind in ("file", "directory", "link", "other")
        if not known or not _is_count(size) or not _is_count(mode):
            raise ValueError(row)
        return FileEntry(path, cast(Literal["file"], kind), size, mode, _seconds(mtime))
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError("a line of its listing is invalid") from error


def lines_of(data: bytes, most: int) -> list[bytes]:
    """Return the first `most` lines. A hostile listing may have millions, which would block the event loop."""
    return [line for line in data.split(b"\n", most)[:most] if line]


def changes_of(rows: Sequence[bytes], answer: Mapping[str, Any]) -> Changes:
    """Return the outcome of `changes`. `rows` are the lines of its output.

    Raises:
        ProtocolError: if the answer is invalid, or there are more than `MAX_CHANGES` lines.
    """
    if len(rows) > MAX_CHANGES:
        raise ProtocolError("it reports more changes than it may")
    return Changes(tuple(_file_change(row) for row in rows), _field(answer, "incomplete", str, ""))


def _file_change(row: bytes) -> FileChange:
    try:
        path, kind, size, before, after, size_before = json.loads(row)
        known = _is_path(path) and kind in ("added", "modified", "deleted")
        if not known or not _is_count(size) or not (size_before is None or _is_count(size_before)):
            raise ValueError(row)
        old, new = (
            None if text is None else base64.b64decode(text, validate=True) for text in (before, after)
        )
        return FileChange(path, cast(Literal["added"], kind), size, old, new, size_before=size_before)
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError("a line of its changes is invalid") from error


def raise_upload_error(answer: Mapping[str, Any], target: str) -> None:
    """Raise the error in an answer to an upload. An OS error becomes a `TransferError`."""
    try:
        raise_error(answer, "")
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        reason = "its disk is full" if error.errno == errno.ENOSPC else f"{error.strerror}{where}"
        raise TransferError(f"The sandbox cannot take the upload to {target}: {reason}.") from error


def raise_error(answer: Mapping[str, Any], path: str, limit: int | None = None) -> None:
    """Raise the error in an answer if there is one.

    Args:
        answer: answer of the executor.
        path: path of the file as the caller has given it. If it is empty, an OSError has the path in the answer.
        limit: maximum bytes that the caller has allowed, for the message of `OutputLimitExceededError`.
    """
    error = answer.get("error")
    if error is None:
        return
    if not isinstance(error, dict):
        raise SandboxError("The sandbox reports an invalid error.")
    kind = error.get("kind")
    message = plain(str(error.get("message", "no reason given"))[:1000])
    if kind == "os":
        number = error.get("errno")
        number = number if isinstance(number, int) and number in errno.errorcode else errno.EIO
        place = path or str(error.get("path", ""))[:4096]
        raise OSError(number, os.strerror(number), *([place] if place else []))
    if kind == "user":
        raise SandboxUserError(f"{message[:1].upper()}{message[1:]}.")
    if kind == "limit":
        raise OutputLimitExceededError(
            f"{path} is larger than the limit of {limit} bytes; read a part of it with a command instead."
        )
    if kind == "timed_out":
        raise TimeoutError(
            errno.ETIMEDOUT, f"A file operation in the sandbox took too long ({message}).", path
        )
    if kind == "interrupted":
        raise InterruptedError(
            errno.EINTR, "A file operation in the sandbox was interrupted: try it again.", path
        )
    raise SandboxError(f"The sandbox could not complete the request: {message}.")


def closed_and_open(tried: object) -> tuple[list[str], list[str]]:
    """Return two sorted lists of names: of what the executor has tried in vain to use, and of what it could use.

    `tried` is the field `calls` or `reach` of the executor's answer to HELLO. It maps a name to True if the executor
    could use the system call, or reach the part of the network, of this name.
    """
    if not isinstance(tried, dict):
        return [], []
    found = sorted((str(name)[:40], bool(is_open)) for name, is_open in tried.items())[:8]
    return [name for name, is_open in found if not is_open], [name for name, is_open in found if is_open]


def disk_limits(executor: Mapping[str, Any]) -> tuple[int | None, int | None, str]:
    """Return the limits on all files together: maximum bytes, maximum number, and a text about their enforcement.

    None means no limit. The text is empty if there is no limit at all.
    """
    disk = executor.get("disk")
    if not isinstance(disk, dict) or not all(
        _is_count(disk.get(name)) for name in ("bytes", "files", "total")
    ):
        return None, None, ""
    size, files, total = disk["bytes"], disk["files"], disk["total"]
    if total and (not size or total <= size):
        return total, files or None, "this is the disk's size" + ("; files are counted" if files else "")
    how = "files are counted while commands run, and commands that pass the limit are ended"
    return size or None, files or None, how if size or files else ""
