"""Capabilities that a shell command uses. This module is a part of the published rules (`capability_rules.py`)."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable

from llm_sandbox_nb.shell_parser import Command

_INSTALLERS = {
    "pip": {"install", "download"}, "apt": {"install", "update", "upgrade", "download"},
    "apt-get": {"install", "update", "upgrade", "download", "source", "build-dep"},
    "conda": {"install", "create", "update"}, "mamba": {"install", "create", "update"},
    "npm": {"install", "i", "ci", "add"}, "yarn": {"add", "install"}, "pnpm": {"add", "install"},
    "cargo": {"install", "add", "fetch"}, "gem": {"install"}, "go": {"get", "install"},
    "apk": {"add", "update"}, "dnf": {"install", "update"}, "yum": {"install", "update"},
    "brew": {"install"}, "uv": {"add", "sync"}, "poetry": {"add", "install"}, "pipx": {"install"},
    "git": {"clone", "fetch", "pull", "ls-remote"}, "docker": {"pull"}, "hf": {"download"},
    "huggingface-cli": {"download"}, "kaggle": {"datasets", "competitions"}, "npx": set(), "uvx": set(),
}  # fmt: skip
_CLIENTS = frozenset((
    "curl", "wget", "ssh", "scp", "sftp", "ftp", "aria2c", "ping", "dig", "nslookup", "host", "telnet", "lynx", "w3m",
    "http", "https", "youtube-dl", "yt-dlp",
))  # fmt: skip
_LOOPBACK = re.compile(
    r"^(?:https?://|ftp://|[^/]*@)?(?:localhost|127\.\d+\.\d+\.\d+|0\.0\.0\.0|\[?::1\]?)(?:[:/]|$)"
)
_URL = re.compile(r"(?:https?|ftp)://")
_READERS = {
    # The letters are options of the command whose value is the next word. Each `!` at the end stands for an operand
    # that is a pattern or a program, and not a file.
    "cat": "", "tac": "", "nl": "", "head": "nc", "tail": "nc", "less": "", "more": "", "wc": "", "grep": "ABCmef!",
    "egrep": "ABCmef!", "fgrep": "ABCmef!", "zgrep": "ABCmef!", "rg": "ABCmegt!", "ag": "ABCm!", "sed": "ef!",
    "awk": "Fvf!", "gawk": "Fvf!", "mawk": "Fvf!", "sort": "ktoST", "uniq": "fsw", "cut": "dfcb", "paste": "d",
    "join": "t", "comm": "", "diff": "", "cmp": "", "stat": "cf", "file": "", "du": "d", "strings": "n",
    "od": "AtNj", "xxd": "lsc", "hexdump": "ns", "md5sum": "", "sha1sum": "", "sha256sum": "", "jq": "!", "yq": "!",
    "xmllint": "", "pdftotext": "fl", "pdfgrep": "!", "zcat": "", "cp": "", "mv": "", "tar": "C", "unzip": "d",
    "zip": "", "gzip": "", "gunzip": "", "rsync": "", "sqlite3": "", "split": "lbn", "tr": "!!", "iconv": "ft",
    "column": "st", "readelf": "", "exiftool": "", "pdfinfo": "", "mediainfo": "", "identify": "",
}  # fmt: skip
_LISTERS = frozenset({"ls", "find", "tree", "du", "dir", "fd", "locate"})
_CALCULATORS = frozenset((
    "bc", "dc", "expr", "factor", "units", "octave", "gp", "maxima", "sage", "julia", "Rscript", "R", "gcc", "g++",
    "clang", "clang++", "cc", "c++", "rustc", "ghc", "javac", "numbat", "qalc",
))  # fmt: skip
_AWK_ARITHMETIC = re.compile(r"[+\-*/%]=|\w\s*[*/%]\s*\w|\+\+|\w\s*[+-]\s*\w")
_PIP_LOCAL = frozenset({"-e", "--editable", "--no-index", "-r", "--requirement"})


def command_uses(command: Command) -> set[str]:
    """Return the capabilities that a simple command uses."""
    found = set()
    name = posixpath.basename(command.words[0]) if command.words else ""
    if name and _is_external(name, command.words[1:]):
        found.add("external")
    if _is_file_use(name, command):
        found.add("files")
    if command.arithmetic or name in _CALCULATORS or _computes_in_program(name, command.words[1:]):
        found.add("computation")
    return found


def stays_here(words: Iterable[str]) -> bool:
    """Return True if a word is the address of this machine, and no word is the URL of another machine."""
    found = list(words)
    here = [word for word in found if _LOOPBACK.match(word)]
    return bool(here) and all(word in here for word in found if _URL.match(word))


def _is_external(name: str, rest: list[str]) -> bool:
    if name in _CLIENTS:
        targets = [word for word in rest if not word.startswith("-")]
        return bool(targets) and not stays_here(targets)
    if name == "rsync":
        return any(re.match(r"^[\w.@-]+:", word) for word in rest)
    if name.startswith("python") and rest[:2] == ["-m", "pip"]:
        name, rest = "pip", rest[2:]
    if name == "uv" and rest[:1] == ["pip"]:
        name, rest = "pip", rest[1:]
    name = "pip" if re.fullmatch(r"pip[\d.]+", name) else name
    if name not in _INSTALLERS:
        return False
    words = [word for word in rest if not word.startswith("-")]
    verbs = _INSTALLERS[name]
    if verbs and not set(words[:1] if name not in ("apt", "apt-get", "git") else words[:3]) & verbs:
        return False
    return not _is_local_install(name, rest, words[1:])


def _is_local_install(name: str, rest: list[str], targets: list[str]) -> bool:
    if name == "git":
        address = next((word for word in targets if "clone" not in word), "")
        return bool(address) and "clone" in rest and "://" not in address and "@" not in address
    if name != "pip":
        return False
    if "--no-index" in rest:
        return True
    plain = [
        word for word in targets if not word.startswith((".", "/")) and not word.endswith((".whl", ".tar.gz"))
    ]
    return (not plain and not _PIP_LOCAL.isdisjoint(rest)) or (bool(targets) and not plain)


def _is_file_use(name: str, command: Command) -> bool:
    if any(target != "/dev/null" and not target.startswith("/dev/") for target in command.reads):
        return True
    if name in _LISTERS and not command.piped:
        return True
    if name == "git" and command.words[1:2] == ["clone"]:
        return not _is_external(name, command.words[1:])
    if name == "rsync" and _is_external(name, command.words[1:]):
        return False
    if name not in _READERS:
        return False
    recursive = name in ("rg", "ag") or any(_is_recursive(word) for word in command.words[1:])
    if name in ("grep", "rg", "ag", "egrep") and recursive and not command.piped:
        return True
    return bool(_operands(name, command.words[1:]))


def _is_recursive(option: str) -> bool:
    """Return True if the letters of a short option include `r` or `R`."""
    return bool(re.fullmatch(r"-\w+", option)) and ("r" in option or "R" in option)


def _operands(name: str, rest: list[str]) -> list[str]:
    """Return the operands of the command `name` that are files. `rest` are the words after the name."""
    spec = _READERS[name]
    with_value, patterns = spec.rstrip("!"), spec.count("!")
    found, skip = [], False
    for word in rest:
        if skip:
            skip = False
        elif word.startswith("-") and len(word) > 1:
            skip = len(word) == 2 and word[1] in with_value
            if patterns and word[:2] in ("-e", "-f") and with_value:
                patterns = 0
        elif word != "-":
            found.append(word)
    if name in ("head", "tail"):
        found = [word for word in found if not word.startswith("+")]
    return [word for word in found[patterns:] if not word.startswith("/dev/") and word != ":memory:"]


def _computes_in_program(name: str, rest: list[str]) -> bool:
    """Return True if the command is awk with a program that does arithmetic, also with positions in a text."""
    if name not in ("awk", "gawk", "mawk"):
        return False
    program = next((word for word in rest if not word.startswith("-")), "")
    return bool(_AWK_ARITHMETIC.search(re.sub(r'"[^"]*"|/[^/]*/', "", program)))
