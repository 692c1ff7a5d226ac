"""Functions that find processes, kill whole trees of processes, and execute a program."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import struct
import termios
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# The executor ignores these signals, because any command can send them. Programs of commands do not ignore them.
IGNORED_SIGNALS = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGALRM,
)  # fmt: skip
CHILD_SIGNALS = (*IGNORED_SIGNALS, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
# The niceness of commands is 5 above that of the executor at its start. So the executor still gets processor time to
# end hundreds of commands that never sleep.
COMMANDS_NICENESS = min(os.getpriority(os.PRIO_PROCESS, 0) + 5, 19)
MAX_PROC_BYTES = 4 * 1024 * 1024
"""Maximum bytes that are read of a file of /proc. A list of 40,000 memory mappings is about so long."""
CROWD_ENTRIES = 200
"""Minimum number of names in /proc in a crowd (see `Crowd`). About 140 of them are processes."""
CROWD_RUNNING = 100
"""Minimum number of runnable threads in a crowd (see `Crowd`). Among them, the executor gets about 1% of the time of a
processor."""
CONTINUE_SECONDS, CONTINUE_TIMES = 0.25, 64
"""Interval and number of the signals that continue a crowd (see `Crowd.repeat_continue`)."""


def prctl(option: int, value: int) -> None:
    """Call prctl, and ignore errors, because an older kernel does not know all options."""
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def process_table() -> dict[int, tuple[int, int]]:
    """Return the parent's pid and the start time (in clock ticks) of each living process, by pid. Leave out zombies."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            identity = identity_of(int(name))
            if identity:
                table[int(name)] = identity
    return table


def identity_of(pid: int) -> tuple[int, int] | None:
    """Return a process's parent pid and start time in clock ticks, or None if no thread of the process lives."""
    fields = read_proc("/proc/%d/stat" % pid).rpartition(b")")[2].split()
    if len(fields) > 19 and (fields[0] not in b"ZX" or int(fields[17]) > 1):
        return int(fields[1]), int(fields[19])
    return None


def is_stopped(pid: int) -> bool:
    """Return True for a process that a signal has stopped."""
    return read_proc("/proc/%d/stat" % pid).rpartition(b")")[2].split()[:1] == [b"T"]


def read_proc(path: str) -> bytes:
    """Return at most `MAX_PROC_BYTES` of a file of /proc, or b"" if the file cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    data = b""
    try:
        # The kernel may return only a page at a time.
        while len(data) < MAX_PROC_BYTES and (part := os.read(fd, 65536)):
            data += part
    except OSError:
        pass
    finally:
        os.close(fd)
    return data


def own_tree(me: int = 0) -> dict[int, tuple[int, int]]:
    """Return the living descendants of this process (or of `me`), in the form of `process_table`.

    On a machine with many processes, this is much faster than `process_table`. But if a process ends meanwhile, another
    process may be missing in the result. So the result is good enough for a list of the processes that ran before a
    command, but not for killing all processes.
    """
    me = me or os.getpid()
    if not os.path.exists("/proc/%d/task/%d/children" % (me, me)):
        return process_table()
    table = {}
    todo = [me]
    while todo:
        pid = todo.pop()
        for child in children_of(pid):
            identity = identity_of(child)
            if identity:
                table[child] = identity
                todo.append(child)
    return table


def children_of(pid: int) -> list[int]:
    """Return the pids of the children of a process and its threads."""
    folder = "/proc/%d/task" % pid
    try:
        threads = os.listdir(folder)
    except OSError:
        return []
    return [
        int(child) for thread in threads for child in read_proc("%s/%s/children" % (folder, thread)).split()
    ]


def descendants(table: dict[int, tuple[int, int]], root: int, skip: set[int]) -> set[int]:
    """Return all descendants of `root`, except members of `skip` and their descendants."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    todo = [root]
    while todo:
        for pid in children.get(todo.pop(), ()):
            if pid not in skip and pid not in found:
                found.add(pid)
                todo.append(pid)
    return found


