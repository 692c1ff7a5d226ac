"""The contract of a sandbox, which every isolation fulfils, in this process or behind a server.

    async with open_sandbox("docker") as box:
        await box.upload("data", "input")
        result = await box.run("python3 input/analyse.py > output/report.txt", timeout=60)
        before = await box.checkpoint()
        await box.run("rm -r output")
        await box.restore(before)
        print(result.exit_code, (await box.read_file("output/report.txt")).decode())

`Sandbox` has commands and files; its base class `Checkpointing` has the history of the files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

StreamName = Literal["stdout", "stderr"]
TransferKind = Literal["file", "folder"]
OutputCallback = Callable[[StreamName, bytes], None]
"""Function called in the sandbox's event loop with each piece of output. It must not block."""

DEFAULT_COMMAND_TIMEOUT = 120.0
"""Seconds until a command is ended, unless the caller or the option `command_timeout` sets another number."""
OUTPUT_LIMIT = 10 * 1024 * 1024
"""Maximum bytes of each output stream of a command; of a longer stream, the first half and the last half are kept."""
HISTORY_LIMIT = 4 * 1024**3
"""Maximum bytes of a history on disk; the oldest checkpoints are dropped above this size."""


@dataclass(frozen=True)
class Directories:
    """Folders inside the sandbox, with the names of the paper. Only the isolation `process` has another `root`."""

    root: str = "/testbed"

    @property
    def input(self) -> str:
        """Folder of the user's input files."""
        return f"{self.root}/input"

    @property
    def documents(self) -> str:
        """Folder of the context documents of benchmark tasks."""
        return f"{self.root}/documents"

    @property
    def output(self) -> str:
        """Folder of the files that the model makes for the user."""
        return f"{self.root}/output"

    @property
    def answer(self) -> str:
        """The answer file of benchmark tasks."""
        return f"{self.root}/answer.txt"


@dataclass(frozen=True)
class Limits:
    """Limits on the resources of a sandbox. None means no limit."""

    memory_bytes: int | None = 2 * 1024**3
    pids: int | None = 512
    cpus: float | None = 2.0
    disk_bytes: int | None = 10 * 1024**3
    """Bytes of all files that commands make or change."""
    files: int | None = 250_000
    """Number of these files, folders included."""

    @property
    def disk(self) -> list[int | None]:
        """The limits on files, in the form of the executor's greeting."""
        return [self.disk_bytes, self.files]


@dataclass(frozen=True)
class ResourceUsage:
    """Resources that a sandbox has used, in bytes, as the kernel and the engine report them.

    None if unknown: the engine is on another machine, the kernel is too old, or the isolation does not measure it.
    """

    memory_peak: int | None = None
    """Highest memory use of all processes together, including kernel memory and cached files."""
    disk: int | None = None
    """Size of all files now, without those of the image."""


@dataclass(frozen=True)
class Protection:
    """Protection in force, as read back from the engine or the kernel, never as requested."""

    isolation: str
    """Name in the registry `isolations.ISOLATIONS`."""
    profile: str
    user: str
    capabilities: tuple[str, ...]
    no_new_privileges: bool
    seccomp: str
    network: str
    read_only_system: bool
    memory_bytes: int | None
    pids: int | None
    cpus: float | None
    details: Mapping[str, str] = field(default_factory=dict)
    protects: str = ""
    """A sentence about the actions that the model cannot take."""
    does_not_protect: str = ""
    """A sentence about the remaining risks."""
    disk_bytes: int | None = None
    files: int | None = None


@dataclass(frozen=True)
class CommandResult:
    """Result of a command."""

    exit_code: int | None
    """The command's exit code; 128+n if signal n ended the command; None if `timed_out` or `interrupted`."""
    stdout: bytes
    """Bytes exactly as written, at most the call's `output_limit`. Of a longer stream, the first and last halves,
    joined by a line with the number of bytes left out."""
    stderr: bytes
    """Like `stdout`."""
    timed_out: bool = False
    interrupted: bool = False
    truncated: bool = False
    """True if a part of `stdout` or `stderr` was left out."""
    duration: float = 0.0
    """Seconds, measured inside the sandbox."""
    stdout_bytes: int = 0
    """Number of bytes written, including those left out."""
    stderr_bytes: int = 0
    full_output: str | None = None
    """File in the sandbox with the complete output (up to a limit), if `truncated`."""
    notice: str = ""
    """A sentence about the shell, e.g. that `exit` ended it and a new one was started."""
    background: bytes = b""
    """Output of background jobs of earlier calls since the last call (bounded)."""

    @property
    def text(self) -> str:
        """Both streams, decoded; undecodable bytes are replaced."""
        return (self.stdout + self.stderr).decode("utf-8", "replace")


