"""The TypeScript: its own tests, and that it takes events and the paper's form for what Python takes them for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from card_runs import run_events

from llm_sandbox_nb.formats.llm_in_sandbox import dump_seed, from_seed, read_seed, to_seed
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory

PACKAGE = Path(__file__).parents[3] / "labextension"


def node(*words: str, given: str = "") -> str:
    """What a program of the package says."""
    if shutil.which("node") is None or not (PACKAGE / "node_modules").is_dir():
        if os.environ.get("LLM_SANDBOX_REQUIRE_ENGINES") == "1":
            pytest.fail("the packages of labextension/ are required: call `make labextension`", pytrace=False)
        pytest.skip("the packages of labextension/ are not installed: `make labextension` does it")
    done = subprocess.run(
        ["node", *words], cwd=PACKAGE, input=given, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def converted(*texts: str) -> list[dict[str, Any] | None]:
    """What the file viewer makes of files."""
    records: list[dict[str, Any] | None] = json.loads(node("tests/convert.mjs", given=json.dumps(texts)))
    return records


def test_its_own_tests_pass() -> None:
    files = sorted(path.relative_to(PACKAGE).as_posix() for path in (PACKAGE / "tests").glob("*.test.mjs"))
    assert len(files) >= 2
    assert "# fail 0" in node("--test", *files)


def samples() -> list[ev.Event]:
    """One event of each kind, as small as it can be, and those of a run."""
    few = [
        ev.RunStarted(run_id="r", task="", model=""), ev.SandboxReady(sandbox_id="", protection={}, start_time=0),
        ev.MessageAdded(message={}), ev.ModelRequested(step=1), ev.ModelDelta(step=1),
        ev.ModelFailed(step=1, attempt=1, error="", message=""), ev.ModelReplied(step=1, message={}),
        ev.CallProposed(step=1, call_id="c", tool="", raw_arguments=""),
        ev.CallStarted(step=1, call_id="c", tool="", arguments={}),
        ev.CallOutput(call_id="c", stream="stdout", text=""),
        ev.CallFinished(step=1, call_id="c", observation="", stdout=ev.Blob(sha256="", size=1),
                        changes=[ev.FileDiff(path="a", kind="added", size=1)]),
        ev.ArtifactSaved(path="a", mime="", size=1, sha256=""), ev.ArtifactSkipped(reason=""),
        ev.ArtifactRemoved(path="a"), ev.Noted(text=""), ev.RunFinished(stop_reason="submitted"),
    ]  # fmt: skip
    return [*few, *run_events(2)]


def test_every_event_of_python_is_one_for_the_view() -> None:
    events = samples()
    text = "".join(ev.dump_event(event) + "\n" for event in events)
    (record,) = converted(text)
    assert record is not None
    assert record["problem"] == ""
    assert [event["id"] for event in record["events"]] == [event.id for event in events]


def test_an_event_without_one_of_its_fields_is_none_for_the_view() -> None:
    """The check above means something: what lacks a field that the view reads is left out."""
    lines = [json.loads(ev.dump_event(event)) for event in samples()[:1]]
    del lines[0]["task"]
    (record,) = converted(json.dumps(lines[0]) + "\n" + ev.dump_event(ev.Noted(text="")) + "\n")
    assert record is not None
    assert [event["kind"] for event in record["events"]] == ["note"]


def test_the_papers_form_is_read_as_python_reads_it(tmp_path: Path) -> None:
    text = dump_seed(Trajectory(run_events(3, output="ünï\n")))
    (tmp_path / "trajectory.json").write_text(text, "utf-8")
    (record,) = converted(text)
    assert record is not None
    events = [ev.parse_python(event) for event in record["events"]]
    expected = read_seed(tmp_path / "trajectory.json")
    assert [event.kind for event in events] == [event.kind for event in expected.events]
    assert to_seed(Trajectory(events)) == to_seed(expected) == json.loads(text)


COUNTED = (
    "Exit code: 0\nExecution output of [ls]:\n[STDOUT]\na\n[STDERR]\nb\n\n[Steps remaining: 7]\nBe brief."
)
OF_NO_SOURCE = {"id", "parent", "time", "run_id", "schema_version", "raw_arguments", "after"}
"""What the form lacks. Python alone looks for the counter of steps, `after`, at the end of an observation."""


def record(function: str, observation: str, **parameters: Any) -> dict[str, Any]:
    """One record of the paper's package."""
    action = {"function": function, "parameters": parameters}
    return {"thought": "I look.", "reasoning_content": "Hm.", "action": action, "observation": observation}


RECORDS = [
    record("execute_bash", COUNTED, command="ls"),
    record("str_replace_editor", "ERROR: no such file", path="/ä"),
    record("", "Use a tool."),
    record("submit", "done"),
]
FORMS: dict[str, dict[str, Any]] = {
    "a run": {"problem_statement": "Count.", "steps": RECORDS},
    "a benchmark": {"problem_statement": "Count.", "trajectory": RECORDS, "agent_answer": "42"},
    "a run without an end": {"problem_statement": "Count.", "steps": RECORDS[:2]},
    "an empty run": {"problem_statement": "Count.", "steps": []},
}


def test_each_form_of_the_paper_gives_the_events_that_python_gives() -> None:
    def facts(event: ev.Event) -> dict[str, Any]:
        fields = event.model_dump(mode="json")
        for call in fields.get("message", {}).get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])  # blanks do not count
        return {name: value for name, value in fields.items() if name not in OF_NO_SOURCE}

    texts = [json.dumps(form, ensure_ascii=False) for form in FORMS.values()]
    for (name, form), found in zip(FORMS.items(), converted(*texts), strict=True):
        assert found is not None, name
        made = [ev.parse_python(event) for event in found["events"]]
        assert [*map(facts, made)] == [*map(facts, from_seed(form, "r").events)], name
