"""What the owner of a sandbox accepts as the listener of its door, and how it serves that."""

from __future__ import annotations

import array
import asyncio
import errno
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import eventually

from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.network import door
from llm_sandbox_nb.sandbox.network.streams import ClosableStream
from llm_sandbox_nb.sandbox.protocol.frames import Kind


class Told:
    """A channel to an executor that does as it is told, or not."""

    lost = None

    async def call(self, params: dict[str, Any], **_: object) -> dict[str, Any]:
        assert params == {"op": "hand_out"}
        return {}


CHANNEL: Any = Told()


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        monkeypatch.setattr(door, "DOOR_PORT", found.getsockname()[1])
        yield found


def sent(*numbers: int) -> socket.socket:
    outside, inside = socket.socketpair()
    with inside:
        if numbers:
            inside.sendmsg([b"d"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", numbers))])
    return outside


async def echo(client: ClosableStream) -> None:
    await client.write(await client.read())
    await client.close()


def test_the_door_itself_is_served(listener: socket.socket) -> None:
    async def whole() -> None:
        with sent(listener.fileno()) as outside:
            taken = await door.take_listener(CHANNEL, outside)
        served = door.Door(CHANNEL, echo, listener=taken, at_once=2)
        address = listener.getsockname()
        listener.close()
        for _ in range(5):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"hello")
            writer.write_eof()
            assert await reader.read() == b"hello"
            writer.close()
        assert served.closed == ""
        await served.close()
        assert served.closed
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)

    asyncio.run(whole())


def test_something_else_is_refused_and_closed(listener: socket.socket, tmp_path: Path) -> None:
    other = socket.create_server(("127.0.0.1", 0))
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    connected = socket.create_connection(listener.getsockname())
    local, _peer = socket.socketpair()
    file = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    kinds = [
        (),
        (file,),
        (other.fileno(),),
        (datagrams.fileno(),),
        (connected.fileno(),),
        (local.fileno(),),
    ]

    async def refused(numbers: tuple[int, ...]) -> None:
        with sent(*numbers) as outside, pytest.raises(SandboxError, match="something other"):
            await door.take_listener(CHANNEL, outside)

    def open_files() -> int:
        return len([*Path("/proc/self/fd").iterdir()])

    before = open_files()
    for numbers in kinds:
        asyncio.run(refused(numbers))
    assert open_files() == before
    for one in (other, datagrams, connected, local, _peer):
        one.close()
    os.close(file)


def test_more_than_it_serves_at_once_wait(listener: socket.socket) -> None:
    serving, most = 0, 0
    gate = asyncio.Event()

    async def hold(client: ClosableStream) -> None:
        nonlocal serving, most
        serving += 1
        most = max(most, serving)
        await gate.wait()
        serving -= 1

    async def whole() -> None:
        with sent(listener.fileno()) as outside:
            served = door.Door(CHANNEL, hold, listener=await door.take_listener(CHANNEL, outside), at_once=3)
        waiting = [await asyncio.open_connection(*listener.getsockname()) for _ in range(10)]
        await eventually(lambda: serving == 3)
        gate.set()
        for reader, writer in waiting:
            assert await reader.read() == b""
            writer.close()
        await served.close()

    asyncio.run(whole())
    assert most == 3


@pytest.mark.parametrize("at_once", [1, 2])
def test_as_many_are_served_as_the_limit_says_before_another_one_connects(
    listener: socket.socket, at_once: int
) -> None:
    async def whole() -> None:
        with sent(listener.fileno()) as outside:
            taken = await door.take_listener(CHANNEL, outside)
        served = door.Door(CHANNEL, echo, listener=taken, at_once=at_once)
        programs = [await asyncio.open_connection(*listener.getsockname()) for _ in range(at_once)]
        for reader, writer in reversed(programs):
            writer.write(b"hello")
            writer.write_eof()
            assert await reader.read() == b"hello"
            writer.close()
        await served.close()

    asyncio.run(whole())


class Forwarding:
    """A channel whose executor has a program for each of the first `programs` requests."""

    lost = None

    def __init__(self, programs: int) -> None:
        self.programs, self.requests = programs, 0

    async def call(self, params: dict[str, Any], *, body: object, sink: Any) -> dict[str, Any]:
        assert params == {"op": "connection"}
        self.requests += 1
        if self.requests <= self.programs:
            sink(Kind.STDERR, b"begun")
        await asyncio.Event().wait()
        raise AssertionError


def test_a_limit_of_forwarded_connections_counts_their_requests() -> None:
    """A server limits requests, so requests that wait for a program count too."""
    serving: list[ClosableStream] = []

    async def hold(client: ClosableStream) -> None:
        serving.append(client)
        await asyncio.Event().wait()

    async def whole() -> None:
        channel: Any = Forwarding(programs=3)
        served = door.Door(channel, hold, at_once=3)
        await eventually(lambda: len(serving) == 3)
        assert channel.requests == 3
        await served.close()

    asyncio.run(whole())


async def opened_door(listener: socket.socket) -> door.Door:
    """A door that sends each program what it said."""
    with sent(listener.fileno()) as outside:
        return door.Door(CHANNEL, echo, listener=await door.take_listener(CHANNEL, outside))


@pytest.mark.parametrize(
    "number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED]
)
def test_an_error_that_passes_leaves_the_door_open(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(door, "_PAUSE", 0)

    async def whole() -> None:
        errors, accept = [OSError(number, os.strerror(number))] * 3, socket.socket.accept

        def accept_later(listening: socket.socket) -> tuple[socket.socket, Any]:
            if errors:
                raise errors.pop()
            return accept(listening)

        monkeypatch.setattr(socket.socket, "accept", accept_later)
        served = await opened_door(listener)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"hello")
        writer.write_eof()
        assert await reader.read() == b"hello"
        writer.close()
        assert errors == []
        assert served.closed == ""
        await served.close()

    asyncio.run(whole())


def test_a_sandbox_that_makes_its_listener_block_stops_only_its_own_network(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sandbox has kept the socket: it changes its mode, and then takes a connection before the host does."""
    stolen, accept = threading.Event(), socket.socket.accept
    ended = threading.Event()

    def accept_after_the_sandbox(listening: socket.socket) -> tuple[socket.socket, Any]:
        accept(listener)[0].close()
        stolen.set()
        return accept(listening)

    async def whole() -> None:
        served = await opened_door(listener)
        listener.setblocking(True)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"hello")
        writer.write_eof()
        assert await reader.read() == b"hello"
        writer.close()
        monkeypatch.setattr(socket.socket, "accept", accept_after_the_sandbox)
        _, writer = await asyncio.open_connection(*listener.getsockname())
        await eventually(stolen.is_set)
        writer.close()
        await served.close()
        ended.set()

    threading.Thread(target=lambda: asyncio.run(whole()), daemon=True).start()
    assert ended.wait(60)


def test_a_listener_that_fails_for_good_is_the_reason_of_the_closed_door(listener: socket.socket) -> None:
    async def whole() -> None:
        served = await opened_door(listener)
        listener.shutdown(socket.SHUT_RDWR)
        await eventually(lambda: served.closed == "its listener failed (Invalid argument)")
        await served.close()
        assert served.closed == "its listener failed (Invalid argument)"

    asyncio.run(whole())
