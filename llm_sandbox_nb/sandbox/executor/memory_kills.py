"""Number of processes that the kernel has killed for lack of memory, read from the sandbox's control group (cgroup)."""

from __future__ import annotations

KILLED_CODE = 128 + 9
"""Exit code of a command that was killed by signal 9."""
_UNLIMITED = 1 << 60
_PLACES = (
    ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory.max"),
    ("/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Pairs of files, first for cgroups version 2, then for version 1: the file with the number of kills, and the file with
the memory limit."""


def memory_kills() -> int:
    """Return the number of processes that were killed for lack of memory so far, or 0 if no cgroup can be read."""
    for events, _ in _PLACES:
        for line in _read(events).splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdigit():
                return int(count)
    return 0


def describe_memory_kill() -> str:
    """Return the notice for the model about a command that was killed because memory was used up."""
    for _, limit in _PLACES:
        text = _read(limit).strip()
        if text.isdigit() and int(text) < _UNLIMITED:
            return "Killed: out of memory (limit %s)." % _size(int(text))
    return "Killed: out of memory."


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read(65536)
    except (OSError, ValueError):
        return ""


def _size(size: int) -> str:
    for unit, bytes_of in (("GB", 1024**3), ("MB", 1024**2)):
        if size >= bytes_of:
            return "%g %s" % (round(size / bytes_of, 1), unit)
    return "%d bytes" % size
