"""An OpenAI-compatible server on loopback that plays a script: real HTTP, streaming, every failure.

    with ScriptedServer(SCRIPT) as server:                # YAML text, a path, a packaged name, or a `Script`
        server.fail_next(rate_limited(retry_after=2))     # the next request fails, the one after is played
        model = make_model("openai/anything", api_base=server.url, api_key="key")
        ...
        server.requests[0].body["temperature"]

`strict` (the default) rejects what strict providers reject: a tool call without exactly one result, unknown
fields. `python tests/scripted_server.py SCRIPT` serves by hand, with the repository in PYTHONPATH.
`/v1/messages` speaks Anthropic's dialect of the same script. The failures are in `scripted_faults`.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopback_http import LoopbackHandler, LoopbackServer
from scripted_anthropic import anthropic_events, as_openai_messages
from scripted_faults import UNAUTHORIZED, Fault
from scripted_strict import StrictError, check_anthropic_request, check_request

from llm_sandbox_nb.model.contract import ModelError, Reply
from llm_sandbox_nb.model.known_history import KnownHistories
from llm_sandbox_nb.model.scripted import Player, Script, ScriptTurn, call_id, load_script, parse_script


@dataclass
class RecordedRequest:
    """One request as the server saw it."""

    path: str
    headers: dict[str, str]
    """With names in lower case."""
    body: dict[str, Any]
    time: float
    data: bytes = b""
    """The body as it came."""
    status: int = 0
    pieces: int = 0
    """Pieces of the stream that were written."""
    closed_after: float | None = None
    """Seconds from the request to the moment the client hung up before the end."""
    finished: threading.Event = field(default_factory=threading.Event)

    @property
    def messages(self) -> list[dict[str, Any]]:
        return list(self.body["messages"])


class ScriptedServer(LoopbackServer):
    """See the module. `url` is the base address, `/v1` included; Anthropic's client wants `root`."""

    def __init__(
        self,
        script: str | Path | Script,
        *,
        strict: bool = True,
        api_key: str | None = None,
        extra_fields: tuple[str, ...] = (),
        usage: bool = True,
        port: int = 0,
    ) -> None:
        self.script = _load(script)
        self.strict, self.api_key, self.extra_fields = strict, api_key, extra_fields
        self.usage = usage
        self.requests: list[RecordedRequest] = []
        self.faults: deque[Fault] = deque()
        self.player = Player(self.script)
        self.arrived = threading.Event()
        self.held: dict[int, threading.Event] = {}
        """Requests that get no answer before their event, by number from 1."""
        self._lock = threading.Lock()
        super().__init__(_Handler, port)

    def fail_next(self, *faults: Fault) -> None:
        """The next requests fail like this, one each."""
        self.faults.extend(faults)

    @contextmanager
    def held_at(self, number: int) -> Iterator[None]:
        """Answer a request, by its number from 1, at the end of the block."""
        self.held[number] = threading.Event()
        try:
            yield
        finally:
            self.held[number].set()

    def take_fault(self) -> Fault | None:
        """The fault for this request, if one is due."""
        with self._lock:
            return self.faults.popleft() if self.faults else None


