"""Runner of a benchmark. It runs many items at the same time, and writes each result as soon as its item ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.run_options import OPTION_DEFAULTS
from llm_sandbox_nb.benchmark.attempt import HowToAsk, Opener
from llm_sandbox_nb.benchmark.digests import scorer_digest, signed
from llm_sandbox_nb.benchmark.item_pipeline import (
    Backend,
    FatalError,
    Item,
    LocalBackend,
    Rescoring,
    check_model,
    is_to_be_judged,
    judged,
    unjudged,
)
from llm_sandbox_nb.benchmark.judge import Judge
from llm_sandbox_nb.benchmark.results import ANSWERED, Key, Result, read_results, write_result
from llm_sandbox_nb.benchmark.rows import Row, repeats_of_rows
from llm_sandbox_nb.benchmark.score_event import record_result
from llm_sandbox_nb.benchmark.scoring_pool import Scoring
from llm_sandbox_nb.benchmark.task import Task
from llm_sandbox_nb.model.contract import ModelSettings
from llm_sandbox_nb.model.model_names import make_model
from llm_sandbox_nb.model.retries import RetryPolicy
from llm_sandbox_nb.options.table import LIMIT_OPTIONS, MODEL_OPTIONS, SANDBOX_OPTIONS
from llm_sandbox_nb.options.values import fields_of, sandbox_options
from llm_sandbox_nb.sandbox.open import OpeningSandbox, open_sandbox

_T = TypeVar("_T")
SAMPLING_VALUES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_RUN_OPTIONS = {
    option.sets: option.name for option in (*MODEL_OPTIONS, *LIMIT_OPTIONS) if option.sets in OPTION_DEFAULTS
}
"""Names of benchmark options. Each key is the field of `RunOptions` that the option sets.

