"""Starting a program under bubblewrap: its command line, file descriptors, and the steps before it may run.

As an ordinary user, bubblewrap is run once. As real root it is run twice: the outer run only lays out what
the inside may see, with root's rights; then root is given up for user ids that nobody has, and the inner run
makes all the other namespaces. So 'root' inside is nobody on the host: were it mapped to the host's root,
files that belong to root would be its own, /proc/sys/kernel/core_pattern among them.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from llm_sandbox_nb.sandbox.bootstrap import PROGRAM_MARK, executor_source
from llm_sandbox_nb.sandbox.bubblewrap.view import PROFILE_USERS, Argument, View
from llm_sandbox_nb.sandbox.capabilities import ROOT_INSIDE, TO_BECOME, become_user, keep_only
from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError
from llm_sandbox_nb.sandbox.network.door import HANDED
from llm_sandbox_nb.sandbox.protocol.channel import Channel
from llm_sandbox_nb.sandbox.protocol.frames import StreamTransport
from llm_sandbox_nb.sandbox.seccomp import load_filter

START_TIMEOUT = 20.0
"""Seconds that bubblewrap may take until the program could run."""
_HOST_USERS = 1_900_000_000
"""First of the user ids that sandboxes get: neither distributions nor systemd hand these out."""
_HOST_USER_BLOCKS = 3584

_USERS_INSIDE = 65536

_GIVE_UP_ROOT = """
import ctypes, os, sys
user, count, parent = int(sys.argv[1]), int(sys.argv[2]), os.getppid()
libc = ctypes.CDLL(None, use_errno=True)

def become():
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)

def wait(pipe):
    if not os.read(pipe[0], 1):
        sys.exit("the user namespace could not be made")

made, mapped = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    os.close(mapped[1])
    become()
    if libc.unshare(0x10000000) == 0:
        os.write(made[1], b"1")
        wait(mapped)
        with open("/proc/sys/user/max_user_namespaces", "w") as limit:
            limit.write("0")
        os._exit(0)
    sys.exit(os.strerror(ctypes.get_errno()))
os.close(made[1])
wait(made)
for name in ("uid_map", "gid_map"):
    with open(f"/proc/{child}/{name}", "w") as map:
        map.write(f"0 {user} {count}")
namespace = os.open(f"/proc/{child}/ns/user", os.O_RDONLY)
os.set_inheritable(namespace, True)
os.write(mapped[1], b"1")
if os.waitpid(child, 0)[1]:
    sys.exit("the user namespace could not be set up")
become()
if os.getppid() != parent:
    sys.exit("the owner is gone")
os.execv(sys.argv[3], [sys.argv[3], "--userns", str(namespace), *sys.argv[4:]])
"""
"""Makes the user namespace: owned by, and with the ids from, `user` on; allowing none below. Becomes `user`.

Changing the user id clears the parent-death signal. Only the inner run asks for it again, as late as it does: a
bubblewrap that is killed before it lets its child go on leaves that one waiting (see `kill_waiting`). When
the owner dies before, all continues, finds its pipes closed, and ends.
"""


@dataclass(frozen=True)
class Launched:
    """A program under bubblewrap that runs. `pid` is its own, `process` the outermost bubblewrap's."""

    process: asyncio.subprocess.Process
    pid: int
    host_user: int


def bubblewrap_path() -> str | None:
    """Where `bwrap` is, or None."""
    found = shutil.which("bwrap")
    return os.path.realpath(found) if found else None


def payload(ulimits: Sequence[str], argv: Sequence[str]) -> list[str]:
    """`argv` started with limits of the processes, which only count inside when they are set inside."""
    script = "".join(f"ulimit {option} && " for option in ulimits) + 'exec "$@"'
    return ["/bin/bash", "--noprofile", "--norc", "-c", script, "bash", *argv]


def is_host_root() -> bool:
    """Whether we are the root of a user namespace that has (nearly) all user ids, so that we can take any."""
    if os.getuid() != 0:
        return False
    ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return any(
        first == "0" and int(count) > _HOST_USERS + _HOST_USER_BLOCKS * _USERS_INSIDE
        for first, _, count in ranges
    )


