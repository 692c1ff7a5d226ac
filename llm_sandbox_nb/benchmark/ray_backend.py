"""Backend for a benchmark on a Ray cluster. Items run on all nodes, and each node has its own engine for sandboxes.

One actor on each node runs many items at once. The process that started the benchmark writes all results.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from llm_sandbox_nb.benchmark.item_pipeline import FatalError, Item, LocalBackend, failed_result
from llm_sandbox_nb.benchmark.ray_hosts import CallLostError, NodeActor, RayHosts, packed, unpack
from llm_sandbox_nb.benchmark.results import Result
from llm_sandbox_nb.benchmark.runner import MODEL_VALUES, SANDBOX_VALUES, RunnerOptions, how_of, opener_of


@dataclass(frozen=True)
class ItemReply:
    """Reply of a node. `record` is a tar file of the run. Its paths are relative to the folder of all results."""

    result: Result | None = None
    answer: str | None = None
    record: bytes = b""
    fatal: str = ""
    """Reason why the benchmark must stop. Empty if the benchmark can continue."""


class Host(NodeActor):
    """Actor of one node. Its sandboxes end with the actor, even if the actor is killed."""

    def __init__(self, values: Mapping[str, Any], attempts: int, reuse: bool = True) -> None:
        super().__init__()
        self._backend = LocalBackend(how_of(values), opener_of(values), self._folder, attempts, reuse=reuse)
        self._count = 0

    async def attempt(self, item: Item) -> ItemReply:
        """Run an item. Refuse an item that arrives after `close`: Ray may change the order of calls."""
        if self._closing:
            return ItemReply(fatal="the node is closing")
        return await self._run(self._attempt(item))

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

    async def _close_sandboxes(self) -> None:
        await self._backend.__aexit__()


class RayBackend:
    """Backend that runs items on a Ray cluster; see `item_pipeline.Backend`.

    Args:
        address: see `RayHosts`.
        values: values of all options. Only the values for the model and the sandboxes are sent to the nodes.
        options: options of the runner. `workers` is the maximum number of running items in the whole cluster.

    Raises:
        UsageError: if Ray is not installed, or the address has an unsupported form.
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
        """Run an item on a node; see `Backend`.

        Raises:
            FatalError: if a node reports that the benchmark must stop, or no node is left.
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
