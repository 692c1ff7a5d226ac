"""TRL's stock path: the tools as it describes them, and a first step that agrees with ours to the digit."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs torch: make .venv/.rl")
pytest.importorskip("trl", reason="training needs TRL: make .venv/.rl")

import tiny_policy
import torch
from token_policy import bash

from llm_sandbox_nb.agent.tools.tool import Tool
from llm_sandbox_nb.agent.tools.toolbox import TOOLS
from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.task import load_task
from llm_sandbox_nb.runs.event_loops import EventLoops
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.training import grpo
from llm_sandbox_nb.training.chat_tokens import ChatTokens
from llm_sandbox_nb.training.config import TrainingConfig
from llm_sandbox_nb.training.environment import OVER, SandboxEnvironment, SandboxEnvironments
from llm_sandbox_nb.training.generation import BatchGenerator
from llm_sandbox_nb.training.rollouts import Rollout, RolloutSetting, RolloutWorkers

pytestmark = [pytest.mark.campaign, pytest.mark.bubblewrap]
TASK = dataclasses.replace(load_task("instruct_pretrain"), scorer="exact")
ROWS = [Row(f"row-{n}", "Which number?", str(n), input_files={"a.txt": f"{n}\n"}) for n in range(2)]
CONFIG = tiny_policy.config(
    rollouts={"prompt_tokens": 12_000, "completion_tokens": 3000, "nudges": 0, "time": 120.0}
)


def setting(config: TrainingConfig, tokenizer: Any) -> RolloutSetting:
    return RolloutSetting("test", TASK, ChatTokens(tokenizer), config.rollouts)


def play(tokenizer: Any, trainer: Any) -> None:
    """Replies by a script, in place of sampling: rollout n writes n % 3, one of them talks only."""

    def replies(prompts: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        made = []
        for place, prompt in enumerate(prompts):
            text = tokenizer.decode(prompt)
            if "</tool_response>" in text:
                said = "It is written."
            else:
                said = (
                    "No idea." if place == 5 else bash(f"cat documents/a.txt; echo {place % 3} > answer.txt")
                )
            made.append([*tokenizer.encode(said, add_special_tokens=False), tokenizer.eos_token_id])
        return made, None

    trainer._generate_single_turn = replies


def first_step(trainer: Any, rows: list[dict[str, Any]]) -> dict[str, Any]:
    trainer.model.train()
    inputs = trainer._generate_and_score_completions(rows)
    names = ("prompt_ids", "completion_ids", "completion_mask", "tool_mask", "advantages")
    trainer.current_gradient_accumulation_steps = 1
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1e9)
    return {name: inputs[name].tolist() for name in names} | {"loss": loss.item(), "grad_norm": norm.item()}


def ours(folder: Path) -> tuple[dict[str, Any], list[Rollout]]:
    tokenizer = tiny_policy.tokenizer()
    workers = RolloutWorkers(setting(CONFIG, tokenizer), 8)
    loop, made = EventLoops.own(), []

    def run(ids: list[str], trainer: Any) -> list[Rollout]:
        generator = BatchGenerator(60.0)
        work = workers.run([ROWS[int(one[-1])] for one in ids], generator, folder / "rollouts")
        future = asyncio.run_coroutine_threadsafe(work, loop)
        future.add_done_callback(lambda _: generator.close())
        generator.serve(lambda prompts, limits: grpo.generate_together(trainer, prompts, limits))
        made.extend(future.result())
        return made

    trainer = grpo.make_trainer(
        CONFIG,
        tiny_policy.model(tokenizer, 16_000),
        tokenizer,
        [row.id for row in ROWS],
        folder,
        run,
        lambda _: None,
    )
    play(tokenizer, trainer)
    asyncio.run_coroutine_threadsafe(workers.__aenter__(), loop).result()
    try:
        rows = [{"prompt": [{"role": "user", "content": "", "row": f"row-{n // 4}"}]} for n in range(8)]
        return first_step(trainer, rows), made
    finally:
        asyncio.run_coroutine_threadsafe(workers.__aexit__(None, None, None), loop).result()


def stock(folder: Path) -> tuple[dict[str, Any], list[Path]]:
    from datasets import Dataset
    from trl import GRPOTrainer

    tokenizer = tiny_policy.tokenizer()
    with SandboxEnvironments(setting(CONFIG, tokenizer), ROWS, folder / "rollouts", 8) as environments:
        trainer = GRPOTrainer(
            model=tiny_policy.model(tokenizer, 16_000),
            args=grpo.grpo_config(CONFIG, folder),
            reward_funcs=[environments.reward],
            train_dataset=Dataset.from_list(environments.dataset()),
            processing_class=tokenizer,
            environment_factory=environments.environment,
        )
        play(tokenizer, trainer)
        rows = [environments.dataset()[n // 4] for n in range(8)]
        found = first_step(trainer, rows)
    return found, sorted((folder / "rollouts").glob("*/*/journal.jsonl"))


def test_both_paths_agree_on_the_first_step_to_the_digit(
    bubblewrap_engine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = Tool.parameters

    def as_transformers_does(self: Tool, command_timeout: float) -> dict[str, Any]:
        """Without an empty list of required arguments, the one difference between the two descriptions."""
        return {
            key: value for key, value in declared(self, command_timeout).items() if key != "required" or value
        }

    monkeypatch.setattr(Tool, "parameters", as_transformers_does)
    one, rollouts = ours(tmp_path / "ours")
    other, journals = stock(tmp_path / "stock")
    assert {rollout.reward for rollout in rollouts} == {0.0, 1.0}
    assert rollouts[5].stop_reason == "answered"
    assert one == other
    assert one["loss"] != 0.0
    assert len(journals) == 8, "each rollout has its record"
    trajectory = Run.load(journals[0].parent).trajectory
    assert trajectory.stop_reason == "answered"
    assert trajectory.steps[0].calls[0].tool == "execute_bash"


def test_tools_of_an_environment_have_the_descriptions_of_the_package(
    bubblewrap_engine: None, tmp_path: Path
) -> None:
    from transformers.utils import get_json_schema

    tokenizer = tiny_policy.tokenizer()
    environment = SandboxEnvironment(SandboxEnvironments(setting(CONFIG, tokenizer), ROWS, tmp_path, 1))
    public = [name for name in vars(SandboxEnvironment) if not name.startswith("_")]
    assert public == ["reset", "execute_bash", "str_replace_editor", "submit"]
    for schema in TOOLS.schemas():
        found = get_json_schema(getattr(environment, schema["function"]["name"]))
        found["function"]["parameters"].setdefault("required", [])
        assert found == schema


def test_submit_ends_the_run_and_later_calls_do_nothing(bubblewrap_engine: None, tmp_path: Path) -> None:
    tokenizer = tiny_policy.tokenizer()
    with SandboxEnvironments(setting(CONFIG, tokenizer), ROWS, tmp_path, 1) as environments:
        environment = environments.environment()
        assert environment.execute_bash("true") == OVER
        task = environment.reset(row="row-1")
        assert "Which number?" in task
        assert "[Steps remaining: 100]" in task
        said = environment.execute_bash("cat documents/a.txt > answer.txt; cat answer.txt")
        assert said.startswith("Exit code: 0\n[stdout]\n1")
        made = environment.str_replace_editor("create", "/testbed/b.txt", file_text="one\ntwo\n")
        assert "b.txt" in made
        assert "has to be" in environment.str_replace_editor("insert", "/testbed/b.txt", insert_line="x")  # type: ignore[arg-type]
        environment.submit()
        assert environment.execute_bash("true") == OVER
        assert environments.reward([environment]) == [1.0]
        environment.reset(row="row-0")
        assert "No such file" in environment.execute_bash("cat /testbed/b.txt"), "the sandbox was reset"
        assert environments.reward([environment]) == [0.0], "nothing was answered"
