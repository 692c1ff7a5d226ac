"""Line of a magic. A new option begins in `options/table.py`; only options of cells alone are here.

This module parses the line of `%%sandbox` and of the subcommands of `%sandbox`, replaces the variables in it, and words
the errors. `OPTIONS` lists all options of `%%sandbox`. It takes the shared options from `options/table.py`. An option
of cells alone, such as `--fresh`, needs a row in `OPTIONS`. `cell_task.py` reads its value; if the value is not an
argument of `solve`, `cell.py` uses it. Words for the Tab key are in `completion.py`. Options of the subcommands are in
`run_commands.py` and `sandbox_commands.py`.
"""

from __future__ import annotations

import argparse
import keyword
import os
import re
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from IPython.core.error import UsageError as MagicError
from IPython.core.magic_arguments import argument

from llm_sandbox_nb.notebook.errors import SandboxInputError, SandboxUsageError
from llm_sandbox_nb.options.parser import nearest
from llm_sandbox_nb.options.table import RESOURCE_OPTIONS, RUN_OPTIONS, Option, UsageError, option
from llm_sandbox_nb.options.values import converted

_BRACED_NAME = re.compile(r"\{([^\W\d]\w*)\}")
_VARIABLE = re.compile(r"\$([^\W\d]\w*)|\{([^\W\d]\w*)\}")

_option: Any = argument
_NOT_IN_CELLS = {
    *("api_key", "input_dir", "output_dir", "save_litellm_response", "extra_body", "max_tokens_per_call"),
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "ca_bundle", "index_url", "proxy"),
    *(row.name for row in RESOURCE_OPTIONS),
}
"""Options of the command line that a cell lacks. `%config` sets most of them, because they apply to all cells."""
_IN_CELLS: dict[str, dict[str, Any]] = {
    "tool": {
        "dest": "tools",
        "metavar": "NAME",
        "help": "your function of this name, which the model can call too; may be repeated",
    },
    "doubt": {
        "dest": "doubts",
        "metavar": "NAME",
        "help": "your function of this name, which returns reasons why the result may be wrong; may be repeated",
    },
    "check": {"help": f"{option('check').help}; or the name of your function of the run"},
    "break": {"dest": "breakpoints"},
    "break_when": {
        "metavar": "NAME",
        "help": "pause when your function of this name returns true; it is called before and after each tool call",
    },
    "approve": {"choices": ("ask", "edits", "auto"), "default": "auto"},
    "on_pause": {
        "choices": ("ask", "wait", "stop", "continue", "go"),
        "help": "what happens at a pause if no Jupyter server can ask: ask here (the default), wait, stop the run, or "
        "continue",
    },
}
"""Differences of options in a cell from those of the command line. For example, a name may mean a function."""


def _of_table(described: Option) -> Any:
    """Return an option of a cell with the names and help text of the same option of the command line."""
    flags = [f"-{described.short}"] if described.short else []
    flags.append(f"--{described.name.replace('_', '-')}")
    form: dict[str, Any] = {"metavar": described.metavar, "help": described.help}
    if described.switch:
        form = {"action": "store_true", "help": described.help}
    elif described.many:
        form |= {"action": "append", "default": []}
    return _option(*flags, **form | _IN_CELLS.get(described.name, {}))


OPTIONS = [
    _option(
        "-i",
        "--input",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="files, folders or variables for the input folder (a DataFrame as a table, others as JSON)",
    ),
    _option("-o", "--out", metavar="NAME", help="variable that gets the Run, also when the run fails"),
    _option(
        "--fresh", action="store_true", help="replace the notebook's sandbox with a new, empty one first"
    ),
    _option(
        "--from-files-of",
        metavar="RUN[:STEP]",
        help="first give the sandbox the files that this run began with, or had after that step",
    ),
    _option("--vars", action="store_true", help="replace {name} in the task by the variable's value"),
    *(_of_table(described) for described in RUN_OPTIONS if described.name not in _NOT_IN_CELLS),
]


def with_options(function: Any) -> Any:
    """Add all `OPTIONS` to a magic, in the order in which `%%sandbox?` lists them."""
    for decorate in reversed(OPTIONS):
        function = decorate(function)
    return function


