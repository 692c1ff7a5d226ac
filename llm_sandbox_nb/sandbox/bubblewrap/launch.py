"""Start of a program under bubblewrap: command line, file descriptors, and the steps before the program runs.

For an ordinary user, bubblewrap runs once. For root, bubblewrap runs twice, because root inside must not be root of the
host: it could write root's files, for example /proc/sys/kernel/core_pattern. The outer run mounts the visible files
with root's rights. Then `user_namespace.py` changes from root to unused user ids of the host. The inner run makes the
other namespaces. So root inside is one of these unused user ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path, PurePath

from llm_sandbox_nb.sandbox.bootstrap import PROGRAM_MARK, executor_source
from llm_sandbox_nb.sandbox.bubblewrap.view import PROFILE_USERS, Argument, View
from llm_sandbox_nb.sandbox.capabilities import ROOT_INSIDE, TO_BECOME, become_user, keep_only
from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError
from llm_sandbox_nb.sandbox.network.door import HANDED
from llm_sandbox_nb.sandbox.protocol.channel import Channel, last_line
from llm_sandbox_nb.sandbox.protocol.frames import StreamTransport
from llm_sandbox_nb.sandbox.seccomp import load_filter

START_TIMEOUT = 20.0
"""Seconds in which bubblewrap must be ready to run the program."""
_FIRST_HOST_USER = 1_900_000_000
"""First user id for sandboxes. Neither distributions nor systemd assign this id or the ids above it."""
_USERS_PER_SANDBOX = 65536
_HOST_USER_BLOCKS = 3584
"""Number of blocks, each of `_USERS_PER_SANDBOX` user ids. Each sandbox gets a random block."""
PREPARING_CAPABILITIES = ("CAP_CHOWN", *TO_BECOME)
"""Capabilities that the steps of `prepared` need. The step `become_user` drops them."""
STDERR_KEPT_BYTES = 4096
EXIT_TIMEOUT = 1.0
"""Seconds until an executor that does not exit is killed."""


@dataclass(frozen=True)
class Launched:
    """The process of the outermost bubblewrap, and the process id of the program inside."""

    process: asyncio.subprocess.Process
    pid: int


def bubblewrap_path() -> str | None:
    """Return the path of `bwrap`, or None if bubblewrap is not installed."""
    found = shutil.which("bwrap")
    return os.path.realpath(found) if found else None


def is_host_root() -> bool:
    """Return True if this process is root, and its user namespace has the user ids that sandboxes get."""
    if os.getuid() != 0:
        return False
    ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return any(
        first == "0" and int(count) > _FIRST_HOST_USER + _HOST_USER_BLOCKS * _USERS_PER_SANDBOX
        for first, _, count in ranges
    )


def inner_arguments(
    view: View, environment: Mapping[str, str], *, profile: str, share_network: bool, many_users: bool
) -> list[Argument]:
    """Return the options of the inner bubblewrap, or of the only one, except options that name file descriptors.

    `many_users` is the result of `is_host_root`.
    """
    kinds = ["pid", "ipc", "uts", "cgroup"] + ([] if share_network else ["net"])
    arguments: list[Argument] = [f"--unshare-{kind}" for kind in kinds]
    if many_users:
        arguments += ["--uid", "0", "--gid", "0"]
        capabilities = ROOT_INSIDE if PROFILE_USERS[profile].uid == 0 else PREPARING_CAPABILITIES
        arguments += [word for name in capabilities for word in ("--cap-add", name)]
    else:
        uid = str(PROFILE_USERS[profile].uid)
        arguments += ["--unshare-user", "--disable-userns", "--uid", uid, "--gid", uid, "--cap-drop", "ALL"]
    arguments += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"]
    for name, value in environment.items():
        arguments += ["--setenv", name, value]
    arguments += view.arguments
    if os.getuid() == 0 and not is_host_root():
        # Here root has few user ids, so root inside may be root of the host, and could write /proc/sys.
        arguments += ["--ro-bind", "/proc/sys", "/proc/sys"]
    return [*arguments, "--chdir", view.root]


def outer_arguments(view: View, bwrap: str) -> list[Argument]:
    """Return the options of root's outer bubblewrap, which mounts `bwrap`, /proc, /dev and the files of the view."""
    # /tmp must exist, because bubblewrap uses it as a mount point while it runs.
    arguments: list[Argument] = ["--die-with-parent", "--perms", "0755", "--dir", "/tmp"]
    arguments += ["--dev-bind", "/dev", "/dev", "--bind", "/proc", "/proc"]
    for position, argument in enumerate(view.arguments):
        if argument == "--symlink":
            target, path = view.arguments[position + 1 : position + 3]
            # The programs between the two runs need top-level links such as /lib64.
            if isinstance(path, str) and path.count("/") == 1:
                arguments += ["--symlink", target, path]
    sources = dict.fromkeys(view.shown)
    if not any(bwrap.startswith(f"{source}/") for source in sources):
        sources[bwrap] = None
    for source in sources:
        for folder in reversed(PurePath(source).parents[:-1]):
            arguments += ["--perms", "0755", "--dir", str(folder)]
        arguments += ["--ro-bind", source, source]
    return arguments


