"""Runs that were forked off in this kernel: kept with their open sandboxes until these are closed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.run import Run


class Forks:
    """By their folders, the oldest first."""

    def __init__(self) -> None:
        self._runs: dict[Path, Run] = {}

    def add(self, run: Run) -> None:
        """Keep a run."""
        self._runs[run.folder.resolve()] = run

    def at(self, path: Path) -> Run | None:
        """The run in a folder, if it was forked off here."""
        return self._runs.get(path.expanduser().resolve())

    @property
    def open(self) -> list[Run]:
        """Those whose sandboxes are open."""
        return [run for run in self._runs.values() if run.place.living() is not None]

    async def close(self) -> None:
        """End all their sandboxes; the files are kept."""
        await asyncio.gather(*(_closed(run) for run in self.open), return_exceptions=True)

    def text(self) -> str:
        """What is open, a line for each."""
        names = [run.folder.name for run in self.open]
        return "\n".join(
            f"A fork is open: {name}; %sandbox load {name} -o other shows it, other.close() ends it."
            for name in names
        )


async def _closed(run: Run) -> None:
    """End the sandbox of a run in the loop that it belongs to."""
    loop = run.place.loop
    if loop is None or loop is asyncio.get_running_loop():
        await run.place.close()
    elif loop.is_running():
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run.place.close(), loop))
