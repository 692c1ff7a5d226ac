"""Sandboxes that the tests of a module share: opening one costs more than most tests do.

Each test finds an empty working directory with its folders, a fresh shell, and no process of an earlier test.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import support

from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.open import open_sandbox

LONGEST = 60.0
"""Seconds to clean a sandbox; one that takes longer is replaced."""
LOOK = """
import json, os, sys
executor, *folders = sys.argv[1:]
def descendants():
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            pass
    mine = os.getpid()
    while mine in parents:  # this program, and what started it
        mine = parents.pop(mine)
    found = [int(executor)]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]
"""
BASELINE = (
    LOOK
    + """
print(json.dumps([descendants(), [(name, os.stat(name).st_mode & 0o7777) for name in folders]]))
"""
)
CLEAN = (
    LOOK
    + """
import signal, subprocess
kept, modes = json.loads(folders.pop())
kept.append(int(folders.pop()))  # the new shell
while left := [pid for pid in descendants() if pid not in kept]:
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
os.chmod(folders[0], 0o755)
spilled = ["!", "-path", "/tmp/llm-sandbox", "!", "-path", "/tmp/llm-sandbox/*"]
subprocess.run(["find", *folders, "-mindepth", "1", *spilled, "-delete"], check=True)
for name, mode in modes:
    os.makedirs(name, exist_ok=True)
    os.chmod(name, mode)
"""
)


class SharedSandboxes:
    """One open sandbox for each isolation, in an event loop of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._open: dict[str, _Shared] = {}

    def run(self, isolation: str, test: Callable[[Any], Coroutine[Any, Any, None]], timeout: float) -> None:
        """Run a test body on the sandbox of this isolation. One that a test breaks is replaced for the next."""
        future = asyncio.run_coroutine_threadsafe(self._run(isolation, test, timeout), self._loop)
        try:
            future.result()
        except BaseException:
            future.cancel()
            raise

    async def _run(self, isolation: str, test: Callable[[Any], Awaitable[None]], timeout: float) -> None:
        shared = self._open.pop(isolation, None) or await _Shared.open(isolation)
        try:
            async with asyncio.timeout(support.BUSY * timeout):
                await test(shared.box)
            usable = await shared.clean()
        except BaseException:
            await shared.close()
            raise
        if usable:
            self._open[isolation] = shared
        else:
            await shared.close()

    def close(self) -> None:
        """Close all; no other call follows."""
        for shared in self._open.values():
            asyncio.run_coroutine_threadsafe(shared.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Shared:
    def __init__(self, box: Sandbox, pids: set[int]) -> None:
        self.box = box
        self._pids = pids
        self._baseline = ""

    @classmethod
    async def open(cls, isolation: str) -> _Shared:
        before = support.child_pids()
        box = await open_sandbox(isolation)
        shared = cls(box, support.child_pids() - before)
        support.KEPT_PIDS.update(shared._pids)
        shared._baseline = (await shared._inside(BASELINE, *shared._folders()[:4])).decode()
        return shared

    async def clean(self) -> bool:
        """Make it as if it was just opened; whether that worked."""
        try:
            async with asyncio.timeout(LONGEST):
                await self.box.run("trap - EXIT; exit")
                fresh = await self.box.run("echo $$; pwd")
                shell, folder = fresh.stdout.decode().splitlines()
                await self._inside(CLEAN, *self._folders()[4:], shell, self._baseline)
                await self.box.changes()
        except Exception:  # noqa: BLE001 - whatever is wrong with it, the next test gets another
            return False
        return (folder, fresh.notice) == (self.box.directories.root, "")

    async def close(self) -> None:
        await self.box.close()
        support.KEPT_PIDS.difference_update(self._pids)

    def _folders(self) -> list[str]:
        """Those that a test finds, then those that are emptied for it."""
        where = self.box.directories
        ours = self.box.protection.isolation == "process"
        emptied = [where.root] if ours else [where.root, "/tmp", "/dev/shm"]
        return [where.root, where.input, where.documents, where.output, *emptied]

    async def _inside(self, script: str, *arguments: str) -> bytes:
        executor = str(self.box.executor["pid"])  # type: ignore[attr-defined]
        done = await self.box.exec(["python3", "-I", "-c", script, executor, *arguments], cwd="/")
        if done.exit_code:
            raise RuntimeError(done.stderr.decode("utf-8", "replace"))
        return done.stdout
