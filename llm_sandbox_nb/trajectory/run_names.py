"""Runs by their names: where they lie below a folder, their short ids, and the one that a person means."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from llm_sandbox_nb.trajectory.run_folder import JOURNAL

RUNS = "sandbox-runs"
"""The folder of runs, where no setting names another."""
_SHORTEST = 4
"""Characters of a short id, at least."""


class RunNotFoundError(FileNotFoundError):
    """No run has this name, or several have. The message says what to do."""


def run_folders(root: Path) -> list[Path]:
    """The folders of runs in `root` and in the folders of notebooks below it, newest last. Links are not followed."""
    found = [
        folder for folder in (root, *_subfolders(root)) for folder in _subfolders(folder) if _is_run(folder)
    ]
    return sorted(set(found), key=lambda folder: folder.name)


def _subfolders(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            yield from [folder / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return


def _is_run(folder: Path) -> bool:
    journal = folder / JOURNAL
    return journal.is_file() and not journal.is_symlink()


def short_ids(folders: Iterable[Path]) -> dict[Path, str]:
    """For each run the shortest beginning of the last part of its name, or more of the name, that no other run has."""
    folders = list(folders)
    parts = [_last_part(folder) for folder in folders]
    found = {}
    for folder, part in zip(folders, parts, strict=True):
        lengths = range(min(_SHORTEST, len(part)), len(part) + 1)
        alone = (
            part[:length] for length in lengths if sum(one.startswith(part[:length]) for one in parts) == 1
        )
        found[folder] = next(alone, folder.name)
    return found


def find_run_folder(name: str, root: Path, hint: str = "`llm-sandbox-nb runs`") -> Path:
    """The folder, journal or `trajectory.json` at the path `name`, else the run below `root` that `name` means.

    A run is meant by its name, by the beginning or end of its id, or by any part of its name that no other run has.
    `hint` is the command that lists runs.

    Raises:
        RunNotFoundError: there is none, or several.
    """
    path = Path(name).expanduser()
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
        raise RunNotFoundError(f"{name!r} means {len(found)} runs, such as {named}: write a longer part.")
    raise RunNotFoundError(f"There is no run {name!r} in {root}: {hint} lists the runs.")


def _last_part(folder: Path) -> str:
    return folder.name.rpartition("-")[2]
