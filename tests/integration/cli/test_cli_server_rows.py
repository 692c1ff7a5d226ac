"""What servers of models want, give and refuse: what `llm-sandbox-nb run` does then, what a person reads, what is kept.

Each row is a server that says it, the options of a person, the exit code, what they read, and what the journal has.
What is read in the words of each server is in tests/integration/model/test_server_faults.py.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from answering_server import SUBMITS, Answer, AnsweringServer, Asked, refused, replied, tool_call
from support import require, until

from llm_sandbox_nb.cli import ENDED_WELL, LIMIT_REACHED, MODEL_ERROR, NO_ANSWER, main
from llm_sandbox_nb.model.model_names import make_model
from llm_sandbox_nb.model.remote_model import RemoteModel
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import read_journal

pytestmark = pytest.mark.usefixtures("plain_environment")
KEY = "sk-0123456789abcdef0123456789"
SAVE = "echo three > output/answer.txt"
WRITE = tool_call("execute_bash", {"command": SAVE}, "call_write_1")
Events = list[ev.Event]
_E = TypeVar("_E", bound=ev.EventBase)


def of(events: Events, kind: type[_E]) -> list[_E]:
    return [event for event in events if isinstance(event, kind)]


def errors(events: Events) -> list[str]:
    return [event.error for event in of(events, ev.ModelFailed)]


@dataclass(frozen=True)
class Row:
    """A server, how a person calls it, what they read, and what the journal has."""

    name: str
    answer: Callable[[Asked], Answer | None] = lambda asked: None
    """What it answers before it plays two turns: a call that writes the answer, then `submit`."""
    more: dict[str, Any] = field(default_factory=dict)
    """JSON at further paths."""
    options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    model: str = "m"
    models: tuple[str, ...] = ("m", "gpt-4")
    address: str = "{url}"
    code: int = ENDED_WELL
    said: tuple[str, ...] = ()
    journal: Callable[[Events], bool] = lambda events: not errors(events)
    sent: Callable[[AnsweringServer], bool] = lambda server: True


# --- tools, roles, fields ---


def wrote(text: str) -> Answer:
    return replied(text=text, finish="stop")


def in_text(asked: Asked) -> Answer:
    """The two turns as a model without native calls writes them."""
    replies = asked.roles.count("assistant")
    return wrote(f"I save it.\n\n```bash\n{SAVE}\n```" if not replies else "```bash\nsubmit\n```")


def without_tools(refusal: Answer) -> Callable[[Asked], Answer | None]:
    return lambda asked: refusal if asked.body.get("tools") else in_text(asked)


def without_results(refusal: Answer, *, system: bool = True) -> Callable[[Asked], Answer | None]:
    """A server that takes tools, and refuses the messages with their results, or the system's."""

    def answer(asked: Asked) -> Answer | None:
        if "tool" in asked.roles or (not system and "system" in asked.roles):
            return refusal
        return in_text(asked) if not asked.body.get("tools") else None

    return answer


def text_mode(events: Events) -> bool:
    switched = [event.settings.get("tool_calls") for event in of(events, ev.SettingsChanged)]
    return switched == ["text"] and of(events, ev.ModelReplied)[-1].calls_from == "text"


ALTERNATE = refused(
    500, "Jinja Exception: Conversation roles must alternate user/assistant/user/assistant/..."
)
TOOLS_AND_ROLES = [
    Row("Ollama: no tools", without_tools(refused(
        400, "registry.ollama.ai/library/gemma3:latest does not support tools")),
        said=("does not accept tools", "writes its calls as text"), journal=text_mode),
    Row("no tools, and native calls asked for", without_tools(refused(400, "m does not support tools")),
        options=("--tool-calls", "native"), code=MODEL_ERROR, said=("m does not support tools",),
        journal=lambda events: errors(events) == ["tools"]),
    Row("llama.cpp: roles alternate, system and tool among them", without_results(ALTERNATE, system=False),
        said=("does not accept a system message", "does not accept tools"), journal=text_mode,
        sent=lambda server: set(server.posts[-1].roles) == {"user", "assistant"}),
]  # fmt: skip

# --- limits that are told, and contexts that are full ---


def knows(tokens: int, source: str = "server") -> Callable[[Events], bool]:
    return lambda events: (
        [(one.tokens, one.source) for one in of(events, ev.ContextKnown)] == [(tokens, source)]
    )


