"""Long conversations over real HTTP: the bytes sent are those of OpenAI's own client, and a request costs the same."""

import sys
from collections import Counter
from typing import Any

import openai
import pytest
from scripted_faults import SERVER_ERROR
from scripted_server import ScriptedServer
from support import run

from llm_sandbox_nb.model import connection, litellm_model
from llm_sandbox_nb.model.contract import ModelError, ModelSettings
from llm_sandbox_nb.model.litellm_model import backend
from llm_sandbox_nb.model.model_names import make_model

TOOLS = [{"type": "function", "function": {"name": "execute_bash", "parameters": {"type": "object"}}}]
SETTINGS = ModelSettings(
    temperature=0.5, max_tokens=100, top_k=5, extra_body={"messages_kept": [], "é": {"a": None}}
)
BEGINNING = [{"role": "system", "content": 'You "work".\n'}, {"role": "user", "content": '"messages":[]'}]


@pytest.fixture(scope="module", autouse=True)
def _litellm() -> None:
    backend()


def step(number: int) -> list[dict[str, Any]]:
    function = {"name": "execute_bash", "arguments": f'{{"command": "echo {number} é ☃ 𝄞"}}'}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return [
        {
            "role": "assistant",
            "content": f"Thought {number}.",
            "tool_calls": [call],
            "reasoning_content": "why",
        },
        {"role": "tool", "tool_call_id": f"call_{number}", "content": f"\x7f{number}\u2028\\ <é>\t"},
    ]


def conversations(steps: int) -> list[list[dict[str, Any]]]:
    """A history that grows, of which the same is asked twice, the last message changes, and the end is left."""
    history, found = list(BEGINNING), []
    for number in range(steps):
        found.append(list(history))
        history += step(number)
    changed = [*history[:-1], {**history[-1], "content": "Another observation."}]
    said = {"role": "user", "content": "Go on."}
    return [*found, history, history, changed, [*changed, said], [*history[: len(history) // 2 + 1], said]]


@pytest.mark.parametrize("name", ["openai/o3-mini", "hosted_vllm/m", "deepseek/deepseek-reasoner"])
def test_the_bytes_on_the_wire_are_those_of_the_libraries_own_client(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenAI's own for its models; LiteLLM's for the others."""

    def bodies(server: ScriptedServer) -> list[bytes]:
        before, model = len(server.requests), make_model(name, api_base=server.url, api_key="key")
        for messages in conversations(6):
            run(model.reply(messages, TOOLS, SETTINGS))
        return [request.data for request in server.requests[before:]]

    with ScriptedServer("turns: [" + "{text: a}, " * 9 + "]", strict=False) as server:
        ours = bodies(server)
        if name.startswith("openai/"):
            own = lambda route, base, key, *_: openai.AsyncOpenAI(api_key=key, base_url=base, max_retries=0)  # noqa: E731
            monkeypatch.setattr(connection, "_make_client", own)
        else:
            for module in (connection, litellm_model):
                monkeypatch.setattr(module, "SENDS_NEW_MESSAGES", frozenset())
        assert ours == bodies(server)
    assert len(ours) == 11
    assert ("𝄞" in ours[-1].decode()) == name.startswith("openai/"), "LiteLLM writes ASCII"


@pytest.mark.parametrize(
    ("name", "callbacks"),
    [("my-model", []), ("hosted_vllm/m", []), ("deepseek/deepseek-reasoner", []), ("my-model", ["cache"])],
)
def test_a_request_calls_as_many_functions_with_a_long_history_as_with_a_short_one(
    name: str, callbacks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What grows with the history is left to C: copying bytes, comparing pointers.

    LiteLLM names a cache that it does not have once it was asked for a Gemini model.
    """
    if callbacks:
        monkeypatch.setattr(backend(), "input_callback", callbacks)
    history = BEGINNING + [message for number in range(1000) for message in step(number)]
    calls: Counter[int] = Counter()
    with ScriptedServer("turns: [" + "{text: a}, " * 1001 + "]", strict=False) as server:
        model = make_model(name, api_base=server.url, api_key="key")

        async def ask(steps: int) -> int:
            for asked in (steps - 1, steps):
                sys.setprofile(lambda *_, asked=asked: calls.update((asked,)))
                try:
                    await model.reply(history[: 2 + 2 * asked], TOOLS, SETTINGS)
                finally:
                    sys.setprofile(None)
            return calls[steps]

        run(ask(10))
        short, long = run(ask(50)), run(ask(1000))
    assert long <= 1.3 * short, f"{short} calls at step 50, {long} at step 1,000"


def test_tokens_of_the_whole_history_are_counted_when_the_server_tells_none() -> None:
    with ScriptedServer("turns: [" + "{text: a}, " * 9 + "]", strict=False, usage=False) as server:
        model = make_model("my-model", api_base=server.url, api_key="key")
        for messages in conversations(6):
            counted = run(model.reply(messages, [], SETTINGS)).usage
            whole = run(
                make_model("my-model", api_base=server.url, api_key="key").reply(messages, [], SETTINGS)
            ).usage
            assert counted is not None
            assert whole is not None
            parts = len(messages) // 2  # LiteLLM adds three tokens for each part that it counts
            assert whole.prompt_tokens <= counted.prompt_tokens <= whole.prompt_tokens + 3 * parts


def test_two_conversations_at_once_and_a_failure_between_keep_apart() -> None:
    """Whatever happened before, a request has the messages of its own conversation, each of them once."""
    first = [*BEGINNING, *step(1), *step(2)]
    second = [
        {"role": "system", "content": "Another."},
        {"role": "user", "content": "Other."},
        *step(3),
        *step(4),
    ]
    with ScriptedServer("turns: [" + "{text: a}, " * 9 + "]") as server:
        model = make_model("my-model", api_base=server.url, api_key="key")
        for end in (2, 4, 6):
            for history in (first, second):
                server.fail_next(SERVER_ERROR)
                with pytest.raises(ModelError):
                    run(model.reply(history[:end], TOOLS, ModelSettings()))
                run(model.reply(history[:end], TOOLS, ModelSettings()))
                texts = [message["content"] for message in server.requests[-1].messages]
                assert texts == [message["content"] for message in history[:end]]


def test_a_function_that_a_person_added_to_litellm_sees_the_whole_history(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    monkeypatch.setattr("litellm.utils.callback_list", [])  # it notices functions as long as this is empty
    monkeypatch.setattr(backend(), "input_callback", [lambda call: seen.append(len(call["messages"]))])
    with ScriptedServer("turns: [" + "{text: a}, " * 9 + "]") as server:
        model = make_model("my-model", api_base=server.url, api_key="key")
        for messages in ([*BEGINNING], [*BEGINNING, *step(1)], [*BEGINNING, *step(1), *step(2)]):
            run(model.reply(messages, TOOLS, ModelSettings()))
    assert seen == [2, 4, 6]
