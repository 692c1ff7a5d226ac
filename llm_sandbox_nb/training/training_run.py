"""Training of a policy, for `train run`. A training that was killed resumes after its last checkpoint."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_sandbox_nb.benchmark.data import load_rows
from llm_sandbox_nb.benchmark.digests import code_of, digest, prompt_digest
from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.task import Task, load_task
from llm_sandbox_nb.formatting import plural
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.runs.event_loops import EventLoops
from llm_sandbox_nb.sandbox.open import open_sandbox
from llm_sandbox_nb.training import grpo, tiny, warm_up
from llm_sandbox_nb.training.chat_tokens import ChatTokens
from llm_sandbox_nb.training.config import ConfigError, RolloutConfig, TrainingConfig
from llm_sandbox_nb.training.data.questions import contains_words
from llm_sandbox_nb.training.generation import BatchGenerator, Generated
from llm_sandbox_nb.training.made_tasks import MADE, scripted_runs
from llm_sandbox_nb.training.policy import (
    Sampling,
    bfloat16_is_slow,
    check_gguf,
    load_policy,
    needs_gguf,
    save_policy,
)
from llm_sandbox_nb.training.ray_rollouts import RayRollouts
from llm_sandbox_nb.training.record import COMPLETE, END, START, TrainingRecord, step_figures
from llm_sandbox_nb.training.rollouts import Rollout, RolloutSetting, RolloutWorkers, in_loop, sandbox_options
from llm_sandbox_nb.training.validation import (
    validation_figures,
    validation_line,
    validation_sampling,
    validation_tasks,
)
from llm_sandbox_nb.training.vllm_server import ServerGenerator
from llm_sandbox_nb.trajectory.trajectory import Trajectory

OnFigures = Callable[[Mapping[str, Any]], None]
logger = logging.getLogger(__name__)
_MIN_ANSWER_CHARACTERS = 4
"""Minimum number of letters and digits of an answer to search for in a prompt. A shorter answer may be there by chance.
"""
STEPS_WITHOUT_GRADIENT = 3
"""Number of consecutive steps without a gradient that cause a warning. The same number of further steps causes another.
"""


def task_and_rows(config: TrainingConfig) -> tuple[Task, list[Row]]:
    """Load the task and the rows of a training. Leave out rows whose prompt contains the answer.

    Raises:
        ConfigError: if there are too few rows for a step, a row has no answer or an empty document, or all prompts
            contain the answer.
    """
    data = config.data
    try:
        task = load_task(data.task)
        if (made := MADE.get(data.rows)) is None:
            rows = load_rows(task, data.rows or None)
        else:
            task, rows = made.task(task), made.rows(data.count or 64, config.seed)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    rows = rows[: data.count or None]
    for row in rows:
        if not row.ground_truth.strip():
            raise ConfigError(f"Row {row.id} has no answer, so it teaches nothing: leave the row out.")
        if any(not text.strip() for text in row.input_files.values()):
            raise ConfigError(f"Row {row.id} has an empty document: leave the document out or fill it in.")
    solved = [row.id for row in rows if _has_answer_in_prompt(row)]
    if solved and len(solved) == len(rows):
        raise ConfigError(
            f"The prompts of all rows contain the answer, as in row {solved[0]}: remove the answers from the prompts."
        )
    if solved:
        rows = [row for row in rows if row.id not in set(solved)]
        counted = plural(len(solved), "row is", "rows are")
        logger.warning(
            "%s left out, because the prompt contains the answer: %s", counted, ", ".join(solved[:5])
        )
    if len(rows) < config.rollouts.rows_per_step:
        raise ConfigError(
            f"There are {len(rows)} rows and a step needs {config.rollouts.rows_per_step}: give more rows, or lower "
            "rollouts.rows_per_step."
        )
    return task, rows


def _has_answer_in_prompt(row: Row) -> bool:
    """Return True if the problem of the row contains the answer, so that nothing can be learned from the row.

    For a multiple choice, or a short answer such as `yes`, return False: the problem may contain such an answer anyway.
    """
    short = len("".join(filter(str.isalnum, row.ground_truth))) < _MIN_ANSWER_CHARACTERS
    return (
        not short
        and "choice" not in row.qa_type.lower()
        and contains_words(row.problem_statement, row.ground_truth)
    )


def no_gradient(steps: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a warning if the newest steps had no gradient, else None.

    A step has no gradient if, for each row, all rollouts had the same reward.
    """
    count = 0
    for figures in reversed(steps):
        if figures.get("grad_norm") != 0.0:
            break
        count += 1
    if not count or count % STEPS_WITHOUT_GRADIENT:
        return None
    return (
        f"The last {count} steps had no gradient: the rollouts of each row had equal rewards, so nothing was learned. "
        "Use rows that are neither too easy nor too hard, or raise rollouts.per_row."
    )


