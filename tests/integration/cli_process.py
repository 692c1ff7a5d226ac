"""The command line as a person starts it: in its own process, an empty folder, a clean environment."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import support
from support import child_pids

_PR_SET_CHILD_SUBREAPER = 36
_KEPT = ("PATH", "DOCKER_HOST", "LANG", "TMPDIR", "XDG_RUNTIME_DIR")


@dataclass
class Done:
    """How a command ended. `left` names the processes of it that were still there a moment later."""

    code: int
    out: str
    err: str
    left: list[str] = field(default_factory=list)

    @property
    def folder(self) -> str:
        """The last line printed."""
        return self.out.splitlines()[-1]

    def is_one_sentence(self, code: int, said: str) -> None:
        """Assert that it failed as it should: exit code, one line on stderr, no traceback, nothing left."""
        shown = f"exit {self.code}\n--- out\n{self.out}\n--- err\n{self.err}"
        assert self.code == code, shown
        assert self.err.count("\n") == 1, shown
        assert said in self.err, shown
        assert "Traceback" not in self.err + self.out, shown
        assert self.err.rstrip().endswith((".", "?")), shown
        assert self.left == [], shown


class CommandLine:
    """Calls `llm-sandbox-nb`; what a call leaves behind is seen, because it becomes our child, and ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()

    def __call__(self, *words: str, timeout: float = 120, **environment: str) -> Done:
        """Run a command to its end."""
        return self.program(*self.words(*words), timeout=timeout, **environment)

    def words(self, *words: str) -> tuple[str, ...]:
        """The program and its arguments."""
        return sys.executable, "-m", "llm_sandbox_nb", *words

    def start(self, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start any program in the folder."""
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        source = str(Path(__file__).parents[2])
        return subprocess.Popen(
            words,
            cwd=self.folder,
            env={**kept, "HOME": str(self.home), "PYTHONPATH": source, **environment},
            stdin=subprocess.DEVNULL,
            stdout=self._stream("out").open("wb"),
            stderr=self._stream("err").open("wb"),
            process_group=0,
        )

    def _stream(self, name: str) -> Path:
        return self.home / name

    def shown(self) -> str:
        """What the program that runs has printed so far."""
        return self._stream("out").read_text("utf-8")

    def program(self, *words: str, timeout: float = 120, **environment: str) -> Done:
        """Run any program to its end."""
        before = child_pids()
        process = self.start(*words, **environment)
        return self.finish(process, before, timeout)

    def finish(self, process: subprocess.Popen[bytes], before: set[int], timeout: float = 60) -> Done:
        """Wait for a program that was started; `before` are the children there were before."""
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
            process.wait()
            left = _left(before)
        return Done(code, self.shown(), self._stream("err").read_text("utf-8"), left)


def open_command_line(folder: Path) -> Iterator[CommandLine]:
    """A command line in `folder`; while it lasts, orphans become children of this process."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield CommandLine(folder)
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _left(known: set[int], patience: float = 3.0) -> list[str]:
    """What new children there are after some patience; they are ended."""
    deadline = time.monotonic() + patience
    while (new := child_pids() - known) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [support.command_line(pid) for pid in new]
    for pid in new:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return left
