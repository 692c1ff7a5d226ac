"""A file into a container from outside, by the engine itself: it writes there without the program inside."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator

from llm_sandbox_nb.sandbox.docker_engine import connect, in_thread, unexpected

_PIECE = 1024 * 1024


async def put_file(container: str, name: str, size: int, content: Iterator[bytes]) -> None:
    """Put a file of `size` bytes, root's, into the top folder of a running container.

    Raises:
        IsolationUnavailableError: no engine answers.
        SandboxError: the engine refuses, for instance because there is no room.
    """
    await in_thread(_put, container, _archive(name, size, content))


def _put(container: str, archive: Iterator[bytes]) -> None:
    from llm_sandbox_nb.sandbox.docker_api import APIError

    try:
        connect().api.put_archive(container, "/", archive)
    except APIError as error:
        raise unexpected(error, "put a file into a container") from error


def _archive(name: str, size: int, content: Iterator[bytes]) -> Iterator[bytes]:
    """An archive with this one file, in large pieces."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    waiting, held = [member.tobuf(tarfile.GNU_FORMAT)], 0
    for piece in content:
        waiting.append(piece)
        held += len(piece)
        if held >= _PIECE:
            yield b"".join(waiting)
            waiting, held = [], 0
    padding = -size % tarfile.BLOCKSIZE
    yield b"".join((*waiting, bytes(padding + 2 * tarfile.BLOCKSIZE)))
