"""A sandbox whose model is an ordinary user, with an administrator beside it for `exec(user=...)`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.contract import DEFAULT_TIMEOUT, OUTPUT_LIMIT, CommandResult, OutputCallback


class AdministeredSandbox(ChannelSandbox):
    """What the model does has the rights of its user. Who holds this object may also act as another user.

    For that, a second executor, root inside, is started into the sandbox at the first `exec` with a `user`
    that is not the model's own. Nothing inside can reach it.

    Args:
        own_names: the model's user, by name and number.
        administrator: starts the second executor.
    """

    def __init__(
        self,
        *arguments: Any,
        own_names: Sequence[str],
        administrator: Callable[[], Awaitable[ChannelSandbox]],
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._own_names = frozenset(own_names)
        self._start_administrator = administrator
        self._administrator: ChannelSandbox | None = None
        self._starting = asyncio.Lock()

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
        own = user is None or user in self._own_names
        return await (super().exec if own else (await self._find_administrator()).exec)(
            argv,
            stdin=stdin,
            cwd=cwd,
            env=env,
            user=None if own else user,
            timeout=timeout,
            on_output=on_output,
            output_limit=output_limit,
        )

    async def _find_administrator(self) -> ChannelSandbox:
        async with self._starting:
            if self._administrator is None or self._administrator.lost:
                self._administrator = await self._start_administrator()
            return self._administrator

    async def close(self) -> None:
        """See `Sandbox.close`."""
        if self._administrator is not None:
            await self._administrator.close()
        await super().close()
