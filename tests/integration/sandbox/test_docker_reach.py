"""What of the network around a sandbox is closed: the host, metadata services, private addresses, names of neighbours.

Each attack is also made from a container of somebody else on the same network, where it succeeds.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from docker.types import IPAMConfig, IPAMPool
from docker_help import docker_box
from support import run

from llm_sandbox_nb.sandbox.docker import container, host_network, network, settings
from llm_sandbox_nb.sandbox.docker.engine import connect
from llm_sandbox_nb.sandbox.docker.host_network import HostNetwork, read_host_network
from llm_sandbox_nb.sandbox.docker.images import SLIM_IMAGE
from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_engine")]
METADATA = "169.254.169.254"
PROBE = r"""
import json, socket, struct, sys
order, found = json.loads(sys.argv[1]), {}

def family(host):
    return socket.AF_INET6 if ":" in host else socket.AF_INET

def udp(host, port, how):
    with socket.socket(family(host), socket.SOCK_DGRAM) as one:
        if how == "bound":
            one.setsockopt(socket.SOL_SOCKET, 25, b"eth0\0")
        aside = []
        if how == "sent by":
            aside = [(socket.IPPROTO_IP, 8, struct.pack("=I4s4s", socket.if_nametoindex("eth0"), b"", b""))]
        one.sendmsg([order["token"].encode()], aside, 0, (host, port))

def tcp(host, port, how):
    with socket.socket(family(host)) as one:
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
    for how in ("plain", "bound", *(() if ":" in host else ("sent by",))):
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
    attempts["address by the library"] = lambda: socket.gethostbyname(order["name"]) == order["neighbour"]
    attempts["address with the network"] = lambda: (
        socket.gethostbyname(order["name"] + "." + order["network"]) == order["neighbour"])
    attempts["name by the library"] = lambda: order["name"] in socket.gethostbyaddr(order["neighbour"])[0]
for name, attempt in attempts.items():
    try:
        found[name] = attempt()
    except OSError as error:
        found[name] = False
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def bridge() -> Iterator[str]:
    """The sandboxes' network for this module: as the product makes it, and with IPv6."""
    name = f"llm-sandbox-nb-test-{secrets.token_hex(4)}"
    subnet = f"fd{secrets.token_hex(1)}:{secrets.token_hex(2)}::/64"
    connect().networks.create(
        name,
        enable_ipv6=True,
        ipam=IPAMConfig(pool_configs=[IPAMPool(subnet=subnet)]),
        options={"com.docker.network.bridge.enable_icc": "false"},
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(network, "NETWORK_NAME", name)
        yield name
    connect().networks.get(name).remove()


def gateways(name: str) -> list[str]:
    return network.gateways_of(connect().api.inspect_network(name))


@pytest.fixture
def listener() -> Iterator[tuple[int, list[socket.socket]]]:
    """A port of this machine on which it listens at all its addresses, as a server does, and the sockets."""
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as tcp,
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as udp,
    ):
        port = tcp.getsockname()[1]
        udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        udp.bind(("::", port))
        for one in (tcp, udp):
            one.setblocking(False)
        yield port, [tcp, udp]


@pytest.fixture(scope="module")
def outsider(bridge: str) -> Iterator[Any]:
    found = connect().containers.run(
        SLIM_IMAGE, ["sleep", "infinity"], network=bridge, detach=True, auto_remove=True
    )
    try:
        yield found
    finally:
        found.remove(force=True)


def answers_of(output: bytes) -> dict[str, bool]:
    found: dict[str, bool] = json.loads(output)
    assert found
    return found


CLOSED = [
    "10.1.2.3", "172.16.1.2", "172.31.1.2", "192.168.1.1", "100.64.0.1", "169.254.169.254", "168.63.129.16",
    "100.100.100.200", "198.18.0.1", "192.0.0.192", "224.0.0.251", "255.255.255.255", "::ffff:10.1.2.3",
    "::ffff:169.254.169.254", "64:ff9b::a01:203", "64:ff9b:1::1", "2002:a01:203::1", "2001:0:a01:203::1", "fc00::1",
    "fd00:ec2::254", "::10.1.2.3", "ff02::1",
]  # fmt: skip
PUBLIC = ["93.184.216.34", "1.1.1.1", "2a00:1450:4001::1"]


