"""The nodes of a Ray cluster, each with an actor that owns the sandboxes of its machine: for benchmarks and training.

An actor runs many calls at once. A call whose actor or node died runs again, on the node with the least to do.
Records are made in a folder of the node and go back with the result, so that no shared file system is needed.
"""

from __future__ import annotations

import asyncio
import io
import logging
import math
import os
import socket
import tarfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from llm_sandbox_nb.benchmark.item_pipeline import FatalError
from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.options.table import UsageError
from llm_sandbox_nb.sandbox import process
from llm_sandbox_nb.sandbox.leftover_folders import make_owned_folder, remove_left_folders
from llm_sandbox_nb.version import __version__

LIVES = 4
"""How many actors may die under a call before it counts as lost."""
REACH = 20.0
"""Seconds in which the head of a cluster has to answer."""
START = 180.0
"""Seconds for an actor to start on a node."""
TOGETHER = 60.0
"""Seconds to wait for all nodes before the first call, so that none has all the work."""
CLOSING = 60.0
"""Seconds for an actor to close all its sandboxes."""
TIDYING = 60.0
"""Seconds to remove what an actor that died has left on its node."""
NO_NODE = 120.0
"""Seconds to wait for a node while there is none."""
_LOOK = 5.0
"""Seconds between two looks at which nodes there are."""
_PREFIX = "llm-sandbox-nb-host-"
_LOCK = "lock"
_GOING = 10.0
"""Seconds for the processes of a host to go, after it was killed."""


class _Host:
    """An actor on a node; it gets calls once it has joined."""

    def __init__(self, node: str, address: str, actor: Any) -> None:
        self.node, self.address, self.actor = node, address, actor
        self.busy = 0
        self.ready = False
        self.joining = asyncio.create_task(_ready(self))


class CallLostError(LLMSandboxError):
    """Every actor that a call was given to has died."""


