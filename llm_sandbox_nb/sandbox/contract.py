"""The contract that every sandbox fulfils, with each isolation, in this process or on a server.

    async with open_sandbox("docker") as box:
        await box.upload("data", "input")
        result = await box.run("python3 input/analyse.py > output/report.txt", timeout=60)
        before = await box.checkpoint()
        await box.run("rm -r output")
        await box.restore(before)
        print(result.exit_code, (await box.read_file("output/report.txt")).decode())

`Sandbox` has the methods for commands and files. Its base class `Checkpointing` has the methods for the file history.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

from llm_sandbox_nb.sandbox.isolations import isolates

StreamName = Literal["stdout", "stderr"]
TransferKind = Literal["file", "folder"]
OutputCallback = Callable[[StreamName, bytes], None]
"""Function that gets the name of a stream and a piece of output. It is called in the sandbox's event loop for each
piece, and must not block."""

DEFAULT_COMMAND_TIMEOUT = 120.0
"""Time limit of a command in seconds, unless the caller or the option `command_timeout` sets another limit."""
OUTPUT_LIMIT = 10 * 1024 * 1024
"""Maximum bytes of each output stream of a command. A longer stream is cut in the middle."""
HISTORY_LIMIT = 4 * 1024**3
"""Maximum bytes of a history on disk. Above this size, the oldest checkpoints are dropped."""


@dataclass(frozen=True)
class Directories:
    """Folders inside the sandbox, with the names of the LLM-in-Sandbox paper.

    The isolation `process` has another `root` by default: a new folder of this machine.
    """

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
        """File for the answer to a benchmark task."""
        return f"{self.root}/answer.txt"


@dataclass(frozen=True)
class Limits:
    """Limits on the resources of a sandbox. None means no limit."""

    memory_bytes: int | None = 2 * 1024**3
    pids: int | None = 512
    cpus: float | None = 2.0
    disk_bytes: int | None = 10 * 1024**3
    """Maximum bytes of all files that commands make or change."""
    files: int | None = 250_000
    """Maximum number of files and folders that commands make or change."""

    @property
    def disk(self) -> list[int | None]:
        """`disk_bytes` and `files` as a list, for the greeting to the executor."""
        return [self.disk_bytes, self.files]


@dataclass(frozen=True)
class ResourceUsage:
    """Resources that a sandbox has used, in bytes, as the kernel and the engine report them.

    A figure is None if it is unknown, because the engine is on another machine, the kernel is too old, or the isolation
    does not measure it.
    """

    memory_peak: int | None = None
    """Highest memory use of all processes together, including kernel memory and cached files."""
    disk: int | None = None
    """Present size of all files, without the files of the image."""


@dataclass(frozen=True)
class Protection:
    """Protection in force, as far as possible read back from the engine or the kernel.

    A request can promise more protection than the engine and the kernel provide.
    """

    isolation: str
    """Name of the isolation in the registry `isolations.ISOLATIONS`."""
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
    isolates: bool = field(init=False)
    """See `isolations.Isolation.isolates`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "isolates", isolates(self.isolation))


@dataclass(frozen=True)
class CommandResult:
    """Result of a command."""

    exit_code: int | None
    """The command's exit code: 128+n if signal n ended the command, and None after a time-out or interruption."""
    stdout: bytes
    """Bytes exactly as the command wrote them. A stream longer than the call's `output_limit` is cut in the middle, and
    a line in this place has the number of bytes that were left out."""
    stderr: bytes
    """Like `stdout`."""
    timed_out: bool = False
    interrupted: bool = False
    truncated: bool = False
    """True if a part of `stdout` or `stderr` was left out."""
    duration: float = 0.0
    """Run time in seconds, measured inside the sandbox."""
    stdout_bytes: int = 0
    """Number of bytes that the command wrote, including the bytes that were left out."""
    stderr_bytes: int = 0
    full_output: str | None = None
    """Path of a file in the sandbox with the first 256 MiB of the output. None if the result has all output, or if the
    file could not be made."""
    notice: str = ""
    """A sentence about the shell, e.g. that a new shell was started because `exit` ended the old one."""
    background: bytes = b""
    """Output that background jobs of earlier calls have written since the last call: at most the last 64 KiB."""

    @property
    def text(self) -> str:
        """stdout and then stderr as one text, in which undecodable bytes are replaced."""
        return (self.stdout + self.stderr).decode("utf-8", "replace")


