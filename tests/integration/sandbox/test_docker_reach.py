"""What of the network around a sandbox is closed: the host at its bridges, metadata services, names of neighbours.

Each attack is also made from a container of somebody else on the same network, where it succeeds.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from docker_help import docker_box
from support import run

from llm_sandbox_nb.sandbox.docker import network, settings
from llm_sandbox_nb.sandbox.docker.engine import connect
from llm_sandbox_nb.sandbox.docker.images import SLIM_IMAGE

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_engine")]
PROFILES = pytest.mark.parametrize("profile", ["standard", "strict"])
METADATA = "169.254.169.254"
PROBE = r"""
import json, socket, struct, sys
order, found = json.loads(sys.argv[1]), {}

def udp(host, port, how):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        if how == "bound":
            one.setsockopt(socket.SOL_SOCKET, 25, b"eth0\0")
        aside = []
        if how == "sent by":
            aside = [(socket.IPPROTO_IP, 8, struct.pack("=I4s4s", socket.if_nametoindex("eth0"), b"", b""))]
        one.sendmsg([order["token"].encode()], aside, 0, (host, port))

def tcp(host, port, how):
    with socket.socket() as one:
        one.settimeout(5)
        if how == "bound":
            one.setsockopt(socket.SOL_SOCKET, 25, b"eth0\0")
        one.connect((host, port))

def name_of(address, server, kind, how):
    name = ".".join([*reversed(address.split(".")), "in-addr", "arpa"])
    if how == "in capitals":
        name = name.upper()
    question = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"
    rest = b""
    if how == "by a pointer":
        rest = question
        question = struct.pack(">H", 0xC000 | 12 + 2 + 4)
    query = struct.pack(">6H", 77, 0x100, 1, 0, 0, 0) + question + struct.pack(">2H", 12, 1) + rest
    with socket.socket(socket.AF_INET, kind) as one:
        one.settimeout(3)
        one.connect((server, 53))
        if kind == socket.SOCK_STREAM:
            query = struct.pack(">H", len(query)) + query
        one.send(query)
        answer = one.recv(4096)
    return order["name"].encode() in answer

servers = {line.split()[1] for line in open("/etc/resolv.conf") if line.startswith("nameserver")}
attempts = {}
for host, port in order["hosts"]:
    for how in ("plain", "bound", "sent by"):
        attempts[f"udp {how} {host}"] = lambda h=host, p=port, w=how: udp(h, p, w) is None
    for how in ("plain", "bound"):
        if port > 1000:
            attempts[f"tcp {how} {host}"] = lambda h=host, p=port, w=how: tcp(h, p, w) is None
if order.get("neighbour"):
    for server in servers | {"127.0.0.11"}:
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            for how in ("plainly", "in capitals", "by a pointer"):
                attempts[f"name {how} {kind} {server}"] = lambda s=server, k=kind, w=how: name_of(
                    order["neighbour"], s, k, w)
    attempts["name by the library"] = lambda: order["name"] in socket.gethostbyaddr(order["neighbour"])[0]
for name, attempt in attempts.items():
    try:
        found[name] = attempt()
    except OSError as error:
        found[name] = False
print(json.dumps(found))
"""


def gateway() -> str:
    (found,) = network.gateways_of(connect().api.inspect_network(network.find_network()))
    return found


@pytest.fixture
def listener() -> Iterator[tuple[int, list[socket.socket]]]:
    """A port of this machine on which it listens at all its addresses, and the sockets."""
    with socket.create_server(("0.0.0.0", 0)) as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        port = tcp.getsockname()[1]
        udp.bind(("0.0.0.0", port))
        for one in (tcp, udp):
            one.setblocking(False)
        yield port, [tcp, udp]


@pytest.fixture(scope="module")
def outsider() -> Iterator[Any]:
    """A container of somebody else on the sandboxes' network, for canaries."""
    found = connect().containers.run(
        SLIM_IMAGE, ["sleep", "infinity"], network=network.find_network(), detach=True, auto_remove=True
    )
    try:
        yield found
    finally:
        found.remove(force=True)


def answers_of(output: bytes) -> dict[str, bool]:
    found: dict[str, bool] = json.loads(output)
    assert found
    return found


