"""Isolation `bubblewrap`: `bwrap` makes Linux namespaces. Neither a daemon nor an image nor root is needed."""

from __future__ import annotations

import asyncio
import os
import posixpath
import secrets
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cache
from typing import Any, BinaryIO

from llm_sandbox_nb.formatting import format_size
from llm_sandbox_nb.sandbox.bootstrap import bootstrap_argv
from llm_sandbox_nb.sandbox.bubblewrap.launch import (
    Launched,
    PipedExecutor,
    bubblewrap_path,
    inner_arguments,
    is_host_root,
    join,
    kill_waiting,
    launch,
    outer_arguments,
    prepared,
)
from llm_sandbox_nb.sandbox.bubblewrap.limits import (
    GROUP_PREFIX,
    Group,
    GroupOwner,
    InForce,
    find_bases,
    find_groups,
    process_limits,
    reap_groups,
)
from llm_sandbox_nb.sandbox.bubblewrap.protection import read_protection
from llm_sandbox_nb.sandbox.bubblewrap.view import (
    CA_FILE,
    PROFILE_USERS,
    Python,
    build_view,
    running_python,
    system_python,
    why_unusable,
)
from llm_sandbox_nb.sandbox.cgroups import memory_peak
from llm_sandbox_nb.sandbox.client import AdministeredSandbox, ChannelSandbox
from llm_sandbox_nb.sandbox.contract import Directories, Protection, ResourceUsage, Sandbox
from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError, SandboxError, SandboxLostError
from llm_sandbox_nb.sandbox.limits import Limits
from llm_sandbox_nb.sandbox.network.door import DOOR_PORT, take_listener
from llm_sandbox_nb.sandbox.options import GIT_EMAIL, ROOT_ENVIRONMENT, SandboxOptions, site_environment
from llm_sandbox_nb.sandbox.protocol.channel import Channel
from llm_sandbox_nb.sandbox.seccomp import filter_program

INHERITED_VARIABLES = ("TZ",)
"""Environment variables of this process that are passed to the sandbox."""
_SYSTEM_FOLDERS = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc",
    "/proc",
    "/dev",
    "/sys",
    "/nix",
    "/var/tmp",
)
_UNKNOWN_PROTECTION = Protection("bubblewrap", "", "", (), False, "", "", False, None, None, None)
_has_worked = False


async def why_unavailable(image: str | None) -> str:
    """See `Implementation.why_unavailable`. Start a sandbox to find out, unless an earlier call did so with success."""
    global _has_worked
    if not sys.platform.startswith("linux"):
        return "bubblewrap needs Linux"
    if bubblewrap_path() is None:
        return "bubblewrap is not installed (`apt install bubblewrap`)"
    if not _has_worked:
        try:
            async with await start(SandboxOptions("bubblewrap", "strict")):
                _has_worked = True
        except (SandboxError, OSError) as error:
            return str(error).rstrip(".")
    return ""


async def is_up_to_date(sandbox: Sandbox, options: SandboxOptions) -> bool:
    """See `Implementation.is_up_to_date`. Return True, because the sandbox shows this machine's present files."""
    return True


def resource_usage(sandbox: Sandbox) -> ResourceUsage:
    """See `Implementation.resource_usage`. `disk` is 0, because files are in memory and are part of the memory use."""
    name = f"{GROUP_PREFIX}-{GroupOwner.of_process(os.getpid())}-{sandbox.id}"
    peaks = [memory_peak(base.folder / name, base.version) for base in find_bases()]
    return ResourceUsage(max((peak for peak in peaks if peak is not None), default=None), 0)


async def start(options: SandboxOptions, *, labels: Mapping[str, str] | None = None) -> ChannelSandbox:
    """Start a sandbox under bubblewrap. Ignore `labels`, which help to find sandboxes that outlive their owner.

    The sandbox ends when the calling thread ends, because the kernel then sends the parent-death signal.

    Raises:
        IsolationUnavailableError: if bubblewrap is not installed or does not work here.
        ValueError: if the working directory is in a folder of the system.
        SandboxLostError: if the executor does not start.
    """
    name = f"bubblewrap-{secrets.token_hex(6)}"
    started = await _Start.prepare(options, name)
    try:
        return await started.run()
    except BaseException:
        started.close_sockets()
        await asyncio.to_thread(started.remove_group)
        raise


