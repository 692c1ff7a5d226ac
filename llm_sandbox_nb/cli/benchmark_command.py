"""`llm-sandbox-nb benchmark list | run | report`."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.cli.benchmark_options import BENCHMARK_OPTIONS
from llm_sandbox_nb.cli.errors import ENDED_WELL, FAILED, INTERRUPTED, MODEL_ERROR, UsageError
from llm_sandbox_nb.cli.settings import converted, resolve

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.limits import RunLimits
    from llm_sandbox_nb.agent.model import Model
    from llm_sandbox_nb.benchmark.attempt import HowToAsk
    from llm_sandbox_nb.benchmark.judge import Judge
    from llm_sandbox_nb.benchmark.results import Result
    from llm_sandbox_nb.benchmark.runner import Item, Runner


def benchmark_command(arguments: argparse.Namespace) -> int:
    """List the tasks, run some, or report on results.

    Raises:
        UsageError: something named is not there or cannot be understood; nothing was started.
    """
    if arguments.action == "list":
        return _list()
    if arguments.action == "report":
        return _report(Path(arguments.results), arguments.html)
    return _run(arguments)


def _list() -> int:
    from llm_sandbox_nb.benchmark.task import load_task, task_names

    for name in task_names():
        print(f"{name:18} {load_task(name).description}")
    return ENDED_WELL


def _report(out: Path, html: str | None) -> int:
    from llm_sandbox_nb.benchmark.report import as_html, as_text, summary
    from llm_sandbox_nb.benchmark.results import ResultsError

    try:
        found = summary(out)
        print(as_text(found))
        if html is not None:
            path = Path(html)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(as_html(out, found), "utf-8", errors="replace", newline="\n")
            print(path)
    except (ResultsError, ImportError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"The report cannot be written to {html}: {error.strerror or error}.") from error
    return ENDED_WELL


def _run(arguments: argparse.Namespace) -> int:
    from llm_sandbox_nb.agent.model import ModelError
    from llm_sandbox_nb.benchmark.runner import FatalError

    flags = vars(arguments)
    values = resolve({**flags, "llm_name": flags["model"] or flags["llm_name"]}, os.environ)
    values |= {option.name: _value(option, flags) for option in BENCHMARK_OPTIONS}
    if not values["llm_name"]:
        raise UsageError("There is no model: name one with --model (for example openai/gpt-5) or $LLM_NAME.")
    out = Path(values["out"])
    try:
        items, runner = _prepare(arguments.tasks, flags, values, out)
    except (ValueError, OSError, ModelError) as error:
        raise UsageError(str(error)) from error
    progress = Progress(len(items), len(runner.open_items(items)))
    runner.on_result = progress
    try:
        asyncio.run(_until_signal(runner, items))
    except FatalError as error:
        print(f"{error}", file=sys.stderr)
        print(f"Stopped; results so far are in {out}.", file=sys.stderr)
        return MODEL_ERROR
    except (KeyboardInterrupt, asyncio.CancelledError):
        print(
            f"Interrupted; results so far are in {out}. The same command goes on from there.", file=sys.stderr
        )
        return INTERRUPTED
    finally:
        progress.close()
    return _tell(out, items)


def _tell(out: Path, items: list[Item]) -> int:
    from llm_sandbox_nb.benchmark.report import as_text, summary
    from llm_sandbox_nb.benchmark.results import read_results

    print(as_text(summary(out)))
    print(out)
    wanted = {item.key for item in items}
    failed = any(result.error_kind for result in read_results(out) if result.key in wanted)
    return FAILED if failed else ENDED_WELL


def _value(option: Any, flags: Mapping[str, Any]) -> Any:
    if flags.get(option.name) is not None:
        return converted(option, flags[option.name], f"--{option.name}")
    for variable in option.environment:
        if os.environ.get(variable):
            return converted(option, os.environ[variable], f"environment variable {variable}")
    return option.default


def _prepare(
    names: list[str], flags: Mapping[str, Any], values: Mapping[str, Any], out: Path
) -> tuple[list[Item], Runner]:
    from llm_sandbox_nb.benchmark.data import load_rows
    from llm_sandbox_nb.benchmark.results import check_config
    from llm_sandbox_nb.benchmark.runner import Runner, RunnerOptions, make_opener, plan
    from llm_sandbox_nb.benchmark.task import TaskError, load_task

    tasks = [load_task(name) for name in names]
    if len({task.name for task in tasks}) < len(tasks):
        raise TaskError(
            "Two of the tasks have the same name: give each folder's task.yaml a name of its own."
        )
    tasks = [replace(task, limits=_limits(task.limits, flags, values)) for task in tasks]
    rows = [load_rows(task, values["data"])[values["start_id"] : values["end_id"]] for task in tasks]
    contexts = {"files": "sandbox", "prompt": "sandbox-prompt"}
    modes = [contexts[one] for one in values["context"]] if "sandbox" in values["mode"] else []
    modes += ["llm"] if "llm" in values["mode"] else []
    items = plan(zip(tasks, rows, strict=True), modes, values["repeats"])
    how = _how(values)
    check_config(out, _config(values, flags))
    site = {name: values[name] for name in ("ca_bundle", "index_url", "proxy") if values[name]}
    opener = make_opener(
        values["isolation"],
        profile=values["profile"],
        image=values["docker_image"],
        network=values["network"],
        **site,
    )
    options = RunnerOptions(out, values["workers"], values["attempts"], values["retry_errors"])
    return items, Runner(how, opener, options, _judge(values, out))


def _limits(limits: RunLimits, flags: Mapping[str, Any], values: Mapping[str, Any]) -> RunLimits:
    """The task's limits, but for those that were given on the command line."""
    names = {"max_steps": "steps", "max_token_limit": "tokens", "budget": "cost", "time": "time"}
    return replace(
        limits, **{field: values[flag] for flag, field in names.items() if flags.get(flag) is not None}
    )