@PROFILES
def test_neither_the_hosts_listeners_nor_metadata_services_are_reached(
    profile: str, listener: tuple[int, list[socket.socket]], outsider: Any
) -> None:
    port, sockets = listener
    order = {"hosts": [(gateway(), port), (METADATA, 80)], "token": secrets.token_hex(8)}
    order["hosts"] += [(host, port) for host in network.gateways_of(connect().api.inspect_network("bridge"))]
    code, output = outsider.exec_run(["python3", "-c", PROBE, json.dumps(order)])
    assert code == 0, output
    assert all(answers_of(output).values())
    assert sockets[1].recv(100).decode() == order["token"]
    sockets[0].accept()[0].close()
    while drained(sockets[0]):
        pass

    async def body() -> None:
        async with docker_box(image=SLIM_IMAGE, profile=profile, network="open") as box:
            order["token"] = secrets.token_hex(8)
            found = await box.exec(["python3", "-c", PROBE, json.dumps(order)], timeout=60)
            assert not any(answers_of(found.stdout).values()), found.text
            assert "gateway" in box.protection.details["closed"]
            assert "metadata" in box.protection.details["closed"]

    run(body())
    assert not drained(sockets[0])
    while received := drained(sockets[1]):
        assert received.decode() != order["token"]


def drained(one: socket.socket) -> bytes:
    """What has arrived at a socket that does not block; empty when nothing has."""
    try:
        if one.type == socket.SOCK_STREAM:
            one.accept()[0].close()
            return b"a connection"
        return one.recv(100)
    except BlockingIOError:
        return b""


@PROFILES
async def test_names_of_neighbours_are_not_told(profile: str, outsider: Any) -> None:
    async with docker_box(image=SLIM_IMAGE) as neighbour:
        inspected = connect().api.inspect_container(neighbour.protection.details["container"])
        (joined,) = inspected["NetworkSettings"]["Networks"].values()
        order = {
            "hosts": [],
            "token": "",
            "neighbour": joined["IPAddress"],
            "name": inspected["Name"][1:],
        }
        told = answers_of(outsider.exec_run(["python3", "-c", PROBE, json.dumps(order)])[1])
        assert told["name by the library"]
        async with docker_box(image=SLIM_IMAGE, profile=profile, network="open") as box:
            found = await box.exec(["python3", "-c", PROBE, json.dumps(order)], timeout=100)
            assert not any(answers_of(found.stdout).values()), found.text
            assert "names" in box.protection.details["closed"]


USUAL = """
import json, socket, struct, sys
name, own = sys.argv[1], socket.gethostbyname("sandbox")
with socket.create_server((own, 5000)) as server:
    socket.create_connection((own, 5000), timeout=5).close()
question = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\\0\\0\\1\\0\\1"
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
    asking.connect(("127.0.0.53", 53))
    asking.settimeout(10)
    for number in range(2000):
        asking.send(struct.pack(">6H", number, 0x100, 1, 0, 0, 0) + question)
        answer = asking.recv(4096)
        assert answer[:2] == struct.pack(">H", number), number
print(json.dumps([own, socket.gethostbyname(name)]))
"""


@PROFILES
async def test_a_sandbox_reaches_itself_and_names_are_looked_up(profile: str) -> None:
    async with docker_box(image=SLIM_IMAGE, profile=profile, network="open") as box:
        name = connect().api.inspect_container(box.protection.details["container"])["Name"][1:]
        await box.run("kill -9 -1")
        found = await box.exec(["python3", "-c", USUAL, name], timeout=60)
        assert found.exit_code == 0, found.text
        own, looked_up = json.loads(found.stdout)
        assert own == looked_up


async def test_a_stated_proxy_on_the_gateway_stays_open(listener: tuple[int, list[socket.socket]]) -> None:
    port, (tcp, _) = listener
    connects = f"import socket; socket.create_connection(('{gateway()}', %d), timeout=5)"
    async with docker_box(image=SLIM_IMAGE, proxy=f"http://{gateway()}:{port}") as box:
        assert (await box.exec(["python3", "-c", connects % port])).exit_code == 0
        assert drained(tcp)
        assert (await box.exec(["python3", "-c", connects % (port - 1)])).exit_code == 1
        assert b"No route" in (await box.exec(["python3", "-c", connects % (port - 1)])).stderr


def test_what_cannot_be_closed_is_said(
    listener: tuple[int, list[socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with an engine or a kernel that has no filter of packets for containers."""
    monkeypatch.setattr(settings, "TO_CLOSE_NETWORK", ())
    port, sockets = listener
    order = {"hosts": [(gateway(), port)], "token": secrets.token_hex(8)}

    async def body() -> None:
        async with docker_box(image=SLIM_IMAGE) as box:
            found = await box.exec(["python3", "-c", PROBE, json.dumps(order)], timeout=60)
            assert all(answers_of(found.stdout).values())
            assert "closed" not in box.protection.details
            for name in ("the gateway", "metadata services", "names of neighbours"):
                assert name in box.protection.does_not_protect
            assert (await box.exec(["getent", "hosts", "localhost"])).exit_code == 0
            assert b"127.0.0.11" in await box.read_file("/etc/resolv.conf")

    run(body())
    assert drained(sockets[0])
