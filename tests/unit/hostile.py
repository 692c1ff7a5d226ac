"""An executor that lies: the other end of a channel, played by a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.contract import Directories, Protection
from llm_sandbox_nb.sandbox.protocol.channel import Channel
from llm_sandbox_nb.sandbox.protocol.frames import Frame, Kind, StreamTransport, json_frame

PROTECTION = Protection("process", "standard", "0", (), False, "none", "open", False, None, None, None)


class Writer:
    """What the host writes goes to the script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.closed = False

    def write(self, data: bytes) -> None:
        self.script.received(data)

    def close(self) -> None:
        self.closed = True


class Script:
    """Greets properly, then answers every other frame with what `reply(frame)` returns."""

    def __init__(self, reply: Callable[[Frame], bytes]) -> None:
        self.reply = reply
        self.reader = asyncio.StreamReader(limit=2**30)
        self.buffer = bytearray()
        self.killed = 0
        self.facts: dict[str, Any] = {}

    def received(self, data: bytes) -> None:
        self.buffer += data
        while len(self.buffer) >= 15:
            length = int.from_bytes(self.buffer[7:11], "big")
            frame = Frame(
                self.buffer[2], int.from_bytes(self.buffer[3:7], "big"), bytes(self.buffer[15 : 15 + length])
            )
            del self.buffer[: 15 + length]
            self.say(self.hello(frame) if frame.kind == Kind.HELLO else self.reply(frame))

    def say(self, data: bytes) -> None:
        if data and not self.reader.at_eof():
            self.reader.feed_data(data)

    def hello(self, frame: Frame) -> bytes:
        return json_frame(
            Kind.HELLO, 0, {"nonce": frame.json()["nonce"], "failed": [], **self.facts}
        ).encode()

    async def kill(self) -> None:
        self.killed += 1

    def sandbox(self, **options: Any) -> ChannelSandbox:
        transport = StreamTransport(self.reader, Writer(self))
        channel = Channel(transport, **options)
        return ChannelSandbox(
            channel, id="hostile", directories=Directories(), protection=PROTECTION, kill=self.kill
        )
