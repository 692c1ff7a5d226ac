"""Control groups of this machine: where they are mounted, and what they have counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

CONTROLLERS = ("memory", "pids", "cpu")
"""Those that limit a sandbox."""
_PEAKS = {1: "memory.max_usage_in_bytes", 2: "memory.peak"}


def find_hierarchies(proc: Path) -> Iterator[tuple[int, frozenset[str], str, Path]]:
    """Version, controllers, root and mount point of each mounted hierarchy."""
    for line in (proc / "self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, point = before.split(" ")[3:5]
        if kind == "cgroup2":
            yield 2, frozenset(), root, Path(point)
        elif kind == "cgroup":
            yield 1, frozenset(options.split(",")) & frozenset(CONTROLLERS), root, Path(point)


def memory_peak(group: Path, version: int) -> int | None:
    """The highest memory use of a control group of this version; None when the kernel does not say."""
    try:
        text = (group / _PEAKS[version]).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
