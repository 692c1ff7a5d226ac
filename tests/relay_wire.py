"""A client of a relay without a WebSocket between."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.protocol.channel import Channel
from llm_sandbox_nb.sandbox.protocol.frames import MESSAGE_LIMIT, Frame, pack, unpack
from llm_sandbox_nb.server.relay import RelayClient


class Wire:
    """Both ends of a client's connection, without the WebSocket: a transport, and what the relay calls."""

    def __init__(self, box: ChannelSandbox) -> None:
        self.closed: tuple[int, str] | None = None
        self.stuck = asyncio.Event()
        self.stuck.set()
        self.used = 0
        self._to_client: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._arrived: deque[Frame] = deque()
        self.client = RelayClient(box.channel, dict(box.executor), self._send, self._hang, self._count)

    def _count(self) -> None:
        self.used += 1

    async def _send(self, message: bytes) -> None:
        assert len(message) <= MESSAGE_LIMIT
        await self.stuck.wait()
        await self._to_client.put(message)

    def _hang(self, code: int, reason: str) -> None:
        self.closed = (code, reason)
        if self._to_client.full():
            self._to_client.get_nowait()
        self._to_client.put_nowait(None)

    async def read_frame(self) -> Frame | None:
        if not self._arrived:
            message = await self._to_client.get()
            if message is None:
                return None
            self._arrived.extend(unpack(message))
        return self._arrived.popleft()

    def write(self, frames: Any) -> None:
        for message in pack(frame.encode() for frame in frames):
            self.client.receive(message)

    def close(self) -> None:
        self.client.leave()

    async def sandbox(self, box: ChannelSandbox) -> ChannelSandbox:
        async def kill() -> None:
            pass

        mine = ChannelSandbox(
            Channel(self), id=box.id, directories=box.directories, protection=box.protection, kill=kill
        )
        await mine.start()
        return mine
