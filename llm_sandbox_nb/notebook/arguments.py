"""The options of `%%sandbox`: what they are called, what they mean, and clear words when they are wrong."""

from __future__ import annotations

import argparse
import difflib
import keyword
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument

from llm_sandbox_nb.notebook.errors import SandboxInputError, SandboxUsageError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|)")
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}
_NAME = re.compile(r"\{([^\W\d]\w*)\}")

_option: Any = argument
OPTIONS = [
    _option("-m", "--model", help="model, as LiteLLM names it (openai/gpt-5), or scripted/NAME"),
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
    _option("--steps", help="most steps (replies of the model)"),
    _option("--budget", metavar="DOLLARS", help="most money, in US dollars"),
    _option("--time", metavar="TIME", help="longest time: seconds, or 90s, 10m, 2h"),
    _option("--image", help="container image (docker)"),
    _option("--isolation", help="auto, docker, bubblewrap or process (none at all)"),
    _option("--profile", help="standard (root inside) or strict (no root, no network)"),
    _option("--network", help="none or open"),
    _option(
        "--fresh", action="store_true", help="start with a new, empty sandbox in place of the notebook's"
    ),
    _option(
        "--from-files-of",
        metavar="RUN[:STEP]",
        help="first give the sandbox the files that this run began with, or had after that step",
    ),
    _option("--step", action="store_true", help="stop before every tool call, and go on in steps"),
    _option(
        "--break",
        dest="breakpoints",
        action="append",
        default=[],
        metavar="EXPR",
        help="stop at calls such as \"tool == 'execute_bash' and 'rm ' in command\"; may be given several times",
    ),
    _option(
        "--break-when",
        action="append",
        default=[],
        metavar="NAME",
        help="stop when this function of yours says so; it gets the pending call, then the finished one",
    ),
    _option(
        "--approve",
        choices=("ask", "edits", "auto"),
        default="auto",
        help="ask before every call, only before commands (edits of files go through), or before none",
    ),
    _option(
        "--on-pause",
        choices=("ask", "wait", "stop", "continue", "go"),
        help="at a halt, where no Jupyter server can ask: ask in the cell (the default), wait, stop or continue",
    ),
    _option("--prompt-config", metavar="FILE", help="YAML file with the prompts"),
    _option("--vars", action="store_true", help="replace {name} in the task by the variable's value"),
    _option("--api-base", metavar="URL", help="address of the model's server"),
    _option("--api-key-env", metavar="VARIABLE", help="environment variable that holds the key"),
]


def with_options(function: Any) -> Any:
    """Put all `OPTIONS` on a magic; they are listed in this order by `%%sandbox?`."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function


def parse_line(parser: argparse.ArgumentParser, line: str) -> argparse.Namespace:
    """The options of a cell's first line.

    Raises:
        SandboxUsageError: there is no such option, or its value is missing.
    """
    try:
        words = shlex.split(line, comments=False)
    except ValueError as error:
        raise SandboxUsageError(f"The line of options cannot be read ({error}): check its quotes.") from error
    parser.allow_abbrev = False
    try:
        return parser.parse_args(words)
    except UsageError as error:
        raise SandboxUsageError(_explained(str(error), parser)) from None


def _explained(message: str, parser: argparse.ArgumentParser) -> str:
    unknown = message.removeprefix("unrecognized arguments: ")
    if unknown == message:
        return f"{message[:1].upper()}{message[1:]} (%%sandbox? explains all options)."
    word = (unknown.split() or [unknown])[0].partition("=")[0]
    if not word.startswith("-"):
        return f"{word!r} belongs to no option: the task goes below the first line (%%sandbox? explains all)."
    known = [name for action in parser._actions for name in action.option_strings]
    near = difflib.get_close_matches(word, known, 1)
    hint = f"did you mean {near[0]}? (" if near else "("
    return f"There is no option {word}: {hint}%%sandbox? explains all options)."


def positive_number(name: str, text: str) -> float:
    """The number an option was given.

    Raises:
        SandboxUsageError: it is none, or not above zero.
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise SandboxUsageError(f"--{name} takes a number above zero, not {text!r}.")
    return number


def whole_number(name: str, text: str) -> int:
    """The same for a count."""
    number = positive_number(name, text)
    if number != int(number):
        raise SandboxUsageError(f"--{name} takes a whole number, not {text!r}.")
    return int(number)


def seconds(text: str) -> float:
    """A time such as 90, 90s, 10m or 2h.

    Raises:
        SandboxUsageError: it is none of these.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    if not match or float(match[1]) == 0:
        raise SandboxUsageError(f"--time takes seconds or a time such as 90s, 10m or 2h, not {text!r}.")
    return float(match[1]) * _SECONDS[match[2]]


def variable_name(name: str) -> str:
    """A name that Python takes for a variable.

    Raises:
        SandboxUsageError: it is not one.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise SandboxUsageError(f"-o takes the name of a variable, not {name!r}.")
    return name


def fill_in(task: str, namespace: Mapping[str, Any]) -> str:
    """The task with each `{name}` replaced by the variable's value; any other brace is text.

    Raises:
        SandboxInputError: there is no such variable.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in namespace:
            raise SandboxInputError(
                f"The task names {match[0]}, but there is no such variable: define it, or leave out --vars."
            )
        return str(namespace[match[1]])

    return _NAME.sub(value, task)


def unknown_subcommand(name: str, known: Sequence[str]) -> str:
    """What to tell somebody who called `%sandbox` with something else."""
    listed = ", ".join(known)
    if not name:
        return f"%sandbox takes one of {listed}; a task goes into a cell that begins with %%sandbox."
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"There is no %sandbox {name}: {hint}Known are {listed} (%sandbox? explains them)."


def load_arguments(rest: str) -> tuple[str, str | None]:
    """The run and the variable of `%sandbox load RUN [-o NAME]`.

    Raises:
        SandboxUsageError: the words are others.
    """
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise SandboxUsageError(f"%sandbox load cannot be read ({error}): check the quotes.") from error
    if len(words) == 1:
        return words[0], None
    if len(words) == 3 and "-o" in words[:2]:
        place = words.index("-o")
        return (words[:place] + words[place + 2 :])[0], variable_name(words[place + 1])
    raise SandboxUsageError("The command is %sandbox load RUN [-o NAME]; %sandbox runs lists the runs.")
