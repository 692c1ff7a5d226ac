"""Stop, pause and say reach a run in a busy cell, whatever the version of ipykernel: they do not ride on comms."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_scripts import SUBMIT, bash, turn
from jupyter_process import JupyterProcess, jupyter
from support import until
from test_live_runs import Cell, control, folder_of, pause_in_step_1, run_of, state_of, waiting
from versions import IPYKERNELS, ipykernel

from llm_sandbox_nb.runs.run import Run

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.campaign


@pytest.fixture(scope="module", params=IPYKERNELS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JupyterProcess]:
    """A server whose kernels are of that version."""
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
    endless = turn(bash("echo begun; sleep 600"))
    go, waits = waiting(server)
    cell = Cell(server, kernel, waits, turn(bash("true")), endless, SUBMIT)
    run_id = run_of(server, kernel)["id"]
    pause_in_step_1(server, run_id, go)
    assert state_of(server, run_id)["steps"] == 1
    control(server, run_id, "say", "Go on, but faster.")
    control(server, run_id, "resume")
    until(lambda: state_of(server, run_id)["steps"] == 3)
    time.sleep(0.5)
    begun = time.monotonic()
    control(server, run_id, "stop")
    until(lambda: state_of(server, run_id)["state"] == "finished")
    stopped = time.monotonic() - begun
    print(f"ipykernel {version}: stopped after {stopped * 1000:.0f} ms")
    assert stopped < 60
    assert cell.wait()["ename"] == "KeyboardInterrupt"
    done = Run.load(folder_of(server, run_id))
    assert done.stop_reason == "interrupted"
    assert [one.action for one in done.trajectory.controls] == ["pause", "paused", "say", "resume", "stop"]
    assert "Go on, but faster." in [message["content"] for message in done.messages]
    assert server.execute(kernel, "print('alive')").strip() == "alive"
