"""Whatever dies, nothing of ours stays, and nothing of anybody else is touched."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from docker_help import bystander, docker_box
from support import run, until

from llm_sandbox_nb.sandbox.bootstrap import SOURCE_TIMEOUT
from llm_sandbox_nb.sandbox.docker.engine import connect
from llm_sandbox_nb.sandbox.docker.images import SLIM_IMAGE
from llm_sandbox_nb.sandbox.docker.ownership import (
    ContainerOwner,
    current_owner,
    list_own,
    owner_labels,
    reap_orphans,
)
from llm_sandbox_nb.sandbox.docker.sandbox import adopt as adopt_docker_sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError, SandboxLostError

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_engine")]
LEASE = 2.0

OWNER = textwrap.dedent("""
    import asyncio, sys
    from llm_sandbox_nb.sandbox.bootstrap import SOURCE_TIMEOUT
    from llm_sandbox_nb.sandbox.docker import container
    from llm_sandbox_nb.sandbox.docker import sandbox as docker
    from llm_sandbox_nb.sandbox.docker.engine import connect
    from llm_sandbox_nb.sandbox.options import SandboxOptions

    token, image, lease, stage = sys.argv[1:]

    def pause(*_, **__):
        print("here", flush=True)
        import signal; signal.pause()

    if stage == "created":
        docker.start_container = pause
    if stage == "half":
        whole = container.bootstrap_argv
        changed = lambda **how: [word.replace(f"alarm({SOURCE_TIMEOUT})", "alarm(4)") for word in whole(**how)]
        assert changed() != whole()
        container.bootstrap_argv = changed
        source = docker.executor_source()
        docker.executor_source = lambda: source[: len(source) // 2]
        started = docker.start_container
        docker.start_container = lambda *arguments: (started(*arguments), pause())
        docker.Channel.hello = lambda *_, **__: asyncio.Event().wait()

    async def main():
        connect()
        if stage == "timed":
            print("here", flush=True)
        options = SandboxOptions("docker", image=image, network="none")
        box = await docker.start(options, labels={"test": token}, lease=float(lease))
        await box.run("cd /tmp; export KEPT=yes; f() { echo function; }; sleep infinity & echo data > file")
        if stage == "talking":
            talks = asyncio.Event()
            talking = asyncio.create_task(box.run("yes | head -c 500000000", on_output=lambda *_: talks.set()))
            await talks.wait()
        if stage != "timed":
            print(box.protection.details["container"], flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())
""")


def start_owner(token: str, stage: str) -> tuple[subprocess.Popen[str], str]:
    """A process that opens a sandbox, and what it says when it has come to `stage`."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, token, SLIM_IMAGE, str(LEASE), stage], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def until_gone(token: str, *, reaping: bool = False) -> None:
    """Reap, or only wait, until nothing with this label is left."""
    until(lambda: not (reap_orphans() if reaping else []) and not list_own({"test": token}))


@pytest.fixture
def token() -> Iterator[str]:
    name = secrets.token_hex(6)
    yield name
    for left in list_own({"test": name}):
        connect().api.remove_container(left.id, force=True)


@pytest.fixture(scope="module")
def bystander_containers() -> Iterator[list[Any]]:
    """Containers of others; some look much like containers of this package."""
    living = owner_labels("aaaaaaaaaaaa", 1, {})
    me = current_owner()
    elsewhere = ContainerOwner("0" * 12, me.boot, me.namespace, 1, "0" * 8).token()
    other_namespace = ContainerOwner(me.host, me.boot, "0" * 8, 1, "0" * 8).token()
    with ExitStack() as stack:
        every = [
            stack.enter_context(bystander(image=SLIM_IMAGE, **settings))
            for settings in (
                {},
                {"started": False},
                {"labels": {"com.example.owner": "somebody"}, "started": False},
                {"labels": {"llm-sandbox-nb.owner": "nonsense", "llm-sandbox-nb.id": "x"}, "started": False},
                {"labels": {"llm-sandbox-nb-other": "1"}},
                {"labels": living, "started": False},
                {"labels": {**living, "llm-sandbox-nb.owner": elsewhere}, "started": False},
                {"labels": {**living, "llm-sandbox-nb.owner": other_namespace}},
            )
        ]
        yield every


@pytest.fixture
def bystanders(bystander_containers: list[Any]) -> Iterator[None]:
    """Check that no container of others is touched."""
    yield
    for container in bystander_containers:
        container.reload()
        assert container.status in ("running", "created")


@pytest.mark.usefixtures("bystanders")
def test_killed_between_create_and_start(token: str) -> None:
    owner, _ = start_owner(token, "created")
    [made] = list_own({"test": token})
    assert (made.state, made.owner_dead) == ("created", False)
    assert made.id not in reap_orphans()
    kill(owner)
    until_gone(token, reaping=True)  # by this process, or by the one of another test, which reaps as well


@pytest.mark.usefixtures("bystanders")
def test_killed_in_use_the_sandbox_ends_by_itself(token: str) -> None:
    owner, container = start_owner(token, "running")
    kill(owner)
    [found] = list_own({"test": token})
    assert (found.id[:12], found.state, found.owner_dead) == (container, "running", True)
    assert found.id not in reap_orphans()
    until_gone(token)


def test_killed_while_the_executor_goes_in(token: str) -> None:
    """The program that waits for it inside has no lease yet, and its stdin does not end: its patience does."""
    owner, _ = start_owner(token, "half")
    kill(owner)
    assert [found.state for found in list_own({"test": token})] == ["running"]
    assert SOURCE_TIMEOUT <= 45
    until_gone(token)


@pytest.mark.campaign
@pytest.mark.usefixtures("bystanders")
def test_killed_at_twenty_instants_of_a_start(token: str) -> None:
    made = 0
    for instant in range(20):
        owner, _ = start_owner(token, "timed")
        with contextlib.suppress(subprocess.TimeoutExpired):
            owner.wait(instant * 0.02)
        kill(owner)
        made += bool(list_own({"test": token}))
    assert made > 5
    until_gone(token, reaping=True)


def test_a_paused_sandbox_without_owner_is_removed_in_the_end(token: str) -> None:
    """One that cannot end itself: this process must have seen it for longer than its lease and the grace."""
    owner, container = start_owner(token, "running")
    kill(owner)
    connect().api.pause(container)
    [found] = list_own({"test": token})
    now = time.monotonic()
    for seconds in (0, LEASE, LEASE + 30):
        assert found.id not in reap_orphans(grace=30, clock=lambda: now + seconds)  # noqa: B023
    assert found.id in reap_orphans(grace=30, clock=lambda: now + LEASE + 31)


def test_adoption_keeps_shell_processes_and_files(token: str) -> None:
    """Also of a sandbox that is amid much output."""
    owners = [start_owner(token, stage) for stage in ("running", "talking")]
    for owner, _ in owners:
        kill(owner)

    async def adopted(container: str) -> None:
        box = await adopt_docker_sandbox(container, lease=LEASE)
        try:
            # on purpose: a container shows its own processes only
            kept = await box.run("echo $KEPT; pwd; f; cat file; pgrep -c sleep; pgrep -c yes")
            assert kept.stdout == b"yes\n/tmp\nfunction\ndata\n1\n0\n"
            assert (box.protection.profile, box.protection.network) == ("standard", "none")
            [found] = [one for one in list_own({"test": token}) if one.id.startswith(container)]
            assert not found.owner_dead
            assert box.id == found.sandbox_id
            alive = await box.run("sleep 6; echo alive")  # three times its lease
            assert found.id not in reap_orphans(grace=-100)
            assert alive.stdout == b"alive\n"
        finally:
            await box.close()

    async def both() -> None:
        await asyncio.gather(*(adopted(container) for _, container in owners))

    run(both())
    assert list_own({"test": token}) == []


def test_what_cannot_be_adopted(token: str) -> None:
    async def adopt(container: str) -> None:
        await adopt_docker_sandbox(container)

    owner, container = start_owner(token, "running")
    with pytest.raises(SandboxError, match="belongs to a process that may still be running"):
        run(adopt(container))
    kill(owner)
    until_gone(token, reaping=True)
    with pytest.raises(SandboxLostError, match="gone"):
        run(adopt(container))
    with bystander(image=SLIM_IMAGE) as other, pytest.raises(SandboxError, match="is not a sandbox of"):
        run(adopt(other.id))


async def test_list_own_by_label(token: str) -> None:
    began = time.time() - 1
    async with docker_box(image=SLIM_IMAGE, labels={"test": token, "kernel": "k1"}, lease=30) as box:
        [found] = list_own({"test": token, "kernel": "k1"})
        assert (found.sandbox_id, found.state, found.owner_dead) == (box.id, "running", False)
        assert began <= found.created <= time.time()
        assert list_own({"test": token, "kernel": "k2"}) == []
