"""Notebook with a section for each example. JupyterLab's launcher opens this notebook."""

from __future__ import annotations

import textwrap
from typing import Any

from llm_sandbox_nb.examples.gallery import EXAMPLES, Example

_LINE_CHARACTERS = 96
"""Maximum number of characters of a line in a cell, so that the line is visible without scrolling."""
_INTRODUCTION = """\
# Ten examples

Six domains, and four results that are media files. Run the cell below, then any section: each begins in a new, empty
sandbox.

The models are *scripted*: each reads its replies from a file, so you need no key and no internet. The commands, their
mistakes and the files are real. For a real model, enter its key with `%sandbox key`, and write its name after `-m`,
such as `-m openai/gpt-5`."""
_BEGINNING = """\
%load_ext llm_sandbox_nb
from llm_sandbox_nb.examples.checks import read_files
from llm_sandbox_nb.examples.gallery import EXAMPLES"""
_CHECK = """\
problem = EXAMPLES["{name}"].check(read_files(result.folder / "files"))
print(problem or "The result is right.")"""


def examples_notebook() -> dict[str, Any]:
    """Return the notebook, without outputs, in Jupyter's format 4.5."""
    cells = [_cell("introduction", "markdown", _INTRODUCTION), _cell("begin", "code", _BEGINNING)]
    for example in EXAMPLES.values():
        cells += _section(example)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _section(example: Example) -> list[dict[str, Any]]:
    name = example.name
    options = f"-m {example.model} --fresh"
    cells = [_cell(name, "markdown", f"## {example.title[:1].upper()}{example.title[1:]}")]
    if example.inputs:
        cells.append(_cell(f"{name}-files", "code", f'files = EXAMPLES["{name}"].inputs / "*"'))
        options += " -i files"
    task = textwrap.fill(" ".join(example.task.split()), _LINE_CHARACTERS)
    cells.append(_cell(f"{name}-task", "code", f"%%sandbox {options} -o result\n{task}"))
    cells.append(_cell(f"{name}-check", "code", _CHECK.format(name=name)))
    return cells


def _cell(name: str, kind: str, source: str) -> dict[str, Any]:
    cell = {"cell_type": kind, "id": name, "metadata": {}, "source": source}
    return cell if kind == "markdown" else cell | {"execution_count": None, "outputs": []}
