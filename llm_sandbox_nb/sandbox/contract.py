"""What a sandbox is: the one contract that every isolation, local or behind a server, fulfils."""

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
"""Called in the sandbox's event loop with each piece of output as it arrives; must not block."""

DEFAULT_TIMEOUT = 120.0
OUTPUT_LIMIT = 10 * 1024 * 1024
"""Bytes kept of each stream of one command: the first half and the last half."""
HISTORY_LIMIT = 4 * 1024**3
"""Bytes that one history may take on disk before its oldest checkpoints are dropped."""


@dataclass(frozen=True)
class Directories:
    """Where things are inside the sandbox. The names are the paper's; `root` differs only for `process`."""

    root: str = "/testbed"

    @property
    def input(self) -> str:
        """Files the user handed in."""
        return f"{self.root}/input"

    @property
    def documents(self) -> str:
        """Context documents of benchmark tasks."""
        return f"{self.root}/documents"

    @property
    def output(self) -> str:
        """Everything the model leaves here is handed to the user."""
        return f"{self.root}/output"

    @property
    def answer(self) -> str:
        """The answer file of benchmark tasks."""
        return f"{self.root}/answer.txt"


@dataclass(frozen=True)
class Limits:
    """Resources of one sandbox. `None` means no limit is asked for."""

    memory_bytes: int | None = 2 * 1024**3
    pids: int | None = 512
    cpus: float | None = 2.0
    disk_bytes: int | None = 10 * 1024**3
    """What all files that it makes or changes take."""
    files: int | None = 250_000
    """How many these are, folders included."""

    @property
    def disk(self) -> list[int | None]:
        """The bounds of all files together, as the executor is told them."""
        return [self.disk_bytes, self.files]


@dataclass(frozen=True)
class ResourceUsage:
    """What a sandbox has used, in bytes, as kernel and engine say.

    None: not known, because the engine is on another machine, the kernel is old, or there is none.
    """

    memory_peak: int | None = None
    """The most at one time, all processes, the kernel's part and cached files included."""
    disk: int | None = None
    """What its files take beyond the image, at the time of asking."""


@dataclass(frozen=True)
class Protection:
    """What is in force, read back from the engine or the kernel, never from what was asked for."""

    isolation: str
    """One of the registry: see `isolations.ISOLATIONS`."""
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
    """One sentence: what this keeps the model from."""
    does_not_protect: str = ""
    """One sentence: what it does not."""
    disk_bytes: int | None = None
    files: int | None = None


@dataclass(frozen=True)
class CommandResult:
    """The outcome of one command.

    `stdout` and `stderr` are bytes exactly as written, at most `OUTPUT_LIMIT` each: when a stream was longer, its
    first and last halves are kept, joined by a line that says how much was left out, and `truncated` is true;
    `stdout_bytes` and `stderr_bytes` count all that was written, and `full_output` names a file in the sandbox that
    holds it (up to its own limit).
    `exit_code` is the command's own, 128+n when it was ended by signal n, and None when it was ended from outside
    (`timed_out` or `interrupted`).
    """

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    interrupted: bool = False
    truncated: bool = False
    duration: float = 0.0
    """Seconds, measured inside the sandbox."""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    full_output: str | None = None
    notice: str = ""
    """What happened to the shell, e.g. that it was ended by `exit` and a new one was started."""
    background: bytes = b""
    """What jobs left running by earlier calls wrote between those calls and this one (bounded)."""

    @property
    def text(self) -> str:
        """Both streams, decoded; undecodable bytes are replaced."""
        return (self.stdout + self.stderr).decode("utf-8", "replace")


@dataclass(frozen=True)
class FileEntry:
    """One entry of a listing. `path` is absolute; `kind` is what it is itself, links are not followed."""

    path: str
    kind: Literal["file", "directory", "link", "other"]
    size: int
    mode: int
    mtime: float


@dataclass(frozen=True)
class FileChange:
    """One path that a call changed, or that differs between two checkpoints.

    `before` and `after` hold the contents when the file is text and small enough for a diff, else None.
    """

    path: str
    kind: Literal["added", "modified", "deleted"]
    size: int
    before: bytes | None = None
    after: bytes | None = None
    detail: str = ""
    """What else differs: the mode, the owner, where a link leads. Between checkpoints only."""
    size_before: int | None = None
    """Its size before, when that is known."""


@dataclass(frozen=True)
class Changes:
    """What changed since the last look, or between two checkpoints. `incomplete` says what was left out."""

    files: tuple[FileChange, ...] = ()
    incomplete: str = ""


@dataclass(frozen=True)
class Checkpoint:
    """The files of a sandbox at one moment."""

    id: str
    parent: str | None
    """The checkpoint against which `files` counts; None for the first, and when that one was dropped."""
    time: float
    """Seconds since the epoch."""
    files: int = 0
    """Paths that were added, changed or deleted since `parent`."""
    size: int = 0
    """Bytes of content that had to be stored for it."""
    duration: float = 0.0
    """Seconds that it took in the background."""
    incomplete: str = ""
    """What could not be kept, in sentences."""


