"""A child process that is an executor, spoken to over its own stdin and stdout."""

from __future__ import annotations

import asyncio
import contextlib

from llm_sandbox_nb.sandbox.bootstrap import executor_source
from llm_sandbox_nb.sandbox.channel import Channel
from llm_sandbox_nb.sandbox.transport import StreamTransport

STDERR_KEPT = 4096
LEAVE = 1.0
"""Seconds given to an executor to end by itself."""


class PipedExecutor:
    """The process, the channel to it, and the end of what it writes to stderr."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        self.process = process
        self._said = b""
        self._listening = asyncio.create_task(self._listen(process.stderr))
        transport = StreamTransport(process.stdout, process.stdin)
        transport.write_raw(executor_source())
        self.channel = Channel(transport)
        self.channel.why_ended = lambda: self._said.decode("utf-8", "replace").strip()

    async def _listen(self, stderr: asyncio.StreamReader) -> None:
        while data := await stderr.read(STDERR_KEPT):
            self._said = (self._said + data)[-STDERR_KEPT:]

    async def end(self) -> None:
        """Let it end by itself, or kill it."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), LEAVE)
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        self._listening.cancel()
