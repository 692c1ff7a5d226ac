"""The folders of runs: names of their files, and lookup of a run by name."""

from __future__ import annotations

import mimetypes
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.own_folder import expanded, file_names, is_file

JOURNAL = "journal.jsonl"
"""Name of the journal, which has an event as JSON in each line."""
BLOBS = "blobs"
"""Folder of the texts that are too long for a line of the journal. The files are named by the texts' SHA-256."""
FILES = "files"
"""Folder with copies of the files that the model left in the output folder."""
CHECK_FILES = "check"
"""Folder of the files that the check of the result gets, and the model does not."""
HISTORY = "history"
"""Folder with the files of the sandbox after each step."""
SEED = "trajectory.json"
"""Name of the record in the format of the LLM-in-Sandbox paper."""
RUNS = "sandbox-runs"
"""Default folder of runs."""
_MIN_ID_CHARACTERS = 4


class RunNotFoundError(LLMSandboxError, FileNotFoundError):
    """Raised if a name or path does not match exactly one run.

    For example, `Run.load("/no/such/run")` raises this error.
    """


class RunFile(os.PathLike[str]):
    """A file that the model left in the output folder. Any function that accepts paths accepts a `RunFile`."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path

    @property
    def mime(self) -> str:
        """The media type, guessed from the name."""
        return mimetypes.guess_type(self.name)[0] or "application/octet-stream"

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.path.stat().st_size

    def read_bytes(self) -> bytes:
        return self.path.read_bytes()

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.path.read_text(encoding)

    def __fspath__(self) -> str:
        return str(self.path)

    def __bytes__(self) -> bytes:
        return self.read_bytes()

    def __repr__(self) -> str:
        return f"<RunFile {self.name}: {self.size} bytes at {self.path}>"


def own_file(folder: Path, name: str) -> Path | None:
    """Return the path of the file `name` in `folder`, a subfolder of a run's folder. None if it is no regular file.

    A run may come from anyone, so names and links that lead to other files of this machine are refused.
    """
    inside = PurePath(os.path.normpath(name))
    if inside.is_absolute() or os.pardir in inside.parts or not is_file(folder.parent, folder.name / inside):
        return None
    return folder / inside


class RunFiles(Mapping[str, RunFile]):
    """The files of a run, by their paths below the output folder. Paths that lead out of this folder are refused."""

    def __init__(self, folder: Path, make: type[RunFile] = RunFile) -> None:
        self._folder = folder
        self._make = make

    def __getitem__(self, name: str) -> RunFile:
        path = own_file(self._folder, name)
        if path is None:
            raise KeyError(
                f"{name!r} is not among the files of this run: {', '.join(self) or 'it has no files'}"
            )
        return self._make(name, path)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(file_names(self._folder)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"<RunFiles {', '.join(self) or 'none'}>"


def run_folders(root: Path) -> list[Path]:
    """Return the run folders in `root` and in its subfolders, newest last. Links are not followed."""
    found = {run for folder in (root, *_subfolders(root)) for run in _subfolders(folder)}
    journals = [run / JOURNAL for run in sorted(found, key=lambda run: run.name)]
    return [journal.parent for journal in journals if journal.is_file() and not journal.is_symlink()]


def _subfolders(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            yield from [folder / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return


def record_of(path: Path) -> Path:
    """Return the record in the run folder `path`: the journal, or else the `trajectory.json` of the paper's package.

    If `path` is a file or a folder without a record, `path` itself is returned.
    """
    names = (JOURNAL, SEED) if path.is_dir() else ()
    return next((path / name for name in names if os.path.lexists(path / name)), path)


def short_ids(folders: Iterable[Path]) -> dict[Path, str]:
    """Map each run folder to the shortest unique beginning of the run's id, or to its name if no beginning is unique.

    The id is the last part of the folder's name.
    """
    folders = list(folders)
    parts = [_last_part(folder) for folder in folders]
    found = {}
    for folder, part in zip(folders, parts, strict=True):
        lengths = range(min(_MIN_ID_CHARACTERS, len(part)), len(part) + 1)
        unique = (part[:length] for length in lengths if sum(p.startswith(part[:length]) for p in parts) == 1)
        found[folder] = next(unique, folder.name)
    return found


def find_run_folder(name: str, root: Path, hint: str = "`llm-sandbox-nb runs`") -> Path:
    """Return the path `name` if it exists. Otherwise, return the folder of the run below `root` that `name` matches.

    `name` can be the name of a run, the beginning or end of its id, or any unique part of its name. If no run matches,
    the error message names `hint`, a command that lists the runs.

    Raises:
        RunNotFoundError: if no run or several runs match.
    """
    path = expanded(name)
    if path.exists():
        return path
    folders = run_folders(root)
    ways = (
        [folder for folder in folders if folder.name == name],
        [folder for folder in folders if _last_part(folder).startswith(name)],
        [folder for folder in folders if folder.name.endswith(name)],
        [folder for folder in folders if name in folder.name],
    )
    found: list[Path] = next(filter(None, ways), []) if name and "/" not in name else []
    if len(found) == 1:
        return found[0]
    if found:
        named = ", ".join(folder.name for folder in found[-3:])
        raise RunNotFoundError(f"{name!r} matches {len(found)} runs, such as {named}: write a longer part.")
    raise RunNotFoundError(f"There is no run {name!r} in {root}: {hint} lists the runs.")


def _last_part(folder: Path) -> str:
    return folder.name.rpartition("-")[2]


def notebook_folder_name(path: str) -> str:
    """Return the name of the folder for the runs of a notebook. `path` is the path of the notebook."""
    name = re.sub(r"[^\w.-]+", "-", PurePath(path).stem).strip("-.")
    return name[:80] or "notebook"
