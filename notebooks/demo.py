"""`make demo`: runs the first notebook without a screen and says what came of it.

python notebooks/demo.py [--out FOLDER] [--isolation docker|bubblewrap|process] [NOTEBOOK]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from llm_sandbox_nb.cli.printer import harmless, protection_lines, size_in_words
from llm_sandbox_nb.notebook.card_packing import unpacked
from llm_sandbox_nb.notebook.card_text import plain
from llm_sandbox_nb.sandbox.detect import why_no_bubblewrap, why_no_docker
from llm_sandbox_nb.trajectory.events import parse_python
from llm_sandbox_nb.trajectory.trajectory import Trajectory

HERE = Path(__file__).parent
SCRIPT = "llm_sandbox_nb/agent/scripts/first-task.yaml"
MIME = "application/vnd.llm-sandbox.trajectory+json"
WITHOUT_ISOLATION = """\
There is no isolation here: {reasons}.
The demo's commands run as plain processes of yours, with your rights. They are harmless, and were written down
beforehand: no model is asked. Read them first, in {script}, if you like.
"""


def main() -> int:
    """Choose the isolation, run the notebook, tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", nargs="?", type=Path, default=HERE / "01-first-task.ipynb")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--isolation", choices=("", "docker", "bubblewrap", "process"), default="")
    arguments = parser.parse_args()
    os.environ["LLM_SANDBOX_ISOLATION"] = arguments.isolation or asyncio.run(strongest())
    os.environ["JPY_SESSION_NAME"] = str(arguments.notebook.resolve())
    target = arguments.out.resolve() / arguments.notebook.name
    notebook = nbformat.read(arguments.notebook, as_version=4)
    failure = execute(notebook, arguments.notebook.resolve().parent, target)
    for trajectory in trajectories(notebook):
        tell(trajectory)
    print(f"\nThe notebook with its results is {target}")
    if failure:
        print(f"The notebook did not run to its end: {failure}", file=sys.stderr)
    return 1 if failure else 0


async def strongest() -> str:
    """The strongest isolation that works here; plain processes with a warning when none does."""
    no_docker, no_bubblewrap = await asyncio.gather(why_no_docker(None), why_no_bubblewrap())
    if not no_docker:
        return "docker"
    if not no_bubblewrap:
        return "bubblewrap"
    print(WITHOUT_ISOLATION.format(reasons=f"{no_docker}; {no_bubblewrap}", script=SCRIPT))
    return "process"


def execute(notebook: nbformat.NotebookNode, folder: Path, target: Path) -> str:
    """Run all cells, as Jupyter would; save what there is; say in one line what went wrong, if anything."""
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


def tell(run: Trajectory) -> None:
    """Answer, files and isolation of one run."""
    if run.start:
        print(f"Task       {harmless(run.start.task.strip().splitlines()[0])}")
        scripted = " (scripted: plays a file, asks no model)" if run.start.scripted else ""
        print(f"Model      {run.start.model}{scripted}")
    if run.sandbox:
        for line in protection_lines(run.sandbox.protection):
            print(harmless(line))
    ending = f"{run.stop_reason} after {len(run.steps)} steps"
    print(f"Answer     {harmless(run.answer or '(none)')}  [{ending}]")
    for artifact in run.artifacts.values():
        print(f"File       {harmless(artifact.path)} ({artifact.mime}, {size_in_words(artifact.size)})")
    if run.start and (folder := next((HERE / "sandbox-runs").glob(f"*/{run.start.run_id}"), None)):
        print(f"Folder     {folder / 'files'}")


if __name__ == "__main__":
    sys.exit(main())