@pytest.mark.parametrize("chosen", [None, pytest.param("open", marks=pytest.mark.campaign)])
def test_neither_the_host_nor_private_addresses_are_reached(
    chosen: str | None, listener: tuple[int, list[socket.socket]], bridge: str, outsider: Any
) -> None:
    """`None` is `public` here. `open` closes the gateways and metadata services alone."""
    port, sockets = listener

    async def body() -> None:
        async with docker_box(image=SLIM_IMAGE, network=chosen) as box:
            later = connect().networks.create(f"{bridge}-later")
            try:
                served = [*gateways(bridge), *gateways("bridge")]
                nowhere = [METADATA, "100.100.100.200"]
                if chosen is None:
                    own = read_host_network(network.find_network(), older=False).addresses
                    served = sorted({*served, *own, *gateways(later.name), f"::ffff:{gateways('bridge')[0]}"})
                    nowhere = CLOSED
                hosts = [*((one, port) for one in served), *((one, 80) for one in nowhere)]
                order = {"hosts": hosts, "token": secrets.token_hex(8)}
                canary = answers_of(outsider.exec_run(["python3", "-c", PROBE, json.dumps(order)]).output)
                assert [name for name, reached in canary.items() if not reached] == [
                    # Nobody may send to everybody unasked.
                    f"udp {how} 255.255.255.255"
                    for how in ("plain", "bound", "sent by")
                    if chosen is None
                ]
                assert drained(sockets[0])
                while drained(sockets[0]) or drained(sockets[1]):
                    pass
                order["token"] = secrets.token_hex(8)
                found = await box.exec(["python3", "-c", PROBE, json.dumps(order)], timeout=100)
                reached = [name for name, reached in answers_of(found.stdout).items() if reached]
                assert not reached, found.text
                order["hosts"] = [(one, 80) for one in PUBLIC]
                found = await box.exec(["python3", "-c", PROBE, json.dumps(order)], timeout=60)
                assert all(answers_of(found.stdout).values()), found.text
            finally:
                later.remove()
            closed = box.protection.details["closed"]
            assert "gateway" in closed
            assert "metadata" in closed
            assert box.protection.network == (chosen or "public")
            assert ("private addresses" in closed) is (chosen is None)
            assert ("is not safe" in box.protection.does_not_protect) is (chosen == "open")

    run(body())
    assert not drained(sockets[0])
    while received := drained(sockets[1]):
        assert len(received) == 1, "all that arrived is the sandbox's own try at its start"


def drained(one: socket.socket) -> bytes:
    """What has arrived at a socket that does not block; empty when nothing has."""
    try:
        if one.type == socket.SOCK_STREAM:
            one.accept()[0].close()
            return b"a connection"
        return one.recv(100)
    except BlockingIOError:
        return b""


@pytest.mark.parametrize("chosen", ["public", pytest.param("open", marks=pytest.mark.campaign)])
async def test_names_of_neighbours_are_not_told(chosen: str, bridge: str, outsider: Any) -> None:
    async with docker_box(image=SLIM_IMAGE) as neighbour:
        inspected = connect().api.inspect_container(neighbour.protection.details["container"])
        (joined,) = inspected["NetworkSettings"]["Networks"].values()
        order = {
            "hosts": [],
            "token": "",
            "neighbour": joined["IPAddress"],
            "name": inspected["Name"][1:],
            "network": bridge,
        }
        told = answers_of(outsider.exec_run(["python3", "-c", PROBE, json.dumps(order)])[1])
        assert told["name by the library"]
        assert told["address by the library"]
        assert told["address with the network"]
        async with docker_box(image=SLIM_IMAGE, profile="strict", network=chosen) as box:
            found = answers_of(
                (await box.exec(["python3", "-c", PROBE, json.dumps(order)], timeout=100)).stdout
            )
            if chosen == "open":
                assert found.pop("address by the library"), "the canary: `open` passes on every name"
                assert found.pop("address with the network")
            assert not any(found.values()), found
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


