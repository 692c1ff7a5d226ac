"""An executor that lies: the other end of a channel, played by a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from support import run
from virtual_time import run_in_virtual_time

from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.contract import Directories, Protection
from llm_sandbox_nb.sandbox.protocol.channel import Channel
from llm_sandbox_nb.sandbox.protocol.frames import MAX_PAYLOAD, Frame, Kind, StreamTransport, json_frame

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
        self.kinds: list[int] = []
        """The kinds of all frames that came."""

    def received(self, data: bytes) -> None:
        self.buffer += data
        while len(self.buffer) >= 15:
            length = int.from_bytes(self.buffer[7:11], "big")
            frame = Frame(
                self.buffer[2], int.from_bytes(self.buffer[3:7], "big"), bytes(self.buffer[15 : 15 + length])
            )
            del self.buffer[: 15 + length]
            self.kinds.append(frame.kind)
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


def silent(frame: Frame) -> bytes:
    """Answer nothing."""
    return b""


def at_end(make: Callable[[int], bytes]) -> Callable[[Frame], bytes]:
    """Answer the end of a request's body, or a request without one, with `make(number)`."""

    def reply(frame: Frame) -> bytes:
        complete = frame.kind == Kind.END or (frame.kind == Kind.REQUEST and not frame.json().get("body"))
        return make(frame.request) if complete else b""

    return reply


def answer(number: int, outcome: object, output: bytes = b"") -> bytes:
    pieces = [output[at : at + MAX_PAYLOAD] for at in range(0, len(output), MAX_PAYLOAD)]
    frames = [Frame(Kind.STDOUT, number, piece) for piece in pieces]
    return b"".join(frame.encode() for frame in [*frames, json_frame(Kind.RESPONSE, number, outcome)])


@asynccontextmanager
async def opened(script: Script, **options: Any) -> AsyncIterator[ChannelSandbox]:
    box = script.sandbox(**options)
    await box.start()
    try:
        yield box
    finally:
        await box.close()


def meet(
    make: Callable[[], Script], body: Callable[[ChannelSandbox, Script], Awaitable[None]], **options: Any
) -> Script:
    """Open the sandbox of a script, and let `body` use it."""

    async def whole() -> Script:
        script = make()
        async with opened(script, **options) as box:
            await body(box, script)
        return script

    return run(whole())


def wait_for(body: Callable[[Script], Awaitable[None]], make: Callable[[], Script]) -> tuple[Script, float]:
    """Run a body that waits for a script, in virtual time; returns the script and the virtual seconds."""

    async def whole() -> Script:
        script = make()
        async with asyncio.timeout(10_000):
            await body(script)
        return script

    return run_in_virtual_time(whole())
