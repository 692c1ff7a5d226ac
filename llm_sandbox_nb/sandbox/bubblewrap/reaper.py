"""Removes what sandboxes under bubblewrap have left behind whose owners died.

Their processes die with them, and control groups are removed with what is in them. One process escapes: bubblewrap's
own, in the new namespaces, when the bubblewrap outside of them dies in the instant before it lets the inner one
through. That one then waits for ever, with nothing inside it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from llm_sandbox_nb.sandbox.bootstrap import PROGRAM_MARK
from llm_sandbox_nb.sandbox.bubblewrap.limits import find_groups, reap_groups

_NAME = "bwrap"


def reap() -> list[str]:
    """Remove what is left; the names of the control groups, and the numbers of the processes."""
    return [*reap_groups(find_groups()), *(str(pid) for pid in kill_waiting())]


def kill_waiting(proc: Path = Path("/proc")) -> list[int]:
    """Kill bubblewraps that nobody will ever let through; their process ids."""
    killed = []
    for pid in _processes(proc):
        # A process that is gone, or another user's, is none that we could end.
        with contextlib.suppress(OSError, ValueError):
            if _waits_for_nobody(proc, pid):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
    return killed


def _processes(proc: Path) -> Iterator[int]:
    yield from (int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())


def _waits_for_nobody(proc: Path, pid: int) -> bool:
    """Whether this is a bubblewrap of ours, the first process of its namespace, and the one outside is gone.

    One that was let through is no bubblewrap any more: it has become the program.
    """
    if _read(proc, pid, "comm").strip() != _NAME or PROGRAM_MARK not in _read(proc, pid, "cmdline"):
        return False
    fields = dict(line.split(":\t", 1) for line in _read(proc, pid, "status").splitlines() if ":\t" in line)
    inside = fields["NSpid"].split()
    return len(inside) > 1 and inside[-1] == "1" and _read(proc, int(fields["PPid"]), "comm").strip() != _NAME


def _read(proc: Path, pid: int, name: str) -> str:
    return (proc / str(pid) / name).read_text("utf-8", "replace")
