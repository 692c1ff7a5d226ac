"""The network `allow`: what it adds to a start and to a call, how fast it downloads, and many connections at once."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
from network_attacks import Outside
from support import require, run

from llm_sandbox_nb.sandbox.open import open_sandbox

Measured = Callable[..., None]
ISOLATIONS = pytest.mark.parametrize(
    "isolation",
    [
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
    ],
)
SIZE = 200 * 2**20
PIECE = bytes(2**18)
DOWNLOAD = "curl -sS -o /dev/null -w '%{speed_download}' "


async def serve_large(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % SIZE)
    for _ in range(SIZE // len(PIECE)):
        writer.write(PIECE)
        await writer.drain()
    writer.close()


async def start_and_calls(isolation: str, network: str) -> tuple[float, list[float]]:
    """Seconds of a start, and of twenty calls."""
    began = time.perf_counter()
    async with open_sandbox(isolation, network=network) as box:
        start, calls = time.perf_counter() - began, []
        for _ in range(20):
            began = time.perf_counter()
            await box.run("true")
            calls.append(time.perf_counter() - began)
    return start, calls


@ISOLATIONS
def test_start_and_call(isolation: str, measured: Measured) -> None:
    require(isolation)

    async def both() -> None:
        taken: dict[str, list[tuple[float, list[float]]]] = {"none": [], "allow": []}
        for number in range(10):  # in turns: other work on the machine hits one of a pair
            for network in sorted(taken, reverse=bool(number % 2)):
                taken[network].append(await start_and_calls(isolation, network))
        # What is imported once is not the network's.
        none, allow = (statistics.median(start for start, _ in taken[name][1:]) for name in ("none", "allow"))
        call_without, call_with = (
            statistics.median(call for _, calls in taken[name][1:] for call in calls)
            for name in ("none", "allow")
        )
        added = (allow - none) * 1e3
        measured(f"start, {isolation}, network allow against none", added, "ms more", bar="at most 100 ms")
        more = (call_with - call_without) * 1e3
        note = f"{call_with * 1e3:.2f} ms against {call_without * 1e3:.2f} ms"
        measured(
            f"call, {isolation}, network allow against none", more, "ms more", bar="under 1 ms", note=note
        )
        assert added < 100
        assert more < 1

    run(both(), 300)


@ISOLATIONS
def test_download_and_many_connections(isolation: str, measured: Measured) -> None:
    """Against the fastest link of many: 1 Gbit/s. A server in this process is slower than its loopback."""

    require(isolation)

    async def whole() -> None:
        async with (
            Outside() as outside,
            open_sandbox(isolation, network="allow", allow=["allowed.example"]) as box,
        ):
            box.network.internet = outside  # type: ignore[union-attr]
            outside.serve_with(serve_large)
            done: Any = await box.run(f"{DOWNLOAD} http://allowed.example/")
            speed = float(done.text) / 2**20
            port = outside._servers[0].sockets[0].getsockname()[1]
            bare_process = await asyncio.create_subprocess_shell(
                f"{DOWNLOAD} --noproxy '*' http://127.0.0.1:{port}/", stdout=asyncio.subprocess.PIPE
            )
            bare = float((await bare_process.communicate())[0]) / 2**20
            note = f"bare, over loopback: {bare:.0f} MB/s, from the same server"
            measured(
                f"download, {isolation}, network allow", speed, "MB/s", bar="at least 30 MB/s", note=note
            )
            outside.serve_with(outside._echo)
            began = time.perf_counter()
            asked = "seq 200 | xargs -P 200 -I{} curl -sS -o /dev/null -w '%{http_code} ' http://allowed.example/{}"
            codes = (await box.run(asked)).text.split()
            took = time.perf_counter() - began
            measured(f"200 connections at once, {isolation}, network allow", took, "s", bar="all of them")
            assert codes == ["200"] * 200
            assert speed >= 30

    run(whole(), 300)