async def test_a_sandbox_reaches_itself_and_names_are_looked_up(bridge: str) -> None:
    async with docker_box(image=SLIM_IMAGE, profile="strict", network="open") as box:
        name = connect().api.inspect_container(box.protection.details["container"])["Name"][1:]
        await box.run("kill -9 -1")
        found = await box.exec(["python3", "-c", USUAL, name], timeout=60)
        assert found.exit_code == 0, found.text
        own, looked_up = json.loads(found.stdout)
        assert own == looked_up


POISON = r"""
import os
for name in ("ipaddress", "socket", "functools", "collections/__init__", "encodings/idna"):
    path = os.path.join(os.path.dirname(os.__file__), name + ".py")
    if not name.endswith("__init__") and os.path.exists(path):
        with open(path, "w") as module:
            module.write("import posix\nif posix.getpid() == 1:\n    posix.mkdir('/taken-over')\n")
"""


async def test_a_question_makes_process_1_run_no_file_of_the_sandbox() -> None:
    """Process 1 may use sockets that commands cannot use, and a reused sandbox keeps it."""
    async with docker_box(image=SLIM_IMAGE, network="public") as box:
        await box.write_file("poison.py", POISON.encode())
        assert (await box.run("python3 poison.py")).exit_code == 0
        await box.run("getent hosts 10.1.2.3; getent hosts 1.1.1.1", timeout=60)
        assert (await box.run("ls -d /taken-over")).exit_code == 2


