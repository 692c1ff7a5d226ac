"""What a terminal sends of itself is told from what a person types."""

from __future__ import annotations

import time

import pytest

from llm_sandbox_nb.sandbox.terminal import MAX_TYPED_BYTES
from llm_sandbox_nb.server.sockets import REPORT, _act

REPORTS = [
    "\x1b[6;8R", "\x1b[?6;8R", "\x1b[0n", "\x1b[?1;2c", "\x1b[>0;276;0c", "\x1b[?2026;0$y", "\x1b[8;24;80t", "\x1b[I",
    "\x1b[O", "\x1b[<35;10;5M", "\x1b[<0;10;5m", "\x1bP1$r0m\x1b\\", "\x1bP0$r\x1b\\",
    "\x1b]11;rgb:0000/ffff/1234\x1b\\", "\x1b]4;7;rgb:0000/ffff/1234\x1b\\",
]  # fmt: skip
KEYS = [
    "a", "\r", "\x03", "\x1b", "\x1b[A", "\x1bOA", "\x1b[1;5C", "\x1b[3~", "\x1b[15;2~", "\x1b[Z", "\x1b[H", "\x1bOR",
    "\x1bP", "\x1b]", "\x1b[", "\x1b\\", "\x1bc", "é", "\x1b[200~\x1b[6;8R\x1b[201~", "\x1b[6;8R\r", "\x1b[6;8Rls", "",
]  # fmt: skip


def test_a_report_is_told_from_a_key_and_a_paste() -> None:
    assert [text for text in REPORTS if not REPORT.fullmatch(text)] == []
    assert [text for text in KEYS if REPORT.fullmatch(text)] == []


class SilentTerminal:
    """A terminal that does nothing."""

    def type(self, data: bytes) -> None: ...

    report = acknowledge = type

    def resize(self, rows: int, columns: int) -> None: ...


@pytest.mark.parametrize(
    ("message", "typed"),
    [
        (["stdin", "ls"], True),
        (["stdin", "\x1b[6;8R"], False),
        (["ack", 9], False),
        (["set_size", 24, 80], False),
    ],
)
def test_only_what_a_person_types_counts_as_typed(message: list[object], typed: bool) -> None:
    """A page confirms the output of `top` all the time. An agent may start a run meanwhile."""
    assert _act(SilentTerminal(), message) == typed  # type: ignore[arg-type]


@pytest.mark.parametrize("start", ["\x1b[", "\x1b[<", "\x1bP0$r", "\x1b]1;rgb:", "\x1b]"])
def test_a_long_paste_is_told_at_once(start: str) -> None:
    began = time.process_time()
    for filler in ("1", "1;", "\x1b["):
        assert not REPORT.fullmatch(start + filler * (MAX_TYPED_BYTES // len(filler)))
    assert time.process_time() - began < 5