def most_asked_for(limit: int) -> Callable[[AnsweringServer], bool]:
    return lambda server: all(0 < one.body["max_tokens"] < limit for one in server.posts)


LOOKS = replied(tool_call("execute_bash", {"command": "seq -s ' ' 1 4000 | fold -w 200"}, "call_look_1"))


def full(asked: Asked) -> Answer | None:
    if "tool" not in asked.roles:
        return LOOKS
    if sum(len(str(one["content"])) for one in asked.messages) > 8192:
        error = {"message": "Context size has been exceeded.", "type": "invalid_request_error", "code": 400}
        return Answer(200, iter([f"data: {json.dumps({'error': error})}\n\n".encode()]), "text/event-stream")
    return replied(WRITE) if asked.roles.count("tool") == 1 else SUBMITS


def shortened(events: Events) -> bool:
    return bool(of(events, ev.ContextReduced)) and set(errors(events)) == {"context"}


# --- what a model writes, and how ---

BROKEN = {
    "a raw line end": '{"command": "echo one\necho two"}',
    "an escape of the shell": r'{"command": "A=one; echo \$A"}',
    "a comma too many": '{"command": "echo one",}',
    "single quotes, and a number as text": "{'command': 'echo one', 'timeout': \"30\"}",
    "a fence": '```json\n{"command": "echo one"}\n```',
    "a time-out of -1": '{"command": "echo one", "timeout": -1}',
}


def turns_after(first: Answer) -> Callable[[Asked], Answer | None]:
    def answer(asked: Asked) -> Answer | None:
        replies = asked.roles.count("assistant")
        return [first, replied(WRITE), SUBMITS][min(replies, 2)]

    return answer


def exit_codes(*expected: int | None) -> Callable[[Events], bool]:
    return lambda events: (
        [one.exit_code for one in of(events, ev.CallFinished)][: len(expected)] == list(expected)
    )


def observed(*parts: str) -> Callable[[Events], bool]:
    return lambda events: all(part in of(events, ev.CallFinished)[0].observation for part in parts)


def cut(asked: Asked) -> Answer:
    answer = replied(tool_call("execute_bash", '{"command": "cat > a <<E\\n', "call_cut_1"))
    answer.body["usage"]["completion_tokens"] = asked.body["max_tokens"]
    return answer


UTF_16 = tool_call(
    "execute_bash", {"command": r"printf '\377\376t\0h\0r\0e\0e\0' > output/answer.txt"}, "call_utf_1"
)
WRITTEN = [
    Row("arguments that are broken in six ways", turns_after(replied(*(
        tool_call("execute_bash", raw, f"call_{number}") for number, raw in enumerate(BROKEN.values())))),
        journal=exit_codes(*[0] * len(BROKEN))),
    Row("arguments that nothing repairs", turns_after(replied(
        tool_call("execute_bash", '{"command": "echo "a" "b", "x" "y"}', "call_no_1"))),
        journal=observed("not valid JSON", "Nothing was done", "send it again")),
    Row("arguments cut at the limit, with the finish of a whole call",
        lambda asked: turns_after(cut(asked))(asked), options=("--max_tokens_per_call", "100"),
        said=("limit of tokens for one reply cut this call off",),
        journal=observed("The limit of tokens for one reply cut this call off")),
    Row("an answer in UTF-16", lambda asked: None if "tool" in asked.roles else replied(UTF_16)),
    Row("content filter", lambda asked: replied(text="I cannot help with that.", finish="content_filter"),
        code=NO_ANSWER, said=("refused to answer: I cannot help with that.",)),
    Row("no reply at all", lambda asked: Answer(200, {"id": "r", "object": "chat.completion", "choices": []}),
        code=NO_ANSWER, said=("The model gave no answer: 3 empty replies",), options=("--model_wait", "1")),
]  # fmt: skip

# --- addresses, errors, the environment ---

