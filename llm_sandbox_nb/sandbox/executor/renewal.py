"""Renewal of a used sandbox: remove files that checkpoints do not cover, and describe all state except files.

The host then compares the description with the one from the start of the sandbox. If both are equal, and a restore has
brought back the files of the first checkpoint, the sandbox is as good as new.
"""

from __future__ import annotations

import os
import sys

from . import (  # noqa: F401 - not imported later, when commands may have changed the sandbox's Python
    door,
    entries,
    files,
    filesystem_scan,
    history,
    records,
    restore,
    snapshotter,
    terminal,
    tree_stream,
)
from .children import ChildRequest
from .frames import write_all
from .light import dump
from .processes import process_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .disk_watch import DiskWatch
    from .request import ExecutorContext
    from .shell import Shell

SETTINGS = ("limits", "oom_score_adj", "coredump_filter", "comm", "cgroup", "uid_map", "gid_map")
"""Files of /proc/self with settings that other processes can change and children inherit."""
IPC = ("shm", "sem", "msg")
NETWORK = (("dev", slice(1)), ("route", slice(3)), ("if_inet6", slice(1)))
"""Tables of interfaces, routes and addresses, each with the columns that traffic does not change."""


class RenewalRequest(ChildRequest):
    """A request to remove files of large outputs, forget output of background jobs, and describe the sandbox."""

    def __init__(
        self,
        executor: ExecutorContext,
        number: int,
        params: dict[str, Any],
        shell: Shell,
        disk_watch: DiskWatch,
    ) -> None:
        super().__init__(executor, number, params)
        self.shell = shell
        self.disk_watch = disk_watch

    def prepare(self) -> None:
        self.shell.take_background()
        self.shell.background, self.shell.notice = b"", ""
        self.known = {os.getpid(), self.shell.pid} | self.executor.helper_pids()

    def child(self) -> None:
        kept = snapshotter.remove_path(self.executor.spill)
        facts = describe(self.known | {os.getpid()}, self.disk_watch.end_sandbox_above)
        write_all(3, dump({"facts": {**facts, "kept outputs": repr(kept)}}))
        os._exit(0)


def describe(known: set[int], disk: tuple[int, int]) -> dict[str, str]:
    """Return texts, by name, that describe all state that commands can change, except files.

    `known` has the pids of the executor's processes. `disk` is the usage above which the sandbox ends. Long texts are
    replaced by a hash with a secret key, so that programs in the sandbox cannot choose a text with this hash.
    """
    foreign = sorted((pid, *born) for pid, born in process_table().items() if pid not in known)
    return {
        "processes": repr(foreign),
        "mounts": hashed(read("/proc/self/mountinfo")),
        "shared memory": hashed(b"".join(read("/proc/sysvipc/" + name) for name in IPC)),
        "limits": hashed(b"".join(read("/proc/self/" + name) for name in SETTINGS) + scheduling()),
        "network": hashed(
            b"".join(columns(read("/proc/self/net/" + name), wanted) for name, wanted in NETWORK)
        ),
        "host name": hashed("\n".join(os.uname()).encode()),
        "disk": repr(disk),
        "Python": hashed("\n".join(sorted(sys.modules)).encode()),
    }


def hashed(text: bytes) -> str:
    """Return the hash of a text. The hash has a secret key, which is different in each executor."""
    return str(hash(text))


def read(path: str) -> bytes:
    """Return the content of a file below /proc, or b"" if the file cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def columns(table: bytes, wanted: slice) -> bytes:
    return b"\n".join(b" ".join(line.split()[wanted]) for line in table.splitlines())


def scheduling() -> bytes:
    """Return the scheduling policy, the priority and the permitted CPUs of the executor."""
    policy = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0), sorted(os.sched_getaffinity(0))
    return repr(policy).encode()
