"""Commands and flags of the command line. Values stay text in this module; `options.values` converts them.

A new command needs a parser in this module, a row in `cli.__init__._MODULES`, and a function in the module that the
row names. If the command needs a sandbox, it also needs its name in `windows.WITH_SANDBOX`, and on the page
docs/how-to/install.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from llm_sandbox_nb.benchmark.options import add_benchmark_actions, benchmark_words
from llm_sandbox_nb.formats.format_names import JOURNAL, WRITTEN
from llm_sandbox_nb.options.parser import RESUME_EPILOG, RUN_EPILOG, Parser, add_runs_options
from llm_sandbox_nb.options.table import GROUPS, QUERY, SETTINGS, option
from llm_sandbox_nb.training.options import add_training_actions

MCP_EPILOG = """\
If a notebook has executed %sandbox mcp, calls go to the notebook's sandbox, and the notebook shows the calls. Without
such a notebook, or with an option of a sandbox or its resources, such as --isolation or --memory_mb, the agent gets a
new sandbox, and its calls are recorded in a run folder.

claude mcp add sandbox -- llm-sandbox-nb mcp --isolation bubblewrap
"""


def make_parser() -> tuple[Parser, dict[str, Parser]]:
    """Return the parser of the whole command line, and the parsers of the commands by name."""
    from llm_sandbox_nb.version import __version__

    parser = Parser(prog="llm-sandbox-nb", description="Give a language model a computer and a task.")
    parser.add_argument("--version", action="version", version=f"llm-sandbox-nb {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    made = {"": parser}
    for add in (
        _add_run,
        _add_resume,
        _add_setup,
        _add_records,
        _add_benchmark,
        _add_train,
        _add_examples,
        _add_mcp,
    ):
        made.update(add(commands))
    return parser, made


def command_words(words: list[str]) -> list[str]:
    """Return the words of a command line. Translate `build` and `benchmark TASK`, commands of the paper's program."""
    match words:
        case ["build", *rest]:
            return ["image", "build", *rest]
        case ["benchmark", *rest]:
            return ["benchmark", *benchmark_words(rest)]
    return words


