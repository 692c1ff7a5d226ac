"""The whole sandbox contract over a channel to an executor. Isolations differ only in how that is started."""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from llm_sandbox_nb.sandbox.body import Body
from llm_sandbox_nb.sandbox.channel import Channel, Sink
from llm_sandbox_nb.sandbox.contract import (
    DEFAULT_TIMEOUT,
    OUTPUT_LIMIT,
    Changes,
    CommandResult,
    Directories,
    FileEntry,
    OutputCallback,
    Protection,
)
from llm_sandbox_nb.sandbox.errors import SandboxError, SandboxLostError
from llm_sandbox_nb.sandbox.frames import ProtocolError
from llm_sandbox_nb.sandbox.history.box import KeptSandbox, new_keeper
from llm_sandbox_nb.sandbox.history.link import Deliver, Link
from llm_sandbox_nb.sandbox.outcome import (
    CommandOutput,
    Gathered,
    changes_of,
    command_result,
    file_entry,
    raise_error,
    raise_upload_error,
)
from llm_sandbox_nb.sandbox.receive import Spool, receive_tree
from llm_sandbox_nb.sandbox.transfer import plan_upload, tree_of

FILE_TIMEOUT = 600.0
"""Seconds after which a file operation inside the sandbox is given up."""
TRANSFER_TIMEOUT = 3600.0
CHANGES_TIMEOUT = 30.0
CHANGES_CAP = 64 * 1024 * 1024
LISTING_CAP = 64 * 1024 * 1024
SPILL = "/tmp/llm-sandbox"

logger = logging.getLogger(__name__)
_T = TypeVar("_T")


