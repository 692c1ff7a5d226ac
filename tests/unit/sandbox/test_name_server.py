"""Which questions the sandbox's name server passes on, and its answers to the others."""

from __future__ import annotations

import socket
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_sandbox_nb.sandbox.executor import firewall, name_server
from llm_sandbox_nb.sandbox.executor.name_server import (
    NO_SUCH_NAME,
    REFUSED,
    NameServer,
    examine,
    leads_to_closed,
)


def query(name: str, kind: int = 1, *, questions: int = 1, flags: int = 0x100) -> bytes:
    """A question as programs send it; `name` may hold any bytes of one character each."""
    labels = [label.encode("latin-1") for label in name.split(".") if label]
    written = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return struct.pack(">6H", 77, flags, questions, 0, 0, 0) + written + struct.pack(">2H", kind, 1)


def reverse(address: str) -> str:
    return ".".join([*reversed(address.split(".")), "in-addr", "arpa"])


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a sandbox whose host and network have no addresses of the internet."""
    monkeypatch.setattr(firewall, "in_force", {"hosts": []})
    monkeypatch.setattr(name_server, "closed", [lambda address: firewall.is_closed(address, [])])


@pytest.mark.parametrize(
    "name", ["example.com", "localhost", "a.b.c.d.e", "", reverse("8.8.8.8"), reverse("1.1.1.1").upper()]
)
def test_usual_questions_are_passed_on_as_they_are(name: str) -> None:
    packet = query(name)
    assert examine(packet) == (packet[12:], b"")


@pytest.mark.parametrize(
    "address",
    ["172.18.0.2", "10.0.0.1", "192.168.1.1", "169.254.169.254", "127.0.0.1", "100.64.0.1", "9.9.9.9"],
)
def test_addresses_that_are_not_public_have_no_names(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_server, "closed", [lambda address: firewall.is_closed(address, ["9.9.9.0/24"])])
    name = reverse(address)
    for packet in (query(name, 1), query(name.upper(), 12), query(name.title(), 255), query(name, 12)):
        question, answer = examine(packet)
        assert question == b""
        assert answer[:2] == struct.pack(">H", 77)
        assert (answer[2] & 0x80, answer[3] & 15) == (0x80, NO_SUCH_NAME)


@pytest.mark.parametrize(
    "name",
    ["2.0.18.172.in-addr.arpa".replace("2.0", "2"), "x.2.0.18.172.in-addr.arpa", "in-addr.arpa",
     "002.000.018.172.in-addr.arpa", "1.0.ip6.arpa", ".".join("1" + "0" * 27 + "00cf") + ".ip6.arpa"],
)  # fmt: skip
def test_reverse_names_that_are_not_written_as_usual_are_not_known(name: str) -> None:
    assert examine(query(name))[0] == b""


@pytest.mark.parametrize(
    "packet",
    [
        query("example.com", questions=2),
        query("example.com", questions=0),
        query("example.com", flags=0x2900),
        struct.pack(">6H", 77, 0x100, 1, 0, 0, 0) + b"\xc0\x12\0\x0c\0\x01" + b"\x07in-addr\x04arpa\0",
        query("example.com")[:-5],
        query("example.com")[:12],
        struct.pack(">6H", 77, 0x100, 1, 0, 0, 0) + b"\x3f" + b"a" * 63 * 5,
    ],
)
def test_questions_that_cannot_be_read_to_the_end_are_refused(packet: bytes) -> None:
    question, answer = examine(packet)
    assert (question, answer[:2], answer[3] & 15) == (b"", packet[:2], REFUSED)


@given(st.binary(max_size=600))
def test_any_packet_is_answered_or_passed_on_or_nothing(packet: bytes) -> None:
    question, answer = examine(packet)
    assert not (question and answer)
    if question:
        assert packet[12 : 12 + len(question)] == question


def answer_to(name: str, *addresses: str) -> bytes:
    """An answer with a record for each address, after one of another kind, whose name is written by a pointer."""
    asked = query(name)
    packed = [socket.inet_pton(socket.AF_INET6 if ":" in one else socket.AF_INET, one) for one in addresses]
    alias = struct.pack(">HHHIH", 0xC00C, 5, 1, 60, 2) + b"\xc0\x0c"
    records = [
        struct.pack(">HHHIH", 0xC00C, 1 if len(one) == 4 else 28, 1, 60, len(one)) + one for one in packed
    ]
    return asked[:6] + struct.pack(">3H", 1 + len(records), 0, 0) + asked[12:] + alias + b"".join(records)


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a sandbox whose network is `public`, on a network and a host with addresses of the internet."""
    monkeypatch.setattr(firewall, "in_force", {"hosts": ["9.9.9.9"]})
    monkeypatch.setattr(name_server, "closed", [lambda address: firewall.is_closed(address, ["8.8.4.0/24"])])
    monkeypatch.setattr(name_server, "hides", [True])


@pytest.mark.usefixtures("public")
@pytest.mark.parametrize(
    ("addresses", "closed"),
    [((), False), (("93.184.216.34",), False), (("2a00:1450::1", "10.0.0.1"), False), (("8.8.8.8", "8.8.4.4"), False),
     (("10.0.0.1",), True), (("9.9.9.9",), True), (("8.8.4.4",), True), (("169.254.169.254", "127.0.0.1"), True),
     (("::ffff:93.184.216.34",), True), (("64:ff9b::5db8:d822",), True), (("2002:5db8:d822::1",), True),
     (("fd00::1",), True), (("2001:0:5db8::1",), True), (("100.64.0.1", "fe80::1"), True)],
)  # fmt: skip
def test_an_answer_is_hidden_when_all_its_addresses_are_closed(
    addresses: tuple[str, ...], closed: bool
) -> None:
    packet = answer_to("name.example.org", *addresses)
    assert leads_to_closed(packet, len(query("name.example.org"))) is closed
    if addresses:
        assert leads_to_closed(packet[:-1], len(query("name.example.org"))), "what cannot be read is hidden"


@pytest.mark.usefixtures("public")
def test_names_without_a_dot_are_those_of_neighbours() -> None:
    question, answer = examine(query("llm-sandbox-nb-1234"))
    assert (question, answer[3] & 15) == (b"", NO_SUCH_NAME)
    assert examine(query("example.org"))[0]


@pytest.mark.usefixtures("public")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=12, max_size=600), st.integers(12, 600))
def test_any_answer_can_be_judged(packet: bytes, at: int) -> None:
    assert leads_to_closed(packet, at) in (True, False)


def test_an_answer_to_no_question_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of several servers answers, and the first answer counts, also to a question about the root of all names."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as program,
    ):
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
        servers, far = zip(*pairs, strict=True)
        for sock in (listener, program):
            sock.bind(("127.0.0.1", 0))
        for sock in (listener, program, *servers):
            sock.setblocking(False)
        monkeypatch.setattr(name_server, "listeners", [listener])
        monkeypatch.setattr(name_server, "upstream", list(servers))
        loop: Any = SimpleNamespace(watch=lambda *_: None)
        server = NameServer(loop)
        program.sendto(query("."), listener.getsockname())
        server.take_questions(listener)
        for near, end in pairs:
            question = end.recv(4096)
            end.send(question[:2] + b"\x80\0" + question[4:])
            server.take_answers(near)
        assert program.recv(4096)[:2] == struct.pack(">H", 77)
        with pytest.raises(BlockingIOError):
            program.recv(4096)
        for sock in (*servers, *far):
            sock.close()