@dataclass(frozen=True)
class FileEntry:
    """An entry of a listing, with an absolute path. A link is an entry of its own and is not followed."""

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
    """Earlier content of a text file that is small enough for a diff; None in all other cases."""
    after: bytes | None = None
    """Later content of a text file that is small enough for a diff; None in all other cases."""
    detail: str = ""
    """Further differences, such as mode, owner and link target. Only a comparison of checkpoints finds them."""
    size_before: int | None = None
    """Earlier size in bytes. None if the size is unknown."""


@dataclass(frozen=True)
class Changes:
    """Changes since the last call of `changes`, or between two checkpoints."""

    files: tuple[FileChange, ...] = ()
    incomplete: str = ""
    """A sentence about changes that were left out. Empty if all changes are listed."""


@dataclass(frozen=True)
class Checkpoint:
    """The files of a sandbox at one moment."""

    id: str
    parent: str | None
    """Id of the previous checkpoint. None for the first checkpoint, and if the previous checkpoint was dropped."""
    time: float
    """Time of the checkpoint in seconds since the epoch."""
    files: int = 0
    """Number of paths that were added, changed or deleted since `parent`."""
    size: int = 0
    """Bytes of content that were stored for this checkpoint."""
    duration: float = 0.0
    """Seconds that the checkpoint took."""
    incomplete: str = ""
    """Sentences about files that could not be kept. Empty if all files were kept."""


@dataclass(frozen=True)
class Restored:
    """Result of a restore."""

    checkpoint: str
    safety: str
    """Id of the checkpoint that was made just before the restore. Restore this checkpoint to undo the restore."""
    files: int = 0
    """Number of paths that were written, changed or deleted."""
    shell: bool = False
    """True if the shell's directory, variables and functions were restored too."""
    problems: tuple[str, ...] = ()
    """A sentence for each file or setting that could not be restored."""
    duration: float = 0.0
    """Seconds that the restore took."""


class History(Protocol):
    """The checkpoints of a sandbox."""

    @property
    def folder(self) -> Path | None:
        """Folder of the history. None until the first checkpoint if no folder was given."""
        ...

    @property
    def limit(self) -> int:
        """Maximum bytes of the history on disk."""
        ...

    @property
    def size(self) -> int:
        """Bytes of stored content."""
        ...

    @property
    def scope(self) -> str:
        """Text about the files that checkpoints cover. The text also states that processes are not covered."""
        ...

    @property
    def notice(self) -> str:
        """A sentence about the checkpoints that were dropped to stay within the limit. Empty if none was dropped."""
        ...

    @property
    def checkpoints(self) -> Sequence[Checkpoint]:
        """All kept checkpoints, the oldest first."""
        ...

    def checkpoint(self, id: str) -> Checkpoint:
        """Return the checkpoint with this id.

        Raises:
            HistoryError: if there is no such checkpoint. If the checkpoint was dropped, the message says so.
        """
        ...


@dataclass
class Connection:
    """A connection of a sandbox through the package's proxy, or an attempt that was refused or failed."""

    host: str
    port: int
    decision: Literal["allowed", "refused", "failed"] = "allowed"
    """`refused` if the policy forbids the connection or the request is invalid; `failed` for all other problems, e.g.
    if no server answered or the client disconnected."""
    reason: str = ""
    """Reason for the refusal or failure."""
    rule: str = ""
    """Entry of the allow-list that allowed the connection."""
    address: str = ""
    """Address of the server."""
    secrets: list[str] = field(default_factory=list)
    """Names of the secrets that the proxy inserted."""
    sent: int = 0
    """Number of bytes that were sent to the server."""
    received: int = 0
    """Number of bytes that the server sent."""
    started: float = 0.0
    """Start time in seconds since the epoch."""
    duration: float = 0.0
    """Seconds that the connection lasted."""


