"""Putting a sandbox's files back to a checkpoint, of its own history or of one that it goes on with."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from llm_sandbox_nb.sandbox.errors import SandboxLostError
from llm_sandbox_nb.sandbox.history.entry import Entry, parents
from llm_sandbox_nb.sandbox.history.image import Image, Pristine
from llm_sandbox_nb.sandbox.history.keeper import HistoryKeeper, unhurried
from llm_sandbox_nb.sandbox.history.link import Link
from llm_sandbox_nb.sandbox.history.plan import Plan, plan_restore, shown
from llm_sandbox_nb.sandbox.history.sending import RestoreBody
from llm_sandbox_nb.sandbox.history.store import HistoryStore
from llm_sandbox_nb.sandbox.history.types import Restored
from llm_sandbox_nb.sandbox.outcome import raise_error

RESTORE_TIMEOUT = 600.0
_ROUNDS = 3
"""How often it is tried when what a process still changed has to be put back too."""
_PROBLEMS = 100


async def restore(
    keeper: HistoryKeeper,
    connect: Callable[[], Awaitable[Link]],
    id: str,
    pristine: Callable[[], Awaitable[Pristine]],
) -> Restored:
    """See `Sandbox.restore`. `pristine` gives a sandbox in which nothing was done, when one is needed."""
    async with keeper.busy:
        keeper.needed(id).checkpoint(id)
        return await _Restore(keeper, connect, id, pristine).run()


class _Restore:
    def __init__(
        self,
        keeper: HistoryKeeper,
        connect: Callable[[], Awaitable[Link]],
        id: str,
        pristine: Callable[[], Awaitable[Pristine]],
    ) -> None:
        self._keeper = keeper
        self._connect = connect
        self._id = id
        self._store: HistoryStore = keeper.needed(id)
        self._target = keeper.manifest(id)
        moved = self._target is not self._store.manifest(id)
        # In another folder the shell's own would be that of the sandbox that it came from.
        self._shell = None if moved else self._store.shell(id)
        self._image = Image(self._store, pristine)
        self._packs = True
        self._problems: list[str] = []
        self._shell_back = False

    async def run(self) -> Restored:
        """Plan, apply and look again, until nothing differs."""
        began = time.monotonic()
        safety = await self._keeper.take_now(await self._connect(), {self._id})
        plan = await self._plan(self._keeper.seen)
        files = plan.paths
        for _ in range(_ROUNDS):
            try:
                await self._apply(plan)
            except SandboxLostError:
                await self._connect()  # raises when it is really lost
            plan = await self._look_again(safety)
            if not plan.paths or self._problems:
                break
        else:
            self._problems.append(f"{plan.paths} paths differ again: something still changes them.")
        told = tuple(self._problems[:_PROBLEMS])
        return Restored(self._id, safety, files, self._shell_back, told, time.monotonic() - began)

    async def _plan(self, found: Mapping[str, Entry]) -> Plan:
        target = await self._image.expand(self._target, found, content=True)
        current = await self._image.expand(found, target, content=False)
        return await asyncio.to_thread(plan_restore, current, target)

    async def _apply(self, plan: Plan) -> None:
        """Send the plan. Until it is answered nobody knows what the files are like."""
        keeper = self._keeper
        new = secrets.token_hex(8)
        link = await self._connect()
        body = RestoreBody(
            plan, self._store, self._shell, link.deliver if self._packs else None, f"{new}.pack"
        )
        params = {
            "op": "restore",
            "id": new,
            "since": keeper.look,
            "timeout": RESTORE_TIMEOUT,
            "pack": body.pack,
        }
        keeper.look = None
        answer = await link.ask_files(params, body.take, RESTORE_TIMEOUT, body.pieces())
        raise_error(answer, "")
        keeper.look, keeper.seen, keeper.shell = new, _after(keeper.seen, plan), self._shell
        self._packs = self._packs and answer.get("pack") != "missing"
        if body.pack and not self._packs:
            return  # what is put into it from outside is not seen inside: the next round sends all
        self._problems += [*plan.problems, *_failures(answer)]
        not_back = answer.get("shell")
        self._shell_back = self._shell is not None and not not_back
        if isinstance(not_back, str) and not_back:
            self._problems.append(f"Of the shell did not come back: {shown(not_back)}.")

    async def _look_again(self, safety: str) -> Plan:
        """What still differs; if anything does, the files as they are become a checkpoint of their own."""
        look, found = await self._keeper.look_now(await self._connect())
        try:
            plan = await self._plan(found)
        except BaseException:
            look.content.discard()
            raise
        if plan.paths:
            pinned = {self._id, safety}
            await unhurried(asyncio.to_thread(look.settle, found, pinned, changed=True))
        else:
            self._keeper.head = self._id
            look.leave(found)
        return plan


def _after(before: Mapping[str, Entry], plan: Plan) -> dict[str, Entry]:
    """The manifest that the executor has in mind when a plan was applied."""
    gone = set(plan.delete)
    kept = {
        path: entry
        for path, entry in before.items()
        if path not in gone and (not gone or not any(up in gone for up in parents(path)))
    }
    return kept | dict(plan.make) | dict(plan.touch)


def _failures(answer: Mapping[str, Any]) -> list[str]:
    """What the executor could not do, in sentences."""
    failed = answer.get("failed")
    rows = failed if isinstance(failed, list) else []
    return [
        f"{shown(row[0])} could not be put back: {shown(row[1])}."
        for row in rows[:_PROBLEMS]
        if isinstance(row, list) and len(row) == 2 and all(isinstance(one, str) for one in row)
    ]
