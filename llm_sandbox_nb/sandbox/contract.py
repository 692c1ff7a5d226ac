"""The contract of sandboxes. Every sandbox fulfils it, with any isolation, in this process or on a server.

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
from llm_sandbox_nb.sandbox.limits import DEFAULT_COMMAND_TIMEOUT, OUTPUT_LIMIT

StreamName = Literal["stdout", "stderr"]
TransferKind = Literal["file", "folder"]
OutputCallback = Callable[[StreamName, bytes], None]
"""Function that is called with the name of a stream and a piece of output, once for each piece. The call comes in the
sandbox's event loop, so the function must not block."""


@dataclass(frozen=True)
class Directories:
    """Folders inside the sandbox, named as in the LLM-in-Sandbox paper.

    With the isolation `process`, the default of `root` is a new folder of this machine.
    """

    root: str = "/testbed"

    @property
    def input(self) -> str:
        """Folder for the user's input files."""
        return f"{self.root}/input"

    @property
    def documents(self) -> str:
        """Folder for documents that a benchmark task provides as context."""
        return f"{self.root}/documents"

    @property
    def output(self) -> str:
        """Folder for files that the model makes for the user."""
        return f"{self.root}/output"

    @property
    def answer(self) -> str:
        """File for the answer to a benchmark task."""
        return f"{self.root}/answer.txt"


@dataclass(frozen=True)
class ResourceUsage:
    """Resources that a sandbox has used, in bytes, as the kernel and the engine report them.

    An unknown figure is None: the engine is on another machine, the kernel is too old, or the isolation does not
    measure the resource.
    """

    memory_peak: int | None = None
    """Highest memory use of all processes together, including kernel memory and cached files."""
    disk: int | None = None
    """Present size of all files, without the files of the image."""


@dataclass(frozen=True)
class Protection:
    """Protection in force. As far as possible, the values are read back from the engine or the kernel.

    The values of a request would not be enough, because an engine or a kernel may provide less than was requested.
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
    """A sentence that names actions that the model cannot take."""
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
    """The command's exit code; 128+n if signal n ended the command; None after a time-out or an interruption."""
    stdout: bytes
    """Bytes exactly as the command wrote them. If they exceed the call's `output_limit`, the middle is left out. In its
    place is a line with the number of bytes that were left out."""
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
    """Sentences about unusual events, e.g. that a new shell was started because `exit` ended the old shell."""
    background: bytes = b""
    """Output that background jobs of earlier calls have written since the last call: at most the last 64 KiB."""

    @property
    def text(self) -> str:
        """stdout and then stderr as one text, in which undecodable bytes are replaced."""
        return (self.stdout + self.stderr).decode("utf-8", "replace")


@dataclass(frozen=True)
class FileEntry:
    """An entry of a listing, with an absolute path. The entry of a link describes the link and not its target."""

    path: str
    kind: Literal["file", "directory", "link", "other"]
    size: int
    mode: int
    mtime: float


@dataclass(frozen=True)
class FileChange:
    """A path in the result of `changes`, which has been added, modified or deleted."""

    path: str
    kind: Literal["added", "modified", "deleted"]
    size: int
    before: bytes | None = None
    """Earlier content of a text file that is small enough for a diff; None in all other cases."""
    after: bytes | None = None
    """Later content of a text file that is small enough for a diff; None in all other cases."""
    detail: str = ""
    """Further differences, such as mode, owner and link target. Empty after a call of `changes` without arguments."""
    size_before: int | None = None
    """Earlier size in bytes. None if the size is unknown."""


@dataclass(frozen=True)
class Changes:
    """Result of `Checkpointing.changes`."""

    files: tuple[FileChange, ...] = ()
    incomplete: str = ""
    """A sentence about changes or texts that were left out. Empty if nothing was left out."""


