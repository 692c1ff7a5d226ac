"""A hostile model server: it leads requests elsewhere, sends bombs, and tries to break the client or the record."""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import logging
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from agent_scripts import check_record
from loopback_http import LoopbackHandler, LoopbackServer
from support import run

from llm_sandbox_nb.formats.llm_in_sandbox import save_responses
from llm_sandbox_nb.model import proxies, stream
from llm_sandbox_nb.model.contract import ModelError, ModelSettings, Reply
from llm_sandbox_nb.model.errors import ServerError, Target, retry_after, to_model_error
from llm_sandbox_nb.model.model_names import make_model
from llm_sandbox_nb.model.served_context import served_context
from llm_sandbox_nb.model.text_formats import MAX_CALLS
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.trajectory.journal import MAX_LINE_BYTES

KEY = "sk-hostile-server-test-1234"
ASKED = [{"role": "user", "content": "the secret conversation"}]
TARGET = Target("openai/m", api_base="http://a")
SECONDS = 20.0
"""Far longer than any answer takes, and far shorter than those that never end."""


class Server(LoopbackServer):
    """A server that answers each request with the next answer; the last is repeated. `asked` has all requests."""

    def __init__(self, *answers: Callable[[LoopbackHandler], None]) -> None:
        asked: list[tuple[str, str, str, dict[str, str]]] = []

        class Handler(LoopbackHandler):
            def do_POST(self) -> None:
                self.answer(self.data().decode())

            def do_GET(self) -> None:
                self.answer("")

            def answer(self, data: str) -> None:
                number = sum(method == self.command for method, *_ in asked)
                asked.append((self.command, self.path, data, self.lower_headers()))
                answers[min(number, len(answers) - 1)](self)

        super().__init__(Handler)
        self.asked = asked


def sends(content: Any, status: int = 200, **headers: str) -> Callable[[LoopbackHandler], None]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler: handler.send(status, content, named)


