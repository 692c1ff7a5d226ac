"""Evaluation of a policy before and after its training, with and without a sandbox, on any benchmark task."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from llm_sandbox_nb.analysis.load import load_runs
from llm_sandbox_nb.benchmark.attempt import HowToAsk
from llm_sandbox_nb.benchmark.data import load_rows
from llm_sandbox_nb.benchmark.digests import check_prompts, check_questions, check_version
from llm_sandbox_nb.benchmark.judge import Judge, JudgeOptions
from llm_sandbox_nb.benchmark.report import item_scores
from llm_sandbox_nb.benchmark.results import Result, ResultsError, cell_folder, read_results
from llm_sandbox_nb.benchmark.results_folder import (
    FolderLock,
    PlannedCell,
    add_to_plan,
    check_config,
    counted_results,
)
from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.runner import Runner, RunnerOptions, make_opener
from llm_sandbox_nb.benchmark.runner import plan as plan_items
from llm_sandbox_nb.benchmark.statistics import Interval, Paired, paired, score_interval
from llm_sandbox_nb.benchmark.task import Task, load_task
from llm_sandbox_nb.formatting import format_percent
from llm_sandbox_nb.model.contract import Model, ModelSettings
from llm_sandbox_nb.model.model_names import make_model
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.training import grpo
from llm_sandbox_nb.training.chat_tokens import ChatTokens
from llm_sandbox_nb.training.config import ConfigError, TrainingConfig, changed_config
from llm_sandbox_nb.training.made_tasks import MADE, held_out
from llm_sandbox_nb.training.policy import (
    LocalGenerator,
    PolicyModel,
    Sampling,
    check_gguf,
    load_policy,
    needs_gguf,
    sampling_problem,
    weights_digest,
)
from llm_sandbox_nb.training.record import START, TrainingRecord
from llm_sandbox_nb.training.rollouts import run_limits, run_options, sandbox_options
from llm_sandbox_nb.training.training_run import task_and_rows

EVALUATION = "evaluation"
BASE, BEFORE, AFTER = "base", "before", "after"
"""Names of the policies: the published model before the warm-up, the policy before the first step, and the trained
policy."""


@dataclass(frozen=True)
class EvaluationPlan:
    """Policies, rows and settings of an evaluation."""

    policies: Mapping[str, str]
    """Paths of the policies, by name: `base`, `before` and `after`."""
    task: Task
    rows: Sequence[Row]
    modes: Sequence[str]
    repeats: int
    config: TrainingConfig
    out: Path
    sampling: Sampling
    judge: JudgeAccess | None = None
    """Judge of the answers, or None for a task that no judge scores."""
    learned_from: bool = False
    """True if the training used the same rows."""
    workers: int = 8


@dataclass(frozen=True)
class JudgeAccess:
    """Model that judges answers, with its address and key."""

    model: str
    api_base: str | None = None
    api_key: str | None = None
    repeats: int = JudgeOptions().repeats

    def make_model(self) -> Model:
        """Return the judge's model. Raise ModelError if the script does not exist, or the address is invalid."""
        return make_model(self.model, api_base=self.api_base, api_key=self.api_key)

    def make_judge(self, folder: Path) -> Judge:
        return Judge(self.make_model(), folder, JudgeOptions(repeats=self.repeats))


@dataclass(frozen=True)
class Cell:
    """Figures of a policy in a mode. Figures of behaviour are means over the runs, or shares of the runs' turns."""

    policy: str
    mode: str
    score: Interval | None
    results: int
    errors: int
    scored: int
    planned: int
    turns: float
    tokens: float
    calls: float
    capabilities: Mapping[str, float]
    verification: float
    structure: float


