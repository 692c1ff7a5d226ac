"""The history of one sandbox: it makes checkpoints from scans of the files, and reads checkpoints from a store."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import time
from collections.abc import Awaitable, Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from llm_sandbox_nb.formatting import format_size
from llm_sandbox_nb.sandbox.contract import Checkpoint
from llm_sandbox_nb.sandbox.errors import HistoryError, HistoryNotWrittenError
from llm_sandbox_nb.sandbox.history.checkpoint_store import CheckpointStore
from llm_sandbox_nb.sandbox.history.diff import differing_paths
from llm_sandbox_nb.sandbox.history.image_files import ImageFiles
from llm_sandbox_nb.sandbox.history.manifest import Entry, Manifest, apply_delta, delta, moved
from llm_sandbox_nb.sandbox.history.snapshot import (
    MAX_ENTRIES,
    SnapshotReader,
    scanned_roots,
    snapshot_changes,
)
from llm_sandbox_nb.sandbox.history.stores import (
    is_history,
    open_store,
    reading_history,
    remove_history,
    remove_stale,
    temporary_folder,
)
from llm_sandbox_nb.sandbox.limits import HISTORY_LIMIT
from llm_sandbox_nb.sandbox.protocol.answers import raise_error
from llm_sandbox_nb.sandbox.protocol.channel import ExecutorConnection
from llm_sandbox_nb.sandbox.protocol.frames import ProtocolError

CHECKPOINT_TIMEOUT = 180.0
SCAN_SECONDS = 120.0
"""Seconds after which a scan stops, and reports only the files that it has found so far."""
SPARE_BYTES = 256 * 1024 * 1024
"""Bytes that must stay free on this machine's disk after a checkpoint."""
SPARE_BYTES_OF_RESTORE = 16 * 1024 * 1024
"""Bytes that must stay free after the checkpoint before a restore. The number is small, so that a nearly full disk
rarely prevents a restore, for which a user has asked."""
_T = TypeVar("_T")


