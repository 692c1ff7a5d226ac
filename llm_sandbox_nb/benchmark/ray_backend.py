"""Run a benchmark on a cluster: Ray spreads the items over its nodes, each with its own engine.

One actor on each node runs many items at once. Results return to the one process that writes them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from llm_sandbox_nb.benchmark.backends import MODEL_VALUES, SANDBOX_VALUES
from llm_sandbox_nb.benchmark.item_pipeline import FatalError, Item, failed_result
from llm_sandbox_nb.benchmark.ray_host import Host, ItemReply, unpack
from llm_sandbox_nb.benchmark.ray_hosts import CallLostError, RayHosts

if TYPE_CHECKING:
    from llm_sandbox_nb.benchmark.results import Result
    from llm_sandbox_nb.benchmark.runner import RunnerOptions


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
        self._hosts = RayHosts(address, Host, lambda: (given, options.attempts), options.workers)
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
