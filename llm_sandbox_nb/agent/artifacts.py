"""Results of a run: the answer file, and the artifacts, which are copied from the output folder to `files/`."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import mimetypes
import posixpath
import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from llm_sandbox_nb.agent.blank_files import blank
from llm_sandbox_nb.agent.prompts import PromptConfig
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.encoded_text import text_of
from llm_sandbox_nb.formatting import clip, format_size
from llm_sandbox_nb.own_folder import NotOwnFileError, check_folder, remove_file
from llm_sandbox_nb.sandbox.contract import FileChange, FileEntry, Sandbox
from llm_sandbox_nb.sandbox.errors import (
    HistoryError,
    OutputLimitExceededError,
    SandboxLostError,
    TransferError,
)
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.run_folder import FILES
from llm_sandbox_nb.trajectory.trajectory import Trajectory

_MORE_TYPES = {
    ".parquet": "application/vnd.apache.parquet",
    ".md": "text/markdown",
    ".mid": "audio/midi",
    ".midi": "audio/midi",
    ".webp": "image/webp",
    ".geojson": "application/geo+json",
    ".ipynb": "application/x-ipynb+json",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}


@dataclass(frozen=True)
class CollectLimits:
    """Limits on the files that are copied from an output folder."""

    files: int = 2_000
    file_bytes: int = 512 * 1024**2
    all_bytes: int = 2 * 1024**3
    folders: int = 32
    """Maximum number of folders between a file and the output folder."""
    listed: int = 50_000
    """Maximum number of files and folders that are listed in the output folder."""
    reasons: int = 1_000
    """Maximum number of recorded messages about files that were not copied."""


MAX_ANSWER_BYTES = 1024**2
_MAX_REASON_CHARACTERS = 5000
"""Maximum characters of a recorded message about a file. A sandbox may report paths of many megabytes."""

State = tuple[int, float]
"""Size in bytes and modification time of a file."""


@dataclass
class Collector:
    """Copier that keeps `files/` in the run's folder equal to the output folder. Only changed files are copied."""

    box: Sandbox
    output_dir: str
    recorder: Recorder
    skipped_dirs: tuple[str, ...] = ()
    """Folders inside the output folder whose files are not collected, for example the input folder."""
    limits: CollectLimits = field(default_factory=CollectLimits)
    _seen: dict[str, State] = field(default_factory=dict)
    _sizes: dict[str, int] = field(default_factory=dict)
    _reported: set[str] = field(default_factory=set)
    _task: asyncio.Task[None] | None = None

    async def remember_present(self, own: Collection[str] = ()) -> None:
        """Remember the files that exist before the run. Such a file becomes a result of the run only if it changes.

        `own` has the names of files that an earlier session of the run has collected. These files are results even
        without a change. The names are written as in the journal, where bytes that are not valid text are replaced.
        """
        listed, _ = await self._list()
        entries = [entry for entry in listed if entry.kind != "directory"]
        names = {entry.path: ev.clean_text(self._relative(entry.path) or "") for entry in entries}
        gone = set(own).difference(names.values())
        mine = [path for path, name in names.items() if name in own]
        self._sizes |= dict.fromkeys([*mine, *(posixpath.join(self.output_dir, name) for name in gone)], 0)
        self._seen = {
            entry.path: (entry.size, entry.mtime) for entry in entries if entry.path not in self._sizes
        }

    def take_again(self) -> None:
        """Let `collect_all` copy and record all results again. A rewind has left the branch that recorded them."""
        self._seen = {path: state for path, state in self._seen.items() if path not in self._sizes}

    async def start(self, changes: Iterable[FileChange], step: int) -> None:
        """Start a task that collects the files that a call changed. The loop continues meanwhile.

        `settle` waits until the task has ended.
        """
        await self.settle()
        self._task = asyncio.create_task(self.collect_changed(changes, step))

    async def settle(self) -> None:
        """Wait until the started collection is complete. Raise the exception of a failed collection."""
        task, self._task = self._task, None
        if task is not None:
            await task

    async def abandon(self) -> None:
        """Stop the started collection, and ignore its exceptions."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def collect_changed(self, changes: Iterable[FileChange], step: int) -> None:
        """Collect the files in the output folder that a step changed."""
        wanted = [change for change in changes if self._relative(change.path) is not None]
        for change in wanted:
            if change.kind == "deleted":
                self._forget(change.path, step)
        present = [change.path for change in wanted if change.kind != "deleted"]
        for entry in await self._look_at(present):
            await self._take(entry, step)

    async def collect_all(self) -> None:
        """Collect all new and changed files, and remove the copies of deleted files."""
        await self.settle()
        listed, complete = await self._list()
        here = {entry.path for entry in listed}
        if complete:
            for path in [path for path in self._sizes if path not in here]:
                self._forget(path, None)
        else:
            self._skip(
                f"Only {self.limits.listed} files and folders are looked at; the others were left out."
            )
        for entry in self._files(listed):
            if self._seen.get(entry.path) != (entry.size, entry.mtime):
                await self._take(entry, None)

    async def _list(self) -> tuple[list[FileEntry], bool]:
        """Return the entries that may be results, and True if the output folder has no others."""
        try:
            entries = await self.box.list_files(
                self.output_dir, depth=self.limits.folders + 1, limit=self.limits.listed
            )
        except (FileNotFoundError, PermissionError):
            return [], True
        wanted = [entry for entry in entries if self._relative(entry.path) is not None]
        return wanted, len(entries) < self.limits.listed

    def _files(self, entries: Iterable[FileEntry]) -> list[FileEntry]:
        """Return the entries that are not folders. Record each folder whose content is too deep to be collected."""
        files = []
        for entry in entries:
            name = self._relative(entry.path) or ""
            if entry.kind != "directory":
                files.append(entry)
            elif self._too_deep(f"{name}/file"):
                self._skip(
                    f"The content of {name} was not taken: more than {self.limits.folders} folders deep."
                )
        return files

    def _too_deep(self, name: str) -> bool:
        return name.count("/") > self.limits.folders

    async def _look_at(self, paths: list[str]) -> list[FileEntry]:
        if len(paths) > 20:
            wanted = set(paths)
            listed, _ = await self._list()
            return [entry for entry in self._files(listed) if entry.path in wanted]
        entries: list[FileEntry] = []
        for path in paths:
            try:
                entries += [entry for entry in await self.box.list_files(path, depth=1) if entry.path == path]
            except OSError:
                continue  # a background job has already removed the file
        return entries

    def _relative(self, path: str) -> str | None:
        """Return the path relative to the output folder. None for a file that is not collected."""
        path = posixpath.normpath(posixpath.join(self.box.directories.root, path))
        if any(path == folder or path.startswith(f"{folder}/") for folder in self.skipped_dirs):
            return None
        prefix = self.output_dir.rstrip("/") + "/"
        name = path.removeprefix(prefix)
        return name if path.startswith(prefix) and ".git" not in name.split("/") else None

    async def _take(self, entry: FileEntry, step: int | None) -> None:
        name = self._relative(entry.path)
        if name is None or (self._allowed(entry, name) and await self._copy(entry, name, step)):
            self._seen[entry.path] = (entry.size, entry.mtime)
        else:
            # An outdated copy must not be a result. `collect_all` tries the file again, as there may be room by then.
            self._forget(entry.path, step)

    async def _copy(self, entry: FileEntry, name: str, step: int | None) -> bool:
        """Copy a file to `files/`. Return False if it could not be copied."""
        target = self.recorder.folder / FILES / name
        try:
            await asyncio.to_thread(make_way, self.recorder.folder / FILES, target)
            left_out = await self.box.download(
                entry.path, target.parent, limit=min(self._room(entry), self.limits.file_bytes), kind="file"
            )
        except SandboxLostError:
            raise
        except (OSError, TransferError) as error:
            left_out = [f"{name} was not taken: {_why(error)}."]
        for reason in left_out:
            self._skip(reason)
        if left_out or not target.is_file() or target.is_symlink():
            return False
        self._sizes[entry.path] = target.stat().st_size
        self.recorder.emit(await asyncio.to_thread(saved_file, name, target, step))
        return True

    def _room(self, entry: FileEntry) -> int:
        """Return how many bytes the limit on all files leaves for a file. An old copy of the file does not count."""
        return self.limits.all_bytes - sum(self._sizes.values()) + self._sizes.get(entry.path, 0)

    def _allowed(self, entry: FileEntry, name: str) -> bool:
        if entry.kind != "file":
            self._skip(f"{name} was not taken: it is a {'link' if entry.kind == 'link' else 'special file'}.")
        elif self._too_deep(name):
            self._skip(f"{name} was not taken: it lies more than {self.limits.folders} folders deep.")
        elif entry.size > self.limits.file_bytes:
            self._skip(f"{name} was not taken: it is larger than {format_size(self.limits.file_bytes)}.")
        elif entry.path not in self._sizes and len(self._sizes) >= self.limits.files:
            self._skip(f"No more than {self.limits.files} files are taken; the others were left out.")
        elif entry.size > self._room(entry):
            self._skip(
                f"{name} was not taken: all files together are over {format_size(self.limits.all_bytes)}."
            )
        else:
            return True
        return False

    def _skip(self, reason: str) -> None:
        reason = clip(ev.clean_text(reason), _MAX_REASON_CHARACTERS)
        if reason in self._reported or len(self._reported) > self.limits.reasons:
            return
        self._reported.add(reason)
        if len(self._reported) > self.limits.reasons:
            reason = "More files were not taken."
        self.recorder.emit(ev.ArtifactSkipped(reason=reason))

    def _forget(self, path: str, step: int | None) -> None:
        self._seen.pop(path, None)
        name = self._relative(path)
        if self._sizes.pop(path, None) is None or name is None:
            return
        # If a folder has become a file, or a file has become a folder, `make_way` has already removed the old copy.
        with suppress(NotOwnFileError, IsADirectoryError, FileNotFoundError):
            remove_file(self.recorder.folder, f"{FILES}/{name}")
        self.recorder.emit(ev.ArtifactRemoved(step=step, path=ev.clean_text(name)))


def _why(error: OSError | TransferError) -> str:
    if isinstance(error, TransferError):
        return str(error).rstrip(".")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):  # the disk of this machine, not of the sandbox
        return "this machine's disk is full"
    return (error.strerror or str(error)).lower()


def saved_file(name: str, target: Path, step: int | None) -> ev.ArtifactSaved:
    """Return the event that records a collected file."""
    with target.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    suffix = posixpath.splitext(name)[1].lower()
    return ev.ArtifactSaved(
        step=step,
        path=ev.clean_text(name),
        mime=_MORE_TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream",
        size=target.stat().st_size,
        sha256=digest,
        blank=blank(target),
    )


def collected_names(trajectory: Trajectory) -> set[str]:
    """Return the names of all files that a run has collected on any branch."""
    return {event.path for event in trajectory.events if isinstance(event, ev.ArtifactSaved)}


def make_way(files: Path, target: Path) -> None:
    """Make the folder of `target`. Remove an older file or folder whose path conflicts with `target`.

    Raises:
        NotOwnFileError: if `files` is a link. A link may lead to a folder that does not belong to the run.
    """
    with suppress(FileExistsError):
        files.mkdir()
    check_folder(files)
    folder = files
    for part in target.relative_to(files).parts[:-1]:
        folder = folder / part
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            folder.unlink()
        folder.mkdir(exist_ok=True)
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)


@dataclass
class AnswerFiles:
    """Possible answer files: the paths that the prompts name, and the sandbox's default answer file."""

    box: Sandbox
    prompts: PromptConfig
    _before: dict[str, State] = field(default_factory=dict)

    @property
    def paths(self) -> list[str]:
        """The paths, in the order in which they are searched."""
        return list(dict.fromkeys([*self.prompts.answer_files, self.box.directories.answer]))

    async def remember_present(self, checkpoint: str | None = None) -> None:
        """Remember the answer files of earlier runs in this sandbox. `read` ignores these files unless they change.

        For a resumed run, `checkpoint` has the files as they were before the run worked on its answer. Then only answer
        files that have not changed since `checkpoint` are remembered. The others are results of the run itself.
        """
        for path in self.paths:
            state = await self._state(path)
            if state and (checkpoint is None or _same(state, await self._state(path, checkpoint))):
                self._before[path] = state

    async def read(self) -> str | None:
        """Return the stripped content of the first answer file that this run wrote. None if there is no such file."""
        for path in self.paths:
            state = await self._state(path)
            if state is None or state == self._before.get(path):
                continue
            try:
                data = await self.box.read_file(path, limit=MAX_ANSWER_BYTES)
            except (OSError, OutputLimitExceededError):
                continue
            return text_of(data).strip()
        return None

    async def _state(self, path: str, checkpoint: str | None = None) -> State | None:
        try:
            entries = await self.box.list_files(path, at=checkpoint)
        except (OSError, HistoryError):
            return None
        return next(((entry.size, entry.mtime) for entry in entries if entry.path == path), None)


def _same(now: State, before: State | None) -> bool:
    """Return True if two states of a file are equal. Times may differ slightly, because a checkpoint rounds them."""
    return before is not None and now[0] == before[0] and abs(now[1] - before[1]) < 1e-6
