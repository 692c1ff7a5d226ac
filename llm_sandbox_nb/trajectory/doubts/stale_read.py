"""The rule about results that were made from outdated files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from llm_sandbox_nb.trajectory.doubts.evidence import (
    DATA,
    PROGRAMS,
    Action,
    Evidence,
    Version,
    ending_of,
    name_of,
)
from llm_sandbox_nb.trajectory.events import Doubt

_VERSIONED = re.compile(
    r"(?:[-_ .]?(?:v?\d++|new|old|fixed|final|clean(?:ed)?|corrected|updated|latest|raw|tmp|draft|copy|backup|"
    r"full|all|filtered|sorted|dedup\w*|processed|better|good|right|utc|rounded))+$",
    re.IGNORECASE,
)
_SHARED_WORDS = re.compile(r"[-_. ]+")


def stale_read(evidence: Evidence) -> Iterator[Doubt]:
    """A result uses an outdated file. A newer file from the same source exists, or the file's program has changed."""
    done: set[str] = set()
    used = {read.path for action in evidence.chain for read in action.reads}
    for action in evidence.chain:
        for read in action.reads:
            if read.path in done or read.action is None or ending_of(read.path) not in DATA:
                continue
            text = _newer_sibling(evidence, action, read, used) or _changed_program(evidence, action, read)
            if text:
                done.add(read.path)
                yield Doubt(rule="stale read", step=action.step, text=text, severity="high")


def _newer_sibling(evidence: Evidence, action: Action, read: Version, used: set[str]) -> str:
    """Describe a newer file from the same source that no result uses. Empty if there is no such file."""
    maker = read.action
    assert maker is not None
    sources = {file.path for file in maker.reads if ending_of(file.path) not in PROGRAMS}
    for path, versions in evidence.files.items():
        earlier = [file for file in versions if file.action and file.action.number < action.number]
        newer = earlier[-1] if earlier else None
        if newer is None or newer.deleted or newer.action is None or path == read.path:
            continue
        other = newer.action
        if other.number <= maker.number or newer.change is None:
            continue
        if (
            ending_of(path) not in DATA
            or ending_of(path) == "log"
            or path in used
            or evidence.is_result(path)
        ):
            continue
        named = [file.path for file in other.reads]
        same = read.path in named or bool(
            sources & {path for path in named if ending_of(path) not in PROGRAMS}
        )
        same = same or bool({file.path for file in maker.reads} & set(named))
        if (
            same
            and ending_of(path) == ending_of(read.path)
            and _alike(path, read.path, direct=read.path in named)
        ):
            newer_one = f"{name_of(path)} of step {other.step} is newer, and nothing uses it"
            return f"{name_of(read.path)} of step {read.step} was used; {newer_one}"
    return ""


def _alike(one: str, other: str, *, direct: bool) -> bool:
    """Return True if two paths look like names of versions of the same file."""
    first, second = (name_of(path).rpartition(".")[0].lower() for path in (one, other))
    stems = {_VERSIONED.sub("", first), _VERSIONED.sub("", second)}
    if len(stems) == 1 or direct:
        return True
    words = [set(filter(None, _SHARED_WORDS.split(name))) for name in (first, second)]
    shared = {word for word in words[0] & words[1] if len(word) > 2}
    return bool(shared) and bool(_VERSIONED.search(first) or _VERSIONED.search(second))


def _changed_program(evidence: Evidence, action: Action, read: Version) -> str:
    """Describe a program that made the file, and that was changed later but not run again. Empty if there is none."""
    maker = read.action
    assert maker is not None
    for program in maker.reads:
        if ending_of(program.path) not in PROGRAMS or program.path in {file.path for file in maker.writes}:
            continue
        between = [
            file
            for file in evidence.files[program.path]
            if file.action and maker.number < file.action.number < action.number
        ]
        if not between or between[-1].deleted or not runs_program(maker, program.path):
            continue
        changed = between[-1]
        assert changed.action is not None
        again = any(
            runs_program(other, program.path) and not other.failed
            for other in evidence.actions[changed.action.number + 1 : action.number + 1]
        )
        if not again:
            used = f"{name_of(read.path)} of step {read.step} was used"
            maker_changed = f"{name_of(program.path)}, which makes it, was changed at step {changed.step}"
            return f"{used}; {maker_changed} and not run again"
    return ""


def runs_program(action: Action, path: str) -> bool:
    """Return True if an action executed the program at `path` directly or through another program."""
    if action.kind != "bash":
        return False
    name, stem = name_of(path), name_of(path).rpartition(".")[0]
    if any(
        any(word in (name, stem) or word.endswith(f"/{name}") for word in command.words)
        and command.words[0]
        not in (
            "cat",
            "head",
            "sed",
            "less",
            "wc",
            "cp",
            "mv",
            "grep",
            "git",
            "ls",
            "tail",
            "rm",
            "diff",
            "chmod",
        )
        for command in action.commands
        if command.words
    ):
        return True
    programs = [file for file in action.reads if ending_of(file.path) in PROGRAMS and file.path != path]
    return any(re.search(rf"\b{re.escape(stem)}\b", program.text or "") for program in programs) and any(
        file.path == path for file in action.reads
    )