def plan_evaluation(
    checkpoint: str | Path,
    *,
    modes: Sequence[str] = ("sandbox", "llm"),
    task: str | None = None,
    data: str | None = None,
    rows: int | None = None,
    repeats: int = 1,
    before: str | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    repetition_penalty: float | None = None,
    network: str | None = None,
    judge: JudgeAccess | None = None,
    workers: int = 8,
    out: str | Path | None = None,
) -> EvaluationPlan:
    """Plan `train evaluate` for a training, or for one of its checkpoints.

    Args:
        checkpoint: folder of a training, whose newest policy is evaluated, or folder of one of its checkpoints.
        modes: any of `sandbox`, `sandbox-prompt` and `llm`.
        task, data: benchmark task, and source of its rows. The defaults are the task and the rows of the training. But
            if code makes the rows, as for `ledger`, other rows than those of the training are made.
        rows: maximum number of rows.
        repeats: number of repeats of each row.
        before: policy to compare with. The default is the policy with which the training began.
        temperature, top_p, top_k, repetition_penalty: sampling of replies. The defaults are the training's values.
        network: network of the sandboxes. The default is the training's network.
        judge: judge of the answers, for a task that a judge scores.
        workers: maximum number of items at the same time.
        out: folder of the results. Items that have a result in this folder are not run again.

    Raises:
        ConfigError, ModelError, RecordError: if the training, task, rows or judge do not exist or cannot be used.
    """
    folder = expanded(checkpoint).absolute()
    record = TrainingRecord.around(folder)
    run, config = record.folder, record.config
    after = record.newest_policy() if folder == run else folder
    start = run / START
    begun = before or (str(start) if start.is_dir() else config.model.path)
    if unknown := [mode for mode in modes or ("",) if mode not in ("sandbox", "sandbox-prompt", "llm")]:
        raise ConfigError(f"There is no mode {unknown[0]!r}: the modes are sandbox, sandbox-prompt and llm.")
    for word, number in (("rows", rows), ("repeats", repeats), ("workers", workers)):
        if number is not None and number < 1:
            raise ConfigError(f"The number of {word} has to be at least 1, not {number}.")
    found, given = _task_and_rows(config, task, data, rows)
    if found.needs_judge and judge is None:
        raise ConfigError(
            f"Task {found.name} is scored by a judge: name a model with --judge_model (for example openai/gpt-5)."
        )
    if judge is not None:
        judge.make_model()
    if network is not None:
        config = changed_config(config, {"rollouts.network": network})
    rollouts = config.rollouts
    sampling = Sampling(
        rollouts.temperature if temperature is None else temperature,
        rollouts.top_p if top_p is None else top_p,
        rollouts.top_k if top_k is None else top_k,
        1.0 if repetition_penalty is None else repetition_penalty,
    )
    if problem := sampling_problem(sampling):
        raise ConfigError(f"{problem}.")
    name = "-".join(dict.fromkeys((found.name, after.name)))
    target = expanded(out) if out else run / EVALUATION / name
    policies = {BEFORE: begun, AFTER: str(after)}
    if before is None and config.warm_up.steps and config.model.path:
        policies = {BASE: config.model.path, **policies}
    learned_from = task is None and data is None and config.data.rows not in MADE
    return EvaluationPlan(
        policies, found, given, modes, repeats, config, target, sampling, judge, learned_from, workers
    )


def _task_and_rows(
    config: TrainingConfig, task: str | None, data: str | None, count: int | None
) -> tuple[Task, list[Row]]:
    named = config.data.rows if task is None and data is None else data
    if task is None and (made := MADE.get(named or "")) is not None:
        return made.task(load_task(config.data.task)), held_out(made, count or 64, config)
    if task is None and data is None:
        found, rows = task_and_rows(config)
    else:
        try:
            found = load_task(task or config.data.task)
            rows = load_rows(found, data)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    if config.data.scorer and task is None:
        found = replace(found, scorer=config.data.scorer)
    return found, rows[: count or None]


def evaluate(plan: EvaluationPlan, say: Callable[[str], None] = lambda text: None) -> list[Cell]:
    """Run the items that have no result yet. Return the figures of each policy in each mode.

    Raises:
        ConfigError: if a policy cannot be loaded, or `out` has results of another policy, sampling or data.
        TemplateError: if a policy's chat template cannot be used.
        FatalError: if no sandbox can be opened, or a scorer cannot be loaded.
    """
    grpo.require_packages(changed_config(plan.config, {"generation.engine": "transformers"}))
    for path in filter(needs_gguf, plan.policies.values()):
        check_gguf(path)
    if plan.learned_from:
        say(
            "The policy has learned from these rows: name another task with --task to measure the effect on new rows."
        )
    for name, path in plan.policies.items():
        say(f"{name}: {path}")
        out = plan.out / name
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"Results cannot be written to {out} ({error.strerror or error}): choose another --out."
            ) from error
        try:
            with FolderLock(out):
                check_evaluation(plan, path, out)
                _evaluate_one(plan, name, path)
        except ResultsError as error:
            raise ConfigError(str(error)) from error
    return list(cells(plan))


def check_evaluation(plan: EvaluationPlan, path: str, out: Path) -> None:
    """Check that the results in `out` have the plan's policy, sampling, rows and prompts, and store the plan in `out`.

    Raises:
        ResultsError: if the policy, the sampling, the rows or the prompts have changed.
    """
    rollouts = plan.config.rollouts
    config = {
        "policy": path,
        "weights": weights_digest(path),
        "seed": plan.config.seed,
        **asdict(plan.sampling),
    }
    config |= {"network": rollouts.network, "allow": list(rollouts.allow)}
    check_config(out, config | {"judge_model": plan.judge.model if plan.judge else None})
    task, before, rows = _limited(plan), read_results(out), {row.id: row for row in plan.rows}
    check_questions(out, before, {task.name: (task, rows)})
    check_prompts(out, before, [task])
    kept = {result.key for result in before if not result.error_kind}
    planned = {(task.name, mode, row, n) for mode in plan.modes for row in rows for n in range(plan.repeats)}
    check_version(out, before, planned - kept)
    cells = [PlannedCell(task.name, mode, rows=dict.fromkeys(rows, plan.repeats)) for mode in plan.modes]
    add_to_plan(out, cells, {task.name: list(rows)})


