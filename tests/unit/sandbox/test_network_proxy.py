"""The proxy of an allow-list, against the table of ways out, and what has to work through it."""

from __future__ import annotations

import asyncio
import base64
import gzip
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from network_attacks import (
    ATTACKS,
    OTHER,
    PUBLIC,
    SECRET,
    Attack,
    NaiveProxy,
    Outcome,
    Steps,
    address_of_this_machine,
    attempt_here,
    check,
    connect,
    get,
    hello,
    name,
)
from support import eventually
from virtual_time import run_in_virtual_time

from llm_sandbox_nb.sandbox.contract import Connection
from llm_sandbox_nb.sandbox.network.internet import MAX_LOOKUPS, Internet
from llm_sandbox_nb.sandbox.network.policy import Policy
from llm_sandbox_nb.sandbox.network.proxy import IDLE_TIMEOUT, MAX_REASON_LENGTH, Proxy
from llm_sandbox_nb.sandbox.network.secrets import (
    Scrubber,
    Secret,
    forms_of,
    parse_secrets,
    placeholder,
    put_in_body,
)
from llm_sandbox_nb.sandbox.network.streams import CountingStream, read_hello

STAND_IN = placeholder("API_TOKEN")


def outcomes_with(
    kind: type[Proxy], attacks: list[Attack], patience: float
) -> list[tuple[Outcome, list[Connection]]]:
    async def whole() -> list[tuple[Outcome, list[Connection]]]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(len(attacks)))
        return await asyncio.gather(*(attempt_here(kind, attack, patience) for attack in attacks))

    return asyncio.run(whole())


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    found = outcomes_with(Proxy, ATTACKS, 20)
    return {attack.id: outcome for attack, (outcome, _) in zip(ATTACKS, found, strict=True)}


@pytest.fixture(scope="module")
def canaries() -> dict[str, Outcome]:
    found = outcomes_with(NaiveProxy, ATTACKS, 8)  # on a busy machine all of them together need seconds
    return {attack.id: outcome for attack, (outcome, _) in zip(ATTACKS, found, strict=True)}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.id)
def test_way_out(attack: Attack, outcomes: dict[str, Outcome], canaries: dict[str, Outcome]) -> None:
    check(attack, outcomes[attack.id])
    assert canaries[attack.id].reached(attack), canaries[attack.id]


def one(steps: Steps) -> tuple[Outcome, list[Connection]]:
    return outcomes_with(Proxy, [Attack(0, "", steps)], 2)[0]


def test_an_address_is_looked_up_once_and_dialled_as_it_was_checked() -> None:
    for host in ("rebinds.example", "mixed.example"):
        outcome, reported = one(get(f"http://{host}/", host))
        assert outcome.looked_up == [host]
        assert outcome.dialled == [(PUBLIC, 80)]
        assert (reported[0].decision, reported[0].address, reported[0].rule) == ("allowed", PUBLIC, host)


def test_capitals_and_a_final_dot_are_the_same_name() -> None:
    outcome, reported = one(
        get("http://Allowed.EXAMPLE./path?q", "allowed.example.", "Accept-Encoding: gzip")
    )
    assert outcome.arrived[0].startswith(b"GET /path?q HTTP/1.1\r\n")
    assert "ECHO GET /path?q" in outcome.said
    assert (reported[0].host, reported[0].sent > 0, reported[0].received > 0) == (
        "allowed.example",
        True,
        True,
    )


