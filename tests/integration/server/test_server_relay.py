"""The relay between clients and one real sandbox: ids, bounds, back-pressure, and clients that go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from relay_wire import Wire
from support import PATIENCE, eventually, own_mark, processes_with, run

from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.open import open_sandbox
from llm_sandbox_nb.sandbox.protocol.frames import (
    HEADER,
    MAX_PAYLOAD,
    SANDBOX_ENDED,
    WINDOW,
    Frame,
    Kind,
    ProtocolError,
    json_frame,
    pack,
    unpack,
)
from llm_sandbox_nb.server import relay

Body = Callable[..., Awaitable[None]]


def relayed(body: Body, timeout: float = 60) -> None:
    """Run `body(box)` with a sandbox; clients that it leaves are dismissed before that is closed."""

    async def go() -> None:
        async with open_sandbox("process") as box:
            await body(box)

    run(go(), timeout)


def test_many_clients_have_their_own_numbers() -> None:
    async def body(box: ChannelSandbox) -> None:
        clients = [await Wire(box).sandbox(box) for _ in range(5)]
        results = await asyncio.gather(
            *(
                client.exec(["bash", "-c", f"cat; echo {number}"], stdin=b"x" * 100_000)
                for number, client in enumerate(clients)
                for _ in range(3)
            )
        )
        assert [result.stdout[-2:] for result in results] == [b"%d\n" % n for n in range(5) for _ in range(3)]
        assert all(result.stdout_bytes == 100_002 for result in results)
        await clients[0].run("cd /; export SHARED=1")
        assert (await clients[1].run("echo $SHARED; pwd")).stdout == b"1\n/\n"
        for client in clients:
            await client.close()
        assert (await box.run("echo still here")).stdout == b"still here\n"

    relayed(body)


def test_large_files_both_ways() -> None:
    async def body(box: ChannelSandbox) -> None:
        client = await Wire(box).sandbox(box)
        data = bytes(range(256)) * 4096 * 30  # 30 MiB
        await client.write_file("big", data)
        assert await client.read_file("big") == data
        assert await box.read_file("big") == data
        await client.close()

    relayed(body)


def test_a_client_that_goes_has_its_requests_cancelled_and_no_others() -> None:
    async def body(box: ChannelSandbox) -> None:
        wire = Wire(box)
        going, staying = await wire.sandbox(box), await Wire(box).sandbox(box)
        mark, go = own_mark(), "until [ -e go ]; do sleep 0.05; done; echo done"
        lost = asyncio.create_task(going.exec(["sleep", mark]))
        kept = asyncio.create_task(staying.exec(["bash", "-c", go]))
        await eventually(lambda: processes_with(mark) and wire.client.requests == 1)
        wire.client.leave()
        with pytest.raises(Exception, match="lost"):
            await lost
        await eventually(lambda: not processes_with(mark))
        await box.write_file("go", b"")
        assert (await kept).stdout == b"done\n"
        await staying.close()

    relayed(body)


def test_interrupting_and_cancelling_reach_the_sandbox() -> None:
    async def body(box: ChannelSandbox) -> None:
        client = await Wire(box).sandbox(box)
        mark = own_mark()

        async def begun() -> asyncio.Task[Any]:
            began = asyncio.Event()
            command = f"echo begun; sleep {mark}"
            running = asyncio.create_task(client.run(command, on_output=lambda *_: began.set()))
            await began.wait()
            await eventually(lambda: processes_with(mark))
            return running

        running = await begun()
        await client.interrupt()
        result = await running
        assert result.interrupted
        assert result.stdout == b"begun\n"
        await eventually(lambda: not processes_with(mark))
        cancelled = await begun()
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await eventually(lambda: not processes_with(mark))
        assert (await client.run("echo next")).stdout == b"next\n"
        await client.close()

    relayed(body)


def test_a_slow_client_holds_the_sandbox_back_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "MAX_STALL_SECONDS", PATIENCE)

    async def body(box: ChannelSandbox) -> None:
        wire = Wire(box)
        client = await wire.sandbox(box)
        await box.run("head -c 60000000 /dev/zero > zeros")
        wire.stuck.clear()
        reading = asyncio.create_task(client.read_file("zeros"))
        await eventually(lambda: wire.client._queued > relay.QUEUE_HIGH)
        later = asyncio.create_task(box.run("touch done; echo goes on"))
        await eventually((Path(box.directories.root) / "done").exists)
        assert not later.done(), "the sandbox works, and what it says is not taken"
        assert wire.client._queued < relay.QUEUE_HIGH + 64 * MAX_PAYLOAD
        wire.stuck.set()
        assert len(await reading) == 60_000_000
        assert (await later).stdout == b"goes on\n"
        await client.close()

    relayed(body)


def test_a_client_that_takes_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "MAX_STALL_SECONDS", 0.5)

    async def body(box: ChannelSandbox) -> None:
        wire = Wire(box)
        client = await wire.sandbox(box)
        await box.run("head -c 60000000 /dev/zero > zeros")
        wire.stuck.clear()
        reading = asyncio.create_task(client.read_file("zeros"))
        await eventually(lambda: wire.closed is not None)
        assert wire.closed is not None
        assert wire.closed[0] == relay.TOO_SLOW
        assert (await box.run("echo goes on")).stdout == b"goes on\n"
        with pytest.raises(Exception, match="lost"):
            await reading

    relayed(body)


HOSTILE = {
    "no frame": b"hello",
    "text": "hello",
    "empty": b"",
    "half a frame": Frame(Kind.PING).encode()[:-1],
    "damaged": Frame(Kind.PING).encode()[:-1] + b"\xff",
    "claims too much": HEADER.pack(b"LS", Kind.DATA, 1, MAX_PAYLOAD + 1, 0),
    "too large": Frame(Kind.DATA, 9, bytes(MAX_PAYLOAD)).encode() * 5,
    "the executor's own kind": Frame(Kind.RESPONSE, 1, b"{}").encode(),
    "unknown kind": Frame(77, 1, b"").encode(),
    "request that is no JSON": Frame(Kind.REQUEST, 1, b"{").encode(),
    "request that is no object": Frame(Kind.REQUEST, 1, b"[1]").encode(),
    "deep JSON": Frame(Kind.REQUEST, 1, b"[" * 60_000).encode(),
    "number in use": json_frame(Kind.REQUEST, 1, {"op": "exec", "body": True}).encode() * 2,
}


def test_a_client_that_breaks_the_protocol_is_dropped() -> None:
    async def body(box: ChannelSandbox) -> None:
        for name, message in HOSTILE.items():
            wire = Wire(box)
            wire.client.receive(message)  # type: ignore[arg-type]
            assert wire.closed is not None, name
            assert wire.closed[0] == relay.BROKE_PROTOCOL, name
            assert len(wire.closed[1].encode()) <= 123, name
            assert (await box.run("echo goes on")).stdout == b"goes on\n", name
        wire = Wire(box)
        frames = [json_frame(Kind.REQUEST, 1, {"op": "exec", "body": True})]
        wire.write(frames + [Frame(Kind.DATA, 1, bytes(MAX_PAYLOAD))] * (WINDOW // MAX_PAYLOAD + 1))
        assert wire.closed is not None, "more than the window"
        assert wire.closed[0] == relay.BROKE_PROTOCOL

    relayed(body)


VALID: dict[str, dict[str, Any]] = {
    "run": {"output_limit": 1000, "body": True},
    "exec": {"argv": ["true"], "cwd": "/", "env": {}, "user": None, "output_limit": 1000},
    "read": {"path": "/x", "limit": 10},
    "write": {"path": "/proc/nowhere/x", "size": 0, "exclusive": False, "body": True},
    "list": {"path": "/proc/nowhere", "depth": 1, "limit": 10},
    "pack": {"path": "/proc/nowhere", "limit": 10},
    "unpack": {"path": "/proc/nowhere", "body": True},
    "describe": {"paths": ["/proc/nowhere"]},
    "checkpoint": {"id": "x", "since": None, "limits": {}},
    "terminal": {"argv": ["true"], "cwd": "/", "env": {}, "rows": 10, "columns": 10, "body": True},
    "restore": {"id": "x", "since": None, "pack": None, "body": True},
}
ODD = [-1, 10**400, float("nan"), "nul\0", "\ud800", [[]], {"x": [1]}]
MALFORMED = [
    *({}, {"op": 3}, {"op": []}, {"op": "no such thing"}, {"op": "exec", "head": 10**12, "body": True}),
    *({"op": op, **{k: v for k, v in VALID[op].items() if k != name}} for op in VALID for name in VALID[op]),
    *({"op": op, **VALID[op], name: odd} for op in VALID for name in VALID[op] for odd in ODD),
    *({"op": op, **VALID[op], "timeout": odd} for op in VALID for odd in ODD[1:]),
    *({"op": op, **VALID[op], "head": odd} for op in ("exec", "list", "describe") for odd in ODD),
]


async def answer(wire: Wire, *frames: Frame) -> dict[str, Any]:
    wire.write(frames)
    while (frame := await asyncio.wait_for(wire.read_frame(), PATIENCE)) and frame.kind != Kind.RESPONSE:
        pass
    assert frame is not None, frames
    told: dict[str, Any] = json.loads(frame.payload)
    wire.client.leave()
    return told


def test_malformed_requests_are_answered() -> None:
    """One of them ended the executor, and the sandbox with it."""

    async def body(box: ChannelSandbox) -> None:
        pid = box.executor["pid"]
        for params in MALFORMED:
            content = [Frame(Kind.DATA, 7, b"[]"), Frame(Kind.END, 7)] if params.get("body") else []
            told = await answer(Wire(box), json_frame(Kind.REQUEST, 7, params), *content)
            assert isinstance(told, dict), params
        for head in (b"[]", b"{", b"{}", b'{"path":[]}', b'{"op":"run"}'):
            request = json_frame(Kind.REQUEST, 7, {"op": "list", "head": len(head), "body": True})
            told = await answer(Wire(box), request, Frame(Kind.DATA, 7, head), Frame(Kind.END, 7))
            assert "malformed" in told["error"]["message"], head
        assert (await box.run("echo goes on")).stdout == b"goes on\n"
        assert (await box.exec(["sh", "-c", "echo $PPID"])).exit_code == 0
        assert box.executor["pid"] == pid

    relayed(body)


def test_too_many_requests_are_refused_one_by_one() -> None:
    async def body(box: ChannelSandbox) -> None:
        wire = Wire(box)
        waiting = {"op": "exec", "argv": ["cat"], "cwd": "/", "env": {}, "user": None, "timeout": None}
        waiting |= {"output_limit": 1000, "body": True}
        requests = [json_frame(Kind.REQUEST, n, waiting) for n in range(1, 100)]
        wire.write(requests)
        frames = [await asyncio.wait_for(wire.read_frame(), PATIENCE) for _ in range(99 - relay.MAX_REQUESTS)]
        assert all(frame and b"only 64 pending requests" in frame.payload for frame in frames)
        assert wire.closed is None
        wire.client.leave()

    relayed(body)


def test_a_lost_sandbox_dismisses_its_clients() -> None:
    async def body(box: ChannelSandbox) -> None:
        wire = Wire(box)
        client = await wire.sandbox(box)
        mark = own_mark()
        running = asyncio.create_task(client.run(f"sleep {mark}"))
        await eventually(lambda: processes_with(mark))
        await box.close()
        with pytest.raises(Exception, match="lost"):
            await running
        assert wire.closed is not None
        assert wire.closed[0] == SANDBOX_ENDED

    relayed(body)


def test_messages_hold_what_was_packed() -> None:
    frames = [Frame(Kind.DATA, n, bytes(n * 997 % MAX_PAYLOAD)) for n in range(200)]
    messages = list(pack(frame.encode() for frame in frames))
    assert [frame for message in messages for frame in unpack(message)] == frames
    assert len(messages) < 60
    with pytest.raises(ProtocolError):
        list(unpack(messages[0][:-1]))
