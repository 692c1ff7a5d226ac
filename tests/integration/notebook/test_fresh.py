"""`%sandbox fresh`: a second *Run all* in one kernel begins in an empty sandbox, when the notebook asks for it."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from live_kernel import live_kernel
from warm_kernels import ROOT

LEAVES = "%sandbox sh ls; touch left-behind"


@pytest.mark.parametrize("asked", [True, False])
def test_a_second_run_of_all_cells(asked: bool, some_isolation: str, tmp_path: Path) -> None:
    with live_kernel(tmp_path, LLM_SANDBOX_ISOLATION=some_isolation) as kernel:
        found = []
        for _ in range(2):
            if asked:
                assert kernel.printed("%sandbox fresh") == "The next cell begins in a new, empty sandbox.\n"
            found.append("left-behind" in kernel.printed(LEAVES))
    assert found == [False, not asked]


def test_fresh_starts_no_sandbox(tmp_path: Path) -> None:
    with live_kernel(tmp_path, LLM_SANDBOX_ISOLATION="process") as kernel:
        kernel.printed("%sandbox fresh")
        assert kernel.printed("%sandbox status").startswith("No sandbox is running")


@pytest.mark.parametrize("name", ["01-first-task", "05-why-agents-fail"])
def test_the_notebooks_ask_for_it_before_their_first_task(name: str) -> None:
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert "%sandbox fresh" in code[0]
    assert code[1].startswith("%%sandbox")
