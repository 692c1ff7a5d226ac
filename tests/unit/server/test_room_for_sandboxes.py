"""Idle sandboxes of a server, the sandboxes that it ends, and its message if it can start no more."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import support

from llm_sandbox_nb.sandbox.options import SandboxOptions
from llm_sandbox_nb.server.managed_sandbox import ManagedSandbox
from llm_sandbox_nb.server.manager import SandboxManager, too_many_text, why_end
from llm_sandbox_nb.server.runs import RunRegistry


class Running(ManagedSandbox):
    """One that runs, without a sandbox behind it."""

    def __init__(self, name: str, idle: float, requests: int = 0, notebook: str | None = None) -> None:
        super().__init__(name, f"kernel of {name}", notebook or f"{name}.ipynb", SandboxOptions())
        self._requests = requests
        self.sandbox = SimpleNamespace(lost=None)  # type: ignore[assignment]
        self.last_activity = time.time() - idle

    @property
    def requests(self) -> int:
        return self._requests


class Kernels:
    """Kernels that this server owns, all alive."""

    def owns(self, kernel_id: str) -> bool:
        return True

    async def alive(self, kernel_id: str) -> bool:
        return True

    async def notebook(self, kernel_id: str) -> str | None:
        return None


def manager_of(*sandboxes: ManagedSandbox, live: str = "", outside: str = "") -> SandboxManager:
    """Make a manager. `live` has a run, and an outside agent may use `outside`."""
    kernels: Any = Kernels()
    manager = SandboxManager(kernels=kernels, server_key="test")
    for one in sandboxes:
        manager.adopt(one)
    runs = RunRegistry(kernels=kernels, secret=b"")
    for name in filter(None, (live, outside)):
        run = runs.publish(f"run-{name}", f"kernel of {name}", "owner", SimpleNamespace())  # type: ignore[arg-type]
        run.outside = name if name == outside else None
    manager.live_kernels = runs.live_kernels
    return manager


def test_idle_is_what_does_nothing_and_has_no_live_run() -> None:
    sandboxes = [Running("a", 60), Running("b", 600), Running("c", 0, requests=1), Running("thinks", 900)]
    manager = manager_of(*sandboxes, live="thinks")
    assert [one.id for one in manager.idle()] == ["b", "a"]
    assert [one.id for one in manager.idle("kernel of b")] == ["a"]


def test_a_sandbox_that_comes_into_use_meanwhile_is_not_stopped() -> None:
    used, unused = Running("used", 60), Running("unused", 600)

    async def close() -> None:
        used._requests = 1

    unused.sandbox = SimpleNamespace(lost=None, close=close)  # type: ignore[assignment]
    manager = manager_of(used, unused)
    assert support.run(manager.stop_idle("", None)) == [unused]
    assert manager.all() == [used]


def test_a_sandbox_is_not_culled_during_a_run_of_its_kernel() -> None:
    """A run may wait for a person for longer than a sandbox may be unused."""
    sandboxes = [Running(name, 8000) for name in ("waits", "unused", "open")]
    manager = manager_of(*sandboxes, live="waits", outside="open")
    ended = {one.id: support.run(why_end(manager, one)) or "" for one in sandboxes}
    assert ended.pop("waits") == ""
    assert all("was not used" in reason for reason in ended.values()), ended


def test_the_refusal_names_the_idle_notebooks_and_what_to_do() -> None:
    text = too_many_text(8, [Running("lecture", 720), Running("tests", 90)])
    assert text == (
        "This server runs 8 sandboxes, as many as its site allows. Idle: lecture.ipynb (for 12 min), tests.ipynb "
        "(for 1 min 30 s). To stop the one that is idle longest, and lose its files, execute `%sandbox stop --idle`, "
        "then run this cell again."
    )
    assert "All are in use" in too_many_text(8, [])


def test_the_refusal_is_short_and_plain_whatever_notebooks_are_called() -> None:
    many = [Running(str(n), 9, notebook=f"{n}\x1b[31m\nnot a line‮{'x' * 500}.ipynb") for n in range(40)]
    text = too_many_text(40, many)
    assert len(text) < 1000
    assert "35 more" in text
    assert text.isprintable()
