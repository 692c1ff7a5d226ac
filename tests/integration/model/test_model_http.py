"""The model over real HTTP: what is sent, what comes back, how often, and what is said when it fails."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from model_dialogues import SCRIPT
from scripted_faults import (
    OVERFLOW_SENTENCES,
    TEMPERATURE_REFUSED,
    Fault,
    http_date,
    overflow,
    rate_limited,
)
from scripted_server import ScriptedServer
from server_variants import Variant
from support import PATIENCE, run
from variant_server import VariantServer

from llm_sandbox_nb.model.contract import ContextOverflowError, ModelError, ModelSettings, Reply
from llm_sandbox_nb.model.litellm_transport import backend
from llm_sandbox_nb.model.model_names import make_model
from llm_sandbox_nb.model.retries import COUNT_TOLERANCE_TOKENS, RetryPolicy, reply_with_retries

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("execute_bash", "str_replace_editor", "submit")
]
USER = [{"role": "system", "content": "You work."}, {"role": "user", "content": "Look."}]
FAST = RetryPolicy(first_wait=0.01, longest_wait=0.02)


@pytest.fixture(scope="module", autouse=True)
def _litellm() -> None:
    """Imported before the first test that has a time limit: on a busy machine this takes long."""
    backend()


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.endswith(("_API_KEY", "_BASE_URL", "_API_BASE")):
            monkeypatch.delenv(name)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(SCRIPT) as server:
        yield server


def ask(
    server: ScriptedServer,
    settings: ModelSettings | None = None,
    name: str = "my-model",
    messages: list[dict[str, Any]] = USER,
    **more: Any,
) -> Reply:
    model = make_model(name, api_base=server.url, **{"api_key": "key"} | more)
    return run(model.reply(messages, TOOLS, settings or ModelSettings()))


def failure(server: ScriptedServer, fault: Fault, **more: Any) -> ModelError:
    """The error that one request fails with; checks that it was one request and one sentence."""
    server.fail_next(fault)
    before = len(server.requests)
    with pytest.raises(ModelError) as caught:
        ask(server, **more)
    assert len(server.requests) == before + 1
    assert "\n" not in str(caught.value)
    assert "litellm" not in str(caught.value).lower()
    assert "Traceback" not in str(caught.value)
    return caught.value


def test_a_reply_arrives_in_pieces_and_whole(server: ScriptedServer) -> None:
    pieces: list[tuple[str, str]] = []
    model = make_model("my-model", api_base=server.url, api_key="key")
    reply = run(model.reply(USER, TOOLS, ModelSettings(), lambda *piece: pieces.append(piece)))
    assert reply.text == "".join(text for text, _ in pieces) == "Two looks at once, and one that is broken."
    assert reply.reasoning == "".join(reasoning for _, reasoning in pieces) == "I should look first."
    assert len(pieces) > 10
    assert [(call.name, call.arguments) for call in reply.calls] == [
        ("execute_bash", '{"command": "ls \'a b\' && echo \\"\\u00e9\\""}'),
        ("execute_bash", "{}"),
        ("str_replace_editor", '{"command": "view", '),
    ]
    assert reply.finish_reason == "tool_calls"
    assert (reply.response_id, reply.response_model) == ("chatcmpl-0", "my-model")


def test_the_price_is_that_of_the_table_with_cached_tokens_cheaper(server: ScriptedServer) -> None:
    import litellm

    prices = litellm.model_cost["gpt-4o"]
    reply = ask(server, name="openai/gpt-4o")
    usage = reply.usage
    assert usage is not None
    assert reply.context_window == litellm.model_cost["gpt-4o"]["max_input_tokens"]
    assert ask(server).context_window is None
    assert usage.cost == pytest.approx(
        400 * prices["input_cost_per_token"]
        + 600 * prices["cache_read_input_token_cost"]
        + 50 * prices["output_cost_per_token"]
    )


def test_fields_and_reasoning_of_other_providers_are_not_sent_back(server: ScriptedServer) -> None:
    """A conversation that went on with another model."""
    blocks = [{"type": "thinking", "thinking": "hm", "signature": "s"}]
    fields = {"provider_specific_fields": {"a": 1}, "refusal": None, "audio": 1, "thinking_blocks": blocks}
    assistant = {"role": "assistant", "content": "x", "reasoning_content": "hm", **fields}
    ask(server, messages=[*USER, assistant, {"role": "user", "content": "go on", "timestamp": 3}])
    assert server.requests[0].messages[2:] == [
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": "go on"},
    ]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("my-model", {"top_a": 1, "thinking": {"a": 1}}),
        ("hosted_vllm/my-model", {"top_a": 1, "metadata": {"a": 1}}),
        ("gemini/gemini-2.5-pro", {"cachedContent": "c", "generationConfig": {"thinkingConfig": {"a": 1}}}),
        ("ollama_chat/llama3", {"keep_alive": 5, "think": True}),
    ],
)
def test_further_fields_are_fields_of_the_request(
    server: ScriptedServer, name: str, fields: dict[str, Any]
) -> None:
    """The server refuses them, or does not speak the language; it has got them."""
    with pytest.raises(ModelError):
        ask(server, ModelSettings(max_tokens=100, extra_body=fields), name=name)
    body = server.requests[0].body
    assert fields.items() <= {**body, "generationConfig": fields.get("generationConfig")}.items()
    assert "100" in str(body)
    if "generationConfig" in fields:
        assert fields["generationConfig"].items() <= body["generationConfig"].items()


def test_what_is_not_set_is_not_sent(server: ScriptedServer) -> None:
    ask(server)
    named = {"model", "messages", "tools", "stream", "stream_options"}
    assert set(server.requests[0].body) == named | {"max_tokens"}, "a limit of tokens is always sent"


def test_a_setting_that_the_server_refuses_is_left_out_from_then_on(server: ScriptedServer) -> None:
    server.fail_next(TEMPERATURE_REFUSED)
    told: list[str] = []
    model = make_model("my-model", api_base=server.url, api_key="key")
    settings = ModelSettings(temperature=0.3, top_p=0.9)
    reply = run(
        reply_with_retries(
            model, USER, TOOLS, settings, on_failure=lambda _, error, wait: told.append(str(error))
        )
    )
    assert told == ["my-model does not accept the setting temperature: it is left out from now on."]
    assert reply.left_out == ("temperature",)
    run(model.reply(USER, TOOLS, settings))
    assert [request.body.get("temperature") for request in server.requests] == [0.3, None, None]
    assert [request.body.get("top_p") for request in server.requests] == [0.9] * 3


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("your-model", "your-model"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "Qwen/Qwen3-Coder-30B-A3B-Instruct"),
        ("openai/Qwen/Qwen3-4B", "Qwen/Qwen3-4B"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("gpt-4o", "gpt-4o"),
        ("hosted_vllm/Qwen/Qwen3-4B", "Qwen/Qwen3-4B"),
        ("deepseek/deepseek-chat", "deepseek-chat"),
        ("openrouter/meta/llama", "meta/llama"),
        ("together_ai/meta/llama", "meta/llama"),
    ],
)
def test_names_reach_the_address_given(server: ScriptedServer, name: str, sent: str) -> None:
    """The seed's rule for a name with no provider in front; every other provider stays reachable."""
    server.strict = False  # some providers of LiteLLM add fields of their own
    assert ask(server, name=name).calls[0].name == "execute_bash"
    assert server.requests[0].body["model"] == sent
    assert server.requests[0].headers["authorization"] == "Bearer key"


