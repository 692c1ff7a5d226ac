"""The answer of a run: the answer file when this run wrote one."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field

from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import OutputLimitExceededError

LIMIT = 1024**2
"""Bytes of the longest answer file."""


@dataclass
class AnswerFiles:
    """Where an answer may be: `answer.txt` in the output folder, then the sandbox's own answer file."""

    box: Sandbox
    output_dir: str
    _before: dict[str, tuple[int, float]] = field(default_factory=dict)

    @property
    def paths(self) -> list[str]:
        """The files, in the order in which they count."""
        return list(
            dict.fromkeys([posixpath.join(self.output_dir, "answer.txt"), self.box.directories.answer])
        )

    async def take_stock(self) -> None:
        """Remember the files that earlier runs left in this sandbox: they are not this run's answer."""
        for path in self.paths:
            if state := await self._state(path):
                self._before[path] = state

    async def read(self) -> str | None:
        """The content of the first file that this run wrote, without blanks around it."""
        for path in self.paths:
            state = await self._state(path)
            if state is None or state == self._before.get(path):
                continue
            try:
                data = await self.box.read_file(path, limit=LIMIT)
            except (OSError, OutputLimitExceededError):
                continue
            return data.decode("utf-8", "replace").strip()
        return None

    async def _state(self, path: str) -> tuple[int, float] | None:
        try:
            entries = await self.box.list_files(path)
        except OSError:
            return None
        return next(((entry.size, entry.mtime) for entry in entries if entry.path == path), None)
