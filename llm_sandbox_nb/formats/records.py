"""Recognition, reading and writing of runs in the formats of other projects.

    for run in read_file(Path("run.traj")):
        print(run.name, run.form, run.trajectory.stop_reason)
    documents = write_record(trajectory, "atif", folder)

The Jupyter server runs this module as a program. The program reads a file from standard input, and prints the events of
the run in the file as JSON:

    python -m llm_sandbox_nb.formats.records < trajectory.json

Because a separate process reads the file, a damaged or very large file cannot harm the server.
"""

from __future__ import annotations

import fnmatch
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.formats import (
    anthropic_messages,
    atif,
    inspect_log,
    llm_in_sandbox,
    mini_swe_agent,
    openai_messages,
    opentelemetry,
    swe_agent,
)
from llm_sandbox_nb.formats.entries import (
    Message,
    ModelReply,
    RecordEntry,
    WrittenRecord,
    add_rest,
    entries_of,
    events_of,
)
from llm_sandbox_nb.formats.file_kinds import kind_of_bytes, kind_of_json
from llm_sandbox_nb.formats.received import check_containers, parse_json
from llm_sandbox_nb.own_folder import NotOwnFileError, expanded, open_file
from llm_sandbox_nb.own_folder import read_file as read_own_file
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import MAX_LINE_BYTES, JournalError
from llm_sandbox_nb.trajectory.run_folder import JOURNAL, SEED
from llm_sandbox_nb.trajectory.saved_events import saved_events
from llm_sandbox_nb.trajectory.trajectory import Trajectory

MAX_FILE_BYTES = 512 * 1024**2
"""Maximum size of a file in bytes."""
MAX_MEMORY_BYTES = 4 * 1024**3
"""Maximum memory, in bytes, of the program that reads a file for the Jupyter server."""
_NAME_PATTERNS = (f"{Path(SEED).stem}*.json", "*.traj", "*.traj.json", "*.eval")
_MAX_RUNS = 10_000


class NoRecordError(LLMSandboxError, ValueError):
    """Error for a file that does not contain a run in a known format. The message describes the actual content."""


@dataclass(frozen=True)
class ForeignRun:
    """Run that another program recorded. `form` is the name of the format."""

    name: str
    form: str
    trajectory: Trajectory


@dataclass(frozen=True)
class RecordFormat:
    """Format with the functions that recognize, read and write its files."""

    name: str
    """Name for `convert --to`."""
    title: str
    endings: tuple[str, ...]
    """Endings of file names in this format."""
    loses: str = ""
    """Sentence about the content that a file of this format lacks. Empty if the format loses nothing."""
    fits: Callable[[Any], bool] | None = None
    """Function that returns True for parsed JSON of this format."""
    read: Callable[[Any], list[RecordEntry]] | None = None
    """Function that returns the entries of a document, and raises ValueError if a part has a wrong type."""
    write: Callable[[Sequence[RecordEntry], str, Collection[int]], WrittenRecord] | None = None
    """Function that makes the document of a branch from its entries, its name, and the indexes of copied entries.

    Copied entries are those that the document of an earlier branch contains too.
    """


_MESSAGES_ONLY = (
    "It holds only the messages: no separate outputs, files, checkpoints, times, tokens or decisions."
)
FORMATS: dict[str, RecordFormat] = {
    form.name: form
    for form in (
        RecordFormat("atif", "ATIF 1.8", (".json",), "", atif.fits, atif.read, atif.write),
        RecordFormat(
            "mini-swe-agent", "mini-swe-agent 1.1", (".traj.json",), "",
            mini_swe_agent.fits, mini_swe_agent.read, mini_swe_agent.write,
        ),
        RecordFormat("swe-agent", "SWE-agent", (".traj",), "", swe_agent.fits, swe_agent.read),
        RecordFormat("inspect", "Inspect log", (".eval",)),
        RecordFormat(
            "llm-in-sandbox", "LLM-in-Sandbox", ("trajectory.json",),
            "It holds only thoughts, calls and observations.", llm_in_sandbox.is_seed,
        ),
        RecordFormat(
            "anthropic", "Anthropic messages", (), _MESSAGES_ONLY,
            anthropic_messages.fits, anthropic_messages.read, anthropic_messages.write,
        ),
        RecordFormat(
            "openai", "OpenAI messages", (), _MESSAGES_ONLY,
            openai_messages.fits, openai_messages.read, openai_messages.write,
        ),
        RecordFormat(
            "opentelemetry", "OpenTelemetry spans", (".otlp.json",),
            "It cannot be read again: spans are only for viewers.",
        ),
    )
}  # fmt: skip
"""Formats by name, in the order in which they are tried for a file."""
READ = [name for name in FORMATS if name != "opentelemetry"]
_ADVICE = "give a journal, or a file of one of " + ", ".join(FORMATS[name].title for name in READ)


