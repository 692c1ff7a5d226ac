"""An executor that lies, floods, or is silent: every call ends, in bounded memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import tracemalloc
import zlib

import pytest
from hostile import Script, answer, at_end, meet, opened, silent, wait_for
from hypothesis import given, settings
from hypothesis import strategies as st
from support import eventually, examples, run

from llm_sandbox_nb.sandbox.errors import SandboxError, SandboxLostError
from llm_sandbox_nb.sandbox.protocol.answers import MAX_CHANGES, CommandOutput
from llm_sandbox_nb.sandbox.protocol.frames import MAX_PAYLOAD, Frame, Kind, json_frame

MiB = 2**20
PIECE = b"x" * MAX_PAYLOAD


def response(number, **fields):
    return answer(number, {"exit_code": 0, "stdout_bytes": 0, "stderr_bytes": 0, **fields})


def header(kind, number, length, payload=b"", crc=None):
    head = struct.pack(">2sBII", b"LS", kind, number, length)
    return head + struct.pack(">I", zlib.crc32(payload, zlib.crc32(head)) if crc is None else crc) + payload


LIES = {
    "garbage": lambda n: b"\xde\xad" * 5000,
    "text": lambda n: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "giant length": lambda n: header(Kind.STDOUT, n, 2**32 - 1) + b"x" * 100,
    "length over the limit": lambda n: header(Kind.STDOUT, n, MAX_PAYLOAD + 1, PIECE + b"x"),
    "bad checksum": lambda n: header(Kind.STDOUT, n, 3, b"abc", crc=1),
    "wrong id": lambda n: Frame(Kind.STDOUT, n + 77, b"x").encode(),
    "answer to nothing": lambda n: response(n + 5),
    "empty output": lambda n: Frame(Kind.STDOUT, n, b"").encode(),
    "unknown kind": lambda n: Frame(200, n, b"x").encode(),
    "a request to the host": lambda n: Frame(Kind.REQUEST, n, b"{}").encode(),
    "too much acknowledged": lambda n: json_frame(Kind.ACK, n, {"bytes": 10**9}).encode(),
    "one byte too much acknowledged": lambda n: json_frame(Kind.ACK, n, {"bytes": 5}).encode(),
    "nothing acknowledged": lambda n: json_frame(Kind.ACK, n, {"bytes": 0}).encode(),
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
    async def use(box, script):
        beside = asyncio.ensure_future(box.channel.call({"op": "beside"}))
        await asyncio.sleep(0)
        with pytest.raises(SandboxLostError, match=r"^The sandbox is lost: .*; open a new one\.$"):
            await box.run("true", output_limit=1000, timeout=60)
        with pytest.raises(SandboxLostError):
            await beside
        with pytest.raises(SandboxLostError):
            await box.read_file("x")
        await asyncio.sleep(0)

    def lying(frame):
        return LIES[lie](frame.request) if frame.kind == Kind.END else b""

    assert meet(lambda: Script(lying), use).killed == 1


def test_the_canary_an_honest_answer_is_a_result():
    def honest(frame):
        return json_frame(Kind.ACK, frame.request, {"bytes": 4}).encode() + response(frame.request)

    async def use(box, script):
        assert (await box.run("true", output_limit=1000, timeout=60)).exit_code == 0
        assert box.lost is None

    meet(lambda: Script(lambda frame: honest(frame) if frame.kind == Kind.END else b""), use)


def calls(box, folder):
    return {
        "run": lambda: box.run("true"),
        "exec": lambda: box.exec(["true"]),
        "read": lambda: box.read_file("x", limit=10 * MiB),
        "write": lambda: box.write_file("x", b""),
        "list": lambda: box.list_files("x"),
        "upload": lambda: box.upload(folder, "x"),
        "download": lambda: box.download("x/", folder, limit=10 * MiB),
        "changes": lambda: box.changes(),
        "checkpoint": lambda: box.checkpoint(),
    }


ODD = [
    10**400, -(10**400), 1e308, -1, 2**63, True, None, "x", "\ud800", "nul\0", [], [[]], {}, {"x": []},
    [10**400],
]  # fmt: skip
FIELDS = ["exit_code", "timed_out", "interrupted", "duration", "stdout_bytes", "stderr_bytes"]
FIELDS += ["full_output", "notice", "incomplete", "size", "error"]
CHECKPOINT_FIELDS = ["incremental", "roots", "shell", "incomplete"]
ERRORS = [
    {"kind": kind, name: odd} for kind in ("os", [], "limit") for name in ("errno", "path") for odd in ODD
]
ROWS = {
    "list": ["/x", "file", 1, 0o644, 1.0],
    "changes": ["/x", "added", 1, None, None, None],
}


async def ask(call, folder, outcome, output=b""):
    """Ask a liar once: the caller gets a result or an error of the contract."""
    async with opened(Script(at_end(lambda number: answer(number, outcome, output)))) as box:
        with contextlib.suppress(SandboxError, OSError):
            await calls(box, folder)[call]()


@pytest.mark.parametrize("call", calls(None, None))
def test_odd_fields_of_an_answer(call, tmp_path):
    async def test():
        fields = [(name, odd) for name in FIELDS for odd in ODD] + [("error", odd) for odd in ERRORS]
        if call == "checkpoint":
            fields = [(name, odd) for name in CHECKPOINT_FIELDS for odd in ODD[::2]]
        for name, odd in fields:
            await ask(call, tmp_path, {"exit_code": 0, "roots": ["/"], name: odd})
            assert not list(tmp_path.iterdir())

    run(test())


@pytest.mark.parametrize("call", ROWS)
def test_odd_rows_of_a_listing(call, tmp_path):
    async def test():
        for place in range(5):
            for odd in ODD:
                row = [*ROWS[call][:place], odd, *ROWS[call][place + 1 :]]
                await ask(call, tmp_path, {"exit_code": 0}, json.dumps(row).encode() + b"\n")
                assert not list(tmp_path.iterdir())

    run(test())


def test_changes_that_end_within_a_line():
    """A program in the sandbox may kill the process that reports them, at any byte."""
    line = json.dumps(ROWS["changes"]).encode() + b"\n"

    async def use(box, script):
        changes = await box.changes()
        assert [change.path for change in changes.files] == ["/x"]
        assert changes.incomplete == "some changes are missing"

    outcome = {"incomplete": "some changes are missing"}
    meet(lambda: Script(at_end(lambda number: answer(number, outcome, line + line[:-2]))), use)


def test_more_changes_than_a_sandbox_may_report_are_not_parsed():
    """Millions of them would block the event loop, in which other sandboxes have to be answered in time."""
    line = json.dumps(ROWS["changes"]).encode() + b"\n"

    async def use(box, script):
        with pytest.raises(SandboxLostError, match="it reports more changes than it may"):
            await box.changes()

    honest = at_end(lambda number: answer(number, {}, line * MAX_CHANGES))
    meet(lambda: Script(at_end(lambda number: answer(number, {}, line * (MAX_CHANGES + 1)))), use)

    async def use_honest(box, script):
        assert len((await box.changes()).files) == MAX_CHANGES

    meet(lambda: Script(honest), use_honest)


@pytest.mark.parametrize("call", ["run", "read"])
def test_output_in_small_pieces_takes_little_memory(call, tmp_path):
    sent = Frame(Kind.STDOUT, 1, b"ab").encode() * 40_000 + answer(1, {"exit_code": 0})

    async def use(box, script):
        tracemalloc.start()
        try:
            await calls(box, tmp_path)[call]()
            assert tracemalloc.get_traced_memory()[1] < 3 * len(sent)
        finally:
            tracemalloc.stop()

    meet(lambda: Script(at_end(lambda number: sent)), use)


@pytest.mark.parametrize(("size", "fits"), [(1000, True), (1001, False)])
def test_output_up_to_its_limit_is_a_result(size, fits):
    async def use(box, script):
        if fits:
            assert (await box.run("true", output_limit=1000)).stdout == b"x" * size
            return
        with pytest.raises(SandboxLostError, match="more output than it may"):
            await box.run("true", output_limit=1000)

    meet(lambda: Script(at_end(lambda number: answer(number, {"exit_code": 0}, b"x" * size))), use)


def test_what_came_before_the_connection_broke_is_counted_with_what_was_left_out():
    output = CommandOutput(1000, None)
    output.take(Kind.STDOUT, b"abc")
    output.take(Kind.GAP, b'{"stream":"stdout","omitted":100}')
    result = output.broken_off()
    assert (result.stdout_bytes, result.stderr_bytes, result.truncated) == (3 + 100, 0, True)


FRAMES = st.builds(
    Frame,
    st.sampled_from([*Kind, 200]),
    st.integers(0, 3),
    st.sampled_from(
        [b"", b"{}", b"x" * 600, b'{"bytes":4}', b'{"exit_code":0}', b'{"stream":"stdout","omitted":1}']
    ),
)


@settings(max_examples=examples(300))
@given(st.lists(FRAMES, max_size=6))
def test_whatever_frames_come_a_call_ends_and_the_next_one_knows(frames):
    """A result, or the sandbox is lost for everybody; silence is left to the watchdog."""

    def reply(frame):
        last = response(frame.request)
        return b"".join(one.encode() for one in frames) + last if frame.kind == Kind.END else b""

    async def use(box, script):
        try:
            result = await box.run("true", output_limit=1000, timeout=60)
        except SandboxLostError as error:
            assert str(box.lost) == str(error)  # noqa: PT017
            with pytest.raises(SandboxLostError):
                await box.run("true")
        else:
            assert result.exit_code in (0, None)
            assert len(result.stdout + result.stderr) <= 1000

    meet(lambda: Script(reply), use)


@pytest.mark.parametrize("name", ["pid", "bash", "failed", "files"])
def test_odd_facts_of_a_greeting(name):
    async def test():
        for odd in [*ODD, {"/proc/1/status": [1]}]:
            script = Script(silent)
            script.facts = {name: odd}
            box = script.sandbox()
            with contextlib.suppress(SandboxError):
                await box.start(timeout=60)
                assert int(box.executor.get("pid", 1)) >= 0
                box.executor.get("files", {}).get("x")
            await box.close()

    run(test())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("run", "more output than it may"),
        *[(call, "it may") for call in ("read", "list", "download", "changes")],
    ],
)
def test_endless_data_in_bounded_memory(call, words, tmp_path):
    async def use(box, script):
        async def flood():
            while box.lost is None:
                script.say(Frame(Kind.STDOUT, 1, PIECE).encode() * (4 if call == "run" else 16))
                await asyncio.sleep(0)

        flooding = asyncio.ensure_future(flood())
        if call == "run":
            tracemalloc.start()
        with pytest.raises(SandboxLostError, match=words):
            await calls(box, tmp_path)[call]()
        if call == "run":
            assert tracemalloc.get_traced_memory()[1] < 40 * MiB
            tracemalloc.stop()
        await flooding

    meet(lambda: Script(silent), use)


def test_a_cancelled_request_that_goes_on_forever():
    async def use(box, script):
        task = asyncio.ensure_future(box.channel.call({"op": "x"}, sink=lambda kind, data: 1 / 0))
        await asyncio.sleep(0)
        frame = Frame(Kind.STDOUT, 1, PIECE).encode()
        script.say(frame)
        with pytest.raises(ZeroDivisionError):
            await task
        for _ in range(2000):
            script.say(frame)
            if box.lost:
                break
            await asyncio.sleep(0)
        assert "cancelled" in str(box.lost)

    meet(lambda: Script(silent), use)


@pytest.mark.parametrize(
    ("timeout", "options", "words", "seconds"),
    [
        (60, {"ping_every": 1000}, "did not answer within 75 seconds", 75),
        (None, {"ping_every": 10}, "has not answered for 60 seconds", 70),
        (60, {"ping_every": 10}, "has not answered for 60 seconds", 70),
    ],
    ids=["watchdog", "pings", "pings first"],
)
def test_silence_ends(timeout, options, words, seconds):
    async def use(script):
        async with opened(script, **options) as box:
            with pytest.raises(SandboxLostError, match=words):
                await box.run("true", timeout=timeout)

    script, took = wait_for(use, lambda: Script(silent))
    assert (script.killed, took) == (1, pytest.approx(seconds))


def test_a_body_that_is_never_acknowledged():
    async def use(script):
        async with opened(script) as box:
            with pytest.raises(SandboxLostError):
                await box.exec(["cat"], stdin=bytes(50 * MiB), timeout=10)

    script, _ = wait_for(use, lambda: Script(silent))
    assert 0 < script.kinds.count(Kind.DATA) * MAX_PAYLOAD < 2 * MiB


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

    async def use(script):
        box = script.sandbox()
        with pytest.raises(SandboxLostError):
            await box.start(timeout=60)
        await box.close()

    script, took = wait_for(use, lambda: Rude(silent))
    assert (script.killed, took) == (1, pytest.approx(0 if greeting else 60))


def test_directories_that_cannot_be_made():
    async def use(script):
        script.facts = {"failed": [{"kind": "os", "errno": 30, "path": "/x"}]}
        with pytest.raises(
            SandboxError, match=r"cannot make its directories .*: Read-only file system: '/x'\.$"
        ):
            await script.sandbox().start()

    assert wait_for(use, lambda: Script(silent))[0].killed == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"kind": "os", "errno": 2}, FileNotFoundError), ({"kind": "os", "errno": "two"}, OSError),
        ({"kind": "os", "errno": 10**9}, OSError), ({"kind": "who knows"}, SandboxError),
        ("words", SandboxError), (7, SandboxError),
    ],
)  # fmt: skip
def test_errors_are_made_of_what_is_known(error, kind):
    async def use(box, script):
        with pytest.raises(kind):
            await box.read_file("x")
        assert box.lost is None

    meet(lambda: Script(at_end(lambda number: answer(number, {"error": error}))), use)


def test_the_end_of_the_connection_is_said():
    async def use(box, script):
        box.channel.why_ended = lambda: "python3: not found"
        task = asyncio.ensure_future(box.run("true"))
        await eventually(lambda: Kind.END in script.kinds)
        script.reader.feed_eof()
        with pytest.raises(SandboxLostError, match="python3: not found"):
            await task
        await box.close()

    assert meet(lambda: Script(silent), use).killed == 1
