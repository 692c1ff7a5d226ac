"""Artifacts: what the model leaves in the output folder is copied, safely, to the run's `files/` folder."""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
import posixpath
import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.sandbox.contract import FileChange, FileEntry, Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxLostError, TransferError
from llm_sandbox_nb.trajectory import events as ev

FILES_FOLDER = "files"
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
    """What is taken of an output folder."""

    files: int = 2_000
    file_bytes: int = 512 * 1024**2
    all_bytes: int = 2 * 1024**3


State = tuple[int, float]
"""Size and modification time: what tells that a file is another one than before."""


@dataclass
class Collector:
    """Keeps `files/` in step with the output folder. Work is in proportion to what changed."""

    box: Sandbox
    output_dir: str
    recorder: Recorder
    skipped_dirs: tuple[str, ...] = ()
    """Folders below the output folder that hold no results: the input, when the output is the whole tree."""
    limits: CollectLimits = field(default_factory=CollectLimits)
    _seen: dict[str, State] = field(default_factory=dict)
    _sizes: dict[str, int] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)
    _task: asyncio.Task[None] | None = None

    async def take_stock(self, own: Collection[str] = ()) -> None:
        """Remember what is there before the run, so that only what the run makes is taken, and what is its `own`.

        `own` are names as the journal has them, which may have lost what is no text.
        """
        entries = await self._list()
        told = {entry.path: ev.clean_text(self._relative(entry.path) or "") for entry in entries}
        gone = set(own).difference(told.values())
        mine = [path for path, name in told.items() if name in own]
        self._sizes |= dict.fromkeys([*mine, *(posixpath.join(self.output_dir, name) for name in gone)], 0)
        self._seen = {
            entry.path: (entry.size, entry.mtime) for entry in entries if entry.path not in self._sizes
        }

    async def start(self, changes: Iterable[FileChange], step: int) -> None:
        """Begin to take what a call changed, while the loop goes on; `settle` waits for it."""
        await self.settle()
        self._task = asyncio.create_task(self.collect_changed(changes, step))

    async def settle(self) -> None:
        """Wait until nothing is being taken. Raises what the taking raised."""
        task, self._task = self._task, None
        if task is not None:
            await task

    async def abandon(self) -> None:
        """Stop taking; whatever it raises no longer matters."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def collect_changed(self, changes: Iterable[FileChange], step: int) -> None:
        """Take the changed files of a step that lie in the output folder."""
        wanted = [change for change in changes if self._relative(change.path) is not None]
        for change in wanted:
            if change.kind == "deleted":
                self._forget(change.path, step)
        present = [change.path for change in wanted if change.kind != "deleted"]
        for entry in await self._look_at(present):
            await self._take(entry, step)

    async def collect_all(self) -> None:
        """Take everything that is there now and was not taken yet; drop what is gone."""
        await self.settle()
        entries = await self._list()
        here = {entry.path for entry in entries}
        for path in [path for path in self._sizes if path not in here]:
            self._forget(path, None)
        for entry in entries:
            if self._seen.get(entry.path) != (entry.size, entry.mtime):
                await self._take(entry, None)

    async def _list(self) -> list[FileEntry]:
        try:
            entries = await self.box.list_files(self.output_dir, depth=32, limit=50_000)
        except (FileNotFoundError, PermissionError):
            return []
        return [
            entry for entry in entries if entry.kind != "directory" and self._relative(entry.path) is not None
        ]

    async def _look_at(self, paths: list[str]) -> list[FileEntry]:
        if len(paths) > 20:
            wanted = set(paths)
            return [entry for entry in await self._list() if entry.path in wanted]
        entries: list[FileEntry] = []
        for path in paths:
            try:
                entries += [entry for entry in await self.box.list_files(path, depth=1) if entry.path == path]
            except OSError:
                continue  # gone again: a job in the background removed it
        return entries

    def _relative(self, path: str) -> str | None:
        """The path below the output folder, None for what is not ours to take."""
        path = posixpath.normpath(posixpath.join(self.box.directories.root, path))
        if any(path == folder or path.startswith(f"{folder}/") for folder in self.skipped_dirs):
            return None
        prefix = self.output_dir.rstrip("/") + "/"
        name = path.removeprefix(prefix)
        return name if path.startswith(prefix) and ".git" not in name.split("/") else None

    async def _take(self, entry: FileEntry, step: int | None) -> None:
        name = self._relative(entry.path)
        if name is not None and self._allowed(entry, name):
            await self._copy(entry, name, step)
        self._seen[entry.path] = (entry.size, entry.mtime)

    async def _copy(self, entry: FileEntry, name: str, step: int | None) -> None:
        target = self.recorder.folder / FILES_FOLDER / name
        room = self.limits.all_bytes - sum(self._sizes.values()) + self._sizes.get(entry.path, 0)
        try:
            await asyncio.to_thread(make_way, self.recorder.folder / FILES_FOLDER, target)
            left_out = await self.box.download(
                entry.path, target.parent, limit=min(room, self.limits.file_bytes)
            )
        except SandboxLostError:
            raise
        except (OSError, TransferError) as error:
            left_out = [f"{name} was not taken: {error}."]
        for reason in left_out:
            self._skip(reason)
        if not left_out and target.is_file() and not target.is_symlink():
            self._sizes[entry.path] = target.stat().st_size
            self.recorder.emit(await asyncio.to_thread(saved_file, name, target, step))

    def _allowed(self, entry: FileEntry, name: str) -> bool:
        if entry.kind != "file":
            self._skip(f"{name} was not taken: it is a {'link' if entry.kind == 'link' else 'special file'}.")
        elif entry.size > self.limits.file_bytes:
            self._skip(f"{name} was not taken: it is larger than {self.limits.file_bytes // 1024**2} MB.")
        elif entry.path not in self._sizes and len(self._sizes) >= self.limits.files:
            self._skip(f"No more than {self.limits.files} files are taken; the others were left out.")
        elif sum(self._sizes.values()) + entry.size > self.limits.all_bytes:
            self._skip(
                f"{name} was not taken: all files together are over {self.limits.all_bytes // 1024**2} MB."
            )
        else:
            return True
        return False

    def _skip(self, reason: str) -> None:
        reason = ev.clean_text(reason)
        if reason not in self._told:
            self._told.add(reason)
            self.recorder.emit(ev.ArtifactSkipped(reason=reason))

    def _forget(self, path: str, step: int | None) -> None:
        self._seen.pop(path, None)
        name = self._relative(path)
        if self._sizes.pop(path, None) is None or name is None:
            return
        # Where a folder has become a file, or the reverse, the copy of before went with the change.
        with suppress(NotADirectoryError, IsADirectoryError, FileNotFoundError):
            (self.recorder.folder / FILES_FOLDER / name).unlink()
        self.recorder.emit(ev.ArtifactRemoved(step=step, path=ev.clean_text(name)))


def saved_file(name: str, target: Path, step: int | None) -> ev.ArtifactSaved:
    """What the journal says of a file that was taken."""
    return ev.ArtifactSaved(
        step=step,
        path=ev.clean_text(name),
        mime=mime_of(name),
        size=target.stat().st_size,
        sha256=_digest(target),
    )


def mime_of(name: str) -> str:
    """The media type that a file's name tells."""
    suffix = posixpath.splitext(name)[1].lower()
    return _MORE_TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"


def make_way(files: Path, target: Path) -> None:
    """Make the folder of `target`; an older copy that is in the way, file or folder, goes."""
    files.mkdir(exist_ok=True)
    folder = files
    for part in target.relative_to(files).parts[:-1]:
        folder = folder / part
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            folder.unlink()
        folder.mkdir(exist_ok=True)
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
