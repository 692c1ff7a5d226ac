"""A file into a container from outside, by the engine itself: it writes there without the program inside."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator

from llm_sandbox_nb.sandbox.docker_engine import connect, in_thread, unexpected

_PIECE = 64 * 1024
"""Bytes from which a piece is sent as it is: to put larger ones together takes longer than it saves."""


async def put_file(container: str, name: str, size: int, content: Iterator[bytes]) -> None:
    """Put a file of `size` bytes, root's, into the top folder of a running container.

    Raises:
        IsolationUnavailableError: no engine answers.
        SandboxError: the engine refuses, for instance because there is no room.
    """
    await in_thread(_put, container, _Archive(name, size, content))


def _put(container: str, archive: _Archive) -> None:
    from llm_sandbox_nb.sandbox.docker_api import APIError

    try:
        connect().api.put_archive(container, "/", archive)
    except APIError as error:
        raise unexpected(error, "put a file into a container") from error


class _Archive:
    """An archive with one file. It knows its length, so that the engine is told that instead of many small ones."""

    def __init__(self, name: str, size: int, content: Iterator[bytes]) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode = size, 0o600
        self._head = member.tobuf(tarfile.GNU_FORMAT)
        self._content = content
        self._tail = bytes(-size % tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE)
        self._length = len(self._head) + size + len(self._tail)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[bytes]:
        waiting, held = [self._head], len(self._head)
        for piece in self._content:
            if held + len(piece) > _PIECE:
                yield b"".join(waiting)
                waiting, held = [], 0
            waiting.append(piece)
            held += len(piece)
        yield b"".join((*waiting, self._tail))
