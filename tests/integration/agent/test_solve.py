"""`solve` from end to end with a scripted model: the loop, the tools, the record."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import (
    SUBMIT,
    bash,
    check_messages,
    check_record,
    edit,
    outputs,
    raw,
    results,
    script,
    script_text,
    solved,
    turn,
)
from scripted_faults import SERVER_ERROR, UNAUTHORIZED, overflow
from scripted_server import ScriptedServer
from support import eventually, own_mark, processes_with, run, until
from talking_model import TalkingModel

from llm_sandbox_nb.agent.checks import Check
from llm_sandbox_nb.agent.errors import InputError, RunError
from llm_sandbox_nb.agent.run_limits import Meter, RunLimits
from llm_sandbox_nb.model.contract import ModelError, ModelSettings, Reply
from llm_sandbox_nb.model.retries import RetryPolicy
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import is_being_written, load_bytes

QUICK = RetryPolicy(attempts=3, first_wait=0.01)


def test_a_run_that_fails_before_it_begins_releases_its_record(tmp_path: Path) -> None:
    folders: list[Path] = []

    def fail(run: Run) -> None:
        folders.append(run.folder)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(
            solve(
                "A task.", model="scripted/strawberry", isolation="process", output_dir=tmp_path, on_run=fail
            )
        )
    assert not is_being_written(folders[0])


def test_a_run_that_is_cancelled_before_its_first_event_releases_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Run] = []

    async def cancelled() -> None:
        task = asyncio.current_task()
        assert task

        def keep_files(check: Check, folder: Path) -> Check:
            loop.call_soon_threadsafe(task.cancel)
            return check

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(Check, "kept_in", keep_files)
        await solve(
            "A task.", model="scripted/strawberry", isolation="process", output_dir=tmp_path, check="true",
            on_run=begun.append, limits={"steps": 1},
        )  # fmt: skip

    with pytest.raises(asyncio.CancelledError):
        run(cancelled())
    assert not begun[0].trajectory.events
    assert not is_being_written(begun[0].folder)


def test_the_quick_start(tmp_path: Path, isolation: str) -> None:
    seen: list[ev.Event] = []
    begun: list[Run] = []
    result = run(
        solve(
            "How many r's are in strawberry?",
            model="scripted/strawberry",
            isolation=isolation,
            output_dir=tmp_path,
            name="my/notebook",
            listeners=[seen.append],
            on_run=begun.append,
        )
    )
    check_record(result)
    assert begun == [result]
    assert (result.answer, result.stop_reason) == ("There are 3 r's in strawberry.", "submitted")
    assert "at [3, 8, 9]" in result.steps[0].calls[0].output
    assert result.files["answer.txt"].read_bytes() == b"There are 3 r's in strawberry.\n"
    assert result.folder.parent == tmp_path / "my-notebook"
    kept = {"journal.jsonl", "files", "history", "trajectory.json"}
    assert {path.name for path in result.folder.iterdir()} == kept
    assert result.trajectory.sandbox is not None
    assert result.trajectory.sandbox.protection["isolation"] == isolation
    assert {"model.delta", "call.output"} <= {event.kind for event in seen}
    assert [event for event in seen if event.kind not in ev.TRANSIENT] == result.trajectory.events
    assert result.usage.total_tokens > 0
    assert result.usage.cost is None
    assert result.trajectory.start is not None
    assert result.trajectory.start.scripted
    loaded = Run.load(result.folder)
    assert repr(loaded) == repr(result)
    assert "Submitted, not checked · 3 steps" in repr(loaded)
    assert loaded.messages == result.messages


def test_the_conversation_in_the_journal_is_what_the_model_got(tmp_path: Path) -> None:
    """Each request the server saw is, to the byte, a beginning of what the journal gives back."""
    turns = [
        turn(bash("printf 'a\\tb\\r\\n\\xff \\033[31mred\\n'"), bash("seq 5000"), text="ü😀", reasoning="h"),
        turn(raw("execute_bash", '{"command": "ls'), raw("nope", "[1]")),
        turn(text="I only talk."),
        turn(raw("execute_bash", '{"command": "echo \\ud800"}'), bash("echo {}}{ {x}")),
        turn(edit("create", "é b", file_text=""), edit("view", "é b"), edit("view", "."), raw("submit", "")),
    ]  # fmt: skip
    with ScriptedServer(script_text(*turns)) as server:
        result = run(
            solve(
                "A {task} with {braces} and 'quotes' 😀",
                model="a-model",
                api_base=server.url,
                api_key="key",
                isolation="process",
                output_dir=tmp_path,
            )
        )
    assert result.stop_reason == "submitted"
    check_record(result)
    rebuilt = list(Run.load(result.folder).trajectory.messages())
    assert len(server.requests) == 5
    for request in server.requests:
        sent = request.messages
        assert json.dumps(sent, sort_keys=True) == json.dumps(rebuilt[: len(sent)], sort_keys=True)
    assert rebuilt[: len(server.requests[-1].messages)] == server.requests[-1].messages
    lengths = [len(request.messages) for request in server.requests]
    assert lengths == sorted(set(lengths))


def test_every_call_of_a_reply_gets_one_result(tmp_path: Path) -> None:
    """Also those after `submit`, which are not executed."""
    canary = tmp_path / "canary"
    calls = [
        bash("echo one"),
        {"tool": "execute_bash", "raw_arguments": '{"command": '},
        {"tool": "teleport", "arguments": {}},
        {"tool": "execute_bash", "arguments": {"command": ["ls"]}},
        {"tool": "str_replace_editor", "arguments": {"command": "view", "path": ""}},
        edit("insert", "no such file", insert_line=0, new_str="x"),
        bash("echo a\x00b"),
        bash("echo two"),
    ]
    last = [{"tool": "submit", "raw_arguments": ""}, bash(f"touch {canary}"), {"tool": "submit"}]
    result = run(solved(tmp_path, turn(*calls), turn(*last)))
    found = results(result)
    errors = [one.error for one in found]
    assert errors == [
        None, "malformed_json", "unknown_tool", "bad_arguments", "editor", "editor", "bad_arguments",
        None, None, "not_executed", "not_executed",
    ]  # fmt: skip
    assert not canary.exists()
    assert result.stop_reason == "submitted"
    assert "one" in found[0].observation
    assert "two" in found[7].observation
    assert all(len(one.observation) < 500 for one in found)
    assert [("Steps remaining" in one.observation) for one in found] == [False] * 7 + [
        True,
        False,
        False,
        True,
    ]
    proposed = result.steps[0].calls[1]
    assert (proposed.raw_arguments, proposed.arguments) == ('{"command": ', None)


def test_the_shell_lasts_and_streams_stay_apart(tmp_path: Path) -> None:
    turns = [
        turn(bash("cd /usr && export A='x y' && f() { echo \"in f: $A\"; }")),
        turn(bash("pwd; f; echo oops >&2; false")),
        turn(bash("sleep infinity", timeout=1)),
        turn(bash("exit 124")),
    ]
    result = run(solved(tmp_path, *turns, SUBMIT))
    silent, second, slow, own = results(result)[:4]
    assert "(no output)" in silent.observation
    assert "Exit code: 1\n[stdout]\n/usr\nin f: x y\n[stderr]\noops" in second.observation
    assert slow.timed_out
    assert "Timed out" in slow.observation
    assert (own.exit_code, own.timed_out) == (124, False)


def test_long_output_is_whole_in_the_sandbox_and_in_the_record(tmp_path: Path) -> None:
    data = b"".join(b"%06d\n" % number for number in range(30_000))
    turns = [
        turn(bash("python3 -c 'for n in range(30000): print(f\"{n:06}\")'")),
        turn(bash("ls -d ../tmp/llm-sandbox/*.stdout && cat ../tmp/llm-sandbox/*.stdout | sha256sum")),
        turn(bash("printf '\\377\\376binary\\000'")),
    ]
    result = run(solved(tmp_path, *turns, SUBMIT))
    first, second, third = results(result)[:3]
    assert len(first.observation) < 1500
    path = first.observation.split("all of it is in ")[1].split(" ")[0]
    assert Path(path).name in second.observation
    assert hashlib.sha256(data).hexdigest() in second.observation
    assert isinstance(first.stdout, ev.Blob)
    assert load_bytes(result.folder, first.stdout) == data
    assert load_bytes(result.folder, third.stdout) == b"\xff\xfebinary\x00"


# --- ends ---


def test_a_model_that_only_talks_is_asked_for_a_call_then_taken_at_its_word(tmp_path: Path) -> None:
    result = run(solved(tmp_path, turn(text="It is 2."), turn(text="Or 3?"), turn(text=" It is 3. ")))
    assert (result.stop_reason, result.answer) == ("answered", "It is 3.")
    nudges = [message["content"] for message in result.messages if message["role"] == "user"][1:]
    assert len(nudges) == 2
    assert "submit" in nudges[0]
    assert "[Steps remaining: 98]" in nudges[1]
    talk = turn(text="hm")
    again = run(solved(tmp_path, talk, talk, turn(bash("true")), talk, talk, SUBMIT))
    assert again.stop_reason == "submitted", "a call ends the series"


def test_steps_run_out_after_a_warned_last_turn(tmp_path: Path) -> None:
    turns = [
        turn(bash(f"echo {number} > output/answer.txt"), text=f"thought {number}") for number in range(9)
    ]
    result = run(solved(tmp_path, *turns, limits=RunLimits(steps=3)))
    assert (result.stop_reason, len(result.steps)) == ("steps", 3)
    assert result.answer == "2"
    said = outputs(result)
    assert "[Steps remaining: 2]" in said[0]
    assert "[Steps remaining: 1]\nThis is your last step." in said[1]
    assert "Steps remaining" not in said[2]
    other = run(solved(tmp_path, turn(bash("true"), text="Let me look."), limits=RunLimits(steps=1)))
    assert (other.stop_reason, other.answer) == ("steps", None), "without the file there is no answer"


def test_a_last_chance_to_submit_when_tokens_run_out(tmp_path: Path) -> None:
    usage = {"usage": {"prompt_tokens": 9_000, "completion_tokens": 500}}
    turns = [turn(bash("true"), **usage), turn(bash("echo 7 > answer.txt"), {"tool": "submit"})]
    result = run(solved(tmp_path, *turns, limits=RunLimits(tokens=10_000)))
    assert (result.stop_reason, result.answer) == ("submitted", "7")
    assert "limit of tokens: this is your last turn" in outputs(result)[0]
    careless = run(solved(tmp_path, *turns[:1] * 5, limits=RunLimits(tokens=10_000)))
    assert (careless.stop_reason, len(careless.steps)) == ("tokens", 2), "it did not take it"


def test_time_ends_a_command_and_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the limits stands still until the command is over: its time-out is all of the time."""
    slow = turn(bash("echo begun; sleep infinity"), bash("echo never"))
    with monkeypatch.context() as patched:
        now: list[ev.Event] = []
        meter = lambda limits: Meter(limits, lambda: 6.0 * len(now))  # noqa: E731
        patched.setattr("llm_sandbox_nb.agent.session.Meter", meter)
        listen = lambda event: now.extend([event] if event.kind == "call.finished" else [])  # noqa: E731
        result = run(solved(tmp_path, slow, limits=RunLimits(time=6), listeners=[listen]))
    assert result.stop_reason == "time"
    first, second = results(result)
    assert first.timed_out
    assert "begun" in first.observation
    assert second.error == "not_executed"
    late = run(solved(tmp_path, turn(text="late", delay=600), limits=RunLimits(time=0.5)))
    assert (late.stop_reason, late.answer) == ("time", None)