class RayHosts:
    """The nodes of a cluster, each with an actor. `async with` starts them and closes what they own.

    Args:
        address: `auto` (the cluster this machine belongs to, or that $RAY_ADDRESS names), or `HOST:PORT`.
        kind: the class of the actors; it has `ready`, which gives the package's version on the node, and `close`.
        given: gives the arguments of its constructor, once this process is connected.
        at_once: how many calls an actor may run at once.
        option: how the user named the address, for messages.

    Raises:
        UsageError: Ray is not installed, or the address is of a kind that does not work.
    """

    def __init__(
        self,
        address: str,
        kind: type,
        given: Callable[[], tuple[Any, ...]],
        at_once: int,
        option: str = "--ray",
    ) -> None:
        if find_spec("ray") is None:
            raise UsageError(f"{option} needs Ray: run `pip install 'llm-sandbox-nb[ray]'`.")
        if "://" in address:
            raise UsageError(
                f"{option} takes auto, or HOST:PORT of a cluster that this machine belongs to, not {address!r}."
            )
        self._address, self._kind, self._given, self._at_once = address, kind, given, at_once
        self._started: dict[str, _Host] = {}
        self._deserted: set[str] = set()
        """Nodes on which an actor died."""
        self._looked = -math.inf
        self._ours = False

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(self._connect)
            await self._look()
            if joining := [host.joining for host in self._started.values()]:
                await asyncio.wait(joining, timeout=TOGETHER)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        import ray

        started, self._started = list(self._started.values()), {}
        for host in started:
            host.joining.cancel()
        await asyncio.gather(*(host.joining for host in started), return_exceptions=True)
        closed = await asyncio.gather(*(_closed(host) for host in started))
        failed = {host.node for host, well in zip(started, closed, strict=True) if not well}
        await asyncio.gather(*(_tidied(node) for node in self._deserted | failed))
        if self._ours:
            await asyncio.to_thread(ray.shutdown)

    async def call(self, method: str, *arguments: Any) -> tuple[Any, str]:
        """The result of a call of the actor with the least to do, and the address of its node.

        Raises:
            CallLostError: every actor that it was given to has died.
            FatalError: no node is left, or one cannot be used.
        """
        from ray import exceptions

        said = ""
        died = (exceptions.RayActorError, exceptions.ObjectLostError, exceptions.WorkerCrashedError,
                exceptions.NodeDiedError, exceptions.OwnerDiedError)  # fmt: skip
        for _ in range(LIVES):
            host = await self._least_busy()
            host.busy += 1
            try:
                return await getattr(host.actor, method).remote(*arguments), host.address
            except died as error:
                said = _first_line(error)
                await self._lost(host)
            finally:
                host.busy -= 1
        raise CallLostError(said)

    def _connect(self) -> None:
        import ray

        if ray.is_initialized():
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            if host := self._address.rpartition(":")[0]:  # Ray itself would wait for it, deaf to Ctrl-C
                port = int(self._address.rpartition(":")[2])
                socket.create_connection((host.strip("[]"), port), timeout=REACH).close()
            ray.init(self._address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray raises all sorts, plain Exception too
            raise FatalError(
                f"There is no Ray cluster at {self._address} ({_first_line(error).rstrip('.')}): start one with "
                "`ray start --head`, or give the HOST:PORT that it printed."
            ) from error
        self._ours = True

    async def _least_busy(self) -> _Host:
        deadline = time.monotonic() + NO_NODE
        while True:
            await self._look()
            hosts = [host for host in self._started.values() if host.ready]
            if hosts:
                return min(hosts, key=lambda host: host.busy)
            if time.monotonic() > deadline:
                raise FatalError("No node of the Ray cluster is left: add one with `ray start`.")
            await asyncio.sleep(0.5)

    async def _look(self) -> None:
        """Start an actor on each living node with processors that has none; forget nodes that are gone.

        Raises:
            FatalError: a node cannot be used at all.
        """
        import ray

        if time.monotonic() - self._looked > _LOOK:
            self._looked = time.monotonic()
            nodes = {
                node["NodeID"]: node["NodeManagerAddress"]
                for node in await asyncio.to_thread(ray.nodes)
                if node["Alive"] and node["Resources"].get("CPU")
            }
            for gone in self._started.keys() - nodes.keys():
                self._started.pop(gone).joining.cancel()
            for node in nodes.keys() - self._started.keys():
                self._started[node] = _Host(node, nodes[node], self._start(node))
        for host in list(self._started.values()):
            if host.ready or not host.joining.done():
                continue
            host.ready = await host.joining
            if not host.ready:
                await self._lost(host)

    def _start(self, node: str) -> Any:
        import ray

        actor: Any = ray.remote(self._kind).options(
            num_cpus=0, max_concurrency=max(1, self._at_once) + 2, scheduling_strategy=_on(node)
        )
        return actor.remote(*self._given())

    async def _lost(self, host: _Host) -> None:
        """An actor has died: the next look starts another in its place, if its node lives."""
        import ray

        self._deserted.add(host.node)
        if self._started.get(host.node) is host:
            del self._started[host.node]
            with suppress(Exception):
                ray.kill(host.actor)
        await asyncio.sleep(1)


def make_actor(kind: type, at_once: int) -> Any:
    """One actor anywhere in the cluster that this process is connected to; it ends with its last handle."""
    import ray

    actor: Any = ray.remote(kind)
    return actor.options(num_cpus=0, max_concurrency=at_once).remote()


async def _ready(host: _Host) -> bool:
    """Whether an actor can be used. Its node may have died since.

    Raises:
        FatalError: its node lacks this package, or has another version.
    """
    from ray import exceptions

    try:
        async with asyncio.timeout(START):
            version = await host.actor.ready.remote()
    except (TimeoutError, exceptions.ActorUnschedulableError, exceptions.NodeDiedError):
        return False
    except exceptions.RayActorError as error:
        if "ModuleNotFoundError" in str(error) or "ImportError" in str(error):
            raise FatalError(
                f"Node {host.address} cannot import llm_sandbox_nb: install version {__version__} of it there."
            ) from error
        if "creation task" in str(error) or "__init__" in str(error):
            raise FatalError(f"Node {host.address} cannot run items: {_last_line(error)}") from error
        return False
    if version != __version__:
        raise FatalError(
            f"Node {host.address} has version {version} of llm-sandbox-nb: install {__version__} there."
        )
    return True


async def _closed(host: _Host) -> bool:
    """Tell an actor to close its sandboxes, then end it, also when it does not answer; True when it closed them."""
    import ray

    closed = False
    with suppress(Exception):
        async with asyncio.timeout(CLOSING):
            await host.actor.close.remote()
            closed = True
    with suppress(Exception):
        ray.kill(host.actor)
    return closed


async def _tidied(node: str) -> None:
    """Remove what an actor that died has left on a node, if the node lives."""
    import ray

    with suppress(Exception):
        async with asyncio.timeout(TIDYING):
            await ray.remote(tidy).options(num_cpus=0, max_retries=0, scheduling_strategy=_on(node)).remote()


def _on(node: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[
        :300
    ]


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1][:300]


def own_folder() -> tuple[Path, int]:
    """A new folder for the records of an actor, and a lock that shows that its process lives."""
    return make_owned_folder(_PREFIX, _LOCK)


def remove_leftovers() -> None:
    """Remove the folders of hosts that were killed on this node."""
    remove_left_folders(_PREFIX, _LOCK)


def tidy() -> None:
    """Remove what a host that was killed on this node has left, once its processes are gone."""
    deadline = time.monotonic() + _GOING
    while remove_left_folders(_PREFIX, _LOCK) + process.remove_leftovers() and time.monotonic() < deadline:
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
