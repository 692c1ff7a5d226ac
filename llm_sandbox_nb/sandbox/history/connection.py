"""What a history needs of the connection to its sandbox's executor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol

from llm_sandbox_nb.sandbox.contract import FileEntry
from llm_sandbox_nb.sandbox.protocol.channel import Body
from llm_sandbox_nb.sandbox.protocol.frames import ProtocolError

Deliver = Callable[[str, int, Iterator[bytes]], Awaitable[None]]
"""Puts a file into the sandbox's top folder: its name, its bytes, its content. Raises SandboxError, OSError."""


class ExecutorConnection(Protocol):
    """A living connection to the executor of a sandbox."""

    deliver: Deliver | None
    """Puts a file into the sandbox from outside, where that is possible; quicker than through the connection."""

    async def request_files(
        self,
        params: Mapping[str, Any],
        sink: Callable[[int, bytes], None] | None,
        timeout: float,
        body: Body | None = None,
    ) -> dict[str, Any]:
        """Send a request about files, and return its outcome. Raises SandboxLostError."""
        ...

    async def list_files(self, path: str, *, depth: int = 1, limit: int = 10_000) -> list[FileEntry]:
        """See `Sandbox.list_files`."""
        ...

    def broke_protocol(self, error: ProtocolError) -> Exception:
        """End the sandbox because of what it sent. Returns the exception to raise."""
        ...
