"""Docker: all sandboxes of an engine share one network, also when several processes make it at once."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from docker_help import docker_box
from support import CAMPAIGN, PATIENCE, run

from llm_sandbox_nb.sandbox.docker import network
from llm_sandbox_nb.sandbox.docker.engine import connect
from llm_sandbox_nb.sandbox.docker.images import SLIM_IMAGE

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_engine")]
PROCESSES = 5 if CAMPAIGN else 3
OPENER = """
import asyncio, sys
from llm_sandbox_nb.sandbox.docker import network
from llm_sandbox_nb.sandbox.docker.engine import connect
from llm_sandbox_nb.sandbox.open import open_sandbox

network.NETWORK_NAME = sys.argv[1]

async def body():
    async with open_sandbox("docker", image=sys.argv[2]) as box:
        assert (await box.run("echo hello")).stdout == b"hello\\n"

connect()
print("ready", flush=True)
sys.stdin.readline()
asyncio.run(body())
print("done", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a network that only this test uses."""
    name = f"llm-sandbox-nb-test-{secrets.token_hex(4)}"
    monkeypatch.setattr(network, "NETWORK_NAME", name)
    yield name
    for one in networks(name):
        connect().api.remove_network(one["Id"])


def networks(name: str) -> list[dict[str, Any]]:
    return [one for one in connect().api.networks(names=[name]) if one["Name"] == name]


def network_of_a_new_sandbox() -> str:
    async def body() -> str:
        async with docker_box(image=SLIM_IMAGE) as box:
            inspected = connect().api.inspect_container(box.protection.details["container"])
            (joined,) = inspected["NetworkSettings"]["Networks"].values()
            return str(joined["NetworkID"])

    return run(body())


def make_network(name: str, icc: str = "false") -> str:
    made = connect().api.create_network(
        name,
        driver="bridge",
        options={"com.docker.network.bridge.enable_icc": icc},
        labels={"llm-sandbox-nb.network": "1"},
    )
    return str(made["Id"])


def test_several_processes_open_their_first_sandbox_at_once(name: str) -> None:
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", OPENER, name, SLIM_IMAGE],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(PROCESSES)
        ]

        def answers() -> list[str]:
            return [process.stdout.readline().strip() for process in processes if process.stdout]

        def go_on() -> None:
            for process in processes:
                assert process.stdin
                process.stdin.write("\n")
                process.stdin.flush()

        assert answers() == ["ready"] * PROCESSES
        go_on()
        assert answers() == ["done"] * PROCESSES
        chosen = network_of_a_new_sandbox()
        assert [one["Id"] for one in networks(name)] == [chosen]
        go_on()
        assert [process.wait(PATIENCE) for process in processes] == [0] * PROCESSES


def test_networks_that_exist_twice(name: str) -> None:
    """The oldest is used. The others are removed, but not while a sandbox is in them."""
    oldest, used, unused = (make_network(name) for _ in range(3))
    container = connect().api.create_container(
        SLIM_IMAGE,
        ["sleep", "infinity"],
        host_config=connect().api.create_host_config(network_mode=name),
        networking_config={"EndpointsConfig": {used: {}}},
    )["Id"]
    connect().api.start(container)
    try:
        assert network_of_a_new_sandbox() == oldest
        assert {one["Id"] for one in networks(name)} == {oldest, used}
        assert unused not in {oldest, used}
    finally:
        connect().api.remove_container(container, force=True)


def test_network_that_is_removed_is_made_again(name: str) -> None:
    first = network_of_a_new_sandbox()
    connect().api.remove_network(first)
    assert network_of_a_new_sandbox() != first
    assert len(networks(name)) == 1


def test_network_that_does_not_keep_sandboxes_apart(name: str) -> None:
    make_network(name, icc="true")
    with pytest.raises(network.IsolationUnavailableError, match=f"docker network rm {name}"):
        network_of_a_new_sandbox()


@pytest.mark.parametrize(
    ("settings", "gateways"),
    [
        ([{"Subnet": "172.17.0.0/16", "Gateway": "172.17.0.9"}], ["172.17.0.9"]),
        ([{"Subnet": "172.17.0.0/16"}], ["172.17.0.1"]),
        (
            [{"Subnet": "172.17.0.0/16", "Gateway": ""}, {"Subnet": "fd00:1::/64"}],
            ["172.17.0.1", "fd00:1::1"],
        ),
        ([{"Gateway": "fd00::1/64"}, {}], ["fd00::1"]),
        (None, []),
    ],
)
def test_the_gateway_that_an_engine_does_not_name_is_known(
    settings: list[dict[str, str]] | None, gateways: list[str]
) -> None:
    """An engine that has just made its bridge does not name the address that it chose."""
    assert network.gateways_of({"IPAM": {"Config": settings}}) == gateways
