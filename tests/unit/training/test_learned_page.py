"""The page of the trained model: its tables and picture come from the data, and what was not measured is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from measure import learned

from llm_sandbox_nb.benchmark.results import Result, write_result
from llm_sandbox_nb.training.config import load_config
from llm_sandbox_nb.training.record import COMPLETE, START, TrainingRecord

MACHINE = {"cores": 2, "machine": "x86_64", "amx": True, "python": "3.11", "torch": "2.13", "version": "0"}


def test_the_page_has_the_tables_and_the_picture_of_the_data(tmp_path: Path) -> None:
    for name in (learned.PAGE, learned.DATA, learned.PICTURE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    for name in (learned.PAGE, learned.DATA):
        shutil.copy(learned.DOCS / name, tmp_path / name)
    learned.rewrite(tmp_path)
    assert (tmp_path / learned.PAGE).read_text("utf-8") == (learned.DOCS / learned.PAGE).read_text("utf-8")
    made, kept = tmp_path / learned.PICTURE, learned.DOCS / learned.PICTURE
    assert made.exists() == kept.exists()
    assert not made.exists() or made.read_text("utf-8") == kept.read_text("utf-8")


def test_a_page_without_data_says_so() -> None:
    assert learned.tables({"seeds": {}}) == "The training is not measured yet."
    assert learned.picture({"seeds": {}}) == ""


def training(folder: Path) -> Path:
    """Make a training of two steps whose first policy has 1 of 4 rows right, and whose trained policy has 3."""
    record = TrainingRecord.begin(folder, load_config("smollm2-cpu.yaml"))
    (folder / START).mkdir()
    (folder / START / COMPLETE).touch()
    for step, reward in ((1, 0.25), (2, 0.75)):
        record.add_step(
            {"step": step, "reward": reward, "reward_std": 0.4, "groups": 4, "groups_alike": 1, "turns": 2.0,
             "stops": {"submitted": 16}, "seconds": 60.0}
        )  # fmt: skip
    for policy, right in (("before", 1), ("after", 3)):
        out = folder / "evaluation" / "ledger" / policy
        out.mkdir(parents=True)
        for number in range(4):
            figures: dict[str, Any] = {"turns": 2, "model_tokens": 30, "problem": str(number)}
            right_or_not = float(number < right)
            write_result(out, Result("ledger", "sandbox", f"goods-{number}", 0, right_or_not, **figures))
    return folder


def test_figures_of_a_training_become_tables(tmp_path: Path) -> None:
    made: dict[str, Any] = learned.collected(training(tmp_path / "run"))
    page = learned.tables({"machine": MACHINE, "seeds": {"42": json.loads(json.dumps(made))}})
    assert "| mean reward of the first 1 steps | 0.25 |" in page
    assert "| mean reward of the last 1 steps | 0.75 |" in page
    assert "| steps without a gradient | 0 |" in page
    assert "| as published | in a sandbox | not measured |" in page
    assert "| after the warm-up | in a sandbox | 1 of 4: 25% (5 to 70) | 1 of 4 | 0, 0 | 2.0 | 30 |" in page
    assert "| after GRPO | in a sandbox | 3 of 4: 75% (30 to 95) | 3 of 4 | 0, 0 | 2.0 | 30 |" in page
    assert "| after the warm-up to after GRPO | in a sandbox | 50% (0 to 100) | 2, 0 | 0.5 |" in page
    assert learned.picture({"seeds": {"42": made}}).startswith('<svg xmlns="http://www.w3.org/2000/svg"')
