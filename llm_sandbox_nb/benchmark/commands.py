"""Actions of `benchmark list | run | report | score | compare`, for the terminal and for notebook cells."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from llm_sandbox_nb.agent.mcp_client.configuration import server_configs
from llm_sandbox_nb.agent.original_prompts import ORIGINAL, as_original, original_folder
from llm_sandbox_nb.benchmark.attempt import HowToAsk
from llm_sandbox_nb.benchmark.data import HUB, SAMPLE, load_rows
from llm_sandbox_nb.benchmark.digests import check_prompts, check_questions, check_version
from llm_sandbox_nb.benchmark.item_pipeline import Item
from llm_sandbox_nb.benchmark.judge import Judge, JudgeOptions
from llm_sandbox_nb.benchmark.options import BENCHMARK_OPTIONS, NOT_COMPARED, OPTIONS_OF_RUN
from llm_sandbox_nb.benchmark.ray_backend import RayBackend
from llm_sandbox_nb.benchmark.report import as_html, compare_folders, summary
from llm_sandbox_nb.benchmark.results import Key, ResultsError, read_results
from llm_sandbox_nb.benchmark.results_folder import (
    FolderLock,
    PlannedCell,
    add_to_plan,
    change_judge,
    check_config,
    read_config,
    read_plan,
)
from llm_sandbox_nb.benchmark.rows import Row, repeats_of_rows
from llm_sandbox_nb.benchmark.runner import (
    SAMPLING_VALUES,
    Runner,
    RunnerOptions,
    how_of,
    items_of,
    opener_of,
)
from llm_sandbox_nb.benchmark.task import TASKS, Task, TaskError, load_task, task_names
from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.model_names import make_model, typed_key_of
from llm_sandbox_nb.model.scripted import Script, ScriptedModel
from llm_sandbox_nb.options.table import LIMIT_OPTIONS, Option, UsageError
from llm_sandbox_nb.options.values import converted, fields_of, resolve
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.sandbox.network.policy import checked_entries
from llm_sandbox_nb.trajectory.whole_file import write_whole


def list_text() -> str:
    """Return a line for each packaged task."""
    return "\n".join(f"{name:18} {load_task(name).description}" for name in task_names())


@dataclass(frozen=True)
class BenchmarkReport:
    """Report of a benchmark: the content, and the path of the HTML page. `page` is None if no page was written."""

    found: dict[str, Any]
    page: Path | None = None


def make_report(out: Path, html: str | None = None) -> BenchmarkReport:
    """Make a report of the results in the folder `out`. If `html` is a path, write the report there as an HTML page.

    Raises:
        UsageError: if there are no results, a package is missing, or the file cannot be written.
    """
    try:
        found = summary(out)
    except (ResultsError, OSError) as error:
        raise UsageError(_unreadable(out, error)) from error
    except ImportError as error:
        raise UsageError(_missing_package(error)) from error
    if html is None:
        return BenchmarkReport(found)
    try:
        page = as_html(out, found).encode("utf-8", "replace")
        return BenchmarkReport(found, write_whole(expanded(html), page, follow_links=True))
    except ImportError as error:
        raise UsageError(_missing_package(error)) from error
    except OSError as error:
        raise UsageError(
            f"The report cannot be written to {html} ({error.strerror or error}): choose another file."
        ) from error


def _missing_package(error: ImportError) -> str:
    # An ImportError without a name comes from this package, and its message is a whole sentence.
    return (
        f"Reports need {error.name}: run `pip install 'llm-sandbox-nb[benchmark]'`."
        if error.name
        else str(error)
    )


def _unreadable(out: Path, error: Exception) -> str:
    if isinstance(error, OSError):
        place = error.filename or out
        return f"The results in {place} cannot be read ({error.strerror or error}): correct the file, or remove it."
    return str(error)


def make_comparison(out: Path, other: Path) -> dict[str, Any]:
    """Compare the results of two folders.

    Raises:
        UsageError: if a folder has no results, or the folders have no scored item in common.
    """
    try:
        return compare_folders(expanded(out), expanded(other))
    except (ResultsError, OSError) as error:
        raise UsageError(_unreadable(out, error)) from error
    except ImportError as error:
        raise UsageError(_missing_package(error)) from error


@dataclass(frozen=True)
class Prepared:
    """Benchmark that is ready to begin. Its folder is locked until the end of the `with` block."""

    items: list[Item]
    runner: Runner
    out: Path
    model: str
    scripted: bool
    lock: FolderLock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.lock.release()


def prepare(names: list[str], flags: Mapping[str, Any], environment: Mapping[str, str]) -> Prepared:
    """Prepare a benchmark: read tasks and data, check all values, lock the folder, store the plan, make the runner.

    No item is run yet.

    Raises:
        UsageError: if a name or value is missing or wrong.
    """
    names = [*names, *(flags.get("more_tasks") or ())]
    if not names:
        raise UsageError(
            "There is no task: name one, as in `benchmark run math`; `benchmark list` lists all tasks."
        )
    values = option_values(flags, environment)
    if not values["model"]:
        raise UsageError("There is no model: name one with --model (for example openai/gpt-5) or $LLM_NAME.")
    values["judge_api_key"] = _judge_key(values, flags, environment)
    if not (flags.get("api_key") or flags.get("api_key_env")):
        values["api_key"] = typed_key_of(values["model"], values["api_base"]) or values["api_key"]
    try:
        return _prepared_from(names, flags, values)
    except (ValueError, OSError, ModelError) as error:
        raise UsageError(str(error)) from error


def prepare_scoring(out: Path, flags: Mapping[str, Any], environment: Mapping[str, str]) -> Prepared:
    """Prepare to score the answers in the folder `out` again: lock the folder, and make the runner.

    Raises:
        UsageError: if the folder has no plan of a benchmark, or a name or value is wrong.
    """
    values = option_values(flags, environment)
    try:
        return _prepared_to_score(expanded(out), flags, environment, values)
    except (ValueError, OSError, ModelError) as error:
        raise UsageError(str(error)) from error


def _prepared_to_score(
    out: Path, flags: Mapping[str, Any], environment: Mapping[str, str], values: dict[str, Any]
) -> Prepared:
    plan = read_plan(out) if out.is_dir() else []
    if not plan:
        raise ResultsError(
            f"{out} has no plan of tasks and results: give the --out folder of `benchmark run`."
        )
    values["judge_model"] = values["judge_model"] or read_config(out).get("judge_model")
    values["judge_api_key"] = _judge_key(values, flags, environment)
    known = {}
    for cell in plan:
        if cell.task not in known:
            task = load_task(cell.source)
            known[cell.task] = task, {row.id: row for row in load_rows(task, values["data"] or cell.data)}
    _require_judge([task for task, _ in known.values()], values)
    lock = FolderLock(out)
    try:
        before = read_results(out)
        check_questions(out, before, known)
        add_to_plan(out, (), {name: list(rows) for name, (_, rows) in known.items()})
        planned = {
            (cell.task, cell.mode, identity, repeat)
            for cell in read_plan(out)
            for identity, repeats in cell.rows.items()
            for repeat in range(repeats)
        }
        items = [
            Item(known[result.task][0], known[result.task][1][result.item], result.mode, result.repeat)
            for result in before
            if result.key in planned
        ]
        change_judge(out, values["judge_model"])
        options = RunnerOptions(out, values["workers"])
        nobody = HowToAsk(ScriptedModel("nobody", Script(turns=[])))
        runner = Runner(nobody, opener_of(values), options, _judge(values, out))
    except BaseException:
        lock.release()
        raise
    return Prepared(items, runner, out, str(read_config(out).get("model", "")), False, lock)


def _require_judge(tasks: Iterable[Task], values: Mapping[str, Any]) -> None:
    if not values["judge_model"] and (judged := [task.name for task in tasks if task.needs_judge]):
        raise TaskError(
            f"Task {judged[0]} is scored by a judge: name a model with --judge_model (for example openai/gpt-5)."
        )


def option_values(flags: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of all options, from flags, environment, settings files or defaults."""
    # `resolve` must not see these options, because `--context` has another meaning for a single run.
    own = {option.name for option in BENCHMARK_OPTIONS}
    values = resolve({name: value for name, value in flags.items() if name not in own}, environment)
    # Limits in a settings file are for single runs. A benchmark uses the task's limits, unless a flag replaces them.
    values |= {option.name: option.default for option in LIMIT_OPTIONS if flags.get(option.name) is None}
    return values | {option.name: _value(option, flags, environment) for option in BENCHMARK_OPTIONS}