def inner_arguments(
    view: View, environment: Mapping[str, str], *, profile: str, share_network: bool, many_users: bool
) -> list[Argument]:
    """All that bubblewrap is to do for the inside, apart from file descriptors of its own."""
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
        # Root of some small user namespace: it may be the host's root, whose /proc/sys could be written.
        arguments += ["--ro-bind", "/proc/sys", "/proc/sys"]
    return [*arguments, "--chdir", view.root]


def outer_arguments(view: View, bwrap: str) -> list[Argument]:
    """What root lays out for the inner run: what is shown in the end, the host's /proc and /dev, and `bwrap`.

    bubblewrap itself uses /tmp as a mount point while it works.
    """
    arguments: list[Argument] = ["--die-with-parent", "--perms", "0755", "--dir", "/tmp"]
    arguments += ["--dev-bind", "/dev", "/dev", "--bind", "/proc", "/proc"]
    for path, target in _links(view):
        arguments += ["--symlink", target, path]
    sources = dict.fromkeys(source for source, _ in view.shown)
    if not any(bwrap.startswith(f"{source}/") for source in sources):
        sources[bwrap] = None
    for source in sources:
        for folder in reversed(PurePath(source).parents[:-1]):
            arguments += ["--perms", "0755", "--dir", str(folder)]
        arguments += ["--ro-bind", source, source]
    return arguments


def _links(view: View) -> Iterator[tuple[str, str]]:
    """Top-level links such as /lib64, which the programs of the steps in between need."""
    for position, argument in enumerate(view.arguments):
        if argument == "--symlink":
            target, path = view.arguments[position + 1 : position + 3]
            if isinstance(target, str) and isinstance(path, str) and path.count("/") == 1:
                yield path, target


class _Descriptors:
    """File descriptors handed to bubblewrap, closed here when it has them."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def holding(self, data: bytes) -> int:
        number = os.memfd_create("llm-sandbox", 0)
        self.numbers.append(number)
        os.write(number, data)
        os.lseek(number, 0, os.SEEK_SET)
        return number

    def keep(self, number: int) -> int:
        self.numbers.append(number)
        return number

    def argument_list(self, arguments: Iterable[Argument]) -> int:
        """A descriptor with all the arguments, so that none of them shows in a list of processes."""
        strings = [a if isinstance(a, str) else str(self.holding(a)) for a in arguments]
        return self.holding("".join(f"{word}\0" for word in strings).encode())

    def close(self) -> None:
        for number in self.numbers:
            os.close(number)
        self.numbers.clear()


async def launch(
    arguments: Sequence[Argument],
    outer: Sequence[Argument] | None,
    program: Sequence[str],
    *,
    bwrap: str,
    python: str,
    seccomp: bytes | None,
    place: Callable[[int], None],
    keep: Sequence[int] = (),
) -> Launched:
    """Start `program`; `place` gets its process number before it runs, to put it under limits.

    `outer`: the arguments of the outer run, when we are root. `keep`: descriptors that the program has too.

    Raises:
        IsolationUnavailableError: bubblewrap refuses; says what it said.
    """
    descriptors = _Descriptors()
    host_user = (
        os.getuid() if outer is None else _HOST_USERS + secrets.randbelow(_HOST_USER_BLOCKS) * _USERS_INSIDE
    )
    with contextlib.ExitStack() as opened:
        opened.callback(descriptors.close)
        info, info_end = os.pipe()
        descriptors.keep(info_end)
        told = opened.enter_context(os.fdopen(info, "rb", 0))
        gate_end, gate = os.pipe()
        descriptors.keep(gate_end)
        opened.callback(os.close, gate)
        started = asyncio.StreamReader()
        listening, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(started), told
        )
        opened.callback(listening.close)
        inside = list(arguments)
        inside += ["--info-fd", str(info_end), "--block-fd", str(gate_end)]
        inside += ["--seccomp", seccomp] if seccomp is not None else []
        command = [bwrap, "--args", str(descriptors.argument_list(inside)), "--", *program]
        if outer is not None:
            give_up = [python, "-I", "-S", "-c", _GIVE_UP_ROOT, str(host_user), str(_USERS_INSIDE)]
            command = [bwrap, "--args", str(descriptors.argument_list(outer)), "--", *give_up, *command]
        spawn = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=[*descriptors.numbers, *keep],
                env={},
                cwd="/",
                # An interrupt goes to all of a kernel's process group: it is for the run, not for the sandbox.
                start_new_session=True,
            )
        )
        try:
            process = await asyncio.shield(spawn)
            descriptors.close()
            pid = await _let_in(process, started, gate, place)
        except BaseException:  # also when whoever waits for the sandbox is cancelled meanwhile
            await _kill_group(spawn)
            raise
        return Launched(process, pid, host_user)


async def _kill_group(spawn: asyncio.Future[asyncio.subprocess.Process]) -> None:
    """End all that was started: a child that does not yet die with its parent would keep the pipes open.

    asyncio waits until the pipes of a process are closed, but when its start is cancelled it kills that one alone.
    """
    await asyncio.wait({spawn})
    if spawn.exception() is None:
        process = spawn.result()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _let_in(
    process: asyncio.subprocess.Process,
    started: asyncio.StreamReader,
    gate: int,
    place: Callable[[int], None],
) -> int:
    """Learn the program's process number from what bubblewrap writes, put it in its place, and let it start."""
    try:
        text = await asyncio.wait_for(started.readuntil(b"}"), START_TIMEOUT)
        pid = int(json.loads(text)["child-pid"])
        place(pid)
        os.write(gate, b"1")
        return pid
    except (ValueError, KeyError, OSError, EOFError, TimeoutError) as error:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        assert process.stderr is not None
        said = (await process.stderr.read(4096)).decode("utf-8", "replace").strip()
        await process.wait()
        raise IsolationUnavailableError(
            f"bubblewrap could not start a sandbox here: {explanation(said) or said or error}"
        ) from None


