"""The runner: all items of a benchmark, many at once in one process, each result on disk when it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.benchmark.attempt import HowToAsk, Opener
from llm_sandbox_nb.benchmark.item_pipeline import (
    Backend,
    FatalError,
    Item,
    LocalBackend,
    check_model,
    is_to_be_judged,
    judged,
    scored_again,
    unjudged,
)
from llm_sandbox_nb.benchmark.judge import Judge
from llm_sandbox_nb.benchmark.results import Key, Result, read_results, write_result
from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.score_event import record_result
from llm_sandbox_nb.benchmark.scoring_pool import Scoring
from llm_sandbox_nb.benchmark.task import Task
from llm_sandbox_nb.model.contract import ModelSettings
from llm_sandbox_nb.model.model_names import make_model
from llm_sandbox_nb.model.retries import RetryPolicy
from llm_sandbox_nb.sandbox.contract import Sandbox

MODEL_VALUES = (
    "model", "api_base", "api_key", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
    "max_tokens_per_call", "model_timeout", "model_wait", "extra_body", "command_timeout", "max_response_len",
    "save_litellm_response", "same_failures", "tool_calls",
)  # fmt: skip
SANDBOX_VALUES = ("isolation", "profile", "image", "network", "ca_bundle", "index_url", "proxy")


@dataclass(frozen=True)
class RunnerOptions:
    """`attempts`: how often one start of the runner tries an item that fails."""

    out: Path
    workers: int = 8
    attempts: int = 2
    retry_errors: bool = True
    """Whether items that failed in an earlier start run again."""


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
    """Runs items. Calls `on_begin` with each item, and `on_result` with its result after it was written.

    `backend` runs the items; the default is this process.
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
        scorers = min(2, max(1, options.workers))
        self.backend = backend or LocalBackend(how, open_box, options.out, options.attempts, scorers)

    def open_items(self, items: Iterable[Item]) -> list[Item]:
        """The items without a result, with a failed one, or with one that waits for a judge that is now available."""
        results = {result.key: result for result in read_results(self.options.out)}
        return [item for item in items if self._is_open(item, results.get(item.key))]

    def _is_open(self, item: Item, result: Result | None) -> bool:
        if result is None:
            return True
        if result.error_kind:
            return self.options.retry_errors
        return self.judge is not None and is_to_be_judged(item, result)

    async def run(self, items: Iterable[Item]) -> list[Result]:
        """Run the items that are open. When cancelled, it ends the running ones in good order.

        Raises:
            FatalError: the benchmark must stop.
        """
        waiting = self.open_items(items)
        async with Scoring() as scoring:
            await self._check_scorers(waiting, scoring)
            if self.judge is not None and any(item.task.scorer == "judge" for item in waiting):
                await check_model(self.judge.model)
            waiting = await self._scored_again(waiting, scoring)
        waiting.reverse()
        results: list[Result] = []

        async def work(backend: Backend) -> None:
            while waiting:
                results.append(await self._do(waiting.pop(), backend))

        workers = min(self.options.workers, len(waiting))
        if not workers:
            return results
        async with self.backend as backend:
            await _together(work(backend) for _ in range(workers))
        return results

    async def _check_scorers(self, items: list[Item], scoring: Scoring) -> None:
        """Check the scorers before the model is asked: without one that loads, all answers would be worthless.

        Raises:
            FatalError: a scorer cannot be loaded.
        """
        files = {item.task.scorer: item.task.name for item in items if item.task.has_own_scorer}
        for scorer, name in files.items():
            if problem := await scoring.check(scorer):
                raise FatalError(f"Task {name} cannot be scored: {problem.rstrip('.')}; correct {scorer}.")

    async def _scored_again(self, items: list[Item], scoring: Scoring) -> list[Item]:
        """Score answers that an earlier start left without a score; the items that are still open.

        Raises:
            FatalError: the judge cannot be asked at all.
        """
        before = {result.key: result for result in read_results(self.options.out)}
        waiting = [item for item in reversed(items) if item.key in before]
        done: set[Key] = set()

        async def work() -> None:
            while waiting:
                item = waiting.pop()
                scored = await scored_again(scoring, self.judge, item, before[item.key], self.options.out)
                if scored is not None:
                    await asyncio.to_thread(record_result, self.options.out, scored, item.task.scorer)
                    done.add(item.key)
                    self.on_begin(item)
                    self._keep(scored)

        await _together(work() for _ in range(min(self.options.workers, len(waiting))))
        return [item for item in items if item.key not in done]

    async def _do(self, item: Item, backend: Backend) -> Result:
        self.on_begin(item)
        result, answer = await backend.attempt(item)
        result = replace(result, row=item.row.digest)
        try:
            result = await judged(self.judge, item, result, answer)
        except (FatalError, asyncio.CancelledError) as error:  # the answer was paid for: keep it
            self._keep(unjudged(result, answer, str(error) or "the judge was interrupted"))
            raise
        if item.task.scorer == "judge":
            await asyncio.to_thread(record_result, self.options.out, result, item.task.scorer)
        self._keep(result)
        return result

    def _keep(self, result: Result) -> None:
        write_result(self.options.out, result)
        self.on_result(result)


async def _together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all at once; the first failure ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)
    except BaseExceptionGroup as group_error:
        raise _first(group_error) from group_error


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure that ended the group."""
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
    from llm_sandbox_nb.sandbox.open import open_sandbox

    def opener(task: Task, row: Row) -> AbstractAsyncContextManager[Sandbox]:
        own: Mapping[str, Any] = {"image": image} if (image := image_of(task, row)) else {}
        try:
            return open_sandbox(isolation, **{**options, **own})
        except (ValueError, FileNotFoundError) as error:
            raise InputError(str(error)) from error

    return opener


def how_of(values: Mapping[str, Any]) -> HowToAsk:
    """The model that the values of `MODEL_VALUES` name, and how to ask it.

    Raises:
        ModelError: there is no such script, or an address or key is invalid.
    """
    same = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    settings = ModelSettings(
        **{name: values[name] for name in same},
        max_tokens=values["max_tokens_per_call"],
        timeout=values["model_timeout"],
        extra_body=values["extra_body"] or {},
    )
    model = make_model(values["model"], api_base=values["api_base"], api_key=values["api_key"])
    return HowToAsk(
        model,
        settings,
        RetryPolicy(loading_wait=values["model_wait"]),
        command_timeout=values["command_timeout"],
        same_failures=values["same_failures"],
        tool_calls=values["tool_calls"],
        reply_tokens=values["max_response_len"],
        save_responses=values["save_litellm_response"],
    )


def opener_of(values: Mapping[str, Any]) -> Opener:
    """Opens the sandboxes that the values of `SANDBOX_VALUES` ask for."""
    site = {name: values[name] for name in ("ca_bundle", "index_url", "proxy") if values[name]}
    return make_opener(
        values["isolation"],
        profile=values["profile"],
        image=values["image"],
        network=values["network"],
        **site,
    )
