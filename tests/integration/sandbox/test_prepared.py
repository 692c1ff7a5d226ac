"""Prepared sandboxes of real engines: a cell that needs one starts nothing, and a killed owner leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from docker_help import container_ids, image_from
from support import child_pids, descendants, eventually, own_mark, run, until

from llm_sandbox_nb.notebook.sandboxes import KernelSandboxes
from llm_sandbox_nb.sandbox.bubblewrap.limits import find_groups
from llm_sandbox_nb.sandbox.docker.engine import connect
from llm_sandbox_nb.sandbox.docker.images import DEFAULT_IMAGE
from llm_sandbox_nb.sandbox.docker.ownership import LABEL_OWNER, reap_orphans
from llm_sandbox_nb.sandbox.open import remove_leftovers
from llm_sandbox_nb.sandbox.options import SandboxOptions

MINUTE = 60.0
COMMON = pytest.mark.parametrize(
    "strong_isolation",
    [
        pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
        pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.campaign]),
    ],
    indirect=True,
)
"""Mark of a test of code that all isolations have in common; see `strong_isolation`."""


@asynccontextmanager
async def keeper_with(options: SandboxOptions) -> AsyncIterator[KernelSandboxes]:
    keeper = KernelSandboxes()
    try:
        await prepared(keeper, options)
        yield keeper
    finally:
        await keeper.close()


async def prepared(keeper: KernelSandboxes, options: SandboxOptions) -> None:
    await keeper.prepare(options, 1, 10 * MINUTE)
    await asyncio.wait({entry.start for entry in keeper._prepared._entries})


class Requests:
    """Requests to the Docker engine and started processes, from `start` on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        api: Any = connect().api
        request, popen = type(api).request, subprocess.Popen.__init__

        def noted_request(client: Any, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
            self.seen.append(f"{method} {url.rpartition('/v1.')[2].partition('/')[2]}")
            return request(client, method, url, *args, **kwargs)

        def noted_popen(process: Any, command: Any, *args: Any, **kwargs: Any) -> None:
            self.seen.append(f"process {command}")
            popen(process, command, *args, **kwargs)

        monkeypatch.setattr(type(api), "request", noted_request)
        monkeypatch.setattr(subprocess.Popen, "__init__", noted_popen)


def test_a_cell_takes_it_without_a_start(strong_isolation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = SandboxOptions(strong_isolation)

    async def body() -> None:
        async with keeper_with(options) as keeper:
            requests = Requests(monkeypatch)
            before = child_pids()
            box = await keeper.acquire(options)
            # The engine is only asked if the name of the image still means the same image; the reaper lists containers.
            assert [one for one in requests.seen if not one.startswith("GET ")] == []
            assert child_pids() == before
            assert (await box.run("pwd; ls -A; echo ${x-unset}")).text.split() == [
                box.directories.root, "documents", "input", "output", "unset",
            ]  # fmt: skip
            assert (await box.changes()).files == ()
            requests.seen.clear()
            await keeper.acquire(options, fresh=True)
            assert [one for one in requests.seen if "create" in one or one.startswith("process")], (
                "a cold start"
            )

    run(body())


def test_a_fork_takes_it_without_a_start(strong_isolation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second fork at once starts a sandbox of its own, and a sandbox for the next one is prepared."""
    options = SandboxOptions(strong_isolation)

    async def body() -> None:
        async with keeper_with(options) as keeper:
            box = await keeper.acquire(options)
            await box.run("echo mine > file; export x=1")
            point = await box.checkpoint()
            await prepared(keeper, options)
            (waiting,) = [entry.start.result().id for entry in keeper._prepared._entries]
            requests = Requests(monkeypatch)
            before = child_pids()
            async with (
                keeper._prepared._one_start
            ):  # the sandbox for the next fork starts after the assertions
                fork = await box.fork(point)
                assert fork.id == waiting
                assert not [one for one in requests.seen if "create" in one or one.startswith("process")]
                assert child_pids() == before
            assert (await fork.run("cat file; echo $x")).text == "mine\n1\n"
            other = await fork.fork(point)
            assert "POST containers/create" in requests.seen or child_pids() != before, "a cold start"
            assert (await other.run("cat file")).text == "mine\n"
            await eventually(lambda: keeper._prepared.count() == 1)
            await asyncio.gather(fork.close(), other.close())

    run(body(), timeout=120)


@COMMON
def test_two_new_sandboxes_in_a_row_share_nothing(strong_isolation: str) -> None:
    options, mark = SandboxOptions(strong_isolation), own_mark()

    async def body() -> None:
        async with keeper_with(options) as keeper:
            first = await keeper.acquire(options)
            await first.run(f"echo mine > file; export x=1; (setsid sleep {mark} &)")
            await prepared(keeper, options)
            second = await keeper.acquire(options, fresh=True)
            assert second.id != first.id
            assert (await second.run(f"ls; echo ${{x-unset}}; pgrep -f 'sleep {mark}$' | wc -l")).text.split() == [
                "documents", "input", "output", "unset", "0",
            ]  # fmt: skip
            assert await keeper.acquire(SandboxOptions()) is second

    run(body())


@COMMON
@pytest.mark.parametrize(
    "other", [{"profile": "strict"}, {"network": "none", "env": {"A": "b"}}, {"allow": ("example.org",)}]
)
def test_other_options_get_a_sandbox_of_their_own(strong_isolation: str, other: dict[str, Any]) -> None:
    async def body() -> None:
        async with keeper_with(SandboxOptions(strong_isolation)) as keeper:
            (waiting,) = [entry.start.result().id for entry in keeper._prepared._entries]
            box = await keeper.acquire(SandboxOptions(strong_isolation, **other))
            assert box.id != waiting
            assert keeper._prepared.count() == 0

    run(body(), timeout=120)


def test_one_that_died_is_replaced_without_a_word(strong_isolation: str) -> None:
    options = SandboxOptions(strong_isolation)

    async def body() -> None:
        async with keeper_with(options) as keeper:
            (entry,) = keeper._prepared._entries
            waiting = entry.start.result()
            if strong_isolation == "docker":
                connect().api.kill(str(waiting.protection.details["container"]))
            else:
                for pid in descendants(os.getpid()):
                    with contextlib.suppress(ProcessLookupError):  # its parent was killed just before
                        os.kill(pid, signal.SIGKILL)
            box = await keeper.acquire(options)
            assert box.id != waiting.id
            assert (await box.run("echo works")).text == "works\n"
            assert keeper.notice == ""

    run(body(), timeout=120)


@pytest.mark.usefixtures("docker_engine")
@pytest.mark.docker
def test_one_of_an_older_build_of_its_image_is_not_used() -> None:
    async def body(name: str, newer: str) -> None:
        options = SandboxOptions("docker", image=name)
        async with keeper_with(options) as keeper:
            (waiting,) = [entry.start.result().id for entry in keeper._prepared._entries]
            repository, _, tag = name.partition(":")
            connect().api.tag(newer, repository, tag, force=True)
            box = await keeper.acquire(options)
            assert box.id != waiting
            assert (await box.run("cat /build")).text == "newer\n"

    with (
        image_from(DEFAULT_IMAGE, "RUN echo older > /build") as name,
        image_from(DEFAULT_IMAGE, "RUN echo newer > /build") as newer,
    ):
        run(body(name, newer), timeout=120)


VICTIM = """
import asyncio, sys
from llm_sandbox_nb.notebook.sandboxes import KernelSandboxes
from llm_sandbox_nb.sandbox.options import SandboxOptions
async def main():
    keeper = KernelSandboxes()
    await keeper.prepare(SandboxOptions(sys.argv[1]), 1, 600)
    if sys.argv[2] == "waiting":
        await asyncio.wait({entry.start for entry in keeper._prepared._entries})
    else:
        await asyncio.sleep(float(sys.argv[2]))
    print("ready", flush=True)
    await asyncio.sleep(3600)
asyncio.run(main())
"""


def test_killed_owners_leave_nothing(strong_isolation: str) -> None:
    """While the sandbox waits, and at two moments of its start."""
    victims, families = [], []
    for moment in ("waiting", "0.05", "0.3"):
        command = [sys.executable, "-c", VICTIM, strong_isolation, moment]
        victim = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert victim.stdout is not None
        assert victim.stdout.readline() == "ready\n"
        victims.append(victim)
        families += descendants(victim.pid)
    for victim in victims:
        victim.kill()
        victim.communicate()
    until(lambda: not [pid for pid in families if Path(f"/proc/{pid}").exists()])
    owners = {str(victim.pid) for victim in victims}

    def left() -> list[str]:
        if strong_isolation == "bubblewrap":
            remove_leftovers()
            return [group.name for group in find_groups() if set(group.name.split("-")) & owners]
        reap_orphans()
        listed = connect().api.containers(all=True, filters={"label": LABEL_OWNER})
        return [one["Id"] for one in listed if set(one["Labels"][LABEL_OWNER].split(".")) & owners]

    # An executor without an owner ends with its lease, and the reaper removes the container: less than a minute.
    until(lambda: not left(), poll=1)


@COMMON
def test_the_end_of_the_kernel_ends_it(strong_isolation: str) -> None:
    async def body() -> None:
        before, containers = child_pids(), container_ids()
        for wait in (True, False):
            keeper = KernelSandboxes()
            await keeper.prepare(SandboxOptions(strong_isolation), 1, 10 * MINUTE)
            if wait:
                await asyncio.wait({entry.start for entry in keeper._prepared._entries})
            await keeper.close()
        if strong_isolation == "docker":
            await eventually(lambda: container_ids() == containers)
        await eventually(lambda: not child_pids() - before)

    run(body())
