"""Limits on the total size and on the number of files of a sandbox without a quota.

Counting files is slow, so there are two steps:

- `tick` reads the usage of the filesystems, several times a second. Other programs of the machine use the filesystems
  too, so the usage only shows that the sandbox may have exceeded a limit. If other programs delete files, the usage may
  not even show that the sandbox grows. So every change of the usage is taken for growth. Even without a change, a count
  is due after 1.5 s near a limit, and after 30 s far from all limits. While no process of the sandbox runs, no count
  starts.
- `count` makes a child count the sandbox's files: files that are younger than the sandbox, and deleted files that are
  still open.

The usage that a count finds determines the next state (`apply_count`). A state has two bounds for later counts:

    next state  if the count is                   commands end above         the sandbox ends above
    normal      within the limits                 the limits                 never
    settling    above the bound of the commands   count + 1/16 of the limit  as before
    exceeded    above the limits, after settling  count + 1/16 of the limit  count + the limit

In the state `settling`, commands were just ended. Only the next count, which never stops early, shows how much they
have written. In the state `exceeded`, further commands may remove files. If they write instead, they are ended again
(`settling`). If the files grow by another full limit, the sandbox ends.
"""

from __future__ import annotations

import os
import resource
import signal
import stat
import sys
import time

from .children import ExecRequest, fork_with_pipes
from .event_loop import IN
from .frames import quietly_close, write_all
from .light import dump, named_tuple, parse_json
from .mounts import PSEUDO_FILESYSTEMS, is_ordinary_path, mount_table, writable_mounts
from .processes import (
    Crowd,
    descendants,
    is_stopped,
    kill_all,
    own_tree,
    process_table,
    read_proc,
    send_signal,
)
from .shell import ShellCommand
from .terminal import TerminalRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NamedTuple

    from .mounts import Epoch
    from .request import ExecutorContext
    from .shell import Shell

    class _DiskUsage(NamedTuple):
        size: int
        files: int

    class Observation(NamedTuple):
        """State of filesystems and processes at one time."""

        used: DiskUsage
        """Usage of the filesystems by all programs of the machine."""
        movement: DiskUsage
        """Sum of all earlier changes of `used`. A decrease counts like an increase."""
        cpu_seconds: float
        """Processor seconds that the sandbox's living processes have used."""
        threads: frozenset[tuple[str, bytes]]
        """Threads of these processes, with their run times. As long as no thread runs, the set does not change."""

    class Count(NamedTuple):
        """Result of the last count."""

        usage: DiskUsage
        """Usage by the sandbox's files."""
        start: Observation
        """Observation at the start of the count."""
        ended_at: float
        """Monotonic time at which the count ended."""
        children_seconds: float
        """Processor seconds of all children that had ended before the end of the count."""
        cost: float
        """Processor seconds that the count took."""
else:  # `typing` is slow to import
    _DiskUsage = named_tuple("_DiskUsage", "size files")
    Observation = named_tuple("Observation", "used movement cpu_seconds threads")
    Count = named_tuple("Count", "usage start ended_at children_seconds cost")


class DiskUsage(_DiskUsage):
    """Bytes and number of files. In a limit, 0 means unlimited."""

    __slots__ = ()

    def plus(self, other: DiskUsage) -> DiskUsage:
        return DiskUsage(self.size + other.size, self.files + other.files)

    def minus(self, other: DiskUsage) -> DiskUsage:
        return DiskUsage(self.size - other.size, self.files - other.files)

    def exceeds(self, limits: DiskUsage) -> bool:
        return 0 < limits.size < self.size or 0 < limits.files < self.files


NONE = DiskUsage(0, 0)
ACTIVE_TICK_SECONDS, IDLE_TICK_SECONDS = 0.2, 1.0
"""Seconds between two ticks while a request is served, and while none is served."""
CPU_SHARE, COMMANDS_CPU_SHARE = 1 / 20, 1 / 4
"""Limit on the processor time of counts: a share of the elapsed time plus a share of the commands' processor time."""
MIN_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS = 1.5, 30.0
"""Seconds until a count is due even if the filesystems' usage stays equal: near a limit, and far from all limits."""
MAX_HIDDEN_GROWTH = DiskUsage(100_000_000, 5_000)
"""Maximum growth per second, in bytes and files, that other programs are assumed to hide by deleting files."""
GRACE_DIVISOR = 16
"""Divisor of a limit. In the state `exceeded`, commands that add more than 1/16 of a limit are ended again."""
CEILING_FACTOR = 4
"""Multiple of a limit. A count in the state `normal` may stop there, because the commands are then ended anyway."""
MAX_PATH_BYTES = 3000  # below PATH_MAX; deeper folders are opened relative to an open folder
MAX_DEEP_FOLDERS = 256  # maximum number of such open folders, because each takes a descriptor
BLOCK_BYTES = 512  # unit of st_blocks


