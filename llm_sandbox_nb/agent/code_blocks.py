"""Fenced code blocks in a model's text, and how one would be executed."""

from __future__ import annotations

import re
from dataclasses import dataclass

_OPENING = re.compile(r" {0,3}(`{3,}+|~{3,}+)\s*+([^\s`]*+)[^`]*+")
_PYTHON = frozenset({"python", "python3", "py"})
_SHELL = frozenset({"bash", "sh", "shell"})


@dataclass(frozen=True)
class CodeBlock:
    """A block with its fences: the lines from `first` to `last`, both included."""

    language: str
    content: str
    first: int
    last: int
    mark: str

    @property
    def command(self) -> str | None:
        """The shell command that executes it; None for a block in another language, and for an empty one."""
        if not self.content.strip():
            return None
        if (program := self.program) is not None:
            return python_command(program)
        return self.content if self.language in _SHELL else None

    @property
    def program(self) -> str | None:
        """The Python code: of a Python block, and of a shell block that starts Python and then has its code."""
        if self.language in _PYTHON:
            return self.content
        first, _, rest = self.content.lstrip().partition("\n")
        starts = self.language in _SHELL and first.strip() in _PYTHON
        return rest if starts and rest.strip() else None


def code_blocks(text: str) -> list[CodeBlock]:
    """The blocks of a text that are closed, in order. Takes time in proportion to the text."""
    found: list[CodeBlock] = []
    lines = text.split("\n")
    opened: re.Match[str] | None = None
    first = 0
    for number, line in enumerate(lines):
        if opened is None:
            opened, first = _OPENING.fullmatch(line), number
        elif _closes(line, opened[1]):
            content = "\n".join(lines[first + 1 : number])
            found.append(CodeBlock(opened[2].lower(), content, first, number, opened[1]))
            opened = None
    return found


def _closes(line: str, mark: str) -> bool:
    text = line.strip()
    return len(text) >= len(mark) and not text.strip(mark[0]) and len(line) - len(line.lstrip(" ")) < 4


def python_command(code: str) -> str:
    """The shell command that runs Python code which is handed to it as a here-document."""
    taken = re.findall("END_OF_PYTHON_*+", code)
    end = f"{max(taken, key=len)}_" if taken else "END_OF_PYTHON"
    return f"python3 - <<'{end}'\n{code}\n{end}"


def with_python_as_bash(text: str) -> str:
    """The text with each Python block as the ```bash block that executes it."""
    lines, written, done = text.split("\n"), list[str](), 0
    for block in code_blocks(text):
        if block.program is not None and block.command is not None:
            runs = re.findall(f"{block.mark[0]}++", block.content)
            mark = block.mark[0] * max([len(block.mark), *(len(run) + 1 for run in runs)])
            written += [*lines[done : block.first], f"{mark}bash", block.command, mark]
            done = block.last + 1
    return "\n".join([*written, *lines[done:]])
