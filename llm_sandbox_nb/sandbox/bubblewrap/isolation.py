"""Isolation `bubblewrap`, as the registry of isolations calls it: see `open.Implementation`."""

from __future__ import annotations

import os
import sys

from llm_sandbox_nb.sandbox.bubblewrap.launch import bubblewrap_path
from llm_sandbox_nb.sandbox.bubblewrap.limits import GROUP_PREFIX, GroupOwner, find_bases
from llm_sandbox_nb.sandbox.bubblewrap.sandbox import start_bubblewrap_sandbox as start
from llm_sandbox_nb.sandbox.cgroups import memory_peak
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.options import SandboxOptions
from llm_sandbox_nb.sandbox.resource_usage import ResourceUsage

__all__ = ["resource_usage", "start", "why_unavailable"]

_has_worked = False


async def why_unavailable(image: str | None) -> str:
    """See `Implementation.why_unavailable`. It starts a sandbox to find out, and remembers that it worked."""
    global _has_worked
    if not sys.platform.startswith("linux"):
        return "bubblewrap needs Linux"
    if bubblewrap_path() is None:
        return "bubblewrap is not installed (`apt install bubblewrap`)"
    if not _has_worked:
        try:
            async with await start(SandboxOptions("bubblewrap", "strict")):
                _has_worked = True
        except (SandboxError, OSError) as error:
            return str(error).rstrip(".")
    return ""


def resource_usage(sandbox: Sandbox) -> ResourceUsage:
    """See `Implementation.resource_usage`. Files are in memory, so they count there."""
    name = f"{GROUP_PREFIX}-{GroupOwner.of_process(os.getpid())}-{sandbox.id}"
    peaks = [memory_peak(base.folder / name, base.version) for base in find_bases()]
    return ResourceUsage(max((peak for peak in peaks if peak is not None), default=None), 0)
