"""The routes that return files of earlier steps of a run. See `rest-api.yml`.

They only read the history in the run's folder. A kernel of this server must have published the run.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from llm_sandbox_nb.own_folder import open_file
from llm_sandbox_nb.sandbox.errors import HistoryError, OutputLimitExceededError
from llm_sandbox_nb.server.handlers import API, SandboxAPIHandler, rest_verb
from llm_sandbox_nb.server.history_reader import HistoryReader, HistoryReaders
from llm_sandbox_nb.server.run_handlers import RUN_ID
from llm_sandbox_nb.trajectory.run_folder import HISTORY, JOURNAL

CHECKPOINT = r"(?P<checkpoint>[\w-]{1,64})"
T = TypeVar("T")


class HistoryAPIHandler(SandboxAPIHandler):
    """Base of the handlers, with access to the history of a published run."""

    async def look(self, run_id: str, work: Callable[[HistoryReader], T]) -> T:
        """In a thread, call `work` with the history of the run, and return the result.

        Raises:
            UnknownRunError: if this server does not know the run.
            HistoryError: if the run has no history.
        """
        folder = self.folder(run_id)
        readers: HistoryReaders = self.settings["llm_sandbox_histories"]
        async with readers.turn:
            return await asyncio.to_thread(_look, readers, folder, work)

    def folder(self, run_id: str) -> Path:
        """Return the folder with the record of the run. Raises the errors of `look`."""
        folder = self.runs.get(run_id).folder
        if folder is None:
            raise HistoryError("The run's folder is not on this machine, so its history cannot be read here.")
        return folder


class CheckpointsHandler(HistoryAPIHandler):
    """Handler that lists the kept checkpoints of a run."""

    @rest_verb
    async def get(self, run_id: str) -> None:
        """List the kept checkpoints, oldest first."""
        self.finish({"checkpoints": await self.look(run_id, HistoryReader.checkpoints)})


class JournalHandler(HistoryAPIHandler):
    """Handler for a run's journal on disk, which is newer than the server's events if the run was rewound later."""

    @rest_verb
    async def get(self, run_id: str) -> None:
        """Return the journal, as a download."""
        data = await asyncio.to_thread(_journal, self.folder(run_id), self.runs.max_file_bytes)
        await self.download(JOURNAL, data)


class OldFilesHandler(HistoryAPIHandler):
    """Handler that lists a folder as it was at a checkpoint."""

    @rest_verb
    async def get(self, run_id: str, checkpoint: str) -> None:
        """Return the entries of the folder `path`, by default of the run's working directory."""
        path = self.path("")
        self.finish(await self.look(run_id, lambda reader: reader.folder(checkpoint, path)))


class OldFileHandler(HistoryAPIHandler):
    """Handler for a file at a checkpoint. The file is sent as a download, not as a page, because it may be hostile."""

    @rest_verb
    async def get(self, run_id: str, checkpoint: str) -> None:
        """Return the bytes of the file."""
        path, limit = self.path(), self.runs.max_file_bytes
        data = await self.look(run_id, lambda reader: reader.read(checkpoint, path, limit))
        await self.download(path, data)


class OldChangesHandler(HistoryAPIHandler):
    """Handler for the differences between two checkpoints."""

    @rest_verb
    async def get(self, run_id: str, checkpoint: str) -> None:
        """Return the paths that changed since checkpoint `since`."""
        since = self.get_query_argument("since")
        self.finish(await self.look(run_id, lambda reader: reader.changes(since, checkpoint)))


class OldDiffHandler(HistoryAPIHandler):
    """Handler for the differences in a file between two checkpoints."""

    @rest_verb
    async def get(self, run_id: str, checkpoint: str) -> None:
        """Return a unified diff from checkpoint `since` to this checkpoint."""
        since, path = self.get_query_argument("since"), self.path()
        self.finish(await self.look(run_id, lambda reader: reader.diff(since, checkpoint, path)))


def _journal(folder: Path, limit: int) -> bytes:
    try:
        with os.fdopen(open_file(folder, JOURNAL), "rb") as file:
            data = file.read(limit + 1)
    except OSError:
        raise FileNotFoundError(f"The run's folder holds no file {JOURNAL}.") from None
    if len(data) > limit:
        raise OutputLimitExceededError(
            f"The journal is larger than the limit of {limit} bytes; open it as a file."
        )
    return data


def _look(readers: HistoryReaders, folder: Path, work: Callable[[HistoryReader], T]) -> T:
    if (folder / HISTORY).is_symlink():
        raise HistoryError("The run's history is a link; the server reads only files in the run's folder.")
    with readers.reading(folder) as reader:
        return work(reader)


_HISTORY = rf"{API}/runs/{RUN_ID}/history"
history_routes: list[tuple[str, type[Any]]] = [
    (_HISTORY, CheckpointsHandler),
    (rf"{_HISTORY}/journal", JournalHandler),
    (rf"{_HISTORY}/{CHECKPOINT}/files", OldFilesHandler),
    (rf"{_HISTORY}/{CHECKPOINT}/files/content", OldFileHandler),
    (rf"{_HISTORY}/{CHECKPOINT}/changes", OldChangesHandler),
    (rf"{_HISTORY}/{CHECKPOINT}/diff", OldDiffHandler),
]
"""Every history route below the server's base URL."""
