"""`trajectory.json` in the form of the paper's own package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_sandbox_nb.card.card import Card
from llm_sandbox_nb.formats.llm_in_sandbox import (
    dump_seed,
    from_seed,
    outcome,
    to_seed,
    write_seed,
)
from llm_sandbox_nb.formats.records import NoRecordError, read_run
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.trajectory import events as ev
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


def test_what_is_read_is_a_run(tmp_path: Path) -> None:
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
    with pytest.raises(NoRecordError, match=r"trajectory\.json is (no trajectory|.* and no trajectory)"):
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


def test_a_failed_call_is_failed_and_what_is_not_known_is_not_shown() -> None:
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
