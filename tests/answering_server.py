"""A model server on loopback that a test writes as one function: what it answers to each request, in its exact words.

def answer(asked: Asked) -> Answer | None:         # None: a reply that submits
    return refused(400, "System role not supported") if asked.roles[0] == "system" else None

with AnsweringServer(answer) as server:
    make_model("m", api_base=server.url, api_key="key")
    ...
    server.posts[0].body["messages"]
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from loopback_http import LoopbackHandler, LoopbackServer


@dataclass(frozen=True)
class Asked:
    """One request."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    """With names in lower case."""
    number: int
    """Of the requests that were posted, from 0."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        return list(self.body["messages"])

    @property
    def roles(self) -> list[str]:
        return [str(message["role"]) for message in self.messages]


@dataclass(frozen=True)
class Answer:
    """What the server sends."""

    status: int = 200
    body: Any = None
    """JSON, a text, or pieces of bytes that are sent as they come."""
    type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


def refused(status: int, message: str, **more: Any) -> Answer:
    return Answer(status, {"error": {"message": message, "type": "invalid_request_error", **more}})


def replied(*calls: dict[str, Any], text: str = "", finish: str = "tool_calls", **more: Any) -> Answer:
    """A whole message. `more` are further fields of it."""
    message = {"role": "assistant", "content": text, **({"tool_calls": list(calls)} if calls else {}), **more}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return Answer(200, {"id": "r", "object": "chat.completion", "choices": [choice], "usage": usage})


def tool_call(
    name: str, arguments: dict[str, Any] | str, identity: str = "call_1", **more: Any
) -> dict[str, Any]:
    """A call; `more` are further fields of it."""
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": written}, **more}


SUBMITS = replied(tool_call("submit", {}, "call_last"))


class AnsweringServer(LoopbackServer):
    """See the module. `url` has `/v1`, `root` has not."""

    def __init__(
        self,
        answer: Callable[[Asked], Answer | None] = lambda asked: None,
        *,
        models: tuple[str, ...] | None = ("m",),
        path: str = "/v1",
        port: int = 0,
        wrong_path: Answer | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """`models` are listed at `path`/models; None lists nothing. `wrong_path` is the answer everywhere else.

        `more` are the JSON answers of further paths, to GET and POST.
        """
        self.answer, self.models, self.path = answer, models, path
        self.wrong_path = wrong_path or Answer(404, "404 page not found", "text/plain")
        self.posts: list[Asked] = []
        self.more = dict(more or {})
        self.asked: list[str] = []
        """The paths of `more` that were asked."""
        self.misses: list[str] = []
        """Paths at which there is nothing, and which were asked."""
        self._lock = threading.Lock()
        super().__init__(_Handler, port)

    @property
    def port(self) -> int:
        return self.server_port

    @property
    def url(self) -> str:
        return self.root + self.path

    def get(self, path: str) -> Answer:
        if found := self._more(path):
            return found
        if self.models is not None and path == f"{self.path}/models":
            return Answer(
                200, {"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]}
            )
        return self.wrong_path

    def post(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> Answer:
        if found := self._more(path):
            return found
        if path != f"{self.path}/chat/completions":
            self.misses.append(path)
            return self.wrong_path
        with self._lock:
            asked = Asked(path, body, headers, len(self.posts))
            self.posts.append(asked)
        return self.answer(asked) or SUBMITS

    def _more(self, path: str) -> Answer | None:
        path = path.partition("?")[0]
        if path not in self.more:
            return None
        self.asked.append(path)
        return Answer(200, self.more[path])


class _Handler(LoopbackHandler):
    server: AnsweringServer

    def do_GET(self) -> None:
        self._send(self.server.get(self.path))

    def do_POST(self) -> None:
        body = self.body()
        try:
            self._send(self.server.post(self.path, self.lower_headers(), body))
        except OSError:
            self.close_connection = True

    def _send(self, answer: Answer) -> None:
        if not isinstance(answer.body, Iterator):
            return self.send(answer.status, answer.body, answer.headers, answer.type)
        self.send_response(answer.status)
        self.send_header("content-type", answer.type)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("connection", "close")
        self.end_headers()
        for piece in answer.body:
            self.wfile.write(piece)
            self.wfile.flush()
        self.close_connection = True
        return None
