"""The notebook that goes back in time runs as it stands, on every isolation; cells know where their files are from."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import nbformat
from agent_scripts import SUBMIT, bash, script, turn
from warm_kernels import ROOT, kernel_environment

from llm_sandbox_nb.runs.run import Run
from notebooks import MIME, cards, errors, execute, printed, ran, record_of

NOTEBOOK = ROOT / "notebooks" / "05-why-agents-fail.ipynb"


def shown(cell: Any) -> str:
    plain = [output.data["text/plain"] for output in cell.get("outputs", ()) if "data" in output]
    return printed(cell) + "".join(plain)


def cell_with(notebook: Any, text: str) -> str:
    [found] = [shown(cell) for cell in notebook.cells if cell.cell_type == "code" and text in cell.source]
    return found


def test_the_notebook_puts_the_mistake_right(some_isolation: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "notebooks" / "data", tmp_path / "data")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is saved without outputs"
    execute(notebook, tmp_path, kernel_environment(tmp_path, LLM_SANDBOX_ISOLATION=some_isolation))
    assert "5 cities, 108.3 million" in cell_with(notebook, "print(result.answer)\nprint(result.steps")
    preview = cell_with(notebook, "result.preview(4)")
    assert "cities.csv" in preview
    assert "- " in preview
    assert "answer.txt" in preview
    assert cell_with(notebook, "%sandbox sh wc").split()[:2] == ["9", "cities.csv"]
    assert cell_with(notebook, "result.edit(").count("3 cities, 100.8 million people") >= 1
    compared = cell_with(notebook, "comparison = result.compare()")
    assert "First difference: step 5." in compared
    difference = cell_with(notebook, "first_different_step")
    assert difference.startswith("5\n")
    assert "-5 cities, 108.3 million people\n+3 cities, 100.8 million people" in difference
    assert "Replayed 7 steps: nothing differs." in cell_with(notebook, "result.replay()")
    assert len(cards(notebook)) == 4, "the run, its second attempt, a fork, and the run of the exercises"
    folders = sorted((tmp_path / "sandbox-runs").glob("*/*/journal.jsonl"))
    first = Run.load(folders[0].parent)
    assert (len(first.attempts), first.answer) == (2, "3 cities, 100.8 million people")


def test_two_branches_go_on_at_once_in_a_cell(tmp_path: Path) -> None:
    """Each with a card of its own. Each waits for the other, so they only end when both are under way."""
    meet = f"cd {tmp_path}; touch $NAME; until [ -e a ] && [ -e b ]; do sleep 0.05; done"
    model = script(tmp_path, turn(bash("pwd")), turn(bash(meet)), SUBMIT)
    cells = ran(
        tmp_path,
        f"%%sandbox -m {model} -o run --break \"'touch' in command\" --on-pause stop\nTask",
        "import asyncio; a = run.fork(1); b = run.fork(1); loop = a.context.loop",
        "for one, name in ((a, 'a'), (b, 'b')):\n"
        "    asyncio.run_coroutine_threadsafe(one.context.box.run(f'export NAME={name}'), loop).result()\n"
        "more = {'breakpoints': [], 'text': 'Go on.'}\n"
        "ends = await asyncio.gather(*(asyncio.to_thread(one.resume, **more) for one in (a, b)))\n"
        "print([end.stop_reason for end in ends])",
        "a.close(); b.close()",
    )
    assert "['submitted', 'submitted']" in printed(cells[3]), cells[3].outputs
    assert not errors(cells[4])
    assert len(cards(cells)) == 3


def test_a_cell_that_runs_again_can_have_its_original_files(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    one = script(tmp_path / "a", turn(bash("ls; echo A >> a.txt")), SUBMIT)
    two = script(tmp_path / "b", turn(bash("echo B >> b.txt")), SUBMIT)
    _, *cells = ran(
        tmp_path,
        f"%%sandbox -m {one} -o one\nTask a",
        f"%%sandbox -m {two} -o two\nTask b",
        f"%%sandbox -m {one} -o again\nTask a",
        f"%%sandbox -m {one} -o original --from-files-of one\nTask a",
        f"%%sandbox -m {one} -o later --from-files-of two:1\nTask a",
        "for run in (one, again, original, later): print(run.steps[0].calls[0].output.count('.txt'))",
        f"%%sandbox -m {one} --from-files-of two:9\nTask a",
        "%sandbox rewind 0 --run two --others",
        "%sandbox sh ls",
        "%sandbox undo --run two",
        "%sandbox fork 1 -o forked",
        "print(forked.resume('More.').stop_reason); forked.close()",
        "%sandbox compare one two",
        "%sandbox replay --run one",
        "%sandbox rewind x",
        "%sandbox fresh",
        f"%%sandbox -m {two}\nTask b",
        f"%%sandbox -m {one}\nTask a",
        f"%%sandbox -m {one}\nTask a",
    )
    assert "This task ran before in this sandbox" not in printed(cells[17]), "not in this sandbox"
    assert "This task ran before in this sandbox" in printed(cells[18])
    assert "scripted: free" in shown(cells[12])
    assert "--from-files-of" not in printed(cells[0])
    assert "--from-files-of" not in printed(cells[1])
    assert "This task ran before in this sandbox" in printed(cells[2])
    assert printed(cells[5]).split() == ["0", "2", "0", "2"]
    assert "has no step 9" in errors(cells[6])[0].evalue
    assert "Back to the beginning" in printed(cells[7])
    assert "b.txt" not in printed(cells[8])
    assert "the end of step 2 again" in printed(cells[9])
    assert "Forked after step 1" in printed(cells[10])
    assert "submitted" in printed(cells[11])
    assert "differ in the end" in shown(cells[12])
    assert "nothing differs" in printed(cells[13])
    assert "%sandbox rewind STEP" in errors(cells[14])[0].evalue


def test_the_next_cell_finds_the_run_as_it_was_when_the_await_was_forgotten(tmp_path: Path) -> None:
    model = script(tmp_path, turn(bash("echo a > a.txt")), SUBMIT)
    _, *cells = ran(
        tmp_path,
        "from llm_sandbox_nb import solve\n"
        f"result = await solve('Task', model={model!r}, isolation='process')",
        "result.rewind(1)",
        "print(await result.rewind(0)); result",
        "print(await result.undo())",
    )
    assert not any(errors(cell) for cell in cells)
    assert "Write `await result.rewind(1)`." in shown(cells[1])
    assert "Ready to continue from the beginning: result.resume()" in shown(cells[2])
    assert "the end of step 2 again" in printed(cells[3])


def test_a_cell_does_not_remove_the_files_of_another_unasked(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    one = script(tmp_path / "a", turn(bash("echo A > a.txt")), turn(bash("echo B >> a.txt")), SUBMIT)
    two = script(tmp_path / "b", turn(bash("echo B > b.txt")), SUBMIT)
    _, *cells = ran(
        tmp_path,
        f"%%sandbox -m {one} -o one\nMake a",
        f"%%sandbox -m {two} -o two\nMake b",
        "%sandbox preview 1 --run one",
        "%sandbox preview 1 --json --run one",
        "%sandbox rewind 1 --run one",
        "%sandbox sh ls",
        "%sandbox rewind 1 --others --run one",
        "%sandbox sh ls",
        "%sandbox undo --run one",
        "%sandbox sh ls",
    )
    assert "1 path was changed later by another run ('Make b'). These changes are undone too:" in printed(
        cells[2]
    )
    told = json.loads(printed(cells[3]))
    assert (told["own"]["total"], told["others"]["total"], told["other_runs"]) == (1, 1, ["Make b"])
    assert "--others" in errors(cells[4])[0].evalue
    assert "b.txt" in printed(cells[5])
    assert "b.txt" in printed(cells[6])
    assert "b.txt" not in printed(cells[7])
    assert "b.txt" in printed(cells[9])


def test_a_rewound_run_continues_in_the_place_of_its_card(tmp_path: Path) -> None:
    """Plainly, with words to the model, with another next call; the card of the first cell shows it."""
    (tmp_path / "a").mkdir()
    one = script(
        tmp_path / "a", turn(bash("echo A > a.txt")), turn(bash("echo B >> a.txt; cat a.txt")), SUBMIT
    )
    edited = json.dumps({"command": "echo 'its \u00e9 {x}' >> a.txt; cat a.txt"})
    _, *cells = ran(
        tmp_path,
        f"%%sandbox -m {one}\nMake a",
        "x = 1\n%sandbox rewind 1",
        "%sandbox resume --in-place",
        "%sandbox rewind 1",
        f"%sandbox resume --in-place --edit {shlex.quote(edited)}",
        "%sandbox rewind 1",
        "%sandbox resume --say 'Once more {x}.' ",
        "%sandbox resume --edit '[1]'",
        "%sandbox sh cat a.txt",
    )
    assert not any(errors(cell) for cell in cells[:7]), [errors(cell) for cell in cells]
    assert "JSON object" in errors(cells[7])[0].evalue
    shown_in = [sum(MIME in output.get("data", {}) for output in cell.outputs) for cell in cells[:7]]
    assert shown_in == [1, 0, 0, 0, 0, 0, 1]
    assert "echo 'its" in str(record_of(cells[0].outputs[-1].data)["events"])
    assert "Once more {x}." in str(record_of(cells[6].outputs[-1].data)["events"])
    (journal,) = tmp_path.glob("sandbox-runs/*/*/journal.jsonl")
    run = Run.load(journal.parent)
    assert run.stop_reason == "submitted"
    outputs = [call.output for branch in run.attempts for step in run.at(branch).steps for call in step.calls]
    assert any("its \u00e9 {x}" in output for output in outputs)
    assert printed(cells[8]) == "A\nB\n"
