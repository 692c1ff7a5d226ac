"""What the rest of the project sees of a sandbox's history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

DEFAULT_LIMIT = 4 * 1024**3
"""Bytes that one history may take on disk before its oldest checkpoints are dropped."""


@dataclass(frozen=True)
class Checkpoint:
    """The files of a sandbox at one moment, as they are kept."""

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
    """What could not be kept, in words."""


@dataclass(frozen=True)
class Restored:
    """What putting files back has done."""

    checkpoint: str
    safety: str
    """The checkpoint of the files as they were just before: restoring it undoes this."""
    files: int = 0
    """Paths that were written, changed or deleted."""
    shell: bool = False
    """Whether the shell's directory, variables and functions came back too."""
    problems: tuple[str, ...] = ()
    """A sentence for each thing that could not be put back."""
    duration: float = 0.0


class History(Protocol):
    """Tells about the checkpoints of one sandbox."""

    @property
    def folder(self) -> Path | None:
        """Where it is kept; None before the first checkpoint, when nobody has named a place."""
        ...

    @property
    def limit(self) -> int:
        """Bytes it may take on disk."""
        ...

    @property
    def size(self) -> int:
        """Bytes of content it holds."""
        ...

    @property
    def scope(self) -> str:
        """One sentence: which files it covers, and that running processes do not come back."""
        ...

    @property
    def notice(self) -> str:
        """What was dropped to stay within the limit, in words; empty when nothing was."""
        ...

    @property
    def checkpoints(self) -> Sequence[Checkpoint]:
        """All that are kept, oldest first."""
        ...

    def checkpoint(self, id: str) -> Checkpoint:
        """One of them.

        Raises:
            HistoryError: there is none of this id; says whether it was dropped.
        """
        ...
