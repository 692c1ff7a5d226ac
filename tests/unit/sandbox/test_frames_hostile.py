"""An executor that lies, floods, or is silent: every call ends, in bounded memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import time
import tracemalloc
import zlib

import pytest
from hostile import Script
from support import run

from llm_sandbox_nb.sandbox.errors import SandboxError, SandboxLostError
from llm_sandbox_nb.sandbox.protocol.frames import MAX_PAYLOAD, Frame, Kind, json_frame

MiB = 2**20


def on_end(make):
    """A reply to the end of a request's body (or to a request without one)."""

    def reply(frame):
        if frame.kind == Kind.END or (frame.kind == Kind.REQUEST and not frame.json().get("body")):
            return make(frame.request)
        return b""

    return reply


def response(number, **fields):
    return json_frame(
        Kind.RESPONSE, number, {"exit_code": 0, "stdout_bytes": 0, "stderr_bytes": 0, **fields}
    ).encode()


def header(kind, number, length, payload=b"", crc=None):
    head = struct.pack(">2sBII", b"LS", kind, number, length)
    return head + struct.pack(">I", zlib.crc32(payload, zlib.crc32(head)) if crc is None else crc) + payload


LIES = {
    "garbage": lambda n: b"\xde\xad" * 5000,
    "text": lambda n: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "giant length": lambda n: header(Kind.STDOUT, n, 2**32 - 1) + b"x" * 100,
    "length over the limit": lambda n: header(Kind.STDOUT, n, MAX_PAYLOAD + 1, b"x" * (MAX_PAYLOAD + 1)),
    "bad checksum": lambda n: header(Kind.STDOUT, n, 3, b"abc", crc=1),
    "wrong id": lambda n: Frame(Kind.STDOUT, n + 77, b"x").encode(),
    "answer to nothing": lambda n: response(n + 5),
    "empty output": lambda n: Frame(Kind.STDOUT, n, b"").encode(),
    "unknown kind": lambda n: Frame(200, n, b"x").encode(),
    "a request to the host": lambda n: Frame(Kind.REQUEST, n, b"{}").encode(),
    "too much acknowledged": lambda n: json_frame(Kind.ACK, n, {"bytes": 10**9}).encode(),
    "negative acknowledgement": lambda n: json_frame(Kind.ACK, n, {"bytes": -1}).encode(),
    "acknowledgement of words": lambda n: json_frame(Kind.ACK, n, {"bytes": "many"}).encode(),
    "unasked pong": lambda n: Frame(Kind.PONG).encode(),
    "response that is no JSON": lambda n: Frame(Kind.RESPONSE, n, b"\xff{").encode(),
    "response that is a list": lambda n: Frame(Kind.RESPONSE, n, b"[]").encode(),
    "response of deep JSON": lambda n: Frame(Kind.RESPONSE, n, b"[" * 60_000).encode(),
    "exit code of words": lambda n: response(n, exit_code="zero"),
    "exit code too large": lambda n: response(n, exit_code=10**6),
    "negative count": lambda n: response(n, stdout_bytes=-1),
    "duration of words": lambda n: response(n, duration="long"),
    "endless duration": lambda n: Frame(Kind.RESPONSE, n, b'{"exit_code":0,"duration":1e999}').encode(),
    "duration that no float holds": lambda n: response(n, duration=10**400),
    "duration that no clock shows": lambda n: response(n, duration=1e300),
    "duration of a yes": lambda n: response(n, duration=True),
    "count that no float holds": lambda n: response(n, stdout_bytes=10**400),
    "notice of numbers": lambda n: response(n, notice=7),
    "gap of nonsense": lambda n: Frame(Kind.GAP, n, b'{"stream":"stdin","omitted":1}').encode(),
    "gap of a list": lambda n: Frame(Kind.GAP, n, b'{"stream":[],"omitted":1}').encode(),
    "gap of an object": lambda n: Frame(Kind.GAP, n, b'{"stream":{},"omitted":1}').encode(),
    "gap of a list's size": lambda n: Frame(Kind.GAP, n, b'{"stream":"stdout","omitted":[1]}').encode(),
    "two gaps": lambda n: json_frame(Kind.GAP, n, {"stream": "stdout", "omitted": 1}).encode() * 2,
    "huge background": lambda n: Frame(Kind.DATA, n, b"x" * 60_000).encode() * 3,
    "more than agreed": lambda n: Frame(Kind.STDERR, n, b"x" * 600).encode() * 2,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_ends_the_sandbox(lie):
    async def test():
        script = Script(lambda frame: LIES[lie](frame.request) if frame.kind == Kind.END else b"")
        box = script.sandbox()
        await box.start()
        beside = asyncio.ensure_future(box.channel.call({"op": "beside"}))
        await asyncio.sleep(0)
        with pytest.raises(SandboxLostError, match=r"^The sandbox is lost: .*; open a new one\.$"):
            await box.run("true", output_limit=1000, timeout=60)
        with pytest.raises(SandboxLostError):
            await beside
        with pytest.raises(SandboxLostError):
            await box.read_file("x")
        await asyncio.sleep(0)
        await box.close()
        assert script.killed == 1

    run(test(), 60)


def test_endless_output_in_bounded_memory():
    async def test():
        script = Script(lambda frame: b"")
        box = script.sandbox()
        await box.start()
        frame = Frame(Kind.STDOUT, 1, b"x" * MAX_PAYLOAD).encode()

        async def flood():
            while box.lost is None:
                script.say(frame * 4)
                await asyncio.sleep(0)

        flooding = asyncio.ensure_future(flood())
        tracemalloc.start()
        with pytest.raises(SandboxLostError, match="more output than it may"):
            await box.run("true", timeout=120)
        assert tracemalloc.get_traced_memory()[1] < 40 * MiB
        tracemalloc.stop()
        await flooding
        await box.close()

    run(test())


ODD = [
    10**400,
    -(10**400),
    1e308,
    -1,
    2**63,
    True,
    None,
    "x",
    "\ud800",
    "nul\0",
    [],
    [[]],
    {},
    {"x": []},
    [10**400],
]
FIELDS = ["exit_code", "timed_out", "interrupted", "duration", "stdout_bytes", "stderr_bytes"]
FIELDS += ["full_output", "notice", "incomplete", "size", "error"]
CHECKPOINT_FIELDS = ["incremental", "roots", "shell", "incomplete"]
ERRORS = [
    {"kind": kind, name: odd} for kind in ("os", [], "limit") for name in ("errno", "path") for odd in ODD
]


def calls(box, folder):
    return {
        "run": lambda: box.run("true"),
        "exec": lambda: box.exec(["true"]),
        "read": lambda: box.read_file("x"),
        "write": lambda: box.write_file("x", b""),
        "list": lambda: box.list_files("x"),
        "upload": lambda: box.upload(folder, "x"),
        "download": lambda: box.download("x/", folder),
        "changes": lambda: box.changes(),
        "checkpoint": lambda: box.checkpoint(),
    }


@pytest.mark.parametrize("call", calls(None, None))
def test_odd_fields_of_an_answer(call, tmp_path):
    """Whatever a field holds, the caller gets a result or an error of the contract."""

    async def test():
        fields = [(name, odd) for name in FIELDS for odd in ODD] + [("error", odd) for odd in ERRORS]
        if call == "checkpoint":
            fields = [(name, odd) for name in CHECKPOINT_FIELDS for odd in ODD[::2]]
        for name, odd in fields:
            answer = {"exit_code": 0, "roots": ["/"], name: odd}
            script = Script(on_end(lambda n, answer=answer: json_frame(Kind.RESPONSE, n, answer).encode()))
            box = script.sandbox()
            await box.start()
            with contextlib.suppress(SandboxError, OSError):
                await calls(box, tmp_path)[call]()
            await box.close()

    run(test(), 60)


ROWS = {
    "list": ["/x", "file", 1, 0o644, 1.0],
    "changes": ["/x", "added", 1, None, None, None],
}


@pytest.mark.parametrize("call", ROWS)
def test_odd_rows_of_a_listing(call, tmp_path):
    async def test():
        for place in range(5):
            for odd in ODD:
                row = list(ROWS[call])
                row[place] = odd
                line = json.dumps(row).encode() + b"\n"
                script = Script(
                    on_end(lambda n, line=line: Frame(Kind.STDOUT, n, line).encode() + response(n))
                )
                box = script.sandbox()
                await box.start()
                with contextlib.suppress(SandboxError):
                    await calls(box, tmp_path)[call]()
                await box.close()

    run(test())


@pytest.mark.parametrize("name", ["version", "python", "pid", "uid", "bash", "failed", "files"])
def test_odd_facts_of_a_greeting(name):
    async def test():
        for odd in [*ODD, {"/proc/1/status": [1]}]:
            script = Script(lambda frame: b"")
            script.facts = {name: odd}
            box = script.sandbox()
            with contextlib.suppress(SandboxError):
                await box.start(timeout=60)
                int(box.executor.get("pid", 1)), box.executor.get("files", {}).get("x")
            await box.close()

    run(test())


@pytest.mark.parametrize("call", ["read", "list", "download", "changes"])
def test_endless_files_in_bounded_memory(call, tmp_path):
    async def test():
        script = Script(lambda frame: b"")
        box = script.sandbox()
        await box.start()
        frame = Frame(Kind.STDOUT, 1, b"x" * MAX_PAYLOAD).encode()

        async def flood():
            while box.lost is None:
                script.say(frame * 16)
                await asyncio.sleep(0)

        calls = {
            "read": lambda: box.read_file("x", limit=10 * MiB),
            "list": lambda: box.list_files("x"),
            "download": lambda: box.download("x", tmp_path, limit=10 * MiB),
            "changes": lambda: box.changes(),
        }
        flooding = asyncio.ensure_future(flood())
        with pytest.raises(SandboxLostError, match="it may"):
            await calls[call]()
        await flooding
        await box.close()

    run(test())


def test_a_cancelled_request_that_goes_on_forever():
    async def test():
        script = Script(lambda frame: b"")
        box = script.sandbox()
        await box.start()
        task = asyncio.ensure_future(box.channel.call({"op": "x"}, sink=lambda kind, data: 1 / 0))
        await asyncio.sleep(0)
        frame = Frame(Kind.STDOUT, 1, b"x" * MAX_PAYLOAD).encode()
        script.say(frame)
        with pytest.raises(ZeroDivisionError):
            await task
        for _ in range(2000):
            script.say(frame)
            if box.lost:
                break
            await asyncio.sleep(0)
        assert "cancelled" in str(box.lost)
        await box.close()

    run(test())


def test_silence_ends_by_the_watchdog():
    async def test():
        script = Script(lambda frame: b"")
        box = script.sandbox(grace=0.2)
        await box.start()
        started = time.monotonic()
        with pytest.raises(SandboxLostError, match="did not answer within"):
            await box.run("true", timeout=0.2)
        assert time.monotonic() - started < 120
        await box.close()
        assert script.killed == 1

    run(test())


def test_silence_ends_by_pings_even_without_a_time_out():
    async def test():
        script = Script(lambda frame: b"")
        box = script.sandbox(ping_every=0.05)
        await box.start()
        with pytest.raises(SandboxLostError, match="has not answered for"):
            await box.run("true", timeout=None)
        await box.close()

    run(test(), 60)


def test_a_body_that_is_never_acknowledged():
    async def test():
        script = Script(lambda frame: b"")
        box = script.sandbox(grace=0.3)
        await box.start()
        tracemalloc.start()
        with pytest.raises(SandboxLostError):
            await box.exec(["cat"], stdin=bytes(50 * MiB), timeout=0.2)
        assert len(script.buffer) < 2 * MiB
        tracemalloc.stop()
        await box.close()

    run(test(), 60)


@pytest.mark.parametrize(
    "greeting", [b"", b"x" * 100, json_frame(Kind.HELLO, 0, {"nonce": "other"}).encode(), b"end"]
)
def test_a_bad_greeting(greeting):
    class Rude(Script):
        def hello(self, frame):
            if greeting == b"end":
                self.reader.feed_eof()
                return b""
            return greeting

    async def test():
        script = Rude(lambda frame: b"")
        box = script.sandbox()
        with pytest.raises(SandboxLostError):
            await box.start(timeout=0.3)
        await box.close()
        assert script.killed == 1

    run(test(), 60)


def test_directories_that_cannot_be_made():
    class Poor(Script):
        def hello(self, frame):
            return json_frame(
                Kind.HELLO, 0, {"nonce": frame.json()["nonce"], "failed": [{"errno": 30}]}
            ).encode()

    async def test():
        script = Poor(lambda frame: b"")
        with pytest.raises(SandboxError, match="cannot make its directories"):
            await script.sandbox().start()
        assert script.killed == 1

    run(test(), 60)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"kind": "os", "errno": 2}, FileNotFoundError),
        ({"kind": "os", "errno": "two"}, OSError),
        ({"kind": "os", "errno": 10**9}, OSError),
        ({"kind": "who knows"}, SandboxError),
        ("words", SandboxError),
        (7, SandboxError),
    ],
)
def test_errors_are_made_of_what_is_known(error, kind):
    async def test():
        script = Script(on_end(lambda n: json_frame(Kind.RESPONSE, n, {"error": error}).encode()))
        box = script.sandbox()
        await box.start()
        with pytest.raises(kind):
            await box.read_file("x")
        assert box.lost is None
        await box.close()

    run(test(), 60)


@pytest.mark.parametrize(
    "row", [b"nonsense", b"[]", json.dumps(["/x", "door", 1, 1, 1]).encode(), b'["/x","file",-1,0,0]']
)
def test_a_listing_of_nonsense(row):
    async def test():
        script = Script(on_end(lambda n: Frame(Kind.STDOUT, n, row).encode() + response(n)))
        box = script.sandbox()
        await box.start()
        with pytest.raises(SandboxLostError):
            await box.list_files("x")
        await box.close()

    run(test(), 60)


def test_the_end_of_the_connection_is_said():
    async def test():
        script = Script(lambda frame: b"")
        box = script.sandbox()
        await box.start()
        box.channel.why_ended = lambda: "python3: not found"
        task = asyncio.ensure_future(box.run("true"))
        await asyncio.sleep(0.05)
        script.reader.feed_eof()
        with pytest.raises(SandboxLostError, match="python3: not found"):
            await task
        await box.close()
        await box.close()
        assert script.killed == 1

    run(test(), 60)
