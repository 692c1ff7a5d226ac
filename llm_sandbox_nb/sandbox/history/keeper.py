"""The history of one sandbox: takes checkpoints of it, keeps them, and reads them."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Awaitable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from llm_sandbox_nb.sandbox.errors import HistoryError
from llm_sandbox_nb.sandbox.frames import ProtocolError
from llm_sandbox_nb.sandbox.history.compare import differing_paths
from llm_sandbox_nb.sandbox.history.entry import Entry, Manifest, delta, moved
from llm_sandbox_nb.sandbox.history.image import Image
from llm_sandbox_nb.sandbox.history.incoming import ENTRIES_MOST, Incoming, combined, roots_of
from llm_sandbox_nb.sandbox.history.link import Link
from llm_sandbox_nb.sandbox.history.packs import PackWriter
from llm_sandbox_nb.sandbox.history.store import HistoryStore, is_history, remove_history
from llm_sandbox_nb.sandbox.history.types import DEFAULT_LIMIT, Checkpoint
from llm_sandbox_nb.sandbox.outcome import raise_error

CHECKPOINT_TIMEOUT = 180.0
LOOK_SECONDS = 120.0
"""Seconds after which a look is ended with what it has found."""
SPARE = 256 * 1024 * 1024
"""Bytes of this machine's disk that a checkpoint leaves free."""
_PREFIX = "llm-sandbox-history-"
_T = TypeVar("_T")


