"""Arguments of `benchmark` on the command line and in a notebook.

All results in one folder have the same value of each option of `benchmark run`, except the options in `NOT_COMPARED`:
a start with another value is refused. So a new option is compared, unless its name is added there.
"""

from __future__ import annotations

import argparse

from llm_sandbox_nb.options.parser import VALUES_FROM, Parser
from llm_sandbox_nb.options.table import (
    GROUPS,
    SETTINGS,
    Option,
    count,
    option,
    text,
    whole_number,
    yes_or_no,
)

MODES = ("sandbox", "llm")
_EPILOG = f"""\
{VALUES_FROM}.
These rules hold for the groups model and sandbox. A limit comes from its flag, else from the task.

Exit codes: 0 all items have a score, 1 some have errors or no score, 2 the command line or a file it names is wrong,
3 stopped early (no key, no model, no engine or image, ...), 130 interrupted.
"""
_SCORE_CODES = """\
Exit codes: 0 all items have a score, 1 some have none, 2 the command line or a file it names is wrong,
3 stopped early (no key, no model, ...), 130 interrupted.
"""
_REPORT_CODES = (
    "Exit codes: 0 all planned results have a score, 1 some are missing or have none, 2 there are no results."
)
_SHARED_GROUPS = ("model", "limits", "sandbox")
_SHARED_OPTIONS = ("prompts", "save_litellm_response", "mcp", "mcp_allow")
SCORE_OPTIONS = ("data", "workers", "judge_model", "judge_base_url", "judge_repeats")
SCORE_SETTINGS = ("api_base", "api_key", "api_key_env", "isolation", "profile", "image", "network")
"""Names of the settings that `benchmark score` needs for the judge, and for the sandboxes that test patches."""


def modes(value: object) -> tuple[str, ...]:
    """Parse modes that are separated by commas. `llm-in-sandbox`, the name in the paper's package, means `sandbox`."""
    words = (word.strip() for word in str(value).split(","))
    found = tuple(dict.fromkeys("sandbox" if word == "llm-in-sandbox" else word for word in words if word))
    if not found or any(word not in MODES for word in found):
        raise ValueError("must be `sandbox`, `llm` or `sandbox,llm`")
    return found


def contexts(value: object) -> tuple[str, ...]:
    """Parse the value of `--context`: `files`, `prompt`, or both, separated by a comma."""
    found = tuple(dict.fromkeys(word.strip() for word in str(value).split(",") if word.strip()))
    if not found or any(word not in ("files", "prompt") for word in found):
        raise ValueError("must be `files`, `prompt` or `files,prompt`")
    return found


BENCHMARK_OPTIONS = (
    Option("data", "source of the rows: a .jsonl, .json or .parquet file, a folder with TASK.jsonl, "
           "hf:OWNER/NAME/CONFIG, or sample", metavar="PATH"),
    Option("mode", "sandbox, llm (one reply, no tools), or sandbox,llm for both", modes, ("sandbox",),
           metavar="MODES"),
    Option("context", "place of the documents: files, prompt, or files,prompt for both", contexts, ("files",),
           metavar="WHERE"),
    Option("workers", "how many items run at once", whole_number, 8, ("LLM_NUM_WORKERS",), metavar="N",
           aliases=("num_workers",), short="n"),
    Option("repeats", "how often each problem is run; rows with the same problem share this number, but each row is "
           "run at least once (default: the task's)", whole_number, metavar="N"),
    Option("start_id", "number of the first row to run; the first row of the data is 0", count, 0, metavar="N"),
    Option("end_id", "number of the row after the last row to run", whole_number, metavar="N"),
    Option("attempts", "how often an item is tried if it fails", whole_number, 2, metavar="N"),
    Option("retry_errors", "run again the items that failed in an earlier start", yes_or_no, True, metavar="BOOL"),
    Option("fresh_sandboxes", "open a new sandbox for each item (default: a reset sandbox serves the next item)",
           yes_or_no, False, metavar="BOOL"),
    Option("out", "folder of the results", text, "results", metavar="FOLDER", aliases=("output_dir",),
           short="o"),
    Option("max_response_len", "maximum tokens of the one reply in mode llm (default: --max_tokens_per_call)",
           whole_number, metavar="N"),
    Option("ray", "run the items on all nodes of a Ray cluster: auto (the cluster of this machine), or HOST:PORT", text,
           metavar="ADDRESS"),
    Option("judge_model", "model that judges physics and long_context", text, metavar="NAME"),
    Option("judge_base_url", "address of the judge's server (default: --api_base)", text, metavar="URL"),
    Option("judge_repeats", "how often the judge judges each answer", whole_number, 4, metavar="N"),
)  # fmt: skip
OPTIONS_OF_RUN = (
    *BENCHMARK_OPTIONS,
    *(shared for title in _SHARED_GROUPS for shared in GROUPS[title]),
    *map(option, _SHARED_OPTIONS),
)
NOT_COMPARED = frozenset((
    # addresses and keys of model and judge, and how long a reply or a start may take
    "api_base", "api_key", "api_key_env", "model_timeout", "model_wait", "judge_base_url",
    # how the sandbox reaches other hosts at this site; folders of earlier versions do not hold the secrets
    "ca_bundle", "index_url", "proxy", "secret",
    # which items are run: each result holds its mode, row and repeat
    "mode", "context", "repeats", "start_id", "end_id",
    # how items are run, and where results are written
    "workers", "attempts", "retry_errors", "fresh_sandboxes", "ray", "out", "save_litellm_response",
    # a part of each result's digest of the scorer: `digests.scorer_digest`
    "judge_repeats",
))  # fmt: skip
"""Names of the options of `benchmark run` that may differ between the results in one folder."""


