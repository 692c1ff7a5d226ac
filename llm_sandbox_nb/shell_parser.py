"""Parser that splits shell code into simple commands with their words, redirections and here-documents.

Nothing is expanded or run. Quoted text stays one word, comments are dropped, and the content of `$(...)` or backquotes
is parsed too, because a shell would run it. If a quote is not closed, only the commands of the lines before the
quote are returned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from llm_sandbox_nb.errors import LLMSandboxError

_OPERATORS = ("<<<", "<<-", "&>>", "||", "&&", ";;", "<<", ">>", "&>", ">&", "<&", "|&", "|", "&", ";", "(", ")",
              "<", ">", "\n")  # fmt: skip
_REDIRECTIONS = frozenset({"<", ">", ">>", "&>", "&>>", ">&", "<&", "<<<"})
_KEYWORDS = frozenset(
    (
        "if",
        "then",
        "else",
        "elif",
        "fi",
        "do",
        "done",
        "while",
        "until",
        "esac",
        "!",
        "{",
        "}",
        "time",
        "function",
    )
)
_MAX_NESTING = 8
_PLAIN_TEXT = re.compile(r"[^ \t\r\n|&;()<>'\"\\`$]+")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


@dataclass
class Command:
    """A simple command. Its `words` have no quotes around them. `piped` is true if a pipe leads to the command."""

    words: list[str] = field(default_factory=list)
    piped: bool = False
    upstream: Command | None = None
    """The command whose output a pipe leads to this command. None without a pipe."""
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    here: str | None = None
    """Text of the here-document or here-string."""
    arithmetic: bool = False
    """True if a word holds `$((...))`."""


class _OpenQuoteError(LLMSandboxError):
    pass


def shell_commands(text: str, depth: int = 0) -> list[Command]:
    """Return the simple commands of `text` in order, followed by the commands in its substitutions."""
    lexer = _Lexer(text.replace("\\\r\n", "").replace("\\\n", ""))
    found: list[Command] = []
    line: list[Command] = []
    try:
        for command, whole_line in lexer.commands():
            line.append(command)
            if whole_line:
                found += line
                line = []
    except _OpenQuoteError:
        line = []
    found += line
    if depth < _MAX_NESTING:
        for inner in lexer.substitutions:
            found += shell_commands(inner, depth + 1)
    return [_without_keywords(command) for command in found]


def _without_keywords(command: Command) -> Command:
    words = command.words
    while words and words[0] in _KEYWORDS:
        words = words[1:]
    if words and words[0] in ("for", "case", "select", "in"):
        words = []
    while words and _ASSIGNMENT.match(words[0]):
        words = words[1:]
    command.words = words
    return command


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.substitutions: list[str] = []
        self._pending: list[tuple[Command, str, bool]] = []
        self._arithmetic = False

    def commands(self) -> Iterator[tuple[Command, bool]]:
        """Yield each command, together with True if the command is the last one of its line."""
        current, redirection = Command(), ""
        for kind, token in self._tokens():
            if kind == "word":
                self._take(current, redirection, token)
                redirection = ""
            elif token in _REDIRECTIONS or token in ("<<", "<<-"):
                redirection = token
            else:
                piped = token in ("|", "|&")
                before = current
                current, redirection = Command(piped=piped, upstream=before if piped else None), ""
                ends = token == "\n"
                if ends:
                    self._read_here_documents()
                if before.words or before.reads or before.here is not None or before.arithmetic or ends:
                    yield before, ends
        self._read_here_documents()
        yield current, True

    def _take(self, command: Command, redirection: str, word: str) -> None:
        command.arithmetic = command.arithmetic or self._arithmetic
        self._arithmetic = False
        if redirection in ("<<", "<<-"):
            self._pending.append((command, word, redirection == "<<-"))
        elif redirection == "<<<":
            command.here = word
        elif redirection == "<":
            command.reads.append(word)
        elif redirection in (">", ">>", "&>", "&>>"):
            command.writes.append(word)
        elif not redirection:
            command.words.append(word)

    def _read_here_documents(self) -> None:
        for command, end, strip in self._pending:
            lines = []
            while self.position < len(self.text):
                stop = self.text.find("\n", self.position)
                stop = len(self.text) if stop < 0 else stop
                line = self.text[self.position : stop]
                self.position = stop + 1
                line = line.lstrip("\t") if strip else line
                if line.rstrip() == end:
                    break
                lines.append(line)
            command.here = "\n".join(lines) + "\n"
        self._pending = []

    def _tokens(self) -> Iterator[tuple[str, str]]:
        while self.position < len(self.text):
            character = self.text[self.position]
            if character in " \t\r":
                self.position += 1
            elif character == "#":
                stop = self.text.find("\n", self.position)
                self.position = len(self.text) if stop < 0 else stop
            elif operator := self._operator():
                yield "operator", operator
            else:
                word = self._word()
                following = self.text[self.position : self.position + 1]
                if not (word.isdigit() and following in ("<", ">")):  # a descriptor such as the 2 in 2>&1
                    yield "word", word

    def _operator(self) -> str:
        if self.text[self.position] not in "|&;()<>\n":
            return ""
        for operator in _OPERATORS:
            if self.text.startswith(operator, self.position):
                self.position += len(operator)
                return operator
        return ""

    def _word(self) -> str:
        parts: list[str] = []
        while self.position < len(self.text):
            if plain := _PLAIN_TEXT.match(self.text, self.position):
                parts.append(plain[0])
                self.position = plain.end()
                continue
            character = self.text[self.position]
            if character in " \t\r\n|&;()<>":
                break
            if character == "'":
                parts.append(self._until("'"))
            elif character == '"':
                parts.append(self._double_quoted())
            elif character == "\\":
                parts.append(self.text[self.position + 1 : self.position + 2])
                self.position += 2
            elif (inner := self._substitution()) is not None:
                parts.append(inner)
            else:
                parts.append(character)
                self.position += 1
        return "".join(parts)

    def _until(self, quote: str) -> str:
        stop = self.text.find(quote, self.position + 1)
        if stop < 0:
            raise _OpenQuoteError
        inner = self.text[self.position + 1 : stop]
        self.position = stop + 1
        return inner

    def _double_quoted(self) -> str:
        parts: list[str] = []
        self.position += 1
        while self.position < len(self.text):
            character = self.text[self.position]
            if character == '"':
                self.position += 1
                return "".join(parts)
            if character == "\\" and self.text[self.position + 1 : self.position + 2] in (
                '"',
                "\\",
                "$",
                "`",
            ):
                parts.append(self.text[self.position + 1])
                self.position += 2
            elif (inner := self._substitution()) is not None:
                parts.append(inner)
            else:
                parts.append(character)
                self.position += 1
        raise _OpenQuoteError

    def _substitution(self) -> str | None:
        """Return the text of the substitution at the current position. Add its code to `substitutions`.

        Return None if no substitution begins there.
        """
        start = self.position
        if self.text[start] == "`":
            self.substitutions.append(self._until("`"))
        elif self.text.startswith("$((", start):
            self._arithmetic = True
            self.position = self._closing(start + 1)
        elif self.text.startswith("$(", start):
            self.position = self._closing(start + 1)
            self.substitutions.append(self.text[start + 2 : self.position - 1])
        else:
            return None
        return self.text[start : self.position]

    def _closing(self, start: int) -> int:
        depth, quote = 0, ""
        for place in range(start, len(self.text)):
            character = self.text[place]
            if quote:
                quote = "" if character == quote else quote
            elif character in "'\"":
                quote = character
            elif character in "()":
                depth += 1 if character == "(" else -1
                if depth == 0:
                    return place + 1
        raise _OpenQuoteError