class ChannelSandbox(KeptSandbox):
    """A sandbox whose executor answers on `channel`.

    Args:
        channel: not yet greeted; `start` does that.
        id: unique among sandboxes.
        directories: made inside by `start`.
        protection: what is in force.
        kill: ends the sandbox from the outside and removes it; called once, at the end or when it is lost.
        spill: folder inside for the full output of commands that wrote too much.
        hello: more to tell the executor, e.g. `history`, the only folder whose history is kept.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        id: str,
        directories: Directories,
        protection: Protection,
        kill: Callable[[], Awaitable[None]],
        spill: str = SPILL,
        hello: Mapping[str, Any] | None = None,
    ) -> None:
        self.channel = channel
        self.id = id
        self.directories = directories
        self.protection = protection
        self.executor: Mapping[str, Any] = {}
        """What the executor says of itself: version, python, pid, uid."""
        self.deliver: Deliver | None = None
        """See `Link.deliver`."""
        self.start_sibling: Callable[[], Awaitable[KeptSandbox]] | None = None
        """Starts another sandbox like this one; set by who opens sandboxes."""
        self.keeper = new_keeper(protection, directories.root)
        self._kill = kill
        self._spill = spill
        self._hello = dict(hello or {})
        self._shell = asyncio.Lock()
        self._ending: asyncio.Task[None] | None = None
        channel.on_lost = self._was_lost

    async def start(self, *, adopt: bool = False, timeout: float = 30.0) -> None:
        """Greet the executor and make the directories, in one round trip.

        Args:
            adopt: the executor may have had another owner.
            timeout: seconds.

        Raises:
            SandboxLostError: no answer.
            SandboxError: a directory cannot be made.
        """
        where = self.directories
        hello = {
            "cwd": where.root,
            "directories": [where.root, where.input, where.documents, where.output],
            "spill": self._spill,
            **self._hello,
        }
        self.executor = await self.channel.hello(hello, adopt=adopt, timeout=timeout)
        failed = self.executor.get("failed")
        if failed:
            await self.close()
            raise SandboxError(f"The sandbox cannot make its directories below {where.root}: {failed[0]}.")

    @property
    def lost(self) -> SandboxLostError | None:
        """Why the sandbox is no more, if so."""
        return self.channel.lost

    async def _call(self, params: Mapping[str, Any], **rest: Any) -> dict[str, Any]:
        """A request; an answer that makes no sense is a lost sandbox."""
        return await self.channel.call(params, **rest)

    def _path(self, path: str) -> str:
        if "\0" in path:
            raise ValueError("A path cannot hold a NUL byte.")
        return posixpath.join(self.directories.root, path)

    # ---------------------------------------------------------------------------------------------- commands

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
        if "\0" in command:
            raise ValueError("A command cannot hold a NUL byte: bash cannot take it.")
        output = CommandOutput(output_limit, on_output)
        params = {
            "op": "run",
            "timeout": timeout,
            "output_limit": output_limit,
            "kill_background": kill_background,
        }
        async with self._shell:
            return await self._command(params, command.encode("utf-8", "surrogateescape"), output, timeout)

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
        if isinstance(argv, str) or not argv:
            raise ValueError("argv must be a list of at least one string.")
        if any("\0" in word for word in [*argv, *(env or {}), *(env or {}).values()]):
            raise ValueError("An argument or environment variable cannot hold a NUL byte.")
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
        return await self._command(params, stdin, output, timeout)

    async def _command(
        self, params: Mapping[str, Any], body: bytes, output: CommandOutput, timeout: float | None
    ) -> CommandResult:
        answer = await self._call(params, body=body, sink=output.take, timeout=timeout)
        raise_error(answer, str(params.get("cwd", "")))
        return self._trusting(lambda: command_result(answer, output))

    def _trusting(self, parse: Callable[[], _T]) -> _T:
        try:
            return parse()
        except ProtocolError as error:
            raise self.broke_protocol(error) from error

    async def interrupt(self) -> None:
        """See `Sandbox.interrupt`."""
        self.channel.cancel_op("run")

    # ------------------------------------------------------------------------------------------------- files

    async def read_file_now(self, path: str, limit: int) -> bytes:
        """See `Sandbox.read_file`."""
        content = Gathered(limit)
        params = {"op": "read", "path": self._path(path), "limit": limit, "timeout": FILE_TIMEOUT}
        answer = await self._call(params, sink=content.take, timeout=FILE_TIMEOUT)
        raise_error(answer, path, limit=limit)
        return content.bytes()

    async def write_file(self, path: str, data: bytes, *, exclusive: bool = False) -> None:
        """See `Sandbox.write_file`. A reader never sees half a file.

        The new file is written beside the old one and takes its place, with its mode and owner. Only where
        that cannot be (it has hard links, its folder takes no new file, it is mounted) it is overwritten
        where it is.
        """
        params = {
            "op": "write",
            "path": self._path(path),
            "size": len(data),
            "exclusive": exclusive,
            "timeout": FILE_TIMEOUT,
        }
        answer = await self._call(params, body=bytes(memoryview(data)), timeout=FILE_TIMEOUT)
        raise_error(answer, path)

    async def list_files_now(self, path: str, *, depth: int, limit: int) -> list[FileEntry]:
        """See `Sandbox.list_files`."""
        listing = Gathered(LISTING_CAP)
        params = {
            "op": "list",
            "path": self._path(path),
            "depth": depth,
            "limit": limit,
            "timeout": FILE_TIMEOUT,
        }
        answer = await self._call(params, sink=listing.take, timeout=FILE_TIMEOUT)
        raise_error(answer, path)
        rows = listing.bytes().splitlines()[:limit]
        return self._trusting(lambda: sorted((file_entry(row) for row in rows), key=lambda entry: entry.path))

    async def upload(self, source: Path | str, target: str) -> None:
        """See `Sandbox.upload`."""
        plan = await asyncio.to_thread(plan_upload, Path(source))
        params = {"op": "unpack", "path": self._path(target), "timeout": TRANSFER_TIMEOUT}
        answer = await self._call(params, body=tree_of(plan), timeout=TRANSFER_TIMEOUT)
        raise_upload_error(answer, target)

    async def download(self, source: str, target: Path | str, *, limit: int = 1024**3) -> list[str]:
        """See `Sandbox.download`."""
        params = {"op": "pack", "path": self._path(source), "limit": limit, "timeout": TRANSFER_TIMEOUT}
        with Spool(limit) as spool:
            answer = await self._call(params, sink=spool.take, timeout=TRANSFER_TIMEOUT)
            raise_error(answer, source)
            return await asyncio.to_thread(receive_tree, spool.content(), Path(target), limit)

    async def changes_now(self) -> Changes:
        """See `Sandbox.changes`."""
        told = Gathered(CHANGES_CAP)
        answer = await self._call(
            {"op": "changes", "timeout": CHANGES_TIMEOUT}, sink=told.take, timeout=CHANGES_TIMEOUT
        )
        raise_error(answer, self.directories.root)
        rows = told.bytes().splitlines()
        return self._trusting(lambda: changes_of(rows, answer))

    # ----------------------------------------------------------------------------------------------- history

    async def reach(self) -> ChannelSandbox:
        """See `KeptSandbox.reach`: a connection that is lost is the sandbox's end."""
        return self

    async def again(self, use: Callable[[Link], Awaitable[_T]]) -> _T:
        """See `KeptSandbox.again`."""
        return await use(self)

    async def sibling(self) -> KeptSandbox:
        """See `KeptSandbox.sibling`."""
        if self.start_sibling is None:
            raise SandboxError(
                "This sandbox does not know how to start another; open it with open_sandbox()."
            )
        return await self.start_sibling()

    async def ask_files(
        self,
        params: Mapping[str, Any],
        sink: Sink | None,
        timeout: float,
        body: Body | None = None,
    ) -> dict[str, Any]:
        """See `Link.ask_files`."""
        return await self._call(params, body=body, sink=sink, timeout=timeout)

    def broke_protocol(self, error: ProtocolError) -> SandboxLostError:
        """See `Link.broke_protocol`."""
        self.channel.fail(f"it broke the protocol: {error}")
        return self.channel.lost or SandboxLostError(str(error))

    # --------------------------------------------------------------------------------------------------- end

    def _was_lost(self, error: SandboxLostError) -> None:
        logger.warning("%s", error)
        self._end()

    def _end(self) -> asyncio.Task[None]:
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._kill_once())
        return self._ending

    async def _kill_once(self) -> None:
        await self._kill()

    async def close(self) -> None:
        """See `Sandbox.close`."""
        await self.channel.close()
        await asyncio.shield(self._end())
        await self.keeper.close()
