"""The context that a server was started with, in the answers of each server, and what answers that is none of these."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from loopback_http import LoopbackHandler, LoopbackServer
from support import run

from llm_sandbox_nb.model import remote_model
from llm_sandbox_nb.model.contract import ContextLimit
from llm_sandbox_nb.model.model_names import make_model
from llm_sandbox_nb.model.served_context import served_context

NAME = "qwen/qwen3-4b"
OPENAI_LIST = {"object": "list", "data": [{"id": NAME, "object": "model", "owned_by": "library"}]}


class Answers(dict[str, Any]):
    """Answers by path; `asked` are the paths, `headers` those of the newest request."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.asked: list[str] = []
        self.headers: dict[str, str] = {}


class _Server(LoopbackServer):
    answers: Answers


class _Handler(LoopbackHandler):
    protocol_version = "HTTP/1.0"
    server: _Server

    def do_GET(self) -> None:
        answers = self.server.answers
        answers.asked.append(self.path)
        answers.headers = self.lower_headers()
        found = answers.get(self.path.split("?")[0])
        if callable(found):
            found = found()
        if isinstance(found, int):
            self.send_response(found)
            self.send_header("location", "/v1/elsewhere")
        else:
            self.send_response(404 if found is None else 200)
        self.end_headers()
        self.wfile.write(found if isinstance(found, bytes) else json.dumps(found).encode())

    def do_POST(self) -> None:
        self.data()
        self.do_GET()


@contextmanager
def serving(answers: Answers) -> Iterator[str]:
    with _Server(_Handler) as server:
        server.answers = answers
        yield server.url


def listed(**more: Any) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": "other", "max_model_len": 1000}, {"id": NAME, **more}]}


SERVERS: dict[str, tuple[dict[str, Any], int | None]] = {
    "vLLM, SGLang": ({"/v1/models": listed(max_model_len=8192)}, 8192),
    "OpenRouter": ({"/v1/models": listed(context_length=131_072)}, 131_072),
    "llama.cpp": (
        {
            "/v1/models": {"object": "list", "data": [{"id": "m.gguf", "meta": {"n_ctx_train": 40_960}}]},
            "/props": {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 1},
        },
        4096,
    ),
    "Ollama, loaded": (
        {
            "/v1/models": OPENAI_LIST,
            "/api/ps": {"models": [{"name": f"{NAME}:latest", "context_length": 4096}]},
        },
        4096,
    ),
    "Ollama, not loaded, with num_ctx in its file": (
        {
            "/v1/models": OPENAI_LIST,
            "/api/ps": {"models": []},
            "/api/show": {
                "parameters": 'stop "x"\nnum_ctx    16384\n',
                "model_info": {"q.context_length": 40_960},
            },
        },
        16_384,
    ),
    "Ollama, not loaded": (
        {
            "/v1/models": OPENAI_LIST,
            "/api/ps": {"models": []},
            "/api/show": {"parameters": "", "model_info": {"qwen3.context_length": 40_960}},
        },
        None,
    ),
    "Ollama, another model loaded": (
        {"/v1/models": OPENAI_LIST, "/api/ps": {"models": [{"name": "other:1b", "context_length": 4096}]}},
        None,
    ),
    "LM Studio": (
        {
            "/v1/models": OPENAI_LIST,
            "/api/v1/models": {
                "models": [
                    {
                        "key": "other",
                        "loaded_instances": [{"id": "other", "config": {"context_length": 999}}],
                    },
                    {
                        "key": NAME,
                        "max_context_length": 262_144,
                        "loaded_instances": [{"id": "a", "config": {"context_length": 4096}}],
                    },
                ]
            },
        },
        4096,
    ),
    "LM Studio, not loaded": (
        {
            "/v1/models": OPENAI_LIST,
            "/api/v1/models": {"models": [{"key": NAME, "max_context_length": 9000, "loaded_instances": []}]},
        },
        None,
    ),
    "TGI": (
        {
            "/v1/models": OPENAI_LIST,
            "/info": {"model_id": NAME, "max_input_tokens": 4095, "max_total_tokens": 4096},
        },
        4096,
    ),
    "TGI, an older one": ({"/info": {"model_id": NAME, "max_input_length": 1024}}, 1024),
    "a server that tells nothing": ({"/v1/models": OPENAI_LIST}, None),
    "numbers that are none": (
        {
            "/v1/models": listed(max_model_len="8192"),
            "/props": {"default_generation_settings": {"n_ctx": True}},
            "/info": {"max_total_tokens": -1, "max_input_tokens": "4096"},
            "/api/ps": {"models": [{"name": NAME, "context_length": 0}]},
            "/api/v1/models": {"models": [{"loaded_instances": [{"config": {"context_length": 1e300}}]}]},
        },
        None,
    ),
    "shapes that are none": (
        {
            "/v1/models": [1],
            "/props": "n_ctx",
            "/info": [4096],
            "/api/ps": {"models": {"a": 1}},
            "/api/v1/models": {"models": [1]},
        },
        None,
    ),
    "no JSON": ({"/v1/models": b"<html>", "/props": b"[" * 100_000, "/api/ps": b"\xff"}, None),
    "too much": ({"/v1/models": b" " * 17_000_000 + b"{}"}, None),
    "a redirect": ({"/v1/models": 302, "/v1/elsewhere": listed(max_model_len=8192)}, None),
}


