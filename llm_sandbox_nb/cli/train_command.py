"""The command `llm-sandbox-nb train`, with the actions run, watch, evaluate and data."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.cli import ENDED_WELL, FAILED, INTERRUPTED
from llm_sandbox_nb.cli.printer import harmless
from llm_sandbox_nb.options.table import UsageError
from llm_sandbox_nb.options.values import converted, resolve
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.training.options import JUDGE_REPEATS, config_of, watch_lines

if TYPE_CHECKING:
    from llm_sandbox_nb.training.evaluation import JudgeAccess


def train_command(arguments: argparse.Namespace) -> int:
    """Train a policy, show a training, evaluate a trained policy, or build training data.

    Raises:
        UsageError: if a named file or option is missing or invalid; nothing was started.
    """
    if arguments.action == "watch":
        return _watch(vars(arguments))
    if arguments.action == "evaluate":
        return _evaluate(vars(arguments))
    if arguments.action == "data":
        return _data(vars(arguments))
    return _run(vars(arguments))


def _run(arguments: Mapping[str, Any]) -> int:
    from llm_sandbox_nb.training.chat_tokens import TemplateError
    from llm_sandbox_nb.training.config import ConfigError
    from llm_sandbox_nb.training.grpo import MissingPackageError
    from llm_sandbox_nb.training.record import RecordError
    from llm_sandbox_nb.training.rollouts import RolloutError
    from llm_sandbox_nb.training.training_run import TrainingRun
    from llm_sandbox_nb.training.watch import heading, step_line

    config, folder = config_of(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def say(text: str) -> None:
        print(harmless(text), file=sys.stderr, flush=True)

    try:
        training = TrainingRun(config, folder, lambda figures: print(step_line(figures), flush=True), say)
        print(heading(), flush=True)
        end = training.run()
    except (ConfigError, MissingPackageError, RecordError, TemplateError) as error:
        raise UsageError(str(error)) from error
    except RolloutError as error:
        print(harmless(str(error)), file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print(
            f"Interrupted; the same command resumes after the last checkpoint in {folder}.", file=sys.stderr
        )
        return INTERRUPTED
    print(end)
    return ENDED_WELL


def _watch(arguments: Mapping[str, Any]) -> int:
    from llm_sandbox_nb.training.record import TrainingRecord
    from llm_sandbox_nb.training.watch import follow, is_over

    lines = watch_lines(arguments)
    record = TrainingRecord.load(arguments["folder"])
    if arguments["step"] is not None or arguments["once"] or is_over(record):
        print(harmless("\n".join(lines)))
        return ENDED_WELL
    follow(record, lambda line: print(harmless(line), flush=True))
    return ENDED_WELL


def _evaluate(arguments: Mapping[str, Any]) -> int:
    from llm_sandbox_nb.benchmark.item_pipeline import FatalError
    from llm_sandbox_nb.model.contract import ModelError
    from llm_sandbox_nb.training.chat_tokens import TemplateError
    from llm_sandbox_nb.training.config import ConfigError
    from llm_sandbox_nb.training.evaluation import evaluate, evaluation_text, plan_evaluation
    from llm_sandbox_nb.training.grpo import MissingPackageError
    from llm_sandbox_nb.training.record import RecordError

    names = ("task", "data", "rows", "repeats", "before", "out", "network", "workers")
    sampling = ("temperature", "top_p", "top_k", "repetition_penalty")
    modes = [mode.strip() for mode in arguments["mode"].split(",") if mode.strip()]
    try:
        plan = plan_evaluation(
            arguments["checkpoint"],
            modes=modes,
            judge=_judge(arguments),
            **{name: arguments[name] for name in (*names, *sampling)},
        )
        cells = evaluate(plan, lambda text: print(harmless(text), file=sys.stderr, flush=True))
    except (ConfigError, MissingPackageError, ModelError, RecordError, TemplateError) as error:
        raise UsageError(str(error)) from error
    except FatalError as error:
        print(harmless(str(error)), file=sys.stderr)
        return FAILED
    print(harmless("\n".join(evaluation_text(plan))))
    print(plan.out)
    return FAILED if any(cell.scored < cell.planned for cell in cells) else ENDED_WELL


def _judge(arguments: Mapping[str, Any]) -> JudgeAccess | None:
    """Return the judge model that the flags name, or None. Find its address and key as for any other model."""
    from llm_sandbox_nb.training.evaluation import JudgeAccess

    if not arguments["judge_model"]:
        return None
    values = resolve({"model": arguments["judge_model"], "api_base": arguments["judge_base_url"]}, os.environ)
    given = arguments["judge_repeats"]
    repeats = {} if given is None else {"repeats": converted(JUDGE_REPEATS, given, "--judge_repeats")}
    return JudgeAccess(values["model"], values["api_base"], values["api_key"], **repeats)


def _data(arguments: Mapping[str, Any]) -> int:
    from llm_sandbox_nb.benchmark.rows import DataError
    from llm_sandbox_nb.training.data.build import ROWS, BuildOptions, build_rows, row_lines, statistics_lines

    try:
        if arguments["data_action"] == "show":
            folder = expanded(arguments["folder"])
            print(harmless("\n".join([*statistics_lines(folder), "", *row_lines(folder, arguments["row"])])))
            return ENDED_WELL
        options = BuildOptions(*(arguments[name] for name in ("seed", "part", "distractors", "examples")))
        questions = arguments["questions"] and expanded(arguments["questions"])
        out = expanded(arguments["out"])
        build_rows(expanded(arguments["folder"]), questions, out, options)
        print(harmless("\n".join(statistics_lines(out))))
    except DataError as error:
        raise UsageError(str(error)) from error
    print(out / ROWS)
    return ENDED_WELL
