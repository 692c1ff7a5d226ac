"""Short trainings with each engine that samples, with LoRA, and in two processes; all on a CPU.

vLLM is a stand-in with its interface (tests/vllm_stand_in.py): this shows that ids, log-probabilities, limits and
weights reach the right places, and nothing about a GPU.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs torch: make .venv/.rl")
pytest.importorskip("trl", reason="training needs TRL: make .venv/.rl")

import torch
import vllm_stand_in
from loopback_http import LoopbackHandler, LoopbackServer
from support import require

from llm_sandbox_nb.training import grpo
from llm_sandbox_nb.training.config import ConfigError, load_config
from llm_sandbox_nb.training.evaluation import AFTER, BEFORE, JudgeAccess, evaluate, plan_evaluation
from llm_sandbox_nb.training.policy import load_policy
from llm_sandbox_nb.training.record import END, START, TrainingRecord
from llm_sandbox_nb.training.training_run import TrainingRun

pytestmark = [pytest.mark.campaign, pytest.mark.bubblewrap, pytest.mark.timeout(600)]
SMALL = {
    "rollouts.rows_per_step": 2,
    "rollouts.per_row": 4,
    "rollouts.turns": 3,
    "record.checkpoint_every": 1,
}
"""Eight rollouts in a step."""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that calls tools: the one that a training of one step began with."""
    require("bubblewrap")
    folder = tmp_path_factory.mktemp("policy") / "run"
    changes = {"steps": 1, "warm_up.steps": 120, "warm_up.count": 64, **SMALL}
    TrainingRun(load_config("tiny-cpu.yaml", changes), folder).run()
    return folder / START


def changes(policy: Path, **more: Any) -> dict[str, Any]:
    named = {key.replace("__", "."): value for key, value in more.items()}
    return {"steps": 2, "model.path": str(policy), "warm_up.steps": 0, **SMALL, **named}


@pytest.fixture
def trainers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    original = grpo.make_trainer

    def kept(*given: Any) -> Any:
        made.append(original(*given))
        return made[-1]

    monkeypatch.setattr(grpo, "make_trainer", kept)
    return made


def weights(path: Path) -> dict[str, Any]:
    return {name: one.detach().clone() for name, one in load_policy(str(path))[0].named_parameters()}


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name, one in before.items() if not torch.equal(one, after[name])}


def assert_sampled_as_trained(trainer: Any, steps: int) -> None:
    """The log-probabilities that the engine told are those that the trainer computes for the same ids."""
    gaps = [one for one in trainer.state.log_history if "sampling/sampling_logp_difference/max" in one]
    assert len(gaps) == steps
    for one in gaps:
        assert one["sampling/sampling_logp_difference/max"] < 1e-3
        assert one["sampling/importance_sampling_ratio/mean"] == pytest.approx(1.0, abs=1e-3)


def differing_rewards(folder: Path) -> dict[str, Any]:
    """Rewards that always differ: with those of the task, no reply of so small a policy need be right."""
    reward = folder / "reward.py"
    reward.write_text(
        "import random\ndef score(answer, gold, output_files, **row):\n    return random.random()\n"
    )
    return {"data__scorer": str(reward), "rollouts__zero_reward_for": []}


def test_lora_trains_matrices_next_to_the_weights(tmp_path: Path, policy: Path) -> None:
    config = load_config("tiny-cpu.yaml", changes(policy, model__lora__rank=4))
    end = TrainingRun(config, tmp_path / "run").run()
    adapter = json.loads((end / "adapter_config.json").read_text())
    assert (adapter["r"], adapter["base_model_name_or_path"]) == (4, str(policy))
    assert not (end / "model.safetensors").exists()
    found = changed(weights(policy), weights(end))
    assert found
    assert all("proj" in name for name in found), "only linear layers have matrices"
    longer = load_config("tiny-cpu.yaml", changes(policy, model__lora__rank=4, steps=3))
    said: list[str] = []
    TrainingRun(longer, tmp_path / "run", say=said.append).run()
    assert said == ["Resuming after step 2"]


