"""The lesson on learning runs as it stands: training, plots, an edited rollout, evaluation, and its exercise."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

pytest.importorskip("torch", reason="training needs torch: make .venv/.rl")
pytest.importorskip("trl", reason="training needs TRL: make .venv/.rl")

from warm_kernels import ROOT, kernel_environment

from llm_sandbox_nb.training.record import TrainingRecord
from notebooks import execute, printed

pytestmark = [pytest.mark.campaign, pytest.mark.alone, pytest.mark.bubblewrap, pytest.mark.timeout(1800)]
NOTEBOOK = ROOT / "notebooks" / "08-learning.ipynb"


FENCED = re.compile(r"```python\n(.*?)\n```", re.DOTALL)


def with_solutions(cells: list[Any]) -> list[Any]:
    """After each check its solution and the check again: one execution shows the lesson as shipped and as solved."""
    made = []
    for place, cell in enumerate(cells):
        made.append(cell)
        if "check" in cell.metadata.get("tags", ()):
            solution = FENCED.search(cells[place + 1].source)
            assert solution is not None, cell.id
            made += [nbformat.v4.new_code_cell(solution[1]), nbformat.v4.new_code_cell(cell.source)]
            made[-1].metadata["tags"] = ["again"]
    return made


def test_the_lesson(bubblewrap_engine: None, tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is saved without outputs"
    notebook.cells = with_solutions(notebook.cells)
    threads = {name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS",)}
    execute(notebook, tmp_path, kernel_environment(tmp_path, HF_HUB_OFFLINE="1", **threads), timeout=1500)
    training = TrainingRecord.load(tmp_path / "first-training")
    rewards = [step["reward"] for step in training.steps()]
    assert sum(rewards[-5:]) / 5 >= sum(rewards[:5]) / 5 + 0.3

    def cell(beginning: str) -> Any:
        return next(one for one in notebook.cells if beginning in one.source and one.cell_type == "code")

    page = next(
        output.data["text/html"]
        for output in cell("--out first-training").outputs
        if "text/html" in output.get("data", {})
    )
    assert page.count("<svg ") == 5
    (link,) = set(
        re.findall(r"<a class='lsn-record' href='(first-training/rollouts/step-0040/0000/[^']+)'>", page)
    )
    assert (tmp_path / link).is_file()
    assert "Rollouts of step 1;" in cell("--step 1").outputs[0].data["text/html"]
    assert printed(cell("wrong = ")).rstrip().endswith("reward: 0.0")
    assert re.search(r"answer: .* reward: [01]\.0", printed(cell("better = ")))
    assert "after   sandbox" in printed(cell("train evaluate"))
    for tag, beginning in (("check", "Not yet: "), ("again", "Right: ")):
        said = [printed(one) for one in notebook.cells if tag in one.metadata.get("tags", ())]
        assert len(said) == 2
        assert all(one.startswith(beginning) and one.count("\n") == 1 for one in said), said