_ACTIONS = ("list", "run", "report", "score", "compare")


def benchmark_words(words: list[str]) -> list[str]:
    """Insert the action `run` if no action is given, as in the command line of the paper's package."""
    if not words or words[0] in (*_ACTIONS, "-h", "--help"):
        return words
    return ["run", *words]


def add_benchmark_actions(benchmark: Parser) -> dict[str, Parser]:
    """Add the actions to the parser of `benchmark`. Return the actions' parsers by name."""
    actions = benchmark.add_subparsers(dest="action", metavar="ACTION", parser_class=Parser, required=True)
    listing = actions.add_parser("list", help="list the tasks that come with the package")
    run = actions.add_parser(
        "run", help="run tasks; the same command resumes where it was stopped or killed", epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    run.add_argument("tasks", metavar="TASK", nargs="*", help="names of tasks, or folders with a task.yaml")
    run.add_argument("--task", dest="more_tasks", metavar="TASK", action="append", help="the same as TASK")
    group = run.add_argument_group("benchmark")
    for flag in BENCHMARK_OPTIONS:
        run.add_option(group, flag)
    run.add_option(run, SETTINGS)
    for title in _SHARED_GROUPS:
        group = run.add_argument_group(title)
        for flag in GROUPS[title]:
            run.add_option(group, flag)
    for name in _SHARED_OPTIONS:
        run.add_option(run, option(name))
    report = actions.add_parser(
        "report", help="report the results, as tables or one HTML file", epilog=_REPORT_CODES
    )
    report.add_argument("results", metavar="FOLDER", help="the --out folder of `benchmark run`")
    report.add_argument(
        "--html", metavar="FILE", nargs="?", const="report.html", help="also write an HTML page"
    )
    score = actions.add_parser(
        "score", help="score the answers of a folder again, without asking the model",
        description="Score all answers of a folder again, with the current scorers and gold answers. Tasks, data and "
        "judge are the same as before, unless a flag names other data or another judge.", epilog=_SCORE_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    score.add_argument("results", metavar="FOLDER", help="the --out folder of `benchmark run`")
    group = score.add_argument_group("benchmark")
    for flag in (flag for flag in BENCHMARK_OPTIONS if flag.name in SCORE_OPTIONS):
        score.add_option(group, flag)
    score.add_option(score, SETTINGS)
    for name in SCORE_SETTINGS:
        score.add_option(score, option(name))
    comparison = actions.add_parser("compare", help="compare the results of two folders, item by item")
    comparison.add_argument("results", metavar="FOLDER", help="results of `benchmark run`")
    comparison.add_argument("other", metavar="OTHER", help="the folder to compare them with")
    return {"list": listing, "run": run, "report": report, "score": score, "compare": comparison}
