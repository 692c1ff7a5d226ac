"""Execution of an item: its attempts, its score and its result. A backend makes the attempts, here or elsewhere."""

from __future__ import annotations

import logging
import re
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.sandbox_pool import SandboxPool
from llm_sandbox_nb.analysis.usage import times_of, tokens_of
from llm_sandbox_nb.benchmark.attempt import Attempt, BoxOpener, HowToAsk, Opener, in_sandbox, with_one_reply
from llm_sandbox_nb.benchmark.digests import same_question, signed
from llm_sandbox_nb.benchmark.judge import FATAL_KINDS, Judge
from llm_sandbox_nb.benchmark.results import ANSWERED, JUDGE, SCORER, Result, cell_folder
from llm_sandbox_nb.benchmark.rows import DataError, Row
from llm_sandbox_nb.benchmark.score_event import record_score
from llm_sandbox_nb.benchmark.scoring_pool import Scoring
from llm_sandbox_nb.benchmark.swe import score_patch
from llm_sandbox_nb.benchmark.task import Task
from llm_sandbox_nb.benchmark.text_scorers import Score
from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.formats.llm_in_sandbox import RESPONSES, save_responses
from llm_sandbox_nb.model.contract import BROKEN_OFF, Checkable, Model, ModelError
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import ImageError, IsolationUnavailableError, SandboxError

logger = logging.getLogger(__name__)
_UNSAFE_CHARACTERS = re.compile(r"[^\w.-]+")
_MAX_NAME_CHARACTERS = 60
"""Maximum number of an id's characters in a folder's name. A name may have 255 bytes, and a character up to 4 bytes."""
_NO_JUDGE = "no judge: name one with --judge_model"
_FINAL_KINDS = ("data", "content_policy", "bad_request", SCORER)
"""Kinds of errors that concern only one item, and that another attempt at the item would not avoid."""


class FatalError(LLMSandboxError):
    """Error after which the benchmark must stop, such as a missing key or engine. All results so far are kept."""


@dataclass(frozen=True)
class Item:
    """Unit of work of a benchmark: one repeat of a problem in one mode."""

    task: Task
    row: Row
    mode: str
    repeat: int

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Key of the item's result, as in `Result.key`."""
        return self.task.name, self.mode, self.row.id, self.repeat


