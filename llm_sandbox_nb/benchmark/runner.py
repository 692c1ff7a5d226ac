"""The runner: all items of a benchmark, many at once in one process, each result on disk when it is there."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llm_sandbox_nb.agent.failures import InputError
from llm_sandbox_nb.agent.model import ModelError
from llm_sandbox_nb.analysis.load import Loaded
from llm_sandbox_nb.analysis.timing import times_of
from llm_sandbox_nb.analysis.tokens import tokens_of
from llm_sandbox_nb.benchmark.attempt import Attempt, HowToAsk, Opener, in_sandbox, with_one_reply
from llm_sandbox_nb.benchmark.judge import FATAL_KINDS, Judge
from llm_sandbox_nb.benchmark.results import Result, cell_folder, read_results, write_result
from llm_sandbox_nb.benchmark.rows import DataError, Row
from llm_sandbox_nb.benchmark.scores import Score
from llm_sandbox_nb.benchmark.scoring import Scoring
from llm_sandbox_nb.benchmark.swe import score_patch
from llm_sandbox_nb.benchmark.task import Task
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import ImageError, IsolationUnavailableError, SandboxError

MODES = ("sandbox", "llm", "sandbox-prompt")
_UNSAFE = re.compile(r"[^\w.-]+")
_SHOWN_ANSWER = 20_000


class FatalError(Exception):
    """Nothing more can be done: no key, no engine, ... The message is one sentence; all results so far are kept."""


@dataclass(frozen=True)
class Item:
    """One problem, once, in one mode."""

    task: Task
    row: Row
    mode: str
    repeat: int

    @property
    def key(self) -> tuple[str, str, str, int]:
        """As `Result.key`."""
        return self.task.name, self.mode, self.row.id, self.repeat


@dataclass(frozen=True)
class RunnerOptions:
    """`attempts`: how often an item that failed is tried in one start of the runner."""

    out: Path
    workers: int = 8
    attempts: int = 2
    retry_errors: bool = True
    """Whether items that failed in an earlier start are done again."""


def plan(
    tasks: Iterable[tuple[Task, list[Row]]], modes: Iterable[str], repeats: int | None = None
) -> list[Item]:
    """All items, the first repeat of everything before the second."""
    found = [
        Item(task, row, mode, repeat)
        for task, rows in tasks
        for mode in modes
        for repeat in range(repeats or task.repeats)
        for row in rows
    ]
    return sorted(found, key=lambda item: item.repeat)


class Runner:
    """Works off items. `on_result` is called with each result after it was written."""

    def __init__(
        self,
        how: HowToAsk,
        open_box: Opener,
        options: RunnerOptions,
        judge: Judge | None = None,
        on_result: Callable[[Result], None] = lambda result: None,
    ) -> None:
        self.how, self.open_box, self.options, self.judge, self.on_result = (
            how,
            open_box,
            options,
            judge,
            on_result,
        )

    def open_items(self, items: Iterable[Item]) -> list[Item]:
        """Those that have no result yet, or only one that failed."""
        done = {
            result.key
            for result in read_results(self.options.out)
            if not (result.error_kind and self.options.retry_errors)
        }
        return [item for item in items if item.key not in done]

    async def run(self, items: Iterable[Item]) -> list[Result]:
        """Do what is still open. Cancelling ends what is under way in good order.

        Raises:
            FatalError: it makes no sense to go on.
        """
        waiting = self.open_items(items)
        waiting.reverse()
        results: list[Result] = []
        async with Scoring(workers=min(2, max(1, self.options.workers))) as scoring:

            async def work() -> None:
                while waiting:
                    result = await self._do(waiting.pop(), scoring)
                    write_result(self.options.out, result)
                    results.append(result)
                    self.on_result(result)

            workers = min(self.options.workers, len(waiting))
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(workers):
                        group.create_task(work())
            except BaseExceptionGroup as group_error:
                raise _first(group_error) from group_error
        return results

    async def _do(self, item: Item, scoring: Scoring) -> Result:
        result = Result(*item.key[:2], item=item.row.id, repeat=item.repeat)
        for _ in range(max(1, self.options.attempts)):
            started = time.time()
            try:
                attempt = await self._attempt(item)
                result = await self._scored(item, attempt, scoring, started)
            except (ImageError, IsolationUnavailableError, InputError) as error:
                raise FatalError(str(error)) from error
            except ModelError as error:
                raise FatalError(str(error)) from error
            except (SandboxError, DataError, OSError) as error:
                kind = "data" if isinstance(error, DataError) else "sandbox"
                result = _failed(item, kind, str(error), started)
            if not result.error_kind or result.error_kind in ("data", "content_policy", "bad_request"):
                break
            if result.error_kind in FATAL_KINDS:
                raise FatalError(result.error)
        return result

    async def _attempt(self, item: Item) -> Attempt:
        name = _UNSAFE.sub("-", item.row.id).strip(".-")[:80] or "item"
        folder = cell_folder(self.options.out, item.task.name, item.mode) / "runs" / f"{name}-{item.repeat}"
        if item.mode == "llm":
            return await with_one_reply(item.task, item.row, self.how, folder)
        documents = "prompt" if item.mode == "sandbox-prompt" else "files"
        return await in_sandbox(item.task, item.row, self.how, self.open_box, folder, documents=documents)

    async def _scored(self, item: Item, attempt: Attempt, scoring: Scoring, started: float) -> Result:
        score = Score(None) if attempt.error_kind else await self._score(item, attempt.answer, scoring)
        trajectory = attempt.run.trajectory
        tokens = tokens_of(trajectory)
        times = times_of(Loaded("", "", "journal", attempt.run.journal, trajectory))
        return Result(
            *item.key[:2],
            item=item.row.id,
            repeat=item.repeat,
            score=score.value,
            detail=score.detail,
            answer=None if attempt.answer is None else attempt.answer[:_SHOWN_ANSWER],
            stop_reason=attempt.run.stop_reason,
            error_kind=attempt.error_kind,
            error=attempt.error,
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
            run=attempt.run.folder.relative_to(self.options.out.absolute()).as_posix(),
        )

    async def _score(self, item: Item, answer: str | None, scoring: Scoring) -> Score:
        task = item.task
        if task.scorer == "judge":
            if self.judge is None:
                return Score(None, "no judge: name one with --judge_model")
            return await self.judge.score(answer, item.row)
        if task.scorer == "swe":

            def opener(row: Row) -> AbstractAsyncContextManager[Sandbox]:
                return self.open_box(task, row)

            return await score_patch(answer, item.row, opener, task.folder, task.test_command)
        return await scoring.score(task.scorer, answer, item.row)


def _failed(item: Item, kind: str, error: str, started: float) -> Result:
    failed = Result(*item.key[:2], item=item.row.id, repeat=item.repeat, error_kind=kind, error=error)
    return replace(failed, started=started, wall_time=time.time() - started)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one failure that ended it all."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def image_of(task: Task, row: Row) -> str | None:
    """The image of a row's repository: the row's own, else the task's with the row's id in it."""
    if named := row.extra.get("image"):
        return str(named)
    if task.image is None or row.extra.get("repository"):
        return None
    return task.image.replace("{id}", row.id.replace("__", "_1776_").lower())


def make_opener(isolation: str = "auto", **options: Any) -> Opener:
    """Opens a sandbox for a row with these options of `open_sandbox`; the row's image goes before the one given."""
    from llm_sandbox_nb.sandbox.opening import open_sandbox

    def opener(task: Task, row: Row) -> AbstractAsyncContextManager[Sandbox]:
        own: Mapping[str, Any] = {"image": image} if (image := image_of(task, row)) else {}
        try:
            return open_sandbox(isolation, **{**options, **own})
        except (ValueError, FileNotFoundError) as error:
            raise InputError(str(error)) from error

    return opener
