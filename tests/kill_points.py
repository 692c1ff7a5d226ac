"""A process that kills itself before the n-th event of its journals is written, for each n."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from support import CAMPAIGN

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import Journal

TESTS = Path(__file__).parent
_TOGETHER = 4


def run_program(code: str, folder: Path, *arguments: str) -> str:
    """What a Python program prints that gets a folder and these arguments."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    words = [sys.executable, "-c", code, str(folder), *arguments]
    return subprocess.run(
        words, check=True, timeout=600, env=environment, stdout=subprocess.PIPE
    ).stdout.decode()


def killed_before_each(code: str, folder: Path) -> tuple[int, list[int]]:
    """Run a program that calls `for_each` with its arguments: once to its end, then killed before each event.

    The run that is killed before event n is in the folder of that name. Return the number of events and each n;
    `make test` has every third one.
    """
    last = int(run_program(code, folder, "0"))
    numbers = [*range(1, last + 1, 1 if CAMPAIGN else 3)]
    run_program(code, folder, *map(str, numbers))
    return last, numbers


def for_each(work: Callable[[str], object], arguments: Sequence[str]) -> None:
    """In the program: do the work in a child process and a folder for each number, which says where it is killed.

    With number 0 it comes to its end and prints how many events there were.
    """
    parent, *numbers = arguments
    for started, number in enumerate(numbers):
        folder = f"{parent}/{number}"
        Path(folder).mkdir()
        if os.fork() == 0:
            written = _die_before(int(number))
            work(folder)
            print(written[-1], flush=True)
            os._exit(0)
        if started >= _TOGETHER:
            os.wait()
    while _waited():
        pass


def _waited() -> bool:
    try:
        os.wait()
    except ChildProcessError:
        return False
    return True


def _die_before(number: int) -> list[int]:
    append, count, written = Journal.append, itertools.count(1), [0]

    def counted(journal: Journal, event: ev.Event) -> None:
        written.append(next(count))
        if written[-1] == number:
            os.kill(os.getpid(), signal.SIGKILL)
        append(journal, event)

    Journal.append = counted  # type: ignore[method-assign]
    return written
