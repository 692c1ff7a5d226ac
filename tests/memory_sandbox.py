"""A sandbox whose files are a dictionary: enough of the contract for the editor, nothing is ever run."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_sandbox_nb.agent.artifacts import AnswerFiles, Collector
from llm_sandbox_nb.agent.checkpoints import Checkpoints
from llm_sandbox_nb.agent.prompts import PromptConfig
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.run_options import RunOptions
from llm_sandbox_nb.agent.run_spec import RunSpec
from llm_sandbox_nb.agent.workspace import Workspace
from llm_sandbox_nb.model.contract import Model
from llm_sandbox_nb.sandbox.contract import (
    Changes,
    CommandResult,
    Directories,
    FileEntry,
    History,
    OutputCallback,
    Protection,
    Restored,
    Sandbox,
    TransferKind,
)
from llm_sandbox_nb.sandbox.errors import HistoryError, OutputLimitExceededError
from llm_sandbox_nb.sandbox.limits import DEFAULT_COMMAND_TIMEOUT, OUTPUT_LIMIT


class MemorySandbox(Sandbox):
    def __init__(self, files: Mapping[str, bytes] | None = None, directories: Sequence[str] = ()) -> None:
        self.id = "memory"
        self.directories = Directories()
        self.protection = Protection(
            "process", "standard", "nobody", (), False, "", "none", False, None, None, None
        )
        self.files = dict(files or {})
        self.folders = {"/testbed", *directories}
        self.writes = 0

    def _path(self, path: str) -> str:
        if "\x00" in path:
            raise ValueError("embedded null byte")
        return posixpath.normpath(posixpath.join(self.directories.root, path))

    def _is_folder(self, path: str) -> bool:
        return path in self.folders or any(name.startswith(f"{path}/") for name in self.files)

    async def read_file(self, path: str, *, limit: int | None = None, at: str | None = None) -> bytes:
        path = self._path(path)
        if self._is_folder(path):
            raise IsADirectoryError(path)
        if path not in self.files:
            raise FileNotFoundError(path)
        if limit is not None and len(self.files[path]) > limit:
            raise OutputLimitExceededError(path)
        return self.files[path]

    async def write_file(self, path: str, data: bytes, *, exclusive: bool = False) -> None:
        path = self._path(path)
        if exclusive and (path in self.files or self._is_folder(path)):
            raise FileExistsError(path)
        if self._is_folder(path):
            raise IsADirectoryError(path)
        if posixpath.dirname(path) in self.files:
            raise NotADirectoryError(path)
        self.writes += 1
        self.files[path] = data

    async def list_files(
        self, path: str, *, depth: int = 1, limit: int = 10_000, at: str | None = None
    ) -> list[FileEntry]:
        path = self._path(path)
        if path in self.files:
            return [FileEntry(path, "file", len(self.files[path]), 0o644, 0.0)]
        if not self._is_folder(path):
            raise FileNotFoundError(path)
        found: dict[str, FileEntry] = {}
        for name in (*self.files, *self.folders):
            parts = posixpath.relpath(name, path).split("/")
            if not name.startswith(f"{path}/"):
                continue
            for level in range(1, min(depth, len(parts)) + 1):
                entry = posixpath.join(path, *parts[:level])
                kind = "file" if entry in self.files else "directory"
                found[entry] = FileEntry(entry, kind, len(self.files.get(entry, b"")), 0o644, 0.0)
        return [found[name] for name in sorted(found)][:limit]

    async def run(
        self,
        command: str,
        *,
        timeout: float | None = DEFAULT_COMMAND_TIMEOUT,
        on_output: OutputCallback | None = None,
        kill_background: bool = False,
        output_limit: int = OUTPUT_LIMIT,
    ) -> CommandResult:
        raise NotImplementedError

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = DEFAULT_COMMAND_TIMEOUT,
        on_output: OutputCallback | None = None,
        output_limit: int = OUTPUT_LIMIT,
    ) -> CommandResult:
        raise NotImplementedError

    async def interrupt(self) -> None:
        raise NotImplementedError

    async def upload(self, source: Path | str, target: str) -> list[str]:
        raise NotImplementedError

    async def download(
        self,
        source: str,
        target: Path | str,
        *,
        limit: int = 1024**3,
        kind: TransferKind | None = None,
        replace: bool = True,
    ) -> list[str]:
        raise NotImplementedError

    async def changes(self, a: str | None = None, b: str | None = None) -> Changes:
        return Changes()

    @property
    def history(self) -> History:
        raise HistoryError("A dictionary keeps no history.")

    async def keep_history(
        self, folder: Path | str, *, continue_from: Path | str | None = None, limit: int | None = None
    ) -> None:
        raise HistoryError("A dictionary keeps no history.")

    async def checkpoint(self, *, keep: Collection[str] = ()) -> str:
        raise HistoryError("A dictionary keeps no history.")

    async def restore(self, checkpoint: str) -> Restored:
        raise HistoryError("A dictionary keeps no history.")

    async def fork(self, checkpoint: str, *, history: Path | str | None = None) -> Sandbox:
        raise HistoryError("A dictionary keeps no history.")

    async def close(self) -> None:
        return


def spec_of(model: Model, **options: Any) -> RunSpec:
    return RunSpec("u", model, PromptConfig("s"), **options)


def workspace_of(
    box: Sandbox, recorder: Recorder, command_timeout: float = RunOptions.command_timeout
) -> asyncio.Future[Workspace]:
    """What a `Loop` waits for before its first call, and here need not: a sandbox that is set up."""
    workspace: asyncio.Future[Workspace] = asyncio.get_running_loop().create_future()
    collector = Collector(box, f"{box.directories.root}/output", recorder)
    options = RunOptions(command_timeout=command_timeout)
    workspace.set_result(
        Workspace(box, collector, Checkpoints(box, recorder), options, AnswerFiles(box, PromptConfig("s")))
    )
    return workspace