class SandboxHistory:
    """History of one sandbox; see `contract.History`. Use it in one event loop. Hold `lock` during scans and restores.

    Args:
        scope: sentences about the files that the history covers.
        below: the only folder whose files the sandbox may report.
    """

    def __init__(self, scope: str, below: str = "/") -> None:
        self.scope = scope
        self.lock = asyncio.Lock()
        self.store: CheckpointStore | None = None
        self.head: str | None = None
        """Id of the checkpoint that the sandbox's files were equal to at the last scan. None if there is none."""
        self.last_scan: str | None = None
        """Id of the last scan. The next scan reports only changes since this scan, or all files if the id is None."""
        self.entries: dict[str, Entry] = {}
        """All entries at the last scan. This dictionary is never modified. After a scan with differences, the attribute
        gets a new dictionary."""
        self.stored: tuple[str, dict[str, Entry]] | None = None
        """Id and entries of the checkpoint that was stored last; None before the first."""
        self.shell: bytes | None = None
        """The state of the shell at the last scan. None if it was not saved."""
        self.below = below
        self._temporary = False
        self._limit = HISTORY_LIMIT

    # -- see `contract.History` ----------------------------------------------------------------------------

    @property
    def folder(self) -> Path | None:
        return self.store.folder if self.store else None

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def size(self) -> int:
        return self.store.size if self.store else 0

    @property
    def notice(self) -> str:
        dropped = self.store.dropped if self.store else 0
        if not dropped:
            return ""
        what = "The oldest checkpoint was" if dropped == 1 else f"The {dropped} oldest checkpoints were"
        return (
            f"{what} dropped to keep the history within {format_size(self._limit)}; the steps before "
            "can still be read, but their files cannot be restored."
        )

    @property
    def checkpoints(self) -> list[Checkpoint]:
        return self.store.checkpoints() if self.store else []

    def checkpoint(self, id: str) -> Checkpoint:
        return self.store_with(id).checkpoint(id)

    def store_with(self, id: str) -> CheckpointStore:
        """Return the store. Raises HistoryError, which names the checkpoint `id`, if no checkpoint was taken yet."""
        if self.store is None:
            raise HistoryError(f"This sandbox has no checkpoint {id!r}: no checkpoint was taken yet.")
        return self.store

    def manifest(self, id: str) -> Manifest:
        """Return all entries of a checkpoint, by path.

        If the checkpoint is from a sandbox with another folder (isolation `process`), the paths are converted to this
        sandbox's folder.

        Raises:
            HistoryError: if the checkpoint does not exist, or has files outside this sandbox's folder.
        """
        store = self.store_with(id)
        found = moved(store.manifest(id), self.below)
        inside = f"{self.below}/"
        if self.below != "/" and any(
            path != self.below and not path.startswith(inside)
            for path in chain(found, (entry.group for entry in found.values() if entry.group))
        ):
            raise HistoryError(
                f"The history in {store.folder} has a file outside of the sandbox's folder: it is damaged, or from "
                "another isolation."
            )
        return found

    # -- the folder ----------------------------------------------------------------------------------------

    async def keep(self, folder: Path, continue_from: Path | None, limit: int | None) -> None:
        async with self.lock:
            await finish_anyway(asyncio.to_thread(self._keep, folder.absolute(), continue_from, limit))

    def _keep(self, folder: Path, continue_from: Path | None, limit: int | None) -> None:
        limit = HISTORY_LIMIT if limit is None else limit
        if self.store is not None and self.store.folder == folder:
            self.store.limit = self._limit = limit
            return
        if not is_history(folder):
            self._continue(folder, continue_from)
        store = open_store(folder, limit=limit)
        self._close_store()
        self.store, self._temporary, self._limit = store, False, limit
        if self.head is not None and self.head not in {checkpoint.id for checkpoint in store.checkpoints()}:
            self.forget_scan()

    def _continue(self, folder: Path, source: Path | None) -> None:
        if self.store is not None and self.store.checkpoints():
            if source is not None and source.absolute() != self.store.folder:
                raise HistoryError(
                    f"This sandbox has checkpoints of its own, so its history cannot continue {source}; "
                    "leave continue_from out."
                )
            self.store.continue_in(folder)
        elif source is not None:
            with reading_history(source) as store:
                store.continue_in(folder)

    def forget_scan(self) -> None:
        """Make the next scan report all files."""
        self.head, self.last_scan, self.entries, self.shell = None, None, {}, None

    def _open(self) -> CheckpointStore:
        if self.store is None:
            remove_stale()
            self.store, self._temporary = open_store(temporary_folder(), limit=self._limit), True
        return self.store

    def continue_with(self, copy: HistoryCopy) -> None:
        """Use a copy of another sandbox's history as this history."""
        self.store, self._temporary = copy.store, copy.temporary
        self._limit = copy.store.limit

    def _close_store(self) -> None:
        store, self.store = self.store, None
        if store is not None:
            HistoryCopy(store, self._temporary).discard()

    async def close(self) -> None:
        """Close the store. If its folder is temporary, remove the folder."""
        async with self.lock:
            await finish_anyway(asyncio.to_thread(self._close_store))

    # -- checkpoints ---------------------------------------------------------------------------------------

    async def take(self, connection: ExecutorConnection, pinned: Collection[str] = ()) -> str:
        async with self.lock:
            return await self.take_locked(connection, pinned)

    async def take_locked(
        self,
        connection: ExecutorConnection,
        pinned: Collection[str] = (),
        *,
        spare: int = SPARE_BYTES,
        walk: bool = False,
    ) -> str:
        """Take a checkpoint, and return its id. The caller must hold `lock`.

        Args:
            connection: connection to the executor.
            pinned: ids of checkpoints that must not be dropped.
            spare: bytes that must stay free on this machine's disk.
            walk: True if the executor examines all files. If False, it examines only files that may have changed
                according to the kernel's reports.

        Raises:
            HistoryNotWrittenError: if this machine's disk has no more than `spare` free bytes.
        """
        first = self.last_scan is None
        scan, found = await self.scan_locked(connection, spare=spare, walk=walk)
        if first and self.store is not None:

            async def connected() -> ExecutorConnection:
                return connection

            try:
                await ImageFiles(self.store, connected).learn_engine_files(found)
            except BaseException:
                scan.content.discard()
                raise
        return await finish_anyway(asyncio.to_thread(scan.commit, found, pinned))

    async def scan_locked(
        self, connection: ExecutorConnection, *, spare: int = SPARE_BYTES, walk: bool
    ) -> tuple[PendingCheckpoint, dict[str, Entry]]:
        """Scan the files. Return the pending checkpoint and all entries by path. The caller must hold `lock`.

        `take_locked` describes the arguments.

        Raises:
            HistoryNotWrittenError: if this machine's disk has no more than `spare` free bytes.
        """
        store = await asyncio.to_thread(self._open)
        scan = PendingCheckpoint(self, store, room_for_content(store, spare))
        try:
            outcome = await connection.request_files(scan.request(walk), scan.reader.take, CHECKPOINT_TIMEOUT)
            raise_error(outcome, "")
            return scan, await finish_anyway(asyncio.to_thread(scan.entries, outcome))
        except ProtocolError as error:
            scan.content.discard()
            raise connection.broke_protocol(error) from error
        except BaseException:
            scan.content.discard()
            raise


@dataclass(frozen=True)
class HistoryCopy:
    """Copy of a history, for a fork."""

    store: CheckpointStore
    temporary: bool
    is_new: bool = False
    """True if the copy made the folder, or found it empty."""

    @classmethod
    def of(cls, source: CheckpointStore, folder: Path | None) -> HistoryCopy:
        """Copy the history `source` into `folder`, or into a temporary folder if it is None. Raises HistoryError."""
        target = temporary_folder() if folder is None else folder.absolute()
        is_new = not target.exists() or not any(target.iterdir())
        return cls(source.continued_in(target), folder is None, is_new)

    def discard(self) -> None:
        """Close the store of the copy. If its folder is temporary, remove the folder. A second call does nothing."""
        self.store.close()
        if self.temporary:
            remove_history(self.store.folder)

    def undo(self) -> None:
        """Discard the copy. Remove its folder if the copy made it, so that the same folder can be given again."""
        self.discard()
        if self.is_new:
            remove_history(self.store.folder)


