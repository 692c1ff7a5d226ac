"""Contract of a store of checkpoints. `stores.py` makes and opens stores; the usual one is `pack_store.PackStore`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO, Protocol

from llm_sandbox_nb.sandbox.contract import HISTORY_LIMIT, Checkpoint
from llm_sandbox_nb.sandbox.errors import HistoryError, OutputLimitExceededError
from llm_sandbox_nb.sandbox.history.manifest import Chunk, Entry, Manifest


class ContentWriter(Protocol):
    """Writer for the content of one checkpoint.

    The caller passes the writer to `commit` or `learn_image` of the same store, or calls `discard`. A writer without
    content needs neither.
    """

    size: int
    """Number of bytes that were written."""

    def add(self, *parts: bytes | memoryview, known: Callable[[bytes], object] = lambda _: None) -> bytes:
        """Write a piece, which is given in parts, unless this writer has the piece already.

        The piece is not written either if `known` returns a value other than None for its digest. Return the digest of
        the piece, its SHA-256. Raises HistoryNotWrittenError.
        """

    def length(self, digest: bytes) -> int | None:
        """Return the number of bytes of a piece that was written. None if the piece was not written."""

    def discard(self) -> None:
        """Remove everything that was written."""


class CheckpointStore(Protocol):
    """Checkpoints in one folder: manifests, states of the shell, and pieces of content by their digests.

    A new kind of store is a subclass, and gets a row in `stores.STORES`. It promises:

    - Order: `checkpoints` lists checkpoints in the order of their commits. A checkpoint comes after its parent.
    - Crash safety: if the process is killed at any instant, the folder can be opened again. It then has every
      checkpoint whose `commit` has returned, and no checkpoint without its content.
    - Concurrency: several threads may use a store. Only one process at a time may write, and others may read
      meanwhile. A reader sees each checkpoint after its `commit`.
    - Distrust: the folder may come from a stranger. So links are not followed, and content that does not match its
      digest is damaged.
    - Errors: each method raises HistoryError if a checkpoint or a piece of content is missing, dropped or damaged, and
      each method that writes raises HistoryNotWrittenError if this machine cannot write. A failed call stores nothing.

    Callers do not modify what a store returns.
    """

    folder: Path
    limit: int
    """Maximum bytes of content. Callers may change the limit. The next `commit` obeys the new limit."""

    def __init__(self, folder: Path, *, limit: int = HISTORY_LIMIT, readonly: bool = False) -> None:
        """Open the store in `folder`. Make the folder and the store if they are missing and `readonly` is False.

        Raises:
            HistoryError: if the folder is in use or holds other files, or if it holds no store and `readonly` is True.
        """

    @staticmethod
    def holds(folder: Path) -> bool:
        """Return True if a folder holds a store of this kind. This check must be quick, and must not follow links."""

    @staticmethod
    def is_in_use(folder: Path) -> bool:
        """Return True if a process has a store of this kind open for writing in `folder`."""

    def close(self) -> None:
        """Release the folder. A second call does nothing."""

    # -- reading -------------------------------------------------------------------------------------------

    def checkpoints(self) -> list[Checkpoint]:
        """Return all checkpoints, oldest first."""

    def checkpoint(self, id: str) -> Checkpoint:
        """Return a checkpoint."""

    def manifest(self, id: str) -> Manifest:
        """Return all entries at a checkpoint."""

    def shell(self, id: str) -> bytes | None:
        """Return the opaque state of the shell at a checkpoint. None if the state was not stored."""

    def length(self, digest: bytes) -> int | None:
        """Return the number of bytes of a piece of content. None if the piece is not stored."""

    def content(self, digest: bytes) -> bytes:
        """Return a piece of content."""

    @property
    def size(self) -> int:
        """Bytes of stored content. Each piece counts once."""

    @property
    def dropped(self) -> int:
        """Number of checkpoints that were dropped to stay within the limit."""

    def sharing(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which the forks of this history may share pieces of content in memory."""
        return contextlib.nullcontext()

    def read(self, entry: Entry, limit: int) -> bytes:
        """Return the content of a file. Raises OutputLimitExceededError if it has more than `limit` bytes."""
        if entry.chunks is None:
            raise HistoryError("The content of this file was not kept.")
        if entry.size > limit:
            raise OutputLimitExceededError(f"The file is larger than the limit of {limit} bytes.")
        data = bytearray(entry.size)
        for chunk in entry.chunks:
            data[chunk.offset : chunk.offset + chunk.length] = self.piece(chunk)
        return bytes(data)

    def piece(self, chunk: Chunk) -> bytes:
        """Return a piece of a file. Raise HistoryError if the piece has a wrong length."""
        data = self.content(chunk.digest)
        if len(data) != chunk.length:
            raise HistoryError(
                f"The history in {self.folder} is damaged: a piece of a file has another length."
            )
        return data

    def write(self, entry: Entry, file: BinaryIO) -> None:
        """Write the content of `entry` into the empty file `file`. Holes stay holes."""
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
            changed: the differences from the entries of the checkpoint's parent, as from `manifest.delta`.
            pinned: ids of checkpoints that are not dropped. The new checkpoint is not dropped either.
            manifest: all entries, which may be kept in memory and must not be modified any more.
        """

    def image_entry(self, path: str) -> tuple[Entry | None, bool] | None:
        """Return the pair that `learn_image` has stored at a path. None if nothing was stored."""

    def image_names(self, folder: str) -> list[str]:
        """Return the stored paths directly in a folder, in any order, without those where the image has nothing."""

    def learn_image(self, entries: Mapping[str, tuple[Entry | None, bool]], content: ContentWriter) -> None:
        """Store entries of the image and their content.

        Each path has a pair: its entry (None if the image has nothing there), and True if the path is a folder whose
        names are all stored. A later entry replaces an earlier entry, but a stored True stays.
        """

    def continue_in(self, folder: Path) -> None:
        """Make a copy of this store in `folder`. Each store stays complete if the other one is changed or removed.

        If the process is killed meanwhile, `holds` is False for `folder`, and a second call succeeds. Raises
        HistoryError if the folder holds a history already.
        """

    def continued_in(self, folder: Path) -> CheckpointStore:
        """Call `continue_in` and open the copy."""
        self.continue_in(folder)
        return type(self)(folder, limit=self.limit)