def test_vllm_in_process_gets_weights_and_limits(
    tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch, trainers: list[Any]
) -> None:
    vllm_stand_in.install(monkeypatch)
    config = load_config(
        "tiny-cpu.yaml", changes(policy, generation__engine="vllm", **differing_rewards(tmp_path))
    )
    end = TrainingRun(config, tmp_path / "run").run()
    (engine,) = vllm_stand_in.LLM.made
    assert engine.options["max_model_len"] == 512 + 320
    assert engine.options["gpu_memory_utilization"] == 0.3
    assert {asked.max_tokens for _, asked in engine.asked} == {48}, "no reply is sampled beyond its limit"
    assert engine.asked[0][0] == config.batch, "all rollouts are sampled together"
    assert engine.weights.pushes == 2
    assert changed(weights(policy), dict(engine.weights.model.named_parameters())), (
        "those of step 1 came back"
    )
    assert changed(weights(end), dict(engine.weights.model.named_parameters())), "and not those of step 2"
    assert_sampled_as_trained(trainers[0], 2)


class _Completions(LoopbackHandler):
    """The routes of `vllm serve` that are used."""

    def do_GET(self) -> None:
        self.send(200, {"data": [{"id": "policy"}]})

    def do_POST(self) -> None:
        asked = self.body()
        assert vllm_stand_in.Client.weights is not None
        model = vllm_stand_in.Client.weights.model
        ids, chances = vllm_stand_in.sampled(
            model, asked["prompt"], asked["max_tokens"], asked["temperature"]
        )
        self.send(200, {"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": chances}}]})


@pytest.fixture
def server() -> Iterator[str]:
    with LoopbackServer(_Completions) as made:
        yield made.root


def test_vllm_server_gets_weights_and_is_asked_by_each_rollout(
    tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch, trainers: list[Any], server: str
) -> None:
    vllm_stand_in.install(monkeypatch)
    pushed = vllm_stand_in.Weights(str(policy))
    monkeypatch.setattr(vllm_stand_in.Client, "weights", pushed)
    rewards = differing_rewards(tmp_path)
    made = changes(policy, generation__engine="vllm-server", generation__server=server, **rewards)
    end = TrainingRun(load_config("tiny-cpu.yaml", made), tmp_path / "run").run()
    assert pushed.pushes == 2
    assert changed(weights(policy), dict(pushed.model.named_parameters()))
    assert changed(weights(end), dict(pushed.model.named_parameters()))
    assert_sampled_as_trained(trainers[0], 2)


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_validation_is_sampled_its_own_way_and_leaves_the_training_as_it_is(
    engine: str, tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch, trainers: list[Any]
) -> None:
    if engine == "vllm":
        vllm_stand_in.install(monkeypatch)
    how = {"every": 1, "count": 3, "temperature": 0.25, "top_p": 0.8, "top_k": 20}
    named = {f"validation__{name}": value for name, value in how.items()}
    config = load_config("tiny-cpu.yaml", changes(policy, generation__engine=engine, **named))
    TrainingRun(config, tmp_path / "run").run()
    record = TrainingRecord.load(tmp_path / "run")
    assert [one["step"] for one in record.validations()] == [0, 1, 2]
    assert all(one["rollouts"] == one["scored"] == 3 for one in record.validations())
    if engine == "vllm":
        (made,) = vllm_stand_in.LLM.made
        warmth = [asked.temperature for _, asked in made.asked]
        assert [one for one, _ in itertools.groupby(warmth)] == [0.25, 1.0, 0.25, 1.0, 0.25]
        assert {(asked.top_p, asked.top_k) for _, asked in made.asked if asked.temperature < 1} == {(0.8, 20)}
        return
    assert trainers[0].generation_config.temperature == 1.0
    plain = load_config("tiny-cpu.yaml", changes(policy))
    TrainingRun(plain, tmp_path / "plain").run()
    told = [[one[name] for name in ("reward", "loss", "grad_norm", "model_tokens")] for one in record.steps()]
    assert told == [
        [one[name] for name in ("reward", "loss", "grad_norm", "model_tokens")]
        for one in TrainingRecord.load(tmp_path / "plain").steps()
    ]