class _Descriptors:
    """File descriptors that bubblewrap inherits. `close` closes them in this process."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def add_file(self, data: bytes) -> int:
        number = os.memfd_create("llm-sandbox", 0)
        self.numbers.append(number)
        os.write(number, data)
        os.lseek(number, 0, os.SEEK_SET)
        return number

    def add_arguments(self, arguments: Iterable[Argument]) -> int:
        """Write arguments to a file, and return its descriptor for `--args`.

        The arguments are in a file, so that a list of processes does not show them.
        """
        strings = [a if isinstance(a, str) else str(self.add_file(a)) for a in arguments]
        return self.add_file(os.fsencode("".join(f"{word}\0" for word in strings)))

    def close(self) -> None:
        for number in self.numbers:
            os.close(number)
        self.numbers.clear()


@cache
def _program_text(name: str) -> str:
    return (resources.files(__package__) / name).read_text("utf-8")


async def launch(
    arguments: Sequence[Argument],
    outer: Sequence[Argument] | None,
    program: Sequence[str],
    *,
    bwrap: str,
    python: str,
    seccomp: bytes | None,
    place: Callable[[int], None],
    pass_fds: Sequence[int] = (),
) -> Launched:
    """Start `program` under bubblewrap with the options `arguments`.

    `outer` has the options of root's outer bubblewrap, and is None for an ordinary user. `python` runs
    `user_namespace.py`. `place` is called with the program's process id before the program runs, to apply limits. The
    program inherits the descriptors `pass_fds`.

    Raises:
        IsolationUnavailableError: if bubblewrap fails. The message has the reason.
    """
    descriptors = _Descriptors()
    with contextlib.ExitStack() as opened:
        opened.callback(descriptors.close)
        info, info_end = os.pipe()
        descriptors.numbers.append(info_end)
        info_file = opened.enter_context(os.fdopen(info, "rb", 0))
        gate_end, gate = os.pipe()
        descriptors.numbers.append(gate_end)
        opened.callback(os.close, gate)
        info_reader = asyncio.StreamReader()
        info_transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(info_reader), info_file
        )
        opened.callback(info_transport.close)
        inside = list(arguments)
        inside += ["--info-fd", str(info_end), "--block-fd", str(gate_end)]
        inside += ["--seccomp", seccomp] if seccomp is not None else []
        command = [bwrap, "--args", str(descriptors.add_arguments(inside)), "--", *program]
        if outer is not None:
            first_user = _FIRST_HOST_USER + secrets.randbelow(_HOST_USER_BLOCKS) * _USERS_PER_SANDBOX
            give_up_root = [python, "-I", "-S", "-c", _program_text("user_namespace.py")]
            give_up_root += [str(first_user), str(_USERS_PER_SANDBOX)]
            command = [bwrap, "--args", str(descriptors.add_arguments(outer)), "--", *give_up_root, *command]
        spawn = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=[*descriptors.numbers, *pass_fds],
                env={},
                cwd="/",
                # This process can be a Jupyter kernel. Jupyter sends an interrupt to all processes of the kernel's
                # process group. The interrupt must not reach the sandbox.
                start_new_session=True,
            )
        )
        try:
            process = await asyncio.shield(spawn)
            descriptors.close()
            pid = await _release(process, info_reader, gate, place)
        except BaseException:  # cancellation included
            await _kill_group(spawn)
            raise
        return Launched(process, pid)


async def _kill_group(spawn: asyncio.Future[asyncio.subprocess.Process]) -> None:
    """Kill all processes of a start that failed. They form a process group.

    If a start is cancelled, asyncio kills only the first process, and then waits until the pipes are closed. Its child
    processes would survive, and keep the pipes open.
    """
    await asyncio.wait({spawn})
    if spawn.exception() is None:
        process = spawn.result()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _release(
    process: asyncio.subprocess.Process,
    info_reader: asyncio.StreamReader,
    gate: int,
    place: Callable[[int], None],
) -> int:
    """Read the program's process id, call `place` with it, and let the program run by writing to `gate`.

    `info_reader` reads from bubblewrap's `--info-fd`. Return the process id.
    """
    try:
        text = await asyncio.wait_for(info_reader.readuntil(b"}"), START_TIMEOUT)
        pid = int(json.loads(text)["child-pid"])
        place(pid)
        os.write(gate, b"1")
        return pid
    except (ValueError, KeyError, OSError, EOFError, TimeoutError) as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # a process that survives would keep stderr open
        assert process.stderr is not None
        stderr = (await process.stderr.read(STDERR_KEPT_BYTES)).decode("utf-8", "replace").strip()
        await process.wait()
        raise IsolationUnavailableError(
            f"bubblewrap could not start a sandbox here: {explanation(stderr) or stderr or error}"
        ) from None


_SWITCHES = {
    "/proc/sys/user/max_user_namespaces": ("0", "sysctl -w user.max_user_namespaces=10000"),
    "/proc/sys/kernel/unprivileged_userns_clone": ("0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
}
"""Settings that can disable user namespaces for ordinary users: by file, the value that disables user namespaces, and
the command with which root enables them."""


def explanation(stderr: str) -> str:
    """Return the cause of bubblewrap's error message and the remedy, or an empty text if the cause is not known."""
    if "/proc" in stderr and "mount" in stderr:
        return (
            "this container hides parts of /proc; start the container with"
            f" `--security-opt systempaths=unconfined`, or run outside of a container ({stderr})"
        )
    if not any(word in stderr for word in ("namespace", "uid map", "setting up", "No space left")):
        return ""
    for path, (value, command) in _SWITCHES.items():
        with contextlib.suppress(OSError):
            if Path(path).read_text().strip() == value:
                return f"user namespaces are switched off; root allows them with `{command}` ({stderr})"
    return f"user namespaces are not allowed here, as is usual in containers ({stderr})"