@dataclass(frozen=True)
class FileEntry:
    """An entry of a listing, with an absolute path; links are not followed."""

    path: str
    kind: Literal["file", "directory", "link", "other"]
    size: int
    mode: int
    mtime: float


@dataclass(frozen=True)
class FileChange:
    """A path that a call changed, or that differs between two checkpoints."""

    path: str
    kind: Literal["added", "modified", "deleted"]
    size: int
    before: bytes | None = None
    """Earlier content of a text file that is small enough for a diff, else None."""
    after: bytes | None = None
    """Later content of a text file that is small enough for a diff, else None."""
    detail: str = ""
    """Further differences: mode, owner, target of a link. Between checkpoints only."""
    size_before: int | None = None
    """Earlier size in bytes, if known."""


@dataclass(frozen=True)
class Changes:
    """Changes since the last call, or between two checkpoints."""

    files: tuple[FileChange, ...] = ()
    incomplete: str = ""
    """A sentence about changes that were left out; empty if all are listed."""


@dataclass(frozen=True)
class Checkpoint:
    """The files of a sandbox at one moment."""

    id: str
    parent: str | None
    """The previous checkpoint; None for the first, and if the previous one was dropped."""
    time: float
    """Seconds since the epoch."""
    files: int = 0
    """Number of paths that were added, changed or deleted since `parent`."""
    size: int = 0
    """Bytes of content that were stored for this checkpoint."""
    duration: float = 0.0
    """Seconds of work in the background."""
    incomplete: str = ""
    """Sentences about files that could not be kept."""


@dataclass(frozen=True)
class Restored:
    """Result of a restore."""

    checkpoint: str
    safety: str
    """Checkpoint of the files just before the restore; restoring this one undoes the restore."""
    files: int = 0
    """Number of paths that were written, changed or deleted."""
    shell: bool = False
    """True if the shell's directory, variables and functions were restored too."""
    problems: tuple[str, ...] = ()
    """A sentence for each file or setting that could not be restored."""
    duration: float = 0.0
    """Seconds."""


class History(Protocol):
    """The checkpoints of a sandbox."""

    @property
    def folder(self) -> Path | None:
        """Folder of the history; None before the first checkpoint if no folder was given."""
        ...

    @property
    def limit(self) -> int:
        """Maximum bytes on disk."""
        ...

    @property
    def size(self) -> int:
        """Bytes of stored content."""
        ...

    @property
    def scope(self) -> str:
        """A sentence about the covered files, which also states that running processes are not restored."""
        ...

    @property
    def notice(self) -> str:
        """A sentence about checkpoints that were dropped to stay within the limit; empty if none was."""
        ...

    @property
    def checkpoints(self) -> Sequence[Checkpoint]:
        """All kept checkpoints, the oldest first."""
        ...

    def checkpoint(self, id: str) -> Checkpoint:
        """Return the checkpoint with this id.

        Raises:
            HistoryError: if there is no such checkpoint; the message says if it was dropped.
        """
        ...


@dataclass
class Connection:
    """A connection of a sandbox whose network is an allow-list."""

    host: str
    port: int
    decision: Literal["allowed", "refused", "failed"] = "allowed"
    """`refused`: by the policy. `failed`: the server did not answer, or the client disconnected."""
    reason: str = ""
    """Reason for the refusal or failure."""
    rule: str = ""
    """Entry of the list that allowed the connection."""
    address: str = ""
    """Address of the server."""
    secrets: list[str] = field(default_factory=list)
    """Names of the secrets that were inserted."""
    sent: int = 0
    """Bytes to the server."""
    received: int = 0
    """Bytes from the server."""
    started: float = 0.0
    """Seconds since the epoch."""
    duration: float = 0.0
    """Seconds."""


