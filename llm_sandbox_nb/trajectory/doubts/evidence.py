"""The record in a form that rules can read: actions in order, versions of files, and the versions that an action used.

The evidence grows with each call of the run. Texts of files are rebuilt from recorded diffs when a rule needs them.
"""

from __future__ import annotations

import copy
import fnmatch
import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, TypeVar

from llm_sandbox_nb.shell_parser import Command, shell_commands
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.step_line import ToolKind, path_below, shown_text, tool_kind
from llm_sandbox_nb.trajectory.trajectory import Call, Step, Trajectory

_T = TypeVar("_T")
# A record may come from anyone and be very large. These limits keep the rules fast.
_COMMAND_CHARACTERS = 32 * 1024
_OUTPUT_CHARACTERS = 2 * 1024
"""Number of characters that are read at each end of an output."""
_TEXT_CHARACTERS = 512 * 1024
_MAX_CHANGES = 200
"""Maximum number of file changes that are read for each call. An installation makes thousands of changes."""
_MAX_READS = 40
_MAX_FILES = 5_000
_MAX_PATTERNS = 12
_MAX_COMMANDS = 300
_WORD_CHARACTERS = 200
_LONG_WORD = re.compile(r"(?<!\S)\S{201,}")
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,\d+)? \+\d+(?:,\d+)? @@")
_NAME = re.compile(r"[\w.*?$%{}\[\]~/-]*\w[\w.*?$%{}\[\]~/-]*")
_IMPORT = re.compile(r"^[ \t+]*(?:from[ \t]+([\w.]+)[ \t]+import|import[ \t]+([\w.]+))", re.MULTILINE)
_WILD = re.compile(r"\$\{\w+\}|\$\w+|\{[^{}]*\}|%\w|\[[^\]]*\]")
PROGRAMS = frozenset((
    "py", "sh", "bash", "r", "jl", "js", "mjs", "cjs", "ts", "tsx", "jsx", "pl", "rb", "awk", "sql", "c", "cc", "cpp",
    "h", "hpp", "rs", "go", "java", "kt", "scala", "swift", "php", "lua", "cs", "hs", "ex", "exs", "m", "zig", "ipynb",
))  # fmt: skip
"""Suffixes of program files."""
DATA = frozenset((
    "csv", "tsv", "json", "jsonl", "ndjson", "parquet", "feather", "arrow", "sqlite", "sqlite3", "db", "xlsx", "xls",
    "txt", "xml", "yaml", "yml", "npy", "npz", "pkl", "h5", "hdf5", "dat", "data", "fasta", "fa", "fastq", "vcf", "bed",
    "geojson", "log", "ods", "avro", "orc", "tab", "psv", "list", "ini", "toml", "bib", "srt", "mbox", "ics",
))  # fmt: skip
"""Suffixes of data files."""
MEDIA = frozenset((
    "png", "jpg", "jpeg", "gif", "webp", "svg", "pdf", "wav", "mp3", "ogg", "oga", "mp4", "webm", "ogv", "mid", "midi",
))  # fmt: skip
"""Suffixes of pictures, sounds, videos and PDF files. Such a file can become smaller without a loss of data."""
_ASIDE = re.compile(
    r"(?:^|/)(?:\.git|node_modules|__pycache__|\.\w+_cache|\.venv|venv|target|dist|\.cache|site-packages|\.next)/"
    r"|\.(?:pyc|pyo|lock|tmp|swp|bak|orig)$|(?:^|/)package-lock\.json$"
)


def is_aside(path: str) -> bool:
    """Return True if a path belongs to a cache, an installation or a backup, which rules ignore."""
    return bool(_ASIDE.search(path))


def ending_of(path: str) -> str:
    """Return the suffix of a file's name in lower case, without the dot. Empty if the name has no suffix."""
    return path.rpartition("/")[2].rpartition(".")[2].lower() if "." in path.rpartition("/")[2] else ""


def name_of(path: str) -> str:
    """Return the last part of a path."""
    return path.rpartition("/")[2]


