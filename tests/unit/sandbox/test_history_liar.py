"""An executor that lies about its files: the sandbox is given up, and what was kept before stays."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from history_help import file_row, files_at, folder_row, record
from hostile import Script, answer, meet

from llm_sandbox_nb.sandbox.errors import SandboxLostError
from llm_sandbox_nb.sandbox.protocol.frames import Frame, Kind

HONEST = record("C", b"true") + record("E", [folder_row("/testbed"), file_row("/testbed/f", b"true")])
FINE: dict[str, Any] = {
    "incremental": False,
    "roots": ["/testbed"],
    "incomplete": "",
    "shell": {"state": "none"},
}


class Liar(Script):
    """Honest in its first checkpoint; then it tells `stream` and answers `outcome`."""

    def __init__(self, stream: bytes, outcome: dict[str, Any] | None = None) -> None:
        super().__init__(self.answer)
        self.stream = stream
        self.outcome = FINE if outcome is None else outcome
        self.asked: list[dict[str, Any]] = []

    def answer(self, frame: Frame) -> bytes:
        if frame.kind != Kind.REQUEST:
            return b""
        self.asked.append(json.loads(frame.payload))
        stream, outcome = (HONEST, FINE) if len(self.asked) == 1 else (self.stream, self.outcome)
        return answer(frame.request, outcome, stream)


def lie_to(
    tmp_path: Path, stream: bytes, outcome: dict[str, Any] | None, test: Callable[[Any, str], Any]
) -> Script:
    """A sandbox whose second checkpoint is told so; `test(box, first)` asks for it."""

    async def use(box: Any, liar: Script) -> None:
        await box.keep_history(tmp_path / "h", limit=2**20)
        await test(box, await box.checkpoint())

    return meet(lambda: Liar(stream, outcome), use)


LIES: list[tuple[bytes, dict[str, Any] | None]] = [
    (record("E", [file_row("/etc/passwd", b"true")]), None),
    (record("E", [folder_row("/testbed/../../etc")]), None),
    (record("G", ["/"]), None),
    (record("E", [file_row("/testbed/f", b"never sent")]), None),
    (HONEST[:-1], None),
    (b"\xff" * 100, None),
    (HONEST, {**FINE, "roots": "everywhere"}),
    (HONEST, {**FINE, "roots": ["/testbed", "../.."]}),
    (HONEST, {}),
    (record("C", os.urandom(600_000)) + record("C", os.urandom(600_000)), None),
    (record("E", [file_row("/testbed/link/f", b"")]), None),
]


@pytest.mark.parametrize(("stream", "outcome"), LIES, ids=range(len(LIES)))
def test_a_lie_ends_the_sandbox_and_changes_nothing_that_was_kept(
    tmp_path: Path, stream: bytes, outcome: dict[str, Any] | None
) -> None:
    async def test(box: Any, first: str) -> None:
        size = box.history.size
        with pytest.raises(SandboxLostError, match="broke the protocol"):
            await box.checkpoint()
        assert [one.id for one in box.history.checkpoints] == [first]
        assert box.history.size == size
        assert files_at(box.history.store, first) == {"/testbed/f": b"true"}
        assert not list((tmp_path / "h" / "packs").glob("*.partial"))

    assert lie_to(tmp_path, stream, outcome, test).killed == 1


def test_the_canary_an_honest_second_checkpoint_is_kept(tmp_path: Path) -> None:
    new = record("C", b"new") + record("E", [folder_row("/testbed"), file_row("/testbed/f", b"new")])

    async def test(box: Any, first: str) -> None:
        second = await box.checkpoint()
        assert second != first
        assert await box.read_file("f", at=second) == b"new"
        assert await box.read_file("f", at=first) == b"true"

    lie_to(tmp_path, new, None, test)


def test_what_changed_since_a_look_that_was_never_asked_for(tmp_path: Path) -> None:
    async def test(box: Any, first: str) -> None:
        box.history.forget_scan()
        with pytest.raises(SandboxLostError, match="that does not exist"):
            await box.checkpoint()

    lie_to(tmp_path, HONEST, {**FINE, "incremental": True}, test)


def test_words_for_people_are_cleaned_and_short(tmp_path: Path) -> None:
    text = "\x1b[31mred\u202e " + "x" * 5000
    new = record("C", b"new") + record("E", [folder_row("/testbed"), file_row("/testbed/f", b"new")])

    async def test(box: Any, first: str) -> None:
        told = box.history.checkpoint(await box.checkpoint()).incomplete
        assert "\x1b" not in told
        assert "\u202e" not in told
        assert len(told) <= 2000

    lie_to(tmp_path, new, {**FINE, "incomplete": text}, test)


class SurvivingProcesses(Script):
    """Executor that restores all files, and could not kill all processes before that."""

    def __init__(self) -> None:
        super().__init__(self.answer)

    def answer(self, frame: Frame) -> bytes:
        if frame.kind != Kind.REQUEST:
            return b""
        if json.loads(frame.payload)["op"] == "restore":
            left = "Some processes could not be killed.\x1b[31m"
            return answer(frame.request, {"failed": [], "shell": "", "incomplete": left}, b"")
        return answer(frame.request, FINE, HONEST)


def test_a_restore_reports_processes_that_survived_it(tmp_path: Path) -> None:
    async def use(box: Any, _: Script) -> None:
        await box.keep_history(tmp_path / "h", limit=2**20)
        restored = await box.restore(await box.checkpoint())
        (problem,) = restored.problems
        assert problem.startswith("Some processes could not be killed.")
        assert "\x1b" not in problem

    meet(SurvivingProcesses, use)