def _judge_key(
    values: Mapping[str, Any], flags: Mapping[str, Any], environment: Mapping[str, str]
) -> str | None:
    """Return the API key for the judge's provider. The places to look for the key are the same as for a model's key."""
    judge = values["judge_model"]
    if not judge:
        return None
    if not (flags.get("api_key") or flags.get("api_key_env")) and (
        typed := typed_key_of(judge, values["judge_base_url"] or values["api_base"])
    ):
        return typed
    key: str | None = option_values({**flags, "model": judge}, environment)["api_key"]
    return key


def unscored_keys(made: Prepared) -> set[Key]:
    """Return the keys of the items without a score, because they failed, have no verdict, or are not done yet."""
    scored = {
        result.key for result in read_results(made.out) if result.score is not None and not result.error_kind
    }
    return {item.key for item in made.items} - scored


def _value(option: Any, flags: Mapping[str, Any], environment: Mapping[str, str]) -> Any:
    if flags.get(option.name) is not None:
        return converted(option, flags[option.name], f"--{option.name}")
    for variable in option.environment:
        if environment.get(variable):
            return converted(option, environment[variable], f"environment variable {variable}")
    return option.default


def _prepared_from(names: list[str], flags: Mapping[str, Any], values: Mapping[str, Any]) -> Prepared:
    tasks = _tasks_of(names, flags, values)
    loaded = [load_rows(task, values["data"]) for task in tasks]
    selected = _selected_rows(loaded, values["start_id"], values["end_id"])
    repeats = [
        repeats_of_rows(rows, values["repeats"] or task.repeats)
        for task, rows in zip(tasks, loaded, strict=True)
    ]
    contexts = {"files": "sandbox", "prompt": "sandbox-prompt"}
    modes = [contexts[name] for name in values["context"]] if "sandbox" in values["mode"] else []
    modes += ["llm"] if "llm" in values["mode"] else []
    items = items_of(zip(tasks, selected, repeats, strict=True), modes)
    how, out = how_of(values), expanded(values["out"])
    reuse = not values["fresh_sandboxes"]
    options = RunnerOptions(out, values["workers"], values["attempts"], values["retry_errors"], reuse=reuse)
    backend = None
    if values["ray"]:
        backend = RayBackend(values["ray"], values, options)
    _check_out(out)
    lock = FolderLock(out)
    try:
        check_config(out, folder_config(values, flags))
        before = read_results(out)
        known = {
            task.name: (task, {row.id: row for row in rows}) for task, rows in zip(tasks, loaded, strict=True)
        }
        check_questions(out, before, known)
        check_prompts(out, before, tasks)
        runner = Runner(how, opener_of(values), options, _judge(values, out), backend=backend)
        check_version(out, before, runner.unanswered(items))
        data = data_source(values["data"]) if values["data"] else None
        cells = [
            PlannedCell(task.name, mode, task_source(task), data, {row.id: often[row.id] for row in rows})
            for task, rows, often in zip(tasks, selected, repeats, strict=True)
            for mode in modes
        ]
        add_to_plan(out, cells, {name: list(rows) for name, (_, rows) in known.items()})
    except BaseException:
        lock.release()
        raise
    return Prepared(items, runner, out, how.model.name, how.model.scripted, lock)