def send_signal(pid: int, number: int) -> bool:
    """Signal a process. Return False if the process does not exist, or if the kernel forbids the signal."""
    if pid <= 0:  # such a number means a whole process group, even the executor's own
        return False
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


def kill_all(find: Callable[[], set[int]]) -> bool:
    """Kill all processes whose pids `find` returns, and their new children. Return False if a process survives."""
    return bool(Crowd.call_stopped(lambda: kill_found(find)))


def kill_tree(root: int) -> None:
    """Kill a process and all its descendants."""

    def below() -> set[int]:
        table = process_table()
        return descendants(table, root, set()) if root in table else set()

    send_signal(root, signal.SIGSTOP)  # a stopped process starts no further processes
    kill_all(below)
    send_signal(root, signal.SIGKILL)


class Crowd:
    """A crowd: so many processes of commands that the executor gets hardly any processor time.

    If the executor is PID 1, it can stop all other processes with a single call until its work is done.
    """

    stopped = False
    load = -1
    """Descriptor of /proc/loadavg. It is opened early, because each system call is slow in a crowd."""
    repeats_left = 0
    """Number of signals that will continue the crowd of the last call again."""
    after: Callable[[float, Callable[[], None]], object] | None = None
    """Function that calls another function in some seconds."""

    @classmethod
    def expect(cls, after: Callable[[float, Callable[[], None]], object]) -> None:
        """Open the file that `is_here` will read, and set `after`."""
        cls.after = after
        try:
            cls.load = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            pass

    @classmethod
    def is_here(cls) -> bool:
        """Return True if this process is PID 1 of a namespace with a crowd."""
        if os.getpid() != 1:
            return False
        # In a crowd that never sleeps, listing /proc would take seconds. So the numbers of /proc/loadavg are checked
        # first. The runnable threads are those of the machine, with all other sandboxes, but the newest pid is that of
        # this namespace: a namespace with a crowd has had at least as many pids.
        if cls.load >= 0:
            *_, threads, newest = os.pread(cls.load, 128, 0).split()
            if int(newest) < CROWD_RUNNING:
                return False
            if int(threads.partition(b"/")[0]) >= CROWD_RUNNING:
                return True
        return len(os.listdir("/proc")) >= CROWD_ENTRIES

    @classmethod
    def call_stopped(cls, action: Callable[[], Any]) -> Any:
        """Call `action`, and return its result. If there is a crowd, stop it meanwhile."""
        if cls.stopped or not cls.is_here():
            return action()
        cls.stopped = True
        cls.signal_all(signal.SIGSTOP)
        try:
            return action()
        finally:
            cls.stopped = False
            cls.signal_all(signal.SIGCONT)
            waiting, cls.repeats_left = cls.repeats_left, CONTINUE_TIMES
            if not waiting:
                cls.repeat_continue()

    @classmethod
    def repeat_continue(cls) -> None:
        """Continue all processes again in `CONTINUE_SECONDS`, for several seconds in all.

        If a process forks before SIGSTOP and until after SIGCONT, its child begins as a stopped process. The kernel
        passes SIGSTOP on to the child, but not SIGCONT, because processes without a handler ignore SIGCONT.
        """

        def repeat() -> None:
            if not cls.stopped:
                cls.signal_all(signal.SIGCONT)
            cls.repeats_left -= 1
            if cls.repeats_left:
                cls.repeat_continue()

        if cls.after:
            cls.after(CONTINUE_SECONDS, repeat)

    @staticmethod
    def signal_all(number: int) -> None:
        try:
            os.kill(-1, number)
        except OSError:  # there is no other process
            pass


def kill_found(find: Callable[[], set[int]]) -> bool:
    """Stop processes until `find` returns no new one, so that no fork bomb escapes. Then kill the stopped processes.

    Return False if a process survives.
    """
    for _ in range(50):
        stopped: set[int] = set()
        for _ in range(50):
            new = find() - stopped
            if not new:
                break
            stopped |= new
            for pid in new:
                send_signal(pid, signal.SIGSTOP)
        if not stopped:
            return True
        killed = [pid for pid in stopped if send_signal(pid, signal.SIGKILL)]
        if not killed:
            return not find()
        time.sleep(0.001)
    return not find()


