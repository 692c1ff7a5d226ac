"""Restores that are cut off, by kill -9 or by a connection that breaks: never a mixture for good.

As a campaign at each message, at each change of a file of the history, and at random instants; else at some of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from crash_points import at_every_change
from history_help import files_at
from relay_wire import Wire
from support import CAMPAIGN, require, run, size

from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.history.stores import is_history, open_store
from llm_sandbox_nb.sandbox.open import open_sandbox
from llm_sandbox_nb.sandbox.protocol.frames import Frame

KILLS = size(6, 12)
_MAKE = "rm -rf work; mkdir work; for i in $(seq 40); do echo {0} > work/$i; done; echo {0} > work/only{0}"


async def both(box: Sandbox) -> dict[str, str]:
    made = {}
    for name in ("one", "two"):
        assert (await box.run(_MAKE.format(name))).exit_code == 0
        made[name] = await box.checkpoint()
    return made


async def state(box: Sandbox) -> str:
    answer = await box.run("cat work/* | sort | uniq -c; ls work | grep only")
    (count, name), only = answer.text.splitlines()[0].split(), answer.text.splitlines()[1:]
    assert (count, only) == ("41", [f"only{name}"]), answer.text
    return name


class CutWire(Wire):
    """A connection that breaks when so many frames have gone through, either way."""

    frames_left = 10**9

    def _passes(self) -> bool:
        self.frames_left -= 1
        if self.frames_left == 0:
            self.client.leave()
        return self.frames_left > 0

    async def read_frame(self) -> Frame | None:
        frame = await super().read_frame()
        return frame if self._passes() else None

    def write(self, frames: Any) -> None:
        for frame in frames:
            if self._passes():
                super().write([frame])


def test_a_connection_that_breaks_at_messages_of_a_restore(tmp_path: Path) -> None:
    """The next client puts the same sandbox right, from the same history."""

    async def body(box: ChannelSandbox) -> None:
        folder, frames, whole = tmp_path / "history", 0, False
        mine = await Wire(box).sandbox(box)
        await mine.keep_history(folder)
        made = await both(mine)
        await mine.close()
        while not whole:
            frames += 1 if CAMPAIGN else 2
            wire = CutWire(box)
            client = await wire.sandbox(box)
            await client.keep_history(folder)
            wire.frames_left = frames
            with contextlib.suppress(SandboxError):
                await client.restore(made["one"])
                whole = True
            wire.client.leave()
            await client.close()
            again = await Wire(box).sandbox(box)
            await again.keep_history(folder)
            assert (await again.restore(made["two"])).problems == ()
            assert await state(again) == "two"
            await again.close()
        assert frames > 10

    async def whole() -> None:
        async with open_sandbox("process") as box:
            await body(box)

    run(whole(), timeout=200)


async def restore_twice(folder: Path, told: int) -> None:
    async with open_sandbox("process") as box:
        await box.keep_history(folder / "history")
        for id in (await both(box)).values():
            os.write(told, f"{id}\n".encode())
            restored = await box.restore(id)
            assert restored.problems == ()
            os.write(told, (await box.checkpoint()).encode() + b"\n")


def test_killed_before_a_change_of_the_history_what_was_told_is_there(tmp_path: Path) -> None:
    most: list[str] = []
    for folder, told in at_every_change(
        lambda where, its: asyncio.run(restore_twice(where, its)), tmp_path, every=1 if CAMPAIGN else 11
    ):
        most = max(most, told, key=len)
        if not is_history(folder / "history"):
            assert not told
            continue
        store = open_store(folder / "history")
        kept = {one.id for one in store.checkpoints()}
        assert set(told) <= kept
        for id in kept:
            assert len({line for path, line in files_at(store, id).items() if "/work/" in path}) <= 1
        store.close()
    assert len(most) == 4


async def restore_for_ever(folder: Path, made: dict[str, str], told: int) -> None:
    async with open_sandbox("bubblewrap") as box:
        await box.keep_history(folder)
        while True:
            for name in ("one", "two"):
                await box.restore(made[name])
                await box.run(f"echo {time.time_ns()} > /tmp/now")
                os.write(told, (await box.checkpoint()).encode() + b"\n")


@pytest.mark.campaign
@pytest.mark.bubblewrap
def test_a_process_that_is_killed_in_a_restore(tmp_path: Path) -> None:
    require("bubblewrap")
    folder, rng = tmp_path / "history", random.Random(6)

    async def begin() -> dict[str, str]:
        async with open_sandbox("bubblewrap") as box:
            await box.keep_history(folder)
            return await both(box)

    async def check(name: str) -> None:
        async with open_sandbox("bubblewrap") as box:
            await box.keep_history(folder)
            assert (await box.restore(made[name])).problems == ()
            assert await state(box) == name

    made = run(begin())
    acknowledged = set(made.values())
    for _ in range(KILLS):
        mine, its = os.pipe()
        child = os.fork()
        if not child:
            try:
                asyncio.run(restore_for_ever(folder, made, its))
            finally:
                os._exit(1)
        os.close(its)
        with os.fdopen(mine, "rb") as words:
            first = words.readline()
            # on purpose: a campaign that kills at random instants; the first line shows that it began
            time.sleep(rng.random() * 0.4)
            os.kill(child, signal.SIGKILL)
            told = first + words.read()
        os.waitpid(child, 0)
        acknowledged |= set(told.decode().split("\n")[:-1])
        store = open_store(folder)
        assert acknowledged <= {one.id for one in store.checkpoints()}
        for id in acknowledged:
            assert files_at(store, id)
        store.close()
    for name in ("one", "two"):
        run(check(name))
    assert len(acknowledged) >= KILLS