@pytest.mark.parametrize(
    ("name", "fields", "of_openai"),
    [
        ("openai/gpt-5-codex", {}, False),
        ("openai/responses/gpt-5-codex", {}, False),
        ("openai/gpt-5.4", {"reasoning_effort": "low"}, False),
        ("openai/gpt-5.4", {}, True),
    ],
)
def test_a_model_that_calls_tools_over_the_responses_api_is_asked_through_litellm(
    server: ScriptedServer,
    name: str,
    fields: dict[str, Any],
    of_openai: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("llm_sandbox_nb.model.route_choice.is_openai_itself", lambda address: of_openai)
    with pytest.raises(ModelError):  # the scripted server has no such address
        ask(server, ModelSettings(extra_body=fields), name=name)
    (request,) = server.requests
    assert (request.path, request.body["model"]) == ("/v1/responses", name.rpartition("/")[2])
    assert request.body.get("reasoning") == ({"effort": "low"} if fields else None)


@pytest.mark.parametrize("address", ["nonsense", "http://[", "http://host:port/v1"])
def test_a_wrong_address_in_the_environment_is_named(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", address)
    with pytest.raises(ModelError, match="check the address"):
        run(make_model("openai/gpt-5.5", api_key="key").reply(USER, TOOLS, ModelSettings()))


def test_an_endless_error_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_sandbox_nb.model.direct_transport._MAX_ERROR_BYTES", 1000)
    endless = Variant("endless", first_answer=(400, "text/plain", b"no " * 1_000_000))
    with (
        VariantServer([endless]) as server,
        pytest.raises(ModelError, match="refused the request: no no") as caught,
    ):
        run(
            make_model("m", api_base=server.url_of(endless, "x"), api_key="k").reply(
                USER, TOOLS, ModelSettings()
            )
        )
    assert len(str(caught.value)) < 1000


def test_openai_gets_a_schema_that_it_accepts(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As LiteLLM does: without alternatives at the top, and without regular expressions of other languages."""
    parts = {"a": {"type": "string", "pattern": "[0-9]+"}, "b": {"type": "string", "pattern": "(?<x>y)"}}
    schema = {"type": "object", "properties": parts, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    server.strict = False

    def sent() -> dict[str, Any]:
        run(make_model("my-model", api_base=server.url, api_key="k").reply(USER, [tool], ModelSettings()))
        return dict(server.requests[-1].body["tools"][0]["function"]["parameters"])

    assert sent() == schema
    monkeypatch.setattr("llm_sandbox_nb.model.direct_transport.is_openai_itself", lambda address: True)
    accepted = {"a": {"type": "string", "pattern": "[0-9]+"}, "b": {"type": "string"}}
    assert sent() == {"type": "object", "properties": accepted}


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("openai/gpt-5", "OPENAI_API_KEY"),
        ("gpt-5", "OPENAI_API_KEY"),
        ("anthropic/claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
        ("deepseek/deepseek-chat", "DEEPSEEK_API_KEY"),
        ("gemini/gemini-2.5-pro", "GEMINI_API_KEY"),
    ],
)
def test_no_key_is_said_before_anything_is_sent(name: str, variable: str) -> None:
    with pytest.raises(ModelError, match=rf"^No API key: set .*{variable}.* or pass --api_key \(in a cell"):
        run(make_model(name).reply(USER, TOOLS, ModelSettings()))


@pytest.mark.parametrize("name", ["your-model", "nonsense/model"])
def test_a_name_nobody_knows(name: str) -> None:
    with pytest.raises(
        ModelError, match=rf"No provider is known for the model {name}: .* --api-base"
    ) as caught:
        run(make_model(name).reply(USER, TOOLS, ModelSettings()))
    assert caught.value.kind == "not_found"


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/v1", "http://no-such-host.invalid/v1"])
def test_an_address_where_nobody_answers(address: str) -> None:
    model = make_model("m", api_base=address, api_key="k")
    with pytest.raises(
        ModelError, match=f"No model server answers at {address} .*: check the address"
    ) as caught:
        run(model.reply(USER, TOOLS, ModelSettings()))
    assert (caught.value.kind, caught.value.retryable) == ("unreachable", True)


def test_retry_after_in_seconds_and_as_a_date(server: ScriptedServer) -> None:
    assert failure(server, rate_limited(7)).retry_after == 7
    assert 0 < (failure(server, rate_limited(http_date(3000))).retry_after or 0) <= 3000
    assert failure(server, Fault(503, "busy", headers={"Retry-After": "4"})).retry_after == 4


@pytest.mark.parametrize("vendor", OVERFLOW_SENTENCES)
def test_an_overflow_is_understood_and_cured_where_fewer_tokens_do(
    server: ScriptedServer, vendor: str
) -> None:
    error = failure(server, overflow(vendor, 32768, 5000, 65536))
    assert isinstance(error, ContextOverflowError)
    assert (error.context_limit, error.prompt_tokens, error.kind) == (32768, 5000, "context")
    server.fail_next(overflow(vendor, 32768, 5000, 65536))
    model = make_model("my-model", api_base=server.url, api_key="key")
    run(reply_with_retries(model, USER, TOOLS, ModelSettings(max_tokens=65536)))
    assert [request.body["max_tokens"] for request in server.requests[1:]] == [
        65536,
        32768 - 5000 - COUNT_TOLERANCE_TOKENS,
    ]


def test_a_failure_in_the_middle_is_retried_from_the_start(server: ScriptedServer) -> None:
    server.fail_next(Fault(pieces=12), Fault(pieces=15, how="cut"))
    model = make_model("my-model", api_base=server.url, api_key="key")
    reply = run(reply_with_retries(model, USER, TOOLS, ModelSettings(), policy=FAST))
    assert reply.text == "Two looks at once, and one that is broken."
    assert len(reply.calls) == 3
    assert len(server.requests) == 3


def test_a_slow_server_meets_the_timeout_and_the_connection_is_closed(server: ScriptedServer) -> None:
    error = failure(server, Fault(delay=600), settings=ModelSettings(timeout=6))
    assert (error.kind, error.retryable) == ("timeout", True)
    assert server.requests[0].finished.wait(PATIENCE)
    assert server.requests[0].closed_after is not None


@pytest.mark.parametrize("name", ["my-model", "hosted_vllm/my-model", "anthropic/claude-sonnet-4-5"])
@pytest.mark.parametrize("moment", ["before the answer", "in the stream"])
def test_cancelling_closes_the_connection_at_once(name: str, moment: str) -> None:
    script = "delay: 0.2\nchunk: 1\nturns: [{text: " + "a" * 200 + "}]"

    async def body(server: ScriptedServer) -> None:
        base = server.root if name.startswith("anthropic") else server.url
        first = asyncio.Event()
        model = make_model(name, api_base=base, api_key="key")
        request = model.reply(USER, TOOLS, ModelSettings(), lambda *_: first.set())
        task = asyncio.create_task(request)
        if moment == "in the stream":
            await first.wait()
        else:
            await asyncio.to_thread(server.arrived.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(server.requests[0].finished.wait, PATIENCE)

    with ScriptedServer(script) as server:
        if moment == "before the answer":
            server.fail_next(Fault(delay=600))
        run(body(server))
        assert server.requests[0].closed_after is not None, "before the end, 40 seconds later"


def test_nothing_stays_open_after_many_runs(server: ScriptedServer) -> None:
    """Each run has a loop of its own, as in the notebook; LiteLLM's own clients would leave a socket each."""

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    ask(server)
    before = descriptors()
    for _ in range(10):
        ask(server)
    assert descriptors() <= before + 2


def test_many_replies_at_once(server: ScriptedServer) -> None:
    async def body() -> list[Reply]:
        model = make_model("my-model", api_base=server.url, api_key="key")
        return await asyncio.gather(*[model.reply(USER, TOOLS, ModelSettings()) for _ in range(20)])

    replies = run(body())
    assert {reply.text for reply in replies} == {"Two looks at once, and one that is broken."}


def test_the_server_rejects_what_strict_providers_reject(server: ScriptedServer) -> None:
    """So that passing it means something."""
    first = ask(server).message
    tool = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "x"}
    for broken in ([first], [first, tool], [first, tool, tool], [tool]):
        with pytest.raises(ModelError, match="tool"):
            ask(server, messages=[*USER, *broken])
    with pytest.raises(ModelError, match="invented"):
        ask(server, ModelSettings(extra_body={"invented": 1}))


def test_a_key_in_the_address_is_not_logged(server: ScriptedServer, caplog: pytest.LogCaptureFixture) -> None:
    key = "sk-0123456789abcdef0123"
    with caplog.at_level("INFO", logger="httpx"):
        model = make_model("m", api_base=f"{server.url}?key={key}", api_key=key)
        with pytest.raises(ModelError):  # the server reads no query
            run(model.reply(USER, TOOLS, ModelSettings()))
    assert any("HTTP Request: POST" in message for message in caplog.messages)
    assert key not in caplog.text


def test_an_error_of_the_listener_is_not_taken_for_the_models(server: ScriptedServer) -> None:
    def listener(text: str, reasoning: str) -> None:
        raise ConnectionError("the listener's own")

    model = make_model("my-model", api_base=server.url, api_key="key")
    with pytest.raises(ConnectionError, match="the listener's own"):
        run(model.reply(USER, TOOLS, ModelSettings(), listener))
    assert server.requests[0].finished.wait(PATIENCE)
