"""A program in a sandbox whose stdin and stdout are pipes to this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.protocol.answers import raise_error
from llm_sandbox_nb.sandbox.protocol.frames import Kind, ProtocolError

MAX_OUTPUT_BYTES = 64 * 1024 * 1024
"""Maximum bytes of each output stream. The executor sends the first half of these bytes at once. It sends the last half
only when the program has ended, and leaves out all bytes between the halves."""
_MAX_UNSENT_BYTES = 16 * 1024 * 1024
"""Maximum bytes of input that wait in this process because the program has not read the earlier input."""


class PipedProgram:
    """A program in a running sandbox. Call `run` only once. `write` can be called while `run` runs."""

    def __init__(
        self,
        sandbox: ChannelSandbox,
        argv: Sequence[str],
        env: Mapping[str, str],
        show: Callable[[bool, bytes], None],
    ) -> None:
        """Prepare the program.

        Args:
            sandbox: the sandbox.
            argv: program and arguments.
            env: variables in addition to the sandbox's environment.
            show: function that is called with each piece of output. Its first argument is True for stdout and False for
                stderr. Its second argument is the bytes, which may be hostile. The function must not block.
        """
        self._sandbox = sandbox
        self._argv = list(argv)
        self._env = dict(env)
        self._show = show
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()
        self._unsent_bytes = 0
        self.output_bytes = 0
        """Bytes that have arrived, both streams together. Once a stream has more than half of `MAX_OUTPUT_BYTES`, its
        further output arrives only when the program ends. So the caller must start the program again before that."""

    async def run(self) -> int | None:
        """Run the program to its end. Return the exit code, or None if the program was ended from outside.

        If the task that awaits this call is cancelled, the program and all processes that it started end.

        Raises:
            SandboxLostError: if the sandbox is lost.
            SandboxError, OSError: if the program cannot start.
        """
        root = self._sandbox.directories.root
        params = {
            "op": "exec",
            "argv": self._argv,
            "cwd": root,
            "env": self._env,
            "user": None,
            "timeout": None,
            "output_limit": MAX_OUTPUT_BYTES,
        }
        answer = await self._sandbox.channel.call(params, body=self._body(), sink=self._receive)
        raise_error(answer, root)
        code = answer.get("exit_code")
        return code if isinstance(code, int) else None

    def write(self, data: bytes) -> None:
        """Send input to the program. Raises ValueError if too much input waits because the program does not read."""
        if self._unsent_bytes + len(data) > _MAX_UNSENT_BYTES:
            raise ValueError("The program does not read its input.")
        self._unsent_bytes += len(data)
        self._pieces.put_nowait(data)

    async def _body(self) -> AsyncIterator[bytes]:
        while True:
            piece = await self._pieces.get()
            yield piece
            self._unsent_bytes -= len(piece)

    def _receive(self, kind: int, payload: bytes) -> None:
        if kind == Kind.GAP:
            return
        # A hostile sandbox may send more than it was allowed.
        self.output_bytes += len(payload)
        if kind not in (Kind.STDOUT, Kind.STDERR) or self.output_bytes > 2 * MAX_OUTPUT_BYTES:
            raise ProtocolError("a program sent more output than it may")
        self._show(kind == Kind.STDOUT, payload)