@dataclass(eq=False)
class Version:
    """Version of a file: the file as given, or as an action has left it."""

    path: str
    """Path relative to the working folder in the sandbox."""
    action: Action | None
    """The action that made the version. None for a given file."""
    change: ev.FileDiff | None = None
    before: Version | None = None
    """The version that this version replaced."""

    @property
    def step(self) -> int:
        """Number of the step that made the version. 0 for a given file."""
        return self.action.step if self.action else 0

    @property
    def deleted(self) -> bool:
        """True if the action removed the file."""
        return self.change is not None and self.change.kind == "deleted"

    @property
    def lines(self) -> int | None:
        """Number of lines. None if the number is not known."""
        return self.change.lines if self.change else None

    @cached_property
    def text(self) -> str | None:
        """Text of the file. None if the text cannot be rebuilt from the record."""
        chain: list[Version] = []
        version: Version | None = self
        while version is not None and "text" not in version.__dict__ and len(chain) < 500:
            chain.append(version)
            change = version.change
            version = None if change is None or change.kind == "added" else version.before
        text = version.__dict__.get("text") if version is not None else None
        for link in reversed(chain):
            text = link._after(text)
            if link is not self:
                link.__dict__["text"] = text
        return text

    def _after(self, before: str | None) -> str | None:
        change = self.change
        if change is None or change.kind == "deleted":
            return None
        if change.size == 0:
            return ""
        if (
            self.action
            and (whole := self.action.written.get(self.path)) is not None
            and not self.action.failed
        ):
            return whole
        if change.diff is None or change.note:
            return None
        return patched("" if change.kind == "added" else before, change.diff)

    @cached_property
    def names(self) -> list[str]:
        """Words in the text that may be file names."""
        return names_in(without_long_words(self.text[:_COMMAND_CHARACTERS])) if self.text else []


def patched(before: str | None, diff: str) -> str | None:
    """Apply a unified diff to `before`. Return None if `before` is None or the texts are too long."""
    if before is None or len(before) + len(diff) > _TEXT_CHARACTERS:
        return None
    old = before.split("\n")
    new: list[str] = []
    at = 0
    cut_end = False
    for row in diff.split("\n"):
        if found := _HUNK.match(row):
            start = max(int(found[1]) - 1, 0)
            new += old[at:start]
            at = start
        elif row.startswith("+") and not row.startswith("+++ "):
            new.append(row[1:])
            cut_end = False
        elif row.startswith(" "):
            new.append(row[1:])
            at += 1
        elif row.startswith("-") and not row.startswith("--- "):
            at += 1
        elif row.startswith("\\"):
            cut_end = True
    rest = old[at:]
    new += rest if rest else ([] if cut_end else [""])
    return "\n".join(new)


def names_in(text: str) -> list[str]:
    """Return words in a text that may name files, and the file names of modules that the text imports."""
    found = dict.fromkeys(
        word
        for word in _NAME.findall(text)
        if ("." in word or "/" in word or "*" in word) and 2 < len(word) < 300 and not word[0].isdigit()
    )
    for first, second in _IMPORT.findall(text):
        found[f"{(first or second).split('.')[0]}.py"] = None
    return list(found)


def comes_after(command: str, first: str, then: str) -> bool:
    """Return True if a simple command in `command` matches the pattern `first`, and `then` matches the text after that.

    A search for one combined pattern could take quadratic time in a hostile command.
    """
    parts = re.split(r"[\n;&|]", command)
    return any((found := re.search(first, part)) and re.search(then, part[found.end() :]) for part in parts)


