"""`trajectory.json` in the form of the paper's own package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_sandbox_nb.card.card import Card
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.formats.llm_in_sandbox import (
    NEW_SHELLS,
    dump_seed,
    from_seed,
    outcome,
    save_responses,
    to_seed,
    write_seed,
)
from llm_sandbox_nb.formats.records import NoRecordError, read_bytes, read_run
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.saved_events import saved_events
from llm_sandbox_nb.trajectory.step_line import step_line
from llm_sandbox_nb.trajectory.trajectory import Trajectory

PUBLISHED = """{
  "problem_statement": "How many r's? ünï",
  "steps": [
    {
      "thought": "I count.",
      "reasoning_content": "Letters hide in tokens.",
      "action": {
        "function": "execute_bash",
        "parameters": {
          "command": "echo 3"
        }
      },
      "observation": "Exit code: 0\\n3",
      "metadata": {
        "step": 1,
        "exec_time": 7.8996968269348145
      }
    },
    {
      "thought": "It is 3.",
      "reasoning_content": "",
      "action": {
        "function": "",
        "parameters": {}
      },
      "observation": "\\nYou forgot to use a function call.\\n",
      "metadata": {
        "step": 2,
        "exec_time": 0.5
      }
    },
    {
      "thought": "",
      "reasoning_content": "",
      "action": {
        "function": "submit",
        "parameters": {}
      },
      "observation": "<<< Finished >>>",
      "metadata": {
        "step": 3,
        "exec_time": 1.0
      }
    }
  ],
  "metadata": {
    "total_steps": 3
  }
}"""
"""As the paper's package writes it: keys, order, indent, non-ASCII text, no final line end."""


def test_reading_and_writing_gives_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "trajectory.json"
    path.write_text(PUBLISHED, "utf-8")
    trajectory = read_run(path).trajectory
    assert dump_seed(trajectory) == PUBLISHED
    written = write_seed(trajectory, tmp_path)
    assert written.read_bytes() == PUBLISHED.encode()
    assert [file.name for file in tmp_path.iterdir()] == ["trajectory.json"]


def test_a_record_becomes_a_run(tmp_path: Path) -> None:
    path = tmp_path / "trajectory.json"
    path.write_text(PUBLISHED, "utf-8")
    run = Run.load(path)
    assert run.task == "How many r's? ünï"
    assert run.stop_reason == "submitted"
    assert len(run.steps) == 3
    assert run.steps[0].calls[0].arguments == {"command": "echo 3"}
    assert run.steps[0].calls[0].output == "Exit code: 0\n3"
    assert run.steps[0].reasoning == "Letters hide in tokens."


def test_several_calls_of_a_reply_are_several_records() -> None:
    said = {"role": "assistant", "content": "two"}
    trajectory = Trajectory([
        ev.RunStarted(run_id="r", task="t", model="m"),
        ev.ModelReplied(step=1, message=said, reasoning="why", model_time=2.0),
        ev.CallProposed(step=1, call_id="a", tool="execute_bash", raw_arguments="", arguments={"a": 1}),
        ev.CallProposed(step=1, call_id="b", tool="submit", raw_arguments="{", arguments=None),
        ev.CallFinished(step=1, call_id="a", observation="A"),
        ev.CallFinished(step=1, call_id="b", observation="B"),
        ev.ModelRequested(step=2),
    ])  # fmt: skip
    content = to_seed(trajectory)
    assert content["metadata"] == {"total_steps": 2}
    assert [record["thought"] for record in content["steps"]] == ["two", ""]
    assert [record["observation"] for record in content["steps"]] == ["A", "B"]
    assert [record["metadata"] for record in content["steps"]] == [
        {"step": 1, "exec_time": 2.0}, {"step": 2, "exec_time": 0.0},
    ]  # fmt: skip


