"""The public types of a sandbox's history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

DEFAULT_LIMIT = 4 * 1024**3
"""Bytes that one history may take on disk before its oldest checkpoints are dropped."""


@dataclass(frozen=True)
class Checkpoint:
    """The files of a sandbox at one moment."""

    id: str
    parent: str | None
    """The checkpoint against which `files` counts; None for the first, and when that one was dropped."""
    time: float
    """Seconds since the epoch."""
    files: int = 0
    """Paths that were added, changed or deleted since `parent`."""
    size: int = 0
    """Bytes of content that had to be stored for it."""
    duration: float = 0.0
    """Seconds that it took in the background."""
    incomplete: str = ""
    """What could not be kept, in sentences."""


@dataclass(frozen=True)
class Restored:
    """What a restore has done."""

    checkpoint: str
    safety: str
    """The checkpoint of the files as they were just before: restoring it undoes this."""
    files: int = 0
    """Paths that were written, changed or deleted."""
    shell: bool = False
    """Whether the shell's directory, variables and functions were restored too."""
    problems: tuple[str, ...] = ()
    """A sentence for each thing that could not be restored."""
    duration: float = 0.0


class History(Protocol):
    """The checkpoints of one sandbox."""

    @property
    def folder(self) -> Path | None:
        """Where it is kept; None before the first checkpoint if no folder was given."""
        ...

    @property
    def limit(self) -> int:
        """Bytes that it may take on disk."""
        ...

    @property
    def size(self) -> int:
        """Bytes of content that it holds."""
        ...

    @property
    def scope(self) -> str:
        """One sentence: which files it covers, and that running processes are not restored."""
        ...

    @property
    def notice(self) -> str:
        """A sentence about checkpoints that were dropped to stay within the limit; empty when none was."""
        ...

    @property
    def checkpoints(self) -> Sequence[Checkpoint]:
        """All that are kept, oldest first."""
        ...

    def checkpoint(self, id: str) -> Checkpoint:
        """One of them.

        Raises:
            HistoryError: there is none with this id; says whether it was dropped.
        """
        ...
