"""Which questions the sandbox's name server passes on, and its answers to the others."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_sandbox_nb.sandbox.executor import name_server
from llm_sandbox_nb.sandbox.executor.name_server import NO_SUCH_NAME, REFUSED, examine


def query(name: str, kind: int = 1, *, questions: int = 1, flags: int = 0x100) -> bytes:
    """A question as programs send it; `name` may hold any bytes of one character each."""
    labels = [label.encode("latin-1") for label in name.split(".") if label]
    written = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return struct.pack(">6H", 77, flags, questions, 0, 0, 0) + written + struct.pack(">2H", kind, 1)


def reverse(address: str) -> str:
    return ".".join([*reversed(address.split(".")), "in-addr", "arpa"])


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
@pytest.mark.parametrize("change", [str, str.upper, str.title])
@pytest.mark.parametrize("kind", [1, 12, 255])
def test_addresses_that_are_not_public_have_no_names(
    address: str, change: object, kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_server, "own_nets", ["9.9.9.0/24"])
    question, answer = examine(query(change(reverse(address)), kind))  # type: ignore[operator]
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
