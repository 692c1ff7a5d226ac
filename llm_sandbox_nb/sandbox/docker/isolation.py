"""Isolation `docker`, as the registry of isolations calls it: see `open.Implementation`."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from llm_sandbox_nb.sandbox.cgroups import find_hierarchies, memory_peak
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.docker.engine import connect, engine_version
from llm_sandbox_nb.sandbox.docker.images import DEFAULT_IMAGE, find_image
from llm_sandbox_nb.sandbox.docker.reaper import list_own, reap_orphans
from llm_sandbox_nb.sandbox.docker.sandbox import adopt_docker_sandbox as adopt
from llm_sandbox_nb.sandbox.docker.sandbox import start_docker_sandbox as start
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.resource_usage import ResourceUsage

__all__ = ["adopt", "list_own", "reap_orphans", "resource_usage", "start", "why_unavailable"]

_ID = re.compile(r"[0-9a-f]{64}")


async def why_unavailable(image: str | None) -> str:
    """See `Implementation.why_unavailable`."""
    try:
        await asyncio.to_thread(engine_version)
        await asyncio.to_thread(find_image, image or DEFAULT_IMAGE)
    except SandboxError as error:
        return str(error).rstrip(".")
    return ""


def resource_usage(sandbox: Sandbox) -> ResourceUsage:
    """See `Implementation.resource_usage`."""
    client: Any = connect()
    container = str(sandbox.protection.details["container"])
    inspected = client.api.inspect_container(container)
    (listed,) = client.api.containers(all=True, size=True, filters={"id": inspected["Id"]})
    memory = _peak_of_process(inspected["State"]["Pid"], inspected["Id"])
    if memory is None:
        # Engines whose kernels have the first version of control groups know it themselves.
        memory = client.api.stats(container, stream=False, one_shot=True)["memory_stats"].get("max_usage")
    return ResourceUsage(memory, listed.get("SizeRw", 0))


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
        for other, mounted, root, point in find_hierarchies(Path("/proc")):
            if other == version and (version == 2 or "memory" in mounted):
                found = memory_peak(point / group.removeprefix(root).lstrip("/"), version)
                if found is not None:
                    return found
    return None
