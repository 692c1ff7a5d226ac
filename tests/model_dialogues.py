"""Dialogues with scripted model servers, and a record of them: requests, pieces of text, replies and errors.

The record, `tests/data/model_dialogues.json.gz`, was first made while LiteLLM asked these servers. A change of it must
be intended: `PYTHONPATH=tests:. python tests/model_dialogues.py` writes it anew, and prints the differences.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from scripted_faults import (
    DROP_AT_ONCE,
    FORBIDDEN,
    NOT_FOUND,
    OVERFLOW_SENTENCES,
    OVERLOADED,
    QUOTA,
    SERVER_ERROR,
    TEMPERATURE_REFUSED,
    TOKENS_PER_MINUTE,
    UNAUTHORIZED,
    Fault,
    overflow,
    rate_limited,
)  # fmt: skip
from scripted_server import ScriptedServer, with_results
from server_variants import VARIANTS, Variant
from variant_server import VariantServer

from llm_sandbox_nb.agent.model_call import well_formed
from llm_sandbox_nb.agent.tools.toolbox import TOOLS
from llm_sandbox_nb.model.contract import ModelError, ModelSettings
from llm_sandbox_nb.model.model_names import make_model
from llm_sandbox_nb.model.retries import RetryPolicy, reply_with_retries

RECORD = Path(__file__).parent / "data" / "model_dialogues.json.gz"
USER = [{"role": "system", "content": "You work."}, {"role": "user", "content": "Look at “é”."}]
PLAIN = ModelSettings(temperature=0.7, max_tokens=1000, timeout=60)
EVERYTHING = replace(
    PLAIN, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.1, extra_body={"seed": 1, "x": {"y": 2}}
)
FAST = RetryPolicy(attempts=2, first_wait=0.0, longest_wait=0.0, loading_wait=0.1, loading_pause=0.05)
SCRIPT = """
chunk: 4
turns:
  - reasoning: I should look first.
    text: Two looks at once, and one that is broken.
    calls:
      - {tool: execute_bash, arguments: {command: "ls 'a b' && echo \\"é\\""}}
      - {tool: execute_bash, arguments: {}}
      - {tool: str_replace_editor, raw_arguments: '{"command": "view", '}
    usage: {prompt_tokens: 1000, completion_tokens: 50, cached_tokens: 600, reasoning_tokens: 20}
  - text: Done.
    calls: [{tool: submit}]
