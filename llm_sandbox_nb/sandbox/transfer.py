"""Uploads: a file or folder of the host as a stream that the executor unpacks."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from llm_sandbox_nb.sandbox.errors import TransferError
from llm_sandbox_nb.sandbox.tree import CHUNK, CHUNK_SIZE, DIRECTORY, FILE, THE_END, record

BATCH = 1024 * 1024


@dataclass(frozen=True)
class Planned:
    """One file or folder to be uploaded, under its name inside."""

    name: bytes
    path: Path
    directory: bool
    mode: int


def plan_upload(source: Path) -> list[Planned]:
    """Everything that an upload of `source` takes: a file under its own name, or a folder's content.

    Raises:
        FileNotFoundError: `source` is missing.
        TransferError: a link leads outside, to nowhere, or back to a folder it is in; or a special file.
    """
    look = source.stat()
    if stat.S_ISREG(look.st_mode):
        return [Planned(os.fsencode(source.resolve().name), source, False, look.st_mode)]
    if not stat.S_ISDIR(look.st_mode):
        raise TransferError(f"{source} is neither a file nor a folder; upload one of these.")
    root = source.resolve()
    return list(_below(root, root, b"", (root,)))


def _below(folder: Path, root: Path, prefix: bytes, above: tuple[Path, ...]) -> Iterator[Planned]:
    for path in sorted(folder.iterdir()):
        name = prefix + os.fsencode(path.name)
        real = _inside(path, root) if path.is_symlink() else path
        look = real.stat()
        if stat.S_ISDIR(look.st_mode):
            if real in above:
                raise TransferError(
                    f"{path} is a link to a folder that it is in; remove it, then upload again."
                )
            yield Planned(name, real, True, look.st_mode)
            yield from _below(real, root, name + b"/", (*above, real))
        elif stat.S_ISREG(look.st_mode):
            yield Planned(name, real, False, look.st_mode)
        else:
            raise TransferError(f"{path} is neither a file nor a folder; remove it, then upload again.")


def _inside(link: Path, root: Path) -> Path:
    """What a link points to, if that is inside the folder that is uploaded."""
    try:
        real = link.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise TransferError(f"{link} is a link to nowhere; remove it, then upload again.") from error
    if not real.is_relative_to(root):
        raise TransferError(f"{link} is a link that leads outside {root}; replace it by what it points to.")
    return real


def _stream(plan: list[Planned]) -> Iterator[bytes]:
    for entry in plan:
        yield record(DIRECTORY if entry.directory else FILE, entry.name, stat.S_IMODE(entry.mode))
        if not entry.directory:
            yield from _content(entry.path)
    yield record(THE_END, b"")


def _content(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(CHUNK_SIZE):
            yield CHUNK.pack(len(data)) + data
    yield CHUNK.pack(0)


def _batch(pieces: Iterator[bytes]) -> bytes:
    """About a megabyte of the stream, or nothing at its end."""
    taken, size = [], 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece)
        if size >= BATCH:
            break
    return b"".join(taken)


async def tree_of(plan: list[Planned]) -> AsyncIterator[bytes]:
    """The stream of an upload; files are read in a thread."""
    pieces = _stream(plan)
    while batch := await asyncio.to_thread(_batch, pieces):
        yield batch
