"""Tab completion in the first line of `%%sandbox`, and after `%sandbox`. It never executes the user's code."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from llm_sandbox_nb.known_keys import PROVIDERS
from llm_sandbox_nb.model.model_names import model_names
from llm_sandbox_nb.options.table import RUN_OPTIONS, OneOf
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.sandbox.isolations import isolation_choices
from llm_sandbox_nb.sandbox.network.policy import NAMED_SETS
from llm_sandbox_nb.trajectory.run_folder import run_folders, short_ids

_MAX_NAMES = 200
_MAX_RUNS = 50
SUBCOMMAND_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "load": ("-o",),
    "fork": ("-o", "--run"),
    "rewind": ("both", "files", "conversation", "--others", "--run"),
    "preview": ("both", "files", "conversation", "--run"),
    "undo": ("--others", "--run"),
    "resume": ("--say", "--edit", "--in-place", "--mcp", "--mcp-allow", "--others", "--run"),
    "compare": ("--run",),
    "replay": ("--ignore", "--ignore-files", "--run"),
    "runs": ("--prune", "--older-than", "--keep", "--yes", "--json"),
    "stop": ("--idle",),
    "get": ("--replace",),
    "mcp": ("--approve", "--out", "--new-token", "--stop", "--revoke"),
    "benchmark": ("list", "run", "report", "score", "compare"),
    "train": ("run", "watch", "evaluate", "data"),
    "model": ("--local", "--api-base"),
    "key": (*PROVIDERS, "--forget"),
}
"""Words that the Tab key offers after each subcommand of `%sandbox`. Most lack `--json`, which is for programs."""
_WORDS = {option.name: option.convert.words for option in RUN_OPTIONS if isinstance(option.convert, OneOf)}
"""Accepted words of each option that accepts only certain words, by the name of the option."""
_WITH_RUNS = ("load", "export", "compare")
_WITH_FILES = ("put",)


class Names(Protocol):
    """The parts of `SandboxMagics` that completion reads."""

    model: Any
    shell: Any
    subcommands: tuple[str, ...]

    @property
    def sandbox_cell(self) -> Any:
        """The cell magic, whose attribute `parser` knows the options."""
        ...

    @property
    def folder(self) -> Path:
        """The folder with the runs of the notebook."""
        ...


Completion = tuple[str, list[str]]
"""The word at the cursor, and the texts that may replace this word."""


def complete_cell(line: str, magics: Names) -> Completion:
    """Complete the first line of a cell; `line` ends at the cursor."""
    before, word = _split(line)
    parser: argparse.ArgumentParser = magics.sandbox_cell.parser
    options = parser._option_string_actions
    flag, equals, begun = word.partition("=")
    if equals and flag in options:
        return begun, _values(options[flag].dest, begun, magics)
    open_option = _open_option(before, options)
    values = _values(open_option, word, magics) if open_option else []
    if word.startswith("-") or not values:
        return word, [*values, *_beginning(word, [name for name in options if name.startswith("--")])]
    return word, values


def complete_line(line: str, magics: Names) -> Completion:
    """Complete a line that begins with `%sandbox` and ends at the cursor."""
    before, word = _split(line)
    if not before:
        return word, _beginning(word, magics.subcommands)
    name, previous = before[0], before[-1]
    if previous == "--run" or (name in _WITH_RUNS and not word.startswith("-") and previous != "-o"):
        return word, _runs(word, magics)
    if name in _WITH_FILES:
        return word, _files(word)
    if (name == "benchmark" and previous == "--model") or (name == previous == "model" and word[:1] != "-"):
        return word, _values("model", word, magics)
    return word, _beginning(word, SUBCOMMAND_OPTIONS.get(name, ()))


def _split(line: str) -> tuple[list[str], str]:
    """Return the words between the magic's name and the cursor, and the word at the cursor, which may be empty."""
    words = line.split()
    word = "" if not line or line[-1].isspace() else words.pop()
    return words[1:], word


def _open_option(before: list[str], options: Mapping[str, argparse.Action]) -> str | None:
    """Return the name (`dest`) of the option whose value is being typed at the cursor, or None."""
    for distance, word in enumerate(reversed(before)):
        if word in options:
            action = options[word]
            takes_next = action.nargs == "+" or (action.nargs is None and distance == 0)
            return action.dest if takes_next else None
    return None


def _values(name: str, begun: str, magics: Names) -> list[str]:
    """Return the possible values of the option `name` that begin with `begun`."""
    namespace: dict[str, Any] = magics.shell.user_ns
    kinds: Mapping[str, Callable[[], Iterable[str]]] = {
        "model": lambda: _models(begun, magics),
        "isolation": lambda: isolation_choices(),
        "allow": lambda: NAMED_SETS,
        "on_pause": lambda: ("ask", "wait", "stop", "continue"),
        "input": lambda: [*_files(begun), *_variables(namespace, lambda value: not callable(value))],
        "break_when": lambda: _variables(namespace, callable),
        "tools": lambda: _variables(namespace, callable),
        "doubts": lambda: _variables(namespace, callable),
        "from_files_of": lambda: _runs(begun, magics),
        "prompt_config": lambda: _files(begun, (".yaml", ".yml")),
        "api_key_env": lambda: [name for name in os.environ if name.endswith(("KEY", "TOKEN"))],
    }
    words = kinds[name]() if name in kinds else _WORDS.get(name, ())
    return _beginning(begun, words)


def _models(begun: str, magics: Names) -> list[str]:
    found = [magics.model, *model_names(begun, os.environ)]
    if begun.startswith("scripted/"):
        found += [f"scripted/{path}" for path in _files(begun.removeprefix("scripted/"), (".yaml", ".yml"))]
    return list(filter(None, found))


def _runs(begun: str, magics: Names) -> list[str]:
    """Return short ids of the notebook's newest runs, or full names if no short id begins with `begun`."""
    folders = run_folders(magics.folder)[-_MAX_RUNS:]
    short = short_ids(folders)
    offered = [short[folder] for folder in reversed(folders)]
    return _beginning(begun, offered) or _beginning(begun, [folder.name for folder in folders])


def _files(begun: str, endings: tuple[str, ...] = ()) -> list[str]:
    """Return the files and folders whose paths begin with `begun`. A folder ends with a slash.

    Names that need quotes are left out.
    """
    head, slash, tail = begun.rpartition("/")
    try:
        entries = islice(os.scandir(expanded(head + slash or ".")), 10 * _MAX_NAMES)
        found = [(entry.name, entry.is_dir()) for entry in entries if entry.name.startswith(tail)]
    except OSError:
        return []
    shown = [
        f"{head}{slash}{name}{'/' if folder else ''}"
        for name, folder in sorted(found)
        if (folder or not endings or name.endswith(endings))
        and (tail.startswith(".") or not name.startswith("."))
    ]
    return [name for name in shown if name.isprintable() and not set(name) & set(" \t'\"\\")]


def _variables(namespace: Mapping[str, Any], wanted: Callable[[Any], bool]) -> list[str]:
    """Return the names of the user's variables for whose value `wanted` returns true.

    Modules, names that begin with `_` and IPython's own variables are left out.
    """
    hidden = {"In", "Out", "exit", "quit", "get_ipython", "open"}
    return [
        name
        for name, value in list(namespace.items())
        if not name.startswith("_")
        and name not in hidden
        and wanted(value)
        and type(value).__name__ != "module"
    ]


def _beginning(begun: str, names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name for name in names if name.startswith(begun)))[:_MAX_NAMES]
