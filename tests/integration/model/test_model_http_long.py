"""Long conversations over real HTTP: requests as LiteLLM sends them, and a late one as cheap as an early one."""

import math
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from scripted_faults import SERVER_ERROR
from scripted_server import RecordedRequest, ScriptedServer
from support import run

from llm_sandbox_nb.model.contract import Model, ModelError, ModelSettings
from llm_sandbox_nb.model.known_history import KnownHistories
from llm_sandbox_nb.model.litellm_transport import backend
from llm_sandbox_nb.model.message_form import MessageForm, clean_messages
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


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("openai/gpt-4o", SETTINGS),
        ("openai/gpt-5", ModelSettings(max_tokens=100, extra_body={"é": {"a": None}})),
        ("hosted_vllm/m", SETTINGS),
        ("deepseek/deepseek-reasoner", SETTINGS),
    ],
)
def test_the_requests_are_those_of_litellm(name: str, settings: ModelSettings) -> None:
    """And the bytes of each are the same, whether its beginning was sent before or not."""
    form = MessageForm(
        "reasoning_content" if "deepseek" in name else "none", unknown_fields=True, short_ids=True
    )
    extra = settings.extra_body | ({"top_k": settings.top_k} if settings.top_k else {})
    sampling = {"temperature": settings.temperature} if settings.temperature else {}

    async def through_litellm(server: ScriptedServer, messages: list[dict[str, Any]]) -> None:
        stream = await backend().acompletion(
            model=name, messages=clean_messages(messages, form), tools=TOOLS, max_tokens=100, extra_body=extra,
            stream=True, stream_options={"include_usage": True}, api_base=server.url, api_key="key", **sampling,
        )  # fmt: skip
        async for _ in stream:
            pass

    def requests(server: ScriptedServer, ask: Callable[[list[dict[str, Any]]], Any]) -> list[RecordedRequest]:
        before = len(server.requests)
        for messages in conversations(6):
            run(ask(messages))
        return server.requests[before:]

    with ScriptedServer("turns: [" + "{text: a}, " * 9 + "]", strict=False) as server:

        def new_model() -> Model:
            return make_model(name, api_base=server.url, api_key="key")

        model = new_model()
        direct = requests(server, lambda messages: model.reply(messages, TOOLS, settings))
        fresh = requests(server, lambda messages: new_model().reply(messages, TOOLS, settings))
        litellm = requests(server, lambda messages: through_litellm(server, messages))
    assert [request.data for request in direct] == [request.data for request in fresh]
    assert [(request.path, request.body) for request in direct] == [(one.path, one.body) for one in litellm]
    assert len(direct) == 11
    assert "𝄞" in direct[-1].data.decode(), "text is not escaped"


@pytest.mark.parametrize("name", ["my-model", "hosted_vllm/m", "deepseek/deepseek-reasoner"])
def test_a_request_calls_as_many_functions_with_a_long_history_as_with_a_short_one(name: str) -> None:
    """Work that grows with the history is left to C: copying bytes, comparing pointers."""
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


def test_tokens_are_estimated_from_the_whole_history_when_the_server_reports_none() -> None:
    with ScriptedServer("turns: [" + "{text: abcde}, " * 9 + "]", strict=False, usage=False) as server:
        model = make_model("my-model", api_base=server.url, api_key="key")
        for messages in conversations(6):
            usage = run(model.reply(messages, [], SETTINGS)).usage
            assert usage is not None
            characters = KnownHistories().read(messages).characters
            assert (usage.prompt_tokens, usage.completion_tokens) == (math.ceil(characters / 4), 2)


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
