"""Stop, pause and say reach a run in a busy cell, whatever the version of ipykernel: they do not ride on comms."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_scripts import SUBMIT, bash, turn
from jupyter_process import JupyterProcess, jupyter
from live_runs import Cell, gate
from support import own_mark, processes_with, until
from versions import IPYKERNELS, ipykernel

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.campaign


@pytest.fixture(scope="module", params=IPYKERNELS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JupyterProcess]:
    folder = tmp_path_factory.mktemp("jupyter")
    spec = folder / "data/kernels/versioned"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    env = {"PYTHONPATH": os.pathsep.join([str(ipykernel(request.param)), str(ROOT)])}
    (spec / "kernel.json").write_text(
        json.dumps({"argv": argv, "env": env, "display_name": "x", "language": "python"})
    )
    with jupyter(folder) as running:
        running.options.append(request.param)
        yield running


def test_stop_pause_and_say_in_a_busy_cell(server: JupyterProcess) -> None:
    kernel = server.post("api/kernels", {"name": "versioned"})["id"]
    version = server.options[-1]
    assert server.execute(kernel, "import ipykernel; print(ipykernel.__version__)").strip() == version
    mark = own_mark()
    go, wait = gate(server)
    endless = turn(bash(f"echo begun; sleep {mark}"))
    cell = Cell(server, kernel, turn(bash(wait)), turn(bash("true")), endless, SUBMIT)
    cell.pause_in_step_1(go)
    assert cell.state["steps"] == 1
    cell.control("say", text="Go on, but faster.")
    cell.control("resume")
    until(lambda: processes_with(mark))
    cell.control("stop")
    until(lambda: cell.state["state"] == "finished")
    until(lambda: not processes_with(mark))
    assert cell.wait()["ename"] == "KeyboardInterrupt"
    done = cell.run()
    assert done.stop_reason == "interrupted"
    assert [one.action for one in done.trajectory.controls] == ["pause", "paused", "say", "resume", "stop"]
    assert "Go on, but faster." in [message["content"] for message in done.messages]
    assert server.execute(kernel, "print('alive')").strip() == "alive"