"""
NAMES = (
    "my-model", "Qwen/Qwen3-4B", "openai/gpt-4o", "openai/gpt-5", "openai/gpt-5.1", "openai/gpt-5-chat-latest",
    "openai/o3", "openai/o1", "gpt-4.1-mini", "hosted_vllm/my-model", "deepseek/deepseek-chat",
    "deepseek/deepseek-reasoner", "together_ai/meta/llama", "groq/llama", "moonshot/kimi-k2", "lm_studio/model",
    "llamafile/model", "ollama/llama3",
)  # fmt: skip
BODIES: dict[str, tuple[int, str, bytes]] = {
    "a web page": (200, "text/html", b"<html>Welcome</html>"),
    "an error page": (502, "text/html", b"<html><title>502 Bad Gateway</title></html>"),
    "an empty error": (500, "text/plain", b""),
    "an error as text": (400, "text/plain", b"max_tokens must be positive"),
    "an error in a list": (400, "application/json", b'[{"error": {"message": "no such thing", "code": 400}}]'),
    "a detail": (422, "", b'{"detail": [{"loc": ["body", "messages"], "msg": "bad", "type": "value_error"}]}'),
    "wrong JSON": (200, "text/event-stream", b'data: {"choices": [{"delta": {"content": "a"}}\n\ndata: [DONE]\n\n'),
    "nothing": (200, "text/event-stream", b""),
    "only the end": (200, "text/event-stream", b"data: [DONE]\n\n"),
    "an error in the stream": (200, "", b'data: {"error": {"message": "CUDA error", "code": 500}}\n\n'),
    "an overflow in the stream": (
        200, "text/event-stream",
        b'data: {"error": {"message": "the request exceeds the available context size", "code": 400}}\n\n',
    ),
    "an endless line": (200, "text/event-stream", b'data: {"choices": [], "x": "' + b"y" * (33 << 20)),
    "a text of errors": (200, "", b'{"error": "Unexpected endpoint or method. (POST /v1/chat/completions)"}'),
    "content policy": (400, "application/json", b'{"error": {"message": "Rejected by our safety '
                       b'system.", "code": "content_policy_violation", "type": "invalid_request_error"}}'),
    "content management": (400, "application/json", b'{"error": {"message": "Filtered due to the '
                           b'content management policy", "code": "content_filter"}}'),
}  # fmt: skip


def play(*, every_variant: bool = True) -> dict[str, Any]:
    """Return the dialogues by name.

    Args:
        every_variant: False plays an eighth of the variants a second time, through `hosted_vllm`. Through OpenAI's
            name all are played: the code is the same behind both names.
    """
    numbers = itertools.count(1)
    plain = {
        name: value
        for name, value in os.environ.items()
        if not (name.endswith(("_API_KEY", "_BASE_URL", "_API_BASE")) or name.lower().endswith("_proxy"))
    }
    with (
        mock.patch.dict(os.environ, plain, clear=True),
        mock.patch(
            "llm_sandbox_nb.model.stream.uuid",
            SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=f"{next(numbers):09d}")),
        ),
    ):
        found = {}
        for name, dialogue in _dialogues(1 if every_variant else 8):
            assert name not in found
            numbers = itertools.count(1)
            found[name] = dialogue
        return found


def _dialogues(vllm_every: int) -> Iterator[tuple[str, Any]]:
    yield from _variants(vllm_every)
    yield from _names()
    yield from _faults()
    yield from _raw_bodies()
    yield from _missing_usage()


def _variants(vllm_every: int) -> Iterator[tuple[str, Any]]:
    with VariantServer() as server:
        for name, variants in (("my-model", VARIANTS), ("hosted_vllm/my-model", VARIANTS[::vllm_every])):
            for variant in variants:
                if variant.name == "another id in every piece":  # it differs from run to run
                    continue
                client = name.partition("/")[0]
                model = make_model(name, api_base=server.url_of(variant, client), api_key="key")
                made = _converse(model, EVERYTHING, server.root)
                yield (
                    f"{variant.name}, {name}",
                    made | {"requests": _bodies(server.requests(variant, client))},
                )


def _names() -> Iterator[tuple[str, Any]]:
    for name in NAMES:
        for settings in (PLAIN, EVERYTHING):
            with ScriptedServer(SCRIPT, strict=False) as server:
                address = server.url
                made = _converse(make_model(name, api_base=address, api_key="key"), settings, server.root)
                yield f"name {name}, {len(settings.extra_body)}", made | _requests(server)
    for name in ("my-model", "hosted_vllm/my-model", "deepseek/deepseek-chat"):
        with ScriptedServer(SCRIPT, strict=False) as server:
            yield (
                f"no key, {name}",
                _converse(make_model(name, api_base=server.url), PLAIN, server.root) | _requests(server),
            )
        with ScriptedServer(SCRIPT, api_key="secret") as server:
            yield (
                f"a key is missing, {name}",
                _converse(make_model(name, api_base=server.url), PLAIN, server.root),
            )
        variable = f"{name.partition('/')[0].upper()}_API_KEY" if "/" in name else "OPENAI_API_KEY"
        with (
            ScriptedServer(SCRIPT, strict=False) as server,
            mock.patch.dict(os.environ, {variable: "of-environment"}),
        ):
            made = _converse(make_model(name, api_base=server.url), PLAIN, server.root)
            yield f"a key of the environment, {name}", made | _requests(server)
    addresses = [
        ("OPENAI_BASE_URL", "my-model"),
        ("OPENAI_BASE_URL", "openai/my-model"),
        ("HOSTED_VLLM_API_BASE", "hosted_vllm/my-model"),
        ("DEEPSEEK_API_BASE", "deepseek/my-model"),
    ]
    for variable, name in addresses:
        with (
            ScriptedServer(SCRIPT, strict=False) as server,
            mock.patch.dict(os.environ, {variable: server.url}),
        ):
            made = _converse(make_model(name, api_key="key"), PLAIN, server.root)
            yield f"address in {variable}, {name}", made | _requests(server)
    for name in ("openai/gpt-4o", "gpt-4o", "deepseek/deepseek-chat", "hosted_vllm/m", "nobody-knows"):
        yield f"no key at all, {name}", _converse(make_model(name), PLAIN, "http://nowhere")


def _faults() -> Iterator[tuple[str, Any]]:
    faults = [
        DROP_AT_ONCE, FORBIDDEN, NOT_FOUND, OVERLOADED, QUOTA, SERVER_ERROR, TEMPERATURE_REFUSED, TOKENS_PER_MINUTE,
        UNAUTHORIZED, rate_limited(0), rate_limited(3000), Fault(pieces=3), Fault(pieces=3, how="cut"),
        Fault(pieces=3, how="error", message="CUDA error", type="internal", code=500),
        Fault(pieces=3, how="error", message="slow down", type="requests", code=429),
        *(overflow(vendor, 5000, 4000, 1000) for vendor in OVERFLOW_SENTENCES),
    ]  # fmt: skip
    for name in ("my-model", "hosted_vllm/my-model", "deepseek/my-model", "openai/gpt-4o"):
        for number, fault in enumerate(faults):
            with ScriptedServer(SCRIPT, strict=False) as server:
                server.fail_next(fault, fault)
                made = _converse(make_model(name, api_base=server.url, api_key="key"), PLAIN, server.root)
                yield f"fault {number} {fault.status} {fault.how}, {name}", made | _requests(server)


def _raw_bodies() -> Iterator[tuple[str, Any]]:
    for title, answer in BODIES.items():
        for name in ("my-model", "hosted_vllm/my-model"):
            variant = Variant(title, first_answer=answer)
            with VariantServer([variant]) as server:
                model = make_model(name, api_base=server.url_of(variant, "x"), api_key="key")
                made = _converse(model, PLAIN, server.root)
                yield f"{title}, {name}", made | {"requests": _bodies(server.requests(variant, "x"))}


def _missing_usage() -> Iterator[tuple[str, Any]]:
    for name in ("openai/gpt-4o", "hosted_vllm/my-model"):
        with ScriptedServer(SCRIPT, strict=False, usage=False) as server:
            made = _converse(make_model(name, api_base=server.url, api_key="key"), PLAIN, server.root)
            yield f"a server that reports no usage, {name}", made | _requests(server)


def _converse(model: Any, settings: ModelSettings, root: str) -> dict[str, Any]:
    pieces: list[tuple[str, str]] = []
    failures: list[Any] = []
    replies: list[Any] = []

    def failed(attempt: int, error: ModelError, wait: float | None) -> None:
        failures.append([attempt, error.kind, error.retryable, error.retry_after, error.learned, str(error)])

    async def ask(messages: list[dict[str, Any]]) -> Any:
        reply = await reply_with_retries(
            model, messages, TOOLS.schemas(), settings, policy=FAST, on_failure=failed,
            on_delta=lambda text, reasoning: pieces.append((text, reasoning)),
        )  # fmt: skip
        replies.append(asdict(reply) | {"usage": reply.usage.model_dump() if reply.usage else None})
        return reply

    async def both() -> None:
        with_error = contextlib.suppress(ModelError)
        with with_error:
            first = well_formed(await ask(USER))
            await ask([*USER, *(with_results(first) if first.calls else [first.message, USER[1]])])

    asyncio.run(both())
    shown = ["".join(text for text, _ in pieces), "".join(reasoning for _, reasoning in pieces)]
    made = {"replies": replies, "failures": failures, "shown": shown}
    return dict(json.loads(json.dumps(made).replace(root, "http://server")))


def _requests(server: ScriptedServer) -> dict[str, Any]:
    keys = [request.headers.get("authorization") for request in server.requests]
    paths = [request.path for request in server.requests]
    return {"requests": _bodies([request.body for request in server.requests]), "keys": keys, "paths": paths}


def _bodies(bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return bodies without the tools, if they are those of the toolbox."""
    return [body | {"tools": "all"} if body.get("tools") == TOOLS.schemas() else body for body in bodies]


def recorded() -> dict[str, Any]:
    return dict(json.loads(gzip.decompress(RECORD.read_bytes())))


def differences(before: Any, now: Any, place: str = "") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            yield from differences(before.get(name), now.get(name), f"{place}.{name}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from differences(one, other, f"{place}[{number}]")
    elif before != now:
        yield f"{place.removeprefix('.')}: {before!r} -> {now!r}"


if __name__ == "__main__":
    played = play()
    if RECORD.exists():
        print("\n".join(differences(recorded(), played)))
    RECORD.write_bytes(gzip.compress(json.dumps(played, indent=1, ensure_ascii=False).encode(), mtime=0))
