"""Results of a benchmark, each in a JSON line. A result is written as soon as its item ends, to survive a later crash.

A crash during the writing of a line leaves an incomplete line. Readers skip such a line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from llm_sandbox_nb.errors import LLMSandboxError

FILE = "results.jsonl"
CONFIG = "config.json"
SCORER = "scorer"
"""Error kind of an answer that has no score because the scorer failed, did not end, or returned no score."""
JUDGE = "judge"
"""Error kind of an answer that has no score because requests to the judge failed."""
ANSWERED = ("", SCORER, JUDGE)
"""Error kinds of results whose answer is kept, so that it can be scored again. The empty kind means no error."""
Key = tuple[str, str, str, int]


class ResultsError(LLMSandboxError, ValueError):
    """Error for a folder of results that cannot be used. The message is one sentence with the remedy."""


@dataclass(frozen=True)
class Result:
    """Result of one item. Times are in seconds, `started` in seconds since the epoch, and `cost` in US dollars."""

    task: str
    mode: str
    """`sandbox`, `llm`, or `sandbox-prompt` (a sandbox, with the documents in the prompt and not in files)."""
    item: str
    repeat: int
    score: float | None = None
    """Score from 0 to 1, or None for an answer without a score. `detail` or `error` has the reason."""
    detail: str = ""
    answer: str | None = None
    stop_reason: str | None = None
    error_kind: str = ""
    """Kind of the failure. Empty if nothing failed, so that the score counts."""
    error: str = ""
    cut_replies: int = 0
    """Number of incomplete replies that were accepted; see `model.contract.BROKEN_OFF`."""
    turns: int = 0
    prompt_tokens: int = 0
    model_tokens: int = 0
    environment_tokens: int = 0
    billed_tokens: int = 0
    cost: float | None = None
    started: float = 0.0
    wall_time: float = 0.0
    model_time: float = 0.0
    tool_time: float = 0.0
    memory_peak: int | None = None
    """Peak memory of the sandbox in bytes. None if unknown, or if an earlier item had used the sandbox."""
    disk: int | None = None
    """Size of the sandbox's files in bytes at the end of the item. The files of the image do not count."""
    run: str = ""
    """The run's folder, relative to the folder of all results."""
    row: str = ""
    """`Row.digest` of the item's row."""
    question: str = ""
    prompt: str = ""
    scorer: str = ""
    """`question`, `prompt` and `scorer` are digests; see the module `digests`."""
    problem: str = ""
    """`Row.problem` of the item's row. Copies of a problem have the same value."""
    prompts: str = ""
    """Origin of the prompts, such as `llm-in-sandbox 0.2.0`. Empty if they are the task's own prompts."""
    version: str = ""
    """Version of this package at the time of the answer."""
    reused: bool = False
    """True if an earlier item had used the sandbox, so that the sandbox was reset."""

    @property
    def key(self) -> Key:
        """Identity of the item. A later result with the same key replaces this result."""
        return self.task, self.mode, self.item, self.repeat


_MAX_NUMBER = 10**15
"""Largest number that a result may contain. This limit keeps the sums of a report finite."""
_FIELDS = {field.name: str(field.type) for field in fields(Result)}


def cell_folder(out: Path, task: str, mode: str) -> Path:
    return out / task / mode


def write_result(out: Path, result: Result) -> None:
    """Append a result to the file of its task and mode. The result then survives the end of this process."""
    folder = cell_folder(out, result.task, result.mode)
    folder.mkdir(parents=True, exist_ok=True)
    append_line(folder / FILE, asdict(result))


def read_results(out: Path) -> list[Result]:
    """Return the newest result of each item, in the order of the items' first results."""
    return list({result.key: result for result in all_results(out)}.values())


def all_results(out: Path) -> Iterator[Result]:
    """Yield all results, including results that a later result of the same item replaces."""
    for path in sorted(out.glob(f"*/*/{FILE}")):
        info = path.stat()
        yield from _results_in(path, info.st_size, info.st_mtime_ns)


@lru_cache(maxsize=32)
def _results_in(path: Path, size: int, changed: int) -> tuple[Result, ...]:
    """Read the results of a file. Cache the results until the file changes, because the start of a benchmark reads
    each file several times.

    `size` and `changed`, the size and the modification time of the file, are only keys of the cache.
    """
    return tuple(_result(path, record) for record in read_lines(path))


def _result(path: Path, record: dict[str, Any]) -> Result:
    """Make a result from a line of the file.

    The file may come from a stranger, so a result must not name a folder outside of the folder of all results.

    Raises:
        ResultsError: if a field is missing, has a wrong type or range, or names another folder.
    """
    known = {key: value for key, value in record.items() if key in _FIELDS}
    missing = [name for name in ("task", "mode", "item", "repeat", "problem") if name not in known]
    wrong = [name for name, value in known.items() if not _fits(name, value)]
    if not missing and not wrong:
        run = PurePosixPath(known.get("run", ""))
        places = {"task": path.parts[-3], "mode": path.parts[-2]}
        wrong = [name for name, place in places.items() if known[name] != place]
        wrong += ["run"] if run.is_absolute() or ".." in run.parts else []
    if missing or wrong:
        reason = f"it has no {missing[0]}" if missing else f"its {wrong[0]} is {known[wrong[0]]!r:.80}"
        raise ResultsError(f"{path} holds a line that is not a result ({reason}): correct or remove it.")
    return Result(**known)


def _fits(name: str, value: Any) -> bool:
    kind = _FIELDS[name]
    if value is None:
        return "None" in kind
    if kind == "bool" or isinstance(value, bool):
        return kind == "bool" and isinstance(value, bool)
    if isinstance(value, str):
        return "str" in kind
    low, high = (0, 1) if name == "score" else (-_MAX_NUMBER, _MAX_NUMBER)
    return (
        isinstance(value, int | float if "float" in kind else int)
        and "str" not in kind
        and low <= value <= high
    )


def append_line(path: Path, record: object) -> None:
    """Append a record as a JSON line.

    If the process is killed during this call, only this line can be incomplete. The next call then begins a new line.
    """
    data = (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", "replace")
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            # A crash left an incomplete line. This line is ended, so that the new record has a line of its own.
            data = b"\n" + data
        while data:
            data = data[os.write(file, data) :]
    finally:
        os.close(file)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete records of a file. Lines that a crash left unfinished are skipped."""
    if not path.exists():
        return []
    found = []
    for line in path.read_bytes().splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            found.append(record)
    return found
