"""What a sandbox has used of memory and disk: asked of kernel and engine, never of what runs inside."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_sandbox_nb.sandbox.bubblewrap_limits import GROUP_PREFIX, Owner, find_bases, find_hierarchies
from llm_sandbox_nb.sandbox.contract import Sandbox

PATIENCE = 20.0
"""Seconds for which an engine may count files."""
_PEAKS = {1: "memory.max_usage_in_bytes", 2: "memory.peak"}
_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Spent:
    """Bytes. None: it cannot be had, because the engine is on another machine, the kernel is old, or there is none."""

    memory_peak: int | None = None
    """The most at one time, all processes, the kernel's part and cached files included."""
    disk: int | None = None
    """What its files take beyond the image, at the time of asking."""


async def spent_by(sandbox: Sandbox) -> Spent:
    """What a living sandbox has used so far. Never fails: what cannot be had is None."""
    measures = {"docker": _of_container, "bubblewrap": _of_group}
    measure = measures.get(sandbox.protection.isolation)
    if measure is None:
        return Spent()
    try:
        async with asyncio.timeout(PATIENCE):
            return await asyncio.to_thread(measure, sandbox)
    except Exception:  # noqa: BLE001 - an engine may fail in any way, and this is only a figure in a report
        return Spent()


def _of_container(sandbox: Sandbox) -> Spent:
    from llm_sandbox_nb.sandbox.docker_engine import connect

    client: Any = connect()
    container = str(sandbox.protection.details["container"])
    inspected = client.api.inspect_container(container)
    (listed,) = client.api.containers(all=True, size=True, filters={"id": inspected["Id"]})
    memory = _peak_of_process(inspected["State"]["Pid"], inspected["Id"])
    if memory is None:
        # Engines whose kernels have the first version of control groups know it themselves.
        memory = client.api.stats(container, stream=False, one_shot=True)["memory_stats"].get("max_usage")
    return Spent(memory, listed.get("SizeRw", 0))


def _peak_of_process(pid: int, container: str) -> int | None:
    """Of the group of the container's first process; None when that process is not of this machine."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, group = line.split(":", 2)
        version = 1 if controllers else 2
        if container not in _ID.findall(group) or (version == 1 and "memory" not in controllers.split(",")):
            continue
        for folder in _folders(version, group):
            if (found := _number(folder / _PEAKS[version])) is not None:
                return found
    return None


def _folders(version: int, group: str) -> Iterator[Path]:
    for other, controllers, root, point in find_hierarchies(Path("/proc")):
        if other == version and (version == 2 or "memory" in controllers):
            yield point / group.removeprefix(root).lstrip("/")


def _of_group(sandbox: Sandbox) -> Spent:
    name = f"{GROUP_PREFIX}-{Owner.of_process(os.getpid())}-{sandbox.id}"
    peaks = [_number(base.folder / name / _PEAKS[base.version]) for base in find_bases()]
    found = [peak for peak in peaks if peak is not None]
    # Its files are in memory, so they count there.
    return Spent(max(found), 0) if found else Spent(None, 0)


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