# --- reading ---


def is_foreign(path: Path) -> bool:
    """Return True if a path names a file that is not a journal of this package."""
    return path.is_file() and not (path.suffix == ".jsonl" and _is_journal(path))


def _is_journal(path: Path) -> bool:
    """Return True if a file of JSON lines begins like a journal, or if the file cannot be read.

    In the second case, the reader of journals reports the error.
    """
    if path.name == JOURNAL:
        return True
    try:
        with os.fdopen(open_file(path.parent, path.name), "rb") as file:
            return b'"kind"' in file.readline(MAX_LINE_BYTES)
    except OSError:
        return True


def is_record_name(name: str) -> bool:
    """Return True if other projects use such a file name for their trajectories."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in _NAME_PATTERNS)


def split_name(given: str | Path) -> tuple[Path, str]:
    """Split `FILE#NAME` into the file and the name of one of its runs. Without `#NAME`, the name is empty."""
    path = expanded(given)
    before, mark, name = str(path).rpartition("#")
    if mark and not os.path.lexists(path) and Path(before).is_file():
        return Path(before), name
    return path, ""


def read_run(path: Path, name: str = "") -> ForeignRun:
    """Read the only run of a file, or the run called `name`.

    Raises:
        FileNotFoundError: if the file does not exist.
        NoRecordError: if the file is not a trajectory, has no run called `name`, or has several runs but `name` is
            empty. The message lists the runs.
    """
    runs = read_file(path)
    named = [run for run in runs if run.name == name] if name else runs
    if len(named) == 1:
        return named[0]
    names = ", ".join(run.name for run in runs[:20]) + (", …" if len(runs) > 20 else "")
    example = f"{path}#{runs[0].name}"
    if name:
        raise NoRecordError(f"{path} has no run {name}: its runs are {names}.")
    raise NoRecordError(f"{path} holds {len(runs)} runs ({names}): name one, such as {example}.")


def read_file(path: Path) -> list[ForeignRun]:
    """Read the runs in a file. If the file has only one run, this run gets the name of the file.

    Raises:
        FileNotFoundError: if the file does not exist.
        NoRecordError: if the file is not a trajectory, is too large, or is damaged.
    """
    try:
        data = read_own_file(path.parent, path.name, MAX_FILE_BYTES)
    except NotOwnFileError as error:
        raise NoRecordError(f"{path} cannot be read: {error}.") from error
    return read_bytes(data, path.stem.removesuffix(".traj"), str(path))


def read_bytes(data: bytes, name: str, shown: str = "This file") -> list[ForeignRun]:
    """Read the runs in `data`, the content of a file. A single run gets `name`. Error messages call the file `shown`.

    Raises:
        NoRecordError: if the bytes are not a trajectory.
    """
    try:
        if inspect_log.is_log(data):
            runs = inspect_log.read(data)
            names = [name] if len(runs) == 1 else [key for key, _ in runs]
            return [
                ForeignRun(key, "inspect", Trajectory(events))
                for key, (_, events) in zip(names, runs, strict=True)
            ]
        return _read_json(data, name)
    except _OtherKindError as error:
        raise NoRecordError(f"{shown} is {error}, not a trajectory: {_ADVICE}.") from error
    except (ValueError, JournalError, RecursionError, MemoryError) as error:
        why = str(error).rstrip(".") or "it needs too much memory"
        raise NoRecordError(f"{shown} cannot be read as a trajectory: {why[:300]}.") from error


class _OtherKindError(LLMSandboxError, ValueError):
    """Error for a file that is not a trajectory. The message describes the file."""


def _read_json(data: bytes, name: str) -> list[ForeignRun]:
    if kind := kind_of_bytes(data):
        raise _OtherKindError(kind)
    check_containers(data)
    try:
        content = parse_json(data)
    except ValueError as error:
        content = _json_lines(data)
        if content is None:
            raise error from None
    form = format_of(content)
    if form is not None:
        return [_read_content(form, content, name)]
    if not (many := _many(content)):
        raise _OtherKindError(kind_of_json(content))
    return [_read_content(its, content, key) for key, its, content in many]


def _json_lines(data: bytes) -> list[Any] | None:
    """Return the values of JSON lines, or None if a line is not JSON."""
    lines = [line for line in data.splitlines() if line.strip()]
    if len(lines) < 2:
        return None
    try:
        return [parse_json(line) for line in lines]
    except ValueError:
        return None


def format_of(content: Any) -> RecordFormat | None:
    """Return the format of a run in parsed JSON, or None if the format is unknown or the JSON has several runs."""
    return next(
        (form for form in FORMATS.values() if form.fits is not None and form.fits(content)),
        None,
    )


def _read_content(form: RecordFormat, content: Any, name: str) -> ForeignRun:
    if form.read is None:
        return ForeignRun(name, form.name, llm_in_sandbox.from_seed(content, name))
    return ForeignRun(name, form.name, Trajectory(events_of(form.read(content), name)))


def _many(content: Any) -> list[tuple[str, RecordFormat, Any]]:
    """Return the name, format and content of each run in an object that has runs as values, or in a list of runs."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(content, dict):
        items = content.items()
    elif isinstance(content, list):
        items = enumerate(content)
    runs = [(str(key), form, run) for key, run in items if (form := format_of(run)) is not None]
    if len(runs) > _MAX_RUNS:
        raise ValueError(f"it holds more than {_MAX_RUNS:,} runs")
    return runs