class Network(Protocol):
    """The owner's view of a network that is an allow-list: see `SandboxOptions.allow`."""

    on_connection: Callable[[Connection], None] | None
    """Called with each connection that ends or is refused."""

    @property
    def connections(self) -> Sequence[Connection]:
        """Connections that have ended or were refused, the oldest first."""
        ...

    @property
    def closed(self) -> str:
        """Reason why the network does not work any more; empty while it works."""
        ...

    def permit(self, entry: str, *, once: bool = False) -> None:
        """Add an entry to the list, for the next connection only if `once`. Raises ValueError."""
        ...

    async def close(self) -> None:
        """Close all connections, and accept no further ones."""
        ...


class Checkpointing(ABC):
    """The history of a sandbox's files: checkpoints, restores, forks and differences."""

    history: History
    """Checkpoints of all files that commands can write, stored outside of the sandbox."""

    @abstractmethod
    async def keep_history(
        self, folder: Path | str, *, continue_from: Path | str | None = None, limit: int | None = None
    ) -> None:
        """Store checkpoints in `folder` from now on. Without this call, a temporary folder stores them until `close`.

        The folder gets the existing checkpoints or, if there are none, those of `continue_from`. Hard links share the
        content, without copies. If the folder already has a history, that one is continued.

        Args:
            folder: a folder on this machine, made if missing.
            continue_from: a folder with a history.
            limit: maximum bytes; the oldest checkpoints are dropped above this size. None: 4 GiB.

        Raises:
            HistoryError: if another sandbox uses the folder, or its content is not a history.
            OSError: if the folder cannot be made or written.
        """

    @abstractmethod
    async def checkpoint(self) -> str:
        """Store the files, and the shell's directory, variables and functions; return the checkpoint's id.

        If nothing has changed since the last checkpoint, nothing is stored, and the id is that of the last one.
        Call this while no command runs, because a command may change files meanwhile.

        Raises:
            OSError: if this machine's disk is full.
        """

    @abstractmethod
    async def restore(self, checkpoint: str) -> Restored:
        """End all processes in the sandbox, and restore all files and the shell to the state of a checkpoint.

        Only differences are written. A checkpoint is made first, with which this can be undone. Processes are not
        restored.

        Raises:
            HistoryError: if there is no such checkpoint; nothing was changed.
            SandboxError: if files of the image are needed and cannot be read; nothing was changed.
        """

    @abstractmethod
    async def fork(self, checkpoint: str, *, history: Path | str | None = None) -> Sandbox:
        """Open a second sandbox with the same options, and with the files and the shell of a checkpoint.

        The new sandbox has a separate history in the folder `history` (None: a temporary folder), which begins with
        the checkpoints of this one. The caller closes the new sandbox.

        Raises:
            HistoryError: if there is no such checkpoint.
            SandboxError: if no second sandbox can be started, e.g. because of a site's policy.
        """

    @abstractmethod
    async def changes(self, a: str | None = None, b: str | None = None) -> Changes:
        """Return the differences from checkpoint `a` to checkpoint `b`, anywhere in the sandbox.

        If only one checkpoint is given, the other side is the current files. Without arguments, return the changes
        below the working directory since the last such call (or since the start), without checkpoints.

        Raises:
            HistoryError: if there is no such checkpoint.
        """


