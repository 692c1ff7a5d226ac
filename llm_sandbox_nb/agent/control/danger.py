"""Rules that find dangers of a command. They only warn the person who approves the command, and prevent nothing.

The card has the same rules with the same words (`labextension/src/view/danger.ts`), and a test compares both files. The
command is hostile input. Even if no rule matches, the command can be dangerous.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

MAX_CHECKED_CHARACTERS = 20_000
"""Number of characters at the beginning of a command that are checked."""


@dataclass(frozen=True)
class Rule:
    """Pattern and words for a danger. Patterns have no nested repetitions, so hostile text cannot slow matching."""

    pattern: str
    text: str
    outside: bool = False
    """True if the damage is outside the sandbox, so that a rewind cannot undo the damage."""
    any_case: bool = False


RULES = (
    Rule(r"(?<![\w-])(?:rm|shred|unlink)(?:[ \t]+-[-\w=]{1,30}){0,8}(?=\s)", "It deletes files."),
    Rule(r"\bfind\b[^\n;|&]{0,100}[ \t]-delete\b", "It deletes files."),
    Rule(r"\b(?:shutil\.rmtree|os\.remove|os\.unlink|\.unlink\()", "It deletes files."),
    Rule(r"\btruncate\b[^\n;|&]{0,100}[ \t](?:-s|--size)", "It cuts off the content of files."),
    Rule(
        r"\bgit\b[^\n;|&]{0,100}[ \t]push\b[^\n;|&]{0,100}[ \t](?:--force(?:-with-lease)?|-f\b|\+\w)",
        "It overwrites the history of a remote repository.",
        outside=True,
    ),
    Rule(
        r"\bgit\b[^\n;|&]{0,100}[ \t](?:reset\b[^\n;|&]{0,100}--hard|clean\b[^\n;|&]{0,100}-\w{0,8}f)",
        "It discards changes that are not committed.",
    ),
    Rule(r"\bdd\b[^\n;|&]{0,100}[ \t]of=\S{1,300}", "It writes raw data over a file or a disk."),
    Rule(r"\bmkfs(?:\.\w{1,12})?\b", "It formats a disk."),
    Rule(
        r"\b(?:curl|wget)\b[^\n;|&]{0,100}\|[ \t]{0,20}(?:sudo[ \t]{1,20})?(?:ba|z|da)?sh\b",
        "It downloads a program and runs it unread.",
    ),
    Rule(
        r"\b(?:curl|wget)\b[^\n;|&]{0,100}\|[ \t]{0,20}(?:sudo[ \t]{1,20})?(?:python|perl|ruby|node)\w{0,5}\b",
        "It downloads a program and runs it unread.",
    ),
    Rule(
        r"\bch(?:mod|own|grp)\b[^\n;|&]{0,60}[ \t](?:-[A-Za-z]{0,8}R[A-Za-z]{0,8}|--recursive)\b",
        "It changes who may use all files of a folder.",
    ),
    Rule(
        r"\b(?:drop[ \t]+(?:table|database)|truncate[ \t]+table|delete[ \t]+from)\b",
        "It deletes data of a database.",
        any_case=True,
    ),
    Rule(r"\b(?:pkill|killall|kill[ \t]+-(?:9|KILL))\b", "It ends programs."),
    Rule(r"\b(?:shutdown|reboot|poweroff|halt)\b(?=\s|$)", "It ends the sandbox."),
    Rule(r":\(\)\s{0,5}\{[^}\n]{0,40}\}\s{0,5};\s{0,5}:", "It starts programs without end."),
)
"""All rules except those for `>`, `mv` and `cp`, which are dangerous only if they overwrite an existing file."""
REDIRECTED = r"""(?:^|[^>&\d<=-])(>\|?[ \t]{0,20}(["']?)([^\s"'<>|;&()]{1,300})\2)"""
MOVED = r"(?<![\w-])(?:mv|cp)[ \t]([^\n;|&()]+)"
KEEPING = r"^(?:-\w*[nt]|--no-clobber|--target-directory)"
"""Matches an option of `mv` and `cp` with which the last path is not overwritten."""
TOO_LONG = "It is long: only its beginning was checked."


def dangers_of(command: str, exists: Callable[[str], bool]) -> tuple[list[str], bool]:
    """Find the damage that a command may do.

    Args:
        command: shell command.
        exists: function that returns True if the record knows a file with the given path. `>`, `mv` or `cp` would
            overwrite such a file.

    Returns:
        A sentence for each kind of damage, in the order of the places in the command, with a last sentence if the
        command is too long to be checked. And True if some damage is outside the sandbox.
    """
    text = command[:MAX_CHECKED_CHARACTERS]
    found: list[tuple[int, str]] = []
    outside = False
    for rule in RULES:
        flags = re.ASCII | (re.IGNORECASE if rule.any_case else 0)
        for match in re.finditer(rule.pattern, text, flags):
            found.append((match.start(), rule.text))
            outside = outside or rule.outside
    for match in re.finditer(REDIRECTED, text, re.ASCII):
        if exists(match[3]):
            found.append((match.start(1), f"It overwrites {match[3]}."))
    for match in re.finditer(MOVED, text, re.ASCII):
        path = _last_path(re.split(r"[ \t]\d[<>]|[<>]", match[1])[0].split())
        if path and exists(path):
            found.append((match.start(), f"It overwrites {path}."))
    if len(command) > MAX_CHECKED_CHARACTERS:
        found.append((MAX_CHECKED_CHARACTERS, TOO_LONG))
    return list(dict.fromkeys(sentence for _, sentence in sorted(found, key=lambda pair: pair[0]))), outside


def _last_path(words: list[str]) -> str:
    """Return the target path of `mv` or `cp` with these arguments. Empty if an existing target is not overwritten."""
    paths = [re.sub(r"^[\"']|[\"']$", "", word) for word in words if not word.startswith("-")]
    keeps = any(re.match(KEEPING, word, re.ASCII) for word in words)
    return paths[-1] if len(paths) > 1 and not keeps else ""
