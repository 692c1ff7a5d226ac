"""Training from nothing to a policy that has learned, on a CPU, in real sandboxes; and after the trainer was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs torch: make .venv/.rl")
pytest.importorskip("trl", reason="training needs TRL: make .venv/.rl")

from support import descendants, until

from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.training.record import TrainingRecord

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(1500)]
SEEDS = (1, 2, 3)
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def start(out: Path, *words: str) -> subprocess.Popen[str]:
    program = str(Path(sys.executable).with_name("llm-sandbox-nb"))
    command = [program, "train", "run", "--config", "tiny-cpu.yaml"]
    return subprocess.Popen(
        ["nice", "-n", "10", *command, "--out", str(out), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=ENVIRONMENT,
    )


def finished(process: subprocess.Popen[str], seconds: float = 1200.0) -> str:
    said, _ = process.communicate(timeout=seconds)
    assert process.returncode == 0, said
    return said


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.alone
@pytest.mark.bubblewrap
@pytest.mark.parametrize("seed", SEEDS[:1] if os.environ.get("LLM_SANDBOX_REQUIRE_ENGINES") else SEEDS)
def test_reward_rises(bubblewrap_engine: None, tmp_path: Path, seed: int, record_property: Any) -> None:
    began = time.monotonic()
    finished(start(tmp_path / "run", "--seed", str(seed), "--keep", "4"))
    seconds = time.monotonic() - began
    record = TrainingRecord.load(tmp_path / "run")
    steps = record.steps()
    rewards = [step["reward"] for step in steps]
    first, last = mean(rewards[:5]), mean(rewards[-5:])
    turns = [mean([step["turns"] for step in part]) for part in (steps[:5], steps[-5:])]
    for name, value in (("first", first), ("last", last), ("seconds", seconds), ("turns", turns)):
        record_property(name, value)
    print(f"seed {seed}: {first:.2f} -> {last:.2f}, turns {turns[0]:.2f} -> {turns[1]:.2f}, {seconds:.0f} s")
    assert [step["step"] for step in steps] == list(range(1, record.config.steps + 1))
    assert last >= first + 0.3
    assert not any(step["lost"] or step["unscored"] for step in steps)

    # The record: the rollouts of the newest steps, each a run that can be read, with its reward.
    kept = [number for number in range(1, len(steps) + 1) if record.rollouts(number)]
    assert kept == list(range(len(steps) - 3, len(steps) + 1))
    rows = record.rollouts(len(steps))
    assert len(rows) == record.config.batch
    run = Run.load(tmp_path / "run" / rows[0].run)
    assert run.trajectory.reward is not None
    assert (run.trajectory.reward.reward, run.trajectory.reward.training_step) == (rows[0].reward, len(steps))
    for group in {row.group for row in rows}:
        advantages = [row.advantage for row in rows if row.group == group]
        assert sum(one or 0.0 for one in advantages) == pytest.approx(0.0, abs=1e-5)

    # Without the sandbox the same policy stays at chance; the four cells come from one command, once.
    cells = {
        (one[0], one[1]): float(one[2])
        for one in evaluated(tmp_path / "run", "--rows", "24")
        if "-" not in one
    }
    assert set(cells) == {(policy, mode) for policy in ("before", "after") for mode in ("sandbox", "llm")}
    assert cells["after", "sandbox"] >= cells["before", "sandbox"] + 0.3
    assert max(cells["before", "llm"], cells["after", "llm"]) <= 0.1


@pytest.mark.bubblewrap
def test_killed_trainer_resumes_with_the_same_rows_and_loss(bubblewrap_engine: None, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["--steps", "6", "--set", "warm_up.steps=25", "--set", "warm_up.count=32", "--keep", "0",
             "--set", "record.checkpoint_every=2", "--set", "rollouts.rows_per_step=2",
             "--set", "validation.every=2", "--set", "validation.count=4"]  # fmt: skip
    first = start(out, *words)
    assert first.stdout is not None
    for line in first.stdout:
        if line.startswith("5 "):
            break
    else:
        pytest.fail(f"it ended before step 5 with {first.wait(30)}")
    inside = descendants(first.pid)
    first.send_signal(signal.SIGKILL)  # `nice` has become the trainer
    first.wait(30)
    until(lambda: not any(map(alive, inside)), "sandboxes of the trainer that was killed are left")

    record = TrainingRecord.load(out)
    before = {step["step"]: step for step in record.steps()}
    groups = {step: [row.group for row in record.rollouts(step)] for step in (1, 3, 5)}
    checkpoint = record.newest_checkpoint()
    assert checkpoint is not None
    assert checkpoint[0] == 4
    said = finished(start(out, *words))
    assert "Resuming after step 4" in said
    assert "scripted runs" not in said
    after = {step["step"]: step for step in record.steps()}
    assert list(after) == [1, 2, 3, 4, 5, 6]
    assert [one["step"] for one in record.validations()] == [0, 2, 4, 6], "each once"
    assert groups == {step: [row.group for row in record.rollouts(step)] for step in (1, 3, 5)}
    for name in ("loss", "grad_norm", "reward", "turns", "model_tokens", "stops"):
        assert after[5][name] == before[5][name], name
    assert (out / "end" / "model.safetensors").is_file()
    assert json.loads((out / "end" / "config.json").read_text())["model_type"] == "qwen3"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def evaluated(out: Path, *words: str) -> list[list[str]]:
    """The cells that `train evaluate` prints: a list of words for each."""
    command = [str(Path(sys.executable).with_name("llm-sandbox-nb")), "train", "evaluate", str(out), *words]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=1200)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines() if line.startswith(("before", "after "))]


@pytest.mark.bubblewrap
def test_missing_rewards_stop_the_training_and_equal_rewards_are_reported(
    bubblewrap_engine: None, tmp_path: Path
) -> None:
    out, reward = tmp_path / "run", tmp_path / "reward.py"
    reward.write_text("def score(answer, gold, output_files, **row):\n    return row['no such column']\n")
    words = ["--steps", "3", "--set", "warm_up.steps=4", "--set", "warm_up.count=8", "--set", "warm_up.batch=4",
             "--set", "rollouts.rows_per_step=2", "--set", "rollouts.per_row=2", "--set", "record.checkpoint_every=2",
             "--set", "rollouts.zero_reward_for=[]", "--set", f"data.scorer={reward}"]  # fmt: skip
    first = start(out, *words)
    said, _ = first.communicate(timeout=600)
    assert first.returncode == 1, said
    assert (
        "No rollout of this step could be rewarded: the scorer failed with KeyError: 'no such column'" in said
    )
    assert not (out / "end").exists()

    reward.write_text("def score(answer, gold, output_files, **row):\n    return 0.5\n")
    said = finished(start(out, *words))
    steps = TrainingRecord.load(out).steps()
    assert [(step["groups_alike"], step["groups"], step["grad_norm"]) for step in steps] == [(2, 2, 0.0)] * 3
    assert "2 of 2" in said
    assert "The last 3 steps had no gradient" in said

    reward.write_text("def score(answer, gold, output_files, **row):\n    return 1.0\n")
    other = start(out, *words)
    said, _ = other.communicate(timeout=600)
    assert other.returncode == 2, said
    assert "The rewards of the training in" in said
