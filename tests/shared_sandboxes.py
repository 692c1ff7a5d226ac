"""Sandboxes for tests: `async def test(box)` gets a sandbox of its module, empty and with a fresh shell.

`@pytest.mark.sandbox(profile="strict")` gives the options, and tests with the same options share a sandbox.
`@pytest.mark.own_sandbox` opens a sandbox for this test alone. `@pytest.mark.isolations("docker")` limits the
isolations, and `@isolated` to those that isolate. After each test the sandbox is cleaned; a test fails if cleaning does
not undo its changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import marshal
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import support

from llm_sandbox_nb.sandbox import isolations
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxUserError
from llm_sandbox_nb.sandbox.open import open_sandbox

ISOLATIONS = tuple(sorted(isolations.ISOLATIONS, key=lambda name: isolations.ISOLATIONS[name].automatic))
"""All isolations, the process first, because it starts at once."""
ISOLATION_PARAMS = tuple(
    pytest.param(name, marks=() if name == "process" else getattr(pytest.mark, name)) for name in ISOLATIONS
)
"""The process needs no engine, so its tests run everywhere. A test of another isolation has a marker of its name."""
isolated = pytest.mark.isolations(*filter(isolations.isolates, ISOLATIONS))
"""The mark of tests for all isolations that isolate."""
LONGEST = 150.0
"""Seconds that a test may take on a machine that does nothing else; `support.BUSY` times as long elsewhere."""
CLEANING = 60.0
"""Seconds to clean a sandbox in."""
# These programs run after each test. So they import only modules that Python has imported already, and data is
# passed by marshal in its version 2, which every Python reads.
LOOK = """
import marshal, os, sys
order = marshal.loads(sys.stdin.buffer.read())
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
    found = [order["executor"]]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]
def state():
    entries, folders = {}, [path for path in order["watched"] if os.path.isdir(path)]
    devices = {os.lstat(path).st_dev for path in folders}
    for path in folders:
        try:
            look = os.lstat(path)
            if look.st_dev not in devices:  # what bubblewrap shows of the host
                continue
            if os.path.isdir(path) and not os.path.islink(path):
                entries[path] = [look.st_mode]
                folders += [os.path.join(path, name) for name in os.listdir(path)]
            else:
                entries[path] = [look.st_mode, look.st_size, look.st_mtime_ns]
        except OSError:
            pass
        folders[:] = [path for path in folders if path != order["spill"]]
    return {"processes": descendants(), "entries": entries}
"""
CLEAN = """
before = order["before"]
devices = {os.lstat(path).st_dev for path in order["watched"] if os.path.isdir(path)}
kept = [*before["processes"], order["shell"]]
while left := [pid for pid in descendants() if pid not in kept]:
    for pid in left:
        try:
            os.kill(pid, 9)
        except OSError:
            pass
for path, (mode, *whole) in before["entries"].items():
    if not whole and path in order["made again"]:
        os.makedirs(path, exist_ok=True)
    if not whole and os.path.isdir(path) and os.access(path, os.R_OK):
        if os.stat(path).st_mode != mode:
            os.chmod(path, mode & 0o7777)
        new = {os.path.join(path, name) for name in os.listdir(path)} - {*before["entries"], order["spill"]}
        # Not the host's folders that bubblewrap shows: rm would try in vain to remove each of their files.
        new = [one for one in new if os.lstat(one).st_dev in devices]
        for first in range(0, len(new), 500):
            os.spawnvp(os.P_WAIT, "rm", ["rm", "-rf", "--", *new[first : first + 500]])