# --- writing ---


def write_record(
    trajectory: Trajectory, form: str, folder: Path | None = None, *, content: bool = False
) -> list[bytes]:
    """Return a document for each branch of a run, beginning with HEAD's branch.

    For Inspect and OpenTelemetry, return a single document with all branches.

    Args:
        trajectory: trajectory of the run.
        form: one of the names in `format_names.WRITTEN`.
        folder: folder of the run, which contains long outputs.
        content: True to include the texts of prompts, replies, calls and results in OpenTelemetry's spans.

    Raises:
        ValueError: if there is nothing to write yet, or a package is missing.
    """
    if form == "llm-in-sandbox":
        return [llm_in_sandbox.dump_seed(branch).encode() for branch in branches_of(trajectory)]
    if form == "opentelemetry":
        return [_dumped(opentelemetry.write(trajectory, folder, content=content))]
    if form == "inspect":
        return [inspect_log.write(branches_of(trajectory), folder)]
    seen: set[str] = set()
    documents = []
    for number, branch in enumerate(branches_of(trajectory), 1):
        entries = entries_of(branch, folder)
        known = [all(event.id in seen for event in entry.events) for entry in entries]
        copied = [place for place, rest in enumerate(known) if rest and entries[place].events]
        seen.update(event.id for event in branch.path)
        run_id = branch.start.run_id if branch.start else "run"
        documents.append(_dumped(document(FORMATS[form], entries, f"{run_id}-{number}", copied)))
    return documents


def branches_of(trajectory: Trajectory) -> list[Trajectory]:
    """Return the trajectory of each branch, beginning with HEAD's branch."""
    others = [branch.tip for branch in trajectory.branches if not branch.head]
    return [trajectory, *map(trajectory.at, others)]


def document(
    form: RecordFormat, entries: Sequence[RecordEntry], branch: str = "run", copied: Collection[int] = ()
) -> Any:
    """Return the document of a branch.

    Data for which the format has no field is stored under the key `llm_sandbox_nb`, if the format allows other
    programs' data.
    """
    assert form.write is not None
    assert form.read is not None
    if not any(isinstance(entry, Message | ModelReply) for entry in entries):
        raise ValueError("This run has no messages yet, so there is nothing to write.")
    written = form.write(entries, branch, copied)
    if written.places:
        add_rest(entries, form.read(written.content), written.places)
    return written.content


def _dumped(content: Any) -> bytes:
    text = json.dumps(ev.clean_text(content), ensure_ascii=False, indent=2, allow_nan=False)
    return f"{text}\n".encode()


# --- for the server ---


def main() -> int:
    """Read a file from standard input and print the events of its first run. Return 1 if it has no run, else 0."""
    _limit_memory()
    try:
        found = read_bytes(sys.stdin.buffer.read(MAX_FILE_BYTES), "")
        json.dump({"events": saved_events(found[0].trajectory.events)}, sys.stdout)
    except (ValueError, MemoryError, RecursionError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, hard))


if __name__ == "__main__":
    sys.exit(main())