def test_a_slow_hello_a_named_port_a_body_and_a_websocket_are_passed_on() -> None:
    first = hello((21, bytes(1200)), name("a.wild.example"))
    chunked, pieces = "Transfer-Encoding: chunked", "3\r\nabc\r\n0\r\n\r\n"
    upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x")
    whole = [
        connect("a.wild.example:443", ("head", ""), ("slow", first), ("rest", "")),
        connect("raw.example:22", ("head", ""), ("send", "SSH-2.0-x\r\n"), ("rest", "")),
        get("http://allowed.example/", "allowed.example", chunked, body=pieces),
        get("http://allowed.example/", "allowed.example", *upgrade, body="frame"),
    ]
    found = outcomes_with(Proxy, [Attack(0, "", steps) for steps in whole], 2)
    late_name, named_port, body, websocket = (outcome for outcome, _ in found)
    assert late_name.arrived == [first.encode("latin-1")]
    assert "RAW SSH-2.0-x" in named_port.said
    assert b"abc" in b"".join(body.arrived)
    assert "101" in websocket.said
    assert "RAW frame" in websocket.said


def inner(*lines: str) -> Steps:
    request = "\r\n".join(["GET / HTTP/1.1", "Host: api.example", *lines, "", ""])
    return connect("api.example:443", ("head", ""), ("tls", "api.example"), ("send", request), ("rest", ""))


@pytest.mark.parametrize(
    ("header", "arrives"),
    [
        (f"Authorization: Bearer {STAND_IN}", f"Bearer {SECRET}".encode()),
        (f"X-Anything: a{STAND_IN}b", f"a{SECRET}b".encode()),
        (
            "Authorization: Basic " + base64.b64encode(f"me:{STAND_IN}".encode()).decode(),
            b"Basic " + base64.b64encode(f"me:{SECRET}".encode()),
        ),
    ],
)
def test_a_secret_goes_to_its_host_and_never_comes_back(header: str, arrives: bytes) -> None:
    outcome, reported = one(inner(header))
    assert arrives in b"".join(outcome.arrived)
    assert "ALPN http/1.1" in outcome.said  # h2 was offered
    assert "ECHO" in outcome.said
    assert "(secret)" in outcome.said
    for form in (SECRET, arrives.decode().removeprefix("Basic ")):
        assert form not in outcome.said
    assert reported[0].secrets == ["API_TOKEN"]
    upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x")
    assert b"\nupgrade:" not in b"".join(one(inner(header, *upgrade))[0].arrived)
    assert SECRET not in repr(reported)


@pytest.mark.parametrize(
    "steps",
    [
        get("http://api.example/", "api.example", f"X-Key: {STAND_IN}"),
        get("http://allowed.example/", "allowed.example", f"X-Key: {STAND_IN}"),
        [
            *connect("api.example:443", ("head", ""), ("tls", "api.example")),
            (
                "send",
                f"POST / HTTP/1.1\r\nHost: api.example\r\nContent-Length: {len(STAND_IN)}\r\n\r\n{STAND_IN}",
            ),
            ("rest", ""),
        ],
    ],
    ids=["plain", "another host", "body"],
)
def test_a_secret_goes_nowhere_else(steps: Steps) -> None:
    outcome, reported = one(steps)
    got = b"".join(outcome.arrived)
    assert STAND_IN.encode() in got
    assert SECRET.encode() not in got
    assert reported[0].secrets == []


def in_body(body: str, *lines: str, hosts: str = "api.example+body") -> tuple[Outcome, list[Connection]]:
    steps = [*inner(f"Content-Type: {lines[0]}", *lines[1:])]
    steps[3] = ("send", steps[3][1] + body)
    return asyncio.run(
        attempt_here(Proxy, Attack(0, "", steps), 2, secrets=parse_secrets({"API_TOKEN": hosts}))
    )