class HistoryKeeper:
    """See `History`. Used from one event loop; one thing at a time is done with the sandbox.

    Args:
        scope: which files it covers, in a sentence.
        below: the only folder whose files may be told.
    """

    def __init__(self, scope: str, below: str = "/") -> None:
        self.scope = scope
        self.busy = asyncio.Lock()
        self.store: HistoryStore | None = None
        self.head: str | None = None
        """The checkpoint that the sandbox's files are at, as far as was looked."""
        self.look: str | None = None
        """What the executor calls its last look."""
        self.seen: dict[str, Entry] = {}
        """All entries at that look."""
        self.shell: bytes | None = None
        """The state of the shell at that look."""
        self.below = below
        self._temporary = False
        self._limit = DEFAULT_LIMIT

    # -- what people see -----------------------------------------------------------------------------------

    @property
    def folder(self) -> Path | None:
        """See `History.folder`."""
        return self.store.folder if self.store else None

    @property
    def limit(self) -> int:
        """See `History.limit`."""
        return self._limit

    @property
    def size(self) -> int:
        """See `History.size`."""
        return self.store.size if self.store else 0

    @property
    def notice(self) -> str:
        """See `History.notice`."""
        dropped = self.store.dropped if self.store else 0
        if not dropped:
            return ""
        what = "The oldest checkpoint was" if dropped == 1 else f"The {dropped} oldest checkpoints were"
        return (
            f"{what} dropped to keep the history within {self._limit / 1024**2:.0f} MiB; the steps before "
            "can still be read, but not gone back to."
        )

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """See `History.checkpoints`."""
        return self.store.checkpoints() if self.store else []

    def checkpoint(self, id: str) -> Checkpoint:
        """See `History.checkpoint`."""
        return self.needed(id).checkpoint(id)

    def needed(self, id: str) -> HistoryStore:
        """The store; whoever names a checkpoint before there is one has made it up. Raises HistoryError."""
        if self.store is None:
            raise HistoryError(f"This sandbox has no checkpoint {id!r} because it has none yet.")
        return self.store

    def manifest(self, id: str) -> Manifest:
        """All entries at a checkpoint, as they would be in this sandbox. Raises HistoryError."""
        return moved(self.needed(id).manifest(id), self.below)

    # -- the place -----------------------------------------------------------------------------------------

    async def keep(self, folder: Path, continue_from: Path | None, limit: int | None) -> None:
        """See `Sandbox.keep_history`."""
        async with self.busy:
            await unhurried(asyncio.to_thread(self._keep, folder.absolute(), continue_from, limit))

    def _keep(self, folder: Path, continue_from: Path | None, limit: int | None) -> None:
        self._limit = DEFAULT_LIMIT if limit is None else limit
        if self.store is not None and self.store.folder == folder:
            self.store.limit = self._limit
            return
        if not is_history(folder):
            self._continue(folder, continue_from)
        store = HistoryStore(folder, limit=self._limit)
        self._let_go()
        self.store, self._temporary = store, False
        if self.head is not None and self.head not in {one.id for one in store.checkpoints()}:
            self.forget()

    def _continue(self, folder: Path, source: Path | None) -> None:
        """Take along what there is."""
        if self.store is not None and self.store.checkpoints():
            if source is not None and source.absolute() != self.store.folder:
                raise HistoryError(
                    f"This sandbox has checkpoints of its own, so its history cannot go on from {source}; "
                    "leave continue_from out."
                )
            self.store.continue_in(folder)
        elif source is not None:
            store = HistoryStore(source, readonly=True)
            try:
                store.continue_in(folder)
            finally:
                store.close()

    def forget(self) -> None:
        """The next look starts anew."""
        self.head, self.look, self.seen, self.shell = None, None, {}, None

    def _open(self) -> HistoryStore:
        if self.store is None:
            remove_stale()
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
            self.store, self._temporary = HistoryStore(folder, limit=self._limit), True
        return self.store

    def begin_with(self, beginning: Beginning) -> None:
        """Begin with all that another history has."""
        self.store, self._temporary = beginning.store, beginning.temporary
        self._limit = beginning.store.limit

    def _let_go(self) -> None:
        store, self.store = self.store, None
        if store is not None:
            Beginning(store, self._temporary).discard()

    async def close(self) -> None:
        """Let go of the files; a temporary folder is removed."""
        async with self.busy:
            await unhurried(asyncio.to_thread(self._let_go))

    # -- looking -------------------------------------------------------------------------------------------

    async def take(self, link: Link) -> str:
        """See `Sandbox.checkpoint`."""
        async with self.busy:
            return await self.take_now(link)

    async def take_now(self, link: Link, pinned: Collection[str] = ()) -> str:
        """The same for who is `busy`; `pinned` checkpoints are not dropped for it."""
        first = self.look is None
        new, told = await self.look_now(link)
        if first and self.store is not None:
            await Image(self.store, lambda: _already(link)).learn_own(told)
        return await unhurried(asyncio.to_thread(new.settle, told, pinned))

    async def look_now(self, link: Link) -> tuple[_Look, dict[str, Entry]]:
        """Look at the files; all entries there are. Nothing is kept yet."""
        store = await asyncio.to_thread(self._open)
        new = _Look(self, store, self._room(store), self.below)
        try:
            answer = await link.ask_files(new.request(), new.incoming.take, CHECKPOINT_TIMEOUT)
            raise_error(answer, "")
            return new, await unhurried(asyncio.to_thread(new.entries, answer))
        except ProtocolError as error:
            new.content.discard()
            raise link.broke_protocol(error) from error
        except BaseException:
            new.content.discard()
            raise

    def _room(self, store: HistoryStore) -> int:
        free = shutil.disk_usage(store.folder).free - SPARE
        return max(0, min(store.limit, free))


@dataclass(frozen=True)
class Beginning:
    """A history that goes on with another, for a sandbox to come."""

    store: HistoryStore
    temporary: bool

    @classmethod
    def of(cls, source: HistoryStore, folder: Path | None) -> Beginning:
        """In `folder` or a temporary one. Raises HistoryError, OSError."""
        where = Path(tempfile.mkdtemp(prefix=_PREFIX)) if folder is None else folder.absolute()
        return cls(source.continued_in(where), folder is None)

    def discard(self) -> None:
        """Let go of the files; a temporary folder is removed. May be done twice."""
        self.store.close()
        if self.temporary:
            remove_history(self.store.folder)


