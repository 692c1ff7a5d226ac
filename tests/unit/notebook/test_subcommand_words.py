"""Completion offers each option that a subcommand of `%sandbox` reads."""

from __future__ import annotations

import ast
import inspect
import textwrap

from llm_sandbox_nb.notebook.completion import SUBCOMMAND_OPTIONS
from llm_sandbox_nb.notebook.run_commands import RunCommands
from llm_sandbox_nb.notebook.sandbox_commands import SandboxCommands

FRONT_END = {"--json"}
SAME_AS = {"--out": "-o"}


def options_read(method: object) -> set[str]:
    """The options that are written in the code of a method."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(method)))  # type: ignore[arg-type]
    words = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {
        SAME_AS.get(word, word)
        for word in words
        if word.startswith("--") and word.isascii() and " " not in word
    }


def test_options_of_subcommands_are_offered() -> None:
    read = {
        name: options_read(method) - FRONT_END
        for commands in (RunCommands, SandboxCommands)
        for name, method in vars(commands).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }
    assert {"--say", "--edit"} <= read["resume"]
    missing = {name: words - {*SUBCOMMAND_OPTIONS.get(name, ())} for name, words in read.items()}
    assert {name: words for name, words in missing.items() if words} == {}