def test_remaining_steps_are_not_part_of_an_observation() -> None:
    """As in the package: they are told in messages, and recorded nowhere."""
    counter = "\n\n[Steps remaining: 7]\nThis is the last turn."
    trajectory = Trajectory([
        ev.RunStarted(run_id="r", task="t", model="m"),
        ev.ModelReplied(step=1, message={"role": "assistant", "content": ""}),
        ev.CallProposed(step=1, call_id="a", tool="execute_bash", raw_arguments="{}", arguments={}),
        ev.CallFinished(step=1, call_id="a", observation=f"A{counter}", after=counter),
        ev.ModelReplied(step=2, message={"role": "assistant", "content": "No call."}),
        ev.MessageAdded(message={"role": "user", "content": f"Call a tool.{counter}"}),
    ])  # fmt: skip
    assert [record["observation"] for record in to_seed(trajectory)["steps"]] == ["A", "Call a tool."]


@pytest.mark.parametrize(
    ("observation", "settings"),
    [
        ("Exit code: 0\nExecution output of \\[execute_bash]:\n\\[STDOUT]\n3\n", NEW_SHELLS),
        ("Exit code: -1\nExecution output of [execute_bash]:\nlate", NEW_SHELLS),
        ("Exit code: 0\n[stdout]\n3", {}),
        ("Exit code: 0\n(no output)", {}),
    ],
)
def test_the_package_gives_each_command_a_shell(observation: str, settings: dict[str, str]) -> None:
    action = {"function": "execute_bash", "parameters": {"command": "x"}}
    record = {"thought": "", "action": action, "observation": observation, "metadata": {}}
    start = from_seed({"problem_statement": "t", "steps": [record]}, "x").start
    assert start
    assert start.settings == settings


def test_a_folder_of_the_package_is_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(PUBLISHED)
    (tmp_path / "trajectory.json").write_text(PUBLISHED, "utf-8")
    assert Run.load(tmp_path).task == "How many r's? ünï"
    assert main(["show", str(tmp_path)]) == 0
    assert "echo 3" in capsys.readouterr().out
    (tmp_path / "trajectory.json").write_text(json.dumps(content | {"steps": content["steps"][:1]}))
    assert main(["show", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith("The record does not say how the run ended.\n")
    many = {name: {"problem_statement": "t", "trajectory": []} for name in ("p1", "p2")}
    (tmp_path / "trajectory.json").write_text(json.dumps(many))
    with pytest.raises(NoRecordError, match="holds 2 runs"):
        Run.load(tmp_path)


def test_requests_and_replies_have_the_keys_of_the_package(tmp_path: Path) -> None:
    """A pair for each reply: what failed is in the journal alone."""
    call = {"id": "a", "type": "function", "function": {"name": "submit", "arguments": "{}"}}
    trajectory = Trajectory([
        ev.RunStarted(run_id="r", task="t", model="openai/m"),
        ev.MessageAdded(message={"role": "user", "content": "t"}),
        ev.ModelRequested(step=1, settings={"temperature": 0.5}),
        ev.ModelFailed(step=1, attempt=1, error="server", message="It is busy."),
        ev.ModelRequested(step=1, attempt=2, settings={"temperature": 0.5, "extra_body": {"a": 1}}),
        ev.ModelReplied(step=1, message={"role": "assistant", "content": "", "tool_calls": [call]}, reasoning="why",
                        finish_reason="tool_calls", usage=ev.Usage(prompt_tokens=3, completion_tokens=2)),
        ev.CallFinished(step=1, call_id="a", observation="ok"),
        ev.ModelRequested(step=2, settings={}),
        ev.ModelReplied(step=2, message={"role": "assistant", "content": "Done."}),
    ])  # fmt: skip
    save_responses(trajectory, tmp_path, "http://127.0.0.1:8000/v1")
    names = [f"{kind}_00{number}.json" for kind in ("request", "response") for number in (1, 2)]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    first, second, response, _ = (json.loads((tmp_path / name).read_text()) for name in names)
    assert first == {
        "call_id": 1, "model": "openai/m", "api_base": "http://127.0.0.1:8000/v1",
        "messages": [{"role": "user", "content": "t"}], "extra_params": {"extra_body": {"a": 1}},
        "kwargs": {"temperature": 0.5},
    }  # fmt: skip
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "tool"]
    assert list(response) == ["call_id", "response"]
    (choice,) = response["response"]["choices"]
    assert (choice["finish_reason"], choice["message"]["tool_calls"]) == ("tool_calls", [call])
    assert choice["message"]["reasoning_content"] == "why"
    assert response["response"]["usage"]["total_tokens"] == 5


def test_an_empty_run_can_be_written() -> None:
    assert json.loads(dump_seed(Trajectory())) == {
        "problem_statement": "",
        "steps": [],
        "metadata": {"total_steps": 0},
    }


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"problem_statement": "x", "steps": [{}]}', '{"problem_statement": "x", "steps": 3}'],
)
def test_other_files_are_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trajectory.json"
    path.write_text(text)
    with pytest.raises(NoRecordError, match=r"trajectory\.json (cannot be read as|is .* not) a trajectory"):
        read_run(path)
    with pytest.raises(FileNotFoundError):
        read_run(tmp_path / "none.json")


