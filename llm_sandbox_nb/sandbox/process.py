"""Isolation `process`, which protects nothing: the executor is an ordinary process of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import pwd
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from llm_sandbox_nb.sandbox.bootstrap import FOLDER_VARIABLE, bootstrap_argv, executor_source
from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.contract import Directories, Protection, ResourceUsage, Sandbox
from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError
from llm_sandbox_nb.sandbox.leftover_folders import make_owned_folder, remove_left_folders
from llm_sandbox_nb.sandbox.options import GIT_EMAIL, SandboxOptions, site_environment
from llm_sandbox_nb.sandbox.protocol.answers import disk_limits
from llm_sandbox_nb.sandbox.protocol.channel import Channel
from llm_sandbox_nb.sandbox.protocol.frames import StreamTransport

INHERITED_VARIABLES = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TERM",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
)
"""Variables of this process that commands get in their environment. Commands do not get the other variables, but can
read them in /proc."""
REASON_VARIABLE = "LLM_SANDBOX_PROCESS_REASON"
"""Environment variable with a sentence: the reason why a site uses this isolation. `Protection.protects` ends with the
sentence, so people see it in notebooks."""
_ID_VARIABLE = "LLM_SANDBOX_ID"
"""Environment variable with the sandbox's id. The executor and all commands have this variable, so that `_kill_marked`
finds their processes after the executor was killed. Commands do not have `FOLDER_VARIABLE`, because this variable marks
a living executor."""
_FOLDER_PREFIX = "llm-sandbox-"
_LOCK_NAME = "owned"
"""Name of a file in the sandbox's folder. This process locks the file until the sandbox ends, so that other processes
do not remove the folder."""
_EXIT_TIMEOUT = 1.0
"""Seconds until an executor that does not exit is killed."""


async def why_unavailable(image: str | None) -> str:
    """See `Implementation.why_unavailable`."""
    if not sys.platform.startswith("linux"):
        return "Isolation 'process' needs Linux: use 'docker' here"
    if shutil.which("bash") is None:
        return "Isolation 'process' needs bash: install it, or use 'docker'"
    return ""


async def is_up_to_date(sandbox: Sandbox, options: SandboxOptions) -> bool:
    """Return True, because the sandbox uses this machine's present files."""
    return True


def resource_usage(sandbox: Sandbox) -> ResourceUsage:
    """Return unknown figures, because the kernel has no sums of the resources that these processes use."""
    return ResourceUsage()


async def start(options: SandboxOptions, *, labels: Mapping[str, str] | None = None) -> ChannelSandbox:
    """Start a sandbox, which is only a folder and a process. Ignore `labels`, because no sandbox outlives its owner.

    The folder is `llm-sandbox-XXXX` in the system's folder for temporary files. By default, its subfolder `testbed` is
    the working directory. The folder is removed when the sandbox ends.

    Raises:
        IsolationUnavailableError: if bash is missing, or this is not Linux.
        SandboxLostError: if the executor does not start.
    """
    problem = await why_unavailable(None)
    if problem:
        raise IsolationUnavailableError(f"{problem}.")
    await asyncio.to_thread(_remove_left_once)
    folder, lock = make_owned_folder(_FOLDER_PREFIX, _LOCK_NAME)
    owned = os.fdopen(lock)
    try:
        return await _start_in(folder, options, owned)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        owned.close()
        raise


def remove_leftovers() -> int:
    """Remove folders whose owner and executor were both killed. Return the number of folders that are still in use.

    A folder with a living executor counts as in use, because the executor removes the folder when it ends.
    """

    @functools.cache
    def marks() -> frozenset[bytes]:
        start = FOLDER_VARIABLE.encode()
        return frozenset(mark for pid in _pids() for mark in _environ(pid) if mark.startswith(start))

    return remove_left_folders(
        _FOLDER_PREFIX, _LOCK_NAME, lambda folder: f"{FOLDER_VARIABLE}={folder}".encode() in marks()
    )


_remove_left_once = functools.cache(remove_leftovers)
"""`remove_leftovers`, but only the first call does something. One call is enough, because new leftovers appear only
when a process is killed."""


