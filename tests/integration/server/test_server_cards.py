"""The final card of a run that a notebook shows as it was when it was saved: made by the server, from the record."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

from agent_scripts import SUBMIT, bash, script, turn
from jupyter_process import JupyterProcess
from support import MIME, record_of

from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.trajectory.journal import Journal

NO_RECORD = "The record of this run is not beside the notebook, or cannot be read."


def recorded(server: JupyterProcess, notebook: str) -> Path:
    """The folder of a run of a notebook, beside it."""
    (server.root / "work").mkdir(exist_ok=True)
    work = server.root / "work"
    model = script(work, turn(bash("echo hello")), SUBMIT)
    run = asyncio.run(solve("A task.", model=model, isolation="process", output_dir=work / "runs"))
    folder = server.root / "sandbox-runs" / notebook / run.folder.name
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(run.folder, folder)
    return folder


def card(server: JupyterProcess, run_id: str, notebook: str) -> tuple[int, Any]:
    """What the server answers."""
    return server.ask(f"llm-sandbox/api/runs/{run_id}/card?path={notebook}.ipynb")


def test_a_record_beside_the_notebook_gives_its_final_card(server: JupyterProcess) -> None:
    folder = recorded(server, "ended")
    # What lies beside the notebook is never imported by the process that makes the card.
    for name in ("json.py", "llm_sandbox_nb.py"):
        (server.root / name).write_text("open('imported', 'w').close()")
    status, found = card(server, folder.name, "ended")
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
