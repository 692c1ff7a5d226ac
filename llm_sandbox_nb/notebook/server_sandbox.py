"""A sandbox that the Jupyter server keeps, as this kernel uses it: the whole contract over a WebSocket.

The connection may break while the sandbox lives on, for instance when the server is restarted and adopts it.
Then it is made again; a command that was under way has been ended and is told as interrupted, everything else
is asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from llm_sandbox_nb.notebook.server_address import ServerAddress
from llm_sandbox_nb.notebook.server_requests import START_TIMEOUT, ask_server
from llm_sandbox_nb.notebook.server_transport import ServerUnreachableError, WebSocketTransport
from llm_sandbox_nb.sandbox.channel import LEASE, Channel
from llm_sandbox_nb.sandbox.channel_sandbox import ChannelSandbox
from llm_sandbox_nb.sandbox.contract import (
    DEFAULT_TIMEOUT,
    OUTPUT_LIMIT,
    Changes,
    CommandResult,
    Directories,
    FileEntry,
    OutputCallback,
    Protection,
    StreamName,
)
from llm_sandbox_nb.sandbox.errors import SandboxError, SandboxLostError
from llm_sandbox_nb.sandbox.history.box import KeptSandbox, new_keeper

T = TypeVar("T")
_RETRY_FIRST, _RETRY_MOST = 0.1, 2.0
_BROKEN = (
    "The connection to the Jupyter server broke during this command, which was ended; it is back, and the "
    "sandbox with its files is as it was."
)


class ServerSandbox(KeptSandbox):
    """See `Sandbox`. Closing it lets go of the connection; the server keeps the sandbox."""

    def __init__(
        self,
        address: ServerAddress,
        model: Mapping[str, Any],
        *,
        patience: float = LEASE,
        own: bool = False,
    ) -> None:
        """`model` is what the server says of it; `patience` the seconds for which the server may be away.

        An `own` one, such as a fork, is ended by `close`; of others only the connection is.
        """
        self.server_id: str = model["id"]
        self.id = str(model["sandbox_id"])
        self.directories = Directories(model["root"])
        self.protection = _protection(model["protection"])
        self.keeper = new_keeper(self.protection, self.directories.root)
        self._own = own
        self._address = address
        self._patience = patience
        self._connecting = asyncio.Lock()
        self._box: ChannelSandbox | None = None
        self._transport: WebSocketTransport | None = None
        self._closed = False

    @property
    def lost(self) -> SandboxLostError | None:
        """Why the sandbox is no more, when the server has said so or it was closed here."""
        if self._closed:
            return SandboxLostError("The sandbox was let go of; ask for it again.")
        ended = self._transport.ended if self._transport else None
        return SandboxLostError(f"The sandbox is lost. {ended}") if ended else None

    async def connect(self) -> ChannelSandbox:
        """The sandbox over a living connection, which is made again as long as the server may come back.

        Raises:
            SandboxLostError: the sandbox is gone, or the server stays away.
        """
        async with self._connecting:
            if self.lost:
                raise self.lost
            if self._box is None or self._box.lost:
                self._box = await self._connect_patiently()
            return self._box

    async def _connect_patiently(self) -> ChannelSandbox:
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + self._patience, _RETRY_FIRST
        while True:
            try:
                return await self._connect_once()
            except ServerUnreachableError as error:
                if loop.time() + pause > deadline:
                    raise SandboxLostError(
                        f"The Jupyter server at {self._address.url} has not answered for {self._patience:g} "
                        f"seconds, so the sandbox is lost ({error}); restart the server and this kernel."
                    ) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, _RETRY_MOST)

    async def _connect_once(self) -> ChannelSandbox:
        transport = await WebSocketTransport.connect(self._address, self.server_id)
        channel = Channel(transport)
        channel.why_ended = lambda: transport.ended or "the connection to the Jupyter server broke"
        box = ChannelSandbox(
            channel,
            id=self.id,
            directories=self.directories,
            protection=self.protection,
            kill=_nothing_to_kill,
        )
        channel.on_lost = None  # that a connection broke is no news until something is asked
        self._transport = transport
        try:
            await box.start()
        except SandboxLostError as error:
            if transport.ended:
                raise SandboxLostError(f"The sandbox is lost. {transport.ended}") from error
            raise ServerUnreachableError(str(error)) from error
        return box

    async def reach(self) -> ChannelSandbox:
        """See `KeptSandbox.reach`."""
        return await self.connect()

    async def sibling(self) -> ServerSandbox:
        """See `KeptSandbox.sibling`: the server starts it, under its policy, and ends it with this kernel."""
        _, model = await ask_server(
            self._address, f"sandboxes/{self.server_id}/fork", "POST", {}, timeout=START_TIMEOUT
        )
        sandbox = ServerSandbox(self._address, model, patience=self._patience, own=True)
        try:
            await sandbox.connect()
        except BaseException:
            await asyncio.shield(sandbox.close())
            raise
        return sandbox

    async def again(self, use: Callable[[ChannelSandbox], Awaitable[T]]) -> T:
        """Do something that may be done twice; once more when the connection breaks meanwhile."""
        box = await self.connect()
        try:
            return await use(box)
        except SandboxLostError:
            return await use(await self.connect())

    async def _once(
        self,
        use: Callable[[ChannelSandbox, OutputCallback], Awaitable[CommandResult]],
        on_output: OutputCallback | None,
        output_limit: int,
    ) -> CommandResult:
        """Do something that must not be done twice; if the connection breaks, what has come is the result."""
        box, so_far = await self.connect(), _SoFar(on_output, output_limit)
        try:
            return await use(box, so_far.take)
        except SandboxLostError:
            await self.connect()
        return so_far.result()

    async def run(
        self,
        command: str,
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        on_output: OutputCallback | None = None,
        kill_background: bool = False,
        output_limit: int = OUTPUT_LIMIT,
    ) -> CommandResult:
        """See `Sandbox.run`."""
        return await self._once(
            lambda box, take: box.run(
                command,
                timeout=timeout,
                on_output=take,
                kill_background=kill_background,
                output_limit=output_limit,
            ),
            on_output,
            output_limit,
        )

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
        """See `Sandbox.exec`."""
        return await self._once(
            lambda box, take: box.exec(
                argv,
                stdin=stdin,
                cwd=cwd,
                env=env,
                user=user,
                timeout=timeout,
                on_output=take,
                output_limit=output_limit,
            ),
            on_output,
            output_limit,
        )

    async def interrupt(self) -> None:
        """See `Sandbox.interrupt`; when the connection is broken, so is the command."""
        if self._box is not None and not self._box.lost:
            await self._box.interrupt()

    async def read_file_now(self, path: str, limit: int) -> bytes:
        """See `Sandbox.read_file`."""
        return await self.again(lambda box: box.read_file_now(path, limit))

    async def write_file(self, path: str, data: bytes, *, exclusive: bool = False) -> None:
        """See `Sandbox.write_file`.

        Raises:
            OSError: the connection broke during an `exclusive` write, which cannot be asked again.
        """
        if not exclusive:
            return await self.again(lambda box: box.write_file(path, data))
        box = await self.connect()
        try:
            await box.write_file(path, data, exclusive=True)
        except SandboxLostError:
            await self.connect()
            raise OSError(f"The connection broke while {path} was made; see whether it is there.") from None

    async def list_files_now(self, path: str, *, depth: int, limit: int) -> list[FileEntry]:
        """See `Sandbox.list_files`."""
        return await self.again(lambda box: box.list_files_now(path, depth=depth, limit=limit))

    async def upload(self, source: Path | str, target: str) -> None:
        """See `Sandbox.upload`."""
        await self.again(lambda box: box.upload(source, target))

    async def download(self, source: str, target: Path | str, *, limit: int = 1024**3) -> list[str]:
        """See `Sandbox.download`."""
        return await self.again(lambda box: box.download(source, target, limit=limit))

    async def changes_now(self) -> Changes:
        """See `Sandbox.changes`."""
        return await self.again(lambda box: box.changes_now())

    async def close(self) -> None:
        """Let go of the connection; the sandbox stays with the server, unless it is this object's own."""
        closed, self._closed = self._closed, True
        if self._box is not None:
            await self._box.close()
        await self.keeper.close()
        if self._own and not closed:
            with contextlib.suppress(
                SandboxError
            ):  # the server ends it by itself, at the latest with this kernel
                await ask_server(self._address, f"sandboxes/{self.server_id}", "DELETE")


