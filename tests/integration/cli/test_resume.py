"""`llm-sandbox-nb resume`: a run that ended too early continues in another process."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml
from answering_server import Answer, AnsweringServer
from cli_process import CommandLine, Done
from scripted_faults import UNAUTHORIZED
from scripted_server import ScriptedServer
from support import own_mark

from llm_sandbox_nb.model.model_names import make_model
from llm_sandbox_nb.runs.recorded_spec import recorded_spec
from llm_sandbox_nb.runs.run import Run

PROCESS = ("--isolation", "process")


def turns(*commands: str) -> str:
    calls = [{"tool": "execute_bash", "arguments": {"command": command}} for command in commands]
    played = [{"text": "I work.", "calls": [call]} for call in calls]
    return yaml.safe_dump({"turns": [*played, {"calls": [{"tool": "submit", "arguments": {}}]}]})


def named(done: Done) -> list[str]:
    """The words of the command that the last line names, without the program's own."""
    words = shlex.split(done.err.splitlines()[-1].split("`")[1])
    assert words[:2] == ["llm-sandbox-nb", "resume"]
    return words[1:]


def test_a_run_that_reached_its_limit_continues_with_the_command_that_it_names(
    command_line: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "script.yaml").write_text(turns("echo one", "cd output", "echo 42 > answer.txt"))
    first = command_line("run", "-q", "Work", "-m", "scripted/script.yaml", "--max_steps", "2", *PROCESS)
    assert first.code == 5, first.out + first.err
    words = named(first)
    assert words[1:] == [first.folder, "--isolation", "process", "--steps", "4"]
    again = command_line(*words)
    assert (again.code, again.err) == (0, ""), again.out + again.err
    assert again.folder == first.folder
    run = Run.load(again.folder)
    assert (run.stop_reason, run.answer, len(run.steps)) == ("submitted", "42", 4)
    assert run.trajectory.changed[-1].limits == {"steps": 4}


