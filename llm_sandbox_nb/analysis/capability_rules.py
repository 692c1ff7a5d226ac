"""Published rules of capability use. The three capabilities are external resources, file management and computation.

The rules find the capabilities in the code of a turn: in commands, in programs on a command line or in a here-document,
and in edited files. A turn may use several capabilities or no capability. The rate of a capability is the number of
turns that use the capability, divided by the number of all turns.

`docs/explanation/capability-use.md` defines the capabilities in words. The turns in `tests/data/labelled_turns.yaml`
were labelled by hand according to that page. If a change of the rules changes results, raise `RULES_VERSION`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llm_sandbox_nb.analysis.python_rules import program_uses
from llm_sandbox_nb.analysis.shell_rules import command_uses
from llm_sandbox_nb.shell_parser import Command, shell_commands

_LANGUAGES = {
    ".py": "python", ".sh": "shell", ".bash": "shell", ".c": "curly", ".cc": "curly", ".cpp": "curly",
    ".js": "curly", ".mjs": "curly", ".ts": "curly", ".java": "curly", ".rs": "curly", ".go": "curly",
}  # fmt: skip
_INTERPRETERS = {"python": "python", "pypy": "python", "node": "curly", "bash": "shell", "sh": "shell",
                 "zsh": "shell", "dash": "shell"}  # fmt: skip
# maximum depth of programs within programs
_MAX_DEPTH = 6
BASH_TOOLS = frozenset({"execute_bash", "bash", "shell"})
EDITOR_TOOLS = frozenset({"str_replace_editor", "file_editor", "str_replace_based_edit_tool"})
SUBMIT_TOOLS = frozenset({"submit", "finish"})
"""Names of the tools that submit, in this project, in the paper's package, and in the third version of the paper."""


@dataclass(frozen=True)
class Code:
    """Text of a program. `language` is `python`, or `curly` for JavaScript, C and similar languages."""

    language: str
    text: str


@dataclass(frozen=True)
class Parts:
    """Code of a call: shell commands and programs. `viewed` is True if the editor showed a file."""

    commands: tuple[Command, ...] = ()
    programs: tuple[Code, ...] = ()
    viewed: bool = False


def parts_of_call(tool: str, arguments: Mapping[str, Any] | None) -> Parts:
    """Return the code of a tool call. If the arguments are invalid, return no code."""
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
    """Return the code of a file. If the file is not a program, return no code."""
    language = _LANGUAGES.get(posixpath.splitext(path)[1].lower())
    if language is None and text.startswith("#!"):
        language = _interpreter(text.partition("\n")[0].split()[-1:])
    return _parts(language, text, 0)


def parts_of_shell(text: str, depth: int = 0) -> Parts:
    """Return the commands in shell code, and the programs that are passed to interpreters or written to files."""
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
    if language is None or depth > _MAX_DEPTH:
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
"""Placeholder for the operands that `xargs` adds."""


def unwrapped(words: list[str]) -> list[str]:
    """Remove wrappers such as `sudo`, `timeout 60`, `env A=b` and `xargs` from a command."""
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


RULES_VERSION = "2"
CAPABILITIES = ("external", "files", "computation")
"""Names of the capabilities: external resources, file management, computation."""

_OPENING = re.compile(r"//|/\*|[\"']")
_INSIDE = {mark: re.compile(rf"(?:\\.|[^{mark}\\\n])*+", re.DOTALL) for mark in "\"'"}
_CURLY_LOOP = re.compile(r"\b(?:for|while)\b")
_CURLY_SUM = re.compile(r"[\w\])]\s*[*/%]\s*[\w(]|[+\-*/]=")
_CURLY_NETWORK = re.compile(r"\b(?:fetch|axios|XMLHttpRequest|curl_easy_init)\b")
_CURLY_FILES = re.compile(r"\b(?:readFileSync|readFile|fopen|ifstream|readdirSync)\b")


def call_uses(tool: str, arguments: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the capabilities that a tool call uses."""
    return frozenset(_uses(parts_of_call(tool, arguments)))


def _uses(parts: Parts, depth: int = 0) -> set[str]:
    found = {"files"} if parts.viewed else set()
    for command in parts.commands:
        found |= command_uses(command)
    for program in parts.programs:
        if program.language == "curly":
            found |= _curly_uses(program.text)
            continue
        used, shells = program_uses(program.text)
        found |= used
        if depth < 3:
            for shell in shells:
                found |= _uses(parts_of_shell(shell), depth + 1)
    return found


def _curly_uses(text: str) -> set[str]:
    """Return the capabilities that code in JavaScript, C or a similar language uses.

    The capabilities are found by keywords outside strings and comments.
    """
    text = without_texts(text)
    found = set()
    if _CURLY_LOOP.search(text) and _CURLY_SUM.search(text):
        found.add("computation")
    if _CURLY_NETWORK.search(text):
        found.add("external")
    if _CURLY_FILES.search(text):
        found.add("files")
    return found


def without_texts(text: str) -> str:
    """Replace each closed string and comment in the code of a C-like language by a blank.

    Each character is read only a few times, even if many strings and comments are not closed.
    """
    parts: list[str] = []
    kept = place = 0
    open_until = {'"': 0, "'": 0}
    last_comment_ends = text.rfind("*/")
    while opened := _OPENING.search(text, place):
        mark, place, end = opened[0], opened.end(), -1
        if mark == "//":
            end = text.find("\n", place)
            end = len(text) if end < 0 else end
        elif mark == "/*":
            end = text.index("*/", place) + 2 if place <= last_comment_ends else -1
        elif place > open_until[mark] and (inside := _INSIDE[mark].match(text, place)):
            if text.startswith(mark, inside.end()):
                end = inside.end() + 1
            else:
                open_until[mark] = inside.end()
        if end >= 0:
            parts += (text[kept : opened.start()], " ")
            kept = place = end
        elif mark == "/*":
            place -= 1
    return "".join((*parts, text[kept:]))