_SET_LIMITS = """
import resource
for limit, value in %r.items():
    resource.setrlimit(limit, (value, value))
"""
"""Step that sets limits of processes inside. Outside, RLIMIT_NPROC would count all processes of the host's user, and
could prevent the start of bubblewrap."""
_KEEP_SOCKET = f"""
import os
try:
    os.dup2(%d, {HANDED}, False)
except OSError:  # not so many descriptors are allowed
    pass
os.closerange(3, {HANDED})
"""
_CHOWN_FOLDERS = """
def chown_folders(user, home):
    for folder, names, files in os.walk(home + '/.venv'):
        for name in names + files:
            os.lchown(os.path.join(folder, name), user, user)
    for folder in (os.getcwd(), home, home + '/.venv'):
        os.lchown(folder, user, user)
"""
"""Step that gives folders to the user inside. bubblewrap has made them for root inside."""
_END_WITH_PARENT = """
import ctypes
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
"""
"""Step that asks for SIGKILL when the parent ends (prctl 1, 9). The change of the user has cleared this setting."""


def prepared(
    argv: Sequence[str],
    *,
    profile: str,
    many_users: bool,
    limits: Mapping[int, int],
    socket: int,
) -> list[str]:
    """Return the executor's command (`python ... -c PROGRAM`) with further steps before PROGRAM.

    The steps set `limits` (see `process_limits`). They close all descriptors above 2 except `socket`, which becomes
    descriptor `HANDED`. Then they change to the user of the profile.
    """
    *command, program = argv
    steps = [_SET_LIMITS % dict(limits), _KEEP_SOCKET % socket]
    user = PROFILE_USERS[profile]
    if many_users and user.uid != 0:
        steps += [
            _CHOWN_FOLDERS,
            f"chown_folders({user.uid}, {user.home!r})",
            become_user(user.uid),
            _END_WITH_PARENT,
        ]
    return [*command, "\n".join([*steps, program])]


