"""Resources of this machine for a model: processors, memory and disk, within the limits of the control group."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from llm_sandbox_nb.sandbox.cgroups import find_hierarchies

_PROC = Path("/proc")


def free_memory() -> int:
    """Return the bytes that a new process can use: free or reclaimable memory, within the limits of a container."""
    import psutil

    free = int(psutil.virtual_memory().available)
    for group, version in _own_groups("memory"):
        limit = _number(group / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        used = _number(group / ("memory.current" if version == 2 else "memory.usage_in_bytes"))
        if limit is not None and used is not None:
            free = min(free, max(0, limit - used + _given_back(group)))
    return free


def processors() -> int:
    """Return the number of threads for computation: physical cores, within the limits of a container."""
    import psutil

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = min(allowed, psutil.cpu_count(logical=False) or allowed)
    for group, version in _own_groups("cpu"):
        if version == 2:
            words = _text(group / "cpu.max").split()
            quota, period = [*words, "", ""][:2]
        else:
            quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            count = min(count, max(1, int(quota) // int(period)))
    return max(1, count)


def free_disk(folder: Path) -> int:
    """Return the bytes that can be written to a folder, which need not exist yet."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _own_groups(controller: str) -> list[tuple[Path, int]]:
    """Return the control groups of this process with their versions, from the innermost to the root."""
    try:
        lines = (_PROC / "self/cgroup").read_text().splitlines()
        hierarchies = list(find_hierarchies(_PROC))
    except (OSError, ValueError):
        return []
    found = []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        for version, mounted, root, point in hierarchies:
            if (
                version == 2
                if not controllers
                else controller in controllers.split(",") and controller in mounted
            ):
                group = point / name.removeprefix(root).lstrip("/")
                while group.is_relative_to(point):
                    found.append((group, version))
                    group = group.parent
    return found


def _given_back(group: Path) -> int:
    """Return the bytes of the page cache that the kernel frees when a process needs memory."""
    for line in _text(group / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.isdigit():
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() and int(text) < 1 << 60 else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
