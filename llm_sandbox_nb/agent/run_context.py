"""What belongs to a run in this process: its sandbox while that is open, and whose files are in the sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.run_spec import RunSpec
from llm_sandbox_nb.model.contract import Model
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.history.sandbox import CheckpointingSandbox

_FILES_OF: WeakKeyDictionary[Sandbox, Path] = WeakKeyDictionary()
_USERS: WeakKeyDictionary[Sandbox, list[Path]] = WeakKeyDictionary()
"""The runs that had the files of a sandbox, each once, the newest last."""
_IN_USE_BY: WeakKeyDictionary[Sandbox, Path] = WeakKeyDictionary()
IN_USE = "Another run uses this sandbox: wait until it has ended, or stop it."


T = TypeVar("T")


class ActiveSession(Protocol):
    """A session that executes a run now."""

    @property
    def recorder(self) -> Recorder:
        """Records the events of the run."""
        ...

    async def rewind(self, move: Callable[[Recorder, Sandbox], Awaitable[T]]) -> T:
        """Interrupt the run, call `move`, which goes back, and pause there.

        Raises:
            ControlError: the run has ended.
            Exception: what `move` raises.
        """
        ...

    async def complete_checkpoint(self) -> None:
        """Wait until the checkpoint of the last call is complete."""
        ...


@dataclass
class RunContext:
    """The part of a run that is not in its record."""

    box: Sandbox | None = None
    """The sandbox, while it is open."""
    owned: bool = False
    """Whether it is closed with the run."""
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop that the sandbox belongs to."""
    session: ActiveSession | None = None
    """What executes the run now; None while nothing does."""
    spec: RunSpec | None = None
    """The latest specification: it holds the model, whose key is in no record."""
    models: dict[str, Model] = field(default_factory=dict)
    """Models of the run in this process, by their names: some cannot be made from a name."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `open_sandbox` for another sandbox like it."""
    resume_display: ResumeDisplay | None = None
    """Shows what the run does when it resumes."""
    on_fork: Callable[[Any], None] | None = None
    """Called with each fork, also with one that was asked for over REST, so that a variable can keep it."""
    shown: bool = False
    """Whether the cell that runs now shows the run's card already."""
    _dead: Sandbox | None = None

    def living(self) -> Sandbox | None:
        """The sandbox, unless it is closed or lost."""
        if self.box is not None and getattr(self.box, "lost", None) is not None:
            self._dead, self.box = self.box, None
        return self.box

    async def close_lost_history(self) -> None:
        """Close the history of a sandbox that died, so that another sandbox can write it."""
        dead, self._dead = self._dead, None
        if isinstance(dead, CheckpointingSandbox):
            await dead.history.close()

    async def close(self) -> None:
        """Close the sandbox if it is the run's own."""
        box, self.box = self.box, None
        if box is not None and self.owned:
            await box.close()


ResumeDisplay = Callable[[Any, Callable[..., Any]], Any]
"""`resume_display(run, work)` calls `work(listeners)`, shows the events, and returns the result."""


def reserve_sandbox(box: Sandbox, folder: Path) -> None:
    """Only the run in `folder` may use `box` until `release_sandbox`.

    Raises:
        SandboxError: another run uses it.
    """
    if in_use_by_another(box, folder):
        raise SandboxError(IN_USE)
    _IN_USE_BY[box] = folder


def release_sandbox(box: Sandbox, folder: Path) -> None:
    """Other runs may use `box` again."""
    if _IN_USE_BY.get(box) == folder:
        del _IN_USE_BY[box]


def in_use_by_another(box: Sandbox, folder: Path) -> bool:
    """Whether a run other than the one in `folder` uses `box`: its files and its history must not change."""
    return _IN_USE_BY.get(box, folder) != folder


def owns_files(box: Sandbox, folder: Path) -> bool:
    """Whether the files of `box` are those of the run in `folder`."""
    return _FILES_OF.get(box) == folder


def claim_files(box: Sandbox, folder: Path) -> bool:
    """The files of `box` are those of the run in `folder` from now on. Returns whether they already were."""
    same = owns_files(box, folder)
    _FILES_OF[box] = folder
    users = _USERS.setdefault(box, [])
    if folder in users:
        users.remove(folder)
    users.append(folder)
    return same


def users_since(box: Sandbox, folder: Path) -> list[Path]:
    """The other runs that have had the files of `box` since the run in `folder` had them, the newest last."""
    users = _USERS.get(box, [])
    return users[users.index(folder) + 1 :] if folder in users else list(users)


def disown_files(box: Sandbox) -> None:
    """The files of `box` are those of no run."""
    _FILES_OF.pop(box, None)