def _add_run(commands: argparse._SubParsersAction[Parser]) -> dict[str, Parser]:
    run = commands.add_parser(
        "run",
        help="have a model work on a task in a sandbox",
        epilog=RUN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument(
        "task", metavar="TASK", nargs="?", help="the task, or --query; quote a text of several words"
    )
    run.add_option(run, QUERY)
    run.add_option(run, SETTINGS)
    _add_run_options(run)
    return {"run": run}


def _add_resume(commands: argparse._SubParsersAction[Parser]) -> dict[str, Parser]:
    resume = commands.add_parser(
        "resume",
        help="continue a run that a model error, a limit or an interruption has ended",
        epilog=RESUME_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    resume.add_argument("run", metavar="RUN", help=_RECORD)
    resume.add_argument(
        "text",
        metavar="TEXT",
        nargs="?",
        help="message to the model; required if the model has submitted; quote a text of several words",
    )
    resume.add_option(resume, SETTINGS)
    _add_run_options(
        resume, ("model", "limits", "context", "sandbox", "resources", "tools", "checks", "pauses")
    )
    return {"resume": resume}


def _add_mcp(commands: argparse._SubParsersAction[Parser]) -> dict[str, Parser]:
    mcp = commands.add_parser(
        "mcp",
        help="offer a sandbox to an agent, such as Claude Code, over MCP on stdin and stdout",
        epilog=MCP_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    mcp.add_argument(
        "--notebook",
        metavar="PATH",
        help="use the sandbox of this notebook, in which %%sandbox mcp was executed",
    )
    mcp.add_option(mcp, SETTINGS)
    mcp.add_option(mcp, option("output_dir"))
    _add_run_options(mcp, ("sandbox", "resources"))
    return {"mcp": mcp}


def _add_examples(commands: argparse._SubParsersAction[Parser]) -> dict[str, Parser]:
    examples = commands.add_parser(
        "examples",
        help="list ten examples, or run one and check its result; without --model, a scripted model replies: no key",
        epilog=RUN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    examples.add_argument("name", metavar="NAME", nargs="?", help="the example; without NAME, all are listed")
    examples.add_option(examples, SETTINGS)
    _add_run_options(examples)
    return {"examples": examples}


def _add_run_options(parser: Parser, titles: Iterable[str] = tuple(GROUPS)) -> None:
    for title in titles:
        group = parser.add_argument_group(title)
        for flag in GROUPS[title]:
            parser.add_option(group, flag)


def _add_setup(commands: argparse._SubParsersAction[Parser]) -> dict[str, Parser]:
    image = commands.add_parser("image", help="build, pull, list or check images for sandboxes")
    actions = image.add_subparsers(dest="action", metavar="ACTION", parser_class=Parser, required=True)
    build = actions.add_parser("build", help="build the image of this package from its Dockerfile")
    build.add_argument(
        "--target", choices=("full", "slim"), default="full", help="variant of the image (default: full)"
    )
    build.add_argument("--base-image", "--base_image", metavar="IMAGE", help="base image of the Dockerfile")
    build.add_argument(
        "--tag",
        "--image-name",
        "--image_name",
        metavar="IMAGE",
        help="name of the built image (default: the name of this package's image)",
    )
    build.add_argument(
        "--ca-bundle", "--ca_bundle", metavar="FILE", help="your site's certificate authorities (PEM)"
    )
    build.add_argument("--index-url", "--index_url", metavar="URL", help="your site's Python package index")
    build.add_argument("--proxy", metavar="URL", help="your site's HTTP proxy")
    build.add_argument("--force", action="store_true", help="ignore the cache of earlier builds")
    pull = actions.add_parser("pull", help="pull an image from its registry")
    pull.add_argument("image", metavar="IMAGE")
    listing = actions.add_parser(
        "list", help="list the Docker engine's images that this package has built or that have its name"
    )
    check = actions.add_parser("check", help="check if an image can be used as a sandbox")
    check.add_argument(
        "image", metavar="IMAGE", nargs="?", help="the image to check (default: the image of this package)"
    )
    doctor = commands.add_parser(
        "doctor", help="list the isolations that work on this machine, and why others do not"
    )
    models = commands.add_parser(
        "models", help="list the models that run on this machine as local/NAME, or fetch one"
    )
    models.add_argument(
        "--fetch",
        metavar="NAME",
        help="download this model and check its file; NAME is a name in the list, or any name that may follow local/",
    )
    models.add_argument("--json", action="store_true", help="print the list as JSON")
    settings = commands.add_parser("settings", help="list every setting with its value and its source")
    settings.add_option(settings, SETTINGS)
    settings.add_argument("--json", action="store_true", help="print the settings as JSON")
    actions_made = {"build": build, "pull": pull, "list": listing, "check": check}
    return {
        "image": image,
        **{f"image {name}": part for name, part in actions_made.items()},
        "doctor": doctor,
        "models": models,
        "settings": settings,
    }


_RECORD = (
    "the run's id or a part of the id (see `runs`), its folder, its journal.jsonl, or a file of another project; "
    "FILE#NAME if the file holds several runs"
)


def _add_records(commands: argparse._SubParsersAction[Parser]) -> dict[str, Parser]:
    runs = commands.add_parser("runs", help="list the runs on disk with their sizes, or remove old ones")
    runs.add_argument(
        "folder",
        metavar="FOLDER",
        nargs="?",
        help="the folder of runs, or a file of another project that holds several (default: the setting output_dir)",
    )
    add_runs_options(runs)
    show = commands.add_parser("show", help="print the current attempt of a recorded run as text")
    show.add_argument("run", metavar="RUN", help=_RECORD)
    show.add_argument(
        "--brief", action="store_true", help="print only the first and last lines of each output"
    )
    show.add_argument(
        "--all",
        action="store_true",
        help="also print earlier attempts that a rewind has left, and each of the steps that otherwise share a line",
    )
    export = commands.add_parser("export", help="write a recorded run as one HTML file that opens anywhere")
    export.add_argument("run", metavar="RUN", help=_RECORD)
    export.add_argument(
        "--out", metavar="FILE", help="the file to write (default: run.html in the run's folder)"
    )
    analyze = commands.add_parser("analyze", help="analyze recorded runs: capabilities, tokens, time")
    analyze.add_argument(
        "paths", metavar="PATH", nargs="+", help="folders of runs, journals, files of other projects"
    )
    analyze.add_argument(
        "--html",
        metavar="FILE",
        nargs="?",
        const="analysis.html",
        help="also write a report with pictures (default: analysis.html)",
    )
    convert = commands.add_parser(
        "convert",
        help="write a run in the format of another project, or another project's record as a journal",
    )
    convert.add_argument("run", metavar="RUN", help=_RECORD)
    convert.add_argument(
        "out",
        metavar="OUT",
        help="the file to write; for a journal a folder; for OpenTelemetry also the address of a collector",
    )
    convert.add_argument(
        "--to",
        metavar="FORMAT",
        choices=(*WRITTEN, JOURNAL),
        help=f"{', '.join(WRITTEN)} or {JOURNAL} (default: by the ending of OUT)",
    )
    convert.add_argument(
        "--content",
        action="store_true",
        help="write the texts of prompts, replies, calls and results into OpenTelemetry spans too",
    )
    return {"runs": runs, "show": show, "export": export, "analyze": analyze, "convert": convert}


def _add_benchmark(commands: argparse._SubParsersAction[Parser]) -> dict[str, Parser]:
    benchmark = commands.add_parser(
        "benchmark", help="measure a model on many problems, with and without a sandbox"
    )
    parts = add_benchmark_actions(benchmark)
    return {"benchmark": benchmark} | {f"benchmark {name}": part for name, part in parts.items()}


def _add_train(commands: argparse._SubParsersAction[Parser]) -> dict[str, Parser]:
    train = commands.add_parser("train", help="train a model to work in sandboxes, by reinforcement learning")
    actions = train.add_subparsers(dest="action", metavar="ACTION", parser_class=Parser, required=True)
    parts = add_training_actions(actions)
    return {"train": train} | {f"train {name}": part for name, part in parts.items()}