def catches_signal(pid: int, number: int) -> bool:
    """Return True if a process has a handler for a signal."""
    try:
        with open("/proc/%d/status" % pid) as file:
            caught = [line.split()[1] for line in file if line.startswith("SigCgt")]
    except OSError:
        return False
    return bool(caught) and bool(int(caught[0], 16) >> (number - 1) & 1)


def exit_code(status: int) -> int:
    """Convert a wait status to an exit code, as shells do."""
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status)
    return os.WEXITSTATUS(status)


def pipe_bytes(fd: int) -> int:
    """Return the number of bytes that wait in a pipe."""
    buffer = bytearray(4)
    fcntl.ioctl(fd, termios.FIONREAD, buffer)
    return int(struct.unpack("i", buffer)[0])


def has_program(name: str) -> bool:
    """Return True if a program is on the PATH."""
    return any(os.access(os.path.join(folder, name), os.X_OK) for folder in os.get_exec_path())


def first_kilobytes(path: str) -> str | None:
    """Return the first 3 KiB of a file as text, or None if the file cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(3072).decode("ascii", "replace")
    except OSError:
        return None


def take_descriptors(fds: dict[int, int]) -> None:
    """Make descriptor n a copy of `fds[n]` for each n in `fds`, so that an executed program inherits the copies.

    Call this in a child.
    """
    copies = {target: fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, 256) for target, source in fds.items()}
    for target, source in copies.items():
        os.dup2(source, target)
        os.close(source)


def exec_program(argv: list[bytes], env: Any, fds: dict[int, int], cwd: bytes | None) -> None:
    """Execute a program, without the executor's signal handlers and descriptors. Call this in a child.

    The program gets the descriptors `fds`; see `take_descriptors`. With `cwd`, start a new session in this directory.
    If the program cannot be executed, write the reason to stderr, and exit as shells do.
    """
    for number in CHILD_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    take_descriptors(fds)
    if cwd is not None:
        try:
            os.setsid()
            os.chdir(cwd)
        except OSError:
            os.chdir("/")
    prctl(PR_SET_DUMPABLE, 1)
    # If a command has raised the executor's niceness even more, it stays, because only root can lower a niceness.
    if os.getpriority(os.PRIO_PROCESS, 0) < COMMANDS_NICENESS:
        os.setpriority(os.PRIO_PROCESS, 0, COMMANDS_NICENESS)
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")  # if memory runs out, the kernel kills the command before the executor
    except OSError:
        pass
    try:
        try:
            if not argv[0]:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
            os.execvpe(argv[0], argv, env)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            os.execvpe(b"/bin/sh", [b"sh", *argv], env)
    except OSError as error:
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        reason = "command not found" if missing and b"/" not in argv[0] else error.strerror
        os.write(2, argv[0][:4096] + (": %s\n" % reason).encode())
        os._exit(127 if missing else 126)


def switch_user(name: str, env: dict[bytes, bytes], keep_home: bool) -> None:
    """Change to another user and the user's groups. Set USER, LOGNAME and, unless `keep_home` is True, HOME in `env`.

    Raises:
        LookupError: if there is no such user, or switching is not permitted.
    """
    import grp
    import pwd

    try:
        entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except (KeyError, ValueError):
        raise LookupError("there is no user %r in the sandbox" % name) from None
    if entry.pw_uid != os.geteuid():
        groups = [group.gr_gid for group in grp.getgrall() if entry.pw_name in group.gr_mem]
        try:
            os.setgroups([entry.pw_gid, *groups])
            os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
            os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
        except OSError as error:
            raise LookupError("the sandbox may not switch to user %r: %s" % (name, error.strerror)) from None
    env[b"USER"] = env[b"LOGNAME"] = os.fsencode(entry.pw_name)
    if not keep_home:
        env[b"HOME"] = os.fsencode(entry.pw_dir)
