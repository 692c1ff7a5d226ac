"""What notebooks 06 and 07 say of scores, tokens and protection is what their cells compute, in each isolation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from warm_kernels import ROOT, kernel_environment

from notebooks import execute, printed

pytestmark = pytest.mark.timeout(600)


def executed(name: str, isolation: str, folder: Path, *more: str) -> NotebookNode:
    shutil.copytree(ROOT / "notebooks" / "data", folder / "data")
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    notebook.cells += [new_code_cell(source) for source in more]
    return execute(notebook, folder, kernel_environment(folder, LLM_SANDBOX_ISOLATION=isolation))


def cell_with(notebook: NotebookNode, text: str) -> NotebookNode:
    [found] = [cell for cell in notebook.cells if cell.cell_type == "code" and text in cell.source]
    return found


MEASURED = """
means = runs.groupby(["mode", "group"])[["tokens_once", "tokens_billed"]].mean()
print(json.dumps({
    "scores": {mode: scores.loc[mode].to_dict() for mode in scores.index},
    "shares": shares.round(1).to_dict(),
    "tokens": {mode: means.loc[mode].T.to_dict() for mode in ("llm", "sandbox")},
}))
"""


@pytest.mark.campaign
def test_the_scores_of_both_modes_are_computed_in_the_sandboxes(some_isolation: str, tmp_path: Path) -> None:
    notebook = executed("06-measure", some_isolation, tmp_path, MEASURED)
    found = json.loads(printed(notebook.cells[-1]))
    assert found["scores"] == {
        "llm": {"primes": 40, "molar": 40, "reports": 25},
        "sandbox": {"primes": 80, "molar": 80, "reports": 100},
        "difference": {"primes": 40, "molar": 40, "reports": 75},
    }
    shares = found["shares"]
    assert {task: share["external_rate"] for task, share in shares.items()} == {
        "primes": 0,
        "molar": 33.3,
        "reports": 0,
    }
    assert max(shares, key=lambda task: shares[task]["files_rate"]) == "reports"
    llm, sandbox = found["tokens"]["llm"], found["tokens"]["sandbox"]
    assert sandbox["primes"]["tokens_once"] > llm["primes"]["tokens_once"], "a short problem costs more"
    assert llm["reports"]["tokens_once"] > 8 * sandbox["reports"]["tokens_once"]
    assert llm["reports"]["tokens_billed"] > 2 * sandbox["reports"]["tokens_billed"]


PROTECTED = {
    "the list of customers": "did not arrive",
    "the link to a file of the host": "left out",
    "processes after the time-out": "0 of 20 are left",
    "the token of another program": "not found",
}
UNPROTECTED = PROTECTED | {
    "the list of customers": "left the sandbox",
    "a limit of processes": "100 of 100 processes started",
    "the token of another program": "found",
}


@pytest.mark.campaign
def test_each_isolation_stops_what_the_notebook_says(some_isolation: str, tmp_path: Path) -> None:
    """`process` is the canary: there the letter, the processes and the search for the token succeed."""
    notebook = executed("07-what-can-go-wrong", some_isolation, tmp_path)
    head, *lines = printed(cell_with(notebook, "attacker.shutdown()")).splitlines()
    assert head == f"With {some_isolation}:"
    told = dict(line.strip().split(": ", 1) for line in lines)
    expected = UNPROTECTED if some_isolation == "process" else PROTECTED
    assert {what: told[what] for what in expected} == expected
    runaway = printed(cell_with(notebook, "for step in runaway.steps"))
    assert runaway.count("timed out: True") == 2
    assert "20 of 20 run before the time-out" in runaway
    limits = printed(cell_with(notebook, "Limits(pids=60"))
    assert "disk: The command was ended: the files of this sandbox use" in limits
    if some_isolation == "docker":
        assert "100 of 100" not in limits