class Network(Protocol):
    """The owner's view of a sandbox's network behind the package's proxy, which enforces `SandboxOptions.allow`."""

    on_connection: Callable[[Connection], None] | None
    """Function that is called with each connection that ends or is refused."""

    @property
    def connections(self) -> Sequence[Connection]:
        """Connections that have ended or were refused, the oldest first."""
        ...

    @property
    def closed(self) -> str:
        """Reason why the network does not work any more. Empty while the network works."""
        ...

    def permit(self, entry: str, *, once: bool = False) -> None:
        """Add an entry to the allow-list. With `once`, the entry is valid for the next connection only.

        Raises:
            ValueError: if the entry is invalid.
        """
        ...

    async def close(self) -> None:
        """Close all connections, and accept no further ones."""
        ...


class Checkpointing(ABC):
    """The history of a sandbox's files: checkpoints, restores, forks and differences."""

    history: History
    """Checkpoints of all files that commands can write. They are stored outside of the sandbox."""

    @abstractmethod
    async def keep_history(
        self, folder: Path | str, *, continue_from: Path | str | None = None, limit: int | None = None
    ) -> None:
        """Store checkpoints in `folder` from now on.

        Without this call, checkpoints are in a temporary folder, which `close` removes. If `folder` already has a
        history, this history is continued. Otherwise `folder` gets the sandbox's existing checkpoints or, if there are
        none, the checkpoints of `continue_from`. If possible, their content is shared by hard links and not copied.

        Args:
            folder: a folder on this machine, made if missing.
            continue_from: a folder with a history.
            limit: maximum bytes of the history; 4 GiB if None. Above this size, the oldest checkpoints are dropped.

        Raises:
            HistoryError: if another sandbox uses the folder, if its content is not a history, or if the sandbox already
                has checkpoints and so cannot continue `continue_from`.
            HistoryNotWrittenError: if the folder cannot be made or written.
        """

    @abstractmethod
    async def checkpoint(self, *, keep: Collection[str] = ()) -> str:
        """Store the files, and the shell's directory, variables and functions; return the checkpoint's id.

        If nothing has changed since the last checkpoint, nothing is stored, and the last checkpoint's id is returned.
        Call this method while no command runs, because a command could change files meanwhile.

        Args:
            keep: ids of checkpoints that are not dropped to keep the history within its size limit.

        Raises:
            HistoryNotWrittenError: if this machine's disk is full.
        """

    @abstractmethod
    async def restore(self, checkpoint: str) -> Restored:
        """End all processes in the sandbox, and restore all files and the shell to the state of a checkpoint.

        Only differences are written. A checkpoint is made first, so that the restore can be undone. Processes are not
        restored.

        Raises:
            HistoryError: if there is no such checkpoint. In this case nothing was changed.
            SandboxError: if files of the image are needed and cannot be read. In this case nothing was changed.
        """

    @abstractmethod
    async def fork(self, checkpoint: str, *, history: Path | str | None = None) -> Sandbox:
        """Open a second sandbox with the same options, and with the files and the shell of a checkpoint.

        The new sandbox has a history of its own, which begins with the checkpoints of this sandbox. The new history is
        in the folder `history`, or in a temporary folder if `history` is None. The caller closes the new sandbox.

        Raises:
            HistoryError: if there is no such checkpoint.
            SandboxError: if no second sandbox can be started, e.g. because of a site's policy.
        """

    @abstractmethod
    async def changes(self, a: str | None = None, b: str | None = None) -> Changes:
        """Return the differences from checkpoint `a` to checkpoint `b`, anywhere in the sandbox.

        If one argument is left out, the current files take its place. If both are left out, return the changes below
        the working directory since the last call without arguments, or since the start of the sandbox. A call without
        arguments needs no checkpoints.

        Raises:
            HistoryError: if there is no such checkpoint.
        """