def _tasks_of(names: list[str], flags: Mapping[str, Any], values: Mapping[str, Any]) -> list[Task]:
    tasks = [load_task(name) for name in names]
    if len({task.name for task in tasks}) < len(tasks):
        raise TaskError(
            "Two of the tasks have the same name: give each folder's task.yaml a name of its own."
        )
    if values["prompts"] == "original":
        tasks = [_with_original_prompts(task) for task in tasks]
    typed = {name: value for name, value in values.items() if flags.get(name) is not None}
    given = fields_of(typed, "limits")
    tasks = [replace(task, limits=replace(task.limits, **given)) for task in tasks]
    _require_judge(tasks, values)
    return tasks


def _with_original_prompts(task: Task) -> Task:
    """Return the task with the prompts of the paper's package, for runs in a sandbox and for single replies.

    Raises:
        InputError: if the paper's package is not installed.
        TaskError: if the paper's package does not have the task.
    """
    tasks = original_folder() / "benchmark"
    if task.folder.parent != TASKS.resolve() or not (tasks / task.name / "config.yaml").is_file():
        known = ", ".join(sorted(path.parent.name for path in tasks.glob("*/config.yaml")))
        raise TaskError(f"{ORIGINAL} has no prompts for the task {task.name}: it has {known}.")
    original = load_task(str(tasks / task.name))
    return replace(task, prompts=as_original(original.prompts), asker=original.asker)


