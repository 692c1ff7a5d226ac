"""The command line: which commands and flags there are. `settings` turns values into numbers later."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from llm_sandbox_nb.cli.benchmark_options import BENCHMARK_OPTIONS
from llm_sandbox_nb.cli.errors import UsageError
from llm_sandbox_nb.cli.options import GROUPS, QUERY, SETTINGS, Option
from llm_sandbox_nb.cli.settings import did_you_mean

_RUN_EPILOG = """\
A value comes from its flag, else an environment variable, else a settings file, else it is the default.
Settings file: --settings, $LLM_SANDBOX_SETTINGS, ./llm-sandbox-nb.yaml, ./llm-in-sandbox.yaml,
~/.config/llm-sandbox-nb/settings.yaml or ~/.llm-in-sandbox/config.yaml; its keys are the flags' names.

Exit codes: 0 the run ended well, 2 the command line or a file it names is wrong, 3 the model failed,
4 no sandbox, 5 a limit was reached, 130 interrupted, 1 anything else.
"""


class Parser(argparse.ArgumentParser):
    """argparse, with errors as one sentence and flags that may be written with `_` or `-`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print and exit with."""
        raise UsageError(f"{_sentence(message)}; see `{self.prog} --help`.")

    def add_option(self, group: argparse._ActionsContainer, option: Option) -> None:
        """Add one option of the table."""
        names = dict.fromkeys((f"--{option.name}", f"--{option.name.replace('_', '-')}"))
        default = "" if option.default in (None, []) else f" (default: {option.default})"
        environment = f" [${', $'.join(option.environment)}]" if option.environment else ""
        text = f"{option.help}{default}{environment}".replace("%", "%%")
        if option.switch:
            group.add_argument(*names, metavar=option.metavar, help=text, nargs="?", const="true")
        elif option.many:
            group.add_argument(*names, metavar=option.metavar, help=text, action="append")
        else:
            group.add_argument(*names, metavar=option.metavar, help=text)

    def unknown(self, words: list[str]) -> NoReturn:
        """Raise about words that are no option, naming the closest one."""
        word = words[0].partition("=")[0]
        known = [name for action in self._actions for name in action.option_strings]
        if word.startswith("-"):
            raise UsageError(f"Unknown option {word}{_closest(word, known)} see `{self.prog} --help`.")
        raise UsageError(
            f"Unexpected {word!r}; put quotes around a text of several words; see `{self.prog} --help`."
        )


def _closest(word: str, known: list[str]) -> str:
    hint = did_you_mean(word, known)
    return hint if hint.startswith("; did you mean") else ";"


def _sentence(message: str) -> str:
    message = message.removeprefix("argument ")
    if message.endswith("expected one argument"):
        message += " (one that begins with a dash is written after `=`)"
    return message[:1].upper() + message[1:]


def make_parser() -> tuple[Parser, dict[str, Parser]]:
    """The parser of the whole command line, and those of the commands by name."""
    from llm_sandbox_nb import __version__

    parser = Parser(prog="llm-sandbox-nb", description="Give a language model a computer and a task.")
    parser.add_argument("--version", action="version", version=f"llm-sandbox-nb {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    made = {"": parser}
    for add in (_add_run, _add_image, _add_doctor, _add_show, _add_export, _add_analyze, _add_benchmark):
        made.update(add(commands))
    return parser, made


def _add_run(commands: argparse._SubParsersAction[Parser]) -> dict[str, Parser]:
    run = commands.add_parser(
        "run",
        help="have a model work on a task in a sandbox",
        epilog=_RUN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_option(run, QUERY)
    run.add_option(run, SETTINGS)
    for title, options in GROUPS.items():
        group = run.add_argument_group(title)
        for option in options:
            run.add_option(group, option)
    return {"run": run}


def _add_image(commands: argparse._SubParsersAction[Parser]) -> dict[str, Parser]:
    image = commands.add_parser("image", help="build, pull, list or check the images sandboxes are made of")
    actions = image.add_subparsers(dest="action", metavar="ACTION", parser_class=Parser, required=True)
    build = actions.add_parser("build", help="build our image from the Dockerfile in this package")
    build.add_argument(
        "--target", choices=("full", "slim"), default="full", help="which image (default: full)"
    )
    build.add_argument(
        "--base-image", "--base_image", metavar="IMAGE", help="what the Dockerfile starts from"
    )
    build.add_argument("--tag", metavar="IMAGE", help="name of the image (default: ours)")
    build.add_argument(
        "--ca-bundle", "--ca_bundle", metavar="FILE", help="your site's certificate authorities (PEM)"
    )
    build.add_argument("--index-url", "--index_url", metavar="URL", help="your site's Python package index")
    build.add_argument("--proxy", metavar="URL", help="your site's HTTP proxy")
    build.add_argument("--force", action="store_true", help="ignore what earlier builds left in the cache")
    pull = actions.add_parser("pull", help="pull an image from its registry")
    pull.add_argument("image", metavar="IMAGE")
    listing = actions.add_parser("list", help="list our images on this engine")
    check = actions.add_parser("check", help="say whether an image can be used as a sandbox")
    check.add_argument("image", metavar="IMAGE", nargs="?", help="default: ours")
    parts = {"image": image, "build": build, "pull": pull, "list": listing, "check": check}
    return {"image" if name == "image" else f"image {name}": part for name, part in parts.items()}


def _add_doctor(commands: argparse._SubParsersAction[Parser]) -> dict[str, Parser]:
    doctor = commands.add_parser(
        "doctor", help="say which isolations work on this machine, and why others do not"
    )
    return {"doctor": doctor}


_RECORD = "the run's folder, its journal.jsonl, or a trajectory.json"


def _add_show(commands: argparse._SubParsersAction[Parser]) -> dict[str, Parser]:
    show = commands.add_parser("show", help="print a recorded run as text")
    show.add_argument("run", metavar="RUN", help=_RECORD)
    show.add_argument("--brief", action="store_true", help="only the first lines of each output")
    return {"show": show}


def _add_export(commands: argparse._SubParsersAction[Parser]) -> dict[str, Parser]:
    export = commands.add_parser("export", help="write a recorded run as one HTML file that opens anywhere")
    export.add_argument("run", metavar="RUN", help=_RECORD)
    export.add_argument("--out", metavar="FILE", help="where to (default: run.html in the run's folder)")
    return {"export": export}


def _add_analyze(commands: argparse._SubParsersAction[Parser]) -> dict[str, Parser]:
    analyze = commands.add_parser("analyze", help="say what recorded runs did: capabilities, tokens, time")
    analyze.add_argument(
        "paths", metavar="PATH", nargs="+", help="folders with runs in them, journals, trajectory.json files"
    )
    analyze.add_argument(
        "--html",
        metavar="FILE",
        nargs="?",
        const="analysis.html",
        help="also write a report with pictures (default: analysis.html)",
    )
    return {"analyze": analyze}


def _add_benchmark(commands: argparse._SubParsersAction[Parser]) -> dict[str, Parser]:
    benchmark = commands.add_parser(
        "benchmark", help="measure a model on many problems, with and without a sandbox"
    )
    actions = benchmark.add_subparsers(dest="action", metavar="ACTION", parser_class=Parser, required=True)
    listing = actions.add_parser("list", help="list the tasks that come with the package")
    run = actions.add_parser(
        "run", help="run tasks; the same command goes on where it was stopped or killed", epilog=_RUN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    run.add_argument("tasks", metavar="TASK", nargs="+", help="names of tasks, or folders with a task.yaml")
    group = run.add_argument_group("benchmark")
    for option in BENCHMARK_OPTIONS:
        run.add_option(group, option)
    run.add_option(run, SETTINGS)
    for title, options in GROUPS.items():
        if title != "files":
            group = run.add_argument_group(title)
            for option in options:
                run.add_option(group, option)
    report = actions.add_parser("report", help="say what came of it, as tables or one HTML file")
    report.add_argument("results", metavar="FOLDER", help="what was --out of `benchmark run`")
    report.add_argument("--html", metavar="FILE", nargs="?", const="report.html", help="also write a page")
    parts = {"list": listing, "run": run, "report": report}
    return {"benchmark": benchmark} | {f"benchmark {name}": part for name, part in parts.items()}
