"""Bounds all files of the sandbox together, in bytes and in number, where no quota does.

It is cheap to ask how full the filesystem is, but others may use it too. So that only says when to look; then a child
counts what is the sandbox's own: files that are younger than it, and those that are deleted and still open. Above a
limit, commands are ended; further ones may remove files. When they add as much again as the limit, the sandbox ends.

Others who delete files can hide what commands write. So it also counts when the filesystem gets emptier, and every two
seconds near a limit. While no process of the sandbox runs, nothing can change, and it does not count.
"""

from __future__ import annotations

import json
import os
import resource
import stat
import sys
import time

from .children import ExecRequest, fork_with_pipes
from .event_loop import IN
from .frames import dump, quietly_close, write_all
from .mounts import PSEUDO, is_ours, mount_table, writable_mounts
from .processes import descendants, is_crowd, kill_all, own_tree, process_table, read_proc
from .shell import ShellCommand
from .terminal import TerminalRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NamedTuple

    from .mounts import Epoch
    from .request import ExecutorContext
    from .shell import Shell

    class Glance(NamedTuple):
        """What can be seen from outside of the files at one time."""

        in_use: tuple[int, int]
        """Bytes and files on the filesystems, whoever they belong to."""
        moved: tuple[int, int]
        """All their ups and downs until then."""
        seconds: float
        """Of a processor that the sandbox's living processes have taken."""
        ran: frozenset[tuple[str, bytes]]
        """Each of their threads with how long it ran: the same as long as none runs."""
else:
    from collections import namedtuple

    Glance = namedtuple("Glance", "in_use moved seconds ran")

ACTIVE, IDLE = 0.2, 1.0
"""Seconds between two looks at how full the filesystem is, with a request and without."""
REST, SHARE = 20, 4
"""Counts take 5 % of a processor at most, and a quarter of what commands take of it."""
SOON, MAY_BE_WRONG = 1.5, 30.0
"""Seconds after which to count again, near a limit and far from it, whatever the filesystem says."""
FASTEST = (100_000_000, 5_000)
"""Bytes and files per second that others may hide: a limit that takes longer to reach is farther."""
SLACK = 16
"""Above a limit each command may add a part of it, one divided by this."""
CLEARLY = 4
"""Times a limit at which a first count may end."""
LONGEST_PATH = 3000
DEEP_FOLDERS = 256
BLOCK = 512