@dataclass(frozen=True)
class Restored:
    """What a restore has done."""

    checkpoint: str
    safety: str
    """The checkpoint of the files as they were just before: restoring it undoes this."""
    files: int = 0
    """Paths that were written, changed or deleted."""
    shell: bool = False
    """Whether the shell's directory, variables and functions were restored too."""
    problems: tuple[str, ...] = ()
    """A sentence for each thing that could not be restored."""
    duration: float = 0.0


class History(Protocol):
    """The checkpoints of one sandbox."""

    @property
    def folder(self) -> Path | None:
        """Where it is kept; None before the first checkpoint if no folder was given."""
        ...

    @property
    def limit(self) -> int:
        """Bytes that it may take on disk."""
        ...

    @property
    def size(self) -> int:
        """Bytes of content that it holds."""
        ...

    @property
    def scope(self) -> str:
        """One sentence: which files it covers, and that running processes are not restored."""
        ...

    @property
    def notice(self) -> str:
        """A sentence about checkpoints that were dropped to stay within the limit; empty when none was."""
        ...

    @property
    def checkpoints(self) -> Sequence[Checkpoint]:
        """All that are kept, oldest first."""
        ...

    def checkpoint(self, id: str) -> Checkpoint:
        """One of them.

        Raises:
            HistoryError: there is none with this id; says whether it was dropped.
        """
        ...


@dataclass
class Connection:
    """What became of one connection of a sandbox whose network is an allow-list."""

    host: str
    port: int
    decision: Literal["allowed", "refused", "failed"] = "allowed"
    """`refused`: by the policy. `failed`: the server does not answer, or the client has left."""
    reason: str = ""
    """Why it was refused, or failed."""
    rule: str = ""
    """The entry of the list that let it through."""
    address: str = ""
    """Where it went, or would have gone."""
    secrets: list[str] = field(default_factory=list)
    """The names of the secrets that were put in."""
    sent: int = 0
    """Bytes to the server."""
    received: int = 0
    started: float = 0.0
    """Seconds since the epoch."""
    duration: float = 0.0


class Network(Protocol):
    """What an owner has of the network of its sandbox: see `SandboxOptions.allow`."""

    on_connection: Callable[[Connection], None] | None
    """Called with every connection that ends or is refused."""

    @property
    def connections(self) -> Sequence[Connection]:
        """Those that have ended or were refused, the oldest first."""
        ...

    @property
    def closed(self) -> str:
        """Why nothing is let through any more; empty while the network works."""
        ...

    def permit(self, entry: str, *, once: bool = False) -> None:
        """Let a further entry of the list through: its next connection, or all from now on. Raises ValueError."""
        ...

    async def close(self) -> None:
        """Close all connections, and take no more."""
        ...


