"""Rollouts on the nodes of a Ray cluster. An actor on each node runs the sandboxes and the agent loop of its rollouts.

A request for a reply goes from the agent loop to a relay, and from the relay to the trainer's own generator. Therefore
the replies for all nodes are sampled together. The nodes send the records of rollouts back, so no shared file system is
needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from llm_sandbox_nb.benchmark.item_pipeline import FatalError
from llm_sandbox_nb.benchmark.ray_hosts import CallLostError, NodeActor, RayHosts, make_actor, packed, unpack
from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.runner import together
from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.training.generation import BatchGenerator, Generated, Generator
from llm_sandbox_nb.training.rollouts import (
    Rollout,
    RolloutError,
    RolloutSetting,
    RolloutWorkers,
    check_ended,
)
from llm_sandbox_nb.training.token_model import TokenConversation

_Request = tuple[int, list[int], int, int]
"""Number, prompt, limit and order of a request for a reply."""


class Relay:
    """Actor that passes requests from the agent loops on the nodes to the trainer, and the answers back."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._new: list[_Request] = []
        self._open: dict[int, asyncio.Future[Generated | str]] = {}
        self._arrived = asyncio.Event()

    async def ask(self, prompt: list[int], limit: int, order: int) -> Generated | str:
        """Wait for the trainer's reply to a prompt. If the trainer failed, return the reason as a text."""
        number = next(self._numbers)
        answer: asyncio.Future[Generated | str] = asyncio.get_running_loop().create_future()
        self._open[number] = answer
        self._new.append((number, prompt, limit, order))
        self._arrived.set()
        try:
            return await answer
        finally:
            del self._open[number]

    async def take(self) -> list[_Request]:
        """Wait for a request, and return all new requests."""
        await self._arrived.wait()
        self._arrived.clear()
        taken, self._new = self._new, []
        return taken

    async def answer(self, number: int, reply: Generated | str) -> None:
        """Answer a request, if a rollout still waits for the answer."""
        answer = self._open.get(number)
        if answer is not None and not answer.done():
            answer.set_result(reply)


@dataclass
class _ThroughRelay:
    """Generator on a node, which asks the relay."""

    relay: Any

    async def generate(self, prompt: Sequence[int], limit: int, order: int = 0) -> Generated:
        """Request a reply through the relay; see `Generator`."""
        made: Generated | str = await self.relay.ask.remote(list(prompt), limit, order)
        if isinstance(made, str):
            raise ModelError(made, kind="server")
        return made


@dataclass(frozen=True)
class RolloutReply:
    """Reply of a node. `record` is a tar file of the rollout. Its paths are relative to the rollout's folder."""

    rollout: Rollout | None = None
    record: bytes = b""
    folder: str = ""
    """Folder of the run in the record."""
    fatal: str = ""
    """Reason why the node can run no rollout. Empty if it can."""


class RolloutHost(NodeActor):
    """Actor of one node. When the actor ends for any reason, its sandboxes end too."""

    def __init__(self, setting: RolloutSetting, at_once: int, relay: Any) -> None:
        super().__init__()
        self._workers = RolloutWorkers(setting, at_once, self._folder / "pool")
        self._generator = _ThroughRelay(relay)
        self._begun = False

    async def ready(self) -> str:
        """Return the version of this package on the node as soon as the sandbox pool is ready."""
        if not self._begun:
            self._begun = True
            await self._workers.__aenter__()
        return await super().ready()

    async def rollout(self, row: Row, order: int, name: str) -> RolloutReply:
        """Run and score a rollout. Rollouts that arrive after `close` are refused."""
        if self._closing:
            return RolloutReply(fatal="the node is closing")
        return await self._run(self._rollout(row, order, name))

    async def _rollout(self, row: Row, order: int, name: str) -> RolloutReply:
        folder = self._folder / name
        try:
            rollout = await self._workers.one(row, self._generator, folder, order)
            inside = rollout.folder.relative_to(folder).as_posix() if rollout.folder else ""
            record = await asyncio.to_thread(packed, folder)
            return RolloutReply(dataclasses.replace(rollout, folder=None, trajectory=None), record, inside)
        except RolloutError as error:
            return RolloutReply(fatal=str(error))
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def check(self) -> str:
        """Return the reason why the node cannot compute rewards, or an empty text if it can."""
        try:
            await self._workers.check()
        except RolloutError as error:
            return str(error)
        return ""

    async def _close_sandboxes(self) -> None:
        await self._workers.__aexit__()