class DiskWatch:
    """Looks at the files as long as the sandbox lives."""

    def __init__(self, executor: ExecutorContext, shell: Shell, epoch: Epoch) -> None:
        self.executor = executor
        self.shell = shell
        self.epoch = epoch
        self.limits = (0, 0)
        self.allowed = (0, 0)
        """Above this commands are ended."""
        self.last = (0, 0)
        """Above this the sandbox ends; 0 while it is below its limits."""
        self.settling = False
        """Whether commands were ended since the last count: what they wrote during it is not known yet."""
        self.counted = (0, 0)
        self.in_use = self.moved = (0, 0)
        """At the last look, see `Glance`."""
        self.then = Glance((0, 0), (0, 0), 0.0, frozenset())
        """When the last count began."""
        self.last_count = self.next_look = 0.0
        """When it ended, and when to look at the processes again (monotonic time)."""
        self.ended = self.cost = 0.0
        """Seconds of a processor that ended processes had taken then, and that the count took."""
        self.counting = False
        self.killed = 0
        self.places: list[bytes] = []

    def watch(self, size: int, files: int) -> None:
        """Begin, or take other limits; 0 is none."""
        begun = any(self.limits)
        self.limits = self.allowed = (size, files)
        self.last = (0, 0)
        if any(self.limits) and not begun:
            by_device = {os.stat(path).st_dev: path for path, _ in filesystems(self.executor.remove)}
            self.places = list(by_device.values())
            self.in_use = in_use(self.places)
            self.then = Glance(self.in_use, (0, 0), 0.0, frozenset())
            self.last_count = time.monotonic()
            self.tick()

    def tick(self) -> None:
        """Look how full it is, and count when a limit could be passed."""
        self.executor.after(ACTIVE if self.executor.requests else IDLE, self.tick)
        before, self.in_use = self.in_use, in_use(self.places)
        self.moved = plus(self.moved, (abs(now - then) for now, then in pairs(self.in_use, before)))
        now = time.monotonic()
        if self.counting or now < self.next_look or not any(self.limits):
            return
        waited = now - self.last_count
        possible = plus(self.counted, (now - then for now, then in pairs(self.moved, self.then.moved)))
        if waited < self.patience() and not over(possible, self.allowed):
            return
        began = time.process_time()
        seconds, ran = activity()
        ended = ended_seconds()
        self.next_look = now + REST * (time.process_time() - began)
        worked = max(0.0, seconds - self.then.seconds + ended - self.ended)
        if self.cost > waited / REST + worked / SHARE and waited < MAY_BE_WRONG:
            return
        if ended != self.ended or ran != self.then.ran:
            self.count(Glance(self.in_use, self.moved, seconds, ran))

    def patience(self) -> float:
        """Seconds after which to count again, whatever the filesystem says."""
        seconds = [
            (limit - own) / fastest
            for limit, own, fastest in zip(self.allowed, self.counted, FASTEST)  # noqa: B905 - Python 3.8
            if limit
        ]
        return min(MAY_BE_WRONG, max(SOON, min(seconds)))

    def most(self) -> tuple[int, int]:
        """What was counted, and all by which the filesystems have grown since."""
        return plus(self.counted, (max(0, now - then) for now, then in pairs(self.in_use, self.then.in_use)))

    def count(self, now: Glance) -> None:
        """Have a child count; here, when commands have killed it.

        Among hundreds of processes that fork, our own fork would wait for theirs: what they may have taken counts.
        """
        if is_crowd():
            if over(self.most(), self.allowed):
                self.take(self.most(), now)
            return
        if self.killed > 1:
            began = time.process_time()
            counted = count_own(self.executor.remove, self.epoch, self.ceiling, os.getpid())
            self.take(counted, now, time.process_time() - began)
            return
        try:
            pid, (result_r,) = fork_with_pipes(self.executor, (3,), lambda: self.child())
        except OSError:  # commands have all processes: what they may have taken counts
            if self.killed:
                self.take(self.most(), now)
            else:
                self.killed += 1
            return
        self.counting = True
        answer: list[bytes] = []
        self.executor.helpers.add(pid)
        self.executor.children[pid] = lambda _: self.child_ended(pid, result_r, answer, now)
        self.executor.watch(result_r, IN, lambda _: answer.append(os.read(result_r, 4096)))

    @property
    def ceiling(self) -> tuple[int, int]:
        """It does not matter by how much this is passed."""
        if self.settling:
            return (0, 0)
        return self.last if any(self.last) else (CLEARLY * self.limits[0], CLEARLY * self.limits[1])

    def child(self) -> None:
        """In the child."""
        counted = count_own(self.executor.remove, self.epoch, self.ceiling, os.getppid())
        write_all(3, dump([counted, time.process_time()]))
        os._exit(0)

    def child_ended(self, pid: int, result_r: int, answer: list[bytes], began: Glance) -> None:
        """The child has counted, or was killed."""
        self.counting = False
        self.executor.helpers.discard(pid)
        self.executor.unwatch(result_r)
        try:
            answer.append(os.read(result_r, 4096))
        except BlockingIOError:
            pass
        quietly_close(result_r)
        try:
            (size, files), cost = json.loads(b"".join(answer))
        except ValueError:
            self.killed += 1
            return
        self.take((size, files), began, cost)

    def take(self, counted: tuple[int, int], began: Glance, cost: float = 0.0) -> None:
        """What is counted; end the commands when it is too much."""
        self.last_count = time.monotonic()
        self.killed = 0
        self.counted, self.then = counted, began
        self.ended, self.cost = ended_seconds(), cost
        settled, self.settling = self.settling, False
        if not over(counted, self.limits):
            self.allowed, self.last = self.limits, (0, 0)
            return
        if settled and not any(self.last):
            self.allowed, self.last = self.beyond(counted, SLACK), self.beyond(counted, 1)
            return
        if not over(counted, self.allowed):
            return
        if over(counted, self.last):
            sys.stderr.write("its files took more and more room beyond its limit\n")
            sys.stderr.flush()
            self.executor.leave()
        self.cost = 0.0
        self.allowed = self.beyond(counted, SLACK)
        self.settling = True
        self.end_commands(self.describe(counted))

    def beyond(self, counted: tuple[int, int], part: int) -> tuple[int, int]:
        """The limits, or what there is now where that is more, and a part of the limits on top."""
        size, files = (
            limit and max(limit, have) + limit // part for limit, have in pairs(self.limits, counted)
        )
        return size, files

    def describe(self, counted: tuple[int, int]) -> str:
        """What a person and the model read."""
        size, files = self.limits
        if over(counted, (size, 0)):
            many, most = "%.1f MB" % (counted[0] / 2**20), "%.1f MB" % (size / 2**20)
        else:
            many, most = "%d files" % counted[1], "%d files" % files
        return (
            "The command was ended: the files of this sandbox take %s, over its limit of %s."
            " Remove files that are not needed." % (many, most)
        )

    def end_commands(self, text: str) -> None:
        """End everything that commands started, and say so where it is read."""
        told = False
        for request in list(self.executor.requests.values()):
            if isinstance(request, (ShellCommand, ExecRequest, TerminalRequest)) and not request.done:
                told = request.end_with(text) or told
        skip = self.executor.helper_pids() - self.executor.keepers
        kill_all(lambda: descendants(process_table(), os.getpid(), skip) - {self.shell.pid})
        if not told:
            self.shell.notice = text


