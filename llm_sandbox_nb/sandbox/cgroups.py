"""Linux control groups of this machine: mount points, memory limits and memory peaks."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
CONTROLLERS = ("memory", "pids", "cpu")
"""Controllers that limit a sandbox."""
NO_LIMIT_BYTES = 2**60
"""Smallest value that counts as no limit. Without a limit, version 1 of control groups reports almost 2**63 bytes."""
_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")
_PEAK_FILES = {1: "memory.max_usage_in_bytes", 2: "memory.peak"}
"""Name of the file with the memory peak, by version of the control groups."""


def read_if_there(path: Path) -> str:
    """Return the text of a small file without outer white space, or an empty text if the file cannot be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def find_hierarchies(proc: Path) -> Iterator[tuple[int, frozenset[str], str, Path]]:
    """Yield version, controllers, topmost group and mount point of each mounted hierarchy of control groups.

    The topmost group is the group whose files are at the mount point. For version 2, the set of controllers is empty.
    `proc` is the folder /proc.
    """
    for line in read_if_there(proc / "self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, point = before.split(" ")[3:5]
        if kind == "cgroup2":
            yield 2, frozenset(), root, Path(point)
        elif kind == "cgroup":
            yield 1, frozenset(options.split(",")) & frozenset(CONTROLLERS), root, Path(point)


def groups_of(proc: Path, process: str = "self") -> Iterator[tuple[int, frozenset[str], Path, Path]]:
    """Yield version, controllers, folder and mount point of each control group of a process.

    If a hierarchy is mounted several times, each of its mount points is yielded. For version 2, the set of controllers
    is empty.
    """
    hierarchies = list(find_hierarchies(proc))
    for line in read_if_there(proc / process / "cgroup").splitlines():
        _, names, group = line.split(":", 2)
        controllers = frozenset(names.split(",")) & frozenset(CONTROLLERS)
        if names and not controllers:
            continue
        for version, mounted, root, point in hierarchies:
            if version == (1 if names else 2) and controllers <= mounted:
                inside = group == root or group.startswith(f"{root.rstrip('/')}/")
                below = group.removeprefix(root).lstrip("/") if inside else ""
                yield version, controllers, point / below, point


def own_groups(controller: str) -> list[tuple[Path, int]]:
    """Return the folders of this process's control groups for `controller`, each with its version, innermost first.

    The result includes all groups that contain the innermost group.
    """
    found = []
    with contextlib.suppress(ValueError):
        for version, controllers, group, point in groups_of(PROC):
            if version == 2 or controller in controllers:
                while group.is_relative_to(point):
                    found.append((group, version))
                    group = group.parent
    return found


def memory_left() -> int | None:
    """Return the bytes of memory that this process's control groups still allow. None if no group has a limit."""
    left = []
    for group, version in own_groups("memory"):
        limit = _number(group / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        used = _number(group / ("memory.current" if version == 2 else "memory.usage_in_bytes"))
        if limit is not None and used is not None:
            left.append(max(0, limit - used + _given_back(group)))
    return min(left, default=None)


def memory_peak(group: Path, version: int) -> int | None:
    """Return the highest memory use of a control group in bytes. None if the kernel does not report this figure."""
    text = read_if_there(group / _PEAK_FILES[version])
    return int(text) if text.isdigit() else None


def memory_peak_of_container(pid: int, container: str) -> int | None:
    """Return the `memory_peak` of a container. None if it is unknown, e.g. if the container is not on this machine.

    `pid` is the id of the container's first process on the engine's machine, and `container` is the container's id. If
    the engine is on another machine, `pid` may belong to an unrelated process here. So this function checks that the
    name of the process's control group has the container's id.
    """
    for version, controllers, group, _ in groups_of(PROC, str(pid)):
        counts_memory = version == 2 or "memory" in controllers
        if counts_memory and container in _CONTAINER_ID.findall(str(group)):
            peak = memory_peak(group, version)
            if peak is not None:
                return peak
    return None


def _given_back(group: Path) -> int:
    """Return the bytes of cached files in a control group that the kernel frees when a process needs memory."""
    for line in read_if_there(group / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.isdigit():
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = read_if_there(path)
    return int(text) if text.isdigit() and int(text) < NO_LIMIT_BYTES else None