class Backend(Protocol):
    """Executor of items. `async with` starts the executor. The end of the block cancels the items that still run."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def attempt(self, item: Item) -> tuple[Result, str | None]:
        """Run an item. Return its result and the whole answer. A judge has not scored the result yet.

        Raises:
            FatalError: if the benchmark must stop.
        """
        ...


async def check_model(model: Model) -> None:
    """Check that requests to a model are possible.

    Raises:
        FatalError: if the model's provider is unknown, or the key is missing.
    """
    if isinstance(model, Checkable):
        try:
            await model.check()
        except ModelError as error:
            raise FatalError(str(error)) from error


class LocalBackend:
    """Backend that runs items in this process. The runs are recorded below `out`.

    A failed item is tried up to `attempts` times, unless another attempt would fail in the same way. With `reuse`, a
    sandbox serves many items and is reset between them; see `SandboxPool`. The end of the `async with` block ends the
    worker processes of `scoring`.
    """

    def __init__(
        self,
        how: HowToAsk,
        open_box: Opener,
        out: Path,
        attempts: int = 2,
        scoring: Scoring | None = None,
        *,
        reuse: bool = True,
    ) -> None:
        self.how, self.open_box, self.out, self.attempts = how, open_box, out, attempts
        self._scoring = scoring or Scoring(2)
        self.pool = SandboxPool(reuse=reuse)

    async def __aenter__(self) -> Self:
        """Check the model. Raise FatalError if requests are impossible."""
        await check_model(self.how.model)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._scoring.close()
        await self.pool.__aexit__(None, None, None)

    def _lease(self, task: Task, row: Row) -> AbstractAsyncContextManager[Sandbox]:
        opening = self.open_box(task, row)
        return self.pool.lease(lambda: opening, repr(opening.options))

    async def attempt(self, item: Item, out: Path | None = None) -> tuple[Result, str | None]:
        """Run an item in this process; see `Backend`. `out` replaces the backend's folder.

        Raises:
            FatalError: if the benchmark must stop.
        """
        result, answer = Result(*item.key), None
        for _ in range(max(1, self.attempts)):
            started = time.time()
            try:
                made = await self._once(item, out or self.out)
                answer = made.answer
                result = await self._scored(item, made, started, out or self.out)
            except (ImageError, IsolationUnavailableError, InputError, ModelError) as error:
                raise FatalError(str(error)) from error
            except (SandboxError, DataError, OSError) as error:
                kind = "data" if isinstance(error, DataError) else "sandbox"
                result, answer = failed_result(item, kind, str(error), started), None
            except Exception as error:  # a bug here or in a task fails one item and not the whole benchmark
                logger.exception("An attempt at %s failed.", item.key)
                text = f"{type(error).__name__}: {error}"
                result, answer = failed_result(item, "error", text, started), None
            if not result.error_kind or result.error_kind in _FINAL_KINDS:
                break
            if result.error_kind in FATAL_KINDS:
                raise FatalError(result.error)
        return result, answer

    async def _once(self, item: Item, out: Path) -> Attempt:
        name = _UNSAFE_CHARACTERS.sub("-", item.row.id).strip(".-")[:_MAX_NAME_CHARACTERS] or "item"
        folder = cell_folder(out, item.task.name, item.mode) / "runs" / f"{name}-{item.repeat}"
        asker, framed = item.task.asker, item.mode == "sandbox-prompt" and item.task.prompts.source
        prompt = (
            await self._scoring.prompt(asker, item.row) if asker and (item.mode == "llm" or framed) else None
        )
        if item.mode == "llm":
            made = await with_one_reply(item.task, item.row, self.how, folder, prompt)
        else:
            documents = "prompt" if item.mode == "sandbox-prompt" else "files"
            made = await in_sandbox(
                item.task, item.row, self.how, self._lease, folder, documents=documents, framed=prompt
            )
        if self.how.save_responses:
            address = getattr(self.how.model, "api_base", None)
            save_responses(made.run.trajectory, made.run.folder / RESPONSES, address)
        return made

    async def _scored(self, item: Item, attempt: Attempt, started: float, out: Path) -> Result:
        score, by_rule = Score(None), not attempt.error_kind and not item.task.needs_judge
        if by_rule:
            score = await scored_by_rule(self._scoring, self._lease, item, attempt.answer, attempt.run.folder)
        unscored = score.value is None and by_rule
        trajectory = attempt.run.trajectory
        record_score(attempt.run.folder, trajectory, item.task.scorer, score)
        tokens = tokens_of(trajectory)
        times = times_of(trajectory)
        return Result(
            *item.key,
            score=score.value,
            detail=score.detail,
            answer=attempt.answer,
            stop_reason=attempt.run.stop_reason,
            error_kind=SCORER if unscored else attempt.error_kind,
            error=score.detail if unscored else attempt.error,
            cut_replies=sum(step.finish_reason == BROKEN_OFF for step in trajectory.steps),
            turns=sum(step.replied for step in trajectory.steps),
            prompt_tokens=tokens.prompt,
            model_tokens=tokens.model,
            environment_tokens=tokens.environment,
            billed_tokens=tokens.billed,
            cost=tokens.cost,
            started=started,
            wall_time=times.wall or 0.0,
            model_time=times.model,
            tool_time=times.tools or 0.0,
            memory_peak=attempt.spent.memory_peak,
            disk=attempt.spent.disk,
            reused=attempt.reused,
            run=attempt.run.folder.relative_to(out.absolute()).as_posix(),
        )


async def scored_by_rule(
    scoring: Scoring, open_box: BoxOpener, item: Item, answer: str | None, run: Path
) -> Score:
    """Score an answer without a judge. `run` is the folder of the run that gave the answer.

    If the scoring fails for this answer alone, return a score that is marked as failed. The answer can then be scored
    again.

    Raises:
        ImageError, IsolationUnavailableError: if no sandbox can be opened, so that no answer can be scored.
    """
    task = item.task

    def opener(row: Row) -> AbstractAsyncContextManager[Sandbox]:
        return open_box(task, row)

    try:
        if task.scorer != "swe":
            return await scoring.score(task.scorer, answer, item.row, run)
        commands = (task.test_command, task.test_evidence)
        return await score_patch(answer, item.row, opener, task.folder, *commands)
    except (ImageError, IsolationUnavailableError):
        raise
    except (SandboxError, DataError, OSError) as error:
        return Score(None, str(error), failed=True)


@dataclass(frozen=True)
class Rescoring:
    """Tools for scoring stored answers again: scorers, a judge, and sandboxes for patches."""

    scoring: Scoring
    judge: Judge | None
    open_box: Opener
    out: Path

    async def score(self, item: Item, before: Result) -> Result | None:
        """Score the stored answer of an item. Return None if the answer cannot be used and the item must run again.

        Raises:
            FatalError: if the judge cannot be asked at all.
        """
        if before.error_kind not in ANSWERED or not same_question(before, item.task, item.row):
            return None
        answer = before.answer
        if item.task.needs_judge:
            made = await judged(self.judge, item, replace(before, error_kind="", error=""), answer)
            return self._signed(made, before, item)
        try:
            score = await scored_by_rule(self.scoring, self.open_box, item, answer, self.out / before.run)
        except (ImageError, IsolationUnavailableError) as error:
            raise FatalError(str(error)) from error
        if score.value is None:
            made = replace(before, score=None, detail=score.detail, error_kind=SCORER, error=score.detail)
        else:
            made = _with_score(before, score)
        return self._signed(made, before, item)

    def _signed(self, made: Result, before: Result, item: Item) -> Result:
        """Return `made` with current digests, but keep the prompt digest and package version of `before`."""
        now = signed(made, item.task, item.row, self.judge)
        return replace(now, prompt=before.prompt, version=before.version)


def is_to_be_judged(item: Item, before: Result) -> bool:
    """Return True if the item has an answer that a judge has not scored."""
    return item.task.needs_judge and (before.error_kind == JUDGE or before.detail == _NO_JUDGE)


def _with_score(result: Result, score: Score) -> Result:
    return replace(result, score=score.value, detail=score.detail, error_kind="", error="")


def failed_result(item: Item, kind: str, error: str, started: float) -> Result:
    wall = time.time() - started
    return Result(*item.key, error_kind=kind, error=error, started=started, wall_time=wall)


async def judged(judge: Judge | None, item: Item, result: Result, answer: str | None) -> Result:
    """Return the result with the judge's score, if a judge scores the task.

    Raises:
        FatalError: if the judge cannot be asked at all.
    """
    if not item.task.needs_judge or result.error_kind:
        return result
    if judge is None:
        return replace(result, score=None, detail=_NO_JUDGE, answer=answer)
    try:
        score = await judge.score(answer, item.row)
    except ModelError as error:
        raise FatalError(str(error)) from error
    if score.failed:
        return unjudged(result, answer, score.detail)
    return _with_score(result, score)


def unjudged(result: Result, answer: str | None, error: str) -> Result:
    """Return the result with the error of the judge, and with the whole answer for a later judgement."""
    return replace(result, score=None, detail=error, answer=answer, error_kind=JUDGE, error=error)
