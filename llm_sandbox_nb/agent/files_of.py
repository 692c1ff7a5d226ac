"""The files of a run at any of its steps: from its sandbox while that is open, else from its folder."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from llm_sandbox_nb.agent.checkpoints import history_folder
from llm_sandbox_nb.agent.failures import InputError
from llm_sandbox_nb.agent.place import OTHERS, at_work_for_another
from llm_sandbox_nb.sandbox.contract import Changes, Directories
from llm_sandbox_nb.sandbox.errors import HistoryError
from llm_sandbox_nb.sandbox.history.compare import compare
from llm_sandbox_nb.sandbox.history.entry import Entry, moved
from llm_sandbox_nb.sandbox.history.store import HistoryStore, is_history

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.run import Run


class FilesOf:
    """Reads the history of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._folder = history_folder(run.folder)

    def has(self, checkpoint: str | None) -> bool:
        """Whether a checkpoint is kept."""
        if checkpoint is None or not is_history(self._folder):
            return False
        store = HistoryStore(self._folder, readonly=True)
        try:
            store.checkpoint(checkpoint)
        except HistoryError:
            return False
        finally:
            store.close()
        return True

    async def from_now_to(self, checkpoint: str) -> Changes:
        """What would change if the files went to a checkpoint."""
        box = self._run.place.living()
        if box is not None:
            if at_work_for_another(box, self._run.folder):
                raise InputError(OTHERS)
            if self._run.place.work is None:
                await box.keep_history(self._folder)
            return await box.changes(b=checkpoint)
        now = self._run.trajectory.files
        return Changes() if now is None else await asyncio.to_thread(self.between, now, checkpoint)

    def between(self, a: str, b: str) -> Changes:
        """What differs, going from one checkpoint to another."""
        store = HistoryStore(self._folder, readonly=True)
        try:
            return compare(store, store.manifest(a), store.manifest(b))
        finally:
            store.close()

    def manifest(self, checkpoint: str) -> Mapping[str, Entry]:
        """All entries at a checkpoint. Raises HistoryError when it is not kept."""
        store = HistoryStore(self._folder, readonly=True)
        try:
            return dict(store.manifest(checkpoint))
        finally:
            store.close()

    @contextmanager
    def opened(self, checkpoint: str) -> Iterator[tuple[HistoryStore, Mapping[str, Entry]]]:
        """The history, and all entries at a checkpoint by their paths as they would be in a container."""
        store = HistoryStore(self._folder, readonly=True)
        try:
            sandbox = self._run.trajectory.sandbox
            own_folder = sandbox is not None and sandbox.protection.get("isolation") == "process"
            yield store, moved(store.manifest(checkpoint), Directories().root if own_folder else "/")
        finally:
            store.close()

    def read(self, checkpoint: str, path: str, limit: int) -> bytes:
        """A file as it was at a checkpoint.

        Raises:
            HistoryError: it is not kept.
            FileNotFoundError: there was none.
            OutputLimitExceededError: it has more than `limit` bytes.
        """
        store = HistoryStore(self._folder, readonly=True)
        try:
            entry = store.manifest(checkpoint).get(path)
            if entry is None:
                raise FileNotFoundError(2, "No such file or directory", path)
            return store.read(entry, limit)
        finally:
            store.close()
