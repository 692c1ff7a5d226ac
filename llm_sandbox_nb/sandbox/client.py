"""Sandboxes whose methods send requests to the executor, which is the program inside the sandbox.

Isolations differ only in how they start the executor.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import posixpath
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Concatenate, ParamSpec, TypeVar

from llm_sandbox_nb.sandbox.contract import (
    Changes,
    CommandResult,
    Directories,
    FileEntry,
    OutputCallback,
    Protection,
    TransferKind,
)
from llm_sandbox_nb.sandbox.errors import SandboxError, SandboxLostError
from llm_sandbox_nb.sandbox.history.checkpointing_sandbox import CheckpointingSandbox
from llm_sandbox_nb.sandbox.history.sandbox_history import SandboxHistory
from llm_sandbox_nb.sandbox.isolations import ISOLATIONS
from llm_sandbox_nb.sandbox.limits import DEFAULT_COMMAND_TIMEOUT, OUTPUT_LIMIT
from llm_sandbox_nb.sandbox.options import check_environment
from llm_sandbox_nb.sandbox.protocol.answers import (
    MAX_CHANGES,
    CommandOutput,
    Gathered,
    changes_of,
    command_result,
    executor_facts,
    file_entry,
    lines_of,
    raise_error,
    raise_upload_error,
    texts_by_name,
)
from llm_sandbox_nb.sandbox.protocol.channel import Body, Channel, Deliver, ExecutorConnection, Sink
from llm_sandbox_nb.sandbox.protocol.frames import ProtocolError
from llm_sandbox_nb.sandbox.transfer import (
    Spool,
    file_pieces,
    plan_upload,
    receive_tree,
    requested_file,
    tree_of,
)

FILE_TIMEOUT = 600.0
"""Time limit of a file operation in seconds."""
TRANSFER_TIMEOUT = 3600.0
"""Time limit of an upload or a download in seconds."""
CHANGES_TIMEOUT = 30.0
"""Time limit of a search for changes in seconds."""
MAX_CHANGES_BYTES = 64 * 1024 * 1024
MAX_LISTING_BYTES = 64 * 1024 * 1024
SPILL_FOLDER = "/tmp/llm-sandbox"

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_P = ParamSpec("_P")


def _repeatable(
    method: Callable[Concatenate[ChannelSandbox, _P], Awaitable[_T]],
) -> Callable[Concatenate[ChannelSandbox, _P], Coroutine[Any, Any, _T]]:
    """Decorate a method. If the connection breaks, the decorated method reconnects and calls the method once again."""

    @functools.wraps(method)
    async def repeated(self: ChannelSandbox, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await self.retrying(lambda _: method(self, *args, **kwargs))

    return repeated


class ChannelSandbox(CheckpointingSandbox):
    """A sandbox whose executor answers on `channel`.

    `start` must be called first. It sends the greeting, a message that names the executor's folders and limits.

    Args:
        channel: the connection to the executor.
        id: an id that is unique among sandboxes.
        directories: folders that `start` makes inside.
        protection: the protection in force.
        kill: function that ends the sandbox from outside and removes it. It is called once, when `close` is called or
            the sandbox is lost.
        spill: folder inside the sandbox for files with the full output of commands whose output exceeds the limit.
        hello: further parameters of the greeting, e.g. `history`, the only folder that checkpoints cover.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        id: str,
        directories: Directories,
        protection: Protection,
        kill: Callable[[], Awaitable[None]],
        spill: str = SPILL_FOLDER,
        hello: Mapping[str, Any] | None = None,
    ) -> None:
        self.channel = channel
        self.id = id
        self.directories = directories
        self.protection = protection
        self.executor: Mapping[str, Any] = {}
        """The executor's answer to the greeting, with `pid`, `bash`, `door`, ..."""
        self.deliver: Deliver | None = None
        """See `ExecutorConnection.deliver`."""
        self.release_pack: Callable[[], None] | None = None
        """See `ExecutorConnection.release_pack`."""
        self.take_listener: Callable[[], Awaitable[socket.socket]] | None = None
        """Function that moves the listening socket of the door (see `executor/door.py`) into this process. Then the
        executor need not forward all data, which is faster. None if the isolation cannot move the socket."""
        self.start_clone: Callable[[], Awaitable[CheckpointingSandbox]] | None = None
        """Function that starts another sandbox with the same options. `open.start_sandbox` sets this attribute."""
        isolation = ISOLATIONS[protection.isolation]
        self.history = SandboxHistory(isolation.checkpoints, directories.root if isolation.own_root else "/")
        self._kill = kill
        self._spill = spill
        self._hello = dict(hello or {})
        self._shell = asyncio.Lock()
        self._ending: asyncio.Future[None] | None = None
        self._closing: asyncio.Future[None] | None = None
        channel.on_lost = self._was_lost

    async def start(self, *, adopt: bool = False, timeout: float = 30.0) -> None:
        """Send the greeting, and wait for the answer. Before it answers, the executor makes the directories.

        Args:
            adopt: True if another process may have been connected to the executor before.
            timeout: seconds in which the executor must answer.

        Raises:
            SandboxLostError: if the executor does not answer.
            SandboxError: if a directory cannot be made.
        """
        answer = await self.channel.hello(self.greeting, adopt=adopt, timeout=timeout)
        self.executor = self._parse(lambda: executor_facts(answer))
        failed = self.executor.get("failed")
        if failed:
            await self.close()
            try:
                raise_error({"error": failed[0] or {}}, "")
            except OSError as error:
                raise SandboxError(
                    f"The sandbox cannot make its directories below {self.directories.root}: "
                    f"{error.strerror}: {error.filename!r}."
                ) from error

    @property
    def greeting(self) -> dict[str, Any]:
        """The parameters of the greeting."""
        folders = self.directories
        return {
            "cwd": folders.root,
            "directories": [folders.root, folders.input, folders.documents, folders.output],
            "spill": self._spill,
            **self._hello,
        }

    @property
    def lost(self) -> SandboxLostError | None:
        """The reason why the sandbox has ended. None while the sandbox is alive."""
        return self.channel.lost

    def _path(self, path: str) -> str:
        if "\0" in path:
            raise ValueError("A path cannot contain a NUL byte.")
        return posixpath.join(self.directories.root, path)

    # ---------------------------------------------------------------------------------------------- commands

    async def run(
        self,
        command: str,
        *,
        timeout: float | None = DEFAULT_COMMAND_TIMEOUT,
        on_output: OutputCallback | None = None,
        kill_background: bool = False,
        output_limit: int = OUTPUT_LIMIT,
    ) -> CommandResult:
        """See `Sandbox.run`."""
        if "\0" in command:
            raise ValueError("A command cannot contain a NUL byte, because bash does not accept it.")
        output = CommandOutput(output_limit, on_output)
        params = {
            "op": "run",
            "timeout": timeout,
            "output_limit": output_limit,
            "kill_background": kill_background,
        }
        async with self._shell:
            return await self.command(params, command.encode("utf-8", "surrogateescape"), output, timeout)

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
        """See `Sandbox.exec`."""
        if isinstance(argv, str) or not argv:
            raise ValueError("argv must be a list of at least one string.")
        if any("\0" in word for word in argv):
            raise ValueError("An argument cannot contain a NUL byte.")
        check_environment(env or {})
        output = CommandOutput(output_limit, on_output)
        params = {
            "op": "exec",
            "argv": list(argv),
            "cwd": self._path(cwd or "."),
            "env": dict(env or {}),
            "user": user,
            "timeout": timeout,
            "output_limit": output_limit,
        }
        return await self.command(params, stdin, output, timeout)

    async def command(
        self, params: Mapping[str, Any], body: bytes, output: CommandOutput, timeout: float | None
    ) -> CommandResult:
        """Send a request of `run` or `exec`, and return its result.

        If the connection breaks and can be restored, the result has only the output so far.
        """
        await self.channel.ensure_connected()
        try:
            answer = await self.channel.call(params, body=body, sink=output.take, timeout=timeout)
        except SandboxLostError:
            await self.channel.ensure_connected()
            return output.broken_off()
        raise_error(answer, str(params.get("cwd", "")))
        return self._parse(lambda: command_result(answer, output))

    def _parse(self, parse: Callable[[], _T]) -> _T:
        """Call `parse`, which converts an answer. End the sandbox if the answer is invalid.

        After an invalid answer, no other answer can be trusted either.
        """
        try:
            return parse()
        except ProtocolError as error:
            raise self.broke_protocol(error) from error

    async def interrupt(self) -> None:
        """See `Sandbox.interrupt`."""
        self.channel.cancel_op("run")

    # ------------------------------------------------------------------------------------------------- files

    @_repeatable
    async def read_file_now(self, path: str, limit: int) -> bytes:
        """See `Sandbox.read_file`."""
        content = Gathered(limit)
        params = {"op": "read", "path": self._path(path), "limit": limit, "timeout": FILE_TIMEOUT}
        answer = await self.channel.call(params, sink=content.take, timeout=FILE_TIMEOUT)
        raise_error(answer, path, limit=limit)
        return content.bytes()

    async def write_file(self, path: str, data: bytes, *, exclusive: bool = False) -> None:
        """See `Sandbox.write_file`. Readers never see a file whose content is only partly written.

        The content is written into a new file, which gets the mode and owner of the old file. Then the new file
        replaces the old file. If a replacement is impossible (hard links, a folder without write permission, a mounted
        file), the old file itself is overwritten, and readers may see a part of the content.
        """
        body = bytes(memoryview(data))
        await self._write(path, len(body), lambda: body, exclusive)

    async def write_from(self, path: str, source: BinaryIO, size: int) -> None:
        """Write the content of the open file `source`, which has `size` bytes, to `path`, like `write_file`.

        This method never holds all bytes in memory.
        """
        await self._write(path, size, lambda: file_pieces(source), False)

    async def _write(self, path: str, size: int, body: Callable[[], Body], exclusive: bool) -> None:
        params = {
            "op": "write",
            "path": self._path(path),
            "size": size,
            "exclusive": exclusive,
            "timeout": FILE_TIMEOUT,
        }
        await self.channel.ensure_connected()
        try:
            answer = await self.channel.call(params, body=body(), timeout=FILE_TIMEOUT)
        except SandboxLostError:
            await self.channel.ensure_connected()
            if exclusive:
                raise OSError(
                    f"The connection broke while {path} was written; check if the file exists."
                ) from None
            answer = await self.channel.call(params, body=body(), timeout=FILE_TIMEOUT)
        raise_error(answer, path)

    @_repeatable
    async def list_files_now(self, path: str, *, depth: int, limit: int) -> list[FileEntry]:
        """See `Sandbox.list_files`."""
        listing = Gathered(MAX_LISTING_BYTES)
        params = {
            "op": "list",
            "path": self._path(path),
            "depth": depth,
            "limit": limit,
            "timeout": FILE_TIMEOUT,
        }
        answer = await self.channel.call(params, sink=listing.take, timeout=FILE_TIMEOUT)
        raise_error(answer, path)
        rows = lines_of(listing.bytes(), limit)
        return self._parse(lambda: sorted((file_entry(row) for row in rows), key=lambda entry: entry.path))

    @_repeatable
    async def upload(self, source: Path | str, target: str) -> list[str]:
        """See `Sandbox.upload`."""
        plan = await asyncio.to_thread(plan_upload, Path(source))
        params = {"op": "unpack", "path": self._path(target), "timeout": TRANSFER_TIMEOUT}
        answer = await self.channel.call(params, body=tree_of(plan), timeout=TRANSFER_TIMEOUT)
        raise_upload_error(answer, target)
        return plan.left_out

    @_repeatable
    async def download(
        self,
        source: str,
        target: Path | str,
        *,
        limit: int = 1024**3,
        kind: TransferKind | None = None,
        replace: bool = True,
    ) -> list[str]:
        """See `Sandbox.download`."""
        params = {"op": "pack", "path": self._path(source), "limit": limit, "timeout": TRANSFER_TIMEOUT}
        with Spool(limit) as spool:
            answer = await self.channel.call(params, sink=spool.take, timeout=TRANSFER_TIMEOUT)
            raise_error(answer, source)
            only = requested_file(source, kind)
            return await asyncio.to_thread(
                receive_tree, spool.content(), Path(target), limit, only, replace=replace
            )

    @_repeatable
    async def changes_now(self) -> Changes:
        """See `Sandbox.changes`."""
        listing = Gathered(MAX_CHANGES_BYTES)
        answer = await self.channel.call(
            {"op": "changes", "timeout": CHANGES_TIMEOUT}, sink=listing.take, timeout=CHANGES_TIMEOUT
        )
        raise_error(answer, self.directories.root)
        # A program in the sandbox may kill the process that lists the changes. So the last line may be incomplete.
        rows = lines_of(listing.bytes().rpartition(b"\n")[0], MAX_CHANGES + 1)
        return self._parse(lambda: changes_of(rows, answer))

    async def renew(self) -> dict[str, str]:
        """Remove state that no checkpoint covers, e.g. background output. Describe all state apart from the files.

        Returns:
            A text for each kind of state, by name. If two calls for the same sandbox return equal texts, the sandbox
            has the same state; `FreshState` compares the texts.
        """
        answer = await self.channel.call({"op": "renew", "timeout": FILE_TIMEOUT}, timeout=FILE_TIMEOUT)
        raise_error(answer, "")
        return self._parse(lambda: texts_by_name(answer, "facts"))

    # ----------------------------------------------------------------------------------------------- history

    async def connect(self) -> ChannelSandbox:
        """See `CheckpointingSandbox.connect`."""
        await self.channel.ensure_connected()
        return self

    async def retrying(self, use: Callable[[ExecutorConnection], Awaitable[_T]]) -> _T:
        """See `CheckpointingSandbox.retrying`."""
        await self.channel.ensure_connected()
        try:
            return await use(self)
        except SandboxLostError:
            await self.channel.ensure_connected()
            return await use(self)

    async def clone(self) -> CheckpointingSandbox:
        """See `CheckpointingSandbox.clone`."""
        if self.start_clone is None:
            raise SandboxError("This sandbox cannot start another sandbox; open one with open_sandbox().")
        return await self.start_clone()

    async def request_files(
        self, params: Mapping[str, Any], sink: Sink | None, timeout: float, body: Body | None = None
    ) -> dict[str, Any]:
        """See `ExecutorConnection.request_files`."""
        return await self.channel.call(params, body=body, sink=sink, timeout=timeout)

    def broke_protocol(self, error: ProtocolError) -> SandboxLostError:
        """See `ExecutorConnection.broke_protocol`."""
        self.channel.fail(f"it broke the protocol: {error}")
        return self.channel.lost or SandboxLostError(str(error))

    # --------------------------------------------------------------------------------------------------- end

    def _was_lost(self, error: SandboxLostError) -> None:
        logger.warning("%s", error)
        self._end()

    def _end(self) -> asyncio.Future[None]:
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._kill())
        return self._ending

    async def close(self) -> None:
        """See `Sandbox.close`. If the calling task is cancelled, the sandbox still ends."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self.network is not None:
            await self.network.close()
        await self.channel.close()
        await asyncio.shield(self._end())
        await self.history.close()


class AdministeredSandbox(ChannelSandbox):
    """A sandbox in which the model is an ordinary user, but `exec` can run commands as any user.

    The first `exec` as a user other than the model's starts a second executor in the sandbox. This executor, called the
    administrator, runs as root inside. No other process in the sandbox can reach it.

    Args:
        own_names: values of `user` in `exec` that mean the model's user: its name or its number.
        administrator: function that starts the administrator. It returns the channel to the administrator, and a
            function that ends the administrator.
    """

    def __init__(
        self,
        *arguments: Any,
        own_names: Sequence[str],
        administrator: Callable[[], Awaitable[tuple[Channel, Callable[[], Awaitable[None]]]]],
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._own_names = frozenset(own_names)
        self._start_administrator = administrator
        self._administrator: ChannelSandbox | None = None
        self._starting = asyncio.Lock()

    async def command(
        self, params: Mapping[str, Any], body: bytes, output: CommandOutput, timeout: float | None
    ) -> CommandResult:
        """See `ChannelSandbox.command`. The administrator runs commands for users other than the model's."""
        if params.get("user") in self._own_names:
            params = {**params, "user": None}
        if params.get("user") is None:
            return await super().command(params, body, output, timeout)
        async with self._starting:
            if self._administrator is None or self._administrator.lost:
                self._administrator = await self._started_administrator()
        return await self._administrator.command(params, body, output, timeout)

    async def _started_administrator(self) -> ChannelSandbox:
        channel, kill = await self._start_administrator()
        administrator = ChannelSandbox(
            channel,
            id=f"{self.id}-administrator",
            directories=self.directories,
            protection=self.protection,
            kill=kill,
            spill="/run/llm-sandbox",
        )
        try:
            await administrator.start()
        except BaseException:
            await administrator.close()
            raise
        return administrator

    async def _close(self) -> None:
        if self._administrator is not None:
            await self._administrator.close()
        await super()._close()
