"""A terminal in a sandbox. The number of bytes that wait to be shown or to be read is limited."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable

from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.protocol.answers import raise_error
from llm_sandbox_nb.sandbox.protocol.frames import Kind, ProtocolError

MAX_UNREAD_BYTES = 256 * 1024
"""Maximum bytes of output for which `acknowledge` was not called yet. A program that prints more has to wait."""
MAX_TYPED_BYTES = 1024 * 1024
"""Maximum bytes of typed or pasted input that are not sent yet."""
_RESET_SEQUENCE = (
    r"\033[!p\033[4l\033[?47l\033[?1000l\033[?1002l\033[?1003l\033[?1004l\033[?7h"
    r"\033]104\007\033]110\007\033]111\007\033]112\007"
)
"""Escape sequences that are printed before each prompt. They undo settings that earlier programs have left: modes
(characters, colours, cursor, margins, insertion, another screen, mouse and focus reports, no wrapping) and the palette.
They also end an incomplete escape sequence."""
_RECORD = struct.Struct(">cI")
_MAX_RECORD_BYTES = 32 * 1024
_MAX_SIZE = 4096
"""Maximum number of rows, and of columns."""


class Terminal:
    """A shell on a new terminal in a running sandbox. Call `run` once, and other methods while `run` runs."""

    def __init__(
        self, sandbox: ChannelSandbox, show: Callable[[bytes], None], *, rows: int = 24, columns: int = 80
    ) -> None:
        """Prepare the terminal.

        Args:
            sandbox: the sandbox.
            show: function that is called with each piece of raw output, which may be hostile. Call `acknowledge` after
                the bytes were shown; otherwise the output stops after `MAX_UNREAD_BYTES`.
            rows: height of the window in characters.
            columns: width of the window in characters.
        """
        self._sandbox = sandbox
        self._show = show
        self._size = _size(rows, columns)
        self._allowed_bytes = MAX_UNREAD_BYTES
        self._records: asyncio.Queue[bytes] = asyncio.Queue()
        self._typed_bytes = 0
        self._send_number(b"a", MAX_UNREAD_BYTES)

    async def run(self) -> int | None:
        """Run the shell to its end. Return the exit code, or None if the terminal was ended from outside.

        If the task that awaits this call is cancelled, the shell and its processes end.

        Raises:
            SandboxLostError: if the sandbox is lost.
            SandboxError, OSError: if the sandbox cannot open a terminal.
        """
        rows, columns = self._size
        shell = "bash" if self._sandbox.executor.get("bash") else "sh"
        params = {
            "op": "terminal",
            "argv": [shell, "-i"],
            "cwd": self._sandbox.directories.root,
            "env": {
                "TERM": "xterm-256color",
                "COLORTERM": "truecolor",
                "PROMPT_COMMAND": f"printf '{_RESET_SEQUENCE}'",
            },
            "rows": rows,
            "columns": columns,
        }
        answer = await self._sandbox.channel.call(params, body=self._body(), sink=self._receive)
        raise_error(answer, "/dev/ptmx")
        code = answer.get("exit_code")
        return code if isinstance(code, int) else None

    def type(self, data: bytes) -> None:
        """Send typed bytes. Raises ValueError if too much input waits because the program inside does not read."""
        self._send_bytes(b"i", data)

    def report(self, data: bytes) -> None:
        """Send bytes that the terminal emulator generates, such as answers to queries and mouse events.

        The executor passes the bytes on only if the program on the terminal may have requested them. Raises ValueError
        like `type`.
        """
        self._send_bytes(b"r", data)

    def _send_bytes(self, kind: bytes, data: bytes) -> None:
        if self._typed_bytes + len(data) > MAX_TYPED_BYTES:
            raise ValueError("The terminal accepts no more input until its program reads the earlier input.")
        self._typed_bytes += len(data)
        for start in range(0, len(data), _MAX_RECORD_BYTES):
            piece = data[start : start + _MAX_RECORD_BYTES]
            self._records.put_nowait(_RECORD.pack(kind, len(piece)) + piece)

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the window in characters. Numbers below 1 become 1, and numbers above 4096 become 4096."""
        size = _size(rows, columns)
        if size != self._size:
            self._size = size
            self._send_number(b"s", size[0] << 16 | size[1])

    def acknowledge(self, count: int) -> None:
        """Report that `count` bytes of output were shown. The sandbox may then send as many further bytes.

        Raises:
            ValueError: if `count` is larger than the number of shown bytes that were not acknowledged yet.
        """
        if not 0 <= count <= MAX_UNREAD_BYTES - self._allowed_bytes:
            raise ValueError("More output was acknowledged than was sent.")
        if count:
            self._allowed_bytes += count
            self._send_number(b"a", count)

    def _send_number(self, kind: bytes, value: int) -> None:
        self._records.put_nowait(_RECORD.pack(kind, value))

    async def _body(self) -> AsyncIterator[bytes]:
        while True:
            record = await self._records.get()
            yield record
            if record[:1] in (b"i", b"r"):
                self._typed_bytes -= len(record) - _RECORD.size

    def _receive(self, kind: int, payload: bytes) -> None:
        # A hostile sandbox may send more than it was allowed.
        self._allowed_bytes -= len(payload)
        if kind != Kind.STDOUT or self._allowed_bytes < 0:
            raise ProtocolError("its terminal sent more output than it may")
        self._show(payload)


def _size(rows: int, columns: int) -> tuple[int, int]:
    return max(1, min(rows, _MAX_SIZE)), max(1, min(columns, _MAX_SIZE))