def test_a_judge_scores_an_evaluation(tmp_path: Path, policy: Path) -> None:
    """Also each policy has a folder with the judgements of its own."""
    file, script = tmp_path / "rows.jsonl", tmp_path / "judge.yaml"
    file.write_text(json.dumps({"id": "a", "problem_statement": "What is 1 + 1?", "ground_truth": "2"}))
    script.write_text("turns: [{text: CORRECT}]\n")
    judge = JudgeAccess(f"scripted/{script}", repeats=1)
    plan = plan_evaluation(
        policy.parent, task="physics", data=str(file), judge=judge, modes=["llm"], out=tmp_path / "cells"
    )
    assert [(cell.policy, cell.scored) for cell in evaluate(plan)] == [(BEFORE, 1), (AFTER, 1)]
    assert all(any((tmp_path / "cells" / name / "judge").iterdir()) for name in (BEFORE, AFTER))


def test_missing_vllm_is_reported_in_one_sentence(tmp_path: Path, policy: Path) -> None:
    config = load_config("tiny-cpu.yaml", changes(policy, generation__engine="vllm"))
    with pytest.raises(grpo.MissingPackageError, match=r"vllm needs vLLM: run `pip install 'trl\[vllm\]'`"):
        TrainingRun(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_two_processes_share_a_step(tmp_path: Path, policy: Path) -> None:
    """As `accelerate launch` starts them on GPUs; on a CPU it starts one only, so torchrun does it here."""
    out = tmp_path / "run"
    words = [part for pair in changes(policy).items() for part in ("--set", f"{pair[0]}={pair[1]}")]
    programs = Path(sys.executable).parent
    launch = [str(programs / "torchrun"), "--nproc-per-node", "2", "--standalone", "--no-python"]
    train = [str(programs / "llm-sandbox-nb"), "train", "run", "--config", "tiny-cpu.yaml", "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [*launch, *train, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    record = TrainingRecord.load(out)
    assert [one["rollouts"] for one in record.steps()] == [8, 8], "the figures are those of all processes"
    rows = record.rollouts(2)
    assert sorted(row.place for row in rows) == list(range(8))
    assert {row.run.split("/")[2] for row in rows} == {"rank-0", "rank-1"}
    for group in {row.group for row in rows}:
        assert sum(row.advantage or 0.0 for row in rows if row.group == group) == pytest.approx(0, abs=1e-5)
    assert record.newest_checkpoint() is not None
    assert changed(weights(policy), weights(out / END))


def test_warm_up_in_several_processes_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        ConfigError, match="The warm-up runs in one process: start this training once without"
    ):
        TrainingRun(load_config("tiny-cpu.yaml", SMALL), tmp_path / "run").run()


def test_any_benchmark_task_is_evaluated_in_four_cells(tmp_path: Path, policy: Path) -> None:
    run = policy.parent
    file = tmp_path / "rows.jsonl"
    lines = [
        {"id": str(n), "problem_statement": f"What is {n} + 1?", "ground_truth": str(n + 1)} for n in (1, 2)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    plan = plan_evaluation(run, task="math", data=str(file), out=tmp_path / "cells")
    assert plan.task.name == "math"
    cells = {(cell.policy, cell.mode): cell for cell in evaluate(plan)}
    assert set(cells) == {(policy, mode) for policy in (BEFORE, AFTER) for mode in ("sandbox", "llm")}
    for cell in cells.values():
        assert cell.results == 2
        assert cell.score is None or cell.score.low <= cell.score.mean <= cell.score.high
