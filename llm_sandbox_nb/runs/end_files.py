"""The files of a run at a checkpoint, and the paths that differ between runs."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from llm_sandbox_nb.agent.run_record import RunRecord
from llm_sandbox_nb.formatting import plural
from llm_sandbox_nb.runs.checkpoint_files import CheckpointFiles
from llm_sandbox_nb.sandbox.errors import HistoryError
from llm_sandbox_nb.sandbox.history.diff import differing_contents
from llm_sandbox_nb.sandbox.history.manifest import Entry
from llm_sandbox_nb.sandbox.isolations import has_own_root
from llm_sandbox_nb.trajectory.unified_diff import COMPARED_BYTES

_ROOT = "/testbed"
_MAX_NAMED_PATHS = 8


@dataclass(frozen=True)
class ComparedFile:
    """A path that differs between runs. `states` has a description for each run, or None for a run without the path."""

    path: str
    states: tuple[str | None, ...]


class EndFiles:
    """The files of one run at a checkpoint."""

    def __init__(self, run: RunRecord, checkpoint: str | None) -> None:
        """Read the entries at `checkpoint`. Raises HistoryError if the files are not stored."""
        self._reader = CheckpointFiles(run)
        if checkpoint is None or not self._reader.has(checkpoint):
            raise HistoryError(f"the files of {run.folder.name} are not kept.")
        manifest, own = self._reader.manifest(checkpoint), self._reader.own(checkpoint)
        root = _working_directory(run, manifest)
        self.entries = {_under(path, root): entry for path, entry in own.items()}
        self.others = {_under(path, root) for path in differing_contents(own, manifest)}
        """Paths that others have changed. `entries` has the earlier content of these paths."""

    def state(self, path: str) -> str | None:
        """Describe type, mode and content of a path. Return None if the path is absent or as in the image."""
        entry = self.entries.get(path)
        return None if entry is None or entry.base else self._described(entry)

    def known_state(self, path: str) -> str | None:
        """Describe a path like `state`, and also a path that is as in the image if the image's entry is stored."""
        if (state := self.state(path)) or self.hides(path):
            return state
        entry = self._reader.of_image(path)
        return None if entry is None else self._described(entry)

    @staticmethod
    def _described(entry: Entry) -> str:
        if entry.type == "l":
            return f"link to {entry.target}"
        if entry.type == "d":
            return f"folder, mode {entry.mode:o}"
        content = hashlib.sha256()
        for chunk in entry.chunks or ():
            content.update(b"%d " % chunk.offset + chunk.digest)
        return f"{entry.size} bytes, mode {entry.mode:o}, content {content.hexdigest()[:16]}"

    def hides(self, path: str) -> bool:
        """Return True if a file of the image was deleted. The history then has the changed folder, but not the file."""
        above = self.entries.get(str(PurePosixPath(path).parent))
        return path not in self.entries and above is not None and not above.base

    def text(self, path: str) -> str:
        """Return the text of a file. The text is empty if the run has no such file.

        Raises:
            HistoryError: if the content is not stored.
            OutputLimitExceededError: if the file is too large.
            UnicodeDecodeError: if the content is not UTF-8.
        """
        entry = self.entries.get(path)
        return "" if entry is None else self._reader.read(entry, COMPARED_BYTES).decode("utf-8")

    @staticmethod
    def differing(files: list[EndFiles]) -> dict[str, ComparedFile]:
        """Map paths to the files that differ in more than their times."""
        paths = sorted({path for end in files for path, entry in end.entries.items() if entry.type != "d"})
        found: dict[str, ComparedFile] = {}
        for path in paths:
            states = tuple(end.state(path) for end in files)
            if None in states and len(set(states)) > 1:
                # some engines rewrite files of the image, such as /etc/hosts, so contents are compared
                states = tuple(end.known_state(path) for end in files)
            unknown = all(state is None for state in states)
            if len(set(states)) > 1 or (unknown and len({end.hides(path) for end in files}) > 1):
                found[path] = ComparedFile(path, states)
        return found


def _working_directory(run: RunRecord, manifest: dict[str, Entry] | Any) -> str:
    """Return the working directory of a run. Under the isolation `process`, each run has a different one."""
    protection = run.trajectory.sandbox.protection if run.trajectory.sandbox else {}
    if not has_own_root(protection.get("isolation")):
        return _ROOT
    return min(manifest, key=len, default=_ROOT)


def _under(path: str, root: str) -> str:
    inside = path == root or path.startswith(f"{root}/")
    return _ROOT + path[len(root) :] if inside and root != "/" else path


def left_out(others: Collection[str]) -> str:
    """Return a sentence about paths that are not compared. Empty if all paths are compared."""
    if not others:
        return ""
    changed = plural(
        len(others),
        "path that was changed, but not by a step of this run, is",
        "paths that were changed, but not by a step of this run, are",
    )
    return f"{changed} not compared: {named_paths(sorted(others))}."


def named_paths(paths: Collection[str]) -> str:
    """Return the first paths, and the number of further paths."""
    names = ", ".join(printable(path) for path in list(paths)[:_MAX_NAMED_PATHS])
    more = len(paths) - _MAX_NAMED_PATHS
    return f"{names} and {more} more" if more > 0 else names


def printable(text: str) -> str:
    """Return a text on one line. Line ends and terminal codes are replaced by blanks."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
