"""Run a benchmark on a cluster: Ray spreads the items over its nodes, each with its own engine.

One actor on each node runs many items at once. Results return to the one process that writes them.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from llm_sandbox_nb.benchmark.item_pipeline import FatalError, Item, LocalBackend, failed_result
from llm_sandbox_nb.benchmark.ray_hosts import (
    CallLostError,
    RayHosts,
    own_folder,
    packed,
    remove_leftovers,
    unpack,
)
from llm_sandbox_nb.benchmark.results import Result
from llm_sandbox_nb.benchmark.runner import MODEL_VALUES, SANDBOX_VALUES, RunnerOptions, how_of, opener_of
from llm_sandbox_nb.version import __version__


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

    def __init__(self, values: Mapping[str, Any], attempts: int, reuse: bool = True) -> None:
        remove_leftovers()
        self._folder, self._lock = own_folder()
        self._backend = LocalBackend(how_of(values), opener_of(values), self._folder, attempts, reuse=reuse)
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


class RayBackend:
    """Runs items on a Ray cluster; see `item_pipeline.Backend`.

    Args:
        address: see `RayHosts`.
        values: the values of the options, of which those for the model and the sandboxes go to the nodes.
        options: where records go, how many items run at once on the whole cluster, how often one is tried.

    Raises:
        UsageError: Ray is not installed, or the address is of a kind that does not work.
    """

    def __init__(self, address: str, values: Mapping[str, Any], options: RunnerOptions) -> None:
        given = {name: values[name] for name in (*MODEL_VALUES, *SANDBOX_VALUES)}
        self._hosts = RayHosts(
            address, Host, lambda: (given, options.attempts, options.reuse), options.workers
        )
        self._out = options.out

    async def __aenter__(self) -> Self:
        await self._hosts.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._hosts.__aexit__()

    async def attempt(self, item: Item) -> tuple[Result, str | None]:
        """See `Backend`.

        Raises:
            FatalError: a node says so, or no node is left.
        """
        started = time.time()
        try:
            reply, address = await self._hosts.call("attempt", item)
        except CallLostError as error:
            return failed_result(item, "worker_lost", str(error), started), None
        assert isinstance(reply, ItemReply)
        if reply.fatal or reply.result is None:
            raise FatalError(f"Node {address}: {reply.fatal}")
        await asyncio.to_thread(unpack, reply.record, self._out)
        return reply.result, reply.answer
