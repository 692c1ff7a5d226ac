"""Flags of `train` for the command line and for cells."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_sandbox_nb.benchmark.options import BENCHMARK_OPTIONS
from llm_sandbox_nb.options.parser import Parser
from llm_sandbox_nb.options.table import UsageError
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.training.config import ConfigError, TrainingConfig, config_names, load_config

RUNS = "training-runs"
"""Folder that contains the trainings for which no `--out` is given."""
_JUDGE = {option.name: option for option in BENCHMARK_OPTIONS if option.name.startswith("judge_")}
JUDGE_REPEATS = _JUDGE["judge_repeats"]


def add_training_actions(actions: argparse._SubParsersAction[Parser]) -> dict[str, Parser]:
    """Add the actions to the parser of `train`. Return the actions' parsers by name."""
    run = actions.add_parser("run", help="train a policy, or resume a training that was stopped")
    run.add_argument(
        "--config", metavar="FILE", required=True, help=f"a YAML file, or one of {', '.join(config_names())}"
    )
    run.add_argument(
        "--out",
        metavar="FOLDER",
        help=f"folder of the training (default: {RUNS}/NAME); a stopped training in this folder is resumed",
    )
    run.add_argument("--seed", metavar="N", type=int, help="seed that replaces the file's")
    run.add_argument("--steps", metavar="N", type=int, help="number of steps that replaces the file's")
    run.add_argument(
        "--keep",
        metavar="N",
        type=int,
        help="number of newest steps whose rollouts stay on disk; 0: all (default: 20)",
    )
    run.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="value that replaces the file's value of any key, such as rollouts.turns=20",
    )
    watch = actions.add_parser(
        "watch", help="show a training: reward, turns, tokens, capability use, stop reasons"
    )
    watch.add_argument("folder", metavar="RUN", help="the folder of the training")
    watch.add_argument("--step", metavar="N", type=int, help="show only the rollouts of this step")
    watch.add_argument("--once", action="store_true", help="show the steps so far, and do not wait for more")
    evaluate = actions.add_parser(
        "evaluate", help="score a policy before and after its training, with a sandbox and without"
    )
    evaluate.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="the folder of a training, or of its checkpoint"
    )
    evaluate.add_argument(
        "--mode",
        metavar="MODES",
        default="sandbox,llm",
        help="sandbox, sandbox-prompt and llm, with commas between (default: sandbox,llm)",
    )
    evaluate.add_argument("--task", metavar="TASK", help="a benchmark task (default: that of the training)")
    evaluate.add_argument(
        "--data",
        metavar="FILE",
        help="the rows, as a file, or `ledger` or `ledger-other` (default: those of the task)",
    )
    evaluate.add_argument("--rows", metavar="N", type=int, help="maximum number of rows")
    evaluate.add_argument(
        "--repeats", metavar="N", type=int, default=1, help="repeats of each row (default: 1)"
    )
    evaluate.add_argument("--workers", metavar="N", type=int, default=8, help="items at once (default: 8)")
    evaluate.add_argument(
        "--before", metavar="MODEL", help="compare with this policy, instead of the training's first"
    )
    evaluate.add_argument(
        "--temperature", metavar="T", type=float, help="sampling temperature (default: that of the training)"
    )
    evaluate.add_argument(
        "--top_p", "--top-p", metavar="P", type=float, help="nucleus sampling (default: that of the training)"
    )
    evaluate.add_argument(
        "--top_k",
        "--top-k",
        metavar="N",
        type=int,
        help="sample from the N likeliest tokens; 0: all tokens (default: that of the training)",
    )
    evaluate.add_argument(
        "--repetition_penalty",
        "--repetition-penalty",
        metavar="X",
        type=float,
        help="penalty for tokens that occurred before (default: 1, no penalty)",
    )
    evaluate.add_argument(
        "--network",
        metavar="NETWORK",
        help="network of the sandboxes: none, allow, public or open (not safe); default: that of the training",
    )
    for option in _JUDGE.values():
        evaluate.add_option(evaluate, option)
    evaluate.add_argument(
        "--out", metavar="FOLDER", help="folder of the results (default: below the training)"
    )
    data = actions.add_parser(
        "data", help="build rows to train on from documents and questions, or show them"
    )
    parts = data.add_subparsers(dest="data_action", metavar="ACTION", parser_class=Parser, required=True)
    build = _add_build(parts)
    show = parts.add_parser("show", help="show statistics of the rows, and a row as the policy gets it")
    show.add_argument("folder", metavar="FOLDER", help="the --out folder of `train data build`")
    show.add_argument("--row", metavar="ID", help="the row to show (default: the first)")
    return {
        "run": run,
        "watch": watch,
        "evaluate": evaluate,
        "data": data,
        "data build": build,
        "data show": show,
    }


def _add_build(parts: argparse._SubParsersAction[Parser]) -> Parser:
    build = parts.add_parser(
        "build", help="build rows from documents (.txt, .md, .html, .epub, .pdf) and questions"
    )
    build.add_argument(
        "folder", metavar="FOLDER", help="folder of the documents; the name of a subfolder is a domain"
    )
    build.add_argument(
        "--questions", metavar="FILE", help="questions and answers (default: questions.jsonl in the folder)"
    )
    build.add_argument("--out", metavar="FOLDER", required=True, help="folder of rows and statistics")
    build.add_argument(
        "--seed", metavar="N", type=int, default=42, help="the same seed gives the same rows (default: 42)"
    )
    build.add_argument(
        "--part", metavar="N", type=int, default=20_000, help="maximum characters of a file (default: 20000)"
    )
    build.add_argument(
        "--distractors",
        metavar="N",
        type=int,
        default=3,
        help="number of files of other documents that are added to a context of one file (default: 3)",
    )
    build.add_argument(
        "--examples",
        metavar="N",
        type=int,
        default=2,
        help="number of earlier questions on the same documents that the prompt shows with answers (default: 2)",
    )
    return build


def config_of(arguments: Mapping[str, Any]) -> tuple[TrainingConfig, Path]:
    """Return the configuration and the folder that the flags of `run` name. Raise UsageError if a flag is wrong."""
    changes: dict[str, Any] = dict(_assignment(text) for text in arguments.get("set") or ())
    flags = {"seed": "seed", "steps": "steps", "keep": "record.keep"}
    changes |= {key: arguments[flag] for flag, key in flags.items() if arguments.get(flag) is not None}
    try:
        config = load_config(arguments["config"], changes)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    return config, expanded(arguments.get("out") or f"{RUNS}/{config.name}")


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--set needs KEY=VALUE, such as rollouts.turns=20, not {text!r}.")
    return name.strip(), value


def watch_lines(arguments: Mapping[str, Any]) -> Sequence[str]:
    """Return the lines that `train watch` prints first: an overview of the training, or one step.

    Raises:
        UsageError: if the training or the step does not exist.
    """
    from llm_sandbox_nb.training.record import RecordError, TrainingRecord
    from llm_sandbox_nb.training.watch import overview, step_text

    try:
        record = TrainingRecord.load(arguments["folder"])
        step = arguments.get("step")
        return list(overview(record) if step is None else step_text(record, step))
    except (RecordError, ConfigError) as error:
        raise UsageError(str(error)) from error