async def join(
    pid: int, argv: Sequence[str], *, environment: Mapping[str, str], groups: Sequence[Path]
) -> asyncio.subprocess.Process:
    """Start `argv` in all namespaces and control groups of process `pid`, with the rights of `ROOT_INSIDE`.

    This needs root on the host.
    """
    order = {
        "pid": pid,
        "argv": list(argv),
        "environment": dict(environment),
        "groups": [str(path) for path in groups],
        "rights": f"{keep_only(ROOT_INSIDE)}\n{load_filter()}",
    }
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", _program_text("enter_namespaces.py"), json.dumps(order)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={},
        cwd="/",
        start_new_session=True,  # as in `launch`
    )


class PipedExecutor:
    """An executor's process, the channel to it, and the last bytes of its stderr."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        self.process = process
        self._stderr = b""
        self._stderr_task = asyncio.create_task(self._read_stderr(process.stderr))
        transport = StreamTransport(process.stdout, process.stdin)
        transport.write_raw(executor_source())
        self.channel = Channel(transport)
        self.channel.why_ended = lambda: last_line(self._stderr.decode("utf-8", "replace"))

    async def _read_stderr(self, stderr: asyncio.StreamReader) -> None:
        while data := await stderr.read(STDERR_KEPT_BYTES):
            self._stderr = (self._stderr + data)[-STDERR_KEPT_BYTES:]

    async def end(self) -> None:
        """Wait until the process exits. Kill the process after `EXIT_TIMEOUT`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), EXIT_TIMEOUT)
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        self._stderr_task.cancel()


def kill_waiting(proc: Path = Path("/proc")) -> list[int]:
    """Kill abandoned bubblewrap processes, which would wait for ever. Return their process ids.

    bubblewrap starts a child process in the new namespaces. The child waits until its parent process releases it. All
    processes of a sandbox die with the owner, with one exception: if the parent dies just before it releases the child,
    the child waits for ever.
    """
    killed = []
    for entry in proc.iterdir():
        # Ignore processes that have ended meanwhile, and processes of other users.
        with contextlib.suppress(OSError, ValueError):
            if entry.name.isdigit() and _waits_for_nobody(entry):
                os.kill(int(entry.name), signal.SIGKILL)
                killed.append(int(entry.name))
    return killed


def _waits_for_nobody(process: Path) -> bool:
    """Return True for a child process of bubblewrap that still waits for its parent, although the parent has died.

    Such a process has the command line of a sandbox of this package. It is the first in its process namespace. It is
    still named `bwrap`, because it has not executed the sandbox's program yet. Its present parent is not `bwrap`.
    """
    if _read(process, "comm").strip() != "bwrap" or PROGRAM_MARK not in _read(process, "cmdline"):
        return False
    fields = dict(line.split(":\t", 1) for line in _read(process, "status").splitlines() if ":\t" in line)
    inside = fields["NSpid"].split()
    parent = process.with_name(fields["PPid"].strip())
    return len(inside) > 1 and inside[-1] == "1" and _read(parent, "comm").strip() != "bwrap"


def _read(process: Path, name: str) -> str:
    return (process / name).read_text("utf-8", "replace")
