"""argparse, with options from the table and errors as one sentence."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from llm_sandbox_nb.options.nearest import nearest
from llm_sandbox_nb.options.table import Option, UsageError

VALUES_FROM = """\
A value comes from its flag, else an environment variable, else the project's settings file (llm-sandbox-nb.toml
here or in a folder above), else yours (~/.config/llm-sandbox-nb/settings.toml), else it is the default. --settings
or $LLM_SANDBOX_SETTINGS names another file instead. `llm-sandbox-nb settings` shows every value and its source"""
RUN_EPILOG = f"""\
{VALUES_FROM}.

Exit codes: 0 the run ended well, 2 the command line or a file it names is wrong, 3 the model failed,
4 no sandbox, 5 a limit was reached, 130 interrupted, 1 anything else.
"""


class _Spelled(argparse.Action):
    """Keeps how a flag was written, for messages about its value: it may be one of several names."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace.spelled = {**getattr(namespace, "spelled", {}), self.dest: option_string}
        super().__call__(parser, namespace, values, option_string)


class _Store(_Spelled, argparse._StoreAction):
    pass


class _Append(_Spelled, argparse._AppendAction):
    pass


class Parser(argparse.ArgumentParser):
    """argparse, with errors as one sentence and flags that may be written with `_` or `-`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print and exit with."""
        raise UsageError(f"{_sentence(message)}; see `{self.prog} --help`.")

    def add_option(self, group: argparse._ActionsContainer, option: Option) -> None:
        """Add one option of the table."""
        names = dict.fromkeys(
            f"--{name}" for one in (option.name, *option.aliases) for name in (one, one.replace("_", "-"))
        )
        if option.short:
            names = {f"-{option.short}": None} | names
        default = "" if option.default in (None, []) else f" (default: {_shown(option.default)})"
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
        """Raise about words that are no option, naming the closest one."""
        word = words[0].partition("=")[0]
        known = [name for action in self._actions for name in action.option_strings]
        if word.startswith("-"):
            raise UsageError(f"Unknown option {word}{_hint(word, known)} see `{self.prog} --help`.")
        raise UsageError(
            f"Unexpected {word!r}; put quotes around a text of several words; see `{self.prog} --help`."
        )


def _shown(default: Any) -> str:
    return ",".join(default) if isinstance(default, tuple) else str(default)


def _hint(word: str, known: list[str]) -> str:
    near = nearest(word, known)
    return f"; did you mean {near}?" if near else ";"


def _sentence(message: str) -> str:
    message = message.removeprefix("argument ")
    if message.endswith("expected one argument"):
        message += " (one that begins with a dash is written after `=`)"
    return message[:1].upper() + message[1:]
