"""What model servers want and refuse, in their exact words: learned, corrected, waited for, or said once."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from answering_server import Answer, AnsweringServer, Asked, refused, replied, tool_call
from support import eventually, run

from llm_sandbox_nb.agent.model_call import well_formed
from llm_sandbox_nb.agent.tools.toolbox import TOOLS
from llm_sandbox_nb.model.contract import ContextOverflowError, Model, ModelError, ModelSettings, Reply
from llm_sandbox_nb.model.model_list import DEFAULT_REPLY_TOKENS
from llm_sandbox_nb.model.model_names import make_model
from llm_sandbox_nb.model.retries import RetryPolicy, reply_with_retries

FAST = RetryPolicy(attempts=4, first_wait=0.01, longest_wait=0.02, loading_pause=0.05)
SYSTEM = {"role": "system", "content": "You work."}
USER = {"role": "user", "content": "Look."}
LOOK = tool_call("execute_bash", {"command": "ls"}, "call_first")
KEY = "sk-0123456789abcdef"


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.endswith(("_API_KEY", "_BASE_URL", "_API_BASE")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def ask(
    model: Model, messages: list[dict[str, Any]] | None = None, policy: RetryPolicy = FAST, **settings: Any
) -> tuple[Reply, list[ModelError]]:
    failures: list[ModelError] = []
    asked = reply_with_retries(
        model, messages or [SYSTEM, USER], TOOLS.schemas(), ModelSettings(**{"timeout": 60, **settings}),
        policy=policy, on_failure=lambda attempt, error, wait: failures.append(error),
    )  # fmt: skip
    return well_formed(run(asked)), failures


def failure(
    model: Model, messages: list[dict[str, Any]] | None = None, policy: RetryPolicy = FAST
) -> ModelError:
    with pytest.raises(ModelError) as caught:
        ask(model, messages, policy)
    assert "\n" not in str(caught.value)
    return caught.value


def model_at(server: AnsweringServer, name: str = "m", **more: Any) -> Model:
    return make_model(name, api_base=more.pop("api_base", server.url), **{"api_key": KEY, **more})


def after_a_call(first: Reply) -> list[dict[str, Any]]:
    results = [{"role": "tool", "tool_call_id": call.id, "content": "a.txt"} for call in first.calls]
    return [SYSTEM, USER, first.message, *results]


# --------------------------------------------------------------------------------------- learned from one refusal


@dataclass(frozen=True)
class Habit:
    """A server that refuses something, and takes the request without it."""

    name: str
    wrong: Callable[[Asked], bool]
    refusal: Answer
    history: int = 1
    """1: the system's and the user's message; 2: also a reply with a call, and its result."""
    first: Answer = field(default_factory=lambda: replied(LOOK))


def texts(asked: Asked) -> str:
    return json.dumps(asked.messages)


def replies_of(asked: Asked) -> list[dict[str, Any]]:
    return [message for message in asked.messages if message["role"] == "assistant"]


def neighbours(asked: Asked) -> bool:
    return any(one == other for one, other in zip(asked.roles, asked.roles[1:], strict=False))


THOUGHT = "I should look first."
SIGNED = tool_call(
    "execute_bash", {"command": "ls"}, "call_g", extra_content={"google": {"thought_signature": "c2lnbg=="}}
)
HABITS = [
    Habit(
        "vLLM, Gemma: no system role", lambda asked: "system" in asked.roles,
        Answer(400, {"object": "error", "message": "System role not supported", "type": "BadRequestError",
                     "code": 400}),
    ),
    Habit(
        "llama.cpp, Gemma: no system role, as 500", lambda asked: "system" in asked.roles,
        Answer(500, {"error": {"code": 500, "message": "Jinja Exception: System role not supported",
                               "type": "server_error"}}),
    ),
    Habit(
        "OpenAI o1-mini: no system role", lambda asked: "system" in asked.roles,
        refused(400, "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
                param="messages[0].role", code="unsupported_value"),
    ),
    Habit(
        "Gemini, Gemma: no system role, in a list", lambda asked: "system" in asked.roles,
        Answer(400, [{"error": {"code": 400, "status": "INVALID_ARGUMENT", "message":
                                "Developer instruction is not enabled for models/gemma-3-27b-it", "details": []}}]),
    ),
    Habit(
        "vLLM, Mistral 7B: the template takes the system message for the user's", lambda asked: "system" in asked.roles,
        Answer(400, {"object": "error", "type": "BadRequestError", "code": 400,
                     "message": "Conversation roles must alternate user/assistant/user/assistant/..."}),
    ),
    Habit(
        "DeepSeek: reasoning is missed", lambda asked: any("reasoning_content" not in one for one in replies_of(asked)),
        refused(400, "Missing `reasoning_content` field in the assistant message at message index 2. For more "
                     "information, please refer to https://api-docs.deepseek.com/guides/thinking_mode#tool-calls"),
        history=2, first=replied(LOOK, reasoning_content=THOUGHT),
    ),
    Habit(
        "Moonshot: reasoning is missed", lambda asked: any("reasoning_content" not in one for one in replies_of(asked)),
        refused(400, "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2"),
        history=2, first=replied(LOOK, reasoning_content=THOUGHT),
    ),
    Habit(
        "a field of its own that it does not take back",
        lambda asked: any("weight" in one for one in replies_of(asked)),
        refused(400, "'messages.2' : for 'role:assistant' the following must be satisfied[('messages.2' : property "
                     "'weight' is unsupported)]"),
        history=2, first=replied(LOOK, weight=1),
    ),
    Habit(
        "a name is missed in results",
        lambda asked: any("name" not in one for one in asked.messages if one["role"] == "tool"),
        refused(422, "messages[3]: missing field `name`"), history=2,
    ),
]  # fmt: skip


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.name)
def test_what_a_server_wants_is_learned_from_one_refusal(habit: Habit) -> None:
    refusals = 0

    def answer(asked: Asked) -> Answer | None:
        nonlocal refusals
        if habit.wrong(asked):
            refusals += 1
            return habit.refusal
        return habit.first if not replies_of(asked) else None

    with AnsweringServer(answer) as server:
        model = model_at(server)
        first, failures = ask(model)
        last, more = ask(model, after_a_call(first))
        ask(model, after_a_call(first))
    assert [call.name for call in (*first.calls, *last.calls)] == ["execute_bash", "submit"]
    assert refusals == 1, "and never again"
    assert [error.kind for error in (*failures, *more)] == ["setting"]
    assert "You work." in texts(server.posts[-1]), "what the system message said is still said"
    assert "a.txt" in texts(server.posts[-1])
    if "reasoning" in habit.name:
        assert [one["reasoning_content"] for one in replies_of(server.posts[-1])] == [THOUGHT]


def test_the_reasoning_that_a_server_wants_back_is_that_of_its_own_conversation() -> None:
    """Some servers count the ids of calls from 0 in each conversation."""
    habit = next(habit for habit in HABITS if habit.name.startswith("Moonshot"))

    def answer(asked: Asked) -> Answer | None:
        if habit.wrong(asked):
            return habit.refusal
        place = asked.messages[1]["content"]
        call = tool_call("execute_bash", {"command": f"ls {place}"}, "call_0")
        return None if replies_of(asked) else replied(call, reasoning_content=f"I look in {place}.")

    with AnsweringServer(answer) as server:
        model = model_at(server)
        begun = [[SYSTEM, {"role": "user", "content": place}] for place in ("here", "there")]
        for messages in begun:
            reply, _ = ask(model, messages)
            messages += after_a_call(reply)[2:]
        for messages in begun:
            ask(model, messages)
    assert [replies_of(post)[0].get("reasoning_content") for post in server.posts[2:]] == [
        None, "I look in here.", "I look in there.",
    ]  # fmt: skip


def together(model: Model, count: int = 3) -> list[list[str]]:
    """Send so many requests of one model at the same time. Return the kinds of the failures of each."""

    async def one() -> list[str]:
        kinds: list[str] = []
        reply = await reply_with_retries(
            model, [SYSTEM, USER], TOOLS.schemas(), ModelSettings(timeout=60, temperature=1.0), policy=FAST,
            on_failure=lambda attempt, error, wait: kinds.append(error.kind),
        )  # fmt: skip
        assert [call.name for call in reply.calls] == ["submit"]
        return kinds

    async def every() -> list[list[str]]:
        return list(await asyncio.gather(*(one() for _ in range(count))))

    return run(every())


@pytest.mark.parametrize(
    ("wrong", "refusal"),
    [
        (lambda asked: "temperature" in asked.body,
         refused(400, "Unsupported parameter: 'temperature' is not supported with this model.", param="temperature")),
        (lambda asked: "system" in asked.roles, HABITS[0].refusal),
    ],
    ids=["a setting", "a role"],
)  # fmt: skip
def test_requests_that_were_on_their_way_when_a_refusal_taught_are_sent_again(
    wrong: Callable[[Asked], bool], refusal: Answer
) -> None:
    everyone = threading.Barrier(3)

    def answer(asked: Asked) -> Answer | None:
        if asked.number < 3:
            everyone.wait()
        return refusal if wrong(asked) else None

    with AnsweringServer(answer) as server:
        assert together(model_at(server)) == [["setting"]] * 3
        assert len(server.posts) == 6


def test_requests_to_an_address_that_was_corrected_meanwhile_are_sent_again() -> None:
    corrected = threading.Event()

    class Slow(AnsweringServer):
        def post(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> Answer:
            answer = super().post(path, headers, body)
            if path.startswith(self.path):
                corrected.set()
            elif len(self.misses) > 1:
                corrected.wait()
            return answer

    with Slow() as server:
        assert together(model_at(server, api_base=server.root), 2) == [["setting"]] * 2
        assert len(server.misses) == len(server.posts) == 2


@pytest.mark.parametrize(
    "words",
    [
        "After the optional system message, conversation roles must alternate user and assistant roles except for tool "
        "calls and results.",
        "Unexpected role 'user' after role 'tool'",
    ],
)
def test_roles_alternate_where_a_server_wants_it(words: str) -> None:
    def answer(asked: Asked) -> Answer | None:
        after_tool = ("tool", "user") in zip(asked.roles, asked.roles[1:], strict=False)
        return refused(500, words) if neighbours(asked) or after_tool else None

    with AnsweringServer(answer) as server:
        call = {"role": "assistant", "content": "", "tool_calls": [LOOK]}
        result = {"role": "tool", "tool_call_id": "call_first", "content": "a.txt"}
        said = [{"role": "user", "content": "Be brief."}, {"role": "user", "content": "Go on."}]
        _, failures = ask(model_at(server), [SYSTEM, USER, call, result, *said])
    assert [error.kind for error in failures] == ["setting"]
    assert server.posts[-1].roles == ["system", "user", "assistant", "tool"]
    assert server.posts[-1].messages[-1]["content"] == "a.txt\n\nBe brief.\n\nGo on."


NO_TOOLS = {
    "Ollama": refused(400, "registry.ollama.ai/library/gemma3:latest does not support tools"),
    "vLLM": Answer(400, {"object": "error", "type": "BadRequestError", "code": 400, "message": '"auto" tool choice '
                         "requires --enable-auto-tool-choice and --tool-call-parser to be set"}),
    "llama.cpp": refused(500, "tools param requires --jinja flag", type="server_error"),
    "OpenRouter": refused(404, "No endpoints found that support tool use. To learn more about provider routing, visit: "
                          "https://openrouter.ai/docs/provider-routing", code=404),
    "Groq": refused(400, "`tool calling` is not supported with this model"),
    "a tool role refused as 500": refused(500, "Jinja Exception: Only user and assistant roles are supported!"),
    "a tool role refused by pydantic": Answer(422, {"detail": [{"loc": ["body", "messages", 3, "role"], "type": "enum",
                                              "msg": "Input should be 'system', 'user' or 'assistant'"}]}),
    "a template that alternates": refused(500, "Jinja Exception: Conversation roles must alternate user/assistant/..."),
}  # fmt: skip


@pytest.mark.parametrize("server_name", NO_TOOLS)
def test_a_server_that_takes_no_tools_is_asked_once_and_named(server_name: str) -> None:
    refusal = NO_TOOLS[server_name]
    role = "role" in server_name or "template" in server_name
    with AnsweringServer(
        lambda asked: refusal if not role or "tool" in asked.roles else replied(LOOK)
    ) as server:
        model = model_at(server)
        history = [USER]
        if role:
            history = after_a_call(ask(model, [USER])[0])[1:]
        error = failure(model, history)
        assert (error.kind, error.retryable) == ("tools", False), str(error)
        assert len(server.posts) == 1 + role, "what never passes is not sent again"


def test_a_template_that_never_passes_is_not_asked_again() -> None:
    words = "Jinja Exception: Cannot perform operation + on undefined values"
    with AnsweringServer(lambda asked: refused(500, words, type="server_error")) as server:
        error = failure(model_at(server))
    assert (error.kind, len(server.posts)) == ("bad_request", 1)
    assert "Cannot perform operation" in str(error)


def test_ids_are_nine_letters_and_digits_and_belong_together() -> None:
    """Mistral: "Tool call id was call_9a1 but must be a-z, A-Z, 0-9, with a length of 9."."""
    calls = [tool_call("execute_bash", {"command": "ls"}, f"chatcmpl-tool-{n}") for n in range(3)]
    with AnsweringServer(lambda asked: None if replies_of(asked) else replied(*calls)) as server:
        model = model_at(server)
        first, _ = ask(model)
        ask(model, after_a_call(first))
    sent = server.posts[-1].messages
    ids = [call["id"] for call in replies_of(server.posts[-1])[0]["tool_calls"]]
    assert len(set(ids)) == 3
    assert all(len(one) == 9 and one.isalnum() and one.isascii() for one in ids)
    assert ids == [message["tool_call_id"] for message in sent if message["role"] == "tool"]


def test_unknown_fields_of_messages_and_calls_go_back() -> None:
    """As Gemini's thought signatures: without them its second request is refused."""
    first = replied(SIGNED, LOOK, reasoning_content=THOUGHT, provider_state={"a": [1]})
    with AnsweringServer(lambda asked: None if replies_of(asked) else first) as server:
        model = model_at(server)
        reply, _ = ask(model)
        ask(model, after_a_call(reply))
    [back] = replies_of(server.posts[-1])
    assert back["provider_state"] == {"a": [1]}
    assert [call.get("extra_content") for call in back["tool_calls"]] == [SIGNED["extra_content"], None]
    assert "reasoning_content" not in back, "others refuse it, so it goes to those that want it"


