"""The course in notebooks/: its conventions, its exercises, and what its cells printed when they were executed.

    notebook = shipped("05-why-agents-fail")
    problems_as_written(notebook)                  # what breaks a convention, in words
    execute(solved(notebook), ...)                 # with the solutions in place of the exercises
    problems_as_executed(notebook, "Right: ")

CONTRIBUTING.md lists the conventions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import nbformat
from nbformat import NotebookNode

FOLDER = Path(__file__).parents[1] / "notebooks"
NAMES = tuple(path.stem for path in sorted(FOLDER.glob("[0-9][0-9]-*.ipynb")))
LEARNING = "08-learning"
"""Needs the training packages, and minutes: test_training_notebook.py executes it."""
EXECUTED = tuple(name for name in NAMES if name != LEARNING)
LARGEST = 300_000
"""Bytes of a file that a run leaves in its output folder: mybinder.org sends a megabit a second."""
MINUTES = 10
"""Most that a notebook says it takes."""
VERDICTS = ("Not yet: ", "Right: ")
_SOLUTION = re.compile(
    r"\A<details>\s*<summary>Solution</summary>\n\n.*?^```(python|text)\n(.*?)\n```$.*?^</details>$",
    re.DOTALL | re.MULTILINE,
)
_GOALS = re.compile(r"^You will\n\n?((?:^- .*\n(?:^  .*\n)*)+)", re.MULTILINE)
_TIME = re.compile(r"about (\w+) minutes?\b", re.IGNORECASE)
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def shipped(name: str) -> NotebookNode:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def tagged(notebook: NotebookNode, tag: str) -> list[int]:
    return [place for place, cell in enumerate(notebook.cells) if tag in cell.metadata.get("tags", ())]


def solutions(notebook: NotebookNode) -> Iterator[tuple[int, str]]:
    """The place of each exercise, with the source that solves it. Raises ValueError where that is not there."""
    for place in tagged(notebook, "exercise"):
        following = notebook.cells[place + 1 : place + 3]
        tags = [cell.metadata.get("tags", ()) for cell in following]
        if len(following) < 2 or "check" not in tags[0] or following[0].cell_type != "code":
            raise ValueError(
                f"cell {place}: an exercise is followed by a cell tagged check, then by its solution"
            )
        found = _SOLUTION.match(following[1].source)
        if following[1].cell_type != "markdown" or found is None or found[0].count("```") != 2:
            raise ValueError(f"cell {place + 2}: a solution is a folded cell with one fenced block")
        if (found[1] == "text") != found[2].startswith("%%"):
            raise ValueError(
                f"cell {place + 2}: a cell magic is fenced as text, all other solutions as python"
            )
        yield place, found[2]


def solved(notebook: NotebookNode) -> NotebookNode:
    copy = deepcopy(notebook)
    for place, source in solutions(notebook):
        copy.cells[place].source = source
    return copy


def problems_as_written(notebook: NotebookNode) -> list[str]:
    problems = []
    first = "\n".join(cell.source for cell in notebook.cells[: first_code(notebook)]) + "\n"
    goals = _GOALS.search(first)
    if not first.startswith("# "):
        problems.append("it does not begin with a title")
    if goals is None or not 2 <= len(re.findall("^- ", goals[1], re.MULTILINE)) <= 4:
        problems.append("it has no list `You will` of two to four goals before its first code")
    minutes = _TIME.search(first)
    if minutes is None or _number(minutes[1]) not in range(1, MINUTES + 1):
        problems.append(f"it does not say `about N minutes`, {MINUTES} at most")
    if not re.search(r"no\s+key", first) or not re.search(r"no\s+internet", first):
        problems.append("it does not say that it needs no key and no internet")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if not code[0].source.startswith("%load_ext llm_sandbox_nb"):
        problems.append("its first code does not load the extension")
    text = "\n".join(cell.source for cell in notebook.cells)
    if "-m scripted/" in text and "%sandbox key" not in text:
        problems.append("it does not say how a real model gets its key: %sandbox key")
    if any(cell.outputs or cell.execution_count for cell in code):
        problems.append("it is saved with outputs")
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        problems.append("its kernel is not python3")
    if notebook.nbformat_minor < 5 or len({cell.get("id") for cell in notebook.cells}) < len(notebook.cells):
        problems.append("its cells have no ids of their own")
    try:
        places = [place for place, _ in solutions(notebook)]
    except ValueError as error:
        problems.append(str(error))
    else:
        if not places:
            problems.append("it has no exercise")
        if tagged(notebook, "check") != [place + 1 for place in places]:
            problems.append("a cell is tagged check and follows no exercise")
    return problems


def first_code(notebook: NotebookNode) -> int:
    return next(place for place, cell in enumerate(notebook.cells) if cell.cell_type == "code")


def _number(word: str) -> int:
    return int(word) if word.isdecimal() else _NUMBERS.index(word) if word in _NUMBERS else 0


def problems_as_executed(notebook: NotebookNode, verdict: str) -> list[str]:
    """What went wrong in a notebook that was executed; its checks are to say `verdict`."""
    problems = []
    for place, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and cell.source.strip() and cell.execution_count is None:
            problems.append(f"cell {place} was not executed")
        expected = "raises-exception" in cell.metadata.get("tags", ())
        failed = [one for one in cell.get("outputs", ()) if one.output_type == "error"]
        if failed and not expected:
            problems.append(f"cell {place}: {failed[0].ename}: {failed[0].evalue}")
    for place in tagged(notebook, "check"):
        said = _printed(notebook.cells[place]).splitlines()
        if len(said) != 1 or not said[0].startswith(verdict):
            problems.append(
                f"the check in cell {place} says {said}, not one line that begins with {verdict!r}"
            )
    for place in tagged(notebook, "network"):
        if not notebook.cells[place].get("outputs"):
            problems.append(f"cell {place} needs the network and does not say so")
    return problems


def _printed(cell: NotebookNode) -> str:
    return "".join(output.text for output in cell.get("outputs", ()) if output.output_type == "stream")


def large_files(folder: Path) -> list[str]:
    """Files that runs below `folder` left in their output folders, and that are too large for a slow line."""
    kept = [path for path in folder.glob("sandbox-runs/**/files/**/*") if path.is_file()]
    sizes = {path.name: path.stat().st_size for path in kept}
    return [f"{name}: {size} bytes" for name, size in sizes.items() if size > LARGEST]