def test_the_named_command_has_all_that_the_record_lacks(command_line: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(
        "def double(number: int) -> int:\n    'Double it.'\n    return 2 * number\n\n"
        "def strange(record):\n    'Find nothing.'\n    return []\n"
    )
    (tmp_path / "own.toml").write_text("steps = 1\n")
    calls = [{"tool": "double", "arguments": {"number": 21}}]
    script = [{"text": "I ask.", "calls": calls}, {"calls": [{"tool": "submit", "arguments": {}}]}]
    with ScriptedServer(yaml.safe_dump({"turns": script}), api_key="secret-key") as server:
        given = ("--settings", "own.toml", "--api_base", server.url, "--api_key_env", "MY_KEY", *PROCESS)
        given += ("--tool", "tools.py:double", "--doubt", "tools.py:strange")
        first = command_line("run", "-q", "Work", "-m", "a-model", *given, MY_KEY="secret-key")
        assert first.code == 5, first.out + first.err
        resumes = named(first)
        assert resumes[1:] == [first.folder, *given, "--steps", "2"]
        again = command_line(*resumes, MY_KEY="secret-key")
        assert (again.code, again.err) == (0, ""), again.out + again.err


def test_a_run_whose_model_failed_continues(command_line: CommandLine, tmp_path: Path) -> None:
    with ScriptedServer(turns("echo 42 > output/answer.txt")) as server:
        server.fail_next(UNAUTHORIZED)
        words = ("-m", "a-model", "--api_base", server.url, "--api_key", "secret-key", *PROCESS)
        first = command_line("run", "-q", "Work", *words)
        first.is_one_sentence(3, "continues this run.")
        assert "secret-key" not in first.err + first.out
        resumes = named(first)
        assert resumes[1:] == [first.folder, "--api_base", server.url, "--isolation", "process"]
        again = command_line(*resumes, "--api_key", "secret-key", "--temperature", "0.5")
        assert (again.code, again.err) == (0, ""), again.out + again.err
        assert server.requests[-1].body["temperature"] == 0.5
    run = Run.load(again.folder)
    assert (run.stop_reason, run.answer) == ("submitted", "42")


def test_a_run_is_found_by_a_part_of_its_id_and_told_something(
    command_line: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "script.yaml").write_text(turns("echo 42 > output/answer.txt"))
    first = command_line("run", "-q", "Work", "-m", "scripted/script.yaml", *PROCESS)
    assert (first.code, first.err) == (0, "")
    part = Path(first.folder).name[-6:]
    command_line("resume", part, *PROCESS).is_one_sentence(2, "llm-sandbox-nb resume RUN 'Make it blue.'")
    again = command_line("resume", part, "Check it.", *PROCESS)
    assert again.code == 0, again.out + again.err
    assert "scripted: free" in again.out
    assert any("Check it." in message["content"] for message in Run.load(first.folder).messages)


def test_what_cannot_resume_is_one_sentence(command_line: CommandLine, tmp_path: Path) -> None:
    command_line("resume", "no-such-run").is_one_sentence(2, "no-such-run")
    (tmp_path / "script.yaml").write_text(turns("echo one", "echo two"))
    first = command_line("run", "-q", "Work", "-m", "scripted/script.yaml", "--max_steps", "1", *PROCESS)
    command_line("resume", first.folder).is_one_sentence(2, "--isolation")
    command_line("resume", first.folder, *PROCESS).is_one_sentence(2, "as in --steps 21.")


def test_a_server_that_the_run_did_not_have_is_named(command_line: CommandLine) -> None:
    first = command_line("run", "--query", "x", "--model", "scripted/strawberry", *PROCESS)
    refused = command_line("resume", first.folder, "More.", *PROCESS, "--mcp", "t=true", "--mcp", "u=true")
    refused.is_one_sentence(2, "This run had no MCP server t: start the task again with --mcp t.")


def test_the_time_before_counts_for_the_limit_of_a_resumed_run(
    command_line: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "script.yaml").write_text(turns(f"sleep {own_mark()}"))
    first = command_line("run", "-q", "Work", "-m", "scripted/script.yaml", "--time", "1", *PROCESS)
    *_, option, seconds = named(first)
    assert (first.code, option, int(seconds) >= 4) == (5, "--time", True), first.out + first.err
    command_line("resume", first.folder, *PROCESS).is_one_sentence(2, "as in --time 60.")


def test_options_of_a_run_that_a_resume_changes_hold_and_are_recorded(
    command_line: CommandLine, tmp_path: Path
) -> None:
    waits = f"sleep {own_mark()}"
    (tmp_path / "script.yaml").write_text(turns("echo one", waits, "echo 42 > output/answer.txt"))
    first = command_line("run", "-q", "Work", "-m", "scripted/script.yaml", "--max_steps", "1", *PROCESS)
    changed = (
        "--context",
        "full",
        "--tool-calls",
        "native",
        "--same-failures",
        "3",
        "--command-timeout",
        "1",
    )
    command_line("resume", first.folder, *PROCESS, "--context", "some").is_one_sentence(
        2, "mask, summary, full"
    )
    again = command_line("resume", first.folder, *PROCESS, "--steps", "9", *changed)
    assert again.code == 0, again.out + again.err
    run = Run.load(first.folder)
    assert run.trajectory.changed[-1].settings == {
        "context": "full", "tool_calls": "native", "same_failures": 3, "command_timeout": 1,
    }  # fmt: skip
    assert run.steps[1].calls[0].result is not None
    assert run.steps[1].calls[0].result.timed_out
    spec = recorded_spec(run, make_model("scripted/strawberry"))
    assert (spec.context, spec.tool_calls, spec.same_failures, spec.command_timeout) == (
        "full",
        "native",
        3,
        1,
    )


@pytest.mark.parametrize("rule", [("--step",), ("--approve", "ask")])
def test_a_resume_without_options_asks_as_the_run_did(
    rule: tuple[str, ...], command_line: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "script.yaml").write_text(turns("echo one", "echo two"))
    words = ("-m", "scripted/script.yaml", *PROCESS)
    first = command_line("run", "-q", "Work", *words, *rule, stdin="")
    assert first.code == 130, first.out + first.err
    again = command_line("resume", first.folder, *PROCESS, "--break", "tool == 'submit'", stdin="n No.\n")
    assert again.code == 130, again.out + again.err
    denied, submit = (step.calls[0] for step in Run.load(first.folder).steps[1:])
    assert (denied.started, denied.output.partition("\n")[0]) == (None, "No.")
    assert submit.started is None


def test_how_long_a_server_is_waited_for_is_an_option_of_a_resume(command_line: CommandLine) -> None:
    loading = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
    with AnsweringServer(lambda asked: Answer(503, loading)) as server:
        words = ("-m", "m", "--api_base", server.url, "--api_key", "k", *PROCESS, "--model-wait", "0.2")
        first = command_line("run", "-q", "Work", *words)
        assert first.code == 3, first.out + first.err
        again = command_line("resume", first.folder, *words[2:])
    assert again.code == 3, again.out + again.err
    assert "Loading model" in again.err


def test_a_check_decides_the_exit_code_and_a_resume_keeps_or_changes_it(
    command_line: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "script.yaml").write_text(turns("echo 41 > output/answer.txt"))
    (tmp_path / "wanted").mkdir()
    (tmp_path / "wanted" / "expected.txt").write_text("42")
    words = ("-m", "scripted/script.yaml", *PROCESS)
    for wrong in (("--check-files", "wanted"), ("--check", "true", "--check_files", "gone")):
        assert command_line("run", "-q", "Work", *words, *wrong).code == 2
    check = ("--check", "grep -f expected.txt", "--check-files", "wanted")
    first = command_line("run", "-q", "Work", *words, *check)
    assert first.code == 7, first.out + first.err
    assert "Check: grep -f expected.txt" in first.out
    assert "Submitted, check failed: grep -f expected.txt, exit 1 · 2 steps" in first.out
    (tmp_path / "wanted" / "expected.txt").write_text("41")  # the run has a copy of its own
    turn = {"calls": [{"tool": "submit"}]}
    (tmp_path / "script.yaml").write_text(yaml.safe_dump({"turns": [{"text": "x"}] * 2 + [turn] * 3}))
    again = command_line("resume", first.folder, "Again.", *PROCESS)
    assert again.code == 7, again.out + again.err
    changed = command_line("resume", first.folder, "Again.", *PROCESS, *check)
    assert changed.code == 0, changed.out + changed.err
    assert "Submitted, checked without protection: grep -f expected.txt" in changed.out
    assert "checked without protection" in command_line("runs").out
