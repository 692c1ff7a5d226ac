"""`make demo` tells what came of the first notebook, on every isolation; `make` says what a machine lacks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from support import BUSY, MIME, QUICK_IMPORTS

from llm_sandbox_nb.model.local.table import MODELS

ROOT = Path(__file__).parents[3]


def demo(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the demo; its results go below the folder."""
    command = [sys.executable, "notebooks/demo.py", "--out", str(folder / "out"), *words]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{QUICK_IMPORTS}", **environment}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.campaign
def test_the_demo_tells_answer_files_isolation_and_where_the_notebook_is(
    some_isolation: str, tmp_path: Path
) -> None:
    done = demo(tmp_path, "--isolation", some_isolation)
    assert done.returncode == 0, done.stdout + done.stderr
    saved = tmp_path / "out" / "01-first-task.ipynb"
    said = ("Answer ", "File ", f"Isolation  {some_isolation}", "(scripted")
    for part in (*said, f"The notebook with its results is {saved}"):
        assert part in done.stdout
    shown = [
        output for cell in nbformat.read(saved, as_version=4).cells for output in cell.get("outputs", ())
    ]
    kinds = {kind for output in shown for kind in output.get("data", {})}
    assert {"application/vnd.llm-sandbox.trajectory+json", "text/html", "text/plain"} <= kinds


@pytest.mark.campaign
@pytest.mark.timeout(1200)
def test_a_real_model_is_fetched_checked_and_does_the_first_task(some_isolation: str, tmp_path: Path) -> None:
    store = tmp_path / "models"  # empty, as on a new machine
    begun = time.monotonic()
    done = demo(tmp_path, "--isolation", some_isolation, "--model", "local", LLM_SANDBOX_MODELS=str(store))
    took = time.monotonic() - begun
    assert done.returncode == 0, done.stdout + done.stderr
    model = MODELS["qwen2.5-coder-1.5b"]
    assert "Model      local/qwen2.5-coder-1.5b (real, not scripted)" in done.stdout
    assert f"sha256 {model.sha256}, served by xllamacpp" in done.stdout
    assert [path.name for path in store.glob("*/*.gguf")] == [model.file]
    cells = nbformat.read(tmp_path / "out" / "01-first-task.ipynb", as_version=4).cells
    (first,) = [cell for cell in cells if cell.source.startswith("%%sandbox -m local/")]
    cards = [output for output in first.outputs if MIME in output.get("data", {})]
    assert "A real model, on this machine" in cards[-1].data["text/html"]
    assert not any("scripted/strawberry" in cell.source for cell in cells), "the text names the real model"
    assert took < 360 * BUSY, f"{took:.0f} s"


def test_a_local_model_that_is_none_ends_the_demo_with_one_sentence(tmp_path: Path) -> None:
    done = demo(tmp_path, "--isolation", "process", "--model", "local/none")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "There is no local model 'none'" in done.stderr


def test_without_docker_and_bubblewrap_the_demo_runs_and_says_that_nothing_isolates(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for path in Path("/usr/bin").iterdir():
        if path.name != "bwrap":
            (programs / path.name).symlink_to(path)
    done = demo(tmp_path, PATH=str(programs), DOCKER_HOST="tcp://127.0.0.1:9")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("There is no isolation here")
    script = next(word for word in done.stdout.split() if word.endswith(".yaml,")).rstrip(",")
    assert (ROOT / script).is_file()
    assert "Isolation  process" in done.stdout


def make(*words: str, path: str) -> subprocess.CompletedProcess[str]:
    command = ["/usr/bin/make", "--directory", str(ROOT), *words]
    return subprocess.run(command, env={"PATH": path}, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("#!/bin/sh\nexit 1\n", "Python 3.11 or later is needed"),
        (f'#!/bin/sh\n[ "$2" = venv ] && exit 1\nexec {sys.executable} "$@"\n', "install python3-venv"),
    ],
    ids=["too old", "without venv"],
)
def test_without_a_python_that_will_do_make_says_what_to_install(
    program: str, said: str, tmp_path: Path
) -> None:
    for name in ("python3", "python3.11", "python3.12", "python3.13"):
        (tmp_path / name).write_text(program)
        (tmp_path / name).chmod(0o755)
    done = make("demo", f"VENV={tmp_path}/none", path=f"{tmp_path}:/usr/bin:/bin")
    assert done.returncode != 0
    assert said in done.stderr
    assert not (tmp_path / "none" / "bin").exists()


def test_make_alone_explains_itself() -> None:
    done = make(path="/usr/bin:/bin")
    assert done.returncode == 0
    assert all(
        f"make {name}" in done.stdout for name in ("demo", "lab", "test", "quick", "check", "build", "clean")
    )


def test_a_cell_that_fails_is_told_in_plain_words(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    nbformat.write(notebook, tmp_path / "broken.ipynb")
    done = demo(tmp_path, "--isolation", "process", str(tmp_path / "broken.ipynb"))
    assert done.returncode == 1
    said = "The notebook did not run to its end: ZeroDivisionError: division by zero\n"
    assert done.stderr.endswith(said), done.stderr