def choose_python(*, read_by_others: bool) -> tuple[Python, str]:
    """Return the Python for the sandbox, and the reason why it is not the running Python.

    The reason is empty if the running Python can be used.

    Raises:
        IsolationUnavailableError: if neither the running Python nor the system's can be used.
    """
    own = running_python()
    reason = why_unusable(own, read_by_others=read_by_others)
    if not reason:
        return own, ""
    system = system_python()
    if system is None:
        raise IsolationUnavailableError(
            f"The Python of this environment cannot be used in a sandbox because {reason}, and the system"
            " has no Python: install python3, or make an environment that other users may read."
        )
    return system, reason


class _Start:
    """The start of a single sandbox: its settings and steps."""

    def __init__(self, options: SandboxOptions, name: str, bwrap: str, group: Group | None) -> None:
        self.options = options
        self.name = name
        self.bwrap = bwrap
        self.group = group
        self.directories = options.directories or Directories()
        self.many_users = is_host_root()
        self.python, self.other_python = choose_python(read_by_others=self.many_users)
        self.user = PROFILE_USERS[options.chosen_profile]
        self.view = build_view(
            profile=options.chosen_profile,
            root=self.directories.root,
            python=self.python,
            open_network=options.network == "open",
            memory=options.resources.memory_bytes,
            many_users=self.many_users,
            ca_bundle=options.ca_bundle,
        )
        self.socket, self.inside_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        """The two ends of a Unix socket. Through it, the executor sends the door's listening socket, and receives the
        descriptors of packs (see `HandedPacks`)."""

    @classmethod
    async def prepare(cls, options: SandboxOptions, name: str) -> _Start:
        """Check the options, make the control groups, and choose the Python."""
        bwrap = bubblewrap_path()
        if bwrap is None:
            raise IsolationUnavailableError(
                "bubblewrap is not installed: install it (`apt install bubblewrap`), or use Docker."
            )
        check_root((options.directories or Directories()).root)
        making = asyncio.ensure_future(asyncio.to_thread(_make_group, name, options.resources))
        try:
            return cls(options, name, bwrap, await asyncio.shield(making))
        except BaseException:  # after a cancellation, the thread still makes the groups
            await asyncio.wait({making})
            if making.exception() is None and (group := making.result()) is not None:
                group.remove()
            raise

    async def run(self) -> ChannelSandbox:
        """Launch bubblewrap, greet the executor, and read back the protection."""
        held = self.group.in_force() if self.group else InForce()
        limits, in_force = process_limits(self.options.resources, held)
        launched = await self._launch(limits)
        executor = PipedExecutor(launched.process)
        sandbox = self._sandbox(launched, executor)
        try:
            await sandbox.start()
            sandbox.protection = self._protection(launched, in_force, sandbox.executor)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    def _sandbox(self, launched: Launched, executor: PipedExecutor) -> ChannelSandbox:
        common: dict[str, Any] = {
            "id": self.name,
            "directories": self.directories,
            "protection": _UNKNOWN_PROTECTION,
            "kill": lambda: self._end(executor),
            "hello": {
                "disk": self.options.resources.disk,
                **({"door": DOOR_PORT} if self.options.has_door else {}),
            },
        }
        sandbox = (
            ChannelSandbox(executor.channel, **common)
            if not self.many_users or self.user.uid == 0
            else AdministeredSandbox(
                executor.channel,
                own_names=(self.user.name, str(self.user.uid)),
                administrator=lambda: self._administrator(launched),
                **common,
            )
        )
        packs = HandedPacks(self.socket)
        sandbox.deliver, sandbox.release_pack = packs.deliver, packs.release
        if self.options.has_door:
            sandbox.take_listener = lambda: take_listener(executor.channel, self.socket)
        return sandbox

    async def _administrator(self, launched: Launched) -> tuple[Channel, Callable[[], Awaitable[None]]]:
        """Start a second executor, which is root inside. It uses no file that the model can write.

        Return its channel, and the function that ends it.
        """
        process = await join(
            launched.pid,
            bootstrap_argv(self.python.executable),
            environment=self._environment() | ROOT_ENVIRONMENT,
            groups=self.group.process_files if self.group else (),
        )
        executor = PipedExecutor(process)
        return executor.channel, executor.end

    async def _launch(self, limits: Mapping[int, int]) -> Launched:
        profile = self.options.chosen_profile
        arguments = inner_arguments(
            self.view,
            self._environment(),
            profile=profile,
            share_network=self.options.network == "open",
            many_users=self.many_users,
        )
        with self.inside_socket:
            argv = prepared(
                bootstrap_argv(self.python.executable),
                profile=profile,
                many_users=self.many_users,
                limits=limits,
                socket=self.inside_socket.fileno(),
            )
            return await launch(
                arguments,
                outer_arguments(self.view, self.bwrap) if self.many_users else None,
                argv,
                bwrap=self.bwrap,
                python=self.python.executable,
                seccomp=filter_program(),
                place=self.group.add if self.group else lambda pid: None,
                pass_fds=[self.inside_socket.fileno()],
            )

    def _environment(self) -> dict[str, str]:
        ca_path = CA_FILE if self.options.ca_bundle is not None else None
        return {
            **{name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ},
            "HOME": self.user.home,
            "USER": self.user.name,
            "LOGNAME": self.user.name,
            "SHELL": "/bin/bash",
            "EMAIL": GIT_EMAIL,
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "PIP_ROOT_USER_ACTION": "ignore",
            **({} if self.many_users else {"TAR_OPTIONS": "--no-same-owner"}),
            **self.view.environment,
            **site_environment(self.options, ca_path),
            **self.options.env,
        }

    def _protection(self, launched: Launched, in_force: InForce, executor: Mapping[str, Any]) -> Protection:
        python = self.python.executable
        if self.other_python:
            python += f" (the system's: {self.other_python})"
        folders = ", ".join(f"{name} {format_size(size)}" for name, size in self.view.writable.items())
        try:
            return read_protection(
                launched.pid,
                profile=self.options.chosen_profile,
                user=self.user.name,
                limits=in_force,
                executor=executor,
                through_door=self.options.network or "",
                details={"python": python, "writable": f"{folders}; in memory"},
            )
        except OSError as error:
            raise SandboxLostError(f"The sandbox ended while it started ({error}); open it again.") from error

    async def _end(self, executor: PipedExecutor) -> None:
        self.close_sockets()
        await executor.end()
        await asyncio.to_thread(self.remove_group)

    def close_sockets(self) -> None:
        """Close both ends of the Unix socket. A second call does nothing."""
        self.socket.close()
        self.inside_socket.close()

    def remove_group(self) -> None:
        """Remove the control groups. A later start removes groups that cannot be removed yet."""
        if self.group is not None:
            self.group.remove(patience=1.0)