class Sandbox(ABC):
    """A computer for one model. Async, to be used from one event loop; several calls may run at once.

    Any method raises `SandboxLostError` when the sandbox has died or does not answer. Paths are absolute or relative
    to `directories.root`; they are never put through a shell.
    """

    id: str
    directories: Directories
    protection: Protection
    history: History
    """The history of the files: everything that commands can write, anywhere, kept outside of the sandbox."""
    network: Network | None = None
    """What leaves the sandbox, where its network is an allow-list that this process holds."""
    renewals: int = 0
    """How often it was made as new, for another task."""

    @abstractmethod
    async def run(
        self,
        command: str,
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        on_output: OutputCallback | None = None,
        kill_background: bool = False,
        output_limit: int = OUTPUT_LIMIT,
    ) -> CommandResult:
        """Run `command` in the persistent shell: `cd`, `export`, functions and activated environments survive.

        One at a time: a second `run` waits for the first. A time-out kills everything the call started (`setsid`
        children and jobs that ignore TERM too), keeps the output so far, and leaves the shell usable. Jobs put in the
        background stay unless `kill_background`. stdin is empty. Cancelling the awaiting task interrupts the command.

        Raises:
            ValueError: the command holds a NUL byte, which bash cannot take.
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
        timeout: float | None = DEFAULT_TIMEOUT,
        on_output: OutputCallback | None = None,
        output_limit: int = OUTPUT_LIMIT,
    ) -> CommandResult:
        """Run a program without a shell, beside the persistent one. `env` is added to the sandbox's own.

        When the call ends by time-out, or the awaiting task is cancelled, all its processes are killed.
        A program that is not there gives exit code 127, one that may not be executed 126, as a shell would.

        Raises:
            SandboxUserError: `user` does not exist or cannot be switched to.
            FileNotFoundError, NotADirectoryError, PermissionError: `cwd` cannot be entered.
            ValueError: an argument holds a NUL byte.
        """

    @abstractmethod
    async def interrupt(self) -> None:
        """End the command that `run` executes now, as a time-out would; its result has `interrupted`."""

    @abstractmethod
    async def read_file(self, path: str, *, limit: int | None = None, at: str | None = None) -> bytes:
        """The bytes of a file, of any size; with `at`, as it was at that checkpoint.

        Raises:
            HistoryError: there is no checkpoint `at`, or the file's content was not kept.
            FileNotFoundError, IsADirectoryError, PermissionError: as `open` would; special files are refused
                with PermissionError.
            OutputLimitExceededError: the file is larger than `limit` bytes.
        """

    @abstractmethod
    async def write_file(self, path: str, data: bytes, *, exclusive: bool = False) -> None:
        """Write a file whole, making parent directories. An existing file keeps its mode and is replaced in place.

        Raises:
            FileExistsError: `exclusive` and the path exists.
            IsADirectoryError, NotADirectoryError, PermissionError, OSError: as `open` would (OSError: disk full).
        """

    @abstractmethod
    async def list_files(
        self, path: str, *, depth: int = 1, limit: int = 10_000, at: str | None = None
    ) -> list[FileEntry]:
        """Entries below a directory to `depth` levels, sorted by path; a file gives itself. Links are not followed.

        With `at`, as they were at that checkpoint.

        Raises:
            HistoryError: there is no checkpoint `at`.
            FileNotFoundError, PermissionError: as `os.scandir` would.
        """

    @abstractmethod
    async def upload(self, source: Path | str, target: str) -> list[str]:
        """Copy a host file or a folder's content into the sandbox folder `target` (made if missing).

        Names are kept, nested, unicode and spaces too. Links stay links, also those that lead nowhere inside; hard
        links stay one file. Pipes, sockets and devices are left out.

        Returns:
            A sentence for each thing that was left out, or does not work inside.

        Raises:
            FileNotFoundError: `source` is missing.
            TransferError: something cannot be read, or the sandbox has no room.
        """

    @abstractmethod
    async def download(
        self, source: str, target: Path | str, *, limit: int = 1024**3, kind: TransferKind | None = None
    ) -> list[str]:
        """Copy a sandbox file or folder's content into the host folder `target`; what could not be taken is named.

        Only regular files and directories are written, with plain modes, only below `target`, never through a link
        that is already there. Returns a sentence for each entry that was left out (links, devices, names that lead
        elsewhere, or everything past `limit` bytes). Files and folders are limited in number too: 1,000, and one more
        for each 4 KiB of `limit`, at most 100,000. A file with several names (hard links) counts once and stays one.

        Args:
            source: in the sandbox. A file is written under the last part of this name and no other.
            target: made if missing.
            limit: bytes.
            kind: what `source` is. None: a folder if it ends with a slash; a file if its name has an ending, as
                `a.txt`; else the sandbox says it, which an untrusted image can use to write several files
                into `target`.

        Raises:
            FileNotFoundError: `source` is missing.
            TransferError: the sandbox sent something else than the file that was asked for; nothing was written.
        """

    @abstractmethod
    async def changes(self, a: str | None = None, b: str | None = None) -> Changes:
        """What differs between two checkpoints, anywhere in the sandbox, as it would be seen going from a to b.

        One that is left out stands for the files as they are now. Without both: what changed under the
        working directory since the last such call (or since the start); that has nothing to do with
        checkpoints.

        Raises:
            HistoryError: there is no such checkpoint.
        """

    @abstractmethod
    async def keep_history(
        self, folder: Path | str, *, continue_from: Path | str | None = None, limit: int | None = None
    ) -> None:
        """Keep checkpoints in `folder` from now on; else a temporary folder holds them until `close`.

        Those made so far come along or, when there are none, those of `continue_from`; content is shared by
        hard links, not copied. A history that the folder already holds is continued.

        Args:
            folder: on this machine; made if missing.
            continue_from: a folder that holds a history.
            limit: bytes it may take; the oldest checkpoints are dropped above it. None: 4 GiB.

        Raises:
            HistoryError: the folder is in use by another sandbox, or what it holds is no history.
            OSError: the folder cannot be made or written.
        """

    @abstractmethod
    async def checkpoint(self) -> str:
        """Keep the files, and the shell's directory, variables and functions, as they are now; the id.

        When nothing has changed since the last checkpoint, that one's id is given again, and nothing is
        stored. Call it while no command runs: a command would change files meanwhile.

        Raises:
            OSError: this machine has no room for it.
        """

    @abstractmethod
    async def restore(self, checkpoint: str) -> Restored:
        """End every process in the sandbox and make all files, and the shell, what they were at a checkpoint.

        Only what differs is touched. A checkpoint of the files as they are is made first, so this can be
        undone. Processes do not come back.

        Raises:
            HistoryError: there is no such checkpoint; nothing was changed.
            SandboxError: files of the image are needed and cannot be read; nothing was changed.
        """

    @abstractmethod
    async def fork(self, checkpoint: str, *, history: Path | str | None = None) -> Sandbox:
        """A second sandbox, of the same options, with the files and the shell of a checkpoint.

        It has a history of its own, which begins with all of this one's, in the folder `history` (None: a
        temporary one). The caller closes it.

        Raises:
            HistoryError: there is no such checkpoint.
            SandboxError: no second sandbox can be started, e.g. a site's policy is against it.
        """

    @abstractmethod
    async def close(self) -> None:
        """End the sandbox and everything in it. Closing twice is fine."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
