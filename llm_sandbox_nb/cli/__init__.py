"""The command line, `llm-sandbox-nb COMMAND`. Light until more is needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llm_sandbox_nb.cli.errors import INTERRUPTED, USAGE
from llm_sandbox_nb.options.errors import UsageError

if TYPE_CHECKING:
    import argparse

_BROKEN_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; what went wrong is one sentence on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        return _dispatch(sys.argv[1:] if arguments is None else list(arguments))
    except UsageError as error:
        print(error, file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE


def _dispatch(arguments: list[str]) -> int:
    from llm_sandbox_nb.cli.parser import make_parser

    parser, commands = make_parser()
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        name = " ".join(filter(None, (parsed.command, getattr(parsed, "action", None))))
        commands[name].unknown(unknown)
    if not parsed.command:
        parser.print_help()
        return USAGE
    return _COMMANDS[parsed.command](parsed)


def _run(parsed: argparse.Namespace) -> int:
    from llm_sandbox_nb.cli.run_command import run_command

    return run_command(parsed)


def _image(parsed: argparse.Namespace) -> int:
    from llm_sandbox_nb.cli.image_command import image_command

    return image_command(parsed)


def _doctor(parsed: argparse.Namespace) -> int:
    from llm_sandbox_nb.cli.doctor_command import doctor_command

    return doctor_command()


def _show(parsed: argparse.Namespace) -> int:
    from llm_sandbox_nb.cli.show_command import show_command

    return show_command(parsed)


def _export(parsed: argparse.Namespace) -> int:
    from llm_sandbox_nb.cli.export_command import export_command

    return export_command(parsed)


def _analyze(parsed: argparse.Namespace) -> int:
    from llm_sandbox_nb.cli.analyze_command import analyze_command

    return analyze_command(parsed)


def _benchmark(parsed: argparse.Namespace) -> int:
    from llm_sandbox_nb.cli.benchmark_command import benchmark_command

    return benchmark_command(parsed)


_COMMANDS = {
    "run": _run,
    "image": _image,
    "doctor": _doctor,
    "show": _show,
    "export": _export,
    "analyze": _analyze,
    "benchmark": _benchmark,
}

if __name__ == "__main__":
    sys.exit(main())
