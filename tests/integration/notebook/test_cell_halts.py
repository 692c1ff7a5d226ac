"""Halts in a cell without a server: asked in the cell, or refused at once where nobody can be asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from live_kernel import live_kernel
from support import PATIENCE
from warm_kernels import kernel_environment

from notebooks import execute, notebook_of, outputs

SCRIPT = """
turns:
  - calls: [{tool: execute_bash, arguments: {command: "rm -rf precious"}}]
  - calls: [{tool: execute_bash, arguments: {command: "cat note.txt"}}]
  - calls: [{tool: submit}]
"""
CELL = "%%sandbox -m scripted/./script.yaml --isolation process -o run {}\nWork."
TOLD = "print(run.stop_reason, [(c.tool, c.arguments.get('command')) for s in run.steps for c in s.calls])"


def asked(folder: Path, options: str, *answers: str) -> tuple[list[str], str, str]:
    """The prompts of a cell, what it printed, and how its run ended, with a person who gives these answers."""
    (folder / "script.yaml").write_text(SCRIPT)
    with live_kernel(folder) as kernel:
        kernel.run(
            "def nothing_deleted(moment):\n    return moment.at == 'call' and 'rm' in (moment.command or '')"
        )
        cell = str(kernel.client.execute(CELL.format(options), allow_stdin=True))
        prompts = []
        for answer in answers:
            prompts.append(kernel.client.get_stdin_msg(timeout=PATIENCE)["content"]["prompt"])
            kernel.client.input(answer)
        messages = kernel.messages(cell)
        printed = "".join(m["content"]["text"] for m in messages if m["msg_type"] == "stream")
        return prompts, printed, kernel.printed(TOLD).strip()


def test_a_person_steps_edits_and_says_what_the_model_sees(tmp_path: Path) -> None:
    prompts, printed, told = asked(
        tmp_path,
        "--step",
        "nonsense",
        "edit command='echo kept > note.txt'",
        "",
        "",
        "observe It says: kept.",
        "c",
    )
    assert "Run this command?" in printed
    assert "rm -rf precious" in printed
    assert "There is no command 'nonsense'" in printed
    assert "What the model will read:" in printed
    assert "deny, edit" in prompts[0]
    assert "observe" in prompts[2]
    assert told == (
        "submitted [('execute_bash', 'echo kept > note.txt'), ('execute_bash', 'cat note.txt'), ('submit', None)]"
    )


@pytest.mark.parametrize(
    "options", ["--break \"'rm ' in command\"", "--break-when nothing_deleted", "--approve edits"]
)
def test_a_breakpoint_a_function_and_an_approval(options: str, tmp_path: Path) -> None:
    more = ("continue",) if "approve" in options else ()
    prompts, _, told = asked(tmp_path, options, "deny Nothing is deleted here.", *more)
    assert len(prompts) == 1 + len(more)
    assert told.startswith("submitted [('execute_bash', 'rm -rf precious')")


def test_nobody_can_be_asked_under_nbclient(tmp_path: Path) -> None:
    (tmp_path / "script.yaml").write_text(SCRIPT)
    needs = ("--step", "--approve ask", "--approve edits")
    wrong = {
        "--break \"comand == 'ls'\"": "did you mean command",
        "--break-when nobody": "'nobody' is not defined",
        "--approve maybe": "invalid choice",
    }
    works = ("--break \"'rm ' in command\" --on-pause stop", "--step --on-pause continue")
    started = "import pathlib; print(pathlib.Path('sandbox-runs').exists())"
    sources = [CELL.format(options) for options in (*needs, *wrong, *works)]
    sources.insert(-len(works), started)
    notebook = execute(notebook_of(*sources), tmp_path, kernel_environment(tmp_path), allow_errors=True)
    shown = [list(outputs(cell)) for cell in notebook.cells[1:]]
    for option, (output,) in zip(needs, shown, strict=False):
        assert output.evalue.startswith(f"{option} needs a person who decides")
        for word in ("nbclient", "papermill", "--on-pause stop", "--break EXPR"):
            assert word in output.evalue
        assert "\n" not in output.evalue
    for why, (output,) in zip(wrong.values(), shown[len(needs) :], strict=False):
        assert why in output.evalue
    *_, nothing, stopped, submitted = shown
    assert nothing[0].text == "False\n", "nothing was started"
    assert stopped[-1].ename == "KeyboardInterrupt", "what the sentence says works"
    assert all(output.output_type != "error" for output in submitted)


@pytest.mark.campaign
def test_papermill_is_told_at_once_and_runs_what_the_sentence_says(tmp_path: Path) -> None:
    """With a parameter of its own; in a process of its own, which it leaves at once."""
    (tmp_path / "script.yaml").write_text(SCRIPT)
    parameters = nbformat.v4.new_code_cell("halt = '--step'", metadata={"tags": ["parameters"]})
    source = "get_ipython().run_cell_magic('sandbox', '-m scripted/script.yaml --isolation process ' + halt, 'Work.')"
    cells = [parameters, *(nbformat.v4.new_code_cell(text) for text in ("%load_ext llm_sandbox_nb", source))]
    kernel = {"kernelspec": {"name": "python3", "display_name": "p", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), tmp_path / "in.ipynb")
    words = [sys.executable, "-m", "papermill", "--no-progress-bar", "in.ipynb", "out.ipynb"]

    def papermill(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*words, *more], cwd=tmp_path, capture_output=True, text=True, timeout=120)

    failed = papermill()
    assert failed.returncode == 1
    assert "--step needs a person who decides when the run pauses" in failed.stderr
    assert not (tmp_path / "sandbox-runs").exists(), "nothing was started"
    assert papermill("-p", "halt", "--step --on-pause continue").returncode == 0
    cells = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells
    assert any("Submitted" in str(output) for output in cells[-1].outputs)
