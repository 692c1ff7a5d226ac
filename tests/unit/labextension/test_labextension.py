"""The TypeScript: its own tests, and that it takes events for what Python takes them for."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from card_runs import run_events

from llm_sandbox_nb.trajectory import events as ev

PACKAGE = Path(__file__).parents[3] / "labextension"


def node(*words: str, given: str = "") -> str:
    if shutil.which("node") is None or not (PACKAGE / "node_modules").is_dir():
        if os.environ.get("LLM_SANDBOX_REQUIRE_ENGINES") == "1":
            pytest.fail("the packages of labextension/ are required: call `make labextension`", pytrace=False)
        pytest.skip("the packages of labextension/ are not installed: `make labextension` does it")
    done = subprocess.run(
        ["node", *words], cwd=PACKAGE, input=given, capture_output=True, text=True, timeout=800
    )
    failed = re.findall(r"^not ok .*?^  \.\.\.$", done.stdout, re.MULTILINE | re.DOTALL)
    assert done.returncode == 0, "\n".join([*failed, done.stdout[-1000:], done.stderr[-3000:]])
    return done.stdout


def converted(*texts: str) -> list[dict[str, Any] | None]:
    records: list[dict[str, Any] | None] = json.loads(node("tests/convert.mjs", given=json.dumps(texts)))
    return records


def test_its_own_tests_pass() -> None:
    """In one process: making the DOM and bundling the view take longer than most files."""
    told = node("--test-reporter=tap", "tests/all.mjs")
    assert "\n# fail 0\n" in told
    assert told.count("\nok ") >= 200


def samples() -> list[ev.Event]:
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
