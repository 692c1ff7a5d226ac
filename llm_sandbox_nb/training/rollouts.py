"""Rollouts: the policy works on many rows at the same time. Each row has its own sandbox.

The agent loop and the records of rollouts are the same as those of all other runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.run_limits import RunLimits
from llm_sandbox_nb.agent.sandbox_pool import OpenSandbox, SandboxPool
from llm_sandbox_nb.analysis.usage import times_of
from llm_sandbox_nb.benchmark.attempt import Attempt, HowToAsk, in_sandbox, with_one_reply
from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.runner import together
from llm_sandbox_nb.benchmark.scorers import BY_MODEL, IN_SANDBOX
from llm_sandbox_nb.benchmark.scoring_pool import Scoring
from llm_sandbox_nb.benchmark.task import Task, without_network
from llm_sandbox_nb.benchmark.text_scorers import NO_ANSWER
from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.model.contract import Model, ModelSettings
from llm_sandbox_nb.model.retries import RetryPolicy
from llm_sandbox_nb.runs.event_loops import EventLoops
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import ImageError, IsolationUnavailableError, SandboxError
from llm_sandbox_nb.sandbox.open import open_sandbox
from llm_sandbox_nb.training.chat_tokens import ChatTokens
from llm_sandbox_nb.training.config import RolloutConfig
from llm_sandbox_nb.training.generation import BatchGenerator, Generator
from llm_sandbox_nb.training.reward import reward
from llm_sandbox_nb.training.token_model import TokenConversation, TokenModel
from llm_sandbox_nb.trajectory.trajectory import Trajectory

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
LOST = "lost"
"""Stop reason of a rollout whose attempts all failed. The training leaves out such a rollout. Its reward is not 0."""
GRACE = 120.0
"""Seconds that a rollout may run after its deadline. If it still runs then, it counts as lost."""


class RolloutError(LLMSandboxError):
    """Error for rollouts that cannot run, for example because an engine, an image or a scorer is missing.

    The message is one sentence with the remedy.
    """


@dataclass
class Rollout:
    """Rollout of a policy on a row. Times are in seconds."""

    row: Row
    conversation: TokenConversation
    folder: Path | None = None
    """The run's folder."""
    stop_reason: str = LOST
    answer: str | None = None
    reward: float | None = None
    """Reward. None if the rollout was lost or has no score: the training leaves out such a rollout."""
    detail: str = ""
    """Explanation of the score, or the reason why the rollout was lost."""
    turns: int = 0
    tool_time: float = 0.0
    seconds: float = 0.0
    attempts: int = 0
    trajectory: Trajectory | None = None


@dataclass
class RolloutSetting:
    """Common settings of all rollouts of a training."""

    name: str
    task: Task
    chat: ChatTokens
    config: RolloutConfig
    scorer: str = ""
    """Scorer that replaces the task's scorer. Empty to use the task's scorer."""
    open: OpenSandbox | None = None
    """Function that opens a sandbox. With None, the options in `config` are used."""
    limits: RunLimits = field(init=False)

    def __post_init__(self) -> None:
        self.limits = run_limits(self.config)
        if self.config.network == "none":
            self.task = replace(self.task, prompts=without_network(self.task.prompts))


def sandbox_options(config: RolloutConfig) -> dict[str, Any]:
    """Return the options of `open_sandbox` that a configuration sets, except for the isolation."""
    names = ("profile", "image", "network", "allow", "secrets")
    return {name: value for name in names if (value := getattr(config, name))}


def open_sandboxes(config: RolloutConfig) -> OpenSandbox:
    """Return a function that opens sandboxes with the options of the configuration."""

    async def opened() -> Sandbox:
        return await open_sandbox(config.isolation, **sandbox_options(config))

    return opened


def run_limits(config: RolloutConfig) -> RunLimits:
    tokens = config.prompt_tokens + config.completion_tokens
    return RunLimits(steps=config.turns, tokens=tokens, time=config.time)


