"""What processes really take: proportional set sizes, so that shared pages count once."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType


def pss(pid: int) -> int:
    """Bytes of a process, its part of shared pages included; 0 when it has ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def parents() -> dict[int, int]:
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return found


def family(*roots: int) -> set[int]:
    tree, found = parents(), set(roots)
    while more := {pid for pid, parent in tree.items() if parent in found} - found:
        found |= more
    return found


def named(*names: str) -> set[int]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "comm").read_text().strip() in {name[:15] for name in names}:
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def total(pids: Iterable[int]) -> int:
    return sum(pss(pid) for pid in pids)


class PeakMemory:
    """The most that a process and its descendants took, looked at every `every` seconds in a `with` block."""

    def __init__(self, root: int, every: float = 1.5) -> None:
        self.root, self.every = root, every
        self.bytes = 0
        self.processes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._over.wait(self.every):
            pids = family(self.root)
            self.bytes = max(self.bytes, total(pids))
            self.processes = max(self.processes, len(pids))

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
