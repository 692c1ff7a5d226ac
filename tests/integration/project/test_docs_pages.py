"""The tutorial runs as it is written; the examples of other pages run too, wherever a scripted model can stand in."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from nbformat.v4 import new_code_cell
from pages import DOCS, PAGES, ROOT, Example, examples_of, name_of
from support import require
from warm_kernels import kernel_environment

from llm_sandbox_nb.cli import main
from notebooks import errors, execute, notebook_of, printed

PREPARED = "sandbox-runs/20260131-120000-ab12cd"
"""The folder of a run, where pages name one."""


def shown(cell: Any) -> str:
    plain = [output.data["text/plain"] for output in cell.get("outputs", ()) if "data" in output]
    return printed(cell) + "".join(plain)


def test_the_tutorial_runs_and_shows_what_it_says(some_isolation: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "notebooks" / "data", tmp_path / "data")
    examples = examples_of(DOCS / "tutorial" / "first-run.md")
    steps = [example for example in examples if example.kind in ("python", "", "output")]
    notebook = notebook_of()
    notebook.cells = [new_code_cell(one.text.strip()) for one in steps if one.kind != "output"]
    execute(notebook, tmp_path, kernel_environment(tmp_path, LLM_SANDBOX_ISOLATION=some_isolation))
    cells = iter(notebook.cells)
    compared = 0
    for one in steps:
        if one.kind != "output":
            cell = next(cells)
            assert not errors(cell)
            continue
        lines = shown(cell).splitlines()
        for line in one.text.splitlines():
            assert line in lines, f"{line!r} after {cell.source!r}, which showed {shown(cell)!r}"
            compared += 1
    assert compared >= 8
    assert (tmp_path / "first-run.html").stat().st_size > 10_000


@dataclass(frozen=True)
class Stage:
    """What stands in for what a page's reader has: a model in place of a real one, and cells before the first."""

    model: str = "scripted/strawberry"
    isolation: str = "process"
    replaced: dict[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()


NO_PERSON = {"--step": "--step --on-pause continue", "--approve ask": "--approve ask --on-pause continue"}
RUN_BEFORE = (
    "from pathlib import Path\nfrom llm_sandbox_nb import solve\n"
    "made = await solve('Count.', model='scripted/strawberry', isolation='process', show=False)\n"
    f"Path(made.folder).rename('{PREPARED}')",
)
"""A run in the folder that pages name."""

STAGES = {
    "README.md": Stage(
        "scripted/time-travel",
        replaced={"-i data.csv": "-i data/cities.csv", "poster.png": "answer.txt"},
    ),
    "docs/index.md": Stage(),
    "docs/how-to/ci.md": Stage(
        before=("count = 3", *RUN_BEFORE),
        replaced={"%%sandbox --vars": "%%sandbox -m scripted/strawberry --vars"},
    ),
    "docs/how-to/colab.md": Stage(
        # tests/unit/project/test_packaging.py executes these two.
        replaced={
            "%pip install --quiet llm_sandbox_nb-0.1.0-py3-none-any.whl": "",
            "get_ipython().kernel.do_shutdown(True)": "",
        }
    ),
    "docs/how-to/did-it-work.md": Stage(
        before=RUN_BEFORE, replaced={"sandbox-runs/20261125-101500-3f2a9c1e": PREPARED}
    ),
    "docs/how-to/own-model.md": Stage(),
    "docs/how-to/own-tool.md": Stage("scripted/lookup.yaml"),
    "docs/reference/own-tool.md": Stage(),
    "docs/reference/doubts.md": Stage(),
    "docs/how-to/pause.md": Stage(
        before=("my_function = lambda moment: False",),
        replaced={**NO_PERSON, "breakpoints=[\"tool == 'submit'\"]": "breakpoints=[\"tool == 'none'\"]"},
    ),
    "docs/how-to/python.md": Stage(),
    "docs/how-to/rewind.md": Stage("scripted/time-travel"),
    "docs/how-to/sandbox.md": Stage(isolation="docker"),
    "docs/how-to/share.md": Stage(
        before=RUN_BEFORE, replaced={"sandbox-runs/01-first-task/": "sandbox-runs/"}
    ),
    "docs/how-to/analysis.md": Stage(before=RUN_BEFORE),
    "docs/how-to/teach.md": Stage(replaced=NO_PERSON),
    "docs/how-to/vscode.md": Stage(),
    "docs/how-to/watch.md": Stage(
        "scripted/time-travel",
        replaced={"-i data.csv": "-i data/cities.csv", '"poster.png"': '"answer.txt"'},
    ),
    "docs/reference/magics.md": Stage(),
    "docs/reference/python.md": Stage(),
}
ONLY_PARSED = {
    "docs/how-to/allow-hosts.md": "needs the internet; tests/integration/sandbox/test_allowed_network.py plays it",
    "docs/how-to/check.md": "needs a project; tests/integration/agent/test_checked_runs.py has such checks",
    "docs/how-to/benchmark.md": "asks a real model hundreds of questions",
    "docs/how-to/keys.md": "asks for a key, and a real model",
    "docs/how-to/model-server.md": "needs a vLLM or SGLang",
    "docs/how-to/local-models.md": "fetches a model; tests/integration/cli/test_local_models.py runs one",
    "docs/how-to/inspect.md": "needs Inspect; tests/conformance/test_inspect_host.py runs its command",
    "docs/how-to/mcp-tools.md": "needs MCP servers; tests/integration/agent/test_mcp_tools.py has such",
    "docs/how-to/mcp.md": "needs another agent; tests/browser/test_outside_agent.py plays one",
    "docs/how-to/jupyterhub.md": "configures a server; its traits are checked",
    "docs/how-to/proxy.md": "configures a server; its traits are checked",
    "docs/reference/server.md": "configures a server; its traits are checked",
    "docs/how-to/own-benchmark.md": "files of a task; another test runs them",
    "docs/how-to/training.md": "needs a trained policy",
    "docs/how-to/training-data.md": "a file of a training",
    "docs/how-to/training-gpu.md": "needs GPUs",
    "docs/tutorial/first-run.md": "another test runs it",
}
"""Pages whose cells are checked by tests/project/test_docs_examples.py alone, and why they are not executed."""


def cells_of(page: Path) -> list[Example]:
    return [example for example in examples_of(page) if example.kind in ("python", "")]


def test_no_page_with_cells_is_forgotten() -> None:
    with_cells = {name_of(page) for page in PAGES if cells_of(page)}
    assert with_cells == {*STAGES, *ONLY_PARSED}


USUAL = ("README.md", "docs/how-to/rewind.md")


@pytest.mark.parametrize(
    "name", [name if name in USUAL else pytest.param(name, marks=pytest.mark.campaign) for name in STAGES]
)
def test_the_cells_of_a_page_run(name: str, tmp_path: Path) -> None:
    stage = STAGES[name]
    require(stage.isolation)
    shutil.copytree(ROOT / "notebooks" / "data", tmp_path / "data")
    (tmp_path / "lookup.yaml").write_text(
        "turns:\n  - calls: [{tool: lookup, arguments: {word: assay}}]\n  - calls: [{tool: submit, arguments: {}}]\n"
    )
    sources = [*stage.before]
    for example in cells_of(ROOT / name):
        text = example.text
        for old, new in stage.replaced.items():
            text = text.replace(old, new)
        text = re.sub(r"openai/gpt-5", stage.model, text)
        text = re.sub(r'isolation="\w+"', f'isolation="{stage.isolation}"', text)
        text = re.sub(r'open_sandbox\("\w+"\)', f'open_sandbox("{stage.isolation}")', text)
        if "asyncio.run(" in text:
            text = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {text!r}], check=True)"
        sources.append(text.strip())
    notebook = notebook_of(*sources)
    execute(notebook, tmp_path, kernel_environment(tmp_path, LLM_SANDBOX_ISOLATION=stage.isolation))
    assert not [error for cell in notebook.cells for error in errors(cell)]


