"""What a sandbox uses just now, as its own processes tell it."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import Any

from llm_sandbox_nb.sandbox.channel_sandbox import ChannelSandbox
from llm_sandbox_nb.sandbox.errors import SandboxError

# Everything in a sandbox descends from its executor, so this holds for each isolation, `process` too, whose
# processes are among those of the host. The time of ended children has gone to who waited for them.
_MEASURE = """
import os, sys
root, me = int(sys.argv[1]), os.getpid()
tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
found, children = {}, {}
for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        continue
    if len(fields) > 21:
        found[pid] = sum(map(int, fields[11:15])), int(fields[21])
        children.setdefault(int(fields[1]), []).append(pid)
todo, count, ticks, pages = [root], 0, 0, 0
while todo:
    pid = todo.pop()
    if pid != me:
        todo += children.get(pid, ())
        spent, resident = found.get(pid, (0, 0))
        count, ticks, pages = count + 1, ticks + spent, pages + resident
print(count, ticks * 1000 // tick, pages * page)
"""
_TIMEOUT = 10.0
_FRESH = 0.5
"""Seconds for which a measurement is good enough for the next who asks: many pages may watch one sandbox."""
_KEPT = 64


@dataclass(frozen=True)
class Usage:
    """Processes, the CPU time they have used so far (seconds), and their resident memory (bytes)."""

    time: float
    processes: int
    cpu_seconds: float
    memory_bytes: int

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


class UsageMeter:
    """Measures sandboxes, each not more often than a person can follow."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, Usage] = OrderedDict()

    async def measure(self, sandbox: ChannelSandbox) -> Usage:
        """What the sandbox uses. Raises SandboxLostError, or SandboxError when it does not tell."""
        last = self._last.get(sandbox.id)
        if last is not None and time.time() - last.time < _FRESH:
            return last
        usage = await measure(sandbox)
        self._last[sandbox.id] = usage
        self._last.move_to_end(sandbox.id)
        while len(self._last) > _KEPT:
            self._last.popitem(last=False)
        return usage


async def measure(sandbox: ChannelSandbox) -> Usage:
    """Measure a sandbox now. Raises as `UsageMeter.measure`."""
    argv = ["python3", "-I", "-S", "-c", _MEASURE, str(sandbox.executor["pid"])]
    result = await sandbox.exec(argv, cwd="/", timeout=_TIMEOUT, output_limit=4096)
    try:
        processes, milliseconds, memory = (int(word) for word in result.stdout.decode("ascii").split())
    except ValueError:
        raise SandboxError("The sandbox did not tell what it uses; restart it if it hangs.") from None
    return Usage(time.time(), processes, milliseconds / 1000, memory)
