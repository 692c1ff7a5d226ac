"""The process on a node of a Ray cluster: it runs many items at once, with the node's own engine.

Records are made in a folder of the node and go back with the result, so that no shared file system is needed.
"""

from __future__ import annotations

import asyncio
import io
import shutil
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_sandbox_nb.benchmark.backends import how_of, opener_of
from llm_sandbox_nb.benchmark.item_pipeline import FatalError, Item, LocalBackend
from llm_sandbox_nb.benchmark.results import Result
from llm_sandbox_nb.sandbox import process
from llm_sandbox_nb.sandbox.leftover_folders import make_owned_folder, remove_left_folders
from llm_sandbox_nb.version import __version__

_PREFIX = "llm-sandbox-nb-host-"
_LOCK = "lock"
_GOING = 10.0
"""Seconds for the processes of a host to go, after it was killed."""


@dataclass(frozen=True)
class ItemReply:
    """What comes back from a node. `record` is a tar file whose names are seen from the folder of all results."""

    result: Result | None = None
    answer: str | None = None
    record: bytes = b""
    fatal: str = ""
    """Why the benchmark must stop."""


class Host:
    """The actor of one node. It lasts as long as the benchmark; its sandboxes end with it, however it ends."""

    def __init__(self, values: Mapping[str, Any], attempts: int) -> None:
        remove_leftovers()
        self._folder, self._lock = own_folder()
        self._backend = LocalBackend(how_of(values), opener_of(values), self._folder, attempts)
        self._work: set[asyncio.Task[ItemReply]] = set()
        self._count = 0
        self._closing = False

    async def ready(self) -> str:
        """The version of this package on the node, once the node is ready."""
        return __version__

    async def attempt(self, item: Item) -> ItemReply:
        """Run an item. One that comes after the order to close is not run: Ray may change their order."""
        if self._closing:
            return ItemReply(fatal="it is closing")
        work = asyncio.create_task(self._attempt(item))
        self._work.add(work)
        work.add_done_callback(self._work.discard)
        return await work

    async def _attempt(self, item: Item) -> ItemReply:
        self._count += 1
        folder = self._folder / str(self._count)
        try:
            result, answer = await self._backend.attempt(item, folder)
            return ItemReply(result, answer, await asyncio.to_thread(packed, folder))
        except FatalError as error:
            return ItemReply(fatal=str(error))
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def close(self) -> None:
        """Cancel the items that run; return when all sandboxes are closed and nothing is left."""
        self._closing = True
        for work in self._work:
            work.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        await self._backend.__aexit__()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)


def remove_leftovers() -> None:
    """Remove the folders of hosts that were killed on this node."""
    remove_left_folders(_PREFIX, _LOCK)


def tidy() -> None:
    """Remove what a host that was killed on this node has left, once its processes are gone."""
    deadline = time.monotonic() + _GOING
    while remove_left_folders(_PREFIX, _LOCK) + process.remove_left() and time.monotonic() < deadline:
        time.sleep(0.2)


def packed(folder: Path) -> bytes:
    """The files below `folder` as a tar file, empty when there are none."""
    if not folder.is_dir():
        return b""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz", compresslevel=1) as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name)
    return data.getvalue()


def unpack(record: bytes, out: Path) -> None:
    """Put the files of a node below `out` and nowhere else.

    Raises:
        OSError, tarfile.TarError: they cannot be written, or a name leads outside.
    """
    if record:
        out.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(record)) as archive:
            archive.extractall(out, filter="data")


def own_folder() -> tuple[Path, int]:
    """A new folder, and a lock that shows that its process lives."""
    return make_owned_folder(_PREFIX, _LOCK)