def test_a_budget_that_cannot_be_kept_is_said(tmp_path: Path) -> None:
    result = run(solved(tmp_path, SUBMIT, limits=RunLimits(cost=1.0)))
    assert any("limit on cost counts only known costs" in note for note in result.trajectory.notes)


def test_a_resumed_run_keeps_its_budget_after_a_reply_without_a_price(tmp_path: Path) -> None:
    class OnceFree(TalkingModel):
        async def reply(self, messages: list[dict[str, Any]], *given: Any) -> Reply:
            second = sum(message["role"] == "assistant" for message in messages) == 1
            usage = None if second else ev.Usage(prompt_tokens=10, cost=0.6)
            return dataclasses.replace(await super().reply(messages, *given), usage=usage)

    async def resumed() -> Run:
        result = await solve(
            "Work.", model=OnceFree(9), isolation="process", output_dir=tmp_path, limits=RunLimits(steps=2)
        )
        assert result.usage.cost is None
        with pytest.raises(InputError, match=r"has cost \$0\.6\d* and may cost \$0\.5"):
            await result.resume(limits={"steps": 9, "cost": 0.5})
        return await result.resume(limits={"steps": 9, "cost": 1.0})

    result = run(resumed())
    assert (result.stop_reason, len(result.steps)) == ("cost", 3)