class DiskWatch:
    """The watch over the sandbox's files during the life of the sandbox."""

    def __init__(self, executor: ExecutorContext, shell: Shell, epoch: Epoch) -> None:
        self.executor = executor
        self.shell = shell
        self.epoch = epoch
        self.places: list[bytes] = []
        """Paths on the filesystems that are measured, with a single path for each filesystem."""
        self.limits = NONE
        self.end_commands_above = NONE
        self.end_sandbox_above = NONE
        self.settling = False
        self.used = NONE
        self.movement = NONE
        """Usage and movement at the last tick. `Observation` describes both."""
        self.last = Count(NONE, Observation(NONE, NONE, 0.0, frozenset()), 0.0, 0.0, 0.0)
        self.next_observation = 0.0
        """Earliest monotonic time at which the processes are observed again."""
        self.counting = 0
        """Pid of the child that counts, or 0."""
        self.failed_counts = 0
        """Number of counts that have failed in a row, because the child was killed or could not be forked."""

    def watch(self, limits: DiskUsage) -> None:
        """Start the watch, or change its limits."""
        self.limits = self.end_commands_above = limits
        self.end_sandbox_above = NONE
        if any(limits) and not self.places:
            by_device = {os.stat(path).st_dev: path for path, _ in filesystems(self.executor.remove)}
            self.places = list(by_device.values())
            self.used = filesystem_usage(self.places)
            start = Observation(self.used, NONE, 0.0, frozenset())
            self.last = Count(NONE, start, time.monotonic(), 0.0, 0.0)
            self.tick()

    def tick(self) -> None:
        """Measure the filesystems, and count the files if a limit may be exceeded."""
        self.executor.after(ACTIVE_TICK_SECONDS if self.executor.requests else IDLE_TICK_SECONDS, self.tick)
        used = filesystem_usage(self.places)
        change = used.minus(self.used)
        self.used = used
        self.movement = self.movement.plus(DiskUsage(abs(change.size), abs(change.files)))
        now, last = time.monotonic(), self.last
        if self.counting and not Crowd.stopped and is_stopped(self.counting):
            send_signal(self.counting, signal.SIGKILL)  # a command has stopped the child, to hide its files
        if self.counting or now < self.next_observation or not any(self.limits):
            return
        waited = now - last.ended_at
        possible = last.usage.plus(self.movement.minus(last.start.movement))
        if waited < self.max_interval() and not possible.exceeds(self.end_commands_above):
            return
        began = time.process_time()
        cpu_seconds, threads = process_activity()
        children_seconds = ended_children_seconds()
        self.next_observation = now + (time.process_time() - began) / CPU_SHARE
        worked = max(0.0, cpu_seconds - last.start.cpu_seconds + children_seconds - last.children_seconds)
        if last.cost > waited * CPU_SHARE + worked * COMMANDS_CPU_SHARE and waited < MAX_INTERVAL_SECONDS:
            return
        if children_seconds != last.children_seconds or threads != last.start.threads:
            self.count(Observation(used, self.movement, cpu_seconds, threads))

    def max_interval(self) -> float:
        """Return the seconds until a count is due even if the usage of the filesystems stays equal.

        In this time, a growth of `MAX_HIDDEN_GROWTH` per second would reach a limit. But the result is never below
        `MIN_INTERVAL_SECONDS`, and never above `MAX_INTERVAL_SECONDS`.
        """
        left, counted = self.end_commands_above, self.last.usage
        seconds = []
        if left.size:
            seconds.append((left.size - counted.size) / MAX_HIDDEN_GROWTH.size)
        if left.files:
            seconds.append((left.files - counted.files) / MAX_HIDDEN_GROWTH.files)
        return min(MAX_INTERVAL_SECONDS, max(MIN_INTERVAL_SECONDS, min(seconds)))

    def count(self, now: Observation) -> None:
        """Count in a child, or in this process after two failed counts in a row.

        In a crowd of processes (see `Crowd`), a fork would be slow. Then this process counts, but only if the growth of
        the filesystems could exceed a limit. The fork fails if no further processes are allowed. If it fails right
        after another failed count, all growth of the filesystems is attributed to the sandbox.
        """
        crowd = Crowd.is_here()
        if crowd and not self.upper_bound().exceeds(self.end_commands_above):
            return
        if crowd or self.failed_counts > 1:
            began = time.process_time()
            usage = count_own_files(self.executor.remove, self.epoch, self.ceiling, os.getpid())
            self.apply_count(usage, now, time.process_time() - began)
            return
        try:
            pid, (result_r,) = fork_with_pipes(self.executor, (3,), self.count_in_child)
        except OSError:
            if self.failed_counts:
                self.apply_count(self.upper_bound(), now)
            else:
                self.failed_counts += 1
            return
        self.counting = pid
        answer: list[bytes] = []
        self.executor.helpers.add(pid)
        self.executor.children[pid] = lambda _: self.child_ended(pid, result_r, answer, now)
        self.executor.watch(result_r, IN, lambda _: answer.append(os.read(result_r, 4096)))

    def upper_bound(self) -> DiskUsage:
        """Return the last count plus all growth of the filesystems since then."""
        growth = self.used.minus(self.last.start.used)
        return self.last.usage.plus(DiskUsage(max(0, growth.size), max(0, growth.files)))

    @property
    def ceiling(self) -> DiskUsage:
        """Usage at which a count may stop, because more usage would not change the decision. `NONE`: never stop."""
        if self.settling:
            return NONE
        if any(self.end_sandbox_above):
            return self.end_sandbox_above
        return DiskUsage(CEILING_FACTOR * self.limits.size, CEILING_FACTOR * self.limits.files)

    def count_in_child(self) -> None:
        usage = count_own_files(self.executor.remove, self.epoch, self.ceiling, os.getppid())
        write_all(3, dump([usage, time.process_time()]))
        os._exit(0)

    def child_ended(self, pid: int, result_r: int, answer: list[bytes], start: Observation) -> None:
        self.counting = 0
        self.executor.helpers.discard(pid)
        self.executor.unwatch(result_r)
        try:
            answer.append(os.read(result_r, 4096))
        except BlockingIOError:
            pass
        quietly_close(result_r)
        try:
            (size, files), cost = parse_json(b"".join(answer))
        except ValueError:
            self.failed_counts += 1
            return
        self.apply_count(DiskUsage(size, files), start, cost)

    def apply_count(self, usage: DiskUsage, start: Observation, cost: float = 0.0) -> None:
        """Enter the next state, as in the table at the top of this file. Above a bound, end commands or the sandbox."""
        self.failed_counts = 0
        self.last = Count(usage, start, time.monotonic(), ended_children_seconds(), cost)
        settled, self.settling = self.settling, False
        if not usage.exceeds(self.limits):
            self.end_commands_above, self.end_sandbox_above = self.limits, NONE
        elif settled and not any(self.end_sandbox_above):
            self.end_commands_above = self.bound_above(usage, GRACE_DIVISOR)
            self.end_sandbox_above = self.bound_above(usage, 1)
        elif usage.exceeds(self.end_commands_above):
            if usage.exceeds(self.end_sandbox_above):
                sys.stderr.write("its files kept growing beyond its limit\n")
                sys.stderr.flush()
                self.executor.leave()
            # With a cost of 0, the next count can start at once. That count measures the whole usage.
            self.last = self.last._replace(cost=0.0)
            self.end_commands_above = self.bound_above(usage, GRACE_DIVISOR)
            self.settling = True
            self.end_commands(self.notice(usage))

    def bound_above(self, usage: DiskUsage, divisor: int) -> DiskUsage:
        """Return a bound. It is `limits / divisor` above the usage, or above the limits if these are larger."""
        size, files = self.limits
        return DiskUsage(
            size and max(size, usage.size) + size // divisor,
            files and max(files, usage.files) + files // divisor,
        )

    def notice(self, usage: DiskUsage) -> str:
        """Return the notice for the user and the model."""
        size, files = self.limits
        if usage.exceeds(DiskUsage(size, 0)):
            used, limit = "%.1f MB" % (usage.size / 2**20), "%.1f MB" % (size / 2**20)
        else:
            used, limit = "%d files" % usage.files, "%d files" % files
        return (
            "The command was ended: the files of this sandbox use %s, over its limit of %s."
            " Remove files that are not needed." % (used, limit)
        )

    def end_commands(self, text: str) -> None:
        """End all processes of commands. The ended commands report the notice `text`.

        If no command runs that could report it, the next command does.
        """
        reported = False
        for request in list(self.executor.requests.values()):
            if isinstance(request, (ShellCommand, ExecRequest, TerminalRequest)) and not request.done:
                reported = request.end_with(text) or reported
        skip = self.executor.helper_pids() - self.executor.keepers
        kill_all(lambda: descendants(process_table(), os.getpid(), skip) - {self.shell.pid})
        if not reported:
            self.shell.notice = text


