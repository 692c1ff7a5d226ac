"""A terminal in a sandbox, as its host sees it: what is typed goes in, what is shown comes out, both bounded."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable

from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.protocol.answers import raise_error
from llm_sandbox_nb.sandbox.protocol.frames import Kind, ProtocolError

UNDER_WAY = 256 * 1024
"""Bytes of output that may be unread; a program that prints more waits."""
TYPED_AHEAD = 1024 * 1024
"""Bytes that may be typed, or pasted, before the programs in the terminal take them."""
_TIDY = (
    r"\033[!p\033[4l\033[?47l\033[?1000l\033[?1002l\033[?1003l\033[?1004l\033[?7h"
    r"\033]104\007\033]110\007\033]111\007\033]112\007"
)
"""Before each prompt, so that what a program has left behind hides nothing: no half a sequence, its modes (characters,
colours, cursor, margins, insertion, another screen, mouse and focus reports, no wrapping), its palette."""
_RECORD = struct.Struct(">cI")
_PIECE = 32 * 1024
_MOST = 4096


class Terminal:
    """A shell on a terminal of its own in a running sandbox. `run` it once; the rest is for while it runs."""

    def __init__(
        self, sandbox: ChannelSandbox, show: Callable[[bytes], None], *, rows: int = 24, columns: int = 80
    ) -> None:
        """`show` takes what the terminal shows, raw and hostile; each byte is to be `ask`ed for again."""
        self._sandbox = sandbox
        self._show = show
        self._size = _size(rows, columns)
        self._room = UNDER_WAY
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue()
        self._typed = 0
        self._tell(b"a", UNDER_WAY)

    async def run(self) -> int | None:
        """Until the shell ends, with its exit code; None when it was ended. Cancelling ends all that it started.

        Raises:
            SandboxLostError: the sandbox is lost.
            SandboxError, OSError: the sandbox can open no terminal.
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
                "PROMPT_COMMAND": f"printf '{_TIDY}'",
            },
            "rows": rows,
            "columns": columns,
        }
        answer = await self._sandbox.channel.call(params, body=self._body(), sink=self._take)
        raise_error(answer, "/dev/ptmx")
        code = answer.get("exit_code")
        return code if isinstance(code, int) else None

    def type(self, data: bytes) -> None:
        """Type into it. Raises ValueError when its programs do not take what was typed before."""
        self._put(b"i", data)

    def report(self, data: bytes) -> None:
        """What the terminal says of itself: its answers, the mouse. Only a program that may have asked hears it.

        Raises ValueError as `type` does.
        """
        self._put(b"r", data)

    def _put(self, kind: bytes, data: bytes) -> None:
        if self._typed + len(data) > TYPED_AHEAD:
            raise ValueError("The terminal takes no more input: nothing in it reads what was typed before.")
        self._typed += len(data)
        for start in range(0, len(data), _PIECE):
            piece = data[start : start + _PIECE]
            self._waiting.put_nowait(_RECORD.pack(kind, len(piece)) + piece)

    def resize(self, rows: int, columns: int) -> None:
        """The size of the window it is shown in, in characters; clamped to 1 to 4096."""
        size = _size(rows, columns)
        if size != self._size:
            self._size = size
            self._tell(b"s", size[0] << 16 | size[1])

    def ask(self, count: int) -> None:
        """So many bytes have been looked at, and as many may follow. Raises ValueError when they never came."""
        if not 0 <= count <= UNDER_WAY - self._room:
            raise ValueError("More output was acknowledged than was sent.")
        if count:
            self._room += count
            self._tell(b"a", count)

    def _tell(self, kind: bytes, value: int) -> None:
        self._waiting.put_nowait(_RECORD.pack(kind, value))

    async def _body(self) -> AsyncIterator[bytes]:
        while True:
            piece = await self._waiting.get()
            yield piece
            if piece[:1] in (b"i", b"r"):
                self._typed -= len(piece) - _RECORD.size

    def _take(self, kind: int, payload: bytes) -> None:
        """Output of a sandbox that may not keep to what was agreed."""
        self._room -= len(payload)
        if kind != Kind.STDOUT or self._room < 0:
            raise ProtocolError("its terminal showed more than was asked for")
        self._show(payload)


def _size(rows: int, columns: int) -> tuple[int, int]:
    return max(1, min(rows, _MOST)), max(1, min(columns, _MOST))