class _Look:
    """One look at the files, and what becomes of it."""

    def __init__(self, keeper: HistoryKeeper, store: HistoryStore, room: int, below: str) -> None:
        self.id = secrets.token_hex(8)
        self.content: PackWriter = store.writer()
        self.incoming = Incoming(self.content, store.length, room, below)
        self._keeper = keeper
        self._store = store
        self._room = room
        self._began = time.monotonic()
        self._shell: bytes | None = None
        self._incomplete = ""

    def request(self) -> dict[str, Any]:
        """What to ask."""
        limits = {"entries": ENTRIES_MOST // 2, "bytes": self._room, "seconds": LOOK_SECONDS}
        return {
            "op": "checkpoint",
            "id": self.id,
            "since": self._keeper.look,
            "timeout": CHECKPOINT_TIMEOUT,
            "limits": limits,
        }

    def entries(self, answer: Mapping[str, Any]) -> dict[str, Entry]:
        """All entries there are now.

        Raises:
            ProtocolError: what was told makes no sense.
        """
        keeper, told = self._keeper, self.incoming.told()
        incremental = answer.get("incremental") is True
        if incremental and keeper.look is None:
            raise ProtocolError("it tells what has changed since it was never asked")
        before = dict(keeper.seen) if incremental else {}
        found = combined(before, told, roots_of(dict(answer)))
        self._incomplete = _words(answer.get("incomplete"))
        shell = answer.get("shell")
        state = shell.get("state") if isinstance(shell, dict) else "none"
        if state in ("same", "new"):
            self._shell = told.shell if state == "new" else keeper.shell
        return found

    def settle(self, found: dict[str, Entry], pinned: Collection[str] = (), *, changed: bool = False) -> str:
        """Keep it, if anything has changed (or is `changed` for sure); the checkpoint that the sandbox is at.

        Raises:
            OSError: there is no room on this machine.
        """
        keeper, store = self._keeper, self._store
        if not changed and self._unchanged(found):
            self.leave(found)
            return str(keeper.head)
        before = store.manifest(keeper.head) if keeper.head is not None else {}
        checkpoint = Checkpoint(
            self.id,
            keeper.head,
            time.time(),
            files=len(differing_paths(moved(before, keeper.below), found)),
            size=self.content.size,
            duration=time.monotonic() - self._began,
            incomplete=self._incomplete,
        )
        store.commit(checkpoint, delta(before, found), self._shell, self.content, pinned)
        keeper.head = self.id
        self._remember(found)
        return self.id

    def _unchanged(self, found: dict[str, Entry]) -> bool:
        keeper = self._keeper
        return (
            keeper.head is not None
            and not delta(keeper.seen, found)
            and keeper.shell == self._shell
            and self._store.checkpoint(keeper.head).incomplete == self._incomplete
        )

    def leave(self, found: dict[str, Entry]) -> None:
        """Note what was seen, without keeping it: it is what the checkpoint at hand holds."""
        self.content.discard()
        self._remember(found)

    def _remember(self, found: dict[str, Entry]) -> None:
        keeper = self._keeper
        keeper.look, keeper.seen, keeper.shell = self.id, found, self._shell


async def _already(link: Link) -> Link:
    return link


def _words(text: object) -> str:
    if not isinstance(text, str):
        return ""
    return "".join(letter for letter in text[:2000] if letter.isprintable())


async def unhurried(work: Awaitable[_T]) -> _T:
    """Wait for work that must not be left half-way: a cancellation comes after it."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


def remove_stale() -> None:
    """Remove temporary histories of this user whose process was killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            if folder.stat().st_uid != os.getuid() or time.time() - folder.stat().st_mtime < 60:
                continue
            HistoryStore(folder).close()
        except (HistoryError, OSError):
            continue
        remove_history(folder)