def run_options(config: RolloutConfig) -> dict[str, Any]:
    """Return the options of a rollout's run by name. With these options, repeated failures do not end the run."""
    return {"command_timeout": config.command_timeout, "tool_calls": config.calls, "same_failures": 0}


def in_loop(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine in the event loop of the sandboxes, and return its result."""
    future = asyncio.run_coroutine_threadsafe(work, EventLoops.own())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


class RolloutModel(Model, Protocol):
    """Model of one rollout, with the token ids of its conversation."""

    conversation: TokenConversation
    cut: bool
    """True if the newest reply reached a limit before its end."""


class RolloutWorkers:
    """Runner of rollouts in an event loop. `async with` finally closes the sandboxes and the scorers' processes."""

    def __init__(self, setting: RolloutSetting, at_once: int, folder: Path | None = None) -> None:
        """Prepare the pool. `folder` is for temporary files of sandboxes. With None, a temporary folder is made."""
        self.setting = setting
        self.pool = SandboxPool(at_once, folder, reuse=not setting.config.fresh_sandboxes)
        self._at_once = asyncio.Semaphore(at_once)
        self._scoring = Scoring(2)

    async def __aenter__(self) -> Self:
        await self.pool.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._scoring.close()
        await self.pool.__aexit__(None, None, None)

    async def check(self) -> None:
        """Raise RolloutError if the scorer's file cannot be loaded, or the scorer cannot give rewards."""
        scorer = self._scorer
        if scorer.endswith(".py") and (problem := await self._scoring.check(scorer)):
            raise RolloutError(f"The reward cannot be computed: {problem}; correct {scorer}.")
        if scorer in (*BY_MODEL, *IN_SANDBOX):
            raise RolloutError(
                f"The scorer {scorer} cannot give rewards: name another scorer, or a Python file, in data.scorer."
            )

    async def run(self, rows: Sequence[Row], generator: Generator, folder: Path) -> list[Rollout]:
        """Run one rollout for each row, all at the same time. Return the rollouts in the order of `rows`.

        The records are below `folder`.

        Raises:
            RolloutError: if the image, the isolation or an option cannot be used, or if `check_ended` raises the error.
        """
        folder.mkdir(parents=True, exist_ok=True)
        rollouts = await together(self.one(row, generator, folder, order) for order, row in enumerate(rows))
        return check_ended(rollouts, self.setting)

    async def one(self, row: Row, generator: Generator, folder: Path, order: int) -> Rollout:
        """Run and reward one rollout. The record is in `folder`/`order`.

        A lost rollout is repeated, up to the maximum number of attempts.

        Raises:
            RolloutError: if the image, the isolation or an option cannot be used.
        """
        async with self._at_once:
            for number in range(1, self.setting.config.attempts + 1):
                rollout = await self._sampled(row, generator, folder, order)
                rollout.attempts = number
                if rollout.stop_reason != LOST:
                    break
                logger.info("A rollout of row %s was lost: %s", row.id, rollout.detail)
            return await self.rewarded(rollout)

    async def _sampled(self, row: Row, generator: Generator, folder: Path, order: int) -> Rollout:
        setting = self.setting
        model = TokenModel(
            f"policy/{setting.name}",
            setting.chat,
            generator,
            prompt_limit=setting.config.prompt_tokens,
            completion_limit=setting.config.completion_tokens,
            order=order,
        )
        waited_for = contextlib.ExitStack()
        if isinstance(generator, BatchGenerator):
            waited_for.enter_context(generator.active())
        return await self.attempt(row, model, folder / f"{order:04d}", waited_for)

    async def attempt(
        self, row: Row, model: RolloutModel, folder: Path, waited_for: contextlib.ExitStack | None = None
    ) -> Rollout:
        """Run one rollout without its reward. The record is below `folder`.

        While `waited_for` is open, batches wait for this rollout. This function closes `waited_for` as soon as the
        rollout needs no more replies.

        Raises:
            RolloutError: if no sandbox can be opened at all.
        """
        setting = self.setting
        waited_for = waited_for or contextlib.ExitStack()
        started = time.monotonic()
        rollout = Rollout(row, model.conversation)
        if folder.exists():  # a lost attempt left it
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        try:
            async with asyncio.timeout(setting.config.time + GRACE):
                made = await self._work(row, model, folder, waited_for)
        except (ImageError, IsolationUnavailableError, InputError) as error:
            raise RolloutError(str(error)) from error
        except (SandboxError, OSError, TimeoutError) as error:
            rollout.detail = str(error) or "it did not end in time"
            return rollout
        finally:
            waited_for.close()
            rollout.seconds = time.monotonic() - started
        trajectory = made.run.trajectory
        rollout.folder, rollout.trajectory = made.run.folder, trajectory
        rollout.turns = len(model.conversation.replies)
        rollout.tool_time = times_of(trajectory).tools or 0.0
        rollout.answer = made.answer
        if made.error_kind:
            rollout.detail = made.error
            return rollout
        rollout.stop_reason = str(made.run.stop_reason)
        if setting.config.mode == "llm" and model.cut:
            rollout.stop_reason = "tokens"
        return rollout

    async def _work(
        self, row: Row, model: RolloutModel, folder: Path, waited_for: contextlib.ExitStack
    ) -> Attempt:
        setting, config = self.setting, self.setting.config
        how = HowToAsk(
            model,
            ModelSettings(max_tokens=config.reply_tokens or config.completion_tokens, timeout=config.time),
            RetryPolicy(attempts=1),
            setting.limits,
            remind=False,
            nudges=config.nudges,
            **run_options(config),
        )
        if config.mode == "llm":
            return await with_one_reply(setting.task, row, how, folder)

        @asynccontextmanager
        async def lease(task: Task, row: Row) -> AsyncIterator[Sandbox]:
            async with self.pool.lease(setting.open or open_sandboxes(config)) as box:
                yield box
                waited_for.close()  # no other rollout has to wait for the reset of this sandbox

        documents = "prompt" if config.mode == "sandbox-prompt" else "files"
        return await in_sandbox(setting.task, row, how, lease, folder, documents=documents)

    @property
    def _scorer(self) -> str:
        return self.setting.scorer or self.setting.task.scorer

    async def rewarded(self, rollout: Rollout) -> Rollout:
        """Set the reward of a rollout, and return the rollout. A lost or unscored rollout has the reward None."""
        if rollout.stop_reason != LOST:
            scored = await reward(
                self._scoring,
                self._scorer,
                self.setting.config,
                rollout.row,
                rollout.stop_reason,
                rollout.answer,
                rollout.folder,
            )
            rollout.reward, rollout.detail = scored.value, scored.detail
        return rollout


def check_ended(rollouts: list[Rollout], setting: RolloutSetting) -> list[Rollout]:
    """Return `rollouts`, all rollouts of a step, unchanged. Before that, check that the step can be used.

    Raises:
        RolloutError: if all rollouts were lost, no prompt fits, or the scorer rewarded no answer.
    """
    if rollouts and all(rollout.stop_reason == LOST for rollout in rollouts):
        raise RolloutError(f"No rollout came to an end: {rollouts[0].detail.rstrip('.')}.")
    if rollouts and all(rollout.stop_reason == "tokens" and not rollout.turns for rollout in rollouts):
        finish = rollouts[0].trajectory.finish if rollouts[0].trajectory else None
        raise RolloutError(f"No prompt fits: {finish.error if finish else 'raise rollouts.prompt_tokens.'}")
    unscored = (LOST, *setting.config.zero_reward_for)
    ended = [rollout for rollout in rollouts if rollout.stop_reason not in unscored]
    asked = [rollout for rollout in ended if rollout.detail != NO_ANSWER.detail]
    if asked and all(rollout.reward is None for rollout in asked):
        reason = asked[0].detail.rstrip(".")
        raise RolloutError(
            f"No rollout of this step could be rewarded: {reason}; correct {setting.scorer or setting.task.scorer} and "
            "run the same command again."
        )
    return rollouts
