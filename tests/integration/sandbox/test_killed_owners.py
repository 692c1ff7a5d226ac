"""What a killed kernel or server leaves, folders and control groups: whoever starts next removes it, and `doctor`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import KEPT_PIDS, require, until

from llm_sandbox_nb.sandbox import leftover_folders
from llm_sandbox_nb.sandbox.bubblewrap.limits import find_groups
from llm_sandbox_nb.sandbox.leftover_folders import (
    TEMPORARY_PREFIX,
    TemporaryFolder,
    remove_temporary_folders,
)
from llm_sandbox_nb.server.managed_sandbox import Opener

pytestmark = pytest.mark.engine
VICTIM = """
import asyncio, sys
from llm_sandbox_nb.sandbox.leftover_folders import TemporaryFolder
from llm_sandbox_nb.sandbox.open import open_sandbox
async def main():
    folder = TemporaryFolder()
    boxes = [await open_sandbox(name) for name in sys.argv[1:]]
    for box in boxes:
        await box.checkpoint()
    print("ready", flush=True)
    await asyncio.sleep(3600)
asyncio.run(main())
"""
OPENS = """
import asyncio, sys
from llm_sandbox_nb.sandbox.open import open_sandbox
async def main():
    async with open_sandbox(sys.argv[1]):
        pass
asyncio.run(main())
"""


def start(code: str, *words: str) -> None:
    subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True)


CLEANERS: dict[str, Callable[[str], object]] = {
    "the next sandbox": lambda isolation: start(OPENS, isolation),
    "doctor": lambda _: subprocess.run(
        [sys.executable, "-m", "llm_sandbox_nb", "doctor"], capture_output=True, check=False
    ),
    "a server": lambda _: asyncio.run(Opener("key").reap()),
}


def left_by(pid: int, temporary: Path) -> list[str]:
    """What is left of a process: its folders in a temporary folder that nobody else uses, its control groups."""
    groups = [str(folder) for folder in find_groups() if f"-{pid}-" in folder.name]
    return groups + [path.name for path in temporary.iterdir() if path.name.startswith("llm-sandbox-")]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "cleaner"),
    [("process", "the next sandbox"), ("bubblewrap", "the next sandbox"), ("bubblewrap", "doctor"),
     ("process", "a server")],
)  # fmt: skip
def test_what_a_killed_owner_leaves_is_removed(
    kind: str, cleaner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(kind)
    temporary = tmp_path / "t"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    victim = subprocess.Popen([sys.executable, "-c", VICTIM, kind], stdout=subprocess.PIPE)
    KEPT_PIDS.add(victim.pid)
    try:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"ready\n"
        while_it_lives = left_by(victim.pid, temporary)
        CLEANERS[cleaner](kind)
        assert left_by(victim.pid, temporary) == while_it_lives  # nothing of a living owner is removed
    finally:
        victim.kill()
        victim.wait()
        victim.stdout.close()
        KEPT_PIDS.discard(victim.pid)
    assert any(name.startswith(TEMPORARY_PREFIX) for name in left_by(victim.pid, temporary))  # the canary
    for folder in temporary.glob("llm-sandbox-history-*"):
        os.utime(folder, (1000, 1000))  # a young one may be about to be locked

    def is_clean() -> bool:
        CLEANERS[cleaner](kind)
        return not left_by(victim.pid, temporary)

    until(is_clean, str(left_by(victim.pid, temporary)))


def test_empty_folders_of_earlier_versions_go_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = ("old-empty", "old-full", "new-empty")
    for name in names:
        (tmp_path / f"{TEMPORARY_PREFIX}{name}").mkdir()
    (tmp_path / f"{TEMPORARY_PREFIX}old-full/file").write_text("kept")
    (tmp_path / "other").mkdir()
    for name in (f"{TEMPORARY_PREFIX}old-empty", f"{TEMPORARY_PREFIX}old-full", "other"):
        os.utime(tmp_path / name, (time.time() - leftover_folders._MIN_AGE_SECONDS - 10,) * 2)
    with TemporaryFolder() as living:
        os.utime(living, (1000, 1000))
        remove_temporary_folders()
        assert living.is_dir()
    left = sorted(path.name.removeprefix(TEMPORARY_PREFIX) for path in tmp_path.iterdir())
    assert left == ["new-empty", "old-full", "other"]