_SWITCHES = {
    "/proc/sys/user/max_user_namespaces": ("0", "sysctl -w user.max_user_namespaces=10000"),
    "/proc/sys/kernel/unprivileged_userns_clone": ("0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
}
"""Where systems switch user namespaces off for ordinary users, to what, and how root switches them on."""


def explanation(said: str) -> str:
    """What a refusal of bubblewrap means and what helps; empty when nothing better can be said."""
    if "/proc" in said and "mount" in said:
        return (
            "the container that this runs in hides parts of /proc; start it with"
            f" `--security-opt systempaths=unconfined`, or run outside of it ({said})"
        )
    if not any(word in said for word in ("namespace", "uid map", "setting up", "No space left")):
        return ""
    for path, (value, command) in _SWITCHES.items():
        with contextlib.suppress(OSError):
            if Path(path).read_text().strip() == value:
                return f"user namespaces are switched off; root allows them with `{command}` ({said})"
    return f"user namespaces are not allowed here, as is usual in containers ({said})"


PREPARING_CAPABILITIES = ("CAP_CHOWN", *TO_BECOME)
"""What the steps need, and have given up at their end."""

_CLOSE = """
import os
os.closerange(3, 1024)
"""
_KEEP = f"""
import os
os.dup2(%d, {HANDED}, False)
os.closerange(3, {HANDED})
"""
_HAND_OVER = """
def hand_over(user, home):
    for folder, names, files in os.walk(home + '/.venv'):
        for name in names + files:
            os.lchown(os.path.join(folder, name), user, user)
    for folder in (os.getcwd(), home, home + '/.venv'):
        os.lchown(folder, user, user)
"""
"""bubblewrap made the folders as root inside."""
_END_WITH_PARENT = """
import ctypes
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
"""
"""To change the user takes away that the kernel ends this process with its parent."""


def prepared(argv: Sequence[str], *, profile: str, many_users: bool, keep: int | None = None) -> list[str]:
    """The executor's command (`python ... -c PROGRAM`) with the steps before it; it has `keep` as `HANDED`."""
    *command, program = argv
    steps = [_CLOSE if keep is None else _KEEP % keep]
    user = PROFILE_USERS[profile]
    if many_users and user.uid != 0:
        steps += [
            _HAND_OVER,
            f"hand_over({user.uid}, {user.home!r})",
            become_user(user.uid),
            _END_WITH_PARENT,
        ]
    return [*command, "\n".join([*steps, program])]


_JOIN = """
import ctypes, json, os, sys
order = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)

def call(function, *arguments):
    if function(*arguments) != 0:
        sys.exit(f"{function.__name__}: {os.strerror(ctypes.get_errno())}")

for path in order["groups"]:
    with open(path, "w") as file:
        file.write(str(os.getpid()))
kinds = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
for namespace in [os.open(f"/proc/{order['pid']}/ns/{kind}", os.O_RDONLY) for kind in kinds]:
    call(libc.setns, namespace, 0)
    os.close(namespace)
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.setsid()
os.setgroups([])
os.setresgid(0, 0, 0)
os.setresuid(0, 0, 0)
exec(order["rights"])
os.chdir("/")
os.execve(order["argv"][0], order["argv"], order["environment"])
"""


async def join(
    pid: int,
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    groups: Sequence[Path],
) -> asyncio.subprocess.Process:
    """Start `argv` in all the namespaces and control groups of process `pid`, as root inside with few rights.

    Its rights are those of root in the profile `standard`. Needs root on the host.
    """
    order = {
        "pid": pid,
        "argv": list(argv),
        "environment": dict(environment),
        "groups": [str(path) for path in groups],
        "rights": f"{keep_only(ROOT_INSIDE)}\n{load_filter()}",
    }
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", _JOIN, json.dumps(order)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={},
        cwd="/",
    )