CUT = f"{len(STAND_IN[:9]):x}\r\n{STAND_IN[:9]}\r\n{len(STAND_IN[9:]):x}\r\n{STAND_IN[9:]}\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("body", "lines", "arrives"),
    [
        (f'{{"key": "{STAND_IN}"}}', ("application/json",), f'{{"key": "{SECRET}"}}'),
        (f"key={STAND_IN}&a=b", ("application/x-www-form-urlencoded",), f"key={SECRET}&a=b"),
        (CUT, ("text/plain", "Transfer-Encoding: chunked"), SECRET),
    ],
    ids=["JSON", "form", "chunks that cut it"],
)
def test_a_body_gets_a_secret_where_that_was_asked_for(
    body: str, lines: tuple[str, ...], arrives: str
) -> None:
    framed = lines if len(lines) > 1 else (*lines, f"Content-Length: {len(body)}")
    outcome, reported = in_body(body, *framed)
    got = b"".join(outcome.arrived)
    assert got.endswith(b"\r\n\r\n" + arrives.encode())
    assert b"content-length: %d\r\n" % len(arrives) in got
    assert reported[0].secrets == ["API_TOKEN"]
    assert "ECHO" in outcome.said
    assert SECRET not in outcome.said
    outcome, reported = in_body(body, *framed, hosts="api.example")  # the canary: nobody has asked for it
    assert SECRET.encode() not in b"".join(outcome.arrived)
    assert reported[0].secrets == []


def test_a_long_body_is_passed_on_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_sandbox_nb.sandbox.network.proxy.MAX_BODY_BYTES", 1000)
    body = STAND_IN + "x" * 2000
    outcome, reported = in_body(body, "text/plain", f"Content-Length: {len(body)}")
    assert b"".join(outcome.arrived).endswith(body.encode())
    assert reported[0].secrets == []


def test_a_value_is_in_the_form_of_its_body() -> None:
    odd = Secret("API_TOKEN", ("api.example",), 'a"b\\c&d e', frozenset({"api.example"}))
    assert put_in_body(STAND_IN.encode(), "application/json", [odd])[0] == b'a\\"b\\\\c&d e'
    assert put_in_body(STAND_IN.encode(), "application/x-www-form-urlencoded", [odd])[0] == b"a%22b%5Cc%26d+e"
    assert put_in_body(STAND_IN.encode(), "text/plain", [odd])[0] == b'a"b\\c&d e'