@dataclass(eq=False)
class Action:
    """Finished call of a tool."""

    number: int
    """Index in the list of all actions, counted from 0."""
    step: int
    kind: ToolKind
    call: Call
    said: str
    """The model's text in the step of the action."""
    root: str
    reads: list[Version] = field(default_factory=list)
    """Versions of files that the action may have read, including executed programs."""
    writes: list[Version] = field(default_factory=list)
    repetitions: int = 1
    """Number of successive actions up to this one with the same arguments and the same result."""
    known: dict[object, Any] = field(default_factory=dict)
    """Results about this action that `once` and `says` have computed."""

    @property
    def result(self) -> ev.CallFinished:
        """The result of the call."""
        assert self.call.result is not None
        return self.call.result

    @property
    def failed(self) -> bool:
        """True if the call failed, according to the record."""
        return self.result.failed

    @cached_property
    def command(self) -> str:
        """The shell command. Empty for calls of other tools."""
        value = (self.call.arguments or {}).get("command")
        return (
            without_long_words(value[:_COMMAND_CHARACTERS])
            if self.kind == "bash" and isinstance(value, str)
            else ""
        )

    @cached_property
    def commands(self) -> list[Command]:
        """The simple commands that the shell command consists of."""
        return shell_commands(self.command)[:_MAX_COMMANDS] if self.command else []

    @cached_property
    def stdout(self) -> str:
        """Beginning and end of the output on stdout."""
        return ends_of(shown_text(self.result.stdout))

    @cached_property
    def stderr(self) -> str:
        """Beginning and end of the output on stderr."""
        return ends_of(shown_text(self.result.stderr))

    @cached_property
    def output(self) -> str:
        """Output on stdout and stderr, or the tool's result if there is no such output."""
        if self.stdout or self.stderr:
            return f"{self.stdout}\n{self.stderr}" if self.stderr else self.stdout
        return "" if self.kind == "bash" and self.result.exit_code is not None else ends_of(self.result.body)

    @cached_property
    def edited(self) -> str:
        """Path of the edited file, relative to the working folder in the sandbox. Empty for calls of other tools."""
        value = (self.call.arguments or {}).get("path")
        return path_below(value, self.root) if self.kind == "edit" and isinstance(value, str) else ""

    @cached_property
    def written(self) -> dict[str, str]:
        """Complete file contents that an editor call wrote, by path."""
        value = (self.call.arguments or {}).get("file_text")
        return {self.edited: value} if self.edited and isinstance(value, str) else {}

    @cached_property
    def text(self) -> str:
        """The shell command, or the texts of all arguments for calls of other tools."""
        if self.command:
            return self.command
        values = self.call.arguments or {}
        return " ".join(ends_of(value) for value in values.values() if isinstance(value, str))


def once(function: Callable[[Action], _T]) -> Callable[[Action], _T]:
    """Make `function` compute its result only once for each action."""

    @wraps(function)
    def known(action: Action) -> _T:
        if function not in action.known:
            action.known[function] = function(action)
        result: _T = action.known[function]
        return result

    return known


def ends_of(text: str) -> str:
    """Return the beginning and the end of a text. Very long words are cut, so that searches in the text stay fast."""
    if len(text) > 2 * _OUTPUT_CHARACTERS:
        text = f"{text[:_OUTPUT_CHARACTERS]}\n{text[-_OUTPUT_CHARACTERS:]}"
    return without_long_words(text)


def without_long_words(text: str) -> str:
    """Cut very long words in a text."""
    starts = range(0, len(text) - _WORD_CHARACTERS, _WORD_CHARACTERS)
    pieces = (text[start : start + _WORD_CHARACTERS] for start in starts)
    if all(" " in piece or "\n" in piece for piece in pieces):
        return text
    return _LONG_WORD.sub(lambda found: f"{found[0][:_WORD_CHARACTERS]} ", text)


def _named_folder(path: object, root: str) -> str:
    """Return the path of a folder that the prompts name, relative to `root`. Empty if the folder is elsewhere."""
    return path[len(root) + 1 :].rstrip("/") if isinstance(path, str) and path.startswith(f"{root}/") else ""


