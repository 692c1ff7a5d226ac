"""Supervised learning before the policy gradient: the policy imitates the replies of recorded runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from llm_sandbox_nb.agent.prompts import PromptConfig
from llm_sandbox_nb.agent.text_mode import TextMode, load_text_form
from llm_sandbox_nb.analysis.load import load_runs
from llm_sandbox_nb.formatting import format_duration, plural
from llm_sandbox_nb.training.chat_tokens import ChatTokens, TemplateError
from llm_sandbox_nb.training.config import ConfigError, TrainingConfig
from llm_sandbox_nb.training.policy import peft_config
from llm_sandbox_nb.training.token_model import TokenConversation, conversation_ids
from llm_sandbox_nb.trajectory.trajectory import Trajectory

logger = logging.getLogger(__name__)
IGNORED = -100
"""Label of a token id that is not learned."""


def runs_to_imitate(config: TrainingConfig) -> list[Trajectory]:
    """Load the recorded runs to imitate: submitted runs whose reward is missing or at least `least_reward`.

    Raises:
        ConfigError: if there are no such runs.
    """
    warm_up = config.warm_up
    try:
        reading = load_runs([warm_up.runs])
    except FileNotFoundError as error:
        raise ConfigError(f"warm_up.runs: {error}") from error
    found = []
    for trajectory in (run.trajectory for run in reading.runs):
        reward = trajectory.reward.reward or 0.0 if trajectory.reward else warm_up.least_reward
        if trajectory.stop_reason == "submitted" and reward >= warm_up.least_reward:
            found.append(trajectory)
    if not found:
        raise ConfigError(
            f"No run below {warm_up.runs} was submitted and rewarded with {warm_up.least_reward:g} or more: "
            "give other runs in warm_up.runs, or lower warm_up.least_reward."
        )
    return found[: warm_up.count]


def conversations(chat: ChatTokens, trajectories: Iterable[Trajectory]) -> list[TokenConversation]:
    """Return the token ids of recorded runs.

    A run is left out if the chat template cannot write one of its replies, or the written reply cannot be read back.

    Raises:
        TemplateError: if no run is left.
    """
    found: list[TokenConversation] = []
    problems: list[TemplateError] = []
    for trajectory in trajectories:
        messages, tools = list(trajectory.messages()), trajectory.start.tools if trajectory.start else []
        if chat.in_text:
            prompts = trajectory.start.settings.get("prompts") if trajectory.start else {}
            form = load_text_form(str((prompts or {}).get("text_form", PromptConfig.text_form)))
            messages, tools = TextMode(form, tools).request(messages), []
        try:
            for message in messages:
                if message["role"] == "assistant":
                    chat.check_reply(message, tools)
            found.append(conversation_ids(chat, messages, tools))
        except TemplateError as error:
            problems.append(error)
    if problems and not found:
        raise problems[0]
    if problems:
        logger.warning(
            "%s left out, because of replies like this one: %s",
            plural(len(problems), "run is", "runs are"),
            problems[0],
        )
    return found


def imitate(
    config: TrainingConfig,
    model: Any,
    tokenizer: Any,
    data: Sequence[TokenConversation],
    output: Path,
    say: Callable[[str], None],
) -> list[float]:
    """Train `model` in place on the replies of the conversations, with TRL's SFTTrainer. Return the logged losses.

    `say` is called with a line about twenty times at most, at equal distances. With LoRA, the matrices are merged into
    the weights at the end.
    """
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    warm_up = config.warm_up
    longest = config.rollouts.prompt_tokens + config.rollouts.completion_tokens
    rows = [
        {
            "input_ids": conversation.ids,
            "labels": [IGNORED] * len(conversation.prompt)
            + [
                id if kept else IGNORED
                for id, kept in zip(conversation.completion, conversation.mask, strict=True)
            ],
        }
        for conversation in data
        if len(conversation.ids) <= longest
    ]
    if not rows:
        raise ConfigError(
            f"All runs to imitate are longer than {longest} tokens: raise rollouts.completion_tokens."
        )
    if len(rows) < len(data):
        logger.warning("%d runs are longer than %d tokens and left out.", len(data) - len(rows), longest)
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            output_dir=str(output),
            seed=config.seed,
            data_seed=config.seed,
            max_steps=warm_up.steps,
            use_cpu=config.device == "cpu",
            bf16=config.model.dtype == "bfloat16",
            per_device_train_batch_size=warm_up.batch,
            learning_rate=warm_up.learning_rate,
            lr_scheduler_type="cosine",
            max_length=None,
            activation_checkpointing=config.objective.activation_checkpointing,
            logging_steps=max(1, warm_up.steps // 10),
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=peft_config(config.model.lora),
    )
    begun = time.monotonic()

    class _Progress(TrainerCallback):  # type: ignore[misc]
        """Callback that reports the progress."""

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs and "loss" in logs:
                seconds = format_duration(time.monotonic() - begun)
                say(f"  step {state.global_step} of {state.max_steps}: loss {logs['loss']:.3f}, {seconds}")

    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(_Progress())
    trainer.train()
    if config.model.lora.rank:
        trainer.model.merge_and_unload()
    return [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
