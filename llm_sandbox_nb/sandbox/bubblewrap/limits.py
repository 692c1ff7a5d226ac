"""Resource limits of a bubblewrap sandbox: control groups if this user can make them; otherwise limits of processes.

A group is named after its owner process, so that the next start recognizes and removes the groups of dead owners.
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

from llm_sandbox_nb.sandbox.cgroups import (
    CONTROLLERS,
    NO_LIMIT_BYTES,
    PROC,
    find_hierarchies,
    groups_of,
    read_if_there,
)
from llm_sandbox_nb.sandbox.limits import Limits

GROUP_PREFIX = "llm-sandbox-nb"
MAX_OPEN_FILES = 65536

_CPU_PERIOD_US = 100_000
_GROUP_NAME = re.compile(rf"^{GROUP_PREFIX}-(\d+)-(\d+)-(\d+)-[\w.-]+$")


@dataclass(frozen=True)
class Base:
    """A folder of the control group file system in which this user can make groups for some controllers."""

    folder: Path
    version: int
    controllers: frozenset[str]


@dataclass(frozen=True)
class InForce:
    """Limits as the kernel reports them. None means no limit."""

    memory_bytes: int | None = None
    pids: int | None = None
    cpus: float | None = None
    by: str = "nothing"
    """Text for people that names the mechanisms which enforce the limits."""


def find_bases(proc: Path = PROC) -> list[Base]:
    """Return the folders in which this process can make groups: at most a single folder for each hierarchy."""
    bases: dict[frozenset[str], Base | None] = {}
    for version, controllers, own, top in groups_of(proc):
        if controllers in bases or not own.is_dir():
            continue
        if version == 2:
            bases[controllers] = _base_v2(own, top)
        else:
            bases[controllers] = Base(own, 1, controllers) if os.access(own, os.W_OK) else None
    return [base for base in bases.values() if base]


def _base_v2(own: Path, top: Path) -> Base | None:
    """Return the nearest suitable folder, from `own` upwards to `top`, or None.

    A suitable folder is writable, and passes on the controllers `memory` and `pids` to its subfolders. A folder with
    processes cannot pass on controllers. So the result is usually a folder above `own` that systemd has assigned to the
    user.
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
    """Control groups of one sandbox, one folder for each hierarchy."""

    def __init__(self, folders: Mapping[Path, Base]) -> None:
        self._folders = folders

    @classmethod
    def make(cls, name: str, limits: Limits, bases: Iterable[Base]) -> Group | None:
        """Make groups with `limits`, named after this process and `name`. Return None if no group can be made."""
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
        """Move a process into the groups. All its future children will be in the groups too.

        Raises:
            OSError: if the kernel refuses.
        """
        for file in self.process_files:
            file.write_text(str(pid))

    @property
    def process_files(self) -> tuple[Path, ...]:
        """Files `cgroup.procs` of the groups. A process whose id is written into these files moves into the groups."""
        return tuple(folder / "cgroup.procs" for folder in self._folders)

    def in_force(self) -> InForce:
        """Read back the limits that the kernel enforces."""
        memory = self._read_number("memory.max", "memory.limit_in_bytes")
        pids = self._read_number("pids.max", "pids.max")
        version = max((base.version for base in self._folders.values()), default=0)
        return InForce(memory, pids, self._read_cpus(), f"control groups v{version}")

    def _read_number(self, name_v2: str, name_v1: str) -> int | None:
        for folder, base in self._folders.items():
            text = read_if_there(folder / (name_v2 if base.version == 2 else name_v1))
            if text.isdigit() and int(text) < NO_LIMIT_BYTES:
                return int(text)
        return None

    def _read_cpus(self) -> float | None:
        for folder, base in self._folders.items():
            names = ("cpu.max",) if base.version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            fields = " ".join(read_if_there(folder / name) for name in names).split()
            if len(fields) == 2 and fields[0].isdigit():
                return int(fields[0]) / int(fields[1])
        return None

    def remove(self, *, patience: float = 0.0) -> bool:
        """Kill the processes in the groups, and remove the groups.

        Return False if a group is left after `patience` seconds.
        """
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
        quota = str(int(limits.cpus * _CPU_PERIOD_US))
        if base.version == 2:
            yield "cpu.max", f"{quota} {_CPU_PERIOD_US}"
        else:
            yield "cpu.cfs_period_us", str(_CPU_PERIOD_US)
            yield "cpu.cfs_quota_us", quota


