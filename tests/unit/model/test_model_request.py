"""What is sent to which provider."""

from typing import Any

import pytest

from llm_sandbox_nb.model.connection import Access
from llm_sandbox_nb.model.contract import ModelError, ModelSettings
from llm_sandbox_nb.model.direct_transport import DirectTransport
from llm_sandbox_nb.model.litellm_transport import LiteLLMTransport, backend
from llm_sandbox_nb.model.message_form import MessageForm, clean_messages
from llm_sandbox_nb.model.request import sampling
from llm_sandbox_nb.model.route_choice import find_route
from llm_sandbox_nb.model.server_habits import ServerHabits
from llm_sandbox_nb.model.transport import ModelTransport

SETTINGS = ModelSettings(
    temperature=0.7,
    top_p=0.8,
    top_k=20,
    min_p=0.05,
    repetition_penalty=1.1,
    max_tokens=100,
    extra_body={"x": 1},
)


@pytest.fixture(autouse=True)
def _no_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(name, raising=False)


def transport_of(name: str, address: str | None = None) -> ModelTransport:
    access = Access(address)
    if route := find_route(name, address):
        return DirectTransport(route, access, ServerHabits())
    return LiteLLMTransport(backend(), name, access)


@pytest.mark.parametrize(
    ("name", "address", "model", "provider", "compatible"),
    [
        ("gpt-5", None, "gpt-5", "openai", True),
        ("openai/gpt-5", None, "openai/gpt-5", "openai", True),
        ("claude-sonnet-4-5", None, "claude-sonnet-4-5", "anthropic", False),
        ("anthropic/claude-sonnet-4-5", None, "anthropic/claude-sonnet-4-5", "anthropic", False),
        ("gemini/gemini-2.5-pro", None, "gemini/gemini-2.5-pro", "gemini", False),
        ("groq/llama-3", None, "groq/llama-3", "groq", True),
        ("ollama_chat/llama3", None, "ollama_chat/llama3", "ollama_chat", False),
        ("your-model", "http://x/v1", "openai/your-model", "openai", True),
        ("claude-sonnet-4-5", "http://x/v1", "openai/claude-sonnet-4-5", "openai", True),
        ("Qwen/Qwen3-4B", "http://x/v1", "openai/Qwen/Qwen3-4B", "openai", True),
        ("hosted_vllm/Qwen/Qwen3-4B", "http://x/v1", "hosted_vllm/Qwen/Qwen3-4B", "hosted_vllm", True),
        ("azure/mine", "http://x", "azure/mine", "azure", True),
    ],
)
def test_routes(name: str, address: str | None, model: str, provider: str, compatible: bool) -> None:
    route = transport_of(name, address).route
    assert (route.model, route.provider) == (model, provider)
    assert route.openai_compatible == compatible or provider == "azure"


def test_an_address_in_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="No provider is known for the model your-model"):
        transport_of("your-model")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://x/v1")
    assert transport_of("your-model").route.model == "openai/your-model"


@pytest.mark.parametrize(
    ("name", "sent", "left_out"),
    [
        (
            "hosted_vllm/m",
            {
                "temperature": 0.7, "top_p": 0.8, "max_tokens": 100,
                "extra_body": {"x": 1, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1},
            },
            (),
        ),
        (
            "ollama_chat/llama3",
            {
                "temperature": 0.7, "top_p": 0.8, "max_tokens": 100, "top_k": 20, "min_p": 0.05,
                "repeat_penalty": 1.1, "extra_body": {"x": 1},
            },
            (),
        ),
        (
            "openai/o3",
            {
                "max_tokens": 100,
                "extra_body": {"x": 1, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1},
            },
            ("temperature", "top_p"),
        ),
    ],
)  # fmt: skip
def test_settings_as_each_provider_takes_them(
    name: str, sent: dict[str, Any], left_out: tuple[str, ...]
) -> None:
    transport = transport_of(name)
    found, missing = sampling(transport.route, SETTINGS, transport.accepts)
    assert (found, missing) == (sent, left_out)
    assert SETTINGS.extra_body == {"x": 1}


def test_extra_body_of_the_person_wins() -> None:
    settings = ModelSettings(top_k=20, extra_body={"top_k": 5})
    transport = transport_of("hosted_vllm/m")
    sent, _ = sampling(transport.route, settings, transport.accepts)
    assert sent == {"extra_body": {"top_k": 5}}


def test_messages_keep_what_the_provider_knows_and_are_not_changed() -> None:
    blocks = [{"type": "thinking", "thinking": "hm", "signature": "s"}]
    call = {"id": "1", "type": "function", "function": {"name": "a", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "s", "name": "x"},
        {"role": "user", "content": [{"type": "text", "text": "u"}], "time": 3},
        {
            "role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "hm",
            "thinking_blocks": blocks, "provider_specific_fields": {},
        },
        {"role": "tool", "tool_call_id": "1", "content": "ok", "name": "a"},
    ]  # fmt: skip
    before = repr(messages)
    kept = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "ok"},
    ]
    assert clean_messages(messages, MessageForm("none")) == kept
    assert clean_messages(messages, MessageForm("thinking_blocks"))[2] == kept[2] | {
        "thinking_blocks": blocks
    }
    assert clean_messages(messages, MessageForm("reasoning_content"))[2] == kept[2] | {
        "reasoning_content": "hm"
    }
    assert repr(messages) == before