def with_results(reply: Reply) -> list[dict[str, Any]]:
    return [
        reply.message,
        *({"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in reply.calls),
    ]


class _Closed(Exception):
    """The client hung up, or the script wants the connection gone."""


class _Handler(LoopbackHandler):
    server: ScriptedServer

    def do_GET(self) -> None:
        models = [{"id": "scripted", "object": "model", "created": 0, "owned_by": "tests"}]
        self.send(200, {"object": "list", "data": models})

    def do_POST(self) -> None:
        scripted, data = self.server, self.data()
        body = json.loads(data or b"{}")
        record = RecordedRequest(self.path, self.lower_headers(), body, time.monotonic(), data=data)
        scripted.requests.append(record)
        scripted.arrived.set()
        self.record = record
        try:
            self._answer(scripted, record)
        except (_Closed, OSError) as error:
            self.close_connection = True
            if isinstance(error, OSError):  # it hung up between a look and a write
                record.closed_after = time.monotonic() - record.time
        finally:
            record.finished.set()

    def _answer(self, scripted: ScriptedServer, record: RecordedRequest) -> None:
        if scripted.held and (held := scripted.held.get(scripted.requests.index(record) + 1)):
            held.wait()
        fault = scripted.take_fault()
        if fault:
            self._sleep(fault.delay)
        if fault and fault.pieces is None and fault.status != 200:
            self._fail(fault)
        elif fault and fault.pieces == 0 and fault.how == "drop":
            self._reset()
        elif refusal := self._refusal(scripted, record):
            self._fail(refusal)
        else:
            self._play(scripted, record, fault)

    def _refusal(self, scripted: ScriptedServer, record: RecordedRequest) -> Fault | None:
        key = self.headers.get("x-api-key") or (self.headers.get("authorization") or "").removeprefix(
            "Bearer "
        )
        if scripted.api_key is not None and key != scripted.api_key:
            return UNAUTHORIZED
        try:
            if record.path.endswith("/messages"):
                check_anthropic_request(record.body)
            elif not record.path.endswith("/chat/completions"):
                return Fault(404, f"Invalid URL (POST {record.path})")
            elif scripted.strict:
                check_request(record.body, scripted.extra_fields)
        except StrictError as error:
            return Fault(400, str(error))
        return None

    def _play(self, scripted: ScriptedServer, record: RecordedRequest, fault: Fault | None) -> None:
        anthropic = record.path.endswith("/messages")
        messages = as_openai_messages(record.body) if anthropic else record.messages
        try:
            number = KnownHistories().read(messages).replies
            turn, error = scripted.player.next_turn(number)
        except ModelError as ended:
            return self._fail(Fault(400, str(ended)))
        if error:
            headers = {} if error.retry_after is None else {"Retry-After": f"{error.retry_after:g}"}
            return self._fail(Fault(error.status, error.message, error.kind, headers=headers))
        self._sleep(turn.delay)
        if not record.body.get("stream"):
            return self._send_json(200, _whole(number, turn, record.body))
        if anthropic:
            events = anthropic_events(scripted.script, number, turn, messages)
        else:
            body = record.body if scripted.usage else record.body | {"stream_options": None}
            events = _events(scripted.script, number, turn, body)
        self._stream(events, scripted.script.delay, fault)
        return None

    def _stream(self, events: Iterator[str], delay: float, fault: Fault | None) -> None:
        self.record.status = 200
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for number, event in enumerate(events):
            if fault and fault.pieces is not None and number >= fault.pieces:
                return self._break(fault)
            if number:
                self._sleep(delay)
            self._write(event)
            self.record.pieces += 1
        return self._end()

    def _break(self, fault: Fault) -> None:
        if fault.how == "drop":
            return self._reset()
        if fault.how == "error":
            body = fault.body or {"error": {"message": fault.message, "type": fault.type, "code": fault.code}}
            self._write(f"data: {json.dumps(body)}\n\n")
        return self._end()

    def _write(self, event: str) -> None:
        data = event.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _end(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def _fail(self, fault: Fault) -> None:
        error = {"message": fault.message, "type": fault.type, "param": fault.param, "code": fault.code}
        self._send_json(fault.status, fault.body or {"error": error}, fault.headers)

    def _send_json(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        self.record.status = status
        self.send(status, body, headers)

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        raise _Closed

    def _sleep(self, seconds: float) -> None:
        readable, _, _ = select.select([self.connection], [], [], seconds)
        if readable and not self.connection.recv(1, socket.MSG_PEEK):
            self.record.closed_after = time.monotonic() - self.record.time
            raise _Closed
        if readable:
            time.sleep(seconds)


def _load(script: str | Path | Script) -> Script:
    if isinstance(script, Script):
        return script
    if isinstance(script, str) and "turns:" in script:
        return parse_script(script)
    return load_script(str(script))


def _events(script: Script, number: int, turn: ScriptTurn, body: dict[str, Any]) -> Iterator[str]:
    def event(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> str:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
        chunk = {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": body["model"],
        }
        return f"data: {json.dumps(chunk | {'choices': choices} | more)}\n\n"

    yield event({"role": "assistant", "content": ""})
    for piece in script.pieces(turn.reasoning):
        yield event({"reasoning_content": piece})
    for piece in script.pieces(turn.text):
        yield event({"content": piece})
    for index, call in enumerate(turn.calls):
        function = {"name": call.tool, "arguments": ""}
        identity = {"id": call_id(number, index, call)} if call.id != "" else {}
        yield event({"tool_calls": [{"index": index, "type": "function", "function": function} | identity]})
        for piece in script.pieces(call.text):
            yield event({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield event({}, "tool_calls" if turn.calls else "stop")
    if (body.get("stream_options") or {}).get("include_usage"):
        yield event(None, usage=_usage(turn, body["messages"]))
    yield "data: [DONE]\n\n"


def _usage(turn: ScriptTurn, messages: list[dict[str, Any]]) -> dict[str, Any]:
    used = turn.usage_for(KnownHistories().read(messages).characters)
    return {
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "total_tokens": used.prompt_tokens + used.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": used.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
    }


def _whole(number: int, turn: ScriptTurn, body: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {"id": call_id(number, i, c), "type": "function", "function": {"name": c.tool, "arguments": c.text}}
        for i, c in enumerate(turn.calls)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": turn.text}
    message |= {"tool_calls": calls} if calls else {}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    head = {"id": f"chatcmpl-{number}", "object": "chat.completion", "created": 1, "model": body["model"]}
    return head | {"choices": [choice], "usage": _usage(turn, body["messages"])}


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a script as an OpenAI-compatible API on loopback.")
    parser.add_argument("script", help="name of a packaged script, or path of a YAML file")
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    with ScriptedServer(arguments.script, port=arguments.port) as server:
        print(server.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
