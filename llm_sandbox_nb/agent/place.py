"""Where a run lives: its sandbox while that is open, and who has worked in it last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.history.box import KeptSandbox

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.job import Job
    from llm_sandbox_nb.agent.model import Model
    from llm_sandbox_nb.agent.work import Work

_LAST: WeakKeyDictionary[Sandbox, Path] = WeakKeyDictionary()
_AT_WORK: WeakKeyDictionary[Sandbox, Path] = WeakKeyDictionary()
OTHERS = "Another run is at work in this sandbox: wait until it has ended, or stop it."


@dataclass
class Place:
    """The part of a run that is not in its record."""

    box: Sandbox | None = None
    """The sandbox, while it is open."""
    owned: bool = False
    """Whether it is closed with the run."""
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop that the sandbox belongs to."""
    work: Work | None = None
    """What is under way."""
    job: Job | None = None
    """What was last asked for: the model above all, whose key is in no record."""
    models: dict[str, Model] = field(default_factory=dict)
    """Models that it was done with in this process, by their names: some cannot be made from those."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """How to open another sandbox like it."""
    stage: Stage | None = None
    """Shows what the run does when it goes on."""
    on_fork: Callable[[Any], None] | None = None
    """Told of each run that is forked off, for whoever keeps it: nobody else may have asked for it in Python."""
    _dead: Sandbox | None = None

    def living(self) -> Sandbox | None:
        """The sandbox, unless it is closed or lost."""
        if self.box is not None and getattr(self.box, "lost", None) is not None:
            self._dead, self.box = self.box, None
        return self.box

    async def put_away_lost(self) -> None:
        """A sandbox that died lets go of the run's history, which another one goes on with."""
        dead, self._dead = self._dead, None
        if isinstance(dead, KeptSandbox):
            await dead.keeper.close()

    async def close(self) -> None:
        """End the sandbox if it is the run's own."""
        box, self.box = self.box, None
        if box is not None and self.owned:
            await box.close()


Stage = Callable[[Any, Callable[..., Any]], Any]
"""`stage(run, work)` calls `work(listeners)`, shows what the listeners are told, and returns what it returns."""


def begin_work(box: Sandbox, folder: Path) -> None:
    """The run in `folder` is at work in `box` until `end_work`.

    Raises:
        SandboxError: another run is.
    """
    if at_work_for_another(box, folder):
        raise SandboxError(OTHERS)
    _AT_WORK[box] = folder


def end_work(box: Sandbox, folder: Path) -> None:
    """The run in `folder` works there no more."""
    if _AT_WORK.get(box) == folder:
        del _AT_WORK[box]


def at_work_for_another(box: Sandbox, folder: Path) -> bool:
    """Whether a run is at work in `box`, and it is not the one in `folder`: its files and history are to be left."""
    return _AT_WORK.get(box, folder) != folder


def was_last_in(box: Sandbox, folder: Path) -> bool:
    """Whether the files of `box` are those of the run in `folder`."""
    return _LAST.get(box) == folder


def take_over(box: Sandbox, folder: Path) -> bool:
    """The run in `folder` works in `box` now; says whether it was the last to do so."""
    same = was_last_in(box, folder)
    _LAST[box] = folder
    return same


def let_go(box: Sandbox) -> None:
    """The files of `box` are no run's."""
    _LAST.pop(box, None)
