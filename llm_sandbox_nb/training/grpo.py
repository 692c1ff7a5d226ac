"""Policy gradient with TRL's GRPOTrainer. The settings of `grpo_config` make TRL compute the paper's objective.

This module computes no loss itself, and no other module of the training uses GRPOTrainer. `generate_together` uses a
private method of the trainer. The tests cover this method with the versions of TRL that the extra `[rl]` allows.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.training.config import TrainingConfig
from llm_sandbox_nb.training.generation import Generated
from llm_sandbox_nb.training.policy import Sampling, peft_config
from llm_sandbox_nb.training.rollouts import GRACE, LOST, Rollout

if TYPE_CHECKING:
    from trl import GRPOTrainer

RunRollouts = Callable[[list[str], Any], list[Rollout]]
"""Function that gets row ids and the trainer, and returns a rollout for each id."""
OnAdvantages = Callable[[list[float]], None]


class MissingPackageError(LLMSandboxError, ImportError):
    """Error for a package of the extra `[rl]`, or vLLM, that is not installed."""


def require_packages(config: TrainingConfig) -> None:
    """Raise MissingPackageError unless all packages that the configuration needs are installed."""
    needed = ["torch", "trl", *(["peft"] if config.model.lora.rank else [])]
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise MissingPackageError(
            f"Training needs {' and '.join(missing)}: run `pip install 'llm-sandbox-nb[rl]'`."
        )
    if config.generation.engine != "transformers" and importlib.util.find_spec("vllm") is None:
        raise MissingPackageError(
            f"generation.engine {config.generation.engine} needs vLLM: run `pip install 'trl[vllm]'`, or choose "
            "transformers."
        )


def grpo_config(config: TrainingConfig, output: Path, processes: int = 1) -> Any:
    """Return TRL's configuration of the paper's objective.

    - Leave-one-out baseline: the paper subtracts the mean of the other rewards of the group. TRL subtracts the mean of
      all G rewards. TRL's difference is (G - 1)/G times the paper's, so the weight G/(G - 1) makes them equal.
      Nothing is divided by the standard deviation.
    - The terms of all tokens in a sequence are added, and then the mean over the sequences is taken. TRL does this with
      the loss `luspo` and a ratio for each token.
    - Clip at 1 - epsilon and 1 + epsilon_high. By default, there is no KL divergence.
    """
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from trl import GRPOConfig

    rollouts, objective, generation = config.rollouts, config.objective, config.generation
    share, rest = divmod(config.batch, processes)
    micro = objective.micro_batch or share
    if rest or share % micro:
        raise ValueError(
            f"The {config.batch} rollouts of a step do not divide into {processes} processes with micro-batches of "
            f"{micro}: change rollouts.rows_per_step or objective.micro_batch."
        )
    group = rollouts.per_row
    more: dict[str, Any] = {}
    if generation.engine != "transformers":
        more = {
            "use_vllm": True,
            "vllm_mode": "server" if generation.engine == "vllm-server" else "colocate",
            "vllm_max_model_length": rollouts.prompt_tokens + rollouts.completion_tokens,
            "vllm_gpu_memory_utilization": generation.memory,
        }
        if generation.engine == "vllm-server":
            more |= {"vllm_server_base_url": generation.server}
    return GRPOConfig(
        output_dir=str(output),
        seed=config.seed,
        data_seed=config.seed,
        max_steps=config.steps,
        use_cpu=config.device == "cpu",
        bf16=config.model.dtype == "bfloat16",
        fp16=config.model.dtype == "float16",
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=share // micro,
        num_generations=group,
        num_iterations=1,
        max_completion_length=rollouts.completion_tokens,
        # A process may have to wait until another process has made all attempts at its rollouts.
        ddp_timeout=1800 + int(rollouts.attempts * (rollouts.time + GRACE)),
        temperature=rollouts.temperature,
        top_p=rollouts.top_p,
        top_k=rollouts.top_k,
        learning_rate=objective.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=objective.warmup_steps,
        weight_decay=objective.weight_decay,
        max_grad_norm=objective.max_grad_norm,
        activation_checkpointing=objective.activation_checkpointing,
        reward_weights=[group / (group - 1)],
        scale_rewards="none",
        loss_type="luspo",
        importance_sampling_level="token",
        epsilon=objective.epsilon,
        epsilon_high=objective.epsilon_high,
        beta=objective.beta,
        mask_truncated_completions=False,
        remove_unused_columns=False,
        shuffle_dataset=True,
        logging_steps=1,
        save_strategy="steps",
        save_steps=config.record.checkpoint_every,
        save_total_limit=config.record.checkpoints or None,
        report_to=[],
        disable_tqdm=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        **more,
    )


def reward(rewards: Sequence[float | None], **_: Any) -> list[float | None]:
    """Return `rewards`, which the rollouts already have. TRL calls this function, and leaves out rewards of None."""
    return list(rewards)


def make_trainer(
    config: TrainingConfig,
    model: Any,
    tokenizer: Any,
    rows: Sequence[str],
    output: Path,
    run: RunRollouts,
    on_advantages: OnAdvantages,
    callbacks: Sequence[Any] = (),
    processes: int = 1,
) -> GRPOTrainer:
    """Return a trainer of `model`. `rows` are the ids of the rows."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import GRPOTrainer

    class Trainer(GRPOTrainer):  # type: ignore[misc]
        """Trainer that reports the advantages after their computation."""

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            made = super()._generate_and_score_completions(inputs)
            if self.model.training:
                on_advantages(made["advantages"].tolist())
            return made

    def rollout_func(prompts: list[list[dict[str, Any]]], trainer: Any) -> dict[str, Any]:
        ids = [str(messages[-1]["row"]) for messages in prompts]
        return as_training_data(run(ids, trainer), int(tokenizer.eos_token_id), trainer.use_vllm)

    # The data set has only row ids. The agent loop finds the row of an id, and renders the prompt.
    dataset = Dataset.from_list([{"prompt": [{"role": "user", "content": row, "row": row}]} for row in rows])
    made = Trainer(
        model=model,
        args=grpo_config(config, output, processes),
        reward_funcs=[reward],
        train_dataset=dataset,
        processing_class=tokenizer,
        rollout_func=rollout_func,
        callbacks=list(callbacks),
        peft_config=peft_config(config.model.lora),
    )
    made.remove_callback(PrinterCallback)  # the caller of the training prints the figures of a step
    return made