def _write_if_there(path: Path, value: str) -> None:
    # Some kernels lack some of these files, so errors are ignored. `Group.in_force` shows later if a limit is missing.
    with contextlib.suppress(OSError), open(os.open(path, os.O_WRONLY | os.O_TRUNC), "w") as file:
        file.write(value)


def _remove_all(folders: Iterable[Path], patience: float) -> bool:
    deadline = time.monotonic() + patience
    left = list(folders)
    while left := [folder for folder in left if not _remove(folder)]:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True


def _remove(folder: Path) -> bool:
    for word in read_if_there(folder / "cgroup.procs").split():
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
    """Identity of a process. It includes the start time, because the kernel reuses process ids."""

    namespace: int
    pid: int
    start: int

    def __str__(self) -> str:
        return f"{self.namespace}-{self.pid}-{self.start}"

    @classmethod
    def of_process(cls, pid: int) -> GroupOwner:
        """Return the identity of a living process.

        Raises:
            OSError: if no process has this id.
        """
        namespace = (PROC / "self/ns/pid").stat().st_ino
        # The command's name is in parentheses and may contain any character, so the last `)` ends the name.
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return cls(namespace, pid, int(fields[19]))

    def is_alive(self) -> bool:
        """Return True if the process runs, or if it is in another process namespace, where it cannot be checked."""
        if self.namespace != (PROC / "self/ns/pid").stat().st_ino:
            return True
        try:
            return GroupOwner.of_process(self.pid) == self
        except (FileNotFoundError, ProcessLookupError):
            return False
        except OSError:
            return True


def find_groups(proc: Path = PROC) -> list[Path]:
    """Return the folders of all control groups of this package, in all mounted hierarchies."""
    found = []
    for point in dict.fromkeys(point for *_, point in find_hierarchies(proc)):
        for parent, names, _ in os.walk(point):
            found += [Path(parent, name) for name in names if _GROUP_NAME.match(name)]
    return found


def reap_groups(folders: Iterable[Path]) -> list[str]:
    """Kill the processes in groups of dead owners, and remove the groups. Return the names of the removed groups."""
    removed = []
    for folder in folders:
        match = _GROUP_NAME.match(folder.name)
        if match is None or GroupOwner(*map(int, match.groups())).is_alive():
            continue
        if _remove_all([folder], patience=0.5):
            removed.append(folder.name)
    return removed


def process_limits(limits: Limits, held: InForce) -> tuple[dict[int, int], InForce]:
    """Return values for limits of processes, by `RLIMIT_...`, and all limits that are in force with these values.

    Memory and the number of processes are limited in this way only if no control group limits them. `limits` are the
    requested limits, and `held` are the limits that control groups enforce.
    """
    values = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: _allowed(resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
    }
    pids = held.pids
    by = [held.by] if held.by != "nothing" else []
    if held.memory_bytes is None and limits.memory_bytes is not None:
        # The limit is for each single process, so the memory of all processes together is still reported as unlimited.
        values[resource.RLIMIT_DATA] = _allowed(resource.RLIMIT_DATA, limits.memory_bytes)
        by.append("memory for each process by rlimit")
    # Before Linux 5.14, this limit counted all processes of the host's user, not those of the user namespace.
    kernel = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])
    if pids is None and limits.pids is not None and kernel >= (5, 14):
        values[resource.RLIMIT_NPROC] = pids = _allowed(resource.RLIMIT_NPROC, limits.pids)
        by.append("processes by rlimit")
    return values, InForce(held.memory_bytes, pids, held.cpus, ", ".join(by) or "nothing")


def _allowed(limit: int, value: int) -> int:
    """Return `value`, or the hard limit of this process if that is smaller, because programs inside cannot raise it."""
    hard = resource.getrlimit(limit)[1]
    return value if hard == resource.RLIM_INFINITY else min(hard, value)
