"""Where a run lives: its sandbox while that is open, and who has worked in it last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from llm_sandbox_nb.sandbox.contract import Sandbox

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.job import Job
    from llm_sandbox_nb.agent.work import Work

_LAST: WeakKeyDictionary[Sandbox, Path] = WeakKeyDictionary()


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
    options: Mapping[str, Any] = field(default_factory=dict)
    """How to open another sandbox like it."""
    stage: Stage | None = None
    """Shows what the run does when it goes on."""
    on_fork: Callable[[Any], None] | None = None
    """Told of each run that is forked off, for whoever keeps it: nobody else may have asked for it in Python."""

    def living(self) -> Sandbox | None:
        """The sandbox, unless it is closed or lost."""
        if self.box is not None and getattr(self.box, "lost", None) is not None:
            self.box = None
        return self.box

    async def close(self) -> None:
        """End the sandbox if it is the run's own."""
        box, self.box = self.box, None
        if box is not None and self.owned:
            await box.close()


Stage = Callable[[Any, Callable[..., Any]], Any]
"""`stage(run, work)` calls `work(listeners)`, shows what the listeners are told, and returns what it returns."""


def take_over(box: Sandbox, folder: Path) -> bool:
    """The run in `folder` works in `box` now; says whether it was the last to do so."""
    same = _LAST.get(box) == folder
    _LAST[box] = folder
    return same


def let_go(box: Sandbox) -> None:
    """The files of `box` are no run's."""
    _LAST.pop(box, None)
