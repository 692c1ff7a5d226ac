"""The lesson on learning runs as it stands: training, plots, an edited rollout, evaluation, and its exercise."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest

pytest.importorskip("torch", reason="training needs torch: make .venv/.rl")
pytest.importorskip("trl", reason="training needs TRL: make .venv/.rl")

from warm_kernels import ROOT, kernel_environment

from llm_sandbox_nb.training.record import TrainingRecord
from notebooks import execute, printed

pytestmark = [pytest.mark.campaign, pytest.mark.alone, pytest.mark.bubblewrap, pytest.mark.timeout(1800)]
NOTEBOOK = ROOT / "notebooks" / "08-learning.ipynb"


def test_the_lesson(bubblewrap_engine: None, tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is saved without outputs"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    exercise = re.search(
        r"```\n(%sandbox train run .*too-fast.*)\n```", "".join(cell.source for cell in notebook.cells)
    )
    assert exercise is not None
    code[-1].source = f"{exercise[1]}\n{code[-1].source}"
    threads = {name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS",)}
    execute(notebook, tmp_path, kernel_environment(tmp_path, HF_HUB_OFFLINE="1", **threads), timeout=1500)
    training = TrainingRecord.load(tmp_path / "first-training")
    rewards = [step["reward"] for step in training.steps()]
    assert sum(rewards[-5:]) / 5 >= sum(rewards[:5]) / 5 + 0.3
    page = next(
        output.data["text/html"] for output in code[2].outputs if "text/html" in output.get("data", {})
    )
    assert page.count("<svg ") == 5
    (link,) = set(re.findall(r"<a href='(first-training/rollouts/step-0040/0000/[^']+)'>", page))
    assert (tmp_path / link).is_file()
    assert "Rollouts of step 1;" in code[3].outputs[0].data["text/html"]
    assert printed(code[4]).rstrip().endswith("reward: 0.0")
    assert re.search(r"answer: .* reward: [01]\.0", printed(code[5]))
    assert "after   sandbox" in printed(code[6])
    assert "Right: the reward is" in printed(code[7])
