"""Bubblewraps that wait for ever for one outside that has died: they are killed, and nothing else is."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llm_sandbox_nb.sandbox.bubblewrap.launch import PROGRAM_MARK, kill_waiting

OUTSIDE = 7


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "infinity"]) as started:
        yield started
        started.kill()


@pytest.fixture
def proc(tmp_path: Path, process: subprocess.Popen[bytes]) -> Callable[..., Path]:
    def told(
        comm: str = "bwrap", mark: str = PROGRAM_MARK, inside: str = "1", outside: str = "systemd"
    ) -> Path:
        own, other = tmp_path / str(process.pid), tmp_path / str(OUTSIDE)
        for folder in (own, other, tmp_path / "self"):
            folder.mkdir()
        (own / "comm").write_text(f"{comm}\n")
        (own / "cmdline").write_text(f"bwrap\0--die-with-parent\0{mark}\0")
        (own / "status").write_text(f"Name:\t{comm}\nPPid:\t{OUTSIDE}\nNSpid:\t{process.pid}\t{inside}\n")
        (other / "comm").write_text(f"{outside}\n")
        return tmp_path

    return told


def test_one_that_waits_for_nobody_is_killed(
    process: subprocess.Popen[bytes], proc: Callable[..., Path]
) -> None:
    assert kill_waiting(proc()) == [process.pid]
    assert process.wait(60) == -9


@pytest.mark.parametrize(
    "told",
    [
        {"comm": "python3"},
        {"mark": "of somebody else"},
        {"inside": "2"},
        {"inside": ""},
        {"outside": "bwrap"},
    ],
    ids=["let through", "not ours", "not the first", "no namespace", "still has its outside"],
)
def test_every_other_process_lives(
    process: subprocess.Popen[bytes], proc: Callable[..., Path], told: dict[str, str]
) -> None:
    assert kill_waiting(proc(**told)) == []
    assert process.poll() is None
