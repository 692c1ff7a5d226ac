"""A scripted model speaks as a real one does: in pieces, with calls, tokens, delays and errors."""

import asyncio
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from support import run
from virtual_time import run_in_virtual_time

from llm_sandbox_nb.model.contract import ModelError, ModelSettings
from llm_sandbox_nb.model.model_names import make_model
from llm_sandbox_nb.model.retries import reply_with_retries

USER = [{"role": "user", "content": "How many r's are in strawberry?"}]
TOOLS = [{"type": "function", "function": {"name": "execute_bash", "parameters": {"type": "object"}}}]


def scripted(tmp_path: Path, text: str) -> str:
    path = tmp_path / "script.yaml"
    path.write_text(text)
    return f"scripted/{path}"


def test_strawberry_to_its_end() -> None:
    model = make_model("scripted/strawberry")
    assert model.scripted
    messages = list(USER)
    pieces: list[tuple[str, str]] = []
    for _ in range(3):
        reply = run(model.reply(messages, TOOLS, ModelSettings(), lambda *piece: pieces.append(piece)))
        messages += [reply.message]
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in reply.calls]
    assert reply.calls[0].name == "submit"
    assert len(pieces) > 10
    assert any(reasoning for _, reasoning in pieces)


def test_text_reasoning_calls_and_usage(tmp_path: Path) -> None:
    name = scripted(
        tmp_path,
        """
        turns:
          - text: héllo
            reasoning: why
            calls: [{tool: a, arguments: {x: "ü"}}, {tool: b, raw_arguments: "{bad"}]
            usage: {prompt_tokens: 11, completion_tokens: 7, cached_tokens: 3, reasoning_tokens: 2}
        """,
    )
    reply = run(make_model(name).reply(USER, TOOLS, ModelSettings(temperature=0.3, max_tokens=9)))
    assert (reply.text, reply.reasoning, reply.finish_reason) == ("héllo", "why", "tool_calls")
    assert [(call.id, call.name, call.arguments) for call in reply.calls] == [
        ("call_1_1", "a", '{"x": "\\u00fc"}'),
        ("call_1_2", "b", "{bad"),
    ]
    assert reply.usage is not None
    assert reply.usage.model_dump() == {
        "prompt_tokens": 11, "completion_tokens": 7, "cached_tokens": 3, "reasoning_tokens": 2, "cost": None,
    }  # fmt: skip


def test_a_turn_without_calls_and_an_empty_turn(tmp_path: Path) -> None:
    name = scripted(tmp_path, "turns: [{text: just text}, {}]")
    reply = run(make_model(name).reply(USER, TOOLS, ModelSettings()))
    assert (reply.text, reply.calls, reply.finish_reason) == ("just text", (), "stop")
    empty = run(make_model(name).reply([*USER, reply.message, *USER], TOOLS, ModelSettings()))
    assert (empty.text, empty.calls) == ("", ())


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        ("{kind: server}", "server", True),
        ("{kind: rate_limit, retry_after: 3}", "rate_limit", True),
        ("{kind: quota, message: insufficient_quota}", "quota", False),
        ("{kind: authentication}", "authentication", False),
        ("{kind: not_found}", "not_found", False),
        ("{kind: bad_request}", "bad_request", False),
        ("{kind: timeout}", "timeout", True),
        ("{kind: context, message: 'prompt is too long: 3 tokens > 2 maximum'}", "context", False),
    ],
)
def test_errors_of_a_script_are_those_of_a_server(
    tmp_path: Path, error: str, kind: str, retryable: bool
) -> None:
    name = scripted(tmp_path, f"turns: [{{error: {error}}}]")
    with pytest.raises(ModelError) as caught:
        run(make_model(name).reply(USER, TOOLS, ModelSettings()))
    assert (caught.value.kind, caught.value.retryable) == (kind, retryable)
    if kind == "rate_limit":
        assert caught.value.retry_after == 3


def test_an_error_for_a_number_of_times_is_retried_away(tmp_path: Path) -> None:
    name = scripted(tmp_path, "turns: [{error: {kind: server, times: 2}, text: at last}]")
    failures: list[int] = []
    reply, _ = run_in_virtual_time(
        reply_with_retries(
            make_model(name), USER, TOOLS, ModelSettings(),
            on_failure=lambda attempt, *_: failures.append(attempt),
        )
    )  # fmt: skip
    assert (reply.text, failures) == ("at last", [1, 2])


def test_the_end_of_the_script_is_one_sentence(tmp_path: Path) -> None:
    name = scripted(tmp_path, "turns: [{text: only}]")
    with pytest.raises(ModelError, match=r"^The script ends after 1 turn, but .* add turns\.$") as caught:
        run(
            make_model(name).reply(
                [*USER, {"role": "assistant", "content": "only"}, *USER], [], ModelSettings()
            )
        )
    assert (caught.value.kind, caught.value.retryable) == ("script", False)


def test_delays_are_kept(tmp_path: Path) -> None:
    model = make_model(scripted(tmp_path, "{delay: 5, chunk: 1, turns: [{text: abcde, delay: 30}]}"))
    moments: list[float] = []

    async def listen() -> None:
        clock = asyncio.get_running_loop().time
        await model.reply(USER, [], ModelSettings(), lambda *_: moments.append(clock()))

    run_in_virtual_time(listen())
    assert [b - a for a, b in pairwise([0, *moments])] == pytest.approx([30, 5, 5, 5, 5])


def test_a_listener_that_fails_and_a_reply_that_takes_too_long(tmp_path: Path) -> None:
    def fails(*_: str) -> None:
        raise ZeroDivisionError

    model = make_model(scripted(tmp_path, "turns: [{text: abcde, delay: 1}]"))
    with pytest.raises(ZeroDivisionError):
        run_in_virtual_time(model.reply(USER, [], ModelSettings(), fails))
    slow = make_model(scripted(tmp_path, "turns: [{text: abcde, delay: 60}]"))
    with pytest.raises(ModelError) as caught:
        run_in_virtual_time(slow.reply(USER, [], ModelSettings(timeout=59)))
    assert (caught.value.kind, caught.value.retryable) == ("timeout", True)


def test_each_call_of_a_conversation_has_an_id_of_its_own(tmp_path: Path) -> None:
    call = "{tool: submit, id: same}"
    model = make_model(scripted(tmp_path, f"turns: [{{calls: [{call}, {call}]}}, {{calls: [{call}]}}]"))
    first = run(model.reply(USER, [], ModelSettings()))
    second = run(model.reply([*USER, first.message], [], ModelSettings()))
    ids = [call.id for call in (*first.calls, *second.calls)]
    assert ids[0] == "same"
    assert len(set(ids)) == 3
    assert [call["id"] for call in second.message["tool_calls"]] == ids[2:]


PLAYED = """
import asyncio, sys
from llm_sandbox_nb.model.contract import ModelSettings
from llm_sandbox_nb.model.model_names import make_model
make_model("openai/gpt-5")
model = make_model("scripted/strawberry")
asyncio.run(model.reply([{"role": "user", "content": "hi"}], [], ModelSettings()))
print("litellm" in sys.modules, "openai" in sys.modules)
"""


def test_litellm_is_imported_neither_for_a_scripted_model_nor_before_the_first_reply() -> None:
    done = subprocess.run([sys.executable, "-c", PLAYED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
