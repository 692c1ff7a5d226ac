"""`make demo`: runs the first notebook without a screen and reports the results.

python notebooks/demo.py [--out FOLDER] [--isolation docker|bubblewrap|process] [--model local|NAME] [NOTEBOOK]

With a model, that one does the notebook's first task. The other tasks stay scripted: later cells need their files.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from llm_sandbox_nb.formatting import format_size
from llm_sandbox_nb.cli.printer import harmless, protection_lines
from llm_sandbox_nb.card.bundle import unpacked
from llm_sandbox_nb.card.text import plain
from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.local.listing import fetch_model
from llm_sandbox_nb.model.local.source import PREFIX
from llm_sandbox_nb.sandbox.isolations import automatic_isolations
from llm_sandbox_nb.sandbox.open import load_isolation
from llm_sandbox_nb.trajectory.events import parse_python
from llm_sandbox_nb.trajectory.trajectory import Trajectory

HERE = Path(__file__).parent
SCRIPT = "llm_sandbox_nb/model/scripts/first-task.yaml"
MIME = "application/vnd.llm-sandbox.trajectory+json"
DEMO_MODEL = "local/qwen2.5-coder-1.5b"
LONGEST = 150
"""Seconds that a real model gets for the first task."""
WITH_MODEL = """\
**What is real here?** All of it: the model `{name}`, its replies, the sandbox, the commands and their outputs. A real model can be wrong, \
and its reply differs from run to run. The model of the second task, `scripted/first-task`, reads its replies from a file. Its card says so."""
WITHOUT_ISOLATION = """\
There is no isolation here: {reasons}.
The demo's commands run as your own processes, with your rights. They are harmless: they come from a script,
not from a model. Look at {script}, if you want to read them first.
"""


def main() -> int:
    """Choose the isolation, run the notebook, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", nargs="?", type=Path, default=HERE / "01-first-task.ipynb")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--isolation", choices=("", "docker", "bubblewrap", "process"), default="")
    parser.add_argument(
        "--model", default="", help="the model of the first task: `local`, or a name as for -m"
    )
    arguments = parser.parse_args()
    os.environ["LLM_SANDBOX_ISOLATION"] = arguments.isolation or asyncio.run(strongest())
    os.environ["JPY_SESSION_NAME"] = str(arguments.notebook.resolve())
    target = arguments.out.resolve() / arguments.notebook.name
    notebook = nbformat.read(arguments.notebook, as_version=4)
    if arguments.model and not use_model(
        notebook, DEMO_MODEL if arguments.model == "local" else arguments.model
    ):
        return 1
    failure = execute(notebook, arguments.notebook.resolve().parent, target)
    for trajectory in trajectories(notebook):
        report(trajectory)
    print(f"\nThe notebook with its results is {target}")
    if failure:
        print(f"The notebook did not run to its end: {failure}", file=sys.stderr)
    return 1 if failure else 0


def use_model(notebook: nbformat.NotebookNode, name: str) -> bool:
    """Put a real model into the notebook's first task and text. Print the reason and return False if it cannot be had."""
    if name.startswith(PREFIX):
        try:
            fetch_model(name)
        except ModelError as error:
            print(harmless(str(error)), file=sys.stderr)
            return False
    first = next(cell for cell in notebook.cells if cell.source.startswith("%%sandbox -m scripted/"))
    first.source = re.sub(r"-m scripted/\S+", lambda _: f"-m {name} --time {LONGEST}", first.source, count=1)
    first.metadata["tags"] = [*first.metadata.get("tags", ()), "raises-exception"]  # it may reach a limit
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            text = cell.source.replace("`-m scripted/strawberry`", f"`-m {name}`")
            head, real, _ = text.partition("**What is real here?**")
            cell.source = head + WITH_MODEL.format(name=name) if real else text
    return True


async def strongest() -> str:
    """The strongest isolation that works here; plain processes with a warning when none does."""
    reasons = []
    for name in automatic_isolations():
        reason = await load_isolation(name).why_unavailable(None)
        if not reason:
            return name
        reasons.append(reason)
    print(WITHOUT_ISOLATION.format(reasons="; ".join(reasons), script=SCRIPT))
    return "process"


def execute(notebook: nbformat.NotebookNode, folder: Path, target: Path) -> str:
    """Run all cells as Jupyter would, and save the notebook even after an error. Returns the error in one line."""
    quiet = ["--IPKernelApp.log_level=ERROR"]
    place = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=600, resources=place, extra_arguments=quiet)
    try:
        client.execute()
    except CellExecutionError as error:
        return plain(str(error)).strip().splitlines()[-1]
    finally:
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, target)
    return ""


def trajectories(notebook: nbformat.NotebookNode) -> list[Trajectory]:
    """The runs that the notebook's outputs hold."""
    bundles: list[dict[str, Any]] = [
        output.data[MIME]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if MIME in output.get("data", {})
    ]
    return [Trajectory(map(parse_python, unpacked(bundle)["events"])) for bundle in bundles]


def report(run: Trajectory) -> None:
    """Answer, files and isolation of one run."""
    if run.start:
        print(f"Task       {harmless(run.start.task.strip().splitlines()[0])}")
        scripted = (
            " (scripted: plays a file, asks no model)" if run.start.scripted else " (real, not scripted)"
        )
        print(f"Model      {run.start.model}{scripted}")
        if served := run.start.settings.get("served_by"):
            print(f"File       {served['file']}, sha256 {served['sha256']}, served by {served['engine']}")
    if run.sandbox:
        for line in protection_lines(run.sandbox.protection):
            print(harmless(line))
    ending = f"{run.stop_reason} after {len(run.steps)} steps"
    print(f"Answer     {harmless(run.answer or '(none)')}  [{ending}]")
    for artifact in run.artifacts.values():
        print(f"File       {harmless(artifact.path)} ({artifact.mime}, {format_size(artifact.size)})")
    if run.start and (folder := next((HERE / "sandbox-runs").glob(f"*/{run.start.run_id}"), None)):
        print(f"Folder     {folder / 'files'}")


if __name__ == "__main__":
    sys.exit(main())