def filesystems(folder: str) -> Iterator[tuple[bytes, bool]]:
    """Yield a path on each writable filesystem, and True if the filesystem is in memory, which only the sandbox uses.

    If `folder` is not an empty text, yield only this folder, and False.
    """
    if folder:
        yield os.fsencode(folder), False
        return
    for path, kind, _, writable in mount_table():
        if writable and kind == b"tmpfs":
            yield path, True
        elif writable and kind not in PSEUDO_FILESYSTEMS and is_ordinary_path(path) and os.path.isdir(path):
            yield path, False


def filesystem_usage(places: list[bytes]) -> DiskUsage:
    """Return the usage of the filesystems at these paths by all programs of the machine."""
    used = NONE
    for path in places:
        found = os.statvfs(path)
        size = (found.f_blocks - found.f_bfree) * found.f_frsize
        used = used.plus(DiskUsage(size, found.f_files - found.f_ffree))
    return used


def ended_children_seconds() -> float:
    """Return the processor seconds of all ended children, and of descendants for which these children have waited."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def process_activity() -> tuple[float, frozenset[tuple[str, bytes]]]:
    """Return `cpu_seconds` and `threads` of an `Observation`."""
    ticks, times = 0, set()
    for pid in own_tree():
        fields = read_proc("/proc/%d/stat" % pid).rpartition(b")")[2].split()
        ticks += sum(map(int, fields[11:15]))
        folder = "/proc/%d/task" % pid
        for thread in names_in(folder):
            run_time = read_proc("%s/%s/schedstat" % (folder, thread))
            if run_time in (b"", b"0 0 0\n"):  # if the kernel reports no time, assume that the thread has run
                run_time = b"%f" % time.monotonic()
            times.add((thread, run_time))
    return ticks / os.sysconf("SC_CLK_TCK"), frozenset(times)


def describe_disk(limits: DiskUsage, folder: str) -> dict[str, Any]:
    """Return the limits, and the total size in bytes of all filesystems on disk.

    If there are only filesystems in memory, return their total size. If the disk has a quota, or all files are in
    memory, the total size is the real limit.
    """
    totals: dict[bool, dict[int, int]] = {True: {}, False: {}}
    for path, in_memory in filesystems(folder):
        try:
            found, device = os.statvfs(path), os.stat(path).st_dev
        except OSError:
            continue
        totals[in_memory][device] = found.f_blocks * found.f_frsize
    total = sum((totals[False] or totals[True]).values())
    return {"bytes": limits.size, "files": limits.files, "total": total}


# ------------------------------------------------------------------------------------------------ in the child


def count_own_files(folder: str, epoch: Epoch, ceiling: DiskUsage, executor_pid: int) -> DiskUsage:
    """Return the usage by the sandbox's files. The count may stop at the ceiling.

    Args:
        folder: path of a folder of which all files are counted. If the path is an empty text, count the files that
            are younger than the sandbox, on all writable filesystems.
        epoch: start time of the sandbox.
        ceiling: usage above which the count stops.
        executor_pid: pid of the executor. Its descendants are the sandbox's processes.
    """
    counter = FileCounter(0 if folder else epoch.start - epoch.back, ceiling)
    mounts = {mount.path: mount for mount in writable_mounts()[0]} if not folder else {}
    mount_points = {path for path, *_ in mount_table()}
    for path, in_memory in filesystems(folder):
        if in_memory:
            counter.add_memory_filesystem(path)
        else:
            folders_since = epoch.since(mounts[path])[0] if path in mounts else 0
            counter.walk(path, mount_points - {path}, folders_since)
    counter.add_deleted_files(descendants(process_table(), executor_pid, set()))
    return counter.usage


class FileCounter:
    """Counter of the sandbox's files: files with a ctime (in nanoseconds) of at least `since`.

    A walk stops when the usage exceeds `ceiling`.
    """

    def __init__(self, since: int, ceiling: DiskUsage) -> None:
        self.since = since
        self.ceiling = ceiling
        self.size = self.files = 0
        self.inodes: set[tuple[int, int]] = set()
        """Device and inode of each counted file that has several names or no name."""
        self.memory_devices: set[int] = set()
        self.deep_folders = 0

    @property
    def usage(self) -> DiskUsage:
        return DiskUsage(self.size, self.files)

    def add_memory_filesystem(self, path: bytes) -> None:
        device = os.stat(path).st_dev
        if device not in self.memory_devices:
            self.memory_devices.add(device)
            used = filesystem_usage([path])
            self.size += used.size
            self.files += used.files

    def add(self, info: os.stat_result) -> None:
        """Add a file or folder. A file with several names (hard links) is counted once."""
        if info.st_ctime_ns < self.since or info.st_dev in self.memory_devices:
            return
        if info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode):
            if (info.st_dev, info.st_ino) in self.inodes:
                return
            self.inodes.add((info.st_dev, info.st_ino))
        self.size += info.st_blocks * BLOCK_BYTES
        self.files += 1

    def walk(self, top: bytes, skip: set[bytes], folders_since: int) -> None:
        """Add everything below `top`. Do not enter the folders `skip`.

        Folders with a ctime before `folders_since` are not entered either, because they contain nothing new. An item of
        the list `todo` has the descriptor of a folder, a path relative to this folder, and the absolute path. Of a very
        long absolute path, only the beginning is kept.
        """
        todo = [(os.open("/", os.O_PATH | os.O_CLOEXEC), top, top)]
        while todo and not self.usage.exceeds(self.ceiling):
            base, name, path = todo.pop()
            try:
                fd, closed_mode = open_folder(base, name)
            except OSError:
                continue
            try:
                with os.scandir(fd) as entries:
                    for entry in entries:
                        info = entry.stat(follow_symlinks=False)
                        self.add(info)
                        below = os.fsencode(entry.name)
                        if not stat.S_ISDIR(info.st_mode) or info.st_ctime_ns < folders_since:
                            continue
                        whole = path.rstrip(b"/") + b"/" + below
                        if whole in skip:
                            continue
                        if len(name) < MAX_PATH_BYTES:
                            todo.append((base, name.rstrip(b"/") + b"/" + below, whole))
                        elif self.deep_folders < MAX_DEEP_FOLDERS:
                            self.deep_folders += 1
                            todo.append((os.dup(fd), below, whole[:MAX_PATH_BYTES]))
            except OSError:
                continue
            finally:
                if closed_mode is not None:
                    os.fchmod(fd, closed_mode)
                os.close(fd)

    def add_deleted_files(self, pids: set[int]) -> None:
        """Add the files without a name that these processes have open. Each thread may have descriptors of its own."""
        for pid in pids:
            for thread in names_in("/proc/%d/task" % pid):
                folder = "/proc/%d/task/%s/fd" % (pid, thread)
                for number in names_in(folder):
                    self.add_deleted_file("%s/%s" % (folder, number))

    def add_deleted_file(self, link: str) -> None:
        """Add the file to which a link of /proc leads, if the file has no name."""
        try:
            info = os.stat(link)
            inode = (info.st_dev, info.st_ino)
            if info.st_nlink or not stat.S_ISREG(info.st_mode) or inode in self.inodes:
                return
            if os.readlink(link).startswith("/memfd:"):
                return
        except OSError:
            return
        self.inodes.add(inode)
        self.add(info)


def names_in(folder: str) -> list[str]:
    """Return the names in a folder of /proc. The list is empty if the folder cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def open_folder(base: int, name: bytes) -> tuple[int, int | None]:
    """Open a folder for reading, even if its mode forbids reading.

    Returns:
        The descriptor, and the mode that must be restored afterwards. The mode is None if it was not changed.

    Raises:
        OSError: if the folder is gone, or cannot be read and belongs to another user.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=base)
        if os.access(b".", os.X_OK, dir_fd=fd):
            return fd, None
        os.close(fd)
    except PermissionError:
        pass
    mode = stat.S_IMODE(os.stat(name, dir_fd=base, follow_symlinks=False).st_mode)
    os.chmod(name, mode | 0o500, dir_fd=base)
    return os.open(name, flags, dir_fd=base), mode
