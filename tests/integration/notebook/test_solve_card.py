"""`await solve(...)`, runs and files in the cells of real kernels; and nothing of that in a script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from live_kernel import cards_of, live_kernel
from nbformat import NotebookNode
from support import record_of
from warm_kernels import kernel_environment

from notebooks import MIME, errors, execute, notebook_of, outputs, ran

IMPORT = "from llm_sandbox_nb import solve"
SLOW = """
turns:
  - text: I wait.
    calls:
      - tool: execute_bash
        arguments:
          command: |
            seq -f 'line %g' 1 2; until [ -e GO ]; do sleep 0.1; done
            seq -f 'line %g' 3 5; echo done > output/answer.txt
  - calls: [{tool: submit}]
"""


def solving(model: str = "scripted/strawberry", more: str = "") -> str:
    return f"await solve('How many?', model={model!r}, isolation='process'{more})"


def slow(folder: Path) -> Path:
    """The file for which the script waits, after its second line of output."""
    go = folder / "go"
    (folder / "slow.yaml").write_text(SLOW.replace("GO", str(go)))
    return go


def cells_of(tmp_path: Path, *cells: str, loaded: bool = True) -> list[NotebookNode]:
    notebook = notebook_of(IMPORT, *cells)
    if not loaded:
        del notebook.cells[0]
    execute(notebook, tmp_path, kernel_environment(tmp_path), allow_errors=True)
    assert [errors(cell) for cell in notebook.cells if errors(cell)] == []
    done: list[NotebookNode] = notebook.cells[-len(cells) :]
    return done


def shown(cell: NotebookNode) -> list[dict[str, Any]]:
    return [dict(one.data) for one in outputs(cell) if MIME in one.get("data", {})]


@pytest.mark.parametrize("loaded", [True, False])
def test_a_cell_shows_the_run_that_it_awaits_its_record_and_its_files(loaded: bool, tmp_path: Path) -> None:
    live, again, file = cells_of(
        tmp_path, f"result = {solving()}", "result", "result.files['answer.txt']", loaded=loaded
    )
    (card,) = shown(live)
    assert record_of(card)["events"][-1]["stop_reason"] == "submitted"
    assert shown(again) == [card]
    (picture,) = outputs(file)
    assert "There are 3 r" in picture.data["text/html"]
    assert "RunFile answer.txt" in picture.data["text/plain"]


def test_the_card_is_updated_while_the_cell_runs(tmp_path: Path) -> None:
    go = slow(tmp_path)
    with live_kernel(tmp_path) as kernel:
        kernel.run(IMPORT)
        cell = kernel.start(f"result = {solving('scripted/./slow.yaml')}")
        seen = kernel.messages(cell, until=lambda m: "line 2" in str(m["content"].get("data", "")))
        go.touch()
        messages = cards_of(seen + kernel.messages(cell))
    assert len({message["content"]["transient"]["display_id"] for message in messages}) == 1
    pages = [message["content"]["data"]["text/html"] for message in messages]
    assert any("line 2" in page and "line 4" not in page for page in pages)
    assert MIME in messages[-1]["content"]["data"]


def test_a_run_that_is_the_last_value_of_its_cell_is_shown_once(tmp_path: Path) -> None:
    alone, other, magic = cells_of(
        tmp_path,
        solving(),
        f"result = {solving()}\nresult",
        "%%sandbox -m scripted/strawberry --isolation process -o again\nHow many?",
    )
    assert [len(shown(cell)) for cell in (alone, other, magic)] == [1, 1, 1]


def test_a_resumed_run_is_shown_once(tmp_path: Path) -> None:
    slow(tmp_path).touch()
    _, *cells = ran(
        tmp_path,
        "%%sandbox -m scripted/./slow.yaml -o result --steps 1\nWork.",
        "result.resume(limits={'steps': 9})",
        "result",
    )
    found = [shown(cell) for cell in cells]
    assert [len(one) for one in found] == [1, 1, 1]
    assert found[1] == found[2]


def test_each_run_has_a_card_unless_it_is_turned_off(tmp_path: Path) -> None:
    by_call, by_setting, asked, at_once = cells_of(
        tmp_path,
        f"result = {solving(more=', show=False')}",
        f"%config SandboxMagics.show = False\nresult = {solving()}",
        f"result = {solving(more=', show=True')}",
        "%config SandboxMagics.show = True\n"
        f"import asyncio\nresults = await asyncio.gather(*({solving()[6:]} for _ in range(3)))",
    )
    assert [len(shown(cell)) for cell in (by_call, by_setting, asked)] == [0, 0, 1]
    records = [record_of(card) for card in shown(at_once)]
    assert len({record["run_id"] for record in records}) == 3
    assert {record["events"][-1]["stop_reason"] for record in records} == {"submitted"}


def test_a_script_shows_nothing_and_imports_nothing_of_notebooks(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\nfrom llm_sandbox_nb import solve\n"
        f"async def main():\n    return {solving()}\n"
        "result = asyncio.run(main())\n"
        "assert result.answer\nprint([name for name in sys.modules if name.startswith('llm_sandbox_nb.notebook')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