class _SoFar:
    """The output of a command as far as it has come, in case nothing more comes."""

    def __init__(self, on_output: OutputCallback | None, limit: int) -> None:
        self._on_output = on_output
        self._limit = limit
        self._kept: dict[StreamName, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._seen: dict[StreamName, int] = {"stdout": 0, "stderr": 0}

    def take(self, stream: StreamName, data: bytes) -> None:
        """A piece of output has come."""
        self._seen[stream] += len(data)
        kept = self._kept[stream]
        kept += data[: self._limit - len(kept)]
        if self._on_output is not None:
            self._on_output(stream, data)

    def result(self) -> CommandResult:
        """The outcome of the command that was cut off."""
        seen, kept = self._seen, self._kept
        return CommandResult(
            exit_code=None,
            stdout=bytes(kept["stdout"]),
            stderr=bytes(kept["stderr"]),
            interrupted=True,
            truncated=any(seen[name] > len(kept[name]) for name in kept),
            stdout_bytes=seen["stdout"],
            stderr_bytes=seen["stderr"],
            notice=_BROKEN,
        )


async def _nothing_to_kill() -> None:
    """The server ends the sandbox, not this kernel."""


def _protection(data: Mapping[str, Any]) -> Protection:
    known = {field.name for field in fields(Protection)}
    values = {name: value for name, value in data.items() if name in known}
    return Protection(**{**values, "capabilities": tuple(values.get("capabilities", ()))})