class Sandbox(Checkpointing):
    """A computer for one model. Use a sandbox from one event loop, in which several calls may run at the same time.

    Every method raises `SandboxLostError` if the sandbox has died or does not answer. Paths are absolute, or relative
    to `directories.root`. No shell expands `~`, `*` or variables in paths.
    """

    id: str
    directories: Directories
    protection: Protection
    network: Network | None = None
    """The network if this process enforces the network's allow-list; otherwise None."""
    renewals: int = 0
    """Number of times that the sandbox was reset to its first state for another task."""

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

        A second `run` waits for the first. The command's stdin is empty. A time-out kills all processes of the call,
        even those that use `setsid` or ignore TERM. The call then returns the output so far, and the shell stays
        usable. Cancelling the awaiting task interrupts the command.

        Args:
            command: source for bash.
            timeout: seconds until the command is ended; None for no time-out.
            on_output: function that is called with each piece of output.
            kill_background: True to end also the jobs that the command put in the background.
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
        """Run a program without a shell, independently of the persistent shell.

        A time-out or a cancellation of the awaiting task kills all processes of the call. As in a shell, the exit code
        is 127 for a missing program and 126 for a file that cannot be executed.

        Args:
            argv: program and arguments.
            stdin: the program's input.
            cwd: working directory; `directories.root` if None.
            env: variables in addition to the sandbox's environment.
            user: name or number of a user inside; the model's user if None.
            timeout: seconds until the program is ended; None for no time-out.
            on_output: function that is called with each piece of output.
            output_limit: maximum bytes of each stream in the result.

        Raises:
            SandboxUserError: if `user` does not exist, or the sandbox cannot switch to this user.
            FileNotFoundError, NotADirectoryError, PermissionError: if `cwd` cannot be entered.
            ValueError: if an argument or variable contains a NUL byte, or `argv` is empty.
        """

    @abstractmethod
    async def interrupt(self) -> None:
        """End the running command of `run` as a time-out does. In the command's result, `interrupted` is True."""

    @abstractmethod
    async def read_file(self, path: str, *, limit: int | None = None, at: str | None = None) -> bytes:
        """Return the content of a file: the present content, or the content at the checkpoint `at`.

        Raises:
            HistoryError: if there is no checkpoint `at`, or the file's content was not kept.
            FileNotFoundError, IsADirectoryError: as for `open`.
            PermissionError: as for `open`, and for special files.
            OutputLimitExceededError: if the file is larger than `limit` bytes.
        """

    @abstractmethod
    async def write_file(self, path: str, data: bytes, *, exclusive: bool = False) -> None:
        """Write a whole file, and make missing parent directories. An existing file is replaced and keeps its mode.

        Raises:
            FileExistsError: if `exclusive` is True and the path exists.
            IsADirectoryError, NotADirectoryError, PermissionError: as for `open`.
            OSError: if the disk is full.
        """

    @abstractmethod
    async def list_files(
        self, path: str, *, depth: int = 1, limit: int = 10_000, at: str | None = None
    ) -> list[FileEntry]:
        """Return the entries below a directory, sorted by path. For a file, return its own entry. Follow no links.

        Args:
            path: the directory or file.
            depth: number of levels below the directory.
            limit: maximum number of entries.
            at: checkpoint whose files are listed; the present files if None.

        Raises:
            HistoryError: if there is no checkpoint `at`.
            FileNotFoundError, PermissionError: as for `os.scandir`.
        """

    @abstractmethod
    async def upload(self, source: Path | str, target: str) -> list[str]:
        """Copy a file, or the content of a folder, from the host into the sandbox's folder `target` (made if missing).

        Links stay links, even if they lead nowhere inside. Hard links stay one file. Pipes, sockets and devices are
        left out.

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

        Only regular files and directories are written, with the mode 0755 or 0644. They are written only below `target`
        and never through an existing link. A file with several names (hard links) stays one file, whose bytes count
        once.

        Args:
            source: a path in the sandbox. A single file gets the name at the end of this path, and no other name.
            target: the folder, made if missing.
            limit: maximum bytes. The number of files and folders is limited too: 1,000, and one more for each 4 KiB of
                `limit`, at most 100,000.
            kind: the kind of `source`. If None, a path with a slash at its end is a folder, and a name with an ending
                (`a.txt`) is a file. For any other path the sandbox decides, so an untrusted image can write several
                files into `target`.
            replace: True to replace existing files of `target`; False to leave out files whose names are taken.

        Returns:
            A sentence for each entry that was left out: a link, a device, a name that leads elsewhere or is taken, or
            an entry beyond `limit`.

        Raises:
            FileNotFoundError: if `source` is missing.
            TransferError: if the sandbox sent invalid data, or something other than the requested file. In the second
                case nothing was written.
        """

    @abstractmethod
    async def close(self) -> None:
        """End the sandbox and all its processes. A second call does nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