@dataclass(frozen=True)
class Checkpoint:
    """The files of a sandbox at one moment."""

    id: str
    parent: str | None
    """Id of the previous checkpoint or, after a restore, of the restored checkpoint. If that one was dropped, the id of
    its own parent. None if there is no parent."""
    time: float
    """Time of the checkpoint in seconds since the epoch."""
    files: int = 0
    """Number of paths that were added, changed or deleted since `parent`."""
    size: int = 0
    """Bytes of file content that were stored for this checkpoint. Content that was stored before does not count."""
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
        """Sentences that name the files that checkpoints cover, and say that processes are not covered."""
        ...

    @property
    def notice(self) -> str:
        """Sentence with the number of checkpoints that were dropped to stay within `limit`. Empty if there are none."""
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
    """A connection that a sandbox made through the package's proxy, or an attempt that was refused or failed."""

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
    """The network of a sandbox that reaches other hosts only through the package's proxy.

    The proxy runs in this process. It refuses connections that the options `network` and `allow` do not permit.
    """

    on_connection: Callable[[Connection], None] | None
    """Function that is called with each connection that has ended, was refused or has failed."""

    @property
    def connections(self) -> Sequence[Connection]:
        """Connections that have ended, were refused or have failed, the oldest first."""
        ...

    @property
    def closed(self) -> str:
        """Reason why the network does not work any more. Empty while the network works."""
        ...

    def permit(self, entry: str, *, once: bool = False) -> None:
        """Add an entry to the list of allowed hosts. With `once`, the entry allows only one connection.

        Raises:
            ValueError: if the entry is invalid.
        """
        ...

    async def close(self) -> None:
        """Close all connections, and accept no further connections."""
        ...


class Checkpointing(ABC):
    """The history of a sandbox's files: checkpoints, restores, forks and differences."""

    history: History
    """The checkpoints. They are stored outside of the sandbox; `history.scope` names the files that they cover."""

    @abstractmethod
    async def keep_history(
        self, folder: Path | str, *, continue_from: Path | str | None = None, limit: int | None = None
    ) -> None:
        """Store checkpoints in `folder` from now on.

        Without this call, checkpoints are in a temporary folder, which `close` removes. If `folder` already has a
        history, new checkpoints are added to it. Otherwise the existing checkpoints of the sandbox are first copied
        into `folder`. If the sandbox has no checkpoints, those of `continue_from` are copied. If possible, hard links
        share the content, so that a copy takes little disk space.

        Args:
            folder: a folder on this machine, made if missing.
            continue_from: a folder with a history.
            limit: maximum bytes of the history; 4 GiB if None. If the history becomes larger, its oldest checkpoints
                are dropped.

        Raises:
            HistoryError: if another sandbox uses `folder`, if `folder` is not a folder or its history is damaged, or if
                `continue_from` was given although the sandbox has checkpoints of its own.
            HistoryNotWrittenError: if `folder` cannot be made or written.
        """

    @abstractmethod
    async def checkpoint(self, *, keep: Collection[str] = ()) -> str:
        """Store the files, and the shell's directory, variables and functions; return the checkpoint's id.

        If nothing has changed since the last checkpoint, nothing is stored, and the last checkpoint's id is returned.
        Call this method while no command runs, because a command could change files meanwhile.

        Args:
            keep: ids of checkpoints that stay even if the history exceeds its size limit.

        Raises:
            HistoryNotWrittenError: if this machine's disk is full.
        """

    @abstractmethod
    async def restore(self, checkpoint: str) -> Restored:
        """End all processes in the sandbox, and restore all files and the shell to the state of a checkpoint.

        Files that are as at the checkpoint are not written again. A checkpoint of the present state is made first, so
        that the restore can be undone. Processes that ran at the checkpoint are not started again.

        Raises:
            HistoryError: if there is no such checkpoint. In this case nothing was changed.
            SandboxError: if files of the image are needed and cannot be read. In this case nothing was changed.
        """

    @abstractmethod
    async def fork(self, checkpoint: str, *, history: Path | str | None = None) -> Sandbox:
        """Open a second sandbox with the same options, and with the files and the shell of a checkpoint.

        The new sandbox has a history of its own, which begins with a copy of this sandbox's checkpoints. The copy is in
        the folder `history`, or in a temporary folder if `history` is None. The caller must close the new sandbox.

        Raises:
            HistoryError: if there is no such checkpoint.
            SandboxError: if no second sandbox can be started, e.g. because of a site's policy.
        """

    @abstractmethod
    async def changes(self, a: str | None = None, b: str | None = None) -> Changes:
        """Return the differences from checkpoint `a` to checkpoint `b`, anywhere in the sandbox.

        If one of the arguments is left out, the current files are compared with the other argument. A call without
        arguments needs no checkpoints, and returns only changes below the working directory: the changes since the last
        call without arguments or, in the first such call, since the start of the sandbox.

        Raises:
            HistoryError: if there is no such checkpoint.
        """