def _how(values: Mapping[str, Any]) -> HowToAsk:
    from llm_sandbox_nb.agent.model import ModelSettings
    from llm_sandbox_nb.benchmark.attempt import HowToAsk

    same = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    settings = ModelSettings(
        **{name: values[name] for name in same},
        max_tokens=values["max_tokens_per_call"],
        extra_body=values["extra_body"] or {},
    )
    return HowToAsk(_model(values["llm_name"], values["llm_base_url"], values["api_key"]), settings)


def _model(name: str, address: str | None, key: str | None) -> Model:
    from llm_sandbox_nb.agent.model_litellm import make_model

    return make_model(name, api_base=address, api_key=key)


def _judge(values: Mapping[str, Any], out: Path) -> Judge | None:
    if not values["judge_model"]:
        return None
    from llm_sandbox_nb.benchmark.judge import Judge, JudgeOptions

    model = _model(
        values["judge_model"], values["judge_base_url"] or values["llm_base_url"], values["api_key"]
    )
    return Judge(model, out / "judge", JudgeOptions(repeats=values["judge_repeats"]))


def _config(values: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """What results in one folder have to have in common."""
    same = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens_per_call", "data",
            "extra_body", "docker_image", "network")  # fmt: skip
    config: dict[str, Any] = {"model": values["llm_name"], "judge_model": values["judge_model"]}
    config |= {name: values[name] for name in same}
    config |= {
        name: values[name] for name in ("max_steps", "max_token_limit", "budget", "time") if flags.get(name)
    }
    return config


async def _until_signal(runner: Runner, items: list[Item]) -> list[Result]:
    """Run; SIGTERM and SIGHUP end it in good order, as Ctrl-C does."""
    if task := asyncio.current_task():
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await runner.run(items)


class Progress:
    """How far it is: one line that is rewritten on a terminal, one line every half minute elsewhere."""

    def __init__(self, total: int, left: int) -> None:
        self.total, self.done, self.errors = total, total - left, 0
        self.score, self.scored = 0.0, 0
        self._terminal = sys.stderr.isatty()
        self._started = self._told = time.monotonic()
        self._first = self.done
        if self.done:
            print(f"{self.done} of {total} are done already.", file=sys.stderr)

    def __call__(self, result: Result) -> None:
        """One more result."""
        self.done += 1
        self.errors += bool(result.error_kind)
        if result.score is not None:
            self.score, self.scored = self.score + result.score, self.scored + 1
        now = time.monotonic()
        if self._terminal or now - self._told >= 30 or self.done == self.total:
            self._told = now
            print(self._line(now), end="\r" if self._terminal else "\n", file=sys.stderr, flush=True)

    def _line(self, now: float) -> str:
        rate = 60 * (self.done - self._first) / max(now - self._started, 1e-3)
        score = f", score {100 * self.score / self.scored:.1f}" if self.scored else ""
        errors = f", {self.errors} errors" if self.errors else ""
        return f"{self.done}/{self.total}{score}{errors}, {rate:.1f} a minute "

    def close(self) -> None:
        """Leave the line."""
        if self._terminal:
            print(file=sys.stderr)
