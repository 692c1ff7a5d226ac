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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from llm_sandbox_nb.sandbox.bubblewrap_prepare import PREPARING_CAPABILITIES
from llm_sandbox_nb.sandbox.bubblewrap_view import PROFILE_USERS, Argument, View
from llm_sandbox_nb.sandbox.capabilities import ROOT_INSIDE
from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError

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
bubblewrap that is killed before it lets its child go on leaves that one waiting (see `bubblewrap_reaper`). When
the owner dies before, all goes on, finds its pipes closed, and ends.
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
        arguments += [word for name in _capabilities(profile) for word in ("--cap-add", name)]
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


def _capabilities(profile: str) -> tuple[str, ...]:
    return ROOT_INSIDE if PROFILE_USERS[profile].uid == 0 else PREPARING_CAPABILITIES


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
        words = [a if isinstance(a, str) else str(self.holding(a)) for a in arguments]
        return self.holding("".join(f"{word}\0" for word in words).encode())

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
) -> Launched:
    """Start `program`; `place` gets its process number before it runs, to put it under limits.

    `outer`: the arguments of the outer run, when we are root.

    Raises:
        IsolationUnavailableError: bubblewrap refuses; says what it said.
    """
    descriptors = _Descriptors()
    host_user = (
        os.getuid() if outer is None else _HOST_USERS + secrets.randbelow(_HOST_USER_BLOCKS) * _USERS_INSIDE
    )
    info, info_end = os.pipe()
    gate_end, gate = os.pipe()
    try:
        descriptors.keep(info_end), descriptors.keep(gate_end)
        inside = list(arguments)
        inside += ["--info-fd", str(info_end), "--block-fd", str(gate_end)]
        inside += ["--seccomp", seccomp] if seccomp is not None else []
        command = [bwrap, "--args", str(descriptors.argument_list(inside)), "--", *program]
        if outer is not None:
            give_up = [python, "-I", "-S", "-c", _GIVE_UP_ROOT, str(host_user), str(_USERS_INSIDE)]
            command = [bwrap, "--args", str(descriptors.argument_list(outer)), "--", *give_up, *command]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=descriptors.numbers,
            env={},
            cwd="/",
            # An interrupt goes to all of a kernel's process group: it is for the run, not for the sandbox.
            start_new_session=True,
        )
        descriptors.close()
        try:
            pid = await _let_in(process, info, gate, place)
        except BaseException:  # also when whoever waits for the sandbox is cancelled meanwhile
            # The whole group: a child that does not yet die with its parent would keep the pipes open.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise
        return Launched(process, pid, host_user)
    finally:
        descriptors.close()
        os.close(info)
        os.close(gate)


async def _let_in(
    process: asyncio.subprocess.Process, info: int, gate: int, place: Callable[[int], None]
) -> int:
    """Learn the program's process number, put it in its place, and let it go on."""
    try:
        text = await asyncio.wait_for(asyncio.to_thread(_read_object, info), START_TIMEOUT)
        pid = int(json.loads(text)["child-pid"])
        place(pid)
        os.write(gate, b"1")
        return pid
    except (ValueError, KeyError, OSError, TimeoutError) as error:
        raise IsolationUnavailableError(await _what_it_said(process, error)) from None


def _read_object(descriptor: int) -> bytes:
    """The one JSON object that bubblewrap writes about the child, or what there was of it when it ended."""
    text = b""
    while not text.rstrip().endswith(b"}") and (part := os.read(descriptor, 65536)):
        text += part
    return text


async def _what_it_said(process: asyncio.subprocess.Process, error: Exception) -> str:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    assert process.stderr is not None
    said = (await process.stderr.read(4096)).decode("utf-8", "replace").strip()
    await process.wait()
    return f"bubblewrap could not start a sandbox here: {explanation(said) or said or error}"


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
    """What a refusal of bubblewrap means and what helps, in words; empty when nothing is better."""
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
