"""What must be done to make one manifest of another."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from llm_sandbox_nb.sandbox.history.entry import FILE, FOLDER, Chunk, Entry, parents

_PATCH_FROM = 2 * 1024 * 1024
"""Bytes of a file from which on only its changed pieces are written."""


@dataclass
class Plan:
    """What to do. `problems` has a sentence for each thing that cannot be."""

    delete: list[str] = field(default_factory=list)
    make: list[tuple[str, Entry]] = field(default_factory=list)
    """In an order in which folders come before what is in them, and a file before its other names."""
    patch: dict[str, Entry] = field(default_factory=dict)
    """Files of `make` that are there and need only some pieces: as they are now."""
    touch: list[tuple[str, Entry]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def paths(self) -> int:
        """How many paths are touched, those in deleted folders not counted."""
        return len({*self.delete, *(path for path, _ in self.make), *(path for path, _ in self.touch)})

    def needed(self, path: str, entry: Entry) -> list[Chunk]:
        """The pieces of content that an entry of `make` is to get."""
        if not has_content(path, entry):
            return []
        here = self.patch.get(path)
        known = set(here.chunks or ()) if here else set()
        return [chunk for chunk in entry.chunks or () if chunk not in known]


def has_content(path: str, entry: Entry) -> bool:
    """Whether content is written under this name: it is a file's, and of several names the first."""
    return entry.type == FILE and bool(entry.chunks) and entry.group in ("", path)


def plan_restore(current: Mapping[str, Entry], target: Mapping[str, Entry]) -> Plan:
    """What makes `target` of `current`, both expanded by `Image.expand`; only what differs is touched."""
    plan = Plan()
    _plan_deletes(plan, current, target)
    deleted = set(plan.delete)
    groups = _changed_groups(current, target)
    for path in sorted(target, key=os.fsencode):
        wanted, here = target[path], current.get(path)
        if here is not None and (path in deleted or any(up in deleted for up in parents(path))):
            here = None
        if wanted.group in groups:
            _plan_file(plan, path, replace(wanted, group=groups[wanted.group]), None)
        elif here is None or wanted != here:
            _plan_file(plan, path, wanted, here)
    return plan


def _plan_deletes(plan: Plan, current: Mapping[str, Entry], target: Mapping[str, Entry]) -> None:
    """What is to go, folders as a whole; also what is a folder on one side only."""
    gone: set[str] = set()
    for path in sorted(current, key=os.fsencode):
        wanted = target.get(path)
        if wanted is not None and (wanted.type == FOLDER) == (current[path].type == FOLDER):
            continue
        if any(up in gone for up in parents(path)):
            continue
        gone.add(path)
        plan.delete.append(path)


def _changed_groups(current: Mapping[str, Entry], target: Mapping[str, Entry]) -> dict[str, str]:
    """Files with several names of which any differs: they are made anew. The name to link to, by group."""
    members: dict[str, list[str]] = defaultdict(list)
    for path, entry in target.items():
        if entry.group:
            members[entry.group].append(path)
    return {
        group: min(paths, key=os.fsencode)
        for group, paths in members.items()
        if any(current.get(path) != target[path] for path in paths)
    }


def _plan_file(plan: Plan, path: str, wanted: Entry, here: Entry | None) -> None:
    if here is not None and wanted.base and here.base:
        return
    if here is not None and _same_content(wanted, here):
        plan.touch.append((path, wanted))
        return
    if wanted.base or (wanted.type == FILE and wanted.chunks is None):
        plan.problems.append(f"{shown(path)} stays as it is: its content was not kept.")
        return
    if here is not None and _can_patch(wanted, here):
        plan.patch[path] = here
    plan.make.append((path, wanted))


def _same_content(wanted: Entry, here: Entry) -> bool:
    """Whether only metadata differs."""
    if wanted.type != here.type or wanted.group != here.group:
        return False
    if wanted.type == FOLDER:
        return True
    content = (here.target, here.device, here.size, here.chunks)
    known = not (wanted.base or here.base) and (wanted.type != FILE or wanted.chunks is not None)
    return known and (wanted.target, wanted.device, wanted.size, wanted.chunks) == content


def _can_patch(wanted: Entry, here: Entry) -> bool:
    if wanted.type != FILE or here.type != FILE or wanted.group or here.group or wanted.size < _PATCH_FROM:
        return False
    if here.chunks is None or wanted.chunks is None:
        return False
    return 2 * len({*wanted.chunks} & {*here.chunks}) >= len(wanted.chunks)


def shown(path: str) -> str:
    """A text that came from a sandbox, fit for a person."""
    return path if path.isprintable() else ascii(path)