def message(content: str | None = "ok", calls: list[Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A complete reply."""
    more = {"tool_calls": calls} if calls else {}
    return {
        "id": "a",
        "object": "chat.completion",
        "choices": [{"message": {"role": "assistant", "content": content, **more, **fields}, "finish_reason": "stop"}],
    }  # fmt: skip


def called(name: str, arguments: str, **fields: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}, **fields}


def reply_of(url: str, name: str = "openai/m", key: str | None = KEY) -> Reply:
    model = make_model(name, api_base=url, api_key=key)
    return run(model.reply(ASKED, [], ModelSettings(timeout=SECONDS)), SECONDS)


def refusal(url: str, **options: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        reply_of(url, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    return caught.value


# -- redirects -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_another_server_sends_nothing_there(status: int) -> None:
    with Server(sends(message())) as other, Server(sends("", status, location=f"{other.url}/x")) as server:
        error = refusal(server.url)
        assert other.asked == []
    assert error.kind == "unreachable"
    assert "redirects to another server" in str(error)
    assert not error.retryable


def test_the_canary_a_redirect_that_is_followed_sends_the_conversation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def accept(response: httpx.Response) -> None:
        pass

    monkeypatch.setattr(proxies, "check_redirect", accept)
    with Server(sends(message())) as other, Server(sends("", 307, location=f"{other.url}/x")) as server:
        reply_of(server.url)
        assert "the secret conversation" in other.asked[0][2]


@pytest.mark.parametrize(
    "location",
    [
        "file:///etc/passwd",
        "http://169.254.169.254/latest/meta-data/",
        "//192.0.2.1/v1/chat/completions",
        "ftp://127.0.0.1/",
        "unix:///var/run/docker.sock",
        "http://user:word@127.0.0.1:1/",
        "http://[::1]:{port}/",
        "http://localhost:{port}/",
        "https://127.0.0.1:{port}/",
        "http://127.0.0.1:99999/",
        "http://[broken",
        "\x00",
    ],
)
def test_a_redirect_to_an_odd_place_is_one_sentence(location: str) -> None:
    def answer(handler: LoopbackHandler) -> None:
        place = location.replace("{port}", str(handler.server.server_address[1]))
        handler.send(307, "", {"location": place})

    with Server(answer) as server:
        assert "word" not in str(refusal(server.url))
        assert len([1 for method, *_ in server.asked if method == "POST"]) == 1


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_on_the_same_server_is_followed_with_the_key_and_the_conversation(status: int) -> None:
    with Server(sends("", status, location="/elsewhere?x=1"), sends(message("here"))) as server:
        assert reply_of(server.url).text == "here"
        assert [path for _, path, *_ in server.asked] == ["/v1/chat/completions", "/elsewhere?x=1"]
        assert server.asked[1][3]["authorization"] == f"Bearer {KEY}"
        assert "the secret conversation" in server.asked[1][2]


def test_redirects_without_an_end_end() -> None:
    with Server(sends("", 307, location="/again")) as server:
        refusal(server.url)
        assert len(server.asked) < 50


# -- compression ---------------------------------------------------------------------------------------------------


@functools.cache
def zeros_in_zstd(size: int) -> bytes:
    return zstandard.ZstdCompressor(level=19).compress(bytes(size))


@pytest.mark.parametrize("encoding", ["zstd", "br", "gzip, gzip", "gzip, zstd", "ZSTD", "identity, br"])
@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_in_another_compression_is_not_unpacked(encoding: str, status: int) -> None:
    bomb = zeros_in_zstd(300 * 2**20)
    assert len(bomb) < 2**16
    with Server(sends(bomb, status, content_encoding=encoding)) as server:
        error = refusal(server.url)
        assert server.asked[0][3]["accept-encoding"] == "gzip, deflate"
    assert "compresses its answers" in str(error)


def test_the_canary_httpx_would_unpack_it() -> None:
    response = httpx.Response(200, content=zeros_in_zstd(2**20), headers={"content-encoding": "zstd"})
    assert len(response.content) == 2**20


def test_a_small_answer_that_unpacks_to_a_huge_one_is_refused() -> None:
    layer = gzip.compress(b" " * 64 * 2**20, 1)
    with Server(sends(layer, content_encoding="gzip")) as server:
        assert "more than 32 MB" in str(refusal(server.url))


def test_an_answer_in_gzip_is_read() -> None:
    packed = gzip.compress(json.dumps(message("packed")).encode())
    with Server(sends(packed, content_encoding="gzip")) as server:
        assert reply_of(server.url).text == "packed"


# -- keys ----------------------------------------------------------------------------------------------------------


@contextmanager
def all_logs() -> Iterator[list[str]]:
    texts: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    handler, logger = Kept(), logging.getLogger()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield texts
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@pytest.mark.parametrize(
    "answer",
    [
        sends("", 404),
        sends({"error": {"message": "no such model"}}, 404),
        sends({"data": [{"id": "other"}]}, 404),
        sends({"error": "wrong key"}, 401),
        sends("x", 500),
        sends("<html>", 200),
        sends("", 307, location="http://192.0.2.1/"),
    ],
)
def test_a_password_and_a_key_in_the_address_are_in_no_text(
    answer: Callable[[LoopbackHandler], None],
) -> None:
    with all_logs() as texts, Server(answer) as server:
        address = (
            server.url.replace("http://", "http://person:pass-word-4711@") + "?api_key=query-key-4711&v=2"
        )
        error = refusal(address, key=None)
    texts += traceback.format_exception(error)
    assert [text for text in texts if "pass-word-4711" in text or "query-key-4711" in text] == []


def test_a_malformed_address_is_shown_without_its_password() -> None:
    with pytest.raises(ModelError) as caught:
        make_model("openai/m", api_base="ftp://person:pw@host/x")
    assert "pw" not in str(caught.value)
    assert "ftp://host/x" in str(caught.value)


@pytest.mark.parametrize(
    "echo",
    [
        lambda key: {"error": {"message": f"wrong key {key}"}},
        lambda key: f"<pre>authorization: Bearer {key}</pre>",
        lambda key: {"detail": [{"loc": ["headers", key], "msg": key}]},
    ],
)
def test_a_server_that_repeats_the_key_does_not_get_it_into_a_text(echo: Callable[[str], Any]) -> None:
    with all_logs() as texts, Server(sends(echo(KEY), 401)) as server:
        texts += traceback.format_exception(refusal(server.url))
    assert [text for text in texts if KEY in text] == []


# -- replies that break the client or the record --------------------------------------------------------------------


def finished(tmp_path: Path, *answers: Any) -> Run:
    """Run a task with a server that sends these complete replies, then a submission; check the record."""
    submit = message(None, [called("submit", "{}")])
    with Server(*map(sends, answers), sends(submit)) as server:
        result = run(
            solve(
                "A task.", model="openai/m", api_base=server.url, api_key=KEY, isolation="process",
                output_dir=tmp_path, limits={"steps": 4},
            )
        )  # fmt: skip
    check_record(result)
    assert max(map(len, result.journal.read_bytes().splitlines())) < MAX_LINE_BYTES
    return result


def test_a_saved_request_has_the_address_without_its_password(tmp_path: Path) -> None:
    result = finished(tmp_path, message("one"))
    save_responses(result.trajectory, tmp_path / "saved", "http://person:pw@127.0.0.1:1/v1?api_key=k")
    saved = json.loads((tmp_path / "saved/request_001.json").read_text())
    assert saved["api_base"] == "http://127.0.0.1:1/v1"


def levels(count: int) -> Any:
    return json.loads("[" * count + "]" * count)


@pytest.mark.parametrize("count", [150, 220, 300, 900])
def test_deep_values_leave_a_record_that_can_be_read(tmp_path: Path, count: int) -> None:
    deep = levels(count)
    arguments = json.dumps({"command": "echo hi", "more": deep})
    result = finished(
        tmp_path,
        message("one", [called("execute_bash", arguments)]),
        message("two", [called("execute_bash", json.dumps({"command": "echo hi"}), odd=deep)], odd=deep),
        message("three", odd={"a": {"b": deep}}),
    )
    assert result.stop_reason == "submitted"


def test_the_canary_an_event_with_many_levels_cannot_be_read() -> None:
    from llm_sandbox_nb.trajectory import events as ev

    event = ev.CallProposed(step=1, call_id="c", tool="t", raw_arguments="", arguments={"a": levels(220)})
    with pytest.raises(ValueError, match="recursion"):
        ev.parse_event(ev.dump_event(event))


@pytest.mark.parametrize(
    "calls",
    [
        [called("execute_bash", "{}", id=str(number)) for number in range(20_000)],
        [called("execute_bash", '{"command": "true"}' * 20_000)],
        [called("execute_bash", "{}" * 1_000_000)],
        [called("execute_bash", "{} " * 300_000 + "x")],
    ],
    ids=["many calls", "many in one", "a million in one", "many that are none"],
)
def test_the_calls_of_a_reply_are_bounded(calls: list[Any]) -> None:
    with Server(sends(message(None, calls))) as server:
        started = time.monotonic()
        assert len(reply_of(server.url).calls) <= MAX_CALLS
        assert time.monotonic() - started < SECONDS


@pytest.mark.parametrize("arguments", ["[" * 200_000, "{" * 200_000, '{"a":' * 200_000])
def test_arguments_of_endless_depth_are_no_failure(arguments: str) -> None:
    pieces = [called("execute_bash", part, id=None) for part in (arguments, arguments)]
    usage = {"usage": {"prompt_tokens": 1, "completion_tokens": 10**9}}
    with Server(sends(message(None, pieces) | usage)) as server:
        assert reply_of(server.url).calls


@pytest.mark.parametrize("field", ["content", "reasoning_content"])
def test_an_endless_text_is_refused(field: str) -> None:
    piece = {"choices": [{"delta": {field: "x" * 10_000}}]}
    data = f"data: {json.dumps(piece)}\n\n".encode() * 500
    with Server(sends(data)) as server:
        assert "more than 4 million characters" in str(refusal(server.url))


def test_names_that_a_server_gives_to_replies_are_bounded() -> None:
    with Server(sends(message() | {"id": "i" * 10**6, "model": "m" * 10**6})) as server:
        reply = reply_of(server.url)
    assert (len(reply.response_id or ""), len(reply.response_model or "")) == (200, 200)


def test_a_server_without_an_end_of_its_headers_ends() -> None:
    def answer(handler: LoopbackHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        for number in itertools.count():
            handler.wfile.write(b"x-%d: %s\r\n" % (number, b"y" * 1000))

    with Server(answer) as server:
        refusal(server.url)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nZZZ\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\nx",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/9.9 999 \xff\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"\r\n\r\n",
    ],
)
def test_bytes_that_are_no_http_are_one_sentence(data: bytes) -> None:
    def answer(handler: LoopbackHandler) -> None:
        handler.wfile.write(data)
        handler.close_connection = True

    with Server(answer) as server:
        refusal(server.url)


# -- texts that patterns would search for ever -----------------------------------------------------------------------

MANY = 400_000
HOSTILE_TEXTS = {
    "fail": "fail" * MANY,
    "limit": "Limit 1 " * MANY,
    "numbers": "Limit " + "9" * MANY + " Requested " + "9" * MANY,
    "context": "context tokens " * MANY,
    "max_tokens": "max_tokens " * MANY,
    "context number": "maximum context length is " + "9" * MANY,
    "many numbers": "9," * MANY,
    "model": "model " * MANY,
    "error": "Error" * MANY,
    "blanks": " " * MANY + "x",
    "roles": "role " * MANY,
    "messages": "messages[" * MANY + "name",
    "brackets": "message" + "]" * MANY,
    "missing content": "missing content messages" + "." * MANY,
    "missing name": "required name " + "messages" * MANY,
    "invalid field": "unknown field " + "message" + "[" * MANY,
}


@pytest.mark.parametrize("status", [400, 404, 422, 429, 500])
@pytest.mark.parametrize("name", HOSTILE_TEXTS)
def test_an_error_text_is_understood_in_bounded_time(name: str, status: int) -> None:
    response = httpx.Response(status, request=httpx.Request("POST", "http://a"))
    started = time.process_time()
    error = to_model_error(ServerError({"message": HOSTILE_TEXTS[name]}, response), TARGET)
    assert len(str(error)) < 2_000
    assert time.process_time() - started < SECONDS / 4


@pytest.mark.parametrize("name", HOSTILE_TEXTS)
def test_an_error_of_a_server_ends_a_request_in_bounded_time(name: str) -> None:
    with Server(sends({"error": {"message": HOSTILE_TEXTS[name]}}, 400)) as server:
        started = time.process_time()
        refusal(server.url)
    assert time.process_time() - started < SECONDS


@pytest.mark.parametrize(
    "value",
    [
        "Wed, 21 Oct 99999999999 07:28:00 GMT",
        "99999999999999999999 Oct 2015 10:00:00 GMT",
        "Wed, 21 Oct 2015 07:28:00 +99999999999999999999",
        "9" * 5000,
        "1e999",
        "nan",
    ],
)
def test_a_time_to_wait_that_is_none(value: str) -> None:
    assert retry_after({"retry-after": value}) in (None, 0.0)


def test_a_description_of_a_model_is_searched_in_bounded_time() -> None:
    """The pattern for the context once began at each of these lines, and ran to the end."""
    described = {"parameters": "\n" * 100_000}

    def answer(handler: LoopbackHandler) -> None:
        handler.send(200, described if handler.path == "/api/show" else {"models": []})

    with Server(answer) as server:
        started = time.process_time()
        assert run(served_context(server.url, "m")) is None
        assert ("POST", "/api/show") in [(method, path) for method, path, *_ in server.asked]
    assert time.process_time() - started < SECONDS / 4


def test_the_parts_of_a_reply_are_counted_once() -> None:
    assembly = stream.Assembly()
    for _ in range(4_000):
        assembly.add(stream.Piece(text="x" * 500, reasoning="y" * 500))
    with pytest.raises(ModelError, match="4 million"):
        assembly.add(stream.Piece(calls=[stream.CallPiece(arguments="z")]))
