"""What other processes read for the server: a run's final card from its record, and the paper's `trajectory.json`."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

from agent_scripts import SUBMIT, bash, script, turn
from jupyter_process import JupyterProcess
from support import MIME, record_of

from llm_sandbox_nb.formats.llm_in_sandbox import from_seed
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import Journal
from llm_sandbox_nb.trajectory.step_line import step_line
from llm_sandbox_nb.trajectory.trajectory import Trajectory

NO_RECORD = "The record of this run is not next to the notebook, or cannot be read."


def recorded(server: JupyterProcess, notebook: str) -> Path:
    (server.root / "work").mkdir(exist_ok=True)
    work = server.root / "work"
    model = script(work, turn(bash("echo hello")), SUBMIT)
    run = asyncio.run(solve("A task.", model=model, isolation="process", output_dir=work / "runs"))
    folder = server.root / "sandbox-runs" / notebook / run.folder.name
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(run.folder, folder)
    return folder


def card(server: JupyterProcess, run_id: str, notebook: str) -> tuple[int, Any]:
    return server.ask(f"llm-sandbox/api/runs/{run_id}/card?path={notebook}.ipynb")


def test_a_record_beside_the_notebook_gives_its_final_card(server: JupyterProcess) -> None:
    folder = recorded(server, "ended")
    # What lies beside the notebook is never imported by the process that makes the card.
    planted = [server.root / name for name in ("json.py", "llm_sandbox_nb.py")]
    for path in planted:
        path.write_text("open('imported', 'w').close()")
    try:
        status, found = card(server, folder.name, "ended")
    finally:
        for path in planted:
            path.unlink()
    assert status == 200
    assert record_of(found["data"])["events"][-1]["stop_reason"] == "submitted"
    assert found["data"]["text/plain"].startswith("Submitted")
    assert f"sandbox-runs/ended/{folder.name}" in found["data"]["text/html"]
    assert found["metadata"]["llm_sandbox"]["run_id"] == folder.name
    assert not (server.root / "imported").exists()


def test_a_record_that_was_cut_off_says_so_with_its_steps(server: JupyterProcess) -> None:
    folder = recorded(server, "cut")
    journal = folder / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    end = next(place for place, line in enumerate(lines) if '"call.proposed"' in line and '"submit"' in line)
    journal.write_text("".join(lines[:end]))
    _, found = card(server, folder.name, "cut")
    assert found["data"]["text/plain"].startswith("Cut off at step")
    assert "echo hello" in found["data"]["text/html"]
    assert "live" not in found["data"][MIME]


def test_what_has_no_card(server: JupyterProcess) -> None:
    folder = recorded(server, "others")
    assert card(server, "unknown-run", "others") == (404, {"message": NO_RECORD, "error": "UnknownRunError"})
    assert card(server, folder.name, "another")[0] == 404
    assert card(server, folder.name, "..%2F..%2Fothers")[0] == 404
    (folder / "journal.jsonl").write_text("no journal")
    assert card(server, folder.name, "others")[0] == 404


def test_a_run_that_a_process_executes_has_no_final_card(server: JupyterProcess) -> None:
    folder = recorded(server, "running")
    journal = Journal(folder)
    try:
        status, found = card(server, folder.name, "running")
    finally:
        journal.close()
    assert (status, found["error"]) == (409, "RunControlError")


STEP = {
    "thought": "I look.",
    "reasoning_content": "Hm.",
    "action": {"function": "execute_bash", "parameters": {"command": "ls"}},
    "observation": "Exit code: 0\nExecution output of [ls]:\n[STDOUT]\na\n[STDERR]\nb\n\n[Steps remaining: 7]",
}


def test_the_server_reads_a_trajectory_of_the_paper_for_a_page(server: JupyterProcess) -> None:
    """Its other forms, and what is none, are in tests/unit/formats/test_seed_format.py."""
    form = {"problem_statement": "Zähle.", "trajectory": [STEP], "agent_answer": "42"}
    status, found = server.ask("llm-sandbox/api/foreign-record", "POST", form)
    assert status == 200
    read = Trajectory([ev.parse_python(event) for event in found["events"]])
    known = from_seed(form, "")
    assert [step.line for step in read.steps] == [
        step_line(step, known.root, running=False) for step in known.steps
    ]
    assert (read.answer, read.state(live=False)) == (known.answer, known.state(live=False))
    assert read.steps[0].calls[0].output == known.steps[0].calls[0].output


def test_what_is_no_trajectory_of_the_paper(server: JupyterProcess) -> None:
    status, found = server.ask("llm-sandbox/api/foreign-record", "POST", {"history": []})
    assert (status, found["message"]) == (400, "This file is not a trajectory.")
