"""What a server says that can start no more sandboxes, and which of its sandboxes it takes for idle."""

from __future__ import annotations

import time
from types import SimpleNamespace

from llm_sandbox_nb.sandbox.options import SandboxOptions
from llm_sandbox_nb.server.managed_sandbox import ManagedSandbox
from llm_sandbox_nb.server.manager import SandboxManager, too_many_text


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


def manager_of(*sandboxes: ManagedSandbox, live: tuple[str, ...] = ()) -> SandboxManager:
    manager = SandboxManager(kernels=SimpleNamespace(), server_key="test")  # type: ignore[arg-type]
    for one in sandboxes:
        manager.adopt(one)
    manager.live_kernels = lambda: live
    return manager


def test_idle_is_what_does_nothing_and_has_no_live_run() -> None:
    sandboxes = [Running("a", 60), Running("b", 600), Running("c", 0, requests=1), Running("thinks", 900)]
    manager = manager_of(*sandboxes, live=("kernel of thinks",))
    assert [one.id for one in manager.idle()] == ["b", "a"]
    assert [one.id for one in manager.idle("kernel of b")] == ["a"]


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