@pytest.mark.parametrize("server", SERVERS)
def test_each_server_tells_it_at_its_own_place(server: str) -> None:
    answers, expected = SERVERS[server]
    with serving(Answers(answers)) as url:
        assert run(served_context(url, NAME)) == expected


def test_the_key_goes_to_the_same_address_only_and_where_one_answer_is_enough_no_other_is_asked_for() -> None:
    answers = Answers({"/v1/models": listed(max_model_len=8192)})
    with serving(answers) as url:
        run(served_context(url, NAME, "the-key"))
        assert answers.headers["authorization"] == "Bearer the-key"
        assert answers.asked == ["/v1/models"]


def test_nobody_there_and_a_server_that_is_silent_cost_seconds_and_no_error() -> None:
    assert run(served_context("http://127.0.0.1:9/v1", NAME)) is None
    assert run(served_context("http://[broken", NAME)) is None
    answers = Answers({"/v1/models": lambda: time.sleep(60)})
    with serving(answers) as url:
        before = time.monotonic()
        assert run(served_context(url, NAME)) is None
        assert time.monotonic() - before < 30


def test_a_model_asks_its_server_first_and_then_the_list_of_models() -> None:
    with serving(Answers({"/v1/models": {"data": [{"id": "gpt-4o", "max_model_len": 5000}]}})) as url:
        assert run(make_model("openai/gpt-4o", api_base=url).context_limit()) == ContextLimit(5000, True)
    with serving(Answers({"/v1/models": OPENAI_LIST})) as url:
        model = make_model("openai/gpt-4o", api_base=url)
        assert run(model.context_limit()) == ContextLimit(128_000, False)
        assert run(make_model("own-model", api_base=url).context_limit()) is None
    assert run(make_model("nobody-knows-it").context_limit()) is None


def test_a_report_counts_for_a_minute_and_until_the_first_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark asks for each of its tasks; a server may load the model for its first reply."""
    answers = Answers({"/v1/models": OPENAI_LIST})
    with serving(answers) as url:
        model = make_model("own-model", api_base=url)

        def requests() -> int:
            before = len(answers.asked)
            assert run(model.context_limit()) is None
            return len(answers.asked) - before

        assert (requests(), requests()) == (5, 0)
        model._habits.answered = True
        assert (requests(), requests()) == (5, 0)
        monkeypatch.setattr(remote_model, "_REPORT_SECONDS", 0.0)
        assert requests() == 5


def test_runs_that_start_together_share_one_lookup() -> None:
    """64 workers of a benchmark sent 320 requests for their first replies."""
    answers = Answers({"/v1/models": OPENAI_LIST | {"data": [{"id": "own-model", "max_model_len": 5000}]}})

    async def limits(model: Any) -> list[Any]:
        asking = [asyncio.ensure_future(model.context_limit()) for _ in range(8)]
        await asyncio.sleep(0)
        asking[0].cancel()
        return await asyncio.gather(*asking, return_exceptions=True)

    with serving(answers) as url:
        model = make_model("own-model", api_base=url)
        cancelled, *others = run(limits(model))
        assert isinstance(cancelled, asyncio.CancelledError)
        assert others == [ContextLimit(5000, True)] * 7
        assert len(answers.asked) == 1
        assert asyncio.run(model.context_limit()) == ContextLimit(5000, True)  # in another event loop
