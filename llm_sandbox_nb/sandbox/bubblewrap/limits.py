"""Resource limits of a bubblewrap sandbox: control groups where we may make them, else limits of processes.

A group is named after its owner process, so that the groups of dead owners differ from those of living ones and
taken away at the next start.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from llm_sandbox_nb.sandbox.cgroups import CONTROLLERS, find_hierarchies
from llm_sandbox_nb.sandbox.contract import Limits

PROC = Path("/proc")
GROUP_PREFIX = "llm-sandbox-nb"
OPEN_FILES = 65536

_PERIOD_US = 100_000
_UNLIMITED = 2**60
"""Larger than any limit that means something: v1 shows 'no limit' as a page-rounded 2**63."""
_NAME = re.compile(rf"^{GROUP_PREFIX}-(\d+)-(\d+)-(\d+)-[\w.-]+$")


@dataclass(frozen=True)
class Base:
    """A folder of the control group file system in which groups for some controllers can be made."""

    folder: Path
    version: int
    controllers: frozenset[str]


@dataclass(frozen=True)
class InForce:
    """Limits read back. None: nothing holds it."""

    memory_bytes: int | None = None
    pids: int | None = None
    cpus: float | None = None
    by: str = "nothing"


def find_bases(proc: Path = PROC) -> list[Base]:
    """The folders in which we may make groups: beside or below our own group, one for each hierarchy."""
    groups = list(_own_groups(proc))
    mounts = list(find_hierarchies(proc))
    bases: list[Base] = []
    for version, controllers, group in groups:
        folder = _folder_of(mounts, version, controllers, group)
        if folder is None:
            continue
        own, top = folder
        if version == 2:
            base = _base_v2(own, top)
        elif os.access(own, os.W_OK):
            base = Base(own, 1, controllers)
        else:
            base = None
        if base:
            bases.append(base)
    return bases


def _own_groups(proc: Path) -> Iterator[tuple[int, frozenset[str], str]]:
    for line in (proc / "self/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            yield 2, frozenset(), group
        elif wanted := frozenset(controllers.split(",")) & frozenset(CONTROLLERS):
            yield 1, wanted, group


def _folder_of(
    mounts: Iterable[tuple[int, frozenset[str], str, Path]],
    version: int,
    controllers: frozenset[str],
    group: str,
) -> tuple[Path, Path] | None:
    """Our own group's folder, and the mount point it lies under."""
    for mount_version, mount_controllers, root, point in mounts:
        if mount_version != version or not controllers <= mount_controllers:
            continue
        relative = os.path.relpath(group, root) if group.startswith(root) else "."
        folder = point / relative
        if folder.is_dir():
            return folder, point
    return None


def _base_v2(own: Path, top: Path) -> Base | None:
    """The nearest folder at or above our own that may be written and passes memory and pids on to children.

    Processes may only live in leaves, so this is usually the folder beside us, handed to the user by systemd.
    """
    for folder in (own, *own.parents):
        passed_on = _words(folder / "cgroup.subtree_control")
        allowed = os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)
        if {"memory", "pids"} <= passed_on and allowed:
            return Base(folder, 2, passed_on & frozenset(CONTROLLERS))
        if folder == top:
            return None
    return None


def _words(path: Path) -> frozenset[str]:
    try:
        return frozenset(path.read_text().split())
    except OSError:
        return frozenset()


class Group:
    """The control groups of one sandbox, one folder for each hierarchy."""

    def __init__(self, folders: Mapping[Path, Base]) -> None:
        self._folders = folders

    @classmethod
    def make(cls, name: str, limits: Limits, bases: Iterable[Base]) -> Group | None:
        """Make groups called after this process and `name`, with `limits`; None when none can be made."""
        owner = GroupOwner.of_process(os.getpid())
        folders: dict[Path, Base] = {}
        for base in bases:
            folder = base.folder / f"{GROUP_PREFIX}-{owner}-{name}"
            try:
                folder.mkdir()
            except OSError:
                continue
            folders[folder] = base
            for file, value in _settings(base, limits):
                _write_if_there(folder / file, value)
        return cls(folders) if folders else None

    def add(self, pid: int) -> None:
        """Move a process in; what it starts from now on is in too.

        Raises:
            OSError: the kernel refuses.
        """
        for entrance in self.entrances:
            entrance.write_text(str(pid))

    @property
    def entrances(self) -> tuple[Path, ...]:
        """The files that take the number of a process that is to be moved in."""
        return tuple(folder / "cgroup.procs" for folder in self._folders)

    def in_force(self) -> InForce:
        """The limits as the kernel has them."""
        memory = self._read_number("memory.max", "memory.limit_in_bytes")
        pids = self._read_number("pids.max", "pids.max")
        version = max((base.version for base in self._folders.values()), default=0)
        return InForce(memory, pids, self._read_cpus(), f"control groups v{version}")

    def _read_number(self, name_v2: str, name_v1: str) -> int | None:
        for folder, base in self._folders.items():
            text = _read_if_there(folder / (name_v2 if base.version == 2 else name_v1))
            if text.isdigit() and int(text) < _UNLIMITED:
                return int(text)
        return None

    def _read_cpus(self) -> float | None:
        for folder, base in self._folders.items():
            names = ("cpu.max",) if base.version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            fields = " ".join(_read_if_there(folder / name) for name in names).split()
            if len(fields) == 2 and fields[0].isdigit():
                return int(fields[0]) / int(fields[1])
        return None

    def remove(self, *, patience: float = 0.0) -> bool:
        """Kill what is left inside and take the folders away; False when processes are still ending."""
        return _remove_all(self._folders, patience)


