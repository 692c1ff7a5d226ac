"""Who keeps the notebook's sandbox, how long, and what happens when another kind is asked for."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import support

from llm_sandbox_nb.notebook.sandboxes import (
    KernelSandboxes,
    NotebookSandboxes,
    SandboxMismatchError,
    SandboxStatus,
    check_matches,
)
from llm_sandbox_nb.sandbox.contract import Protection, Sandbox
from llm_sandbox_nb.sandbox.limits import Limits
from llm_sandbox_nb.sandbox.options import SandboxOptions

PROCESS = SandboxOptions(isolation="process")


def protection(**changed: Any) -> Protection:
    values: dict[str, Any] = {
        "isolation": "docker", "profile": "standard", "user": "root", "capabilities": (),
        "no_new_privileges": True, "seccomp": "default", "network": "open", "read_only_system": False,
        "memory_bytes": None, "pids": None, "cpus": None, "details": {"image": "full"},
    }  # fmt: skip
    return Protection(**{**values, **changed})


def fits(wanted: SandboxOptions, started_with: SandboxOptions) -> bool:
    check_matches(wanted, started_with=started_with, protection=protection())
    return True


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"isolation": "process"}, "runs with isolation=docker, but the cell asks for isolation=process"),
        ({"network": "none"}, "network=open"),
        ({"profile": "strict", "network": "none"}, "profile=standard, network=open"),
        ({"image": "other"}, "image=full"),
        ({"limits": Limits(pids=9)}, "limits"),
    ],
)
def test_another_kind_does_not_fit(wanted: dict[str, Any], said: str) -> None:
    with pytest.raises(SandboxMismatchError, match="--fresh") as caught:
        fits(SandboxOptions(**wanted), SandboxOptions())
    assert said in str(caught.value)


def test_the_same_sandbox_fits() -> None:
    started = SandboxOptions(image="my:tag", limits=Limits(pids=9))
    by_name = SandboxOptions(isolation="auto", profile="standard", network="open", image="full")
    for wanted in (SandboxOptions(), SandboxOptions(isolation="docker"), by_name, started):
        assert fits(wanted, started)
    assert fits(SandboxOptions(limits=Limits()), SandboxOptions())


def test_a_kernel_keeps_one_sandbox() -> None:
    async def body() -> None:
        keeper = KernelSandboxes()
        assert await keeper.current() is None
        assert await keeper.status() == SandboxStatus("kernel")
        first = await keeper.acquire(PROCESS)
        assert await keeper.acquire(SandboxOptions()) is first
        assert (await keeper.status()).sandbox_id == first.id
        with pytest.raises(SandboxMismatchError):
            await keeper.acquire(SandboxOptions(isolation="docker"))
        second = await keeper.acquire(PROCESS, fresh=True)
        assert second.id != first.id
        assert await keeper.stop()
        assert not await keeper.stop()
        await keeper.close()

    support.run(body())


def test_two_that_ask_at_once_get_the_same_sandbox() -> None:
    """A command of the panel may ask while a cell starts the sandbox."""

    async def body() -> None:
        keeper, before = KernelSandboxes(), support.child_pids()
        first, second = await asyncio.gather(keeper.acquire(PROCESS), keeper.acquire(PROCESS))
        assert first is second
        await keeper.close()
        await support.eventually(lambda: not support.child_pids() - before)

    support.run(body())


def test_a_sandbox_that_died_is_replaced_and_that_is_told() -> None:
    async def body() -> None:
        sandboxes = NotebookSandboxes()
        first = await sandboxes.acquire(PROCESS)
        await kill(first)
        second = await sandboxes.acquire(PROCESS)
        assert second.id != first.id
        assert "died or stopped answering" in sandboxes.take_notice()
        assert sandboxes.take_notice() == ""
        await sandboxes.close()

    support.run(body())


async def kill(sandbox: Sandbox) -> None:
    pid = int((await sandbox.run("echo $PPID")).stdout)
    os.kill(pid, signal.SIGKILL)


class _Keeper(KernelSandboxes):
    """Stands for a server's."""

    closed = False

    async def close(self) -> None:
        type(self).closed = True


def test_a_server_is_looked_for_once_and_at_first_use(tmp_path: Path) -> None:
    looked = []

    async def connect() -> KernelSandboxes:
        looked.append(1)
        return _Keeper()

    async def body() -> None:
        sandboxes = NotebookSandboxes(connect)
        await sandboxes.close()
        assert not looked
        await sandboxes.status()
        await sandboxes.current()
        assert looked == [1]
        assert isinstance(await sandboxes.keeper(), _Keeper)
        await sandboxes.close()
        assert _Keeper.closed
        assert isinstance(await NotebookSandboxes(no_server).keeper(), KernelSandboxes)

    async def no_server() -> None:
        return None

    support.run(body())


def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    """Cancelled after more and more turns of the loop, and when a process of it is there."""

    async def body() -> None:
        before = support.child_pids()
        for turns in (0, 1, 2, 4, 8, None):
            keeper = KernelSandboxes()
            start = asyncio.create_task(keeper.acquire(PROCESS))
            for _ in range(turns or 0):
                await asyncio.sleep(0)
            if turns is None:
                await support.eventually(lambda: support.child_pids() - before)
            start.cancel()
            await asyncio.gather(start, return_exceptions=True)
            await keeper.close()
            await support.eventually(lambda: not support.child_pids() - before)
            assert await keeper.current() is None

    support.run(body())
