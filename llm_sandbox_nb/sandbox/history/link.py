"""What a history needs of the sandbox that it is of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol

from llm_sandbox_nb.sandbox.body import Body
from llm_sandbox_nb.sandbox.contract import FileEntry
from llm_sandbox_nb.sandbox.frames import ProtocolError

Deliver = Callable[[str, int, Iterator[bytes]], Awaitable[None]]
"""Puts a file into the sandbox's top folder: its name, its bytes, its content. Raises SandboxError, OSError."""


class Link(Protocol):
    """A living connection to the executor of a sandbox."""

    deliver: Deliver | None
    """How a file gets into the sandbox from outside, where that is possible; quicker than over the connection."""

    async def ask_files(
        self,
        params: Mapping[str, Any],
        sink: Callable[[int, bytes], None] | None,
        timeout: float,
        body: Body | None = None,
    ) -> dict[str, Any]:
        """A request about the files. Raises SandboxLostError."""
        ...

    async def list_files(self, path: str, *, depth: int = 1, limit: int = 10_000) -> list[FileEntry]:
        """See `Sandbox.list_files`."""
        ...

    def broke_protocol(self, error: ProtocolError) -> Exception:
        """Give the sandbox up because of what it told; the exception to raise."""
        ...