async def _start_in(folder: Path, options: SandboxOptions, owned: IO[str]) -> ChannelSandbox:
    directories = options.directories or Directories(str(folder / "testbed"))
    name = f"process-{uuid.uuid4().hex[:12]}"
    environment = _environment(folder, options) | {_ID_VARIABLE: name, FOLDER_VARIABLE: str(folder)}
    for part in ("home", "tmp"):
        (folder / part).mkdir()
    # Both calls may fail, so they come before the start of the process.
    source, protection = executor_source(), _protection(options, {})
    process = await asyncio.create_subprocess_exec(
        *bootstrap_argv(sys.executable),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    assert process.stdin
    assert process.stdout
    transport = StreamTransport(process.stdout, process.stdin)
    transport.write_raw(source)
    sandbox = ChannelSandbox(
        Channel(transport),
        id=name,
        directories=directories,
        protection=protection,
        kill=lambda: _end(process, folder, name, owned),
        spill=str(folder / "spill"),
        hello={"history": directories.root, "disk": options.resources.disk},
    )
    try:
        await sandbox.start()
        sandbox.protection = _protection(options, sandbox.executor)
    except BaseException:
        await sandbox.close()
        raise
    return sandbox


def _environment(folder: Path, options: SandboxOptions) -> dict[str, str]:
    inherited = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    own = {
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "USER": user,
        "LOGNAME": user,
        "EMAIL": GIT_EMAIL,
    }
    ca_path = str(options.ca_bundle.resolve()) if options.ca_bundle else None
    # With the first folder, the command `python3` starts the Python of this process, even if its virtual environment
    # was not activated.
    path = os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)])
    return inherited | {"PATH": path} | own | site_environment(options, ca_path) | dict(options.env)


def _protection(options: SandboxOptions, executor: Mapping[str, Any]) -> Protection:
    lines = Path("/proc/self/status").read_text().splitlines()
    status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    disk_bytes, files, disk = disk_limits(executor)
    return Protection(
        isolation="process",
        profile=options.chosen_profile,
        user="root" if os.getuid() == 0 else f"uid {os.getuid()}",
        capabilities=(),
        no_new_privileges=status.get("NoNewPrivs") == "1",
        seccomp="none",
        network="open",
        read_only_system=False,
        memory_bytes=None,
        pids=None,
        cpus=None,
        details={
            "capabilities": f"as this process: {status.get('CapEff', 'unknown')}",
            **({"disk": f"in its own folder, {disk}"} if disk else {}),
        },
        protects=f"Nothing: commands run as you, on this machine. {os.environ.get(REASON_VARIABLE, '')}".strip(),
        does_not_protect="Commands can read, change and delete everything that you can, read the keys in the "
        "environment of your programs, and use the network.",
        disk_bytes=disk_bytes,
        files=files,
    )


async def _end(process: asyncio.subprocess.Process, folder: Path, name: str, owned: IO[str]) -> None:
    """Wait until the executor exits, and remove the folder. If the executor does not exit, kill all processes."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _EXIT_TIMEOUT)
    if process.returncode is None:
        process.kill()
        await process.wait()
    if process.returncode != 0:
        await asyncio.to_thread(_kill_marked, name)
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    owned.close()


def _kill_marked(name: str) -> None:
    """Kill all processes of the sandbox with the id `name`. Their environment has `_ID_VARIABLE`."""
    mark = f"{_ID_VARIABLE}={name}".encode()
    for _ in range(100):  # several rounds, because a process may start another one meanwhile
        marked = [pid for pid in _pids() if mark in _environ(pid)]
        for pid in marked:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not marked:
            if not any(_is_starting(pid) for pid in _pids()):
                return
            time.sleep(0.02)


def _is_starting(pid: int) -> bool:
    """Return True if a process of this user is starting a program, so that its environment cannot be read yet."""
    folder = Path(f"/proc/{pid}")
    try:
        if folder.stat().st_uid != os.getuid():
            return False
        (folder / "exe").readlink()  # fails for a kernel thread
        return not (folder / "cmdline").read_bytes() and not (folder / "environ").read_bytes()
    except OSError:
        return False


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
