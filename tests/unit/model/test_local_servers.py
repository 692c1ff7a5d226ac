"""Model servers on this machine: what answers at a usual port is any program, and its words are hostile."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest
from loopback_http import LoopbackHandler, LoopbackServer
from support import run

from llm_sandbox_nb.model import local_servers
from llm_sandbox_nb.model.local_servers import LocalServer, find_local_servers

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def serving(answer: Answer) -> Iterator[tuple[int, list[str]]]:
    asked: list[str] = []

    class Handler(LoopbackHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            asked.append(self.path)
            answer(self)

    with LoopbackServer(Handler) as server:
        yield server.server_port, asked


def sends(body: bytes, status: int = 200, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def listing(*names: object) -> bytes:
    return json.dumps({"object": "list", "data": [{"id": name} for name in names]}).encode()


def found(port: int) -> list[LocalServer]:
    return asyncio.run(find_local_servers([("Ollama", port)]))


def test_a_server_is_found_with_its_models() -> None:
    with serving(sends(listing("qwen3:4b", "org/model@q4", "qwen3:4b"))) as (port, asked):
        (server,) = found(port)
    assert server.models == ("openai/qwen3:4b", "openai/org/model@q4")
    assert (server.program, server.api_base) == ("Ollama", f"http://127.0.0.1:{port}/v1")
    assert asked == ["/v1/models"]


def test_a_name_that_is_not_plain_is_left_out() -> None:
    odd = (
        "a\u202egnp.exe",
        "a\u200bb",
        "<img src=x>",
        "a b",
        "a'b",
        'a"b',
        "a\nb",
        "$(id)",
        "",
        "x" * 201,
        7,
        None,
    )
    with serving(sends(listing(*odd, "good"))) as (port, _):
        (server,) = found(port)
    assert server.models == ("openai/good",)


@pytest.mark.parametrize(
    "answer",
    [
        sends(b"no JSON"), sends(b"[1]"), sends(b'{"data": 3}'), sends(b'{"data": [[]]}'), sends(listing(), 500),
        sends(b"[" * 100_000), sends(listing("x" * 100, *["y" * 150] * 10_000)),
    ],
)  # fmt: skip
def test_what_is_no_list_of_models_is_no_server(answer: Answer) -> None:
    with serving(answer) as (port, _):
        assert found(port) == []


def test_a_redirect_leads_nowhere() -> None:
    with serving(sends(listing("stolen"))) as (other, asked):
        to = f"http://127.0.0.1:{other}/v1/models"
        with serving(sends(b"", 302, Location=to)) as (port, _):
            assert found(port) == []
        assert asked == []


def test_packed_bytes_are_not_unpacked() -> None:
    with serving(sends(listing("packed"), Content_Encoding="gzip")) as (port, _):
        assert [server.models for server in found(port)] == [("openai/packed",)]


def test_a_proxy_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(sends(listing("of the proxy"))) as (proxy, asked):
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        with serving(sends(listing("own"))) as (port, _):
            assert [server.models for server in found(port)] == [("openai/own",)]
        assert asked == []


def test_one_that_never_finishes_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is for the whole answer: a byte now and then does not extend it."""
    monkeypatch.setattr(local_servers, "_TIMEOUT", 0.5)
    over = threading.Event()

    def drips(handler: BaseHTTPRequestHandler) -> None:
        sends(b"{")(handler)
        while not over.wait(0.1):  # a time-out is what is tested
            handler.wfile.write(b" ")

    with serving(drips) as (port, _):
        try:
            assert run(find_local_servers([("Ollama", port)])) == []
        finally:
            over.set()


def test_nothing_listens() -> None:
    with serving(sends(b"")) as (port, _):
        pass
    assert found(port) == []
