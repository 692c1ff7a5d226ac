"""Folder of fetched models, and a cache of checksums."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.formatting import format_size
from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.local.loading_progress import Share, show
from llm_sandbox_nb.model.local.machine import free_disk
from llm_sandbox_nb.own_folder import expanded

FOLDER_VARIABLE = "LLM_SANDBOX_MODELS"
"""Environment variable that can name another folder for fetched models."""
_PIECE_BYTES = 1 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")


class FetchStoppedError(LLMSandboxError):
    """Error for a fetch that was stopped because all callers have stopped waiting."""


class Stop(threading.Event):
    """Event that is set when all callers have stopped waiting for a file."""

    def check(self) -> None:
        """Raise FetchStoppedError if the event is set."""
        if self.is_set():
            raise FetchStoppedError


def models_folder() -> Path:
    """Return the folder of fetched models: `$LLM_SANDBOX_MODELS`, or a folder in the user's cache folder."""
    if chosen := os.environ.get(FOLDER_VARIABLE):
        return expanded(chosen).absolute()
    import platformdirs

    return platformdirs.user_cache_path("llm-sandbox-nb") / "models"


def check_disk(folder: Path, needed: int, name: str, variable: str = FOLDER_VARIABLE) -> None:
    """Raise ModelError if the disk of `folder` has less than `needed` free bytes for the model `name`.

    `variable` is the environment variable with which a user chooses the folder.
    """
    try:
        free = free_disk(folder)
    except OSError as error:
        raise _not_usable(folder, error) from error
    if free < needed:
        raise ModelError(
            f"{name} needs {format_size(needed)} of disk to be fetched, but {folder} has only {format_size(free)}: "
            f"free disk space, or name a folder on another disk in {variable}.",
            kind="setup",
        )


@contextlib.contextmanager
def only_here(target: Path, stop: Stop) -> Iterator[None]:
    """Lock a file against other threads and processes that fetch the same file.

    Raises:
        ModelError: if the folder cannot be written.
        FetchStoppedError: if `stop` is set.
    """
    import filelock

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(target.with_name(f"{target.name}.lock"))
        while True:
            stop.check()
            try:
                lock.acquire(timeout=0.2)
                break
            except filelock.Timeout:
                show(f"Waiting: another program fetches {target.name}")
    except OSError as error:
        raise _not_usable(target.parent, error) from error
    try:
        yield
    finally:
        lock.release()


def fetch_once(
    target: Path, name: str, size: int, sha256: str, write: Callable[[Path, Stop], None], stop: Stop
) -> None:
    """Call `write` to fill a file next to `target`. If its size and checksum are correct, move this file to `target`.

    If two programs fetch the same file, the second one waits for the first. After an interruption, the next call of
    this function gives the incomplete file to `write` again. If `target` has the right checksum, do nothing.

    Raises:
        ModelError: if the file cannot be fetched or written, or has a wrong size or checksum. A wrong file is removed.
        FetchStoppedError: if `stop` is set.
    """
    with only_here(target, stop):
        if target.is_file() and known_sum(target, name, stop) == sha256:
            return
        partial = target.with_name(f"{target.name}.partial")
        try:
            write(partial, stop)
            found = computed_sum(partial, f"Checking {name}", stop)
            if found != sha256 or partial.stat().st_size != size:
                partial.unlink()
                note_about(partial).unlink(missing_ok=True)
                raise another_file(name, found, sha256)
            partial.replace(target)
            note_about(partial).unlink(missing_ok=True)
        except OSError as error:
            raise _not_usable(target.parent, error) from error
    _remember(target, sha256)


def note_about(partial: Path) -> Path:
    """Return the path of a note about an incomplete file, in which `write` can store its progress for the next call.

    `fetch_once` removes the note when the file is complete.
    """
    return partial.with_name(f"{partial.name}.json")


def another_file(name: str, found: str, expected: str) -> ModelError:
    """Return the error for a fetched file that has the SHA-256 `found` instead of `expected`, and was removed."""
    return ModelError(
        f"The file fetched for {name} is another file than expected (sha256 {found[:16]}... instead of "
        f"{expected[:16]}...) and was removed: try again; if this happens again, the source offers another file.",
        kind="setup",
    )


def known_sum(path: Path, name: str, stop: Stop) -> str:
    """Return the SHA-256 of a file. The SHA-256 is cached until the file's size, modification time or inode changes."""
    note = _note_of(path)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        kept = json.loads(note.read_text("utf-8"))
        if kept.get("file") == _identity(path) and _SHA256.fullmatch(str(kept.get("sha256"))):
            return str(kept["sha256"])
    try:
        found = computed_sum(path, f"Checking {name}", stop)
    except OSError as error:
        raise ModelError(
            f"The model's file {path} cannot be read ({error.strerror or error}): check its permissions.",
            kind="setup",
        ) from error
    _remember(path, found)
    return found


def computed_sum(path: Path, what: str, stop: Stop) -> str:
    """Compute the SHA-256 of a file, and show the progress."""
    digest, done, share = hashlib.sha256(), 0, Share(what, path.stat().st_size)
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            stop.check()
            digest.update(piece)
            share.reached(done := done + len(piece))
    return digest.hexdigest()


def _remember(path: Path, sha256: str) -> None:
    note = _note_of(path)
    with contextlib.suppress(OSError):  # without the cache, the checksum is computed again next time
        note.parent.mkdir(parents=True, exist_ok=True)
        partial = note.with_name(f"{note.name}.{secrets.token_hex(4)}")
        partial.write_text(json.dumps({"file": _identity(path), "sha256": sha256}), "utf-8")
        partial.replace(note)


def _note_of(path: Path) -> Path:
    return models_folder() / "checksums" / hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:32]


def _identity(path: Path) -> list[int]:
    info = path.stat()
    return [info.st_size, info.st_mtime_ns, info.st_ino]


def _not_usable(folder: Path, error: OSError) -> ModelError:
    return ModelError(
        f"Models cannot be kept in {folder} ({error.strerror or error}): name another folder in {FOLDER_VARIABLE}.",
        kind="setup",
    )