`context` is missing, because the option of this name has another meaning in a benchmark.
"""
MODEL_VALUES = (
    *(option.name for option in MODEL_OPTIONS),
    *_RUN_OPTIONS.values(),
    *("max_response_len", "save_litellm_response"),
    *("mcp", "mcp_allow"),
)
SANDBOX_VALUES = tuple(option.name for option in SANDBOX_OPTIONS)


@dataclass(frozen=True)
class RunnerOptions:
    """Options of a runner. `attempts` is the maximum number of times that a start tries a failing item."""

    out: Path
    workers: int = 8
    attempts: int = 2
    retry_errors: bool = True
    """True to run again the items that failed in an earlier start."""
    reuse: bool = True
    """True to use a sandbox for several items, with a reset between them."""


def plan(
    tasks: Iterable[tuple[Task, list[Row]]], modes: Iterable[str], repeats: int | None = None
) -> list[Item]:
    """Return all items. The first repeat of every row comes before all second repeats."""
    counted = [(task, rows, repeats_of_rows(rows, repeats or task.repeats)) for task, rows in tasks]
    return items_of(counted, modes)


def items_of(tasks: Iterable[tuple[Task, list[Row], Mapping[str, int]]], modes: Iterable[str]) -> list[Item]:
    """Return the items of the given rows, sorted by repeat.

    The mapping of each task has the ids of rows as keys, and the number of repeats of each row as values.
    """
    found = [
        Item(task, row, mode, repeat)
        for task, rows, repeats in tasks
        for mode in modes
        for row in rows
        for repeat in range(repeats[row.id])
    ]
    return sorted(found, key=lambda item: item.repeat)


class Runner:
    """Runner of items. `on_begin` is called with each item, and `on_result` with each written result.

    `backend` runs the items. By default, the items run in this process.
    """

    def __init__(
        self,
        how: HowToAsk,
        open_box: Opener,
        options: RunnerOptions,
        judge: Judge | None = None,
        on_result: Callable[[Result], None] = lambda result: None,
        on_begin: Callable[[Item], None] = lambda item: None,
        backend: Backend | None = None,
    ) -> None:
        self.options, self.judge, self.on_result, self.on_begin = options, judge, on_result, on_begin
        self.open_box = open_box
        self._scoring = Scoring(min(2, max(1, options.workers)))
        self.backend = backend or LocalBackend(
            how, open_box, options.out, options.attempts, self._scoring, reuse=options.reuse
        )

    def open_items(self, items: Iterable[Item]) -> list[Item]:
        """Return the items without a result, with a failed or unscored result, or with the score of an outdated scorer.

        If `retry_errors` is False, items with a failed result are left out.
        """
        results = {result.key: result for result in read_results(self.options.out)}
        return [item for item in items if self._is_open(item, results.get(item.key))]

    def unanswered(self, items: Iterable[Item]) -> list[Item]:
        """Return the open items without a stored answer. For the other open items, only the score is missing."""
        kept = {result.key for result in read_results(self.options.out) if result.error_kind in ANSWERED}
        return [item for item in self.open_items(items) if item.key not in kept]

    def _is_open(self, item: Item, result: Result | None) -> bool:
        if result is None:
            return True
        if result.error_kind:
            return self.options.retry_errors
        if item.task.needs_judge:
            if self.judge is None:
                return False
            if is_to_be_judged(item, result):
                return True
        elif result.score is None:
            return True
        return result.scorer != scorer_digest(item.task, item.row, self.judge)

    async def run(self, items: Iterable[Item]) -> list[Result]:
        """Run the open items, and return their results. Cancelling this coroutine also cancels the running items.

        An open item with a stored answer is only scored. Its result is written, but not returned.

        Raises:
            FatalError: if the benchmark must stop.
        """
        async with self._scoring:
            return await self._run(self.open_items(items))

    async def _run(self, items: list[Item]) -> list[Result]:
        waiting = await self._scored_again(items)
        waiting.reverse()
        results: list[Result] = []

        async def work(backend: Backend) -> None:
            while waiting:
                results.append(await self._do(waiting.pop(), backend))

        workers = min(self.options.workers, len(waiting))
        if not workers:
            return results
        async with self.backend as backend:
            await together(work(backend) for _ in range(workers))
        return results

    async def _check_scorers(self, items: list[Item]) -> None:
        """Check that the scorers work before the model is asked.

        Raises:
            FatalError: if a scorer cannot be loaded.
        """
        files = {item.task.scorer: item.task.name for item in items if item.task.has_own_scorer}
        for scorer, name in files.items():
            if problem := await self._scoring.check(scorer):
                raise FatalError(f"Task {name} cannot be scored by {scorer}: {problem.rstrip('.')}.")

    async def score_again(self, items: list[Item]) -> list[Item]:
        """Score stored answers with the current scorer. Return the items without a usable answer.

        Raises:
            FatalError: if a scorer cannot be loaded, or requests to the judge are impossible.
        """
        async with self._scoring:
            return await self._scored_again(items)

    async def _scored_again(self, items: list[Item]) -> list[Item]:
        await self._check_scorers(items)
        if self.judge is not None and any(item.task.needs_judge for item in items):
            await check_model(self.judge.model)
        before = {result.key: result for result in read_results(self.options.out)}
        waiting = [item for item in reversed(items) if item.key in before]
        rescoring = Rescoring(self._scoring, self.judge, self.open_box, self.options.out)
        done: set[Key] = set()

        async def work() -> None:
            while waiting:
                item = waiting.pop()
                scored = await rescoring.score(item, before[item.key])
                if scored is not None:
                    await asyncio.to_thread(record_result, self.options.out, scored, item.task.scorer)
                    done.add(item.key)
                    self.on_begin(item)
                    self._keep(scored)

        await together(work() for _ in range(min(self.options.workers, len(waiting))))
        return [item for item in items if item.key not in done]

    async def _do(self, item: Item, backend: Backend) -> Result:
        self.on_begin(item)
        result, answer = await backend.attempt(item)
        result = signed(result, item.task, item.row, self.judge)
        try:
            result = await judged(self.judge, item, result, answer)
        except (FatalError, asyncio.CancelledError) as error:  # the answer was paid for, so keep it
            self._keep(unjudged(result, answer, str(error) or "the judge was interrupted"))
            raise
        if item.task.needs_judge:
            await asyncio.to_thread(record_result, self.options.out, result, item.task.scorer)
        self._keep(result)
        return result

    def _keep(self, result: Result) -> None:
        write_result(self.options.out, result)
        self.on_result(result)


async def together(work: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Run all coroutines concurrently, and return their results in the order of the coroutines.

    The first failure cancels the other coroutines, and is raised.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in work]
        return [task.result() for task in tasks]
    except BaseExceptionGroup as group_error:
        first: BaseException = group_error
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from group_error


def image_of(task: Task, row: Row) -> str | None:
    """Return the image of a row's repository: the row's image, or the task's image with the row's id filled in."""
    if named := row.extra.get("image"):
        return str(named)
    if task.image is None or row.extra.get("repository"):
        return None
    return task.image.replace("{id}", row.id.replace("__", "_1776_").lower())


def make_opener(isolation: str = "auto", **options: Any) -> Opener:
    """Return a function that opens sandboxes with `options`. An image from `image_of` replaces the option `image`."""

    def opener(task: Task, row: Row) -> OpeningSandbox:
        image = image_of(task, row)
        own: Mapping[str, Any] = {"image": image} if image else {}
        try:
            return open_sandbox(isolation, **{**options, **own})
        except (ValueError, FileNotFoundError) as error:
            raise InputError(str(error)) from error

    return opener


def how_of(values: Mapping[str, Any]) -> HowToAsk:
    """Return the model and its settings for the values of the options in `MODEL_VALUES`.

    Raises:
        ModelError: if the script does not exist, or an address or key is invalid.
    """
    settings = ModelSettings(**fields_of(values, "settings") | {"extra_body": values["extra_body"] or {}})
    model = make_model(values["model"], api_base=values["api_base"], api_key=values["api_key"])
    return HowToAsk(
        model,
        settings,
        RetryPolicy(**fields_of(values, "retries")),
        reply_tokens=values["max_response_len"],
        save_responses=values["save_litellm_response"],
        mcp=values.get("mcp") or None,
        mcp_allow=tuple(values.get("mcp_allow") or ()),
        **{field: values[name] for field, name in _RUN_OPTIONS.items() if values[name] is not None},
    )


def opener_of(values: Mapping[str, Any]) -> Opener:
    """Return a function that opens sandboxes with the values of the options in `SANDBOX_VALUES`."""
    return make_opener(
        values["isolation"],
        profile=values["profile"],
        image=values["image"],
        network=values["network"],
        **sandbox_options(values),
    )