def _limited(plan: EvaluationPlan) -> Task:
    """Return the task with the limits of the training's rollouts."""
    return replace(plan.task, limits=run_limits(plan.config.rollouts))


def _evaluate_one(plan: EvaluationPlan, name: str, path: str) -> None:
    rollouts = plan.config.rollouts
    options = RunnerOptions(plan.out / name, plan.workers)
    items = plan_items([(_limited(plan), list(plan.rows))], plan.modes, plan.repeats)
    config = plan.config
    model, tokenizer = load_policy(path, config.model.dtype)
    with LocalGenerator(model, tokenizer, plan.sampling, config.seed, config.device) as generator:
        policy = PolicyModel(
            f"policy/{plan.config.name}-{name}",
            ChatTokens(tokenizer, in_text=rollouts.calls == "text"),
            generator,
            prompt_limit=rollouts.prompt_tokens,
            completion_limit=rollouts.completion_tokens,
        )
        settings = ModelSettings(max_tokens=rollouts.reply_tokens or rollouts.completion_tokens)
        how = HowToAsk(
            policy,
            settings,
            remind=False,
            **run_options(rollouts),
        )
        opener = make_opener(rollouts.isolation, **sandbox_options(rollouts))
        judge = plan.judge.make_judge(plan.out / name / "judge") if plan.judge else None
        asyncio.run(Runner(how, opener, options, judge).run(items))


def cells(plan: EvaluationPlan) -> Iterator[Cell]:
    for policy in plan.policies:
        results = counted_results(plan.out / policy)
        for mode in plan.modes:
            found = [result for result in results if result.mode == mode and result.task == plan.task.name]
            if found:
                yield _cell(plan, policy, mode, found)


def _cell(plan: EvaluationPlan, policy: str, mode: str, results: Sequence[Result]) -> Cell:
    from llm_sandbox_nb.analysis.capability_rules import CAPABILITIES
    from llm_sandbox_nb.analysis.frames import run_row

    good = [result for result in results if not result.error_kind]
    folder = cell_folder(plan.out / policy, plan.task.name, mode)
    rows = [run_row(run) for run in load_runs([folder / "runs"]).runs]
    turns = sum(row["turns"] for row in rows) or 1
    return Cell(
        policy,
        mode,
        score_interval(list(item_scores(results).values())),
        len(results),
        len(results) - len(good),
        sum(result.score is not None for result in good),
        len(plan.rows) * plan.repeats,
        _mean([result.turns for result in good]),
        _mean([result.model_tokens for result in good]),
        _mean([row["calls"] for row in rows]),
        {name: sum(row[f"{name}_rate"] * row["turns"] for row in rows) / turns for name in CAPABILITIES},
        _mean([row["verification"] for row in rows]),
        _mean([row["structure"] for row in rows]),
    )


def differences(plan: EvaluationPlan) -> Iterator[tuple[str, str, Paired]]:
    """Yield how the score changes from each policy to the next, in each mode.

    Each yielded tuple has a text such as `after - before`, the mode, and the comparison over the rows that both
    policies have scored.
    """
    scores = {
        (policy, mode): item_scores(
            result
            for result in counted_results(plan.out / policy)
            if result.mode == mode and result.task == plan.task.name
        )
        for policy in plan.policies
        for mode in plan.modes
    }
    for first, last in itertools.pairwise(plan.policies):
        for mode in plan.modes:
            found = paired(scores[last, mode], scores[first, mode])
            if found is not None:
                yield f"{last} - {first}", mode, found


def evaluation_text(plan: EvaluationPlan) -> Iterator[str]:
    heads = ("policy", "mode", "score (95 %)", "turns", "calls", "tokens", "external", "files", "computation",
             "verification", "structure", "errors", "scored")  # fmt: skip
    yield "  ".join(head.ljust(width) for head, width in zip(heads, _COLUMN_WIDTHS, strict=True)).rstrip()
    for cell in cells(plan):
        shown = (
            cell.policy,
            cell.mode,
            _interval(cell.score),
            *(f"{value:.1f}" for value in (cell.turns, cell.calls, cell.tokens)),
            *(f"{format_percent(value)}%" for value in cell.capabilities.values()),
            *(f"{value:.2f}" for value in (cell.verification, cell.structure)),
            str(cell.errors),
            f"{cell.scored} of {cell.planned}",
        )
        yield "  ".join(text.ljust(width) for text, width in zip(shown, _COLUMN_WIDTHS, strict=True)).rstrip()
    for policies, mode, change in differences(plan):
        chance = "" if change.p is None else f", p {change.p:.2g} (McNemar)"
        yield (
            f"{policies}, {mode}: {_interval(change.delta)} over {change.items} rows; "
            f"{change.better} better, {change.worse} worse{chance}"
        )


_COLUMN_WIDTHS = (6, 14, 22, 5, 5, 6, 8, 6, 11, 12, 9, 6, 0)


def _interval(found: Interval | None) -> str:
    if found is None:
        return "none"
    if found.low is None or found.high is None:
        return f"{found.mean:.3f} [-]"
    return f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
