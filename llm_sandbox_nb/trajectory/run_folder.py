"""The folders of runs: what their files are called, which run a name means, and a run in a line of a list."""

from __future__ import annotations

import dataclasses
import json
import mimetypes
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from llm_sandbox_nb.one_sentence import OneSentence
from llm_sandbox_nb.own_folder import file_names, is_file, open_file
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.replay_outcome import replay_finding
from llm_sandbox_nb.trajectory.state import RunState, State, Status

JOURNAL = "journal.jsonl"
"""One event in each line."""
BLOBS = "blobs"
"""Texts that are too long for a line of the journal, by their SHA-256."""
FILES = "files"
"""What the model left in the output folder."""
CHECK_FILES = "check"
"""The files that only the check of its result has."""
HISTORY = "history"
"""The files of the sandbox after each step."""
SEED = "trajectory.json"
"""The record in the form of the LLM-in-Sandbox paper."""
RUNS = "sandbox-runs"
"""The folder of runs, where no setting names another."""
_SHORTEST = 4
"""Characters of a short id, at least."""


class RunNotFoundError(OneSentence, FileNotFoundError):
    """No run has this name, or several have. The message says what to do."""


class RunFile(os.PathLike[str]):
    """One file the model left. Give it to anything that takes a path, or read it."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path

    @property
    def mime(self) -> str:
        """The media type that its name implies."""
        return mimetypes.guess_type(self.name)[0] or "application/octet-stream"

    @property
    def size(self) -> int:
        """Bytes."""
        return self.path.stat().st_size

    def read_bytes(self) -> bytes:
        """The content."""
        return self.path.read_bytes()

    def read_text(self, encoding: str = "utf-8") -> str:
        """The content as text."""
        return self.path.read_text(encoding)

    def __fspath__(self) -> str:
        return str(self.path)

    def __bytes__(self) -> bytes:
        return self.read_bytes()

    def __repr__(self) -> str:
        return f"<RunFile {self.name}: {self.size} bytes at {self.path}>"


def own_file(folder: Path, name: str) -> Path | None:
    """The regular file `name` in a folder of a run, such as its `files`; None when there is none.

    A run may come from someone else: neither its names nor its links lead to another file of this machine.
    """
    inside = PurePath(os.path.normpath(name))
    if inside.is_absolute() or os.pardir in inside.parts or not is_file(folder.parent, folder.name / inside):
        return None
    return folder / inside


class RunFiles(Mapping[str, RunFile]):
    """The files of a run by their names below the output folder. Never leads out of the run's folder."""

    def __init__(self, folder: Path, make: type[RunFile] = RunFile) -> None:
        self._folder = folder
        self._make = make

    def __getitem__(self, name: str) -> RunFile:
        path = own_file(self._folder, name)
        if path is None:
            raise KeyError(
                f"{name!r} is not among the files of this run: {', '.join(self) or 'there are none'}"
            )
        return self._make(name, path)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(file_names(self._folder)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"<RunFiles {', '.join(self) or 'none'}>"


def run_folders(root: Path) -> list[Path]:
    """The folders of runs in `root` and in the folders of notebooks below it, newest last. Links are not followed."""
    found = {run for folder in (root, *_subfolders(root)) for run in _subfolders(folder)}
    journals = [run / JOURNAL for run in sorted(found, key=lambda run: run.name)]
    return [journal.parent for journal in journals if journal.is_file() and not journal.is_symlink()]


def _subfolders(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            yield from [folder / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return


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


_FIRST_LINE = 1024 * 1024
_TAIL = 256 * 1024
_TASK = 300
_LISTED = 1000
"""Most folders of one notebook that are looked at."""


@dataclass(frozen=True)
class RunSummary:
    """What a list shows of one run. All texts are what the journal says, shortened."""

    id: str
    folder: Path
    task: str
    started: float
    """Seconds since the epoch."""
    state: str
    """Why it ended; `ready` after a rewind; `open` when it has no end: it is live, or was cut off."""
    status: Status
    """What the ends of its journal say of it."""
    steps: int
    """The number of its last step; -1 where the end of the journal does not say it."""
    forked_from: str | None
    """The id of the run of which it is a fork."""

    answer: str | None
    """Its beginning; None when it has no end or no answer."""
    finding: str
    """What a replay found; empty for other runs."""

    def run_state(self, *, live: bool) -> RunState:
        """The state in words. `live`: a process executes the run."""
        state = self.status.run_state(live=live)
        if state.state != State.REPLAYED.label or not self.finding:
            return state
        return dataclasses.replace(state, words=f"{state.words}: {self.finding}")


def notebook_folder_name(path: str) -> str:
    """How the folder with the runs of a notebook is called, from the notebook's path."""
    name = re.sub(r"[^\w.-]+", "-", PurePath(path).stem).strip("-.")
    return name[:80] or "notebook"


def summaries(folder: Path, most: int) -> tuple[list[RunSummary], int]:
    """The runs in a folder, newest first, at most so many; and how many there are."""
    try:
        with os.scandir(folder) as found:
            names = sorted(
                (entry.name for entry in found if entry.is_dir(follow_symlinks=False)), reverse=True
            )
    except OSError:
        return [], 0
    # Folders are named by the second in which a run began: those of one second may be in another order.
    read = [summary for name in names[: min(_LISTED, most + 5)] if (summary := summarize(folder / name))]
    read.sort(key=lambda one: one.started, reverse=True)
    return read[:most], len(names)


def summarize(folder: Path) -> RunSummary | None:
    """One run; None when its journal is missing or begins with something else. Never raises because of its content."""
    try:
        with os.fdopen(open_file(folder, JOURNAL), "rb") as file:
            first = _event(file.readline(_FIRST_LINE))
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            lines = file.read(_TAIL).splitlines()
    except OSError:
        return None
    if first.get("kind") != "run.started" or not isinstance(first.get("time"), int | float):
        return None
    state, steps = _end(_event(line) for line in reversed(lines))
    status = _status(first, lines, state, steps)
    fork = first.get("forked_from")
    return RunSummary(
        id=folder.name,
        folder=folder,
        task=str(first.get("task", ""))[:_TASK],
        started=float(first["time"]),
        state=state,
        status=status,
        steps=steps,
        forked_from=str(fork.get("run_id"))[:200] if isinstance(fork, dict) else None,
        answer=status.finish.answer[:_TASK] if status.finish and status.finish.answer else None,
        finding=replay_finding(folder) if status.replays else "",
    )


def _end(newest_first: Iterator[dict[str, Any]]) -> tuple[str, int]:
    state = ""
    undone: set[object] = set()
    for event in newest_first:
        match event.get("kind"):
            case "run.finished":
                if not state and isinstance(event.get("steps"), int):
                    return str(event.get("stop_reason"))[:40], event["steps"]
            case "rewound" if event.get("id") in undone or event.get("what") == "files":
                continue
            case "rewound" if event.get("undo_of"):
                undone.add(event["undo_of"])
            case "rewound":
                state = state or "ready"
                if isinstance(step := event.get("step"), int):
                    return state, step
            case "model.requested" | "continued":
                state = state or ("ready" if undone else "open")
                if isinstance(step := event.get("step"), int):
                    return state, step
    return state or "open", -1


_OF_END = (
    b'"settings.changed"',
    b'"model.failed"',
    b'"stop"',
    b'"continued"',
    b'"run.finished"',
    b'"checked"',
)
"""What the words of an end need beside the start: limits that were changed, why the model failed, who stopped the run
since it was continued, and the score that followed the end."""
_ALWAYS = ("settings.changed", "control", "continued", "run.finished", "checked")


def _status(first: dict[str, Any], lines: list[bytes], state: str, steps: int) -> Status:
    """How the run stands, from its start and the events that `_end` has found."""
    status = Status()
    ended = state not in ("open", "ready")
    said: list[dict[str, Any]] = []
    if ended:
        last = next((_event(line) for line in reversed(lines) if b'"model.requested"' in line), {})
        said += [last] + [_event(line) for line in lines if any(kind in line for kind in _OF_END)]
        said = [one for one in said if one.get("step") == last.get("step") or one.get("kind") in _ALWAYS]
    elif steps > 0:
        said.append({"kind": "model.requested", "step": steps})
    for value in (first, *said):
        with suppress(ValueError):
            status.add(ev.parse_python(value))
    if state == "ready":
        status.rewind(max(steps, 0))
    return status


def _event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}