OBSERVATIONS = json.loads((Path(__file__).parents[2] / "data/seed_observations.json").read_text())
"""Of the package, and what they tell; the view's TypeScript is tested with them too."""


@pytest.mark.parametrize(("tool", "observation", "facts"), OBSERVATIONS)
def test_how_a_call_ended_is_read_from_its_observation(
    tool: str, observation: str, facts: dict[str, object]
) -> None:
    assert outcome(tool, observation) == facts


def test_a_failed_call_is_failed_and_unknown_values_are_not_shown() -> None:
    tool, observation, _ = OBSERVATIONS[2]
    action = {"function": tool, "parameters": {"command": "python3 a.py"}}
    record = {"thought": "", "action": action, "observation": observation, "metadata": {}}
    finished = {
        **record,
        "action": {"function": "submit", "parameters": {}},
        "observation": "<<< Finished >>>",
    }
    trajectory = from_seed({"problem_statement": "t", "steps": [record, finished]}, "x")
    card = Card()
    for event in trajectory.events:
        card.add(event)
    text = card.final()["text/plain"]
    assert "2 steps · First error: step 1" in text
    assert "exit 2 · FATAL: no such column" in text
    for unknown in ("0.0 s", "token", "cost", "Exit code", "STDERR"):
        assert unknown not in text
    page = card.final()["text/html"].partition("</style>")[2]
    for unknown in ("0.0 s", "token", "cost", "Exit code", "STDERR"):
        assert unknown not in page
    rows = Run(Path(), trajectory).to_dataframe()
    assert rows["prompt_tokens"].isna().all()
    assert rows["duration"].isna().all()


COUNTED = (
    "Exit code: 0\nExecution output of [ls]:\n[STDOUT]\na\n[STDERR]\nb\n\n[Steps remaining: 7]\nBe brief."
)


def record(function: str, observation: str) -> dict[str, Any]:
    action = {"function": function, "parameters": {"command": "ls"}}
    return {"thought": "I look.", "reasoning_content": "Hm.", "action": action, "observation": observation}


RECORDS = [record("execute_bash", COUNTED), record("", "Use a tool."), record("submit", "done")]


@pytest.mark.parametrize(
    "form",
    [
        pytest.param({"problem_statement": "Count.", "steps": RECORDS}, id="run"),
        pytest.param(
            {"problem_statement": "Zähle.", "trajectory": RECORDS, "agent_answer": "42"}, id="benchmark"
        ),
        pytest.param({"problem_statement": "Count.", "steps": RECORDS[:1]}, id="without an end"),
        pytest.param({"problem_statement": "Count.", "steps": []}, id="empty"),
    ],
)
def test_the_events_for_a_page_are_those_of_the_record(form: dict[str, Any]) -> None:
    """As the program that reads a record for the Jupyter server prints them."""
    [run] = read_bytes(json.dumps(form).encode(), "")
    printed = json.loads(json.dumps(saved_events(run.trajectory.events)))
    read = Trajectory([ev.parse_python(event) for event in printed])
    known = from_seed(form, "")
    assert [step.line for step in read.steps] == [
        step_line(step, known.root, running=False) for step in known.steps
    ]
    assert (read.answer, read.state(live=False)) == (known.answer, known.state(live=False))
    assert [call.output for step in read.steps for call in step.calls] == [
        call.output for step in known.steps for call in step.calls
    ]


@pytest.mark.parametrize("form", [{"history": []}, {"problem_statement": "x", "steps": [1]}, [1], "x"])
def test_what_is_no_trajectory_of_the_paper(form: Any) -> None:
    with pytest.raises(NoRecordError):
        read_bytes(json.dumps(form).encode(), "")