def test_a_run_without_tokens_is_not_resumed(tmp_path: Path) -> None:
    async def resumed() -> None:
        turns = [turn(bash("true"), usage={"prompt_tokens": 1000, "completion_tokens": 100})] * 4
        result = await solved(tmp_path, *turns, SUBMIT, limits={"total_tokens": 2000})
        assert (result.stop_reason, len(result.steps)) == ("total_tokens", 2)
        with pytest.raises(InputError, match="has used 2,200 tokens and may use 2,000: allow more"):
            await result.resume("Go on.")
        result = await result.resume("Go on.", limits={"total_tokens": 9000})
        assert (result.stop_reason, len(result.steps)) == ("submitted", 5)

    run(resumed())


# --- failures ---


@pytest.fixture
def broken_server() -> Iterator[ScriptedServer]:
    with ScriptedServer(script_text(turn(bash("echo 1"), text="first"), SUBMIT)) as server:
        yield server


async def served(server: ScriptedServer, folder: Path, **options: Any) -> Run:
    options = {"isolation": "process", "output_dir": folder, "retries": QUICK} | options
    return await solve("A task.", model="a-model", api_base=server.url, api_key="sk-very-secret", **options)


def test_passing_failures_are_retried_and_recorded(broken_server: ScriptedServer, tmp_path: Path) -> None:
    broken_server.fail_next(SERVER_ERROR)
    result = run(served(broken_server, tmp_path))
    check_record(result)
    assert result.stop_reason == "submitted"
    assert [failure.error for failure in result.steps[0].failures] == ["server"]
    assert len(broken_server.requests) == 3