def with_variables(words: Sequence[str], namespace: Mapping[str, Any]) -> list[str]:
    """Return the words with `$name` and `{name}` replaced by the variable's value, as in IPython's own magics.

    Words with blanks, and the words after `--break`, are texts and expressions, so they stay unchanged.

    Raises:
        SandboxInputError: if a whole word is the name of a missing variable, or if a variable holds neither text, a
            path nor a number. A missing variable in a longer word stays unchanged.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in namespace:
            if match[0] == match.string:
                raise SandboxInputError(f"The variable {name} of {match[0]} is not defined: define it first.")
            return match[0]
        found = namespace[name]
        if not isinstance(found, str | int | float | os.PathLike):
            kind = type(found).__name__
            raise SandboxInputError(
                f"{match[0]} is a {kind}, neither text, a path nor a number: name it without $ and braces."
            )
        return str(found)

    before = ["", *words]
    return [
        word
        if re.search(r"\s", word) or previous == "--break" or word.startswith("--break=")
        else _VARIABLE.sub(value, word)
        for previous, word in zip(before, words, strict=False)
    ]


def line_with_variables(rest: str, namespace: Mapping[str, Any]) -> str:
    """Return the words after a subcommand of `%sandbox`, after `with_variables` has replaced the variables.

    Raises:
        SandboxInputError: as `with_variables`.
    """
    try:
        words = shlex.split(rest)
    except ValueError:
        return rest  # the command reports the wrong quotes
    replaced = with_variables(words, namespace)
    return rest if replaced == words else shlex.join(replaced)


def parse_line(
    parser: argparse.ArgumentParser, line: str, namespace: Mapping[str, Any] | None = None
) -> argparse.Namespace:
    """Return the options of a cell's first line; `namespace` holds the variables for `$name` and `{name}`.

    Raises:
        SandboxInputError: if a variable is missing.
        SandboxUsageError: if an option is unknown, or its value is missing.
    """
    try:
        words = shlex.split(line, comments=False)
    except ValueError as error:
        raise SandboxUsageError(f"The line of options cannot be read ({error}): check its quotes.") from error
    parser.allow_abbrev = False
    try:
        return parser.parse_args(words if namespace is None else with_variables(words, namespace))
    except MagicError as error:
        raise SandboxUsageError(_explained(str(error), parser)) from None


def _explained(message: str, parser: argparse.ArgumentParser) -> str:
    unknown = message.removeprefix("unrecognized arguments: ")
    if unknown == message:
        return f"{message[:1].upper()}{message[1:]} (%%sandbox? explains all options)."
    word = (unknown.split() or [unknown])[0].partition("=")[0]
    if not word.startswith("-"):
        return f"{word!r} does not belong to an option: write the task below the first line (see %%sandbox?)."
    known = [name for action in parser._actions for name in action.option_strings]
    near = nearest(word, known)
    hint = f"did you mean {near}? " if near else ""
    return f"Unknown option {word}: {hint}%%sandbox? explains all options."


def option_value(name: str, text: str) -> Any:
    """Convert the value of an option that exists on the command line too.

    Raises:
        SandboxUsageError: if the value is not valid.
    """
    try:
        return converted(option(name), text, f"--{name.replace('_', '-')}")
    except UsageError as error:
        raise SandboxUsageError(str(error)) from None


def variable_name(name: str) -> str:
    """Return the name of a variable in the form in which Python keeps it: some Unicode letters have two forms.

    Raises:
        SandboxUsageError: if the name is not valid.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise SandboxUsageError(f"-o must be the name of a variable, not {name!r}.")
    return unicodedata.normalize("NFKC", name)


def fill_in(task: str, namespace: Mapping[str, Any]) -> str:
    """Return the task with each `{name}` replaced by the variable's value. All other braces stay as they are.

    Raises:
        SandboxInputError: if a variable is missing.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in namespace:
            raise SandboxInputError(
                f"The task names {match[0]}, but that variable is not defined: define it, or leave out --vars."
            )
        return str(namespace[match[1]])

    return _BRACED_NAME.sub(value, task)


def unknown_subcommand(name: str, known: Sequence[str]) -> str:
    """Return the error message for an unknown subcommand of `%sandbox`."""
    listed = ", ".join(known)
    if not name:
        return f"The subcommands of %sandbox are {listed}; write a task in a cell that begins with %%sandbox."
    near = nearest(name, known)
    hint = f"did you mean {near}? " if near and name != "help" else ""
    return f"Unknown subcommand %sandbox {name}: {hint}%sandbox? explains all commands, which are {listed}."


def split_words(usage: str, rest: str, least: int, most: int) -> list[str]:
    """Return the words after a subcommand of `%sandbox`; `usage` is the form that the error shows.

    Raises:
        SandboxUsageError: if a quote is not closed, or there are too few or too many words.
    """
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise SandboxUsageError(f"%sandbox {usage} cannot be read ({error}): check the quotes.") from error
    check_count(usage, words, least, most)
    return words


def check_count(usage: str, words: Sequence[str], least: int, most: int) -> None:
    """Raise SandboxUsageError if there are too few or too many words; `usage` is the form that the error shows."""
    if not least <= len(words) <= most:
        raise SandboxUsageError(f"The command is %sandbox {usage}.")


def take_flag(words: list[str], option: str) -> bool:
    """Remove an option from the words. Return True if the words contained the option."""
    there = option in words
    if there:
        words.remove(option)
    return there


def take_value(usage: str, words: list[str], option: str) -> str | None:
    """Remove an option and its value from the words. Return the value, or None if the option is missing.

    Raises:
        SandboxUsageError: if the option has no value; `usage` is the form that the error shows.
    """
    if option not in words:
        return None
    place = words.index(option)
    check_count(usage, words[place + 1 :], 1, len(words))
    value = words[place + 1]
    del words[place : place + 2]
    return value


def load_arguments(rest: str) -> tuple[str, str | None]:
    """Return the run and the variable of `%sandbox load RUN [-o NAME]`.

    Raises:
        SandboxUsageError: if the words do not have this form.
    """
    usage = "load RUN [-o NAME]; %sandbox runs lists the runs"
    words = split_words(usage, rest, 1, 3)
    variable = take_value(usage, words, "-o")
    check_count(usage, words, 1, 1)
    return words[0], None if variable is None else variable_name(variable)
