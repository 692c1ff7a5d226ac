"""The command line as a person starts it: in its own process, an empty folder, a clean environment.

`CommandLine.__call__` forks its process from one that has imported the package; `fresh` starts a new interpreter.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import support
from support import PATIENCE, child_pids

_PR_SET_CHILD_SUBREAPER = 36
_KEPT = ("PATH", "DOCKER_HOST", "LANG", "TMPDIR", "XDG_RUNTIME_DIR")


ROOT = str(Path(__file__).parents[2])
_FORKER = """
import gc, json, os, runpy, signal, sys
import llm_sandbox_nb.cli.parser, llm_sandbox_nb.cli.resume_command, llm_sandbox_nb.runs.solve
import llm_sandbox_nb.sandbox.process
from llm_sandbox_nb.sandbox.bootstrap import executor_source
executor_source()
gc.freeze()
print("ready", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    pid = os.fork()
    if pid == 0:
        break
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    os._exit(0)
os.setpgid(0, 0)
os.chdir(request["cwd"])
os.environ.clear()
os.environ.update(request["env"])
if request["stdin"] is None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
else:
    source, sink = os.pipe()
    os.write(sink, request["stdin"].encode())
    os.close(sink)
    os.dup2(source, 0)
for target, path in (1, request["out"]), (2, request["err"]):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), target)
os.closerange(3, 256)
sys.stdin = os.fdopen(0)
sys.argv = ["llm-sandbox-nb", *request["words"]]
sys.path[0] = request["cwd"]
runpy.run_module("llm_sandbox_nb", run_name="__main__", alter_sys=True)
"""


class _Forked:
    """A process whose parent is not this one, with what is needed of `Popen`."""

    def __init__(self, pid: int, status: Callable[[], str]) -> None:
        self.pid = pid
        self._code: int | None = None
        self._waiting = threading.Thread(target=self._wait, args=(status,), daemon=True)
        self._waiting.start()

    def _wait(self, status: Callable[[], str]) -> None:
        self._code = int(status())

    def wait(self, timeout: float | None = None) -> int:
        self._waiting.join(timeout)
        if self._code is None:
            raise subprocess.TimeoutExpired("llm-sandbox-nb", timeout or 0)
        return self._code

    def send_signal(self, number: int) -> None:
        if self._code is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _WarmProcess:
    """A process that has imported what is slow to import, and forks one for each command."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def pids(self) -> set[int]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _FORKER],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, process_group=0,
            )  # fmt: skip
            support.KEPT_PIDS.add(self._process.pid)
            assert self._line() == "ready"
        return {self._process.pid}

    def start(self, request: Mapping[str, Any]) -> _Forked:
        """Start a command; the one before has to be done."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return _Forked(int(self._line()), self._line)

    def _line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


_warm = _WarmProcess()
atexit.register(_warm.stop)


@dataclass
class Done:
    """How a command ended. `left` names the processes of it that were still there a moment later."""

    code: int
    out: str
    err: str
    left: list[str] = field(default_factory=list)

    @property
    def folder(self) -> str:
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
        self.patience = PATIENCE
        """Seconds that processes of a program have to end after it."""

    def __call__(
        self, *words: str, timeout: float = 280, stdin: str | None = None, **environment: str
    ) -> Done:
        """Run a command to its end, in a process that has imported the package already."""
        known = _warm.pids() | child_pids()
        return self.finish(self.start_warm(*words, stdin=stdin, **environment), known, timeout)

    def start_warm(self, *words: str, stdin: str | None = None, **environment: str) -> _Forked:
        """Start a command in such a process; `stdin` comes through a pipe, and without it there is none."""
        _warm.pids()
        request = {
            "words": words,
            "cwd": str(self.folder),
            "env": self._environment(environment),
            "stdin": stdin,
            "out": str(self._stream("out")),
            "err": str(self._stream("err")),
        }
        return _warm.start(request)

    def fresh(self, *words: str, timeout: float = 280, **environment: str) -> Done:
        """Run a command to its end in a new interpreter, with the imports of its own."""
        return self.program(*self.words(*words), timeout=timeout, **environment)

    def words(self, *words: str) -> tuple[str, ...]:
        return sys.executable, "-m", "llm_sandbox_nb", *words

    def start(self, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            words,
            cwd=self.folder,
            env=self._environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=self._stream("out").open("wb"),
            stderr=self._stream("err").open("wb"),
            process_group=0,
        )

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        return {**kept, "HOME": str(self.home), "PYTHONPATH": ROOT, **more}

    def _stream(self, name: str) -> Path:
        return self.home / name

    def shown(self) -> str:
        """What the program that runs has printed so far; a warm one may not have opened its streams yet."""
        out = self._stream("out")
        return out.read_text("utf-8") if out.exists() else ""

    def program(self, *words: str, timeout: float = 280, **environment: str) -> Done:
        before = child_pids()
        process = self.start(*words, **environment)
        return self.finish(process, before, timeout)

    def finish(
        self, process: subprocess.Popen[bytes] | _Forked, before: set[int], timeout: float = 240
    ) -> Done:
        """Wait for a program that was started; `before` are the children there were before."""
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
            process.wait()
            left = _left(before, self.patience)
        return Done(code, self.shown(), self._stream("err").read_text("utf-8"), left)


def open_command_line(folder: Path) -> Iterator[CommandLine]:
    """A command line in `folder`; while it lasts, orphans become children of this process."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield CommandLine(folder)
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _left(known: set[int], patience: float) -> list[str]:
    """What new children there are after some patience; they are ended."""
    deadline = time.monotonic() + patience
    while (new := child_pids() - known) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [support.command_line(pid) for pid in new]
    for pid in new:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return left