class Sandbox(Checkpointing):
    """A computer for one model. Async, for use from one event loop; several calls may run at the same time.

    Every method raises `SandboxLostError` if the sandbox has died or does not answer. Paths are absolute, or relative
    to `directories.root`; no shell interprets them.
    """

    id: str
    directories: Directories
    protection: Protection
    network: Network | None = None
    """The network, if this process enforces its allow-list; otherwise None."""
    renewals: int = 0
    """Number of times that the sandbox was renewed for another task."""

    @abstractmethod
    async def run(
        self,
        command: str,
        *,
        timeout: float | None = DEFAULT_COMMAND_TIMEOUT,
        on_output: OutputCallback | None = None,
        kill_background: bool = False,
        output_limit: int = OUTPUT_LIMIT,
    ) -> CommandResult:
        """Run `command` in the persistent shell: `cd`, `export`, functions and activated environments survive.

        A second `run` waits for the first. stdin is empty. A time-out kills all processes of the call (`setsid`
        children and jobs that ignore TERM too), returns the output so far, and leaves the shell usable. Cancelling the
        awaiting task interrupts the command.

        Args:
            command: source for bash.
            timeout: seconds until the command is ended; None for no time-out.
            on_output: called with each piece of output.
            kill_background: also end jobs that the command put in the background.
            output_limit: maximum bytes of each stream in the result.

        Raises:
            ValueError: if the command contains a NUL byte.
        """

    @abstractmethod
    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = DEFAULT_COMMAND_TIMEOUT,
        on_output: OutputCallback | None = None,
        output_limit: int = OUTPUT_LIMIT,
    ) -> CommandResult:
        """Run a program without a shell, independent of the persistent one.

        A time-out or a cancellation of the awaiting task kills all processes of the call. As in a shell, the exit code
        is 127 for a missing program and 126 for one that may not be executed.

        Args:
            argv: program and arguments.
            stdin: the program's input.
            cwd: working directory; `directories.root` when None.
            env: variables in addition to the sandbox's environment.
            user: name or number of a user inside; the model's user when None.
            timeout: seconds; None for no time-out.
            on_output: called with each piece of output.
            output_limit: maximum bytes of each stream in the result.

        Raises:
            SandboxUserError: if `user` does not exist, or the sandbox cannot switch to this user.
            FileNotFoundError, NotADirectoryError, PermissionError: if `cwd` cannot be entered.
            ValueError: if an argument or variable contains a NUL byte, or `argv` is empty.
        """

    @abstractmethod
    async def interrupt(self) -> None:
        """End the running command of `run` like a time-out; the command's result has `interrupted`."""

    @abstractmethod
    async def read_file(self, path: str, *, limit: int | None = None, at: str | None = None) -> bytes:
        """Return the content of a file; with `at`, the content at that checkpoint.

        Raises:
            HistoryError: if there is no checkpoint `at`, or the file's content was not kept.
            FileNotFoundError, IsADirectoryError, PermissionError: like `open`; also PermissionError for special files.
            OutputLimitExceededError: if the file is larger than `limit` bytes.
        """

    @abstractmethod
    async def write_file(self, path: str, data: bytes, *, exclusive: bool = False) -> None:
        """Write a whole file and make its parent directories. An existing file is replaced and keeps its mode.

        Raises:
            FileExistsError: if `exclusive` and the path exists.
            IsADirectoryError, NotADirectoryError, PermissionError, OSError: like `open` (OSError: disk full).
        """

    @abstractmethod
    async def list_files(
        self, path: str, *, depth: int = 1, limit: int = 10_000, at: str | None = None
    ) -> list[FileEntry]:
        """Return the entries below a directory, sorted by path; for a file, its own entry. Links are not followed.

        Args:
            path: the directory or file.
            depth: number of levels below the directory.
            limit: maximum number of entries.
            at: a checkpoint, to list the files of that moment.

        Raises:
            HistoryError: if there is no checkpoint `at`.
            FileNotFoundError, PermissionError: like `os.scandir`.
        """

    @abstractmethod
    async def upload(self, source: Path | str, target: str) -> list[str]:
        """Copy a file, or the content of a folder, from the host into the sandbox's folder `target` (made if missing).

        Links stay links, also those that lead nowhere inside; hard links stay one file. Pipes, sockets and devices
        are left out.

        Returns:
            A sentence for each entry that was left out or does not work inside.

        Raises:
            FileNotFoundError: if `source` is missing.
            TransferError: if an entry cannot be read, or the sandbox's disk is full.
        """

    @abstractmethod
    async def download(
        self,
        source: str,
        target: Path | str,
        *,
        limit: int = 1024**3,
        kind: TransferKind | None = None,
        replace: bool = True,
    ) -> list[str]:
        """Copy a file, or the content of a folder, from the sandbox into the host's folder `target`.

        Only regular files and directories are written, with plain modes, only below `target`, never through an
        existing link. A file with several names (hard links) counts once and stays one file.

        Args:
            source: a path in the sandbox. A file is written under the last part of this path only.
            target: the folder, made if missing.
            limit: maximum bytes. The number of files and folders is limited too: 1,000, and one more for each 4 KiB of
                `limit`, at most 100,000.
            kind: the kind of `source`. None: a folder if the path ends with a slash; a file if the name has an ending,
                as `a.txt`; otherwise the sandbox decides. An untrusted image can then write several files into
                `target`.
            replace: replace files of `target`; otherwise leave out files whose names are taken there.

        Returns:
            A sentence for each entry that was left out (links, devices, names that lead elsewhere or are taken, or all
            above `limit`).

        Raises:
            FileNotFoundError: if `source` is missing.
            TransferError: if the sandbox sent something other than the requested file; nothing was written.
        """

    @abstractmethod
    async def close(self) -> None:
        """End the sandbox and all its processes. Closing twice is fine."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
