"""argparse, with options from the table and errors as one sentence."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from llm_sandbox_nb.options.errors import UsageError
from llm_sandbox_nb.options.table import Option
from llm_sandbox_nb.options.values import did_you_mean

VALUES_FROM = """\
A value comes from its flag, else an environment variable, else a settings file, else it is the default.
Settings file: --settings, $LLM_SANDBOX_SETTINGS, ./llm-sandbox-nb.yaml, ./llm-in-sandbox.yaml,
~/.config/llm-sandbox-nb/settings.yaml or ~/.llm-in-sandbox/config.yaml; its keys are the flags' names"""
RUN_EPILOG = f"""\
{VALUES_FROM}.

Exit codes: 0 the run ended well, 2 the command line or a file it names is wrong, 3 the model failed,
4 no sandbox, 5 a limit was reached, 130 interrupted, 1 anything else.
"""


class Parser(argparse.ArgumentParser):
    """argparse, with errors as one sentence and flags that may be written with `_` or `-`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print and exit with."""
        raise UsageError(f"{_sentence(message)}; see `{self.prog} --help`.")

    def add_option(self, group: argparse._ActionsContainer, option: Option) -> None:
        """Add one option of the table."""
        names = dict.fromkeys((f"--{option.name}", f"--{option.name.replace('_', '-')}"))
        default = "" if option.default in (None, []) else f" (default: {_shown(option.default)})"
        environment = f" [${', $'.join(option.environment)}]" if option.environment else ""
        text = f"{option.help}{default}{environment}".replace("%", "%%")
        if option.switch:
            group.add_argument(*names, metavar=option.metavar, help=text, nargs="?", const="true")
        elif option.many:
            group.add_argument(*names, metavar=option.metavar, help=text, action="append")
        else:
            group.add_argument(*names, metavar=option.metavar, help=text)

    def unknown(self, words: list[str]) -> NoReturn:
        """Raise about words that are no option, naming the closest one."""
        word = words[0].partition("=")[0]
        known = [name for action in self._actions for name in action.option_strings]
        if word.startswith("-"):
            raise UsageError(f"Unknown option {word}{_closest(word, known)} see `{self.prog} --help`.")
        raise UsageError(
            f"Unexpected {word!r}; put quotes around a text of several words; see `{self.prog} --help`."
        )


def _shown(default: Any) -> str:
    return ",".join(default) if isinstance(default, tuple) else str(default)


def _closest(word: str, known: list[str]) -> str:
    hint = did_you_mean(word, known)
    return hint if hint.startswith("; did you mean") else ";"


def _sentence(message: str) -> str:
    message = message.removeprefix("argument ")
    if message.endswith("expected one argument"):
        message += " (one that begins with a dash is written after `=`)"
    return message[:1].upper() + message[1:]
