"""Contract of a store of checkpoints. `stores.py` makes and opens stores, and `pack_store.PackStore` is the usual kind.

A store keeps the content of files in pieces. The digest of a piece, its SHA-256, is its name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO, Protocol

from llm_sandbox_nb.sandbox.contract import Checkpoint
from llm_sandbox_nb.sandbox.errors import HistoryError, OutputLimitExceededError
from llm_sandbox_nb.sandbox.history.manifest import Chunk, Entry, Manifest
from llm_sandbox_nb.sandbox.limits import HISTORY_LIMIT


class ContentWriter(Protocol):
    """Writer for the new content of one checkpoint.

    At the end, the caller passes the writer to `commit` or `learn_image` of the same store, or calls `discard`. If
    nothing was written, the caller need not do so.
    """

    size: int
    """Number of bytes that were written."""

    def add(self, *parts: bytes | memoryview, known: Callable[[bytes], object] = lambda _: None) -> bytes:
        """Write a piece, whose bytes are the joined `parts`. Return the digest of the piece.

        The piece is not written if this writer has written it before, or if `known`, called with the digest, returns a
        value other than None. Raises HistoryNotWrittenError.
        """

    def length(self, digest: bytes) -> int | None:
        """Return the number of bytes of a piece that this writer has written. None for any other piece."""

    def discard(self) -> None:
        """Remove everything that was written."""


class CheckpointStore(Protocol):
    """Checkpoints in one folder: their manifests, states of the shell, and pieces of content.

    A manifest has an entry for each path; see `manifest.py`. A new kind of store is a subclass of this class, and gets
    a row in `stores.STORES`. A store promises:

    - Order: `checkpoints` lists checkpoints in the order of their commits. A checkpoint comes after its parent.
    - Crash safety: if the process is killed at any instant, the folder can be opened again. The store then has every
      checkpoint whose `commit` has returned, and no checkpoint without its content.
    - Concurrency: several threads may use a store. Only one process at a time may write, and others may read
      meanwhile. A reader sees each checkpoint after its `commit`.
    - Distrust: the folder may come from a stranger. So a store follows no links. A piece of content that does not match
      its digest counts as damaged.
    - Errors: each method raises HistoryError if a checkpoint or a piece of content is missing, dropped or damaged. Each
      method that writes raises HistoryNotWrittenError if this machine cannot write. A failed call stores nothing.

    Callers must not modify objects that a store returns.
    """

    folder: Path
    limit: int
    """Maximum bytes of content. Callers may change this attribute, and the next `commit` uses the new value."""

    def __init__(self, folder: Path, *, limit: int = HISTORY_LIMIT, readonly: bool = False) -> None:
        """Open the store in `folder`. Make the folder and the store if they are missing and `readonly` is False.

        Raises:
            HistoryError: if another process writes to the folder, or the folder is a link or has a damaged store. With
                `readonly`, also if the folder has no store.
        """

    @staticmethod
    def holds(folder: Path) -> bool:
        """Return True if a folder has a store of this kind. The check must be quick, and must not follow links."""

    @staticmethod
    def is_in_use(folder: Path) -> bool:
        """Return True if a process has opened a store of this kind in `folder` for writing."""

    def close(self) -> None:
        """Release the folder. A second call does nothing."""

    # -- reading -------------------------------------------------------------------------------------------

    def checkpoints(self) -> list[Checkpoint]:
        """Return all checkpoints, oldest first."""

    def checkpoint(self, id: str) -> Checkpoint:
        """Return a checkpoint."""

    def manifest(self, id: str) -> Manifest:
        """Return all entries of a checkpoint, by path."""

    def shell(self, id: str) -> bytes | None:
        """Return the state of the shell at a checkpoint, in the executor's format. None if it was not stored."""

    def length(self, digest: bytes) -> int | None:
        """Return the number of bytes of a piece of content. None if the piece is not stored."""

    def content(self, digest: bytes) -> bytes:
        """Return the piece of content with this digest."""

    @property
    def size(self) -> int:
        """Bytes of stored content. A piece that several files have counts once."""

    @property
    def dropped(self) -> int:
        """Number of checkpoints that were dropped to stay within the limit."""

    def sharing(self) -> contextlib.AbstractContextManager[object]:
        """Return a context for the restore of a fork. Forks that are restored at the same time may share pieces."""
        return contextlib.nullcontext()

    def read(self, entry: Entry, limit: int) -> bytes:
        """Return the content of the file `entry`. Raises OutputLimitExceededError if it has more than `limit` bytes."""
        if entry.chunks is None:
            raise HistoryError("The content of this file was not kept.")
        if entry.size > limit:
            raise OutputLimitExceededError(f"The file is larger than the limit of {limit} bytes.")
        data = bytearray(entry.size)
        for chunk in entry.chunks:
            data[chunk.offset : chunk.offset + chunk.length] = self.piece(chunk)
        return bytes(data)

    def piece(self, chunk: Chunk) -> bytes:
        """Return the content of `chunk`. Raise HistoryError if the stored piece has another length."""
        data = self.content(chunk.digest)
        if len(data) != chunk.length:
            raise HistoryError(
                f"The history in {self.folder} is damaged: a piece of a file has another length."
            )
        return data

    def write(self, entry: Entry, file: BinaryIO) -> None:
        """Write the content of `entry` into the empty file `file`. Ranges without content become holes."""
        if entry.chunks is None:
            raise HistoryError("The content of this file was not kept.")
        for chunk in entry.chunks:
            file.seek(chunk.offset)
            file.write(self.piece(chunk))
        file.truncate(entry.size)

    # -- writing -------------------------------------------------------------------------------------------

    def writer(self) -> ContentWriter:
        """Return a writer for the content of a new checkpoint."""

    def commit(
        self,
        checkpoint: Checkpoint,
        changed: Mapping[str, Entry | None],
        shell: bytes | None,
        content: ContentWriter,
        pinned: Iterable[str] = (),
        manifest: dict[str, Entry] | None = None,
    ) -> None:
        """Store a checkpoint. If the store's content then exceeds `limit` bytes, drop old checkpoints, oldest first.

        The children of a dropped checkpoint stay complete. Their new parent is the parent of the dropped checkpoint.

        Args:
            checkpoint: id, parent and facts of the new checkpoint.
            changed: differences from the manifest of the parent, in the form that `manifest.delta` returns.
            shell: state of the shell; None if it was not saved.
            content: writer with all content in `changed` that the store does not have yet.
            pinned: ids of checkpoints that must not be dropped. The new checkpoint is never dropped either.
            manifest: all entries of the new checkpoint, if known. The store may keep this object in memory, so the
                caller must not modify it any more.
        """

    def image_entry(self, path: str) -> tuple[Entry | None, bool] | None:
        """Return the pair that `learn_image` has stored for a path. None if no pair was stored."""

    def image_names(self, folder: str) -> list[str]:
        """Return the paths directly in `folder` for which an entry of the image is stored, in any order."""

    def learn_image(self, entries: Mapping[str, tuple[Entry | None, bool]], content: ContentWriter) -> None:
        """Store entries of the image and their content.

        `entries` has a pair for each path: the image's entry (None if the image has nothing at the path), and True if
        the path is a folder in which all names are stored. A later entry replaces an earlier entry at the same path. If
        one of the two pairs has True, the stored pair has True.
        """

    def continue_in(self, folder: Path) -> None:
        """Make a copy of this store in `folder`. Later changes of one store, even its removal, do not affect the other.

        If the process is killed meanwhile, `folder` has no store yet (`holds` is False), and a second call succeeds.
        Raises HistoryError if the folder already has a history.
        """

    def continued_in(self, folder: Path) -> CheckpointStore:
        """Call `continue_in`, and return the copy, open for writing."""
        self.continue_in(folder)
        return type(self)(folder, limit=self.limit)
