"""The code in a turn: commands, programs given on a command line or in a here-document, edited files."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llm_sandbox_nb.analysis.shell_parser import Command, shell_commands

_LANGUAGES = {
    ".py": "python", ".sh": "shell", ".bash": "shell", ".c": "curly", ".cc": "curly", ".cpp": "curly",
    ".js": "curly", ".mjs": "curly", ".ts": "curly", ".java": "curly", ".rs": "curly", ".go": "curly",
}  # fmt: skip
_INTERPRETERS = {"python": "python", "pypy": "python", "node": "curly", "bash": "shell", "sh": "shell",
                 "zsh": "shell", "dash": "shell"}  # fmt: skip
_DEEPEST = 6
BASH_TOOLS = frozenset({"execute_bash", "bash", "shell"})
EDITOR_TOOLS = frozenset({"str_replace_editor", "file_editor", "str_replace_based_edit_tool"})
SUBMIT_TOOLS = frozenset({"submit", "finish"})
"""Names of the three tools: the paper's package, its third version, and ours."""


@dataclass(frozen=True)
class Code:
    """A program text in one language: `python`, `curly` (C and its kind)."""

    language: str
    text: str


@dataclass(frozen=True)
class Parts:
    """What one call consists of: shell commands, programs, and whether the editor looked at something."""

    commands: tuple[Command, ...] = ()
    programs: tuple[Code, ...] = ()
    viewed: bool = False


def parts_of_call(tool: str, arguments: Mapping[str, Any] | None) -> Parts:
    """The code of one call; arguments that are none give nothing."""
    arguments = arguments or {}
    if tool in BASH_TOOLS:
        return parts_of_shell(_text(arguments.get("command")))
    if tool not in EDITOR_TOOLS:
        return Parts()
    if arguments.get("command") == "view":
        return Parts(viewed=True)
    text = "\n".join(filter(None, (_text(arguments.get("file_text")), _text(arguments.get("new_str")))))
    return parts_of_file(_text(arguments.get("path")), text)


def parts_of_file(path: str, text: str) -> Parts:
    """The code of a file; a file that is no program has none."""
    language = _LANGUAGES.get(posixpath.splitext(path)[1].lower())
    if language is None and text.startswith("#!"):
        language = _interpreter(text.partition("\n")[0].split()[-1:])
    return _parts(language, text, 0)


def parts_of_shell(text: str, depth: int = 0) -> Parts:
    """The commands of shell code, and the programs that it hands to interpreters or writes to files."""
    commands: list[Command] = []
    programs: list[Code] = []
    for command in shell_commands(text):
        command.words = unwrapped(command.words)
        commands.append(command)
        for language, inner in _inner_programs(command):
            part = _parts(language, inner, depth + 1)
            commands += part.commands
            programs += part.programs
    return Parts(tuple(commands), tuple(programs))


def _parts(language: str | None, text: str, depth: int) -> Parts:
    if language is None or depth > _DEEPEST:
        return Parts()
    if language == "shell":
        return parts_of_shell(text, depth)
    return Parts(programs=(Code(language, text),))


def _inner_programs(command: Command) -> Iterator[tuple[str | None, str]]:
    words = command.words
    language = _interpreter(words)
    if words[:1] == ["eval"]:
        yield "shell", " ".join(words[1:])
    if language is not None:
        flag = next((n for n, word in enumerate(words) if n and _takes_code(word, language)), None)
        if flag is not None and flag + 1 < len(words):
            yield language, words[flag + 1]
        elif not [word for word in words[1:] if not word.startswith("-")]:
            yield from ((language, text) for text in (_stdin(command),) if text)
    elif command.here is not None and words and posixpath.basename(words[0]) in ("cat", "tee"):
        targets = [*command.writes, *(word for word in words[1:] if not word.startswith("-"))]
        for target in targets:
            yield _LANGUAGES.get(posixpath.splitext(target)[1].lower()), command.here


def _takes_code(word: str, language: str) -> bool:
    if language == "curly":
        return word in ("-e", "--eval", "-p")
    return word.startswith("-") and not word.startswith("--") and word.endswith("c")


def _stdin(command: Command) -> str | None:
    if command.here is not None:
        return command.here
    source = command.upstream
    return source.here if source and source.words[:1] == ["cat"] else None


def _interpreter(words: list[str]) -> str | None:
    if not words:
        return None
    name = posixpath.basename(words[0]).rstrip("0123456789.")
    return _INTERPRETERS.get(name)


_WRAPPERS = {
    "sudo": "uhpg", "env": "uC", "timeout": "ks", "nohup": "", "nice": "n", "ionice": "cn", "time": "fo",
    "stdbuf": "ioe", "exec": "a", "command": "", "unbuffer": "", "setsid": "", "chroot": "", "xargs": "nIPLadsE",
}  # fmt: skip
XARGS = "<from xargs>"
"""Stands for the operands that `xargs` adds."""


def unwrapped(words: list[str]) -> list[str]:
    """The words of the command that is really run: without `sudo`, `timeout 60`, `env A=b`, `xargs`, ..."""
    while words and (name := posixpath.basename(words[0])) in _WRAPPERS:
        rest = _skip_options(words[1:], _WRAPPERS[name])
        if name in ("timeout", "chroot") and rest:
            rest = rest[1:]
        while rest and "=" in rest[0] and not rest[0].startswith("="):
            rest = rest[1:]
        if not rest:
            return words
        words = [*rest, XARGS] if name == "xargs" else rest
    return words


def _skip_options(words: list[str], with_value: str) -> list[str]:
    while words and words[0].startswith("-") and words[0] != "-":
        takes_next = len(words[0]) == 2 and words[0][1] in with_value
        words = words[2:] if takes_next else words[1:]
    return words


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