def _settings(base: Base, limits: Limits) -> Iterator[tuple[str, str]]:
    if limits.memory_bytes is not None and "memory" in base.controllers:
        yield "memory.max" if base.version == 2 else "memory.limit_in_bytes", str(limits.memory_bytes)
        if base.version == 2:
            yield "memory.swap.max", "0"
        else:
            yield "memory.memsw.limit_in_bytes", str(limits.memory_bytes)
    if limits.pids is not None and "pids" in base.controllers:
        yield "pids.max", str(limits.pids)
    if limits.cpus is not None and "cpu" in base.controllers:
        quota = str(int(limits.cpus * _PERIOD_US))
        if base.version == 2:
            yield "cpu.max", f"{quota} {_PERIOD_US}"
        else:
            yield "cpu.cfs_period_us", str(_PERIOD_US)
            yield "cpu.cfs_quota_us", quota


def _write_if_there(path: Path, value: str) -> None:
    """Kernels differ in which of these files they have; what is in force is read back afterwards."""
    with contextlib.suppress(OSError), open(os.open(path, os.O_WRONLY | os.O_TRUNC), "w") as file:
        file.write(value)


def _read_if_there(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _remove_all(folders: Iterable[Path], patience: float) -> bool:
    deadline = time.monotonic() + patience
    left = list(folders)
    while left := [folder for folder in left if not _remove(folder)]:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True


def _remove(folder: Path) -> bool:
    for word in _read_if_there(folder / "cgroup.procs").split():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(int(word), signal.SIGKILL)
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class GroupOwner:
    """Identifies a process: its number is used again after its death, its start time is not."""

    namespace: int
    pid: int
    start: int

    def __str__(self) -> str:
        return f"{self.namespace}-{self.pid}-{self.start}"

    @classmethod
    def of_process(cls, pid: int) -> GroupOwner:
        """Describe a living process.

        Raises:
            OSError: there is none with this number.
        """
        namespace = (PROC / "self/ns/pid").stat().st_ino
        # The command's name, in parentheses, may hold anything: the fields proper start after the last one.
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return cls(namespace, pid, int(fields[19]))

    def is_alive(self) -> bool:
        """Whether it runs; one that cannot be seen from here (of another pid namespace) counts as living."""
        if self.namespace != (PROC / "self/ns/pid").stat().st_ino:
            return True
        try:
            return GroupOwner.of_process(self.pid) == self
        except (FileNotFoundError, ProcessLookupError):
            return False
        except OSError:
            return True


def find_groups(proc: Path = PROC) -> list[Path]:
    """The folders of all groups with a name like ours, wherever their owners made them."""
    found = []
    for point in dict.fromkeys(point for *_, point in find_hierarchies(proc)):
        for parent, names, _ in os.walk(point):
            found += [Path(parent, name) for name in names if _NAME.match(name)]
    return found


def reap_groups(folders: Iterable[Path]) -> list[str]:
    """Remove those groups of ours whose owner died, with the processes in them; returns their names."""
    removed = []
    for folder in folders:
        match = _NAME.match(folder.name)
        if match is None or GroupOwner(*map(int, match.groups())).is_alive():
            continue
        if _remove_all([folder], patience=0.5):
            removed.append(folder.name)
    return removed


def process_limits(limits: Limits, held: InForce) -> tuple[list[str], InForce]:
    """`ulimit` options for what no control group holds, and what they amount to.

    The number of processes is counted for each user namespace only since Linux 5.14; before, it would count
    everything the user runs. Memory is held for each process, not for all of them together.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    options = ["-c 0", f"-n {files}"]
    memory = held.memory_bytes
    pids = held.pids
    by = [held.by] if held.by != "nothing" else []
    if memory is None and limits.memory_bytes is not None:
        options.append(f"-d {limits.memory_bytes // 1024}")
        by.append("memory for each process by rlimit")
    kernel = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])
    if pids is None and limits.pids is not None and kernel >= (5, 14):
        options.append(f"-u {limits.pids}")
        pids = limits.pids
        by.append("processes by rlimit")
    return options, InForce(memory, pids, held.cpus, ", ".join(by) or "nothing")
