"""Nodes of a Ray cluster for benchmarks and training. Each node has an actor that owns the sandboxes of the node.

An actor runs many calls at once. If an actor or its node dies, the actor's calls run again on the least busy node. An
actor writes the records of runs to a folder of its node, and sends them back with the results. Therefore no shared file
system is needed.
"""

from __future__ import annotations

import asyncio
import io
import logging
import math
import os
import shutil
import socket
import tarfile
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self, TypeVar

from llm_sandbox_nb.benchmark.item_pipeline import FatalError
from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.options.table import UsageError
from llm_sandbox_nb.sandbox import process
from llm_sandbox_nb.sandbox.leftover_folders import make_owned_folder, remove_left_folders
from llm_sandbox_nb.version import __version__

MAX_DEATHS = 4
"""Number of actors that must die during a call before the call counts as lost."""
CONNECT_SECONDS = 20.0
"""Seconds in which the head of a cluster must answer."""
START_SECONDS = 180.0
"""Seconds in which an actor must start on a node."""
JOIN_SECONDS = 60.0
"""Maximum seconds to wait for all nodes before the first call, so that the first nodes do not get all the work."""
CLOSE_SECONDS = 60.0
"""Seconds in which an actor must close all its sandboxes."""
TIDY_SECONDS = 60.0
"""Seconds in which the leftovers of a dead actor must be removed from its node."""
NO_NODE_SECONDS = 120.0
"""Maximum seconds to wait for a node that can be used. After that, the benchmark or training stops."""
_LOOK_SECONDS = 5.0
"""Seconds between two polls of the list of nodes."""
_T = TypeVar("_T")
_PREFIX = "llm-sandbox-nb-host-"
_LOCK = "lock"
_EXIT_SECONDS = 10.0
"""Seconds in which the processes of a killed actor must end."""


class _Host:
    """Actor on a node. The actor gets calls as soon as `ready` is True."""

    def __init__(self, node: str, address: str, actor: Any) -> None:
        self.node, self.address, self.actor = node, address, actor
        self.busy = 0
        self.ready = False
        self.joining = asyncio.create_task(_ready(self))


class CallLostError(LLMSandboxError):
    """Error of a call: every actor that received the call died."""


