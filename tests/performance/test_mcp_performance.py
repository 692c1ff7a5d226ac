"""A call of an outside agent, from its HTTP request to its result, against one of our own agent in the same kernel."""

from __future__ import annotations

import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from agent_scripts import SUBMIT, bash, turn
from best_of import best_of
from jupyter_process import jupyter
from live_runs import Cell
from outside_agents import OpenNotebook
from support import until

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import read_journal

CALLS = 60
MOST = 3.0


def test_a_call_over_mcp_takes_at_most_three_times_as_long(tmp_path: Path) -> None:
    assert best_of(3, lambda: ratio_of_calls(Path(tempfile.mkdtemp(dir=tmp_path))), bar=MOST) <= MOST


def ratio_of_calls(folder: Path) -> float:
    with jupyter(folder) as server, server.warm_kernel() as kernel:
        cell = Cell(server, kernel, *(turn(bash("true")) for _ in range(CALLS)), SUBMIT)
        assert cell.id  # known while the run lives
        assert cell.wait()["status"] == "ok"
        begun = [event.time for event in read_journal(cell.folder) if isinstance(event, ev.CallStarted)]
        own = statistics.median(later - first for first, later in pairwise(begun[5:]))
        notebook = OpenNotebook(server, kernel)
        agent = notebook.client()
        until(lambda: agent.tool("run_command", command="true")["data"]["exit_code"] == 0)
        taken = []
        for _ in range(CALLS):
            started = time.monotonic()
            assert agent.tool("run_command", command="true")["data"]["exit_code"] == 0
            taken.append(time.monotonic() - started)
        outside = statistics.median(taken)
        print(f"own {own * 1000:.1f} ms, over MCP {outside * 1000:.1f} ms, ratio {outside / own:.2f}")
        return outside / own
