"""Servers of models with a fault each, end to end: `llm-sandbox-nb run` ends well, or says what is wrong at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from answering_server import Answer, AnsweringServer, Asked, refused, replied, tool_call

from llm_sandbox_nb.cli import ENDED_WELL, MODEL_ERROR, main
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import read_journal

pytestmark = pytest.mark.usefixtures("plain_environment")
KEY = "sk-0123456789abcdef0123456789"
WRITE = tool_call("execute_bash", {"command": "echo three > output/answer.txt"}, "call_write_1")


@dataclass(frozen=True)
class Case:
    """A server, how a person calls it, and what they read."""

    name: str
    answer: Callable[[Asked], Answer | None] = lambda asked: None
    """What it answers before it plays two turns: a call that writes the answer, then `submit`."""
    model: str = "m"
    models: tuple[str, ...] | None = ("m",)
    address: str = "{url}"
    variables: dict[str, str] = field(default_factory=dict)
    wrong_path: Answer | None = None
    code: int = ENDED_WELL
    said: str = ""


def in_request_2(answer: Answer, wrong: Callable[[Asked], bool]) -> Callable[[Asked], Answer | None]:
    return lambda asked: answer if "tool" in asked.roles and wrong(asked) else None


def first_loads(answer: Answer) -> Callable[[Asked], Answer | None]:
    return lambda asked: answer if asked.number < 3 else None


def lacks(name: str) -> Callable[[Asked], bool]:
    return lambda asked: any(name not in one for one in asked.messages if one["role"] == "assistant")


def bad_ids(asked: Asked) -> bool:
    calls = [call for one in asked.messages for call in one.get("tool_calls") or ()]
    return any(len(call["id"]) != 9 or not call["id"].isalnum() for call in calls)


BROKEN = "{'command': 'echo three > output/answer.txt', 'timeout': \"30\",}"
CASES = [
    Case("a key with a line end", variables={"OPENAI_API_KEY": f"{KEY}\n"}),
    Case("a key in curly quotes", variables={"OPENAI_API_KEY": f"\u201c{KEY}\u201d"}, code=2, said="OPENAI_API_KEY"),
    Case("a name that begins with a provider", model="openai/openai/gpt-oss-20b", models=("openai/gpt-oss-20b",),
         answer=lambda asked: None if asked.body["model"] == "openai/gpt-oss-20b" else refused(404, "no such model")),
    Case("a name whose first part is cut off", model="openai/gpt-oss-20b", models=("openai/gpt-oss-20b",),
         answer=lambda asked: None if asked.body["model"] == "openai/gpt-oss-20b" else refused(404, "no such model"),
         said="the model is called openai/gpt-oss-20b there"),
    Case("a model that is not there", model="openai/nope", models=("a/b", "c"), code=MODEL_ERROR,
         answer=lambda asked: refused(404, "The model `nope` does not exist."),
         said="nope was sent, and the server has a/b, c"),
    Case("no system role", said="takes no system message", answer=lambda asked: refused(
        400, "System role not supported") if "system" in asked.roles else None),
    Case("reasoning is missed", said="wants the field reasoning_content back", answer=in_request_2(refused(
        400, "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2"),
        lacks("reasoning_content"))),
    Case("ids of nine letters", answer=in_request_2(refused(
        400, "Tool call id was call_write_1 but must be a-z, A-Z, 0-9, with a length of 9."), bad_ids)),
    Case("loads its model", said="it is waited for", answer=first_loads(
        Answer(503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}))),
    Case("an address without /v1", address="{root}", said="the address is"),
    Case("an address with /chat/completions", address="{url}/chat/completions", said="the address is"),
    Case("LM Studio's status 200 for a wrong path", address="{root}", said="the address is",
         wrong_path=Answer(200, {"error": "Unexpected endpoint or method. (POST /chat/completions)"})),
    Case("nothing at the address", address="{root}/x", models=None, code=MODEL_ERROR,
         said="nothing lists models there"),
    Case("an error body that is a list", code=MODEL_ERROR, said="It rains",
         answer=lambda asked: Answer(400, [{"error": {"code": 400, "message": "It rains."}}])),
    Case("broken arguments", answer=lambda asked: None if "tool" in asked.roles else replied(
        tool_call("execute_bash", BROKEN))),
    Case("a SOCKS proxy in the environment", variables={"ALL_PROXY": "socks5://192.0.2.1:1080"}),
    Case("[::1] in NO_PROXY", variables={"NO_PROXY": "localhost,[::1]"}),
    Case("certificates that are not there", variables={"SSL_CERT_FILE": "/nowhere.pem"}),
]  # fmt: skip


def events_of(folder: Path) -> Iterator[ev.Event]:
    [journal] = folder.glob("runs/*/journal.jsonl")
    return read_journal(journal)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_run_with_this_server(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in case.variables.items():
        monkeypatch.setenv(name, value)

    def answer(asked: Asked) -> Answer | None:
        written = case.answer(asked)
        return written or (None if "tool" in asked.roles else replied(WRITE, reasoning_content="I write."))

    with AnsweringServer(answer, models=case.models, wrong_path=case.wrong_path) as server:
        address = case.address.format(url=server.url, root=server.root)
        words = ["run", "How many?", "-m", case.model, "--api_base", address, "--isolation", "process"]
        code = main([*words, "-o", "runs", "--model_wait", "60"])
    told = "".join(capfd.readouterr())
    assert code == case.code, told
    assert case.said in told
    assert KEY not in told
    assert "Traceback" not in told
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(KEY.encode() in data for data in kept)
    if case.code == ENDED_WELL:
        assert "three" in told
        assert [event.stop_reason for event in events_of(tmp_path) if isinstance(event, ev.RunFinished)] == [
            "submitted"
        ]
        assert all("api_key" not in json.dumps(one.body) for one in server.posts)


def test_what_was_written_and_what_was_executed_are_both_in_the_journal(tmp_path: Path) -> None:
    first = replied(tool_call("execute_bash", BROKEN))
    with AnsweringServer(lambda asked: None if "tool" in asked.roles else first) as server:
        assert (
            main(["run", "Go.", "-m", "m", "--api_base", server.url, "--isolation", "process", "-o", "runs"])
            == 0
        )
    proposed = next(event for event in events_of(tmp_path) if isinstance(event, ev.CallProposed))
    started = next(event for event in events_of(tmp_path) if isinstance(event, ev.CallStarted))
    assert proposed.raw_arguments == BROKEN
    assert started.arguments == {"command": "echo three > output/answer.txt", "timeout": 30}


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
