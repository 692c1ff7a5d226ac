"""Control groups of this machine: where they are mounted, and what they have counted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

CONTROLLERS = ("memory", "pids", "cpu")
"""Those that limit a sandbox."""
_CONTAINER = re.compile(r"[0-9a-f]{64}")
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


def memory_peak_of_container(pid: int, container: str) -> int | None:
    """`memory_peak` of the group that a container's first process is in; None when it is not of this machine.

    Args:
        container: its id, which is part of the group's name.
    """
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, group = line.split(":", 2)
        version = 1 if controllers else 2
        if container not in _CONTAINER.findall(group) or (
            version == 1 and "memory" not in controllers.split(",")
        ):
            continue
        for other, mounted, root, point in find_hierarchies(Path("/proc")):
            if other == version and (version == 2 or "memory" in mounted):
                found = memory_peak(point / group.removeprefix(root).lstrip("/"), version)
                if found is not None:
                    return found
    return None
