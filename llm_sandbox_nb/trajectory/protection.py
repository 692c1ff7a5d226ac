"""The protection of the host during a run, in words: isolation, network and limits, as the engine reports them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from llm_sandbox_nb.formatting import format_size
from llm_sandbox_nb.plain_text import first_line, plain

NOT_ISOLATED: Final = "No isolation"
ISOLATION_WORDS: Final = {
    "docker": "Docker",
    "podman": "Podman",
    "bubblewrap": "bubblewrap",
    "process": NOT_ISOLATED,
}
"""Displayed names of the isolations. `labextension/src/generated/words.ts` has the same names for the browser."""


def is_isolated(protection: Mapping[str, Any]) -> bool:
    """Return True if commands could change no files and processes outside the sandbox.

    Older journals do not record this. For them, the result is True for every isolation except `process`.
    """
    recorded = protection.get("isolates")
    return recorded if isinstance(recorded, bool) else protection.get("isolation") != "process"


def protection_chip(protection: dict[str, Any]) -> str:
    """Describe isolation and network in a few words."""
    isolation, network = str(protection.get("isolation") or ""), protection.get("network")
    reach = "no network" if network in ("none", "off") else f"network: {network}" if network else ""
    place = ISOLATION_WORDS.get(isolation, isolation) if is_isolated(protection) else NOT_ISOLATED
    return first_line(plain(", ".join(filter(None, (place, reach)))), 60)


def protection_text(protection: dict[str, Any]) -> str:
    """Describe the protection in one line."""
    user = str(protection.get("user"))
    limits = [str(protection.get("isolation")), str(protection.get("profile") or "")]
    limits.append(f"user {'root' if user == '0' else user}")
    limits.append(f"network {protection.get('network')}")
    if isinstance(memory := protection.get("memory_bytes"), int):
        limits.append(f"{format_size(memory)} memory")
    if isinstance(disk := protection.get("disk_bytes"), int):
        limits.append(f"{format_size(disk)} of files")
    if pids := protection.get("pids"):
        limits.append(f"{pids} processes")
    if cpus := protection.get("cpus"):
        limits.append(f"{cpus:g} CPUs" if isinstance(cpus, int | float) else f"{cpus} CPUs")
    return plain(" · ".join(filter(None, limits)))
