"""Runs notebooks in real kernels, and reads what their cells left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook
from support import record_of
from warm_kernels import kernel_environment, warm_kernel

MIME = "application/vnd.llm-sandbox.trajectory+json"
LOAD = "%load_ext llm_sandbox_nb"


def notebook_of(*cells: str) -> NotebookNode:
    return new_notebook(cells=[new_code_cell(cell) for cell in (LOAD, *cells)])


def execute(
    notebook: NotebookNode, folder: Path, environment: dict[str, str], **options: Any
) -> NotebookNode:
    """Run all cells in `folder`. Raises CellExecutionError as `jupyter execute` would."""
    with warm_kernel(folder, environment) as manager:
        client = NotebookClient(notebook, km=manager, **{"timeout": 280, **options})
        try:
            client.execute()
        finally:
            if client.kc:
                client.kc.stop_channels()
    nbformat.validate(notebook)
    return notebook


def ran(folder: Path, *cells: str, **environment: str) -> list[NotebookNode]:
    """The load line and these cells, after all of them ran in `folder`; without a word about it in `process`."""
    notebook = notebook_of(*cells)
    environment = kernel_environment(folder, **{"LLM_SANDBOX_ISOLATION": "process", **environment})
    execute(notebook, folder, environment, allow_errors=True)
    done: list[NotebookNode] = notebook.cells
    return done


def outputs(cell: NotebookNode) -> Iterator[NotebookNode]:
    yield from cell.get("outputs", ())


def cards(notebook: NotebookNode | list[NotebookNode]) -> list[dict[str, Any]]:
    cells = notebook if isinstance(notebook, list) else notebook.cells
    found = [output for cell in cells for output in outputs(cell) if "data" in output]
    return [output.data for output in found if MIME in output.data]


def records(notebook: NotebookNode | list[NotebookNode]) -> list[dict[str, Any]]:
    return [record_of(bundle) for bundle in cards(notebook)]


def printed(cell: NotebookNode) -> str:
    return "".join(output.text for output in outputs(cell) if output.output_type == "stream")


def errors(cell: NotebookNode) -> list[NotebookNode]:
    return [output for output in outputs(cell) if output.output_type == "error"]