def _selected_rows(loaded: list[list[Row]], start: int, end: int | None) -> list[list[Row]]:
    selected = [rows[start:end] for rows in loaded]
    if not any(selected):
        asked = f"--start_id {start}" if end is None else f"--start_id {start} --end_id {end}"
        raise TaskError(
            f"{asked} selects no row: there are {max(map(len, loaded))} rows, and the first row has the number 0."
        )
    return selected


def task_source(task: Task) -> str:
    """Return a text with which `load_task` finds the task: a packaged task's name, or another task's folder."""
    return task.folder.name if task.folder.parent == TASKS.resolve() else str(task.folder)


def data_source(data: str) -> str:
    """Return the value of `--data`. If the value is a path, make it absolute."""
    return data if data == SAMPLE or data.startswith(HUB) else str(expanded(data).absolute())


def _check_out(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise UsageError(
            f"Results cannot be written to {out} ({error.strerror or error}): choose another --out."
        ) from error


def _judge(values: Mapping[str, Any], out: Path) -> Judge | None:
    if not values["judge_model"]:
        return None
    address = values["judge_base_url"] or values["api_base"]
    model = make_model(values["judge_model"], api_base=address, api_key=values["judge_api_key"])
    return Judge(model, out / "judge", JudgeOptions(repeats=values["judge_repeats"]))


_KEYS = {"image": "docker_image", "steps": "max_steps", "tokens": "max_token_limit"}
"""Keys of `config.json` that differ from the option's name."""
_ALWAYS_WRITTEN = (
    *("model", "judge_model", "max_tokens_per_call", "data", "extra_body", "network", "image"),
    *SAMPLING_VALUES,
)
"""Options that `config.json` holds even with their default values, because the first folders hold them."""
_WRITTEN_IF_GIVEN = frozenset(
    option.name
    for option in LIMIT_OPTIONS
    if option.sets.startswith("limits.") or option.name == "command_timeout"
)
"""Limits that a flag sets. Even a flag with the default value is written, because it replaces the task's limit."""


def folder_config(values: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that must be equal for all results in one folder: all but those in `NOT_COMPARED`."""
    compared = {**values, "mcp": [server.name for server in server_configs(values["mcp"])]}
    compared |= {"allow": sorted(checked_entries(values["allow"])), "mcp_allow": sorted(values["mcp_allow"])}

    def is_written(option: Option) -> bool:
        if option.name in _WRITTEN_IF_GIVEN:
            return bool(flags.get(option.name))
        return option.name in _ALWAYS_WRITTEN or compared[option.name] != option.default

    return {
        _KEYS.get(option.name, option.name): compared[option.name]
        for option in OPTIONS_OF_RUN
        if option.name not in NOT_COMPARED and is_written(option)
    }