def room_for_content(store: CheckpointStore, spare: int) -> int:
    """Return the maximum bytes of new content that one checkpoint may have.

    Raises:
        HistoryNotWrittenError: if this machine's disk has no more than `spare` free bytes.
    """
    free = shutil.disk_usage(store.folder).free
    if free <= spare:
        raise HistoryNotWrittenError(
            f"This machine's disk is nearly full ({format_size(free)} are free in {store.folder}, and a checkpoint "
            f"leaves {format_size(spare)}): free disk space, or choose another output folder."
        )
    return min(store.limit, free - spare)


class PendingCheckpoint:
    """Scan of the files. `commit` makes a checkpoint of it if anything has changed."""

    def __init__(self, history: SandboxHistory, store: CheckpointStore, room: int) -> None:
        self.id = secrets.token_hex(8)
        self.content = store.writer()
        self.reader = SnapshotReader(self.content, store.length, room, history.below)
        self._history = history
        self._store = store
        self._room = room
        self._began = time.monotonic()
        self._shell: bytes | None = None
        self._incomplete = ""
        self._changed: dict[str, Entry | None] = {}
        """Differences from the entries of the last scan."""

    def request(self, walk: bool) -> dict[str, Any]:
        """Return the request for a scan. `take_locked` describes `walk`."""
        limits = {"entries": MAX_ENTRIES // 2, "bytes": self._room, "seconds": SCAN_SECONDS}
        return {
            "op": "checkpoint",
            "id": self.id,
            "since": self._history.last_scan,
            "walk": walk,
            "timeout": CHECKPOINT_TIMEOUT,
            "limits": limits,
        }

    def entries(self, outcome: Mapping[str, Any]) -> dict[str, Entry]:
        """Return all entries at this scan, by path. `outcome` is the executor's answer to the request.

        Raises:
            ProtocolError: if the answer or the report is invalid.
        """
        history, snapshot = self._history, self.reader.parse()
        incremental = outcome.get("incremental") is True
        if incremental and history.last_scan is None:
            raise ProtocolError("it reports changes since a checkpoint that does not exist")
        before = history.entries if incremental else {}
        changed = snapshot_changes(before, snapshot, scanned_roots(outcome))
        found = apply_delta(before, changed) if changed else before
        self._changed = changed if incremental else delta(history.entries, found)
        self._incomplete = printable_sentence(outcome.get("incomplete"))
        shell = outcome.get("shell")
        state = shell.get("state") if isinstance(shell, dict) else "none"
        if state in ("same", "new"):
            self._shell = snapshot.shell if state == "new" else history.shell
        return found

    def commit(self, found: dict[str, Entry], pinned: Collection[str] = (), *, changed: bool = False) -> str:
        """Store a checkpoint with the entries `found` if anything has changed or `changed` is True.

        Return the id of the checkpoint that the files are now equal to. The checkpoints `pinned` must not be dropped.

        Raises:
            HistoryNotWrittenError: if this machine's disk is full.
        """
        history, store = self._history, self._store
        if not changed and self._unchanged(found):
            self.discard(found)
            return str(history.head)
        if history.head is not None and history.stored == (history.head, history.entries):
            before: Manifest = history.entries
            differences = self._changed
        else:
            before = store.manifest(history.head) if history.head is not None else {}
            differences = delta(before, found)
            before = moved(before, history.below)
        checkpoint = Checkpoint(
            self.id,
            history.head,
            time.time(),
            files=len(differing_paths(before, found, differences)),
            size=self.content.size,
            duration=time.monotonic() - self._began,
            incomplete=self._incomplete,
        )
        store.commit(checkpoint, differences, self._shell, self.content, pinned, found)
        history.head, history.stored = self.id, (self.id, found)
        self._remember(found)
        return self.id

    def _unchanged(self, found: dict[str, Entry]) -> bool:
        history = self._history
        return (
            history.head is not None
            and not self._changed
            and history.shell == self._shell
            and self._store.checkpoint(history.head).incomplete == self._incomplete
        )

    def discard(self, found: dict[str, Entry]) -> None:
        """Remember the entries without storing them. They must be equal to those of the checkpoint `head`."""
        self.content.discard()
        self._remember(found)

    def _remember(self, found: dict[str, Entry]) -> None:
        history = self._history
        history.last_scan, history.entries, history.shell = self.id, found, self._shell


def printable_sentence(text: object) -> str:
    """Return the printable ones of the first 2,000 characters of a text from the executor. Empty if it is no text."""
    if not isinstance(text, str):
        return ""
    return "".join(letter for letter in text[:2000] if letter.isprintable())


async def finish_anyway(work: Awaitable[_T]) -> _T:
    """Wait for work that must not be interrupted. If this task is cancelled, still wait for the work, then raise."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
