"""Programs that run inside a sandbox, to measure the resource use of its processes or to end them."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.errors import SandboxError

# Every process of a sandbox descends from its executor, so this program measures the executor's descendants. That is
# correct even in isolation `process`, where they run among the host's processes. The CPU time of an ended child is
# counted by the process that waited for the child.
_MEASURE_PROGRAM = """
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
        used, resident = found.get(pid, (0, 0))
        count, ticks, pages = count + 1, ticks + used, pages + resident
print(count, ticks * 1000 // tick, pages * page)
"""
_MEASURE_TIMEOUT = 10.0
_MEASUREMENT_SECONDS = 0.5
"""Seconds for which a measurement is reused, because many pages may watch one sandbox."""
_MAX_MEASUREMENTS = 64


@dataclass(frozen=True)
class SandboxUsage:
    """Number of processes, the CPU time they have used so far in seconds, and their resident memory in bytes."""

    time: float
    processes: int
    cpu_seconds: float
    memory_bytes: int


class UsageMeter:
    """Meter for the resource use of sandboxes. Each sandbox is measured at most once per `_MEASUREMENT_SECONDS`."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._last: OrderedDict[str, SandboxUsage] = OrderedDict()

    async def measure(self, sandbox: ChannelSandbox) -> SandboxUsage:
        """Measure the resource use. Raises SandboxLostError, or SandboxError for an invalid answer."""
        last = self._last.get(sandbox.id)
        if last is not None and self._clock() - last.time < _MEASUREMENT_SECONDS:
            return last
        argv = ["python3", "-I", "-S", "-c", _MEASURE_PROGRAM, str(sandbox.executor["pid"])]
        result = await sandbox.exec(argv, cwd="/", timeout=_MEASURE_TIMEOUT, output_limit=4096)
        try:
            words = result.stdout.decode("ascii").split()
            processes, milliseconds, memory = (int(word) for word in words if len(word) < 20)
        except ValueError:
            raise SandboxError(
                "The sandbox did not report its resource use; restart it if it hangs."
            ) from None
        usage = SandboxUsage(self._clock(), processes, milliseconds / 1000, memory)
        self._last[sandbox.id] = usage
        self._last.move_to_end(sandbox.id)
        while len(self._last) > _MAX_MEASUREMENTS:
            self._last.popitem(last=False)
        return usage


# All processes of a sandbox descend from its executor, which is PID 1 or a subreaper. This program kills the
# descendants of the executor; in isolation `process`, `kill -1` would also kill processes of the host. All descendants
# are stopped before any is killed, so that no process escapes by forking. Only stopped processes are killed, so the
# shell that the executor starts afterwards lives. Two helpers that the executor forked are left alone: the parent of
# this program, and the watcher of changed files. A helper has the command line and the session of the executor. Any
# process can take that command line, but no command can have that session: each command begins a new one.
_KILL_PROGRAM = """
import os, signal, sys
root, me = int(sys.argv[1]), os.getpid()
def read(pid, name):
    try:
        with open("/proc/%d/%s" % (pid, name), "rb") as file:
            return file.read()
    except OSError:
        return b""
def looks(pid):
    return read(pid, "cmdline"), read(pid, "stat").rpartition(b")")[2].split()[3:4]
def below():
    children = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        fields = read(pid, "stat").rpartition(b")")[2].split()
        # A process whose first thread has ended has the state of a zombie while others run.
        if len(fields) > 17 and (fields[0] not in b"ZX" or int(fields[17]) > 1):
            children.setdefault(int(fields[1]), []).append(pid)
    helpers = {pid for pid in children.get(root, ()) if looks(pid) == looks(root)}
    found, todo = set(), [root]
    while todo:
        for pid in children.get(todo.pop(), ()):
            todo.append(pid)
            found.add(pid)
    return found - helpers - {me}
def send(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass
stopped = set()
for _ in range(200):
    new = below() - stopped
    if not new:
        break
    send(new, signal.SIGSTOP)
    stopped |= new
send(stopped, signal.SIGKILL)
"""
_RESTART_TIMEOUT = 30.0


async def restart_processes(sandbox: ChannelSandbox) -> None:
    """End every process of the sandbox except its executor, which then starts a new shell.

    Raises:
        SandboxLostError: if the sandbox is lost.
        SandboxError: if the processes could not be ended.
    """
    argv = ["python3", "-I", "-S", "-c", _KILL_PROGRAM, str(sandbox.executor["pid"])]
    result = await sandbox.exec(argv, cwd="/", timeout=_RESTART_TIMEOUT)
    if result.exit_code != 0:
        raise SandboxError(
            f"The sandbox could not be restarted: {result.text.strip()[-300:] or 'it timed out'}."
        )
    await sandbox.run(":", timeout=_RESTART_TIMEOUT)
