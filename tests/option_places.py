"""Prints, as JSON, the places that know the option `max_output`: `python option_places.py DOCS`, in an empty folder.

`tests/project/test_new_option.py` runs this with a copy of the package to which the option was added.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from plain_shell import magics_of, plain_shell
from support import module_at

from llm_sandbox_nb import Run
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.cli.parser import make_parser
from llm_sandbox_nb.model.model_names import make_model
from llm_sandbox_nb.notebook.completion import complete_cell
from llm_sandbox_nb.notebook.magics import SandboxMagics
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.runs.recorded_spec import recorded_spec
from llm_sandbox_nb.runs.solve import solve

NAME = "max_output"
FLAG = "--max-output"
MODEL = "scripted/strawberry"
CELL = f"-m {MODEL} -o result"


def described(docs: Path) -> dict[str, bool]:
    _, parsers = make_parser()
    magic = SandboxMagics.sandbox_cell.parser
    reference = module_at(docs / "reference.py")
    with plain_shell() as shell:
        completed = complete_cell("%%sandbox --max-o", magics_of(shell))[1]
    return {
        **{f"flag of {name}": FLAG in parsers[name].format_help() for name in ("run", "resume", "benchmark run")},
        "help of cells": FLAG in magic.format_help(),
        "completion": FLAG in completed,
        "page of the command line": FLAG.replace("-", "_")[2:] in reference.commands(),
        "page of cells": FLAG in reference.options(),
        "page of settings": f"SandboxMagics.{NAME}" in reference.traits(SandboxSettings),
    }  # fmt: skip


def recorded(run: Run) -> dict[str, Any]:
    """The value in the journal, in the specification that a resume reads back, and in its effect on the model."""
    first = run.trajectory.start
    assert first is not None
    model = make_model(MODEL)
    output = run.steps[0].calls[0].output.partition("\n\n[Steps")[0]
    return {
        "journal": first.settings.get(NAME),
        "read back": recorded_spec(run, model).by_name()[NAME],
        "characters of output": len(output),
    }


def from_command_line(*words: str) -> dict[str, Any]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main(["run", "How many?", "--model", MODEL, "--isolation", "process", *words])
    assert code == 0
    return recorded(Run.load(printed.getvalue().rstrip().rpartition("\n")[2]))


def from_cell(options: str, setting: int | None = None) -> dict[str, Any]:
    with plain_shell() as shell, contextlib.redirect_stdout(io.StringIO()):
        magics = magics_of(shell)
        magics.use_server, magics.isolation = False, "process"
        if setting is not None:
            setattr(magics, NAME, setting)
        shell.run_cell_magic("sandbox", f"{CELL} {options}", "How many?")
        return recorded(Run.load(shell.user_ns["result"].folder))


async def from_python() -> dict[str, Any]:
    """The option as an argument of `solve`, then of `resume`."""
    run = await solve(
        "How many?", model=MODEL, isolation="process", show=False, limits={"steps": 1}, **{NAME: 11}
    )
    first = recorded(run)
    await run.resume(limits={"steps": 2}, isolation="process", **{NAME: 12})
    return first | {"change": run.trajectory.changed[-1].settings[NAME]}


def all_places(docs: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"described": described(docs), "flag": from_command_line(FLAG, "13")}
    found |= {"option of a cell": from_cell(f"{FLAG} 14"), "%config": from_cell("", 15)}
    found |= {"Python": asyncio.run(from_python()), "left out": from_cell("")}
    Path("llm-sandbox-nb.toml").write_text(f"{NAME} = 16\n", "utf-8")
    found |= {"file, command line": from_command_line(), "file, cell": from_cell("")}
    return found


if __name__ == "__main__":
    print(json.dumps(all_places(Path(sys.argv[1]))))