STDERR_KEPT = 4096
LEAVE = 1.0
"""Seconds that an executor has to end on its own."""


class PipedExecutor:
    """The process, the channel to it, and the end of what it writes to stderr."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        self.process = process
        self._said = b""
        self._listening = asyncio.create_task(self._listen(process.stderr))
        transport = StreamTransport(process.stdout, process.stdin)
        transport.write_raw(executor_source())
        self.channel = Channel(transport)
        self.channel.why_ended = lambda: self._said.decode("utf-8", "replace").strip()

    async def _listen(self, stderr: asyncio.StreamReader) -> None:
        while data := await stderr.read(STDERR_KEPT):
            self._said = (self._said + data)[-STDERR_KEPT:]

    async def end(self) -> None:
        """Wait until it ends, or kill it."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), LEAVE)
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        self._listening.cancel()


def kill_waiting(proc: Path = Path("/proc")) -> list[int]:
    """Kill bubblewraps that nobody will ever let through; their process ids.

    All processes of a sandbox die with its owner but one: bubblewrap's own, in the new namespaces, when the
    bubblewrap outside of them dies in the instant before it lets the inner one through. That one then waits for ever,
    with nothing inside it.
    """
    killed = []
    for pid in _processes(proc):
        # A process that is gone, or another user's, is none that we could end.
        with contextlib.suppress(OSError, ValueError):
            if _waits_for_nobody(proc, pid):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
    return killed


def _processes(proc: Path) -> Iterator[int]:
    yield from (int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())


def _waits_for_nobody(proc: Path, pid: int) -> bool:
    """Whether this is a bubblewrap of ours, the first process of its namespace, and the one outside is gone.

    One that was let through is no bubblewrap any more: it has become the program.
    """
    if _read(proc, pid, "comm").strip() != "bwrap" or PROGRAM_MARK not in _read(proc, pid, "cmdline"):
        return False
    fields = dict(line.split(":\t", 1) for line in _read(proc, pid, "status").splitlines() if ":\t" in line)
    inside = fields["NSpid"].split()
    return (
        len(inside) > 1 and inside[-1] == "1" and _read(proc, int(fields["PPid"]), "comm").strip() != "bwrap"
    )


def _read(proc: Path, pid: int, name: str) -> str:
    return (proc / str(pid) / name).read_text("utf-8", "replace")