def pairs(one: Any, other: Any) -> Iterator[tuple[int, int]]:
    """Bytes with bytes, files with files."""
    return iter(((one[0], other[0]), (one[1], other[1])))


def plus(one: Any, other: Any) -> tuple[int, int]:
    """The sum of two figures."""
    size, files = (left + right for left, right in pairs(tuple(one), tuple(other)))
    return size, files


def over(have: Any, limits: Any) -> bool:
    """Whether one of two figures is above its limit; 0 is none."""
    return any(limit and value > limit for value, limit in pairs(have, limits))


def filesystems(folder: str) -> Iterator[tuple[bytes, bool]]:
    """A path on each filesystem that commands can write to, and whether it is in memory and the sandbox's alone."""
    if folder:
        yield os.fsencode(folder), False
        return
    for path, kind, _, writable in mount_table():
        if writable and kind == b"tmpfs":
            yield path, True
        elif writable and kind not in PSEUDO and is_ours(path) and os.path.isdir(path):
            yield path, False


def in_use(places: list[bytes]) -> tuple[int, int]:
    """Bytes and files on the filesystems with these paths, whoever they belong to."""
    size = files = 0
    for path in places:
        found = os.statvfs(path)
        size += (found.f_blocks - found.f_bfree) * found.f_frsize
        files += found.f_files - found.f_ffree
    return size, files


def ended_seconds() -> float:
    """Seconds of a processor that our children took, with all that they waited for, until they ended."""
    taken = resource.getrusage(resource.RUSAGE_CHILDREN)
    return taken.ru_utime + taken.ru_stime


def activity() -> tuple[float, frozenset[tuple[str, bytes]]]:
    """`seconds` and `ran` of a `Glance`."""
    ticks, ran = 0, set()
    for pid in own_tree():
        fields = read_proc("/proc/%d/stat" % pid).rpartition(b")")[2].split()
        ticks += sum(map(int, fields[11:15]))
        folder = "/proc/%d/task" % pid
        try:
            threads = os.listdir(folder)
        except OSError:
            continue
        for thread in threads:
            told = read_proc("%s/%s/schedstat" % (folder, thread))
            known = told not in (b"", b"0 0 0\n")  # some kernels do not say it: it may always have run
            ran.add((thread, told if known else b"%f" % time.monotonic()))
    return ticks / os.sysconf("SC_CLK_TCK"), frozenset(ran)


def describe_disk(limits: tuple[int, int], folder: str) -> dict[str, Any]:
    """The limits in force, and how many bytes there is room for: that is the limit where a quota or memory holds it."""
    rooms: dict[bool, dict[int, int]] = {True: {}, False: {}}
    for path, in_memory in filesystems(folder):
        try:
            found, device = os.statvfs(path), os.stat(path).st_dev
        except OSError:
            continue
        rooms[in_memory][device] = found.f_blocks * found.f_frsize
    total = sum((rooms[False] or rooms[True]).values())
    return {"bytes": limits[0], "files": limits[1], "total": total}


