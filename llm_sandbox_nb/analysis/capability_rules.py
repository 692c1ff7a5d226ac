"""The published rules of capability use: which of three capabilities the code of a turn uses.

The unit is one turn of the model, the denominator all turns. A turn may use several capabilities or none.
`docs/explanation/capability-use.md` defines them in words; `tests/data/labelled_turns.yaml` is labelled by hand
after these words. A change of what is found is a new version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llm_sandbox_nb.analysis.code_fragments import Parts, parts_of_call, parts_of_shell
from llm_sandbox_nb.analysis.python_rules import program_uses
from llm_sandbox_nb.analysis.shell_rules import command_uses

RULES_VERSION = "1"
CAPABILITIES = ("external", "files", "computation")
"""External resources, file management, computation."""

_OPENING = re.compile(r"//|/\*|[\"']")
_INSIDE = {mark: re.compile(rf"(?:\\.|[^{mark}\\\n])*+", re.DOTALL) for mark in "\"'"}
_CURLY_LOOP = re.compile(r"\b(?:for|while)\b")
_CURLY_SUM = re.compile(r"[\w\])]\s*[*/%]\s*[\w(]|[+\-*/]=")
_CURLY_NETWORK = re.compile(r"\b(?:fetch|axios|XMLHttpRequest|curl_easy_init)\b")
_CURLY_FILES = re.compile(r"\b(?:readFileSync|readFile|fopen|ifstream|readdirSync)\b")


def call_uses(tool: str, arguments: Mapping[str, Any] | None) -> frozenset[str]:
    """The capabilities that one tool call uses."""
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
    """JavaScript, C and their kind, by their words: strings and comments do not count."""
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
    """A text in the manner of C with a blank for each string and comment. What is not closed is neither.

    Each letter is looked at a few times at most, also where many things are not closed.
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


_SUBSTRINGS = {
    "external": ("pip install", "apt install", "apt-get install", "requests.get", "curl", "wget", "BeautifulSoup",
                 "rdkit", "biopython"),
    "files": ("open(", "json.load", "pd.read_csv", "cat", "grep", "find", "os.path", "pathlib", "glob",
              "pickle.load", "np.load"),
    "computation": ("scipy.optimize", "fsolve", "minimize", "odeint", "solve_ivp", "quad", "in range(", "while ",
                    "permutations", "combinations"),
}  # fmt: skip


def substring_uses(arguments: Mapping[str, Any] | None) -> frozenset[str]:
    """What looking for substrings finds, as the paper's table 15 was relayed. Only to compare with."""
    text = "\n".join(
        str(value)
        for name, value in (arguments or {}).items()
        if name in ("command", "file_text", "new_str") and isinstance(value, str)
    )
    return frozenset(
        name for name, patterns in _SUBSTRINGS.items() if any(pattern in text for pattern in patterns)
    )