def test_a_refused_key_is_one_clear_error_with_a_whole_record(
    broken_server: ScriptedServer, tmp_path: Path
) -> None:
    broken_server.fail_next(UNAUTHORIZED)
    with pytest.raises(RunError) as caught:
        run(served(broken_server, tmp_path))
    result = caught.value.run
    check_record(result)
    assert result.stop_reason == "model_error"
    assert result.error == str(caught.value)
    assert isinstance(caught.value.__cause__, ModelError)
    assert "\n" not in str(caught.value)
    assert len(broken_server.requests) == 1


def test_no_key_is_written_anywhere(tmp_path: Path) -> None:
    settings = ModelSettings(extra_body={"service_token": "sk-other-secret", "top_a": 1})
    with ScriptedServer(script_text(SUBMIT), strict=False) as server:
        result = run(served(server, tmp_path, settings=settings))
        assert server.requests[0].body["service_token"] == "sk-other-secret"
    assert result.trajectory.start is not None
    assert result.trajectory.start.settings["sampling"]["extra_body"]["top_a"] == 1
    for path in result.folder.rglob("*"):
        if path.is_file():
            assert b"-secret" not in path.read_bytes(), path


def test_a_conversation_that_no_longer_fits_ends_with_tokens(
    broken_server: ScriptedServer, tmp_path: Path
) -> None:
    for _ in range(6):
        broken_server.fail_next(overflow("openai", 8192, 9000, 1000))
    result = run(served(broken_server, tmp_path))
    check_record(result)
    assert result.stop_reason == "tokens"


