"""The magics in IPython without a notebook: in a terminal, where the card is text that is updated, and in a pipe."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest
from agent_scripts import SUBMIT, bash, script, turn
from support import PATIENCE
from warm_kernels import kernel_environment

CELLS = """
%load_ext llm_sandbox_nb
get_ipython().run_cell_magic("sandbox", "-m {model} -o result", "Write.")
print("it is", result.answer, len(result.steps))
%sandbox runs
"""


def gate(folder: Path, number: int) -> Path:
    """The file for which step `number` waits."""
    return folder / f"go{number}"


def command(folder: Path) -> tuple[list[str], dict[str, str]]:
    wait = f"until [ -e {folder}/goN ]; do sleep 0.05; done; echo N | tee answer.txt"
    model = script(folder, *[turn(bash(wait.replace("N", number))) for number in "123"], SUBMIT)
    (folder / "cells.ipy").write_text(CELLS.format(model=model))
    words = [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", str(folder / "cells.ipy")]
    return words, kernel_environment(folder, LLM_SANDBOX_ISOLATION="process", COLUMNS="100", LINES="12")


def in_terminal(words: list[str], environment: dict[str, str], folder: Path) -> str:
    """What a terminal gets; step N is made to end when the card was updated N times."""
    mine, its = pty.openpty()
    with subprocess.Popen(words, stdin=its, stdout=its, stderr=its, cwd=folder, env=environment) as process:
        os.close(its)
        data = b""
        while select.select([mine], [], [], PATIENCE)[0]:
            try:
                data += os.read(mine, 65536)
            except OSError:  # the other end is closed
                break
            for number in range(1, data.count(b"A\x1b[J") + 1):
                gate(folder, number).touch()
        process.wait(PATIENCE)
    os.close(mine)
    return data.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_run_shows_its_card_as_text(terminal: bool, tmp_path: Path) -> None:
    words, environment = command(tmp_path)
    if terminal:
        told = in_terminal(words, environment, tmp_path)
        live, _, rest = told.rpartition("A\x1b[J")
        assert live.count("A\x1b[J") > 1, "it was updated in place"
        assert "  2  " in live
    else:
        for number in (1, 2, 3):
            gate(tmp_path, number).touch()
        done = subprocess.run(
            words, capture_output=True, text=True, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL
        )
        told = rest = done.stdout + done.stderr
        assert "\x1b[" not in told
    assert "Error" not in told, told
    assert rest.count("\n  1  ") == 1
    assert (rest.count("Submitted"), rest.count("submitted")) == (2, 0), "on the card and in the list"
    assert "it is 3 4" in rest