class Sandbox(Checkpointing):
    """A computer for one model. Use a sandbox in one event loop only. Several calls may run at the same time.

    Every method raises `SandboxLostError` if the sandbox has died or does not answer. Paths are absolute, or relative
    to `directories.root`. No shell expands `~`, `*` or variables in paths.
    """

    id: str
    directories: Directories
    protection: Protection
    network: Network | None = None
    """The network if a proxy in this process is the sandbox's only way to other hosts; otherwise None."""
    renewals: int = 0
    """Number of resets. A reset puts the sandbox back into its first state, so that another task can use it."""

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

        A call waits until earlier calls of `run` have ended. The command's stdin is empty. A time-out kills all
        processes of the command, even those that use `setsid` or ignore TERM. The call then returns the output so far,
        and the shell stays usable. If the task that awaits this call is cancelled, the command is ended like this too.

        Args:
            command: source for bash.
            timeout: seconds until the command is ended; None for no time-out.
            on_output: function that is called with each piece of output.
            kill_background: True to end also the jobs that the command has left in the background.
            output_limit: maximum bytes of each stream (stdout, stderr) in the result.

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

        A time-out kills the program and all processes that it started. So does a cancellation of the task that awaits
        this call. As in a shell, the exit code is 127 for a missing program, and 126 for a file that is not executable.

        Args:
            argv: program and arguments.
            stdin: the program's input.
            cwd: working directory; `directories.root` if None.
            env: variables in addition to the sandbox's environment.
            user: name or number of a user inside; the model's user if None.
            timeout: seconds until the program is ended; None for no time-out.
            on_output: function that is called with each piece of output.
            output_limit: maximum bytes of each stream (stdout, stderr) in the result.

        Raises:
            SandboxUserError: if `user` does not exist, or the sandbox cannot switch to this user.
            FileNotFoundError, NotADirectoryError, PermissionError: if `cwd` cannot be entered.
            ValueError: if an argument or variable contains a NUL byte, or `argv` is empty.
        """

    @abstractmethod
    async def interrupt(self) -> None:
        """End the command that `run` is running, as a time-out would. `run` then returns with `interrupted=True`."""

    @abstractmethod
    async def read_file(self, path: str, *, limit: int | None = None, at: str | None = None) -> bytes:
        """Return the present content of a file, or with `at` its content at the checkpoint with this id.

        Raises:
            HistoryError: if there is no checkpoint `at`, or if this checkpoint lacks the file's content.
            FileNotFoundError, IsADirectoryError: as for `open`.
            PermissionError: as for `open`, and for special files.
            OutputLimitExceededError: if the file is larger than `limit` bytes.
        """

    @abstractmethod
    async def write_file(self, path: str, data: bytes, *, exclusive: bool = False) -> None:
        """Write `data` as the whole content of a file. Make missing parent folders. An existing file keeps its mode.

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
            at: id of the checkpoint whose files are listed; the present files if None.

        Raises:
            HistoryError: if there is no checkpoint `at`.
            FileNotFoundError, PermissionError: as for `os.scandir`.
        """

    @abstractmethod
    async def upload(self, source: Path | str, target: str) -> list[str]:
        """Copy a file, or the content of a folder, from the host into the sandbox's folder `target` (made if missing).

        A symbolic link stays a link, even if its target is missing in the sandbox. A file with several names (hard
        links) stays one file. Pipes, sockets and devices are left out.

        Returns:
            A sentence for each entry that was left out, or that was copied but does not work in the sandbox.

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

        Only regular files and directories are written, with the mode 0755 or 0644. They are written only below
        `target`, and never through an existing link. A file with several names (hard links) stays one file, and its
        bytes count once.

        Args:
            source: a path in the sandbox. A single file keeps its name, which is the last part of this path.
            target: the folder, made if missing.
            limit: maximum bytes of all files. The number of files and folders is limited too, to 1,000 and one more for
                each 4 KiB of `limit`, but never more than 100,000.
            kind: the kind of `source`. If None, a path with a slash at its end is a folder, and a name with an ending
                (`a.txt`) is a file. For any other path the sandbox decides. If the sandbox is hostile, it can then
                write several files into `target` although one file was meant.
            replace: True to replace existing files in `target`; False to leave out files whose names exist there.

        Returns:
            A sentence for each entry that was left out: a link, a device, an invalid name, a name that `replace`
            protects, or an entry beyond `limit`.

        Raises:
            FileNotFoundError: if `source` is missing.
            TransferError: if the sandbox sent invalid data, or something other than the requested file. If it sent
                something other than the requested file, nothing was written.
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