class HandedPacks:
    """Packs (files with content for a restore) in memory. The executor gets their descriptors through a Unix socket.

    The files cannot be sealed, so that a hostile executor cannot forbid a change of their size. So `release` frees the
    memory even if the executor keeps a descriptor.
    """

    def __init__(self, outside: socket.socket) -> None:
        self._outside = outside
        self._files: list[BinaryIO] = []
        self._lock = threading.Lock()

    async def deliver(self, name: str, size: int, content: Iterator[bytes]) -> None:
        """See `Deliver`. The executor can read each piece as soon as the piece is written."""
        file = os.fdopen(os.memfd_create(name, os.MFD_CLOEXEC), "wb", 0)
        self._files.append(file)
        socket.send_fds(self._outside, [name.encode()], [file.fileno()], socket.MSG_DONTWAIT)
        await asyncio.to_thread(self._fill, file, content)

    def _fill(self, file: BinaryIO, content: Iterator[bytes]) -> None:
        for piece in content:
            with self._lock:
                if file.closed:
                    return
                file.write(piece)

    def release(self) -> None:
        """Free the memory of all packs, even if the executor or a thread still uses them."""
        with self._lock:
            for file in self._files:
                file.truncate(0)
                file.close()
        self._files = []


def _make_group(name: str, limits: Limits) -> Group | None:
    _remove_leftovers_once()
    return Group.make(name, limits, find_bases())


def remove_leftovers() -> list[str]:
    """Remove the control groups and processes of dead owners. Return the names of the groups, and the process ids."""
    return [*reap_groups(find_groups()), *(str(pid) for pid in kill_waiting())]


_remove_leftovers_once = cache(remove_leftovers)
"""`remove_leftovers`, of which only the first call in this process does something. This is enough, because only owners
that were killed leave control groups and processes behind."""


def check_root(root: str) -> None:
    """Check that a working directory is absolute and normalized, and not in a system folder. Raises ValueError."""
    inside_system = any(root == folder or root.startswith(f"{folder}/") for folder in _SYSTEM_FOLDERS)
    normal = posixpath.normpath(f"/{root.lstrip('/')}")  # `normpath` alone keeps two slashes at the beginning
    if root == "/" or root != normal or inside_system:
        raise ValueError(
            f"The working directory {root!r} cannot be used: give an absolute path outside the system's folders."
        )
