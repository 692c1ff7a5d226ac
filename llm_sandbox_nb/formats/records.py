"""Records of runs in other projects' formats: which there are, how a file is recognized, read and written.

    for name, trajectory in read_file(Path("run.traj")).items():
        ...
    documents = write_record(trajectory, "atif", folder)

As a program, it prints the events of the record in standard input as JSON, for the Jupyter server:

    python -m llm_sandbox_nb.formats.records < trajectory.json

A process of its own reads it: a record that is damaged, or very large, costs the server nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from llm_sandbox_nb.formats.entries import Entry, Message, Reply, Written, add_rest, entries_of, events_of
from llm_sandbox_nb.formats.file_kinds import kind_of_bytes, kind_of_json
from llm_sandbox_nb.formats.received import parse_json
from llm_sandbox_nb.own_folder import NotOwnFileError, read_file as read_own_file
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import JournalError
from llm_sandbox_nb.trajectory.saved_events import saved_events
from llm_sandbox_nb.trajectory.trajectory import Trajectory

FILE_MOST = 512 * 1024**2
"""Bytes of a record that is read."""
MEMORY_MOST = 4 * 1024**3
"""Bytes of memory that the program may take."""
_RUNS_MOST = 10_000
"""Runs of one file."""


class NoRecordError(ValueError):
    """A file holds no record of a run in a known format. The message says what it holds instead."""


@dataclass(frozen=True)
class Format:
    """A format: how it is called, recognized, read and written."""

    name: str
    """As `convert --to` takes it."""
    title: str
    ending: str
    """Of the names of its files."""
    fits: Callable[[Any], bool] = lambda _: False
    read: Callable[[Any], list[Entry]] | None = None
    write: Callable[[Sequence[Entry], str, Collection[int]], Written] | None = None


FORMATS: dict[str, Format] = {
    one.name: one
    for one in (
        Format("atif", "ATIF 1.8 (Harbor)", ".json", atif.fits, atif.read, atif.write),
        Format(
            "mini-swe-agent", "mini-swe-agent 1.1", ".traj.json",
            mini_swe_agent.fits, mini_swe_agent.read, mini_swe_agent.write,
        ),
        Format("swe-agent", "SWE-agent", ".traj", swe_agent.fits, swe_agent.read),
        Format("inspect", "Inspect log", ".eval"),
        Format("llm-in-sandbox", "LLM-in-Sandbox", ".json", llm_in_sandbox.is_seed),
        Format(
            "anthropic", "Anthropic messages", ".json",
            anthropic_messages.fits, anthropic_messages.read, anthropic_messages.write,
        ),
        Format(
            "openai", "OpenAI messages", ".json",
            openai_messages.fits, openai_messages.read, openai_messages.write,
        ),
        Format("opentelemetry", "OpenTelemetry spans (OTLP)", ".otlp.json"),
    )
}  # fmt: skip
"""The formats, in the order in which a file is compared with them."""
WRITTEN = [name for name in FORMATS if name != "swe-agent"]
READ = [name for name in FORMATS if name != "opentelemetry"]


# --- reading ---


def read_file(path: Path) -> dict[str, Trajectory]:
    """The runs of a file by their names; a file with one run has that of the file.

    Raises:
        FileNotFoundError: there is no such file.
        NoRecordError: it is something else, too large, or damaged.
    """
    try:
        data = read_own_file(path.parent, path.name, FILE_MOST)
    except NotOwnFileError as error:
        raise NoRecordError(f"{path} cannot be read: {error}.") from error
    return read_bytes(data, path.stem.removesuffix(".traj"), str(path))


def read_bytes(data: bytes, name: str, shown: str = "This file") -> dict[str, Trajectory]:
    """The runs in the bytes of a file, which is `shown` as this in what is wrong with it; as `read_file`."""
    try:
        if inspect_log.is_log(data):
            return _named(inspect_log.read(data), name)
        if kind := kind_of_bytes(data):
            raise NoRecordError(f"{shown} is {kind}, and no trajectory: {_KNOWN}.")
        return _read_json(data, name, shown)
    except NoRecordError:
        raise
    except (ValueError, JournalError, RecursionError, MemoryError) as error:
        why = str(error).rstrip(".") or "it needs too much memory"
        raise NoRecordError(f"{shown} is no trajectory that can be read: {why[:300]}.") from error


_KNOWN = "give a journal, or a file of " + ", ".join(
    FORMATS[name].title.partition(" (")[0] for name in FORMATS if name != "opentelemetry"
)


def _read_json(data: bytes, name: str, shown: str) -> dict[str, Trajectory]:
    try:
        content = parse_json(data)
    except ValueError as error:
        lines = _json_lines(data)
        if lines is None:
            raise NoRecordError(f"{shown} is no trajectory: {str(error)[:200]}.") from error
        content = lines
    if (one := _read_one(content, name)) is not None:
        return {name: one}
    many = many_of(content)
    if not many:
        raise NoRecordError(f"{shown} is {kind_of_json(content)}, and no trajectory: {_KNOWN}.")
    found = {key: _read_one(one, key) for key, one in many.items()}
    return {key: one for key, one in found.items() if one is not None}


def _json_lines(data: bytes) -> list[Any] | None:
    """The values of JSON lines; None where a line is something else."""
    lines = [line for line in data.splitlines() if line.strip()]
    if len(lines) < 2:
        return None
    try:
        return [parse_json(line) for line in lines]
    except ValueError:
        return None


def format_of(content: Any) -> Format | None:
    """The format of what JSON gave; None where it is of no known one, or holds several runs."""
    return next((one for one in FORMATS.values() if one.fits(content)), None)


def _read_one(content: Any, name: str) -> Trajectory | None:
    form = format_of(content)
    if form is None:
        return None
    if form.read is None:
        return llm_in_sandbox.from_seed(content, name)
    return Trajectory(events_of(form.read(content), name))


def many_of(content: Any) -> dict[str, Any]:
    """The runs of a file that holds many: an object of them by id, or a list. Empty where it holds none."""
    items = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content, 1)
        if isinstance(content, list)
        else ()
    )
    found = {str(key): one for key, one in items if isinstance(one, dict) and format_of(one) is not None}
    if len(found) > _RUNS_MOST:
        raise ValueError(f"it holds more than {_RUNS_MOST:,} runs")
    return found


def _named(runs: Sequence[tuple[str, list[ev.Event]]], name: str) -> dict[str, Trajectory]:
    """The runs of a log of Inspect; a single one has the name of the file."""
    if len(runs) == 1:
        return {name: Trajectory(runs[0][1])}
    return {key: Trajectory(events) for key, events in runs}


# --- writing ---


def write_record(
    trajectory: Trajectory, form: str, folder: Path | None = None, *, content: bool = True
) -> list[bytes]:
    """The documents of a run, that of HEAD's branch first; Inspect and OpenTelemetry have all branches in one.

    Args:
        form: a name of `WRITTEN`.
        folder: of the run, with its long outputs.
        content: False: OpenTelemetry's spans hold no text of prompts, replies, calls and results.

    Raises:
        ValueError: there is nothing to write yet, or a package is missing. The message says which.
    """
    if form == "llm-in-sandbox":
        return [llm_in_sandbox.dump_seed(one).encode() for one in branches_of(trajectory)]
    if form == "opentelemetry":
        return [_dumped(opentelemetry.write(trajectory, folder, content=content))]
    if form == "inspect":
        return [inspect_log.write(branches_of(trajectory), folder)]
    writer = FORMATS[form]
    seen: set[str] = set()
    documents = []
    for number, branch in enumerate(branches_of(trajectory), 1):
        entries = entries_of(branch, folder)
        known = [all(event.id in seen for event in entry.events) for entry in entries]
        copied = [place for place, one in enumerate(known) if one and entries[place].events]
        seen.update(event.id for event in branch.path)
        documents.append(_dumped(document(writer, entries, f"{_run_id(branch)}-{number}", copied)))
    return documents


def _run_id(trajectory: Trajectory) -> str:
    return trajectory.start.run_id if trajectory.start else "run"


def branches_of(trajectory: Trajectory) -> list[Trajectory]:
    """The trajectory of each branch, that of HEAD first."""
    others = [one.tip for one in trajectory.branches if not one.head]
    return [trajectory, *map(trajectory.at, others)]


def document(
    form: Format, entries: Sequence[Entry], branch: str = "run", copied: Collection[int] = ()
) -> Any:
    """The document of a branch, with all that the format has room for."""
    assert form.write is not None
    assert form.read is not None
    if not any(isinstance(entry, Message | Reply) for entry in entries):
        raise ValueError("Nothing was said in this run yet, so there is nothing to write.")
    written = form.write(entries, branch, copied)
    if written.places:
        add_rest(entries, form.read(written.content), written.places)
    return written.content


def _dumped(content: Any) -> bytes:
    text = json.dumps(ev.clean_text(content), ensure_ascii=False, indent=2, allow_nan=False)
    return f"{text}\n".encode()


# --- for the server ---


def main() -> int:
    """Print the events of the record in standard input; the exit code is 1 when it holds none."""
    _limit_memory()
    try:
        found = read_bytes(sys.stdin.buffer.read(FILE_MOST), "")
        if len(found) != 1:
            names = ", ".join(list(found)[:20])
            raise NoRecordError(f"This file holds {len(found)} runs: {names}.")
        (trajectory,) = found.values()
        json.dump({"events": saved_events(trajectory.events)}, sys.stdout)
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
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MOST, hard))


if __name__ == "__main__":
    sys.exit(main())