def as_training_data(rollouts: Sequence[Rollout], end: int, with_logprobs: bool) -> dict[str, Any]:
    """Convert rollouts to TRL's form. Rollouts that are lost, or have no reward or no reply, get no gradient."""
    prompts, completions, masks, logprobs = [], [], [], []
    for rollout in rollouts:
        conversation = rollout.conversation
        length = max((place for place, kept in enumerate(conversation.mask, 1) if kept), default=0)
        used = length > 0 and rollout.stop_reason != LOST and rollout.reward is not None
        prompts.append(conversation.prompt or [end])
        completions.append(conversation.completion[:length] or [end])  # up to the last reply
        masks.append(conversation.mask[:length] if used else [0] * max(1, length))
        logprobs.append(conversation.logprobs[:length] or [0.0])
    return {
        "prompt_ids": prompts,
        "completion_ids": completions,
        "env_mask": masks,
        "logprobs": logprobs if with_logprobs else None,
        "rewards": [rollout.reward for rollout in rollouts],
    }


def sync_weights(trainer: Any) -> None:
    """Send the newest weights to vLLM. TRL itself sends them only at the beginning of a step."""
    if trainer.use_vllm:
        trainer.vllm_generation.sync_weights()


@contextlib.contextmanager
def sampling_as(trainer: Any, sampling: Sampling) -> Iterator[None]:
    """Change the sampling settings within the block. Sampling there does not change the training's random numbers."""
    import torch

    engine = trainer.vllm_generation if trainer.use_vllm else trainer.generation_config
    wanted = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    if not trainer.use_vllm and sampling.temperature == 0:
        wanted = {"do_sample": False}  # Transformers refuses the temperature 0
    before = {name: getattr(engine, name) for name in wanted}
    with torch.random.fork_rng():
        for name, value in wanted.items():
            setattr(engine, name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(engine, name, value)


def generate_together(trainer: Any, prompts: list[list[int]], limits: list[int]) -> list[Generated]:
    """Sample the replies to all prompts together with the trainer's engine: Transformers, or vLLM in this process."""
    if trainer.use_vllm:
        trainer.vllm_generation.max_completion_length = max(limits)
    else:
        trainer.generation_config.max_new_tokens = max(limits)
    ids, logprobs = trainer._generate_single_turn(prompts, None, {}, 1)
    made = []
    for place, (reply, limit) in enumerate(zip(ids, limits, strict=True)):
        sampled = (
            None if logprobs is None else tuple(float(logprob or 0.0) for logprob in logprobs[place][:limit])
        )
        made.append(Generated(tuple(map(int, reply[:limit])), sampled))
    return made
