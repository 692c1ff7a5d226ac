"""What an executor answers, made into the contract's values and exceptions; nothing is believed unchecked."""

from __future__ import annotations

import base64
import errno
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

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
from llm_sandbox_nb.sandbox.frames import MAX_PAYLOAD, Kind, ProtocolError

_T = TypeVar("_T")
_STREAMS: dict[int, StreamName] = {Kind.STDOUT: "stdout", Kind.STDERR: "stderr"}


class CommandOutput:
    """Takes the output frames of one command, never more than agreed."""

    def __init__(self, limit: int, on_output: OutputCallback | None) -> None:
        self.limit = limit
        self.background = b""
        self.omitted: dict[StreamName, int] = {}
        self._pieces: dict[StreamName, list[bytes]] = {"stdout": [], "stderr": []}
        self._sizes: dict[StreamName, int] = {"stdout": 0, "stderr": 0}
        self._on_output = on_output

    def take(self, kind: int, payload: bytes) -> None:
        """One frame.

        Raises:
            ProtocolError: more came than may.
        """
        if kind in _STREAMS:
            self._add(_STREAMS[Kind(kind)], payload)
        elif kind == Kind.GAP:
            self._gap(payload)
        elif kind == Kind.DATA and len(self.background) + len(payload) <= MAX_PAYLOAD:
            self.background += payload
        else:
            raise ProtocolError(f"a command's output came with frame kind {kind}")

    def _add(self, stream: StreamName, data: bytes) -> None:
        self._sizes[stream] += len(data)
        if self._sizes[stream] > self.limit:
            raise ProtocolError("it sent more output than it may")
        self._pieces[stream].append(data)
        if self._on_output:
            self._on_output(stream, data)

    def _gap(self, payload: bytes) -> None:
        try:
            gap = json.loads(payload)
            stream, omitted = gap["stream"], gap["omitted"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ProtocolError("it told of left-out output in a way that makes no sense") from error
        if stream not in self._pieces or stream in self.omitted or not _is_count(omitted):
            raise ProtocolError("it told of left-out output in a way that makes no sense")
        self.omitted[stream] = omitted
        marker = b"\n[... %d bytes left out ...]\n" % omitted
        self._pieces[stream].append(marker)
        if self._on_output:
            self._on_output(stream, marker)

    def text(self, stream: StreamName) -> bytes:
        """What has come of a stream."""
        return b"".join(self._pieces[stream])


class Gathered:
    """Takes the content of a file or a listing, up to a limit of bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0

    def take(self, kind: int, payload: bytes) -> None:
        """One frame.

        Raises:
            ProtocolError: more came than may.
        """
        self._size += len(payload)
        if kind != Kind.STDOUT or self._size > self._limit:
            raise ProtocolError("it sent more of a file than it may")
        self._pieces.append(payload)

    def bytes(self) -> bytes:
        """All that has come."""
        return b"".join(self._pieces)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _field(answer: Mapping[str, Any], name: str, kind: type[_T], default: _T) -> _T:
    value = answer.get(name, default)
    if not isinstance(value, kind) or (kind is int and not _is_count(value)):
        raise ProtocolError(f"its answer has no proper {name}")
    return value


def _seconds(value: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ProtocolError("its answer has no proper time")
    return float(value)


def command_result(answer: Mapping[str, Any], output: CommandOutput) -> CommandResult:
    """The result of `run` or `exec`.

    Raises:
        ProtocolError: the answer makes no sense.
    """
    code = answer.get("exit_code")
    if code is not None and not (_is_count(code) and code < 256):
        raise ProtocolError("its answer has no proper exit_code")
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
    """One line of a listing.

    Raises:
        ProtocolError: it is none.
    """
    try:
        path, kind, size, mode, mtime = json.loads(row)
        known = isinstance(path, str) and kind in ("file", "directory", "link", "other")
        if not known or not _is_count(size) or not _is_count(mode):
            raise ValueError(row)
        return FileEntry(path, cast(Literal["file"], kind), size, mode, _seconds(mtime))
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError("a line of its listing makes no sense") from error


def changes_of(rows: Sequence[bytes], answer: Mapping[str, Any]) -> Changes:
    """What `changes` tells.

    Raises:
        ProtocolError: it makes no sense.
    """
    return Changes(tuple(_file_change(row) for row in rows), _field(answer, "incomplete", str, ""))


def _file_change(row: bytes) -> FileChange:
    try:
        path, kind, size, before, after = json.loads(row)
        known = isinstance(path, str) and kind in ("added", "modified", "deleted")
        if not known or not _is_count(size):
            raise ValueError(row)
        old, new = (
            None if text is None else base64.b64decode(text, validate=True) for text in (before, after)
        )
        return FileChange(path, cast(Literal["added"], kind), size, old, new)
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError("a line of its changes makes no sense") from error


def raise_upload_error(answer: Mapping[str, Any], target: str) -> None:
    """Raise what an answer to an upload tells: every reason is a `TransferError`."""
    try:
        raise_error(answer, "")
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        reason = "it has no room" if error.errno == errno.ENOSPC else f"{error.strerror}{where}"
        raise TransferError(f"The sandbox cannot take the upload to {target}: {reason}.") from error


def raise_error(answer: Mapping[str, Any], path: str, limit: int | None = None) -> None:
    """Raise what an answer tells as an error; `path` is what the caller called it."""
    error = answer.get("error")
    if error is None:
        return
    if not isinstance(error, dict):
        raise SandboxError("The sandbox reports an error that makes no sense.")
    kind = error.get("kind")
    message = str(error.get("message", "no reason given"))[:1000]
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
    if kind in ("timed_out", "interrupted"):
        raise TimeoutError(
            errno.ETIMEDOUT, f"A file operation in the sandbox took too long ({message}).", path
        )
    raise SandboxError(f"The sandbox could not do it: {message}.")