def test_a_failing_sandbox_ends_the_request_and_is_one_clear_error(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
    with pytest.raises(RunError) as caught:
        run(solved(tmp_path, turn(text="slow", delay=600), isolation="docker"))
    result = caught.value.run
    check_record(result)
    assert result.stop_reason == "error"
    assert "\n" not in str(caught.value)
    assert "Docker" in str(caught.value)


def test_a_sandbox_that_dies_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        run(
            solved(
                tmp_path,
                turn(bash("echo x > output/kept.txt")),
                turn(bash("kill -9 $PPID; sleep infinity"), bash("ls")),
            )
        )
    result = caught.value.run
    check_record(result)
    assert result.stop_reason == "sandbox_lost"
    assert [one.error for one in results(result)] == [None, "cut_short", "not_executed"]
    assert result.files["kept.txt"].read_text() == "x\n"


def test_a_listener_that_fails_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def failing(event: ev.Event) -> None:
        raise ZeroDivisionError("view")

    seen: list[ev.Event] = []
    with caplog.at_level(logging.ERROR):
        result = run(solved(tmp_path, SUBMIT, listeners=[failing, seen.append]))
    assert result.stop_reason == "submitted"
    assert seen[-1].kind == "run.finished"
    assert caplog.text.count("a listener failed") == 1


# --- interrupts ---


async def interrupted(
    folder: Path,
    *turns: dict[str, Any],
    after: str,
    times: int = 1,
    ready: Callable[[], object] = lambda: True,
    **options: Any,
) -> Run:
    """Cancel the run after the event of kind `after` that makes them so many, once something is so."""
    begun: list[Run] = []
    reached = asyncio.Event()
    seen: list[ev.Event] = []

    def listen(event: ev.Event) -> None:
        seen.extend([event] if event.kind == after else [])
        if len(seen) == times:
            reached.set()

    options = {"isolation": "process", "output_dir": folder, "model": script(folder, *turns)} | options
    task = asyncio.create_task(solve("A task.", listeners=[listen], on_run=begun.append, **options))
    await reached.wait()
    await eventually(ready)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    check_messages(begun[0].messages)
    assert begun[0].stop_reason == "interrupted"
    return begun[0]


def test_an_interrupt_kills_the_command_and_closes_the_record(tmp_path: Path) -> None:
    mark = own_mark()
    turns = [turn(bash(f"setsid sleep {mark} & sleep {mark}"), bash("echo never"))]
    ready = lambda: len(processes_with(mark)) >= 2  # noqa: E731
    result = run(interrupted(tmp_path, *turns, after="call.started", ready=ready))
    check_record(result)
    first, second = results(result)
    assert (first.error, second.error) == ("interrupted", "not_executed")
    until(lambda: not processes_with(mark))


def test_an_interrupted_command_keeps_its_output_its_time_and_its_changes(tmp_path: Path) -> None:
    """In the record, and for the model that continues."""
    # What is said in two streams comes as two events.
    turns = [
        turn(bash("touch made.txt; echo before; echo problem >&2; sleep infinity")),
        turn(bash("ls")),
        SUBMIT,
    ]
    stopped = run(interrupted(tmp_path, *turns, after="call.output", times=2))
    check_record(stopped)
    (call,) = stopped.steps[0].calls
    assert call.result is not None
    seen = (call.result.error, call.result.stdout, call.result.stderr)
    assert seen == ("interrupted", "before\n", "problem\n")
    assert call.result.duration > 0
    assert [change.path.rpartition("/")[2] for change in call.changes] == ["made.txt"]
    assert call.output.startswith("Interrupted by the user")
    resumed = stopped.resume("Continue.")
    told = [message["content"] for message in resumed.trajectory.messages() if message["role"] == "tool"]
    assert "[stdout]\nbefore" in told[0]
    assert "[stderr]\nproblem" in told[0]
    assert "made.txt" in told[1]


def test_an_interrupt_during_a_request(tmp_path: Path) -> None:
    with ScriptedServer(script_text(turn(text="x" * 2000), delay=0.05)) as server:
        options = {"model": "a-model", "api_base": server.url, "api_key": "k"}
        result = run(interrupted(tmp_path, after="model.delta", **options))
        assert server.requests[0].finished.wait(60)
        assert server.requests[0].closed_after is not None
    assert result.steps[0].thought
    assert not result.steps[0].replied


def test_an_interrupt_while_the_sandbox_opens(tmp_path: Path, isolation: str) -> None:
    result = run(
        interrupted(tmp_path, turn(bash("true"), delay=600), after="run.started", isolation=isolation)
    )
    check_record(result)
    assert not any(step.replied for step in result.steps)


def test_ctrl_c(tmp_path: Path) -> None:
    """SIGINT under `asyncio.run`: KeyboardInterrupt comes out, the record is whole."""
    begun: list[Run] = []
    pressed: list[object] = []

    def listen(event: ev.Event) -> None:
        if event.kind == "call.output" and not pressed:  # a second one would not wait for the record
            loop = asyncio.get_running_loop()
            pressed.append(loop.call_soon(signal.raise_signal, signal.SIGINT))

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(
            solved(tmp_path, turn(bash("echo go; sleep infinity")), listeners=[listen], on_run=begun.append)
        )
    check_record(begun[0])
    assert begun[0].stop_reason == "interrupted"


# --- what cannot be started ---


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"task": "  \n"}, "task is empty"),
        ({"inputs": ["/no/such/file.csv"]}, "/no/such/file.csv does not exist"),
        ({"inputs": {"../x": b""}}, "plain file name"),
        ({"prompt_config": "/no/such.yaml"}, "No such file"),
        ({"isolation": "jail"}, "jail"),
        ({"output_dir": "/dev/null/runs"}, "choose another output folder"),
        ({"model": "scripted/none"}, "none"),
    ],
)
def test_what_cannot_be_started_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    usual: dict[str, Any] = {"task": "A task.", "isolation": "process", "output_dir": tmp_path / "runs"}
    work = solve(**usual | {"model": script(tmp_path, SUBMIT)} | options)
    with pytest.raises((InputError, ModelError)) as caught:
        run(work)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()