def input_digests(config: TrainingConfig, task: Task, rows: Sequence[Row]) -> dict[str, str]:
    """Return digests of a training's inputs, so that a resume with changed inputs is refused."""
    scorer = config.data.scorer or task.scorer
    code = code_of(scorer, task.folder) if scorer.endswith(".py") else ""
    return {
        "rows": digest([(row.id, row.digest) for row in rows]),
        "prompts": prompt_digest(task),
        "rewards": digest(scorer, code),
    }


def _check_sandbox_options(config: RolloutConfig) -> None:
    """Raise ConfigError if the options cannot open a sandbox. With Ray, the nodes of the cluster check the options."""
    if config.mode == "llm" or config.ray:
        return
    try:
        open_sandbox(config.isolation, **sandbox_options(config))
    except (ValueError, FileNotFoundError) as error:
        raise ConfigError(str(error)) from error


class TrainingRun:
    """Training from its configuration to its end.

    Args:
        config: configuration of the training.
        folder: folder of the training. An existing training with the same configuration is resumed.
        on_figures: function that is called with the figures of each completed step.
        say: function that is called with a sentence about each stage of the training.
    """

    def __init__(
        self,
        config: TrainingConfig,
        folder: Path,
        on_figures: OnFigures = lambda figures: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.config, self.on_figures, self.say = config, on_figures, say
        _check_sandbox_options(config.rollouts)
        self.task, rows = task_and_rows(config)
        self.rows = {row.id: row for row in rows}
        self.validations = validation_tasks(config, rows)
        grpo.require_packages(config)
        if needs_gguf(config.model.path):
            check_gguf(config.model.path)
        self._workers: RolloutWorkers | RayRollouts | None = None
        self._rollouts: list[Rollout] = []
        self._figures: dict[str, Any] = {}
        self._began = time.monotonic()
        self._rank = int(os.environ.get("RANK", "0"))
        self._processes = int(os.environ.get("WORLD_SIZE", "1"))
        # The processes of a training share its folder. Only the first process locks the folder.
        self.record = TrainingRecord.begin(expanded(folder).absolute(), config, alone=self._rank == 0)
        try:
            self.record.check_inputs(input_digests(config, self.task, rows))
        except BaseException:
            self.record.release()
            raise

    def run(self) -> Path:
        """Train the policy, and unlock the folder of the training. Return the folder of the trained policy.

        Raises:
            ConfigError, RolloutError, TemplateError: if the training cannot begin. The message is one sentence.
        """
        try:
            return self._run()
        finally:
            self.record.release()

    def _run(self) -> Path:
        from transformers import set_seed
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
        set_seed(self.config.seed)
        model, tokenizer = self._start_policy()
        self._chat = self._chat_tokens(tokenizer)
        setting = RolloutSetting(
            self.config.name, self.task, self._chat, self.config.rollouts, self.config.data.scorer
        )
        workers = self._workers = self._make_workers(setting)
        in_loop(workers.__aenter__())
        try:
            in_loop(workers.check())
            return self._train(model, tokenizer)
        finally:
            in_loop(workers.__aexit__())

    def _make_workers(self, setting: RolloutSetting) -> RolloutWorkers | RayRollouts:
        config = self.config
        at_once = config.rollouts.at_once or config.batch // self._processes
        if address := config.rollouts.ray:
            return RayRollouts(address, setting, at_once)
        return RolloutWorkers(setting, at_once)

    # --- the policy before the first step ---

    def _start_policy(self) -> tuple[Any, Any]:
        """Return the model and the tokenizer with which the first step begins.

        Load them if they need no preparation, or if an earlier start of this training stored them. Otherwise make and
        store them.
        """
        config, folder = self.config, self.record.folder / START
        if config.model.path and not config.warm_up.steps and not needs_gguf(config.model.path):
            return load_policy(config.model.path, config.model.dtype)
        if not (folder / COMPLETE).is_file():
            if self._processes > 1:
                raise ConfigError(
                    "The warm-up runs in one process: start this training once without `accelerate launch`, interrupt "
                    "it after the first step, and resume it with `accelerate launch`."
                )
            if config.model.path:
                if config.model.dtype == "bfloat16" and bfloat16_is_slow(config.device):
                    self.say(
                        "This CPU computes bfloat16 slowly: a new training with model.dtype=float32 is much faster"
                    )
                self.say(f"Loading {config.model.path}")
                model, tokenizer = load_policy(config.model.path, config.model.dtype)
                if config.warm_up.steps:
                    self._imitate(model, tokenizer, self._runs_to_imitate())
            else:
                model, tokenizer = self._tiny_policy()
            save_policy(model, tokenizer, folder)
        return load_policy(str(folder), config.model.dtype)  # LoRA and vLLM need a model with a path

    def _chat_tokens(self, tokenizer: Any) -> ChatTokens:
        return ChatTokens(tokenizer, in_text=self.config.rollouts.calls == "text")

    def _runs_to_imitate(self) -> Sequence[Trajectory]:
        config = self.config
        if config.warm_up.runs or config.data.rows not in MADE:
            return warm_up.runs_to_imitate(config)
        self.say(f"{config.warm_up.count} scripted runs to imitate")
        return in_loop(scripted_runs(self.task, config, self.record.folder / "warm-up"))

    def _tiny_policy(self) -> tuple[Any, Any]:
        config = self.config
        found = self._runs_to_imitate()
        template = tiny.chat_template()
        texts = [tiny.rendered(template, run) for run in found]
        tokenizer = tiny.make_tokenizer(texts, tiny.fixed_lines(texts), config.model.vocabulary, template)
        tokens = config.rollouts.prompt_tokens + config.rollouts.completion_tokens
        model = tiny.make_model(config.model, tokenizer, tokens)
        self.say(f"A model with {model.num_parameters():,} weights, {len(tokenizer):,} tokens")
        if config.warm_up.steps:
            self._imitate(model, tokenizer, found)
        return model, tokenizer

    def _imitate(self, model: Any, tokenizer: Any, runs: Sequence[Trajectory]) -> None:
        data = warm_up.conversations(self._chat_tokens(tokenizer), runs)
        self.say(f"Supervised learning from {len(data)} runs, {self.config.warm_up.steps} steps")
        folder = self.record.folder / "warm-up" / "sft"
        losses = warm_up.imitate(self.config, model, tokenizer, data, folder, self.say)
        self.say(
            f"The loss went from {losses[0]:.3f} to {losses[-1]:.3f}" if losses else "No loss was logged"
        )

    # --- the policy gradient ---

    def _train(self, model: Any, tokenizer: Any) -> Path:
        found = self.record.newest_checkpoint()
        step = found[0] if found else 0
        if self._rank == 0:
            self.record.forget_after(step)
        if step:
            self.say(f"Resuming after step {step}")
        trainer = grpo.make_trainer(
            self.config,
            model,
            tokenizer,
            list(self.rows),
            self.record.checkpoints,
            self._run_rollouts,
            self._take_advantages,
            [self._callback()],
            self._processes,
        )
        self._began = time.monotonic()
        trainer.train(resume_from_checkpoint=str(found[1]) if found else None)
        if self.validations:
            grpo.sync_weights(trainer)
            self._validate(self.config.steps, trainer)
        end = self.record.folder / END
        trainer.save_model(str(end))  # all processes take part: each may hold a part of the weights
        if self._rank == 0:
            (end / COMPLETE).touch()
        return end

    def _callback(self) -> Any:
        from accelerate import PartialState
        from transformers import TrainerCallback

        run = self

        class Callback(TrainerCallback):  # type: ignore[misc]
            """Callback that completes the figures of a step, and marks complete checkpoints."""

            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
                if logs and "loss" in logs:
                    run._end_step(state.global_step, logs)

            def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                PartialState().wait_for_everyone()  # each process may write a part of the checkpoint
                (Path(args.output_dir) / f"checkpoint-{state.global_step}" / COMPLETE).touch()

        return Callback()

    def _run_rollouts(self, ids: list[str], trainer: Any) -> list[Rollout]:
        """Run a rollout for each id in `ids`, the row ids of this process. Summarize the rollouts of all processes."""
        from accelerate.utils import gather_object

        assert self._workers is not None
        rows = [self.rows[id] for id in ids]
        step = trainer.state.global_step + 1
        self._validate(step - 1, trainer)
        started = time.monotonic()
        folder = self.record.step_folder(step) / (f"rank-{self._rank}" if self._processes > 1 else "")
        self._rollouts, figures = self._sampled(self._workers, rows, folder, trainer, self.config.rollouts)
        figures["rollout_time"] = time.monotonic() - started
        self._figures = step_figures(step, gather_object(self._rollouts)) | figures
        return self._rollouts

    def _validate(self, step: int, trainer: Any) -> None:
        """Score the policy after `step` on the rows of each validation task, if a validation is due."""
        from accelerate.utils import gather_object

        how = self.config.validation
        done = {figures["task"] for figures in self.record.validations() if figures["step"] == step}
        due = bool(how.every) and (step % how.every == 0 or step == self.config.steps)
        rollouts = self.config.rollouts.unshaped()
        sampling = validation_sampling(self.config)
        for task, rows in self.validations if due else ():
            if task.name in done:
                continue
            started = time.monotonic()
            folder = self.record.validation_folder(step, task.name)
            folder = folder / (f"rank-{self._rank}" if self._processes > 1 else "")
            mine = (rows * how.repeats)[self._rank :: self._processes]
            workers = self._make_workers(RolloutSetting(self.config.name, task, self._chat, rollouts))
            in_loop(workers.__aenter__())
            try:
                with grpo.sampling_as(trainer, sampling):
                    found, _ = self._sampled(workers, mine, folder, trainer, sampling)
            finally:
                in_loop(workers.__aexit__())
            seconds = time.monotonic() - started
            self._began += seconds
            figures = validation_figures(step, task.name, gather_object(found), seconds)
            if self._rank == 0:
                self.record.add_validation(figures)
                self.say(validation_line(figures))

    def _sampled(
        self,
        workers: RolloutWorkers | RayRollouts,
        rows: list[Row],
        folder: Path,
        trainer: Any,
        sampling: RolloutConfig | Sampling,
    ) -> tuple[list[Rollout], dict[str, Any]]:
        """Run a rollout for each row. Return the rollouts, and figures about the sampling."""
        if self.config.generation.engine == "vllm-server":
            return self._through_server(workers, rows, folder, sampling)
        return self._together(workers, rows, folder, trainer)

    def _together(
        self, workers: RolloutWorkers | RayRollouts, rows: list[Row], folder: Path, trainer: Any
    ) -> tuple[list[Rollout], dict[str, Any]]:
        """Run the rollouts in the event loop of the sandboxes, while this thread samples replies with TRL's engine."""
        generator = BatchGenerator(self.config.generation.patience)

        def answer(prompts: list[list[int]], limits: list[int]) -> list[Generated]:
            return grpo.generate_together(trainer, prompts, limits)

        future = asyncio.run_coroutine_threadsafe(workers.run(rows, generator, folder), EventLoops.own())
        future.add_done_callback(lambda _: generator.close())
        try:
            generator.serve(answer)
        except BaseException:
            future.cancel()
            raise
        return future.result(), {"generation_time": generator.seconds, "batches": generator.batches}

    def _through_server(
        self,
        workers: RolloutWorkers | RayRollouts,
        rows: list[Row],
        folder: Path,
        how: RolloutConfig | Sampling,
    ) -> tuple[list[Rollout], dict[str, Any]]:
        """Send the newest weights to the vLLM server, and run the rollouts with its replies."""
        config = self.config

        async def work() -> tuple[list[Rollout], dict[str, Any]]:
            sampling = Sampling(how.temperature, how.top_p, how.top_k)
            async with ServerGenerator(config.generation.server, sampling, config.rollouts.time) as generator:
                rollouts = await workers.run(rows, generator, folder)
                return rollouts, {"generation_time": generator.seconds, "batches": generator.requests}

        return in_loop(work())

    def _take_advantages(self, advantages: list[float]) -> None:
        first = self._rank * len(self._rollouts)
        self.record.add_rollouts(int(self._figures["step"]), self._rollouts, advantages, first)

    def _end_step(self, step: int, logs: Mapping[str, Any]) -> None:
        now = time.monotonic()
        self._figures |= {
            "loss": float(logs["loss"]),
            "grad_norm": float(logs.get("grad_norm", 0.0)),
            "learning_rate": float(logs.get("learning_rate", 0.0)),
            "entropy": float(logs["entropy"]) if "entropy" in logs else None,
            "seconds": now - self._began,
        }
        self._began = now
        if self._rank == 0:
            self.record.add_step(self._figures)
            self.record.prune(self.config.record.keep)
            self.on_figures(self._figures)
            if (warning := no_gradient(self.record.steps())) is not None:
                self.say(warning)