class RayRollouts:
    """Runner of rollouts on a Ray cluster. `RolloutWorkers` is the runner on this machine.

    Args:
        address: address of the cluster; see `RayHosts`.
        setting: common settings of all rollouts, which are sent to the nodes.
        at_once: maximum number of rollouts on one node.

    Raises:
        UsageError: if Ray is not installed, or the address has an unsupported form.
    """

    def __init__(self, address: str, setting: RolloutSetting, at_once: int) -> None:
        self._setting, self._at_once = setting, at_once
        self._names = itertools.count()
        self._relay: Any = None
        self._generator: Generator | None = None
        self._answering: asyncio.Task[None] | None = None
        self._hosts = RayHosts(address, RolloutHost, self._given, at_once, option="rollouts.ray")

    def _given(self) -> tuple[Any, ...]:
        if self._relay is None:
            self._relay = make_actor(Relay, 10_000)
        return self._setting, self._at_once, self._relay

    async def __aenter__(self) -> Self:
        try:
            await self._hosts.__aenter__()
        except FatalError as error:
            raise RolloutError(str(error)) from error
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.gather(self._answering, return_exceptions=True)
        await self._hosts.__aexit__()
        self._relay = None  # the actor ends when its last handle is gone

    async def check(self) -> None:
        """Raise RolloutError if a node cannot load the scorer's file, or the scorer cannot give rewards."""
        problem, address = await self._call("check")
        if problem:
            raise RolloutError(f"Node {address}: {problem}")

    async def run(self, rows: Sequence[Row], generator: Generator, folder: Path) -> list[Rollout]:
        """Run one rollout for each row; see `RolloutWorkers.run`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._generator = generator
        if self._answering is None:
            self._answering = asyncio.create_task(self._answer())
        rollouts = await together(self._one(row, generator, folder, order) for order, row in enumerate(rows))
        return check_ended(rollouts, self._setting)

    async def _one(self, row: Row, generator: Generator, folder: Path, order: int) -> Rollout:
        waits = generator.active() if isinstance(generator, BatchGenerator) else contextlib.nullcontext()
        with waits:
            try:
                reply, address = await self._call("rollout", row, order, str(next(self._names)))
            except CallLostError as error:
                return Rollout(row, TokenConversation(), detail=f"its nodes died: {error}")
        assert isinstance(reply, RolloutReply)
        if reply.rollout is None:
            raise RolloutError(f"Node {address}: {reply.fatal}")
        rollout = reply.rollout
        if reply.folder:
            # A rollout's folder is named by its order, as without Ray. The node used another name for its own folder.
            target = folder / f"{order:04d}"
            await asyncio.to_thread(shutil.rmtree, target, ignore_errors=True)
            await asyncio.to_thread(unpack, reply.record, folder)
            rollout.folder = folder / reply.folder
            rollout.trajectory = (await asyncio.to_thread(Run.load, rollout.folder)).trajectory
        return rollout

    async def _call(self, method: str, *arguments: Any) -> tuple[Any, str]:
        try:
            return await self._hosts.call(method, *arguments)
        except FatalError as error:
            raise RolloutError(str(error)) from error

    async def _answer(self) -> None:
        """Pass the requests of all nodes to the generator, and its replies back.

        One asyncio task does this for all steps, because a cancelled call of `take` would still remove requests.
        """
        async with asyncio.TaskGroup() as group:
            while True:
                for request in await self._relay.take.remote():
                    group.create_task(self._answer_one(request))

    async def _answer_one(self, request: _Request) -> None:
        number, prompt, limit, order = request
        assert self._generator is not None
        try:
            reply: Generated | str = await self._generator.generate(prompt, limit, order)
        except (ModelError, RuntimeError) as error:
            reply = str(error)
        await self._relay.answer.remote(number, reply)
