"""Fenced code blocks in a model's text, and the commands that execute these blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass

_OPENING = re.compile(r" {0,3}(`{3,}+|~{3,}+)\s*+([^\s`]*+)[^`]*+")
_PYTHON = frozenset({"python", "python3", "py"})
_SHELL = frozenset({"bash", "sh", "shell"})


@dataclass(frozen=True)
class CodeBlock:
    """Code block in a text.

    `first` and `last` are the numbers of the lines with the fences, counted from 0. `mark` is the opening fence.
    """

    language: str
    content: str
    first: int
    last: int
    mark: str

    @property
    def command(self) -> str | None:
        """Shell command that executes the block. None for an empty block, or a block in another language."""
        if not self.content.strip():
            return None
        if (program := self.program) is not None:
            return python_command(program)
        return self.content if self.language in _SHELL else None

    @property
    def program(self) -> str | None:
        """The Python code of a Python block, or of a shell block whose first line starts Python. Otherwise None."""
        if self.language in _PYTHON:
            return self.content
        first, _, rest = self.content.lstrip().partition("\n")
        starts = self.language in _SHELL and first.strip() in _PYTHON
        return rest if starts and rest.strip() else None


def code_blocks(text: str) -> list[CodeBlock]:
    """Return the complete blocks of a text, in order. The time is linear in the length of the text."""
    found: list[CodeBlock] = []
    lines = text.split("\n")
    opened: re.Match[str] | None = None
    first = 0
    for number, line in enumerate(lines):
        if opened is None:
            opened, first = _OPENING.fullmatch(line), number
            continue
        mark, fence = opened[1], line.strip()
        indent = len(line) - len(line.lstrip(" "))
        # In CommonMark, a closing fence is at least as long as the opening fence, and indented by at most 3 spaces.
        if len(fence) >= len(mark) and not fence.strip(mark[0]) and indent < 4:
            content = "\n".join(lines[first + 1 : number])
            found.append(CodeBlock(opened[2].lower(), content, first, number, mark))
            opened = None
    return found


def python_command(code: str) -> str:
    """Return a shell command that runs Python code from a here-document."""
    taken = re.findall("END_OF_PYTHON_*+", code)
    end = f"{max(taken, key=len)}_" if taken else "END_OF_PYTHON"
    return f"python3 - <<'{end}'\n{code}\n{end}"


def program_of(command: str) -> str:
    """Return the Python code of a command that `python_command` made. Return an empty text for any other command."""
    first, _, rest = command.partition("\n")
    code, _, end = rest.rpartition("\n")
    return code.strip() if first == f"python3 - <<'{end}'" else ""


def with_python_as_bash(text: str) -> str:
    """Replace each Python block in a text by a ```bash block that executes the code."""
    lines, written, done = text.split("\n"), list[str](), 0
    for block in code_blocks(text):
        if block.program is not None and block.command is not None:
            runs = re.findall(f"{block.mark[0]}++", block.content)
            mark = block.mark[0] * max([len(block.mark), *(len(run) + 1 for run in runs)])
            written += [*lines[done : block.first], f"{mark}bash", block.command, mark]
            done = block.last + 1
    return "\n".join([*written, *lines[done:]])