SCRIPTED = [
    line
    for page in PAGES
    for example in examples_of(page)
    if example.kind == "bash"
    for line in re.sub(r"\\\n", " ", example.text).splitlines()
    if line.startswith("llm-sandbox-nb run ") and "scripted/" in line and "--image" not in line
]


Command = Callable[[list[str], str], str]
"""Calls `llm-sandbox-nb` with these words and this isolation, and returns the output of a success."""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    def call(words: list[str], isolation: str) -> str:
        monkeypatch.setenv("LLM_SANDBOX_ISOLATION", isolation)
        code = main(words)
        out, err = capfd.readouterr()
        assert code == 0, err
        return out

    return call


@pytest.mark.parametrize("line", sorted(set(SCRIPTED)))
def test_a_command_with_a_scripted_model_runs(line: str, command: Command, tmp_path: Path) -> None:
    usual = "bubblewrap" if "--network" in line else "process"
    isolation = require(re.findall(r"--isolation (\w+)|$", line)[0] or usual)
    [berries] = [one for one in examples_of(DOCS / "how-to" / "scripted-model.md") if one.kind == "yaml"]
    (tmp_path / "berries.yaml").write_text(berries.text)
    told = command(shlex.split(line)[1:], isolation)
    assert (tmp_path / told.splitlines()[-1] / "journal.jsonl").exists()


def test_the_benchmark_of_your_own_runs(command: Command, tmp_path: Path) -> None:
    """The files of the page, each by the name in its first line, and its commands with a scripted model."""
    task = tmp_path / "my-task"
    task.mkdir()
    commands = []
    for example in examples_of(DOCS / "how-to" / "own-benchmark.md"):
        if example.kind == "json":
            (task / "data.jsonl").write_text(example.text)
        elif example.kind == "bash":
            commands += [shlex.split(line)[1:] for line in example.text.splitlines()]
        else:
            (tmp_path / example.text.splitlines()[0].removeprefix("# ")).write_text(example.text)
    (tmp_path / "reads.yaml").write_text(
        "turns:\n  - calls: [{tool: execute_bash, arguments: {command: cat input/word.txt > answer.txt}}]\n"
        "  - calls: [{tool: submit, arguments: {}}]\n"
    )
    for words in commands:
        scripted = [word.replace("openai/gpt-5", "scripted/reads.yaml") for word in words]
        told = command(scripted, "process")
    assert re.search(r"my-task +sandbox +\d+ +100\.0", told), told


def test_the_checks_of_a_class_are_counted(tmp_path: Path) -> None:
    """The block of the teacher's page reads the notebooks that were handed in."""
    [block] = [one for one in cells_of(DOCS / "how-to" / "teach.md") if one.kind == "python"]
    for name, words in {
        "ann": ("Right: 3.", "Not yet: look at step 4."),
        "ben": ("Right: 3.", "Right: 5."),
    }.items():
        cells = [
            {
                "cell_type": "code",
                "metadata": {"tags": ["check"]},
                "outputs": [{"output_type": "stream", "name": "stdout", "text": [f"{word}\n"]}],
            }
            for word in words
        ]
        (tmp_path / "handed-in" / name).mkdir(parents=True)
        (tmp_path / "handed-in" / name / "05.ipynb").write_text(json.dumps({"cells": cells}))
    done = subprocess.run(
        [sys.executable, "-c", block.text], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["handed-in/ann/05.ipynb 1 of 2", "handed-in/ben/05.ipynb 2 of 2"]