def test_unknown_fields_that_come_in_a_stream_go_back() -> None:
    deltas = [
        {"tool_calls": [{"index": 0, "id": "a", "type": "function",
                         "extra_content": {"google": {"thought_signature": "x"}},
                         "function": {"name": "execute_bash", "arguments": '{"comm'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": 'and": "ls"}'}}], "reasoning_state": "ab"},
        {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "submit", "arguments": "{}"}}],
         "reasoning_state": "cd"},
    ]  # fmt: skip

    def answer(asked: Asked) -> Answer | None:
        pieces = [{"id": "r", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        return None if replies_of(asked) else Answer(200, stream(pieces), "text/event-stream")

    with AnsweringServer(answer) as server:
        model = model_at(server)
        reply, _ = ask(model)
        ask(model, after_a_call(reply))
    [back] = replies_of(server.posts[-1])
    assert back["reasoning_state"] == "abcd"
    assert [call.get("extra_content") for call in back["tool_calls"]] == [
        {"google": {"thought_signature": "x"}}, None,
    ]  # fmt: skip


def test_a_signature_that_a_history_of_another_model_lacks_is_filled_in() -> None:
    words = "Function call is missing a thought_signature in functionCall parts. This is required for tools to work."

    def answer(asked: Asked) -> Answer | None:
        calls = [call for one in replies_of(asked) for call in one["tool_calls"]]
        return refused(400, words) if any("extra_content" not in call for call in calls) else None

    with AnsweringServer(answer) as server:
        history = [SYSTEM, USER, {"role": "assistant", "content": "", "tool_calls": [LOOK]},
                   {"role": "tool", "tool_call_id": "call_first", "content": "a.txt"}]  # fmt: skip
        _, failures = ask(model_at(server), history)
    assert [error.kind for error in failures] == ["setting"]


def stream(pieces: list[dict[str, Any]], pause: float = 0.0) -> Iterator[bytes]:
    for piece in pieces:
        yield b"data: %s\n\n" % json.dumps(piece).encode()
        time.sleep(pause)  # on purpose: a slow server
    yield b"data: [DONE]\n\n"


# --------------------------------------------------------------------------------------- error bodies and overflow

ERROR_BODIES = {
    "OpenAI": {"error": {"message": "It rains.", "type": "invalid_request_error"}},
    "a list": [{"error": {"code": 400, "message": "It rains.", "status": "INVALID_ARGUMENT"}}],
    "vLLM": {"object": "error", "message": "It rains.", "code": 400},
    "FastAPI": {"detail": "It rains."},
    "pydantic": {"detail": [{"loc": ["body", "messages"], "msg": "It rains.", "type": "value_error"}]},
    "a text": {"error": "It rains."},
    "errors": {"errors": [{"message": "It rains."}]},
    "texts": {"errors": ["It rains."]},
    "a message that is an object": {"message": {"detail": [{"msg": "It rains."}]}},
    "JSON in a text": {"error": {"message": '{"detail": "It rains."}', "code": 400}},
    "Apigee": {"fault": {"faultstring": "It rains.", "detail": {"errorcode": "x"}}},
    "TGI": {"error": "It rains.", "error_type": "validation"},
}


@pytest.mark.parametrize("shape", ERROR_BODIES)
def test_the_servers_words_are_read_from_json_of_every_shape(shape: str) -> None:
    with AnsweringServer(lambda asked: Answer(400, ERROR_BODIES[shape])) as server:
        error = failure(model_at(server))
    assert "It rains" in str(error)
    assert "{" not in str(error)
    assert (error.kind, len(server.posts)) == ("bad_request", 1)


def overflow_of(answer: Answer) -> ModelError:
    with AnsweringServer(lambda asked: answer) as server, pytest.raises(ModelError) as caught:
        run(model_at(server).reply([USER], [], ModelSettings(max_tokens=4000)))
    return caught.value


OVERFLOWS = {
    "llama.cpp": Answer(400, {"error": {
        "code": 400, "message": "the request exceeds the available context size, try increasing it",
        "type": "exceed_context_size_error", "n_prompt_tokens": 9001, "n_ctx": 8192}}),
    "in a stream with status 200": Answer(200, iter([
        b'data: {"error":{"message":"Context size has been exceeded.","type":"invalid_request_error","code":400}}\n\n',
    ]), "text/event-stream"),
    "LM Studio, in an event of a stream": Answer(200, iter([
        b'event: error\ndata: {"error":{"message":"The number of tokens to keep from the initial prompt is greater '
        b'than the context length. Try to load the model with a larger context length"}}\n\n',
    ]), "text/event-stream"),
    "TGI": Answer(422, {"error": "Input validation error: `inputs` must have less than 8191 tokens. Given: 9001",
                        "error_type": "validation"}),
    "words that nobody knows": refused(400, "Sorry, 9001 tokens are more than my context of 8192 takes"),
}  # fmt: skip


@pytest.mark.parametrize("server_name", OVERFLOWS)
def test_an_overflow_is_known_as_one(server_name: str) -> None:
    error = overflow_of(OVERFLOWS[server_name])
    assert isinstance(error, ContextOverflowError), str(error)
    if server_name == "llama.cpp":
        assert (error.context_limit, error.prompt_tokens) == (8192, 9001)


# --------------------------------------------------------------------------------------- names and addresses

LISTED = (
    "openai/gpt-oss-20b",
    "deepseek/deepseek-r1",
    "mistral/small",
    "cohere/command",
    "ollama/x",
    "groq/y",
)


@pytest.mark.parametrize("listed", LISTED)
def test_what_follows_the_first_prefix_is_sent_whole(listed: str) -> None:
    with AnsweringServer(models=LISTED) as server:
        ask(model_at(server, f"openai/{listed}"))
    assert [one.body["model"] for one in server.posts] == [listed]
    assert server.misses == []


@pytest.mark.parametrize("listed", LISTED)
def test_a_name_that_begins_with_a_provider_reaches_the_server_of_the_address(listed: str) -> None:
    def answer(asked: Asked) -> Answer | None:
        name = asked.body["model"]
        return None if name == listed else refused(404, f"The model `{name}` does not exist.", code=404)

    with AnsweringServer(answer, models=LISTED) as server:
        _, failures = ask(model_at(server, listed))
        assert (server.posts[-1].body["model"], server.misses) == (listed, [])
    assert [error.kind for error in failures] == ["setting"]
    assert f"the model is called {listed} there" in str(failures[0])


@pytest.mark.parametrize("listed", ["anthropic/claude-x", "ollama_chat/x"])
def test_a_provider_with_a_protocol_of_its_own_is_corrected_where_the_address_speaks_openais(
    listed: str,
) -> None:
    with AnsweringServer(models=(listed,)) as server:
        address = server.root if listed.startswith("ollama") else server.url
        _, failures = ask(model_at(server, listed, api_base=address))
        assert [one.body["model"] for one in server.posts] == [listed]
        assert server.misses
    assert [error.kind for error in failures] == ["setting"]


def test_a_model_that_is_not_there_is_told_with_those_that_are() -> None:
    words = "The model `nope` does not exist."
    with AnsweringServer(lambda asked: refused(404, words, code=404), models=LISTED) as server:
        error = failure(model_at(server, "openai/nope"))
        assert len(server.posts) == 1
    assert error.kind == "not_found"
    assert "nope was sent, but the server has openai/gpt-oss-20b, deepseek/deepseek-r1" in str(error)


LM_STUDIO = Answer(200, {"error": "Unexpected endpoint or method. (POST /chat/completions)"})


@pytest.mark.parametrize("written", ["{root}", "{root}/", "{url}/chat/completions", "{url}/", "{url}/models"])
@pytest.mark.parametrize("elsewhere", [None, LM_STUDIO], ids=["404", "LM Studio"])
def test_an_address_that_is_nearly_right_is_corrected_and_said(
    written: str, elsewhere: Answer | None
) -> None:
    with AnsweringServer(wrong_path=elsewhere) as server:
        address = written.format(root=server.root, url=server.url)
        model = model_at(server, api_base=address)
        _, failures = ask(model)
        ask(model)
        assert len(server.posts) == 2
        assert len(server.misses) <= 1, "the corrected address stays"
        assert [error.kind for error in failures] == ["setting"] * len(server.misses)
        if failures:
            assert f"the address is {server.url}, not {address}" in str(failures[0])


@pytest.mark.parametrize("elsewhere", [None, LM_STUDIO], ids=["404", "LM Studio"])
def test_an_address_with_nothing_behind_it_is_one_sentence_at_once(elsewhere: Answer | None) -> None:
    with AnsweringServer(models=None, path="/hidden", wrong_path=elsewhere) as server:
        error = failure(model_at(server, api_base=server.root))
        assert len(server.misses) == 1
    assert error.kind == "not_found"
    assert "no server lists its models there" in str(error)


# --------------------------------------------------------------------------------------- keys

BAD_KEYS = {
    "curly quotes": "\u201csk-0123456789abcdef\u201d",
    "a line end inside": "sk-0123\n456789abcdef",
    "a blank inside": "sk-0123 456789abcdef",
    "quotes": '"sk-0123456789abcdef"',
    "a letter of another script": "sk-0123\u0435456789abcdef",
}


@pytest.mark.parametrize("name", BAD_KEYS)
@pytest.mark.parametrize("way", ["given", "OPENAI_API_KEY"])
def test_a_key_that_is_none_is_refused_before_anything_is_sent(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with AnsweringServer() as server:
        if way == "given":
            with pytest.raises(ModelError) as caught:
                model_at(server, api_key=BAD_KEYS[name])
            error = caught.value
        else:
            monkeypatch.setenv(way, BAD_KEYS[name])
            error = failure(model_at(server, api_key=None))
            assert way in str(error)
        assert server.posts == []
    assert error.kind == "authentication"
    assert "0123" not in str(error) + "".join(capfd.readouterr())


@pytest.mark.parametrize("way", ["given", "OPENAI_API_KEY"])
def test_blanks_and_line_ends_around_a_key_are_left_out(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with AnsweringServer() as server:
        monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\r\n")
        ask(model_at(server, api_key=f"\ufeff{KEY}\n" if way == "given" else None))
    assert server.posts[0].headers["authorization"] == f"Bearer {KEY}"


def test_the_key_of_another_provider_does_not_go_to_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai-0123456789")
    monkeypatch.setenv("MISTRAL_API_KEY", "of-mistral-0123456789")
    with AnsweringServer() as server:
        ask(model_at(server, "mistral/small", api_key=None))
        ask(model_at(server, "cohere/command", api_key=None))
    assert [one.headers["authorization"] for one in server.posts] == [
        "Bearer of-mistral-0123456789", "Bearer no-key",
    ]  # fmt: skip


# --------------------------------------------------------------------------------------- waiting

LOADING = {
    "llama.cpp": Answer(
        503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
    ),
    "TGI": Answer(503, {"error": "Model bigcode/starcoder is currently loading", "estimated_time": 20.0}),
    "KServe": Answer(503, "model is not ready yet", "text/plain"),
}


@pytest.mark.parametrize("server_name", LOADING)
def test_a_server_that_loads_its_model_is_waited_for(server_name: str) -> None:
    with AnsweringServer(lambda asked: LOADING[server_name] if asked.number < 12 else None) as server:
        _, failures = ask(model_at(server))
    assert [error.kind for error in failures] == ["loading"] * 12, (
        "more than the attempts that a failure gets"
    )
    assert str(failures[0]).startswith(f"The server of m at {server.url} is not ready (")


def test_a_model_that_cannot_be_loaded_is_not_waited_for() -> None:
    words = "error loading model: unable to allocate CUDA0 buffer"
    with AnsweringServer(lambda asked: refused(500, words, type="api_error")) as server:
        error = failure(model_at(server))
    assert (error.kind, len(server.posts)) == ("server", FAST.attempts)


def test_waiting_for_a_model_has_an_end() -> None:
    policy = RetryPolicy(attempts=4, first_wait=0.01, loading_wait=0.2, loading_pause=0.05)
    with AnsweringServer(lambda asked: LOADING["llama.cpp"]) as server:
        error = failure(model_at(server), policy=policy)
        assert error.kind == "loading"
        assert re.search(r"is not ready \(Loading model\): the run waited \d+ seconds for it\.$", str(error))
        once = RetryPolicy(attempts=1)
        before = len(server.posts)
        assert str(failure(model_at(server), policy=once)).endswith("(Loading model): try again later.")
        assert len(server.posts) == before + 1


def test_a_server_that_has_answered_and_is_started_again_is_waited_for() -> None:
    with AnsweringServer() as server:
        model = model_at(server)
        ask(model)
        port = server.port
    failures: list[ModelError] = []

    async def ask_while_it_starts() -> Reply:
        asked = asyncio.ensure_future(
            reply_with_retries(
                model, [USER], [], ModelSettings(timeout=60), policy=FAST,
                on_failure=lambda attempt, error, wait: failures.append(error),
            )
        )  # fmt: skip
        await eventually(lambda: len(failures) >= 8, "it gave up after as many failures as others get")
        with AnsweringServer(port=port):
            return await asked

    assert [call.name for call in run(ask_while_it_starts()).calls] == ["submit"]
    assert {error.kind for error in failures} == {"loading"}


# --------------------------------------------------------------------------------------- time, tokens, proxies


def test_a_steady_slow_stream_may_take_longer_than_the_time_out() -> None:
    pieces = [{"id": "r", "choices": [{"index": 0, "delta": {"content": f"{n} "}}]} for n in range(12)]
    with AnsweringServer(lambda asked: Answer(200, stream(pieces, 0.6), "text/event-stream")) as server:
        reply, failures = ask(model_at(server), timeout=5)  # a time-out is what is tested
    assert reply.text.split() == [str(n) for n in range(12)]
    assert failures == []
    assert len(server.posts) == 1


def test_silence_in_a_stream_ends_the_request() -> None:
    def silent() -> Iterator[bytes]:
        yield b'data: {"id": "r", "choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
        time.sleep(3)  # on purpose: longer than the time-out, which is what is tested

    answer = Answer(200, silent(), "text/event-stream")
    with AnsweringServer(lambda asked: answer) as server, pytest.raises(ModelError) as caught:
        run(model_at(server).reply([USER], [], ModelSettings(timeout=0.5)))  # a time-out is what is tested
    assert caught.value.kind == "timeout"
    assert "--model-timeout" in str(caught.value)


def test_a_limit_of_tokens_is_always_sent() -> None:
    with AnsweringServer() as server:
        ask(model_at(server))
        ask(model_at(server), max_tokens=77)
    assert [one.body["max_tokens"] for one in server.posts] == [DEFAULT_REPLY_TOKENS, 77]


def test_arguments_that_the_limit_cut_are_known_by_the_tokens() -> None:
    cut = replied(tool_call("execute_bash", '{"command": "cat > a <<E\\n'))
    cut.body["usage"]["completion_tokens"] = 100
    with AnsweringServer(lambda asked: cut) as server:
        reply, _ = ask(model_at(server), max_tokens=100)
        assert reply.finish_reason == "length"
        reply, _ = ask(model_at(server), max_tokens=101)
        assert reply.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ALL_PROXY", "socks5://192.0.2.1:1080"),
        ("HTTP_PROXY", "http://192.0.2.1:3128"),
        ("https_proxy", "not an address"),
        ("NO_PROXY", "localhost,[::1],192.0.2.0/24"),
        ("SSL_CERT_FILE", "/nowhere/ca.pem"),
    ],
)
def test_a_server_on_this_machine_is_reached_whatever_the_environment_says(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with AnsweringServer() as server:
        _, failures = ask(model_at(server))
    assert (failures, len(server.posts)) == ([], 1)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("ALL_PROXY", "socks4://192.0.2.1:1080", "names a proxy of the kind socks4"),
        ("https_proxy", "ftp://192.0.2.1", "is not the address of a proxy"),
        ("SSL_CERT_FILE", "/nowhere/ca.pem", "names /nowhere/ca.pem, which does not exist"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named_at_once(
    variable: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    error = failure(make_model("m", api_base="https://models.example/v1", api_key=KEY))
    assert error.kind == "setup"
    assert f"The environment variable {variable} {said}" in str(error)
