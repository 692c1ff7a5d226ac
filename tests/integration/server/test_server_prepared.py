"""Sandboxes that a Jupyter server prepares for its kernels: used once, counted, and never kept from somebody else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from jupyter_process import STUB, JupyterProcess
from support import run, until

from llm_sandbox_nb.notebook.server_client.address import ServerAddress
from llm_sandbox_nb.notebook.server_client.keeper import ServerKeeper
from llm_sandbox_nb.sandbox.options import SandboxOptions

pytestmark = [pytest.mark.bubblewrap, pytest.mark.usefixtures("bubblewrap_engine")]
OPTIONS = ("--SandboxManager.watch_interval=0.3", "--SandboxManager.max_sandboxes=2")
API = "llm-sandbox/api"
BUBBLEWRAP = {"isolation": "bubblewrap"}


@pytest.fixture
def own_kernel(server: JupyterProcess) -> Iterator[str]:
    """A kernel that ends with the test; its sandboxes end with it."""
    kernel = server.start_kernel(STUB)
    yield kernel
    server.ask(f"api/kernels/{kernel}", "DELETE")
    until(lambda: counted(server) == 0)


def counted(server: JupyterProcess) -> int:
    count: int = server.get(f"{API}/info")["sandboxes"]
    return count


def prepare(server: JupyterProcess, kernel: str, count: int = 1, **settings: Any) -> tuple[int, Any]:
    body = {"kernel_id": kernel, "count": count, "seconds": 600, **BUBBLEWRAP, **settings}
    return server.ask(f"{API}/sandboxes/prepare", "POST", body)


def started(server: JupyterProcess) -> list[str]:
    return [line for line in server.log.splitlines() if "Started sandbox" in line]


def test_a_kernel_gets_the_prepared_one_and_the_next_is_another(
    server: JupyterProcess, own_kernel: str
) -> None:
    async def body() -> None:
        keeper = ServerKeeper(ServerAddress(server.url, server.token), own_kernel)
        options = SandboxOptions("bubblewrap")
        found = []
        for _ in range(2):
            begun = len(started(server))
            await keeper.prepare(options, 1, 600)
            await asyncio.to_thread(until, lambda begun=begun: len(started(server)) == begun + 1)
            assert await asyncio.to_thread(server.sandboxes) == []
            box = await keeper.acquire(options)
            assert len(started(server)) == begun + 1, "the request has started none"
            assert (await box.run("ls; touch left")).stdout == b"documents\ninput\noutput\n"
            (listed,) = await asyncio.to_thread(server.sandboxes)
            assert listed["kernel_id"] == own_kernel
            found.append(listed["id"])
            assert await keeper.stop()
        assert len(set(found)) == 2
        await keeper.prepare(options, 1, 600)
        await keeper.acquire(options)
        await keeper.prepare(options, 1, 600)
        assert (await keeper.status()).details["prepared for the next cells"] == "1 sandbox"
        await keeper.stop(prepared=True)
        await asyncio.to_thread(until, lambda: counted(server) == 0)
        await keeper.close()

    run(body(), timeout=180)


def test_a_fork_gets_the_prepared_one(server: JupyterProcess, own_kernel: str) -> None:
    model = server.post(f"{API}/sandboxes", {"kernel_id": own_kernel, **BUBBLEWRAP})
    begun = len(started(server))
    prepare(server, own_kernel)
    until(lambda: len(started(server)) == begun + 1)
    fork = server.post(f"{API}/sandboxes/{model['id']}/fork")
    assert len(started(server)) == begun + 1, "the request has started none"
    assert {one["id"]: one["fork_of"] for one in server.sandboxes()} == {
        model["id"]: None,
        fork["id"]: model["id"],
    }


def test_other_settings_and_other_kernels_get_their_own(server: JupyterProcess, own_kernel: str) -> None:
    prepare(server, own_kernel)
    until(lambda: counted(server) == 1)
    begun = len(started(server))
    body = {"kernel_id": own_kernel, **BUBBLEWRAP, "profile": "strict"}
    made = server.post(f"{API}/sandboxes", body)
    assert made["protection"]["profile"] == "strict"
    assert made["prepared_sandboxes"] == 0
    assert len(started(server)) >= begun + 1
    until(lambda: counted(server) == 1)


def test_a_prepared_sandbox_is_never_in_the_way(server: JupyterProcess, own_kernel: str) -> None:
    """The maximum is two sandboxes: the second kernel's sandbox takes the place of the first kernel's prepared one."""
    server.post(f"{API}/sandboxes", {"kernel_id": own_kernel, **BUBBLEWRAP})
    assert prepare(server, own_kernel) == (202, {"prepared": 1})
    until(lambda: counted(server) == 2)
    second = server.start_kernel(STUB)
    try:
        server.post(f"{API}/sandboxes", {"kernel_id": second, **BUBBLEWRAP})
        assert counted(server) == 2
        prepare(server, second)
        until(lambda: server.get(f"{API}/kernels/{second}")["sandbox"]["prepared_sandboxes"] == 0)
        assert counted(server) == 2
        assert len(server.sandboxes()) == 2
    finally:
        server.ask(f"api/kernels/{second}", "DELETE")
        until(lambda: counted(server) == 1)


def test_it_ends_with_its_kernel(server: JupyterProcess) -> None:
    kernel = server.start_kernel(STUB)
    prepare(server, kernel)
    until(lambda: counted(server) == 1)
    server.ask(f"api/kernels/{kernel}", "DELETE")
    until(lambda: counted(server) == 0)


@pytest.mark.parametrize(
    "wrong",
    [{"count": -1}, {"count": True}, {"count": "1"}, {"seconds": 0}, {"seconds": None}, {"kernel_id": 3}],
)
def test_a_malformed_request_is_refused(
    server: JupyterProcess, own_kernel: str, wrong: dict[str, Any]
) -> None:
    body = {"kernel_id": own_kernel, "count": 1, "seconds": 60, **wrong}
    assert server.ask(f"{API}/sandboxes/prepare", "POST", body)[0] == 400


def test_an_unknown_kernel_and_a_forbidden_sandbox_are_refused(
    server: JupyterProcess, own_kernel: str
) -> None:
    assert prepare(server, "no-such-kernel")[0] == 404
    assert prepare(server, own_kernel, profile="lenient")[0] == 403


def test_a_killed_server_leaves_nothing_of_it(server: JupyterProcess) -> None:
    begun = len(started(server))
    prepare(server, server.start_kernel(STUB))
    until(lambda: counted(server) == 1)
    until(lambda: len(started(server)) == begun + 1)
    server.kill()