OTHERS = [
    Row("certificates that are missing", variables={"SSL_CERT_FILE": "/nowhere/ca.pem"},
        address="https://models.example/v1", code=MODEL_ERROR,
        said=("variable SSL_CERT_FILE names /nowhere/ca.pem, which does not exist",),
        journal=lambda events: errors(events) == ["setup"]),
    Row("a model that is in LiteLLM's list", model="openai/gpt-4", sent=most_asked_for(8192),
        journal=lambda events: not of(events, ev.ContextKnown)),
    Row("an address without /v1", address="{root}", said=("the address is",),
        journal=lambda events: errors(events) == ["setting"]),
]  # fmt: skip
ROWS = [
    *TOOLS_AND_ROLES,
    Row("vLLM tells its limit", more={"/v1/models": {"data": [{"id": "m", "max_model_len": 8192}]}},
        said=("can take in 8,192 tokens",), journal=knows(8192), sent=most_asked_for(8192)),
    Row("LM Studio, in a stream with status 200: the context is full", full, journal=shortened),
    *WRITTEN,
    *OTHERS,
]  # fmt: skip


def events_of(folder: Path) -> Events:
    [journal] = folder.glob("runs/*/journal.jsonl")
    return list(read_journal(journal))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_run_with_this_server(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in row.variables.items():
        monkeypatch.setenv(name, value)

    def answer(asked: Asked) -> Answer | None:
        return row.answer(asked) or (None if "tool" in asked.roles else replied(WRITE))

    with AnsweringServer(answer, models=row.models, more=row.more) as server:
        words = [
            "run",
            "How many?",
            "-m",
            row.model,
            "--api_base",
            row.address.format(url=server.url, root=server.root),
        ]
        code = main([*words, "--isolation", "process", "-o", "runs", *row.options])
    told = "".join(capfd.readouterr())
    assert code == row.code, told
    assert [part for part in row.said if part not in told] == [], told
    assert "Traceback" not in told
    assert KEY not in told
    events = events_of(tmp_path)
    assert row.journal(events), [event for event in events if not isinstance(event, ev.ModelDelta)]
    assert row.sent(server), [one.body for one in server.posts]
    assert all(one.body["max_tokens"] > 0 for one in server.posts), "a model never writes without a limit"
    [ended] = of(events, ev.RunFinished)
    if code == ENDED_WELL:
        assert (ended.stop_reason, (ended.answer or "").strip()) == ("submitted", "three")
    else:
        assert ended.stop_reason not in ("submitted", "answered")
        assert not ended.answer


def test_a_server_that_is_started_again_during_a_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing listens at its port until it is missed, twice, and each call is made once."""
    log = [
        tool_call("execute_bash", {"command": f"echo {number} >> output/log"}, f"call_{number}")
        for number in (1, 2)
    ]
    servers = ExitStack()
    posts: list[Asked] = []
    stopped: set[int] = set()

    def answer(asked: Asked) -> Answer | None:
        replies = asked.roles.count("assistant")
        if replies < 2 and replies not in stopped:
            stopped.add(replies)
            threading.Thread(target=start_again).start()
            return Answer(200, broken(), "text/event-stream")
        posts.append(asked)
        return replied(log[replies]) if replies < 2 else SUBMITS

    def broken() -> Iterator[bytes]:
        yield b'data: {"id": "r", "choices": [{"index": 0, "delta": {"content": "I wri'
        raise ConnectionResetError

    def missed() -> int:
        """How often the record says that the server is waited for, each time first."""
        kinds = [event.error for event in of(events_of(tmp_path), ev.ModelFailed)]
        return sum(now == "loading" != before for before, now in zip(["", *kinds], kinds, strict=False))

    def start_again() -> None:
        nonlocal server
        server.close()
        until(lambda: missed() >= len(stopped), "nobody missed it")
        server = servers.enter_context(AnsweringServer(answer, port=port))

    with servers:
        server = servers.enter_context(AnsweringServer(answer))
        port = server.port
        where = ["--api_base", server.url, "--isolation", "process", "-o", "runs"]
        code = main(["run", "How many?", "-m", "m", *where, "--model_wait", "60"])
    told = "".join(capfd.readouterr())
    assert code == ENDED_WELL, told
    assert "cannot answer now" in told
    assert [one.roles.count("assistant") for one in posts] == [0, 1, 2]
    [written] = tmp_path.glob("runs/*/files/log")
    assert written.read_text() == "1\n2\n"


@pytest.mark.parametrize("isolation", ["docker"])
def test_a_command_that_takes_too_much_memory_says_so(
    isolation: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    require(isolation)
    greedy = tool_call("execute_bash", {"command": "python3 -c 'a = bytearray(900_000_000)'"}, "call_mem_1")
    with AnsweringServer(turns_after(replied(greedy))) as server:
        where = ["--api_base", server.url, "--isolation", isolation, "-o", "runs"]
        code = main(["run", "How many?", "-m", "m", *where, "--memory_mb", "300"])
    told = "".join(capfd.readouterr())
    assert code == ENDED_WELL, told
    first = of(events_of(tmp_path), ev.CallFinished)[0]
    assert first.exit_code == 137
    assert "out of memory (limit 300 MB)" in first.observation


def test_what_a_server_has_taught_is_known_when_the_run_resumes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its wishes, the reasoning of its replies, and that its model makes calls natively: text about one is text."""
    refusals: list[int] = []
    shows = {"name": "execute_bash", "arguments": {"command": "echo no > output/answer.txt"}}

    def answer(asked: Asked) -> Answer:
        replies = [one for one in asked.messages if one["role"] == "assistant"]
        if "system" in asked.roles:
            refusals.append(asked.number)
            return refused(400, "System role not supported")
        if any("reasoning_content" not in one for one in replies):
            refusals.append(asked.number)
            return refused(
                400, "Missing `reasoning_content` field in the assistant message at message index 2."
            )
        if len(replies) < 2:
            return replied(WRITE, reasoning_content=f"I write, {len(replies)}.")
        said = f"<tool_call>{json.dumps(shows)}</tool_call>"
        return SUBMITS if len(replies) > 2 else replied(text=said, finish="stop", reasoning_content="Hm.")

    words = ["-m", "m", "--isolation", "process"]
    with AnsweringServer(answer) as server:
        words += ["--api_base", server.url]
        assert main(["run", "How many?", *words, "-o", "runs", "--steps", "2"]) == LIMIT_REACHED
        assert len(refusals) == 2
        [folder] = Path("runs").iterdir()
        assert main(["resume", str(folder), *words, "--steps", "9"]) == ENDED_WELL
    assert len(refusals) == 2, "nothing is learned again"
    last = [one for one in server.posts[-1].messages if one["role"] == "assistant"]
    assert [one["reasoning_content"] for one in last] == ["I write, 0.", "I write, 1.", "Hm."]
    assert "Answer\nthree" in "".join(capfd.readouterr())


def test_what_was_written_and_what_was_executed_are_both_in_the_journal(tmp_path: Path) -> None:
    written = BROKEN["single quotes, and a number as text"]
    with AnsweringServer(turns_after(replied(tool_call("execute_bash", written)))) as server:
        where = ["--api_base", server.url, "--isolation", "process", "-o", "runs"]
        assert main(["run", "Go.", "-m", "m", *where]) == ENDED_WELL
    events = events_of(tmp_path)
    assert of(events, ev.CallProposed)[0].raw_arguments == written
    assert of(events, ev.CallStarted)[0].arguments == {"command": "echo one", "timeout": 30}


def test_a_key_that_the_sandbox_or_the_model_prints_is_in_no_file_and_on_no_screen(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    printed = tool_call("execute_bash", {"command": f"echo {KEY}; seq 1 20000; echo {KEY}"})
    with AnsweringServer(
        lambda asked: None if "tool" in asked.roles else replied(printed, text=f"The key is {KEY}.")
    ) as server:
        words = ["run", "Go.", "-m", "m", "--api_base", server.url, "--isolation", "process", "-o", "runs"]
        assert main([*words, "--api_key", KEY]) == 0
    told = "".join(capfd.readouterr())
    assert "The key is (key)." in told
    assert KEY not in told
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


def test_a_record_that_anybody_made_teaches_only_what_a_server_can_teach() -> None:
    model = make_model("m", api_base="http://127.0.0.1:9/v1", api_key="key")
    assert isinstance(model, RemoteModel)
    wrong = {
        "refused": ["messages", "temperature", 3],
        "wanted": ["x", "name"],
        "dropped": ["role", "a b", "weight"],
    }
    model.recall({**wrong, "no_system": "yes", "alternate": True, "api_base": "http://elsewhere"}, [])
    model.recall({"refused": {"temperature": 1}, "wanted": None}, [])
    assert model._habits.recorded() == {
        "refused": ["temperature"], "wanted": ["name"], "dropped": ["weight"], "alternate": True,
    }  # fmt: skip
