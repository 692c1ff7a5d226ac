"""What the model is shown of a command: clear, clean, and bounded whatever was written."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples

from llm_sandbox_nb.agent.tools.execute_bash import bound, clean, describe, needs_cut
from llm_sandbox_nb.sandbox.contract import CommandResult


def result(stdout: bytes = b"", stderr: bytes = b"", **other: object) -> CommandResult:
    return CommandResult(**({"exit_code": 0, "stdout": stdout, "stderr": stderr} | other))  # type: ignore[arg-type]


def test_both_streams_and_the_exit_code() -> None:
    shown = describe(result(b"out\n", b"err\n", exit_code=3))
    assert shown == "Exit code: 3\n[stdout]\nout\n[stderr]\nerr"


def test_silence_is_told() -> None:
    assert describe(result()) == "Exit code: 0\n(no output)"


def test_time_out_interrupt_notice_and_background() -> None:
    shown = describe(result(b"so far", exit_code=None, timed_out=True, duration=30.02))
    assert shown.startswith("Timed out after 30 s")
    assert shown.endswith("[stdout]\nso far")
    assert describe(result(exit_code=None, interrupted=True)).startswith("Interrupted by the user")
    shown = describe(result(notice="the shell was ended by exit", background=b"tick\n"))
    assert "[the shell was ended by exit]" in shown
    assert "[output of background jobs since the last call]\ntick" in shown


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07text\x1b]8;;http://x\x1b\\link", "textlink"),
        (b"\x1b(Bplain\x1b[?25l", "plain"),
        (b"a\r\nb\r\n", "a\nb\n"),
        (b" 10%\r 50%\r100%\ndone\n", "[2 overwritten states of progress lines left out]\n100%\ndone\n"),
        (b"bell\x07 null\x00", "bell\\x07 null\\x00"),
        (b"caf\xe9 \xe2\x82", "caf\ufffd \ufffd"),
        ("tab\tünï 漢 😀".encode(), "tab\tünï 漢 😀"),
    ],
)
def test_clean(data: bytes, text: str) -> None:
    assert clean(data) == text


def test_lines_are_bounded_with_head_and_tail() -> None:
    data = b"".join(b"line %d\n" % number for number in range(1, 1001))
    shown, cut = bound(data, "all of it is in /tmp/x")
    lines = shown.split("\n")
    assert cut
    assert lines[:40] == [f"line {number}" for number in range(1, 41)]
    assert lines[41:] == [f"line {number}" for number in range(961, 1001)]
    marker = "[... 920 of 1000 lines left out here (8893 bytes in all); all of it is in /tmp/x ...]"
    assert lines[40] == marker


@pytest.mark.parametrize("count", [79, 80])
def test_eighty_lines_are_shown_whole(count: int) -> None:
    data = b"x\n" * count
    assert bound(data, "") == (data.decode(), False)
    assert not needs_cut(data)
    assert bound(b"x\n" * 81, "")[1]


@pytest.mark.parametrize(
    "data",
    [
        b"x" * 2_000_000,
        "漢".encode() * 1_000_000,
        ("\U0001f468\u200d\U0001f469\u200d\U0001f467" * 200_000).encode(),
        ("e\u0301" * 500_000).encode(),
        b"line\n" * 1_000_000,
        random.Random(3).randbytes(3_000_000),
        b"\x00" * 5_000_000,
        b"\x1b[31m" * 1_000_000,
        b"50%\r" * 1_000_000,
        b"\n" * 1_000_000,
    ],
    ids=[
        "one line", "wide", "joined", "combining", "lines", "random", "zeros", "colours", "progress",
        "empty lines",
    ],
)  # fmt: skip
def test_any_output_is_bounded_and_quick(data: bytes) -> None:
    started = time.process_time()
    shown = describe(result(data, data), "/tmp/out", "/tmp/err")
    assert time.process_time() - started < 2
    assert len(shown) < 34_000
    assert shown.count("\n") < 175
    assert "all of it is in /tmp/out" in shown
    assert "all of it is in /tmp/err" in shown
    shown.encode()


def test_characters_are_not_cut() -> None:
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
    for text in (
        "漢" * 30_000,
        "e\u0301" * 30_000,
        family * 8_000,
        "a" + family * 8_000,
        "ab" + "e\u0301" * 30_000,
    ):
        shown, _ = bound(text.encode(), "")
        head, marker, tail = shown.split("\n")
        assert marker.startswith("[...")
        assert "\ufffd" not in shown
        assert text.startswith(head)
        assert text.endswith(tail)
        assert text[len(head)] not in "\u0301\u200d"
        assert head[-1] != "\u200d"
        assert tail[0] not in "\u0301\u200d"


def test_the_executors_own_file_is_named_first() -> None:
    shown = describe(result(b"x\n" * 200, truncated=True, full_output="/tmp/llm-sandbox/7.out"), "/other")
    assert "all of it is in /tmp/llm-sandbox/7.out" in shown


@settings(max_examples=examples(400))
@given(
    st.binary(max_size=3000)
    | st.text(max_size=2000).map(str.encode)
    | st.lists(st.sampled_from([b"a\n", b"\r", b"\x1b[", "漢".encode(), b"\xff"]), max_size=400).map(b"".join)
)
def test_any_bytes(data: bytes) -> None:
    shown, cut = bound(data, "where")
    assert len(shown) < 17_000
    assert all(character == "\n" or character == "\t" or ord(character) >= 32 for character in shown)
    assert "\x1b" not in shown
    if not cut:
        assert shown == clean(data)