@pytest.mark.parametrize("form", forms_of(SECRET + '+/"'), ids=repr)
@pytest.mark.parametrize("place", ["body", "header"])
def test_what_a_host_has_kept_never_comes_back(
    form: bytes, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the reply to a later request, which has no placeholder."""
    monkeypatch.setattr("network_attacks.SECRET", SECRET + '+/"')
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nX-Kept: %s\r\n\r\n" % (
        form if place == "header" else b""
    )
    answer = head + (form if place == "body" else b"")
    outcome, _ = asyncio.run(attempt_here(Proxy, Attack(0, "", inner()), 2, answer=answer))
    assert "(secret)" in outcome.said
    assert form.decode() not in outcome.said
    monkeypatch.setattr("llm_sandbox_nb.sandbox.network.proxy.forms_of", lambda value: [])
    canary, _ = asyncio.run(attempt_here(Proxy, Attack(0, "", inner()), 2, answer=answer))
    assert form.decode() in canary.said


def test_without_tls_a_secrets_host_neither_returns_the_value_nor_gets_the_key_of_another_person() -> None:
    answer = b"HTTP/1.1 200 OK\r\nX-Kept: %s\r\n\r\n%s" % (SECRET.encode(), SECRET.encode())
    plain = get("http://api.example/kept", "api.example", "Accept-Encoding: gzip")
    outcome, _ = asyncio.run(attempt_here(Proxy, Attack(0, "", plain), 2, answer=answer))
    assert outcome.said.count("(secret)") == 2
    assert SECRET not in outcome.said
    foreign = get("http://api.example/kept", "api.example", "Authorization: Bearer of-the-attacker")
    outcome, reported = one(foreign)
    assert b"".join(outcome.arrived).startswith(b"GET /kept HTTP/1.1\r\n")
    assert b"of-the-attacker" not in b"".join(outcome.arrived)
    assert (reported[0].decision, reported[0].secrets) == ("allowed", [])


def test_a_value_in_the_name_of_a_header_is_left_out() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-%s: a\r\n\r\nok" % SECRET.encode()
    outcome, _ = asyncio.run(attempt_here(Proxy, Attack(0, "", inner()), 2, answer=answer))
    assert "\r\nok\r\n" in outcome.said
    assert SECRET not in outcome.said


def test_a_compressed_reply_of_a_secrets_host_is_refused() -> None:
    packed = gzip.compress(SECRET.encode())
    answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed
    outcome, _ = asyncio.run(attempt_here(Proxy, Attack(0, "", inner()), 2, answer=answer))
    assert "HTTP/1.1 502" in outcome.said
    assert packed.decode("latin-1") not in outcome.said


def test_public_reaches_what_is_public_only() -> None:
    raw = [("head", ""), ("send", "SSH-2.0-x\r\n"), ("rest", "")]

    async def tried(*places: str) -> list[tuple[str, Outcome]]:
        found = await asyncio.gather(*(
            attempt_here(Proxy, Attack(0, "", connect(where, *raw)), 2, secrets={}, policy=Policy(public=True))
            for where in places
        ))  # fmt: skip
        return [(where, outcome) for where, (outcome, _) in zip(places, found, strict=True)]

    public = (f"{PUBLIC}:443", "any.where.example:22", "mixed.example:443", "rebinds.example:443")
    for where, outcome in asyncio.run(tried(*public)):
        assert "RAW SSH-2.0-x" in outcome.said
        assert outcome.dialled in ([(PUBLIC, int(where[-3:].strip(":")))], [(OTHER, 22)])
    hosts = ("loop", "ten", "metadata", "azure", "mapped", "nat", "six", "any", "zone", "group", "shared")
    literals = ("127.0.0.1", "10.0.0.5", "169.254.169.254", "100.64.0.1", "[::1]", "[fd00::5]", "[fe80::1]",
                "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[ff02::1]")  # fmt: skip
    own = address_of_this_machine()
    private = [*(f"{host}.example" for host in hosts), *literals, *([own] if own else [])]
    for where, outcome in asyncio.run(tried(*(f"{host}:443" for host in private))):
        assert outcome.said.startswith("HTTP/1.1 403 "), (where, outcome)
        assert outcome.dialled == []


def test_a_stream_is_searched_across_its_pieces() -> None:
    scrubber = Scrubber([b"s3cr3t-value"])
    pieces = [scrubber.feed(bytes([byte])) for byte in b"data: s3cr3t-values3cr"]
    assert b"".join(pieces) == b"data: (secret)"
    assert pieces[5] == b" "  # nothing is held back that cannot be the beginning of one
    assert scrubber.feed(b"", last=True) == b"s3cr"


def test_a_silent_or_endless_head_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_sandbox_nb.sandbox.network.proxy.HEAD_TIMEOUT", 0.3)
    assert " 408 " in one([("send", "GET http://allowed.example/ HTTP/1.1\r\n"), ("rest", "")])[0].said
    assert (
        " 400 "
        in one([("send", "GET http://allowed.example/ HTTP/1.1\r\nA: " + "a" * 99_999), ("rest", "")])[0].said
    )


def test_the_reason_of_a_refusal_does_not_repeat_a_long_request() -> None:
    outcome, reported = one([("send", "\1" * 60_000 + "\r\n\r\n"), ("rest", "")])
    assert " 400 " in outcome.said
    assert reported[0].decision == "refused"
    assert len(reported[0].reason) <= MAX_REASON_LENGTH


class Trickle:
    """A stream from which pieces come after pauses, and an answer as soon as the body of a request is complete."""

    def __init__(self, pieces: list[tuple[float, bytes]], answer: bytes = b"") -> None:
        self.pieces, self.answer = pieces, answer
        self.written = b""
        self.sent = self.received = 0
        self.complete = asyncio.Event()

    async def read(self) -> bytes:
        if self.pieces:
            pause, piece = self.pieces.pop(0)
            await asyncio.sleep(pause)  # in virtual time
            return piece
        await self.complete.wait()
        answer, self.answer = self.answer, b""
        return answer

    async def write(self, data: bytes | memoryview) -> None:
        self.written += bytes(data)
        if self.written.endswith(b"0\r\n\r\n"):
            self.complete.set()

    async def end_writing(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


async def exchange(client: Trickle, server: CountingStream) -> list[Connection]:
    """Serve a client whose requests all go to this server. Return the reported connections."""

    class Near(Internet):
        async def addresses(self, host: str, port: int) -> list[str]:
            return [PUBLIC]

        async def connect(self, *_: object) -> CountingStream:
            return server

    reported: list[Connection] = []
    proxy = Proxy(Policy(["allowed.example"]), internet=Near())
    proxy.report = reported.append
    await proxy.serve(client)
    return reported


HEAD = b"POST http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_long_upload_is_not_a_silent_connection() -> None:
    pieces = [b"1\r\nx\r\n"] * 5 + [b"0\r\n\r\n"]
    client = Trickle([(0, HEAD), *((IDLE_TIMEOUT / 2, piece) for piece in pieces)])
    server = Trickle([], b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    reported, _ = run_in_virtual_time(exchange(client, server))
    assert client.written.endswith(b"\r\n\r\nok")
    assert (reported[0].decision, reported[0].reason) == ("allowed", "")


def test_the_reply_of_a_server_that_refuses_a_body_arrives() -> None:
    class Refusing(Trickle):
        async def write(self, data: bytes | memoryview) -> None:
            if bytes(data).startswith(b"1\r\nx"):
                self.complete.set()
                raise ConnectionError("the other side has closed the connection")

    client = Trickle([(0, HEAD), (0, b"1\r\nx\r\n"), (0, b"0\r\n\r\n")])
    server = Refusing([], b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
    reported, _ = run_in_virtual_time(exchange(client, server))
    assert client.written.startswith(b"HTTP/1.1 413 ")
    assert reported[0].decision == "allowed"


def test_slow_look_ups_hold_up_no_other_work_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, looking = threading.Event(), threading.Semaphore(0)

    def getaddrinfo(*_: object, **__: object) -> list[Any]:
        looking.release()
        slow.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    async def whole() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2 * MAX_LOOKUPS))
        sandboxes = [Internet(), Internet()]
        looks = [
            asyncio.create_task(internet.addresses(f"{number}.example", 443))
            for internet in sandboxes
            for number in range(MAX_LOOKUPS + 1)
        ]
        try:
            for _ in range(2 * MAX_LOOKUPS):
                await eventually(lambda: looking.acquire(blocking=False))
            async with asyncio.timeout(60):
                assert await asyncio.to_thread(lambda: "done") == "done"
            assert not looking.acquire(blocking=False), "a sandbox has more look-ups at once than it may"
        finally:
            slow.set()
        await asyncio.gather(*looks)

    asyncio.run(whole())


def test_the_time_for_a_first_tls_message_grows_only_with_its_length() -> None:
    """A hostile program sends records of a byte, a byte at a time; each byte is parsed once."""

    class Bytes:
        def __init__(self, data: bytes) -> None:
            self.data, self.at = data, 0

        async def read(self) -> bytes:
            await asyncio.sleep(0)
            self.at += 1
            return self.data[self.at - 1 : self.at]

        async def write(self, data: bytes | memoryview) -> None:
            raise AssertionError

        async def end_writing(self) -> None:
            raise AssertionError

    whole = hello((21, bytes(8000)), name("allowed.example")).encode("latin-1")[5:]
    records = b"".join(b"\x16\x03\x01\0\1" + whole[at : at + 1] for at in range(len(whole)))

    async def read() -> tuple[bytes, str]:
        async with asyncio.timeout(60):
            return await read_hello(Bytes(records))

    assert asyncio.run(read()) == (records, "allowed.example")