async def test_the_sockets_of_the_name_server_reach_name_servers_alone(
    listener: tuple[int, list[socket.socket]], bridge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 1 sends what commands could make it send if they had taken it over."""
    port, (_, received) = listener
    host, token = gateways("bridge")[0], secrets.token_hex(8)
    attack = f"""
from executor import name_server
import os, socket
os.mkdir("/tried")
for one in name_server.upstream:
    other = socket.socket(fileno=os.dup(one.fileno()))
    server = other.getpeername()
    try:
        other.connect(({host!r}, {port}))
        other.send({token!r}.encode())
    except OSError:
        pass
    other.connect(server)
"""
    steps = settings.first_steps
    monkeypatch.setattr(container, "first_steps", lambda *given: [*steps(*given), attack])
    async with docker_box(image=SLIM_IMAGE, network="public") as box:
        assert (await box.run("ls -d /tried")).exit_code == 0
        assert "names of neighbours" in box.protection.details["closed"]
    arrived = []
    while data := drained(received):
        arrived.append(data)
    assert token.encode() not in arrived


RESOLVER = r"""
import socket, struct, sys
zone = {b"public": ["93.184.216.34"], b"mixed": ["93.184.216.34", "10.0.0.5"], b"private": ["10.0.0.5"],
        b"host": [sys.argv[1]], b"metadata": ["169.254.169.254"]}
asked = 0
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as serving:
    serving.bind((sys.argv[1], 53))
    print("ready", flush=True)
    while True:
        packet, sender = serving.recvfrom(4096)
        end = packet.index(b"\0", 12) + 5
        name = packet[13 : 13 + packet[12]]
        addresses = zone.get(name, [])
        if name == b"changing":
            addresses = ["93.184.216.34"] if not asked else ["10.0.0.5"]
            asked += 1
        answer = packet[:2] + struct.pack(">5H", 0x8180, 1, len(addresses), 0, 0) + packet[12:end]
        for one in addresses:
            answer += struct.pack(">HHHIH", 0xC00C, 1, 1, 0, 4) + socket.inet_aton(one)
        serving.sendto(answer, sender)
"""
LOOK_UP = """
import json, socket, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = sorted({one[4][0] for one in socket.getaddrinfo(name, 80, socket.AF_INET)})
    except OSError:
        found[name] = []
print(json.dumps(found))
"""


async def test_names_that_lead_to_closed_addresses_are_not_known(
    bridge: str, outsider: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server on the host itself, of whose zone some names lead to the host, or somewhere private at last."""
    (server, _) = sorted(gateways(bridge), key=lambda one: ":" in one)
    resolver = connect().containers.run(
        SLIM_IMAGE,
        ["python3", "-u", "-c", RESOLVER, server],
        network_mode="host",
        detach=True,
    )
    try:
        assert next(resolver.logs(stream=True)).startswith(b"ready")
        around = HostNetwork(frozenset(gateways(bridge)), (server,), complete=True)
        monkeypatch.setattr(host_network, "read_host_network", lambda *_, **__: around)
        names = ["public", "mixed", "private", "host", "metadata", "changing", "changing"]
        questions = [f"{name}.example.org" for name in names] + ["public"]
        async with docker_box(image=SLIM_IMAGE) as box:
            found = await box.exec(["python3", "-c", LOOK_UP, *questions[:-3]], timeout=60)
            assert json.loads(found.stdout) == {
                "public.example.org": ["93.184.216.34"],
                "mixed.example.org": ["10.0.0.5", "93.184.216.34"],
                "private.example.org": [],
                "host.example.org": [],
                "metadata.example.org": [],
            }
            for expected in (["93.184.216.34"], []):
                found = await box.exec(["python3", "-c", LOOK_UP, *questions[-2:]], timeout=60)
                assert json.loads(found.stdout) == {"changing.example.org": expected, "public": []}
            asks = f"import socket; one = socket.socket(type=2); one.sendto(b'x', ({server!r}, 53))"
            assert (await box.exec(["python3", "-c", asks])).exit_code == 1
            assert outsider.exec_run(["python3", "-c", asks]).exit_code == 0
    finally:
        resolver.remove(force=True)


async def test_a_stated_proxy_on_the_gateway_stays_open(
    listener: tuple[int, list[socket.socket]], bridge: str
) -> None:
    port, (tcp, _) = listener
    gateway = min(gateways(bridge), key=lambda one: ":" in one)
    connects = f"import socket; socket.create_connection(('{gateway}', %d), timeout=5)"
    async with docker_box(image=SLIM_IMAGE, proxy=f"http://{gateway}:{port}") as box:
        assert (await box.exec(["python3", "-c", connects % port])).exit_code == 0
        assert drained(tcp)
        assert (await box.exec(["python3", "-c", connects % (port - 1)])).exit_code == 1
        assert b"No route" in (await box.exec(["python3", "-c", connects % (port - 1)])).stderr


def test_what_cannot_be_closed_is_said(
    listener: tuple[int, list[socket.socket]], bridge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with an engine or a kernel that has no filter of packets for containers."""
    monkeypatch.setattr(settings, "NETWORK_CAPABILITIES", ())
    port, sockets = listener
    order = {"hosts": [(one, port) for one in gateways(bridge)], "token": secrets.token_hex(8)}

    async def body() -> None:
        with pytest.raises(IsolationUnavailableError, match="network='none', or network='open'"):
            async with docker_box(image=SLIM_IMAGE):
                pass
        async with docker_box(image=SLIM_IMAGE, network="open") as box:
            found = await box.exec(["python3", "-c", PROBE, json.dumps(order)], timeout=60)
            assert all(answers_of(found.stdout).values())
            assert "closed" not in box.protection.details
            for name in ("the gateway", "metadata services", "names of neighbours"):
                assert name in box.protection.does_not_protect
            assert (await box.exec(["getent", "hosts", "localhost"])).exit_code == 0
            assert b"127.0.0.11" in await box.read_file("/etc/resolv.conf")

    run(body())
    assert drained(sockets[0])