"""
PRINT = "sys.stdout.buffer.write(marshal.dumps(state(), 2))"


class SharedSandboxes:
    """An open sandbox for each isolation and set of options, in an event loop of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._open: dict[str, _Shared] = {}

    def run(
        self, isolation: str, test: Callable[[Sandbox], Coroutine[Any, Any, None]], **options: Any
    ) -> None:
        """Run a test body on the sandbox with this isolation and these options.

        Raises:
            pytest.fail.Exception: the test left something that cleaning does not undo. The next test gets another
                sandbox.
        """
        future = asyncio.run_coroutine_threadsafe(self._run(isolation, test, options), self._loop)
        try:
            left = future.result()
        except BaseException:
            future.cancel()
            raise
        if left:
            pytest.fail(f"this test left in the sandbox that it shares: {left}", pytrace=False)

    async def _run(
        self, isolation: str, test: Callable[[Sandbox], Coroutine[Any, Any, None]], options: dict[str, Any]
    ) -> str:
        key = f"{isolation} {sorted(options.items())}"
        shared = self._open.pop(key, None) or await _Shared.open(isolation, options)
        try:
            async with asyncio.timeout(support.BUSY * LONGEST):
                await test(shared.box)
            left = await shared.clean()
        except BaseException:
            await shared.close()
            raise
        if left:
            await shared.close()
        else:
            self._open[key] = shared
        return left

    def close(self) -> None:
        """Close all; no other call follows."""
        for shared in self._open.values():
            asyncio.run_coroutine_threadsafe(shared.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Shared:
    def __init__(self, box: Any, pids: set[int]) -> None:
        self.box = box
        self._pids = pids
        self._history = box.history.folder
        root, private = box.directories.root, str(Path(box.directories.root).parent)
        process = box.protection.isolation == "process"
        folders = [root, box.directories.input, box.directories.documents, box.directories.output]
        self._order = {
            "executor": box.executor["pid"],
            "made again": folders,
            "spill": f"{private}/spill" if process else "/tmp/llm-sandbox",
            "watched": [private]
            if process
            else [root, "/tmp", "/dev/shm", "/var/tmp", "/run", "/root", "/home", "/etc"],
        }

    @classmethod
    async def open(cls, isolation: str, options: dict[str, Any]) -> _Shared:
        before = support.child_pids()
        box = await open_sandbox(isolation, **options)
        if options.get("profile") == "strict":
            with contextlib.suppress(SandboxUserError):
                # Starts the administrator's executor, so that this process is not a test's.
                await box.exec(["true"], user="root")
        shared = cls(box, support.child_pids() - before)
        support.KEPT_PIDS.update(shared._pids)
        shared._order["before"] = await shared._inside(LOOK + PRINT)
        return shared

    async def clean(self) -> str:
        """Make it as if it was just opened. Returns what is still different, in words."""
        try:
            async with asyncio.timeout(CLEANING):
                await self.box.run("trap - EXIT; exit")
                fresh = await self.box.run("echo $$; pwd")
                shell, folder = fresh.stdout.decode().splitlines()
                self._order["shell"] = int(shell)
                now = await self._inside(LOOK + CLEAN + PRINT)
                await self.box.changes()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, this test is the culprit
            return f"a sandbox that cannot be cleaned ({error!r}); mark the test `own_sandbox`"
        if (folder, fresh.notice) != (self.box.directories.root, ""):
            return f"a shell that does not begin anew, in {folder}: {fresh.notice}"
        if self.box.history.folder != self._history:
            return "a history; mark the test `own_sandbox`"
        before = self._order["before"]["entries"]
        paths = {*before, *now["entries"]}
        return ", ".join(sorted(path for path in paths if before.get(path) != now["entries"].get(path))[:20])

    async def close(self) -> None:
        await self.box.close()
        support.KEPT_PIDS.difference_update(self._pids)

    async def _inside(self, script: str) -> dict[str, Any]:
        order = marshal.dumps(self._order, 2)
        done = await self.box.exec(["python3", "-I", "-S", "-c", script], cwd="/", stdin=order)
        if done.exit_code:
            raise RuntimeError(done.stderr.decode("utf-8", "replace"))
        return dict(marshal.loads(done.stdout))


# ------------------------------------------------------------------ for the conftest of a folder with such tests


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test in each of its isolations. A promise of tests/contract runs in full in `process` only.

    In Docker and bubblewrap it is a campaign, unless it is marked `smoke` or is not for `process`.
    """
    if "isolation" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("isolations")
    names = marker.args if marker else ISOLATIONS
    everywhere = "process" not in names or metafunc.definition.get_closest_marker("smoke")
    promise = metafunc.definition.path.parent.name == "contract" and not everywhere
    marks = {name: [] if name == "process" else [getattr(pytest.mark, name)] for name in names}
    for name in names:
        if promise and name != "process":
            marks[name].append(pytest.mark.campaign)
    metafunc.parametrize(
        "isolation",
        [pytest.param(name, marks=marks[name]) for name in names],
        indirect=True,
        scope="function",
    )


@pytest.fixture
def isolation(request: pytest.FixtureRequest) -> str:
    """The isolation that `pytest_generate_tests` chose."""
    return support.require(request.param)


@pytest.fixture(scope="module")
def shared_sandboxes() -> Iterator[SharedSandboxes]:
    shared = SharedSandboxes()
    yield shared
    shared.close()


@pytest.fixture
def box(request: pytest.FixtureRequest, isolation: str) -> Callable[[Callable[[Any], Any]], None]:
    """Runs a test body on a sandbox: for `pytest_pyfunc_call`, which gives the test the sandbox in its place."""
    options: dict[str, Any] = {}
    for marker in request.node.iter_markers("sandbox"):
        options = marker.kwargs | options
    if not request.node.get_closest_marker("own_sandbox"):
        shared: SharedSandboxes = request.getfixturevalue("shared_sandboxes")
        return lambda test: shared.run(isolation, test, **options)

    async def on_its_own(test: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        async with open_sandbox(isolation, **options) as box:
            await test(box)

    return lambda test: support.run(on_its_own(test), LONGEST)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, on an open sandbox if it asks for a `box`."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    if "box" in given:
        on_a_sandbox = given.pop("box")
        on_a_sandbox(lambda box: test(box=box, **given))
    else:
        support.run(test(**given), LONGEST)
    return True
