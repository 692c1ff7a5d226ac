"""`llm-sandbox-nb run` from end to end: what it prints, writes and returns, and interrupts."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import yaml
from cli_process import CommandLine
from scripted_server import ScriptedServer
from support import child_pids, own_mark, processes_with, until

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import read_journal
from llm_sandbox_nb.trajectory.trajectory import Trajectory

PROCESS = ("--isolation", "process")
QUESTION = "How many r's are in strawberry?"


def turns(*commands: str) -> str:
    calls = [{"tool": "execute_bash", "arguments": {"command": command}} for command in commands]
    played = [{"text": "I work.", "calls": [call]} for call in calls]
    return yaml.safe_dump({"turns": [*played, {"calls": [{"tool": "submit", "arguments": {}}]}]})


def after(text: str, *parts: str) -> None:
    place = 0
    for part in parts:
        place = text.find(part, place)
        assert place >= 0, f"{part!r} is missing or out of order in\n{text}"


def script(folder: Path, *commands: str) -> str:
    (folder / "script.yaml").write_text(turns(*commands))
    return "scripted/script.yaml"


def test_the_quick_start(command_line: CommandLine, tmp_path: Path, some_isolation: str) -> None:
    """In a new interpreter, as a person starts it, which imports only what it needs."""
    words = ("run", "--query", QUESTION, "--llm_name", "scripted/strawberry", "--isolation", some_isolation)
    done = command_line.fresh(*words, PYTHONPROFILEIMPORTTIME="1")
    imports = [line for line in done.err.splitlines() if line.startswith("import time:")]
    assert (done.code, done.err.splitlines(), done.left) == (0, imports, [])
    imported = {line.rpartition("|")[2].strip() for line in imports}
    assert "httpx" in imported
    assert not imported & {"litellm", "openai", "mcp", "pandas", "rich", "click", "pygments", "IPython"}
    after(done.out, "Task ", QUESTION, "scripted", "Step 1", "count.py", "3 r's in", "Submitted, not checked · ",
          "Answer", "There are 3", "Files", "answer.txt")  # fmt: skip
    assert done.out.count(f"Isolation  {some_isolation}") == 1
    folder = tmp_path / done.folder
    assert folder.parent == tmp_path / "sandbox-runs"
    assert (folder / "files" / "answer.txt").read_text() == "There are 3 r's in strawberry.\n"
    assert json.loads((folder / "trajectory.json").read_text())["problem_statement"] == QUESTION
    assert Trajectory(read_journal(folder)).stop_reason == "submitted"
    shown = command_line("show", str(folder))
    assert shown.code == 0
    assert "There are 3 r's in strawberry." in shown.out


def test_names_of_files_are_kept_where_the_locale_is_not_utf8(
    command_line: CommandLine, tmp_path: Path
) -> None:
    model = script(tmp_path, "echo 42 > output/é.txt")
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = command_line.fresh("run", "-q", "Ürün", "-m", model, *PROCESS, **locale)
    assert (done.code, done.err) == (0, "")
    assert [path.name for path in (tmp_path / done.folder / "files").iterdir()] == ["é.txt"]


def test_the_seeds_flags_reach_the_server(command_line: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a b.txt").write_text("handed in")
    (tmp_path / "prompts.yaml").write_text(
        "system_prompt: 'Be {brief}.'\ninstance_prompt: 'T: {problem_statement}'\n"
    )
    with ScriptedServer(
        turns("cat 'input/a b.txt'"), extra_fields=("thinking",), api_key="secret-key"
    ) as server:
        done = command_line(
            "run", "--query", "424242", "--llm_name", "your-model", "--llm_base_url", server.url,
            "--api_key", "secret-key", "--temperature", "0.25", "--max_steps=7", *PROCESS,
            "--max_tokens_per_call", "1000", "--max_token_limit", "30000", "--input_dir", "data",
            "--output_dir", "elsewhere", "--prompt_config", "prompts.yaml", "--save_litellm_response", "True",
            "--extra_body", '{"thinking": "true"}',
        )  # fmt: skip
        bodies = [request.body for request in server.requests]
    assert done.code == 0, done.out + done.err
    first, second = bodies
    assert "handed in" in done.out
    assert first["messages"][0]["content"] == "Be {brief}."
    assert "T: 424242" in first["messages"][1]["content"]
    assert (first["model"], first["temperature"], first["thinking"]) == ("your-model", 0.25, True)
    assert 1000 in (first.get("max_tokens"), first.get("max_completion_tokens"))
    folder = tmp_path / done.folder
    assert folder.parent == tmp_path / "elsewhere"
    saved = [json.loads((folder / "litellm" / f"request_{number:03}.json").read_text()) for number in (1, 2)]
    assert [one["messages"] for one in saved] == [first["messages"], second["messages"]]
    assert (folder / "litellm" / "response_002.json").is_file()
    assert "secret-key" not in done.out + "".join(p.read_text() for p in folder.rglob("*.json*"))


def test_a_settings_file_is_used_and_named(command_line: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "llm-in-sandbox.yaml").write_text("llm_name: scripted/strawberry\nisolation: process\n")
    done = command_line("run", "--query", QUESTION)
    assert done.code == 0, done.err
    assert "/llm-in-sandbox.yaml\n" in done.out.partition("Settings   ")[2]
    other = command_line("run", "--query", QUESTION, LLM_NAME="scripted/nosuchscript")
    other.is_one_sentence(3, "nosuchscript")


@pytest.mark.parametrize(
    ("words", "code"),
    [(("--max_steps", "2"), 5), (("--time", "1"), 5), ((), 0)],
    ids=["steps", "time", "none"],
)
def test_a_limit_has_its_own_exit_code(
    command_line: CommandLine, tmp_path: Path, words: tuple[str, ...], code: int
) -> None:
    second = f"sleep {own_mark()}" if "--time" in words else "echo two"
    name = script(tmp_path, "echo one", second, "echo three", "echo four")
    done = command_line("run", "--query", "Work", "--llm_name", name, *PROCESS, *words)
    assert done.code == code, done.out + done.err
    assert (tmp_path / done.folder / "journal.jsonl").is_file()


def test_a_model_that_fails_in_the_middle(command_line: CommandLine, tmp_path: Path) -> None:
    played = yaml.safe_load(turns("echo precious > output/kept.txt"))
    played["turns"][1] = {"error": {"kind": "authentication", "message": "The key was withdrawn."}}
    (tmp_path / "script.yaml").write_text(yaml.safe_dump(played))
    done = command_line("run", "--query", "Work", "--llm_name", "scripted/script.yaml", *PROCESS)
    done.is_one_sentence(3, "key")
    folder = tmp_path / done.folder
    assert (folder / "files" / "kept.txt").read_text() == "precious\n"
    assert Trajectory(read_journal(folder)).stop_reason == "model_error"


def test_what_a_command_prints_cannot_command_the_terminal(command_line: CommandLine, tmp_path: Path) -> None:
    name = script(tmp_path, r"printf '\033]0;owned\007\033[2J\033[31mred\n'")
    done = command_line("run", "--query", "Work", "--llm_name", name, *PROCESS)
    assert done.code == 0
    assert "␛]0;owned␇␛[2J" in done.out
    assert "\x1b" not in done.out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_the_command_and_keeps_the_record(
    command_line: CommandLine, tmp_path: Path, number: signal.Signals
) -> None:
    mark = own_mark()
    name = script(tmp_path, f"echo started; (setsid sleep {mark} &) ; sleep {mark}; touch survived")
    process = command_line.start_warm("run", "--query", "Wait", "--llm_name", name, *PROCESS)
    before = child_pids()
    until(lambda: "| started" in command_line.shown() and len(processes_with(mark)) == 2)
    process.send_signal(number)
    done = command_line.finish(process, before)
    assert done.code == 130, done.out + done.err
    assert done.left == []
    assert "Traceback" not in done.err
    folder = tmp_path / done.folder
    trajectory = Trajectory(read_journal(folder))
    assert trajectory.stop_reason == "interrupted"
    words = "Stopped by you" if number == signal.SIGINT else "Interrupted"
    assert f"\n{words} · 1 step" in done.out
    assert trajectory.state(live=False).words == words
    (call,) = trajectory.steps[0].calls
    assert call.result
    assert (call.result.error, call.result.stdout) == ("interrupted", "started\n")
    assert not list(tmp_path.rglob("survived"))
    assert not processes_with(mark)


def test_a_run_goes_on_when_its_terminal_closes_under_nohup(
    command_line: CommandLine, tmp_path: Path
) -> None:
    name = script(tmp_path, f"echo started; until [ -e {tmp_path / 'go'} ]; do sleep 0.05; done")
    words = command_line.words("run", "--query", "Wait", "--llm_name", name, *PROCESS)
    before = child_pids()
    process = command_line.start("nohup", *words)
    until(lambda: "| started" in command_line.shown())
    process.send_signal(signal.SIGHUP)
    (tmp_path / "go").touch()
    assert command_line.finish(process, before).code == 0


def test_a_killed_run_is_readable_to_its_last_event(command_line: CommandLine, tmp_path: Path) -> None:
    name = script(tmp_path, f"echo started; sleep {own_mark()}")
    process = command_line.start_warm("run", "--query", "Wait", "--llm_name", name, *PROCESS)
    before = child_pids()
    until(lambda: "| started" in command_line.shown())
    process.kill()
    command_line.finish(process, before)
    (folder,) = (tmp_path / "sandbox-runs").iterdir()
    last = list(read_journal(folder))[-1]
    assert isinstance(last, ev.CallStarted)
    assert "Cut off at step 1: `llm-sandbox-nb resume" in command_line("show", str(folder)).out


def test_a_reader_that_goes_away_does_not_end_the_run(command_line: CommandLine, tmp_path: Path) -> None:
    name, gone = script(tmp_path, "until [ -e GONE ]; do sleep 0.05; done", "echo 2"), tmp_path / "gone"
    played = tmp_path / "script.yaml"
    played.write_text(played.read_text().replace("GONE", str(gone)))
    words = " ".join(command_line.words("run", "--query", "Work", "--llm_name", name, *PROCESS))
    done = command_line.program("sh", "-c", f"{words} | (head -n 1; exec <&-; touch {gone})")
    assert "Traceback" not in done.err
    (folder,) = (tmp_path / "sandbox-runs").iterdir()
    assert Trajectory(read_journal(folder)).stop_reason == "submitted"


def test_doctor_says_what_works_and_what_to_do(command_line: CommandLine, tmp_path: Path) -> None:
    done = command_line("doctor", DOCKER_HOST="tcp://127.0.0.1:9", PATH=str(tmp_path))
    done.is_one_sentence(4, "No isolation works")
    assert "docker      does not work here" in done.out
    assert "what to do: on Linux, install the package bubblewrap" in done.out
    assert "isolates nothing" in done.out


@pytest.mark.docker
@pytest.mark.usefixtures("docker_engine")
def test_doctor_finds_docker(command_line: CommandLine) -> None:
    done = command_line("doctor")
    assert done.code == 0
    assert "docker      works" in done.out
    assert "runs here use docker" in done.out
