"""A model server with a small context. Its model works through sixty commands and needs what two of them print.

The model sees only what is sent to it: it takes the number of its step from the newest message, and calls a command
again when its output is not there any more. Requests that do not fit are refused in the words of llama.cpp or vLLM.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Literal

from loopback_http import LoopbackHandler, LoopbackServer

Words = Literal["llama.cpp", "vllm", "ollama"]
STEPS = 60
LARGE_STEP = 30
"""Its command prints more than a context of 4k holds."""
FIRST = "cat input/first.txt; seq -s ' ' 1 500 | fold -w 200"
LATE = "cat input/late.txt; seq -s ' ' 1 500 | fold -w 200"


def command_of(step: int) -> str:
    if step == LARGE_STEP:
        return "seq -s ' ' 1 4000 | fold -w 200"
    return {1: FIRST, 58: LATE}.get(step, f"echo step {step}; seq -s ' ' {step} {step + 500} | fold -w 200")


def tokens_of(value: object) -> int:
    """As this server counts: more than an estimate of four bytes each."""
    return math.ceil(len(json.dumps(value)) / 3.4)


def plan(messages: list[dict[str, Any]], steps: int) -> tuple[str, dict[str, Any]]:
    remaining = re.findall(r"\[Steps remaining: (\d+)\]", str(messages[-1]["content"]))
    step = steps - int(remaining[-1]) + 1
    if step < STEPS:
        return "execute_bash", {"command": command_of(step)}
    seen = "\n".join(str(message.get("content")) for message in messages if message["role"] == "tool")
    found = {name: re.findall(rf"{name}=(\d+)", seen) for name in ("first", "late")}
    if "answer saved" in str(messages[-1]["content"]):
        return "submit", {}
    for name, command in (("first", FIRST), ("late", LATE)):
        if not found[name]:
            return "execute_bash", {"command": command}
    answer = f"{found['first'][0]} and {found['late'][0]}"
    return "execute_bash", {"command": f"echo '{answer}' > output/answer.txt; echo answer saved"}


class SmallContextServer(LoopbackServer):
    """See the module. `tells`: whether it tells its limit when it is asked."""

    def __init__(self, limit: int, words: Words, *, tells: bool = False, steps: int = 100) -> None:
        self.limit, self.words, self.tells, self.steps = limit, words, tells, steps
        self.requests: list[dict[str, Any]] = []
        """The bodies of all requests for a reply."""
        self.left_out: list[int] = []
        """How many messages it left out of each request that it answered."""
        self.counts: list[int] = []
        """The tokens of the prompts that it answered."""
        self.refused = 0
        self.asked: list[str] = []
        """Paths of all other requests."""
        super().__init__(_Handler)

    def refusal(self, body: dict[str, Any]) -> dict[str, Any] | None:
        prompt, most = tokens_of([body["messages"], body.get("tools")]), body.get("max_tokens") or 0
        if self.words == "vllm" and prompt + most > self.limit:
            message = (
                f"This model's maximum context length is {self.limit} tokens. However, you requested {prompt + most} "
                f"tokens ({prompt} in the messages, {most} in the completion). Please reduce the length of the "
                "messages or completion."
            )
            return {
                "object": "error",
                "message": message,
                "type": "BadRequestError",
                "param": None,
                "code": 400,
            }
        if self.words != "llama.cpp" or prompt < self.limit:
            return None
        message = f"request ({prompt} tokens) exceeds the available context size ({self.limit} tokens)"
        message += ", try increasing it"
        error = {"code": 400, "message": message, "type": "exceed_context_size_error"}
        return {"error": error | {"n_prompt_tokens": prompt, "n_ctx": self.limit}}

    def kept(self, messages: list[dict[str, Any]], tools: object) -> int:
        """The tokens that are read: Ollama leaves the oldest messages out and says nothing."""
        messages, before = list(messages), len(messages)
        while self.words == "ollama" and len(messages) > 2 and tokens_of([messages, tools]) > self.limit:
            del messages[1]
        self.left_out.append(before - len(messages))
        return tokens_of([messages, tools])


class _Handler(LoopbackHandler):
    server: SmallContextServer

    def do_GET(self) -> None:
        server = self.server
        path = self.path.split("?")[0]
        server.asked.append(path)
        answers: dict[str, Any] = {
            "/v1/models": {"object": "list", "data": [{"id": "small", "object": "model"}]}
        }
        if server.words == "ollama":
            loaded = (
                [{"name": "small:latest", "context_length": server.limit}]
                if server.tells and server.requests
                else []
            )
            answers["/api/ps"] = {"models": loaded}
        elif server.tells and server.words == "vllm":
            answers["/v1/models"]["data"][0]["max_model_len"] = server.limit
        elif server.tells:
            answers["/props"] = {"default_generation_settings": {"n_ctx": server.limit}}
        found = answers.get(path)
        self.send(200 if found else 404, found or {"error": "not found"})

    def do_POST(self) -> None:
        server, body = self.server, self.body()
        if not self.path.endswith("/chat/completions"):
            server.asked.append(self.path)
            self.send(404, {})
            return
        server.requests.append(body)
        if refusal := server.refusal(body):
            server.refused += 1
            self.send(400, refusal)
            return
        self._answer(server, body)

    def _answer(self, server: SmallContextServer, body: dict[str, Any]) -> None:
        messages = body["messages"]
        prompt = server.kept(messages, body.get("tools"))
        server.counts.append(prompt)
        number = len(server.requests)
        if "Write a summary" in str(messages[-1]["content"]):
            first = re.search(r"first=\d+", json.dumps(messages))
            delta: dict[str, Any] = {
                "content": f"I ran the commands one by one. Known: {first[0] if first else 'nothing'}."
            }
        else:
            name, arguments = plan(messages, server.steps)
            function = {"name": name, "arguments": json.dumps(arguments)}
            call = {"index": 0, "id": f"call{number:05}", "type": "function", "function": function}
            delta = {"content": "Next.", "tool_calls": [call]}
        finish = "tool_calls" if "tool_calls" in delta else "stop"
        usage = {"prompt_tokens": prompt, "completion_tokens": 30, "total_tokens": prompt + 30}
        head = {"id": f"c{number}", "object": "chat.completion.chunk", "created": 1, "model": "small"}
        chunks: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": {"role": "assistant"} | delta, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
            {"choices": [], "usage": usage},
        ]
        events = [f"data: {json.dumps(head | chunk)}\n\n" for chunk in chunks]
        self.send(200, "".join([*events, "data: [DONE]\n\n"]), kind="text/event-stream")
