"""Anthropic's dialect: thinking goes back with its signatures, and what it does not take is not sent."""

from collections.abc import Iterator
from typing import Any

import pytest
from scripted_anthropic import signature
from scripted_faults import DROP_AT_ONCE, Fault, overflow, rate_limited
from scripted_server import ScriptedServer, with_results
from support import run

from llm_sandbox_nb.model.contract import ContextOverflowError, ModelError, ModelSettings
from llm_sandbox_nb.model.model_names import make_model
from llm_sandbox_nb.model.retries import RetryPolicy, reply_with_retries

SCRIPT = """
chunk: 5
turns:
  - reasoning: First I think.
    text: I call two tools.
    calls: [{tool: execute_bash, arguments: {command: ls}}, {tool: execute_bash, arguments: {command: pwd}}]
    usage: {prompt_tokens: 1000, completion_tokens: 50, cached_tokens: 600}
  - text: Done.
    calls: [{tool: submit}]
"""
TOOLS = [
    {
        "type": "function",
        "function": {"name": "execute_bash", "parameters": {"type": "object", "properties": {}}},
    }
]
USER = [{"role": "system", "content": "You work."}, {"role": "user", "content": "Look."}]


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(SCRIPT, api_key="key") as server:
        yield server


def model(server: ScriptedServer, **more: Any) -> Any:
    return make_model("anthropic/claude-sonnet-4-5", api_base=server.root, api_key="key", **more)


def test_thinking_comes_back_signed_and_unchanged(server: ScriptedServer) -> None:
    reply = run(model(server).reply(USER, TOOLS, ModelSettings()))
    assert (reply.text, reply.reasoning) == ("I call two tools.", "First I think.")
    thinking = {"type": "thinking", "thinking": "First I think.", "signature": signature(0)}
    assert reply.message["thinking_blocks"] == [thinking]
    assert "reasoning_content" not in reply.message
    again = model(server).reply([*USER, *with_results(reply)], TOOLS, ModelSettings())
    assert run(again).text == "Done."
    sent = server.requests[1].body["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert sent[1]["content"][0] == thinking
    assert [block["type"] for block in sent[1]["content"]] == ["thinking", "text", "tool_use", "tool_use"]


def test_thinking_can_be_left_out(server: ScriptedServer) -> None:
    reply = run(model(server, send_reasoning="none").reply(USER, TOOLS, ModelSettings()))
    assert set(reply.message) == {"role", "content", "tool_calls"}
    assert reply.reasoning == "First I think."


def test_usage_and_price(server: ScriptedServer) -> None:
    import litellm

    prices = litellm.model_cost["claude-sonnet-4-5"]
    usage = run(model(server).reply(USER, TOOLS, ModelSettings())).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (1000, 50, 600)
    assert usage.cost == pytest.approx(
        400 * prices["input_cost_per_token"]
        + 600 * prices["cache_read_input_token_cost"]
        + 50 * prices["output_cost_per_token"]
    )


def test_settings_it_does_not_take_are_left_out_and_recorded(server: ScriptedServer) -> None:
    settings = ModelSettings(temperature=0.5, top_k=20, min_p=0.1, repetition_penalty=1.1, max_tokens=100)
    reply = run(model(server).reply(USER, TOOLS, settings))
    assert reply.left_out == ("min_p", "repetition_penalty")
    body = server.requests[0].body
    assert (body["temperature"], body["top_k"], body["max_tokens"]) == (0.5, 20, 100)
    assert not {"min_p", "repetition_penalty"} & set(body)


def test_further_fields_are_sent_as_they_are(server: ScriptedServer) -> None:
    """Thinking is switched on by one. `metadata` is a name that LiteLLM has an own use for."""
    fields = {"thinking": {"type": "enabled", "budget_tokens": 2000}, "metadata": {"user_id": "u"}}
    reply = run(model(server).reply(USER, TOOLS, ModelSettings(max_tokens=5000, extra_body=fields)))
    assert reply.reasoning == "First I think."
    body = server.requests[0].body
    assert {name: body[name] for name in fields} == fields
    assert (body["max_tokens"], body["stream"], body["model"]) == (5000, True, "claude-sonnet-4-5")
    assert body["messages"][0]["role"] == "user"


@pytest.mark.parametrize(
    "fault", [DROP_AT_ONCE, rate_limited(0), Fault(529, "Overloaded", "overloaded_error")]
)
def test_there_is_no_second_layer_of_retries(server: ScriptedServer, fault: Fault) -> None:
    """LiteLLM's own HTTP client sends a request twice when the server hangs up; ours does not."""
    server.fail_next(*[fault] * 50)
    policy = RetryPolicy(first_wait=0.01, longest_wait=0.02)
    with pytest.raises(ModelError) as caught:
        run(reply_with_retries(model(server), USER, TOOLS, ModelSettings(), policy=policy))
    assert len(server.requests) == policy.attempts
    assert caught.value.retryable


def test_overflow_and_a_wrong_key(server: ScriptedServer) -> None:
    server.fail_next(overflow("anthropic", 200000, 190000, 20000))
    with pytest.raises(ContextOverflowError) as caught:
        run(model(server).reply(USER, TOOLS, ModelSettings()))
    assert (caught.value.context_limit, caught.value.prompt_tokens) == (200000, 190000)
    wrong = make_model("anthropic/claude-sonnet-4-5", api_base=server.root, api_key="wrong")
    with pytest.raises(ModelError, match=r"The API key was refused at .* or pass --api_key") as refused:
        run(wrong.reply(USER, TOOLS, ModelSettings()))
    assert "ANTHROPIC_API_KEY" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "how"), [("deepseek/deepseek-reasoner", {}), ("m", {"send_reasoning": "reasoning_content"})]
)
def test_reasoning_goes_back_in_its_field_where_a_server_wants_it(
    name: str, how: dict[str, str], server: ScriptedServer
) -> None:
    """DeepSeek does; a server of one's own, when that is said."""
    server.extra_fields = ("reasoning_content",)
    wants = make_model(name, api_base=server.url, api_key="key", **how)
    reply = run(wants.reply(USER, TOOLS, ModelSettings()))
    assert reply.message["reasoning_content"] == "First I think."
    run(wants.reply([*USER, *with_results(reply)], TOOLS, ModelSettings()))
    assert server.requests[1].messages[2]["reasoning_content"] == "First I think."


def test_what_was_sent_before_is_marked_for_the_cache(server: ScriptedServer) -> None:
    """Anthropic's cache wants marks; the conversation itself is not changed by them."""
    first = run(model(server).reply(USER, TOOLS, ModelSettings()))
    messages = [*USER, *with_results(first)]
    before = repr(messages)
    run(model(server).reply(messages, TOOLS, ModelSettings()))
    assert repr(messages) == before
    body = server.requests[1].body
    mark = {"cache_control": {"type": "ephemeral"}}
    assert body["system"][-1] | mark == body["system"][-1]
    assert body["messages"][-1]["content"][-1] | mark == body["messages"][-1]["content"][-1]
    assert str(body).count("cache_control") == 2
