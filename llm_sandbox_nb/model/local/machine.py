"""Resources of this machine for a model: processors, memory and disk, within the limits of the control group."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from llm_sandbox_nb.sandbox.cgroups import own_groups, read_if_there
from llm_sandbox_nb.sandbox.prepared import available_memory


def free_memory() -> int:
    """Return the bytes of memory that a new process can use, within a container's limits.

    Memory that the system can reclaim at once, such as its file cache, counts as free.
    """
    import psutil

    free = available_memory()
    return int(psutil.virtual_memory().available) if free is None else free


def processors() -> int:
    """Return the number of threads for a model: the number of physical cores, within a container's limits."""
    import psutil

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = min(allowed, psutil.cpu_count(logical=False) or allowed)
    for group, version in own_groups("cpu"):
        if version == 2:
            words = read_if_there(group / "cpu.max").split()
            quota, period = [*words, "", ""][:2]
        else:
            quota, period = (
                read_if_there(group / "cpu.cfs_quota_us"),
                read_if_there(group / "cpu.cfs_period_us"),
            )
        if quota.isdigit() and period.isdigit() and int(period):
            count = min(count, max(1, int(quota) // int(period)))
    return max(1, count)


def free_disk(folder: Path) -> int:
    """Return the bytes that can be written to a folder, which need not exist yet."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free
