"""An argument parser with options from the table, one-sentence errors, and suggestions for mistyped words."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from llm_sandbox_nb.options.table import Option, UsageError

VALUES_FROM = """\
The first of these sources that has a value is used: the flag, the environment variable, the project's settings file
(llm-sandbox-nb.toml here or in a folder above), your settings file (~/.config/llm-sandbox-nb/settings.toml), the
default. --settings or $LLM_SANDBOX_SETTINGS names a settings file that is used instead of these two files.
`llm-sandbox-nb settings` shows every value and its source"""
RUN_EPILOG = f"""\
{VALUES_FROM}.

Exit codes: 0 the run ended well, 2 the command line or a file it names is wrong, 3 the model failed,
4 no sandbox, 5 a limit was reached, 6 the model gave no answer, 7 the check of the result failed, 130 interrupted,
1 anything else.
"""
RESUME_EPILOG = """\
Model, limits, sampling and the rest stay as they were, except for options given here. Records lack the address and
key of the model: give them as for `run`. Exit codes are those of `run`.
"""


class _Spelled(argparse.Action):
    """Action that also stores the name with which a flag was given. A flag has several names, and messages repeat this
    name.
    """

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace.spelled = {**getattr(namespace, "spelled", {}), self.dest: option_string}
        super().__call__(parser, namespace, values, option_string)


class _Store(_Spelled, argparse._StoreAction):
    pass


class _Append(_Spelled, argparse._AppendAction):
    pass


class Parser(argparse.ArgumentParser):
    """Argument parser that raises errors as one sentence. Flags may be written with `_` or `-`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with argparse's message instead of exiting."""
        raise UsageError(f"{_sentence(message)}; see `{self.prog} --help`.")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse known flags. A long flag may also have a single dash, as in the paper's package."""
        words = sys.argv[1:] if args is None else args
        return super().parse_known_args([self._with_two_dashes(word) for word in words], namespace)

    def _with_two_dashes(self, word: str) -> str:
        name = word.partition("=")[0]
        return f"-{word}" if len(name) > 2 and f"-{name}" in self._option_string_actions else word

    def add_option(self, group: argparse._ActionsContainer, option: Option) -> None:
        """Add one option of the table."""
        names = dict.fromkeys(
            f"--{name}"
            for spelling in (option.name, *option.aliases)
            for name in (spelling, spelling.replace("_", "-"))
        )
        if option.short:
            names = {f"-{option.short}": None} | names
        shown = ",".join(option.default) if isinstance(option.default, tuple) else option.default
        default = "" if option.default in (None, []) else f" (default: {shown})"
        environment = f" [${', $'.join(option.environment)}]" if option.environment else ""
        text = f"{option.help}{default}{environment}".replace("%", "%%")
        common: dict[str, Any] = {"dest": option.name, "metavar": option.metavar, "help": text}
        if option.switch:
            group.add_argument(*names, **common, action=_Store, nargs="?", const="true")
        elif option.many:
            group.add_argument(*names, **common, action=_Append)
        else:
            group.add_argument(*names, **common, action=_Store)

    def unknown(self, words: list[str]) -> NoReturn:
        """Raise UsageError for unknown words. The message suggests the nearest known flag."""
        word = words[0].partition("=")[0]
        known = [name for action in self._actions for name in action.option_strings]
        if word.startswith("-"):
            near = nearest(word, known)
            hint = f"; did you mean {near}?" if near else ";"
            raise UsageError(f"Unknown option {word}{hint} see `{self.prog} --help`.")
        model = ", and name the model with --model" if "--model" in known else ""
        raise UsageError(
            f"Unexpected {word!r}; put quotes around a text of several words{model}; see `{self.prog} --help`."
        )


def _sentence(message: str) -> str:
    message = message.removeprefix("argument ")
    if message.endswith("expected one argument"):
        message += " (a value that begins with a dash is written after `=`)"
    return message[:1].upper() + message[1:]


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Return the end of an error message about an unknown word: the nearest known word, or all known words."""
    close = nearest(word, known)
    return f"; did you mean {close}?" if close else f"; known are {', '.join(known)}."


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that differs from `word` by the fewest typing mistakes; None if all differ too much.

    Of two words with equally many mistakes, the word with the nearer length is returned: `--model` for `--modle`, not
    `--mode`.
    """
    plain = _letters(word)
    found = []
    for candidate in known:
        other = _letters(candidate)
        if (mistakes := typing_mistakes(plain, other)) <= max(1, len(plain) // 3) and mistakes < len(plain):
            found.append(
                (mistakes, abs(len(plain) - len(other)), typing_mistakes(word[:40], candidate), candidate)
            )
    return min(found)[-1] if found else None


def _letters(word: str) -> str:
    return word.lstrip("-").replace("_", "-").lower()[:40]


def typing_mistakes(one: str, other: str) -> int:
    """Count the letter changes (add, remove, replace, swap) that turn one word into the other."""
    before, row = list[int](), list(range(len(other) + 1))
    for place, letter in enumerate(one, 1):
        last, before, row = before, row, [place]
        for column, wanted in enumerate(other, 1):
            cost = min(before[column] + 1, row[-1] + 1, before[column - 1] + (letter != wanted))
            if place > 1 < column and (letter, one[place - 2]) == (other[column - 2], wanted):
                cost = min(cost, last[column - 2] + 1)
            row.append(cost)
    return row[-1]


def add_runs_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for listing and removing runs to the parser of a command."""
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    parser.add_argument("--prune", action="store_true", help="remove runs, with all their files; asks first")
    parser.add_argument(
        "--older-than",
        "--older_than",
        metavar="DAYS",
        help="with --prune: runs whose last event is more than DAYS days old",
    )
    parser.add_argument("--keep", metavar="N", help="with --prune: all but the newest N runs")
    parser.add_argument("--yes", action="store_true", help="with --prune: remove without asking")


def prune_rule(arguments: argparse.Namespace) -> tuple[float | None, int | None]:
    """Return the values of `--older-than`, in days, and of `--keep`, a number of runs. None if a flag is not given.

    Raises:
        UsageError: if a value is invalid, if a flag is given without `--prune`, or if `--prune` has neither flag.
    """
    older, keep = arguments.older_than, arguments.keep
    if not arguments.prune:
        if older is not None or keep is not None or arguments.yes:
            raise UsageError("--older-than, --keep and --yes belong to --prune: add --prune to remove runs.")
        return None, None
    if older is None and keep is None:
        raise UsageError(
            "Choose the runs: --prune --older-than 30 (days), or --prune --keep 20 (the newest)."
        )
    if keep is not None and not keep.isdecimal():
        raise UsageError(f"--keep must be the number of newest runs to keep, not {keep!r}.")
    return _days(older), None if keep is None else int(keep)


def _days(word: str | None) -> float | None:
    if word is None:
        return None
    try:
        days = float(word.removesuffix("d"))
    except ValueError:
        days = -1.0
    if not 0 <= days < 1_000_000:
        raise UsageError(f"--older-than must be a number of days, such as 30, not {word!r}.")
    return days