# ------------------------------------------------------------------------------------------------ in the child


def count_own(folder: str, epoch: Epoch, ceiling: tuple[int, int], first: int) -> tuple[int, int]:
    """Bytes and files of the sandbox; counting ends at the ceiling.

    Args:
        folder: all that counts, of any age; empty for everything that can be written.
        epoch: when the sandbox began.
        ceiling: bytes and files.
        first: the executor; the sandbox's processes are below it.
    """
    count = Count(0 if folder else epoch.start - epoch.back, ceiling)
    known = {mount.path: mount for mount in writable_mounts()[0]} if not folder else {}
    points = {path for path, *_ in mount_table()}
    for path, in_memory in filesystems(folder):
        if in_memory:
            count.add_whole(path)
        else:
            folders = epoch.since(known[path])[0] if path in known else 0
            count.walk(path, points - {path}, folders)
    count.add_open(descendants(process_table(), first, set()))
    return count.size, count.files


class Count:
    """Adds up bytes and files. `since`: the ctime, in nanoseconds, from which on a file is the sandbox's own."""

    def __init__(self, since: int, ceiling: tuple[int, int]) -> None:
        self.since = since
        self.ceiling = ceiling
        self.size = self.files = 0
        self.seen: set[tuple[int, int]] = set()
        self.memory: set[int] = set()
        self.deep = 0

    @property
    def enough(self) -> bool:
        """Whether it is clear what follows."""
        return over((self.size, self.files), self.ceiling)

    def add_whole(self, path: bytes) -> None:
        """A filesystem in memory."""
        device, found = os.stat(path).st_dev, os.statvfs(path)
        if device not in self.memory:
            self.memory.add(device)
            self.size += (found.f_blocks - found.f_bfree) * found.f_frsize
            self.files += found.f_files - found.f_ffree

    def add(self, info: os.stat_result) -> None:
        """A file or folder, once for all its names."""
        if info.st_ctime_ns < self.since or info.st_dev in self.memory:
            return
        if info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode):
            if (info.st_dev, info.st_ino) in self.seen:
                return
            self.seen.add((info.st_dev, info.st_ino))
        self.size += info.st_blocks * BLOCK
        self.files += 1

    def walk(self, top: bytes, skip: set[bytes], folders: int) -> None:
        """All below a folder. Folders of an older ctime than `folders` have nothing new in them."""
        todo = [(os.open("/", os.O_PATH | os.O_CLOEXEC), top, top)]
        while todo and not self.enough:
            base, name, path = todo.pop()
            try:
                fd, closed = open_folder(base, name)
            except OSError:
                continue
            try:
                with os.scandir(fd) as entries:
                    for entry in entries:
                        info = entry.stat(follow_symlinks=False)
                        self.add(info)
                        below = os.fsencode(entry.name)
                        if not stat.S_ISDIR(info.st_mode) or info.st_ctime_ns < folders:
                            continue
                        whole = path.rstrip(b"/") + b"/" + below
                        if whole in skip:
                            continue
                        if len(name) < LONGEST_PATH:
                            todo.append((base, name.rstrip(b"/") + b"/" + below, whole))
                        elif self.deep < DEEP_FOLDERS:
                            self.deep += 1
                            todo.append((os.dup(fd), below, whole[:LONGEST_PATH]))
            except OSError:
                continue
            finally:
                if closed is not None:
                    os.fchmod(fd, closed)
                os.close(fd)

    def add_open(self, pids: set[int]) -> None:
        """Files without a name that these processes hold open."""
        for pid in pids:
            folder = "/proc/%d/fd" % pid
            try:
                numbers = os.listdir(folder)
            except OSError:
                continue
            for number in numbers:
                try:
                    info = os.stat("%s/%s" % (folder, number))
                    key = (info.st_dev, info.st_ino)
                    if info.st_nlink or not stat.S_ISREG(info.st_mode) or key in self.seen:
                        continue
                    if os.readlink("%s/%s" % (folder, number)).startswith("/memfd:"):
                        continue
                except OSError:
                    continue
                self.seen.add(key)
                self.add(info)


def open_folder(base: int, name: bytes) -> tuple[int, int | None]:
    """A folder to read. One that its owner, who is ours, has closed to itself is opened; its mode is to be put back.

    Raises:
        OSError: it is gone, or another user's.
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