class Evidence:
    """Evidence from the record of a run. `take` adds the newest calls."""

    def __init__(self) -> None:
        self.trajectory = Trajectory()
        self.actions: list[Action] = []
        self.files: dict[str, list[Version]] = {}
        """All versions of each file by its path, oldest first."""
        self.answer: str | None = None
        """The answer. None as long as the run has no answer."""
        self.stop_reason: str | None = None
        """Reason of the run's end. None before the end."""
        self.output = "output"
        """Path of the folder for results, relative to the working folder that the prompts name."""
        self.input = "input"
        """Path of the folder with the input files, relative to the working folder that the prompts name."""
        self._steps: list[Step] | None = None
        self._at = (0, 0)
        self._by_name: dict[str, list[str]] = {}

    def take(self, trajectory: Trajectory) -> list[Action]:
        """Add and return the calls that have ended since the last `take`. After a change of branch, add all calls."""
        if self._steps is not trajectory.steps:
            self._begin(trajectory)
        new: list[Action] = []
        place, done = self._at
        while place < len(trajectory.steps):
            step = trajectory.steps[place]
            while done < len(step.calls) and step.calls[done].result is not None:
                new.append(self._add(step, step.calls[done]))
                done += 1
            if place + 1 == len(trajectory.steps) or done < len(step.calls):
                break
            place, done = place + 1, 0
        self._at = (place, done)
        return new

    def ended(self, finish: ev.RunFinished) -> Evidence:
        """Return a copy that includes the end of the run, which rules about the answer need."""
        other = copy.copy(self)
        for name in ("results", "answer_version", "chain"):
            other.__dict__.pop(name, None)
        other.answer = None if finish.answer is None else ends_of(finish.answer)
        other.stop_reason = finish.stop_reason
        return other

    @property
    def task(self) -> str:
        """Beginning and end of the task's text."""
        return ends_of(self.trajectory.start.task) if self.trajectory.start else ""

    @property
    def last_step(self) -> int:
        """Number of the last step."""
        return self.trajectory.steps[-1].number if self.trajectory.steps else 0

    @property
    def last_words(self) -> str:
        """The model's text in its last step."""
        return ends_of(self.trajectory.steps[-1].thought) if self.trajectory.steps else ""

    def newest(self, path: str) -> Version | None:
        """Return the newest version of a file. None if the file is not known or was removed."""
        versions = self.files.get(path)
        return versions[-1] if versions and not versions[-1].deleted else None

    def given(self, path: str) -> bool:
        """Return True if the file existed before the first step."""
        versions = self.files.get(path)
        if not versions:
            return False
        first = versions[0]
        return first.change is None or first.change.kind != "added"

    def is_result(self, path: str) -> bool:
        """Return True if the file is in the folder for results, or is the answer file."""
        return path.startswith(f"{self.output}/") or path == "answer.txt"

    @cached_property
    def results(self) -> list[Version]:
        """Newest versions of the result files that the run made. Computed once: rules read them only after the run."""
        found = (self.newest(path) for path in self.files if self.is_result(path))
        return [version for version in found if version is not None and version.action is not None]

    @cached_property
    def answer_version(self) -> Version | None:
        """The file with the answer. Computed once: rules read it only after the run."""
        for path in (f"{self.output}/answer.txt", "answer.txt"):
            version = self.newest(path)
            if version is not None and version.action is not None:
                text = version.text
                if text is None or self.answer is None or text.strip() == self.answer.strip():
                    return version
        return None

    @property
    def answer_step(self) -> int:
        """Number of the step that wrote the answer file, or of the last step if there is no answer file."""
        return self.answer_version.step if self.answer_version else self.last_step

    @cached_property
    def chain(self) -> list[Action]:
        """Actions that contributed to the results, newest first. Computed once: rules read them only after the run."""
        todo = [version.action for version in self.results if version.action]
        if not todo and self.actions:
            todo = [action for action in self.actions[-3:] if action.kind == "bash"]
        found: dict[int, Action] = {}
        while todo:
            action = todo.pop()
            if action.number not in found:
                found[action.number] = action
                todo += [version.action for version in action.reads if version.action]
                todo += [version.before.action for version in action.writes if version.before and version.before.action
                         and not self._whole(version)]  # fmt: skip
        return [found[number] for number in sorted(found, reverse=True)]

    @staticmethod
    def _whole(version: Version) -> bool:
        """Return True if a version keeps nothing of the previous version."""
        return version.change is not None and version.change.kind == "added"

    def find(self, names: list[str]) -> Iterator[str]:
        """Yield the paths of the known files that match an entry of `names`: a path, a file name, or a pattern."""
        patterns = 0
        for word in names:
            name = word.removeprefix("./").strip("[]{}").rstrip(".")
            if self.trajectory.root and name.startswith(f"{self.trajectory.root}/"):
                name = path_below(name, self.trajectory.root)
            if name in self.files:
                yield name
                continue
            last = name_of(name)
            for path in self._by_name.get(last, ()):
                if last == name or name.endswith(path) or path.endswith(f"/{name.lstrip('./')}"):
                    yield path
            if patterns < _MAX_PATTERNS and ("*" in name or "{" in name or "$" in name or "?" in name):
                patterns += 1
                yield from self._matching(_WILD.sub("*", name))

    def _matching(self, pattern: str) -> Iterator[str]:
        last = name_of(pattern)
        if not any(character.isalnum() for character in last):
            return
        folder = pattern.rpartition("/")[0]
        named = folder and "*" not in folder and not folder.startswith(("/", ".", "~"))
        for path in list(self.files)[:_MAX_FILES]:
            if fnmatch.fnmatchcase(name_of(path), last) and (not named or path.startswith(f"{folder}/")):
                yield path

    def _begin(self, trajectory: Trajectory) -> None:
        self.__init__()  # type: ignore[misc]
        self.trajectory, self._steps = trajectory, trajectory.steps
        start = trajectory.start
        if start is None:
            return
        prompts = start.settings.get("prompts")
        if isinstance(prompts, dict):
            root = str(prompts.get("working_dir"))
            self.output = _named_folder(prompts.get("output_dir"), root) or self.output
            self.input = _named_folder(prompts.get("input_dir"), root) or self.input
        for name in start.inputs[:_MAX_FILES]:
            self._remember(Version(f"{self.input}/{name}", None))

    def _add(self, step: Step, call: Call) -> Action:
        root = self.trajectory.root
        said = ends_of(f"{step.thought}\n{step.reasoning[-2_000:]}" if step.reasoning else step.thought)
        action = Action(len(self.actions), step.number, tool_kind(call.tool), call, said, root)
        before = self.actions[-1] if self.actions else None
        if before and before.call.arguments == call.arguments and before.result.body == action.result.body:
            action.repetitions = before.repetitions + 1
        self.actions.append(action)
        changes = [
            (path_below(change.path, root), change)
            for change in action.result.changes[:_MAX_CHANGES]
            if not is_aside(change.path)
        ]
        changed = dict(changes)
        action.reads = self._reads(action, changed)
        for path, change in changes:
            versions = self.files.get(path)
            version = Version(path, action, change, versions[-1] if versions else None)
            action.writes.append(version)
            self._remember(version)
        return action

    def _reads(self, action: Action, changed: dict[str, ev.FileDiff]) -> list[Version]:
        """Return the newest versions of the files that a call names, and of the files that named programs name."""
        if action.kind == "submit":
            return []
        todo = list(self.find([action.edited] if action.edited else names_in(action.text)))
        found: dict[str, Version] = {}
        while todo and len(found) < _MAX_READS:
            path = todo.pop(0)
            version = self.newest(path)
            if path in found or version is None:
                continue
            found[path] = version
            if ending_of(path) in PROGRAMS and path != action.edited and path not in changed:
                todo += self.find(version.names)
        return list(found.values())

    def _remember(self, version: Version) -> None:
        versions = self.files.get(version.path)
        if versions is not None:
            versions.append(version)
        elif len(self.files) < _MAX_FILES:
            self.files[version.path] = [version]
            self._by_name.setdefault(posixpath.basename(version.path), []).append(version.path)