class RayHosts:
    """Nodes of a cluster, each with an actor. `async with` starts the actors, and finally closes their sandboxes.

    Args:
        address: `auto` (the cluster of this machine, or of $RAY_ADDRESS), or `HOST:PORT`.
        kind: class of the actors. The method `ready` returns the version of this package on the node, and `close`
            closes the sandboxes.
        given: function that returns the arguments of the class. It is called for each actor, after this process has
            connected to the cluster.
        at_once: maximum number of simultaneous calls of an actor.
        option: name of the option that holds the address, for error messages.

    Raises:
        UsageError: if Ray is not installed, or the address has an unsupported form.
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
                f"{option} has to be auto, or HOST:PORT of a cluster that this machine belongs to, not {address!r}."
            )
        self._address, self._kind, self._given, self._at_once = address, kind, given, at_once
        self._started: dict[str, _Host] = {}
        self._deserted: set[str] = set()
        """Nodes on which an actor died."""
        self._looked = -math.inf
        self._connected_here = False

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(self._connect)
            await self._look()
            if joining := [host.joining for host in self._started.values()]:
                await asyncio.wait(joining, timeout=JOIN_SECONDS)
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
        if self._connected_here:
            await asyncio.to_thread(ray.shutdown)

    async def call(self, method: str, *arguments: Any) -> tuple[Any, str]:
        """Call a method of the least busy actor. Return the result and the address of the actor's node.

        Raises:
            CallLostError: if every actor that received the call died.
            FatalError: if no node is left, or a node cannot be used at all.
        """
        from ray import exceptions

        reason = ""
        died = (exceptions.RayActorError, exceptions.ObjectLostError, exceptions.WorkerCrashedError,
                exceptions.NodeDiedError, exceptions.OwnerDiedError)  # fmt: skip
        for _ in range(MAX_DEATHS):
            host = await self._least_busy()
            host.busy += 1
            try:
                return await getattr(host.actor, method).remote(*arguments), host.address
            except died as error:
                reason = _line(error, 0)
                await self._lost(host)
            finally:
                host.busy -= 1
        raise CallLostError(reason)

    def _connect(self) -> None:
        import ray

        if ray.is_initialized():
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            if host := self._address.rpartition(":")[0]:  # Ray itself would wait without reacting to Ctrl-C
                port = int(self._address.rpartition(":")[2])
                socket.create_connection((host.strip("[]"), port), timeout=CONNECT_SECONDS).close()
            ray.init(self._address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray raises many types, plain Exception too
            raise FatalError(
                f"There is no Ray cluster at {self._address} ({_line(error, 0).rstrip('.')}): start one with "
                "`ray start --head`, or give the HOST:PORT that it printed."
            ) from error
        self._connected_here = True

    async def _least_busy(self) -> _Host:
        deadline = time.monotonic() + NO_NODE_SECONDS
        while True:
            await self._look()
            hosts = [host for host in self._started.values() if host.ready]
            if hosts:
                return min(hosts, key=lambda host: host.busy)
            if time.monotonic() > deadline:
                raise FatalError("No node of the Ray cluster is left: add one with `ray start`.")
            await asyncio.sleep(0.5)

    async def _look(self) -> None:
        """Start an actor on each new node with processors, and remove nodes that are gone.

        Raises:
            FatalError: if a node cannot be used at all.
        """
        import ray

        if time.monotonic() - self._looked > _LOOK_SECONDS:
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
        """Remove a dead actor. The next `_look` starts a new actor if the node is alive."""
        import ray

        self._deserted.add(host.node)
        if self._started.get(host.node) is host:
            del self._started[host.node]
            with suppress(Exception):
                ray.kill(host.actor)
        await asyncio.sleep(1)


def make_actor(kind: type, at_once: int) -> Any:
    """Start an actor anywhere in the connected cluster. The actor ends when its last handle is deleted."""
    import ray

    actor: Any = ray.remote(kind)
    return actor.options(num_cpus=0, max_concurrency=at_once).remote()


async def _ready(host: _Host) -> bool:
    """Return True as soon as an actor can be used, and False if the actor cannot start or its node has died.

    Raises:
        FatalError: if the node lacks this package, or has another version.
    """
    from ray import exceptions

    try:
        async with asyncio.timeout(START_SECONDS):
            version = await host.actor.ready.remote()
    except (TimeoutError, exceptions.ActorUnschedulableError, exceptions.NodeDiedError):
        return False
    except exceptions.RayActorError as error:
        if "ModuleNotFoundError" in str(error) or "ImportError" in str(error):
            raise FatalError(
                f"Node {host.address} cannot import llm_sandbox_nb: install llm-sandbox-nb {__version__} there."
            ) from error
        if "creation task" in str(error) or "__init__" in str(error):
            raise FatalError(f"Node {host.address} cannot run items: {_line(error, -1)}") from error
        return False
    if version != __version__:
        raise FatalError(
            f"Node {host.address} has version {version} of llm-sandbox-nb: install {__version__} there."
        )
    return True


async def _closed(host: _Host) -> bool:
    """Close the sandboxes of an actor, then end the actor in any case. Return True if all sandboxes were closed."""
    import ray

    closed = False
    with suppress(Exception):
        async with asyncio.timeout(CLOSE_SECONDS):
            await host.actor.close.remote()
            closed = True
    with suppress(Exception):
        ray.kill(host.actor)
    return closed


async def _tidied(node: str) -> None:
    """Remove the leftovers of a dead actor from its node, if the node is alive."""
    import ray

    with suppress(Exception):
        async with asyncio.timeout(TIDY_SECONDS):
            await ray.remote(tidy).options(num_cpus=0, max_retries=0, scheduling_strategy=_on(node)).remote()


def _on(node: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)


def _line(error: BaseException, index: int) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[index][:300]


class NodeActor:
    """Base class of a node's actor, with a folder for the records of runs."""

    def __init__(self) -> None:
        remove_left_folders(_PREFIX, _LOCK)
        self._folder, self._lock = make_owned_folder(_PREFIX, _LOCK)
        self._running: set[asyncio.Task[Any]] = set()
        self._closing = False

    async def ready(self) -> str:
        """Return the version of this package on the node as soon as the node is ready."""
        return __version__

    async def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await task

    async def close(self) -> None:
        """Cancel the running calls, close all sandboxes, and remove the records."""
        self._closing = True
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._close_sandboxes()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _close_sandboxes(self) -> None:
        raise NotImplementedError


def tidy() -> None:
    """Remove the leftovers of a killed actor on this node after its processes have ended."""
    deadline = time.monotonic() + _EXIT_SECONDS
    while remove_left_folders(_PREFIX, _LOCK) + process.remove_leftovers() and time.monotonic() < deadline:
        time.sleep(0.2)


def packed(folder: Path) -> bytes:
    """Return the files below `folder` as a tar file, or `b""` if the folder does not exist."""
    if not folder.is_dir():
        return b""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz", compresslevel=1) as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name)
    return data.getvalue()


def unpack(record: bytes, out: Path) -> None:
    """Unpack the tar file of a node below `out`.

    Raises:
        OSError, tarfile.TarError: if a file cannot be written, or its path would be outside of `out`.
    """
    if record:
        out.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(record)) as archive:
            archive.extractall(out, filter="data")
