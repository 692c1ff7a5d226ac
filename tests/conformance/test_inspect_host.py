"""Inspect's own command line runs a task in our sandboxes, with the same scores as in its Docker sandbox."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import support

from llm_sandbox_nb.formats.records import read_file
from llm_sandbox_nb.sandbox.docker.images import DEFAULT_IMAGE

if find_spec("inspect_ai") is None and os.environ.get("LLM_SANDBOX_REQUIRE_ENGINES") != "1":
    pytest.skip("Inspect AI is not installed: pip install --group conformance", allow_module_level=True)

from llm_sandbox_nb.hosts.inspect_sandbox import InspectSandbox

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(900)]

TASK = Path(__file__).with_name("inspect_task.py")
COMPOSE = f"""
services:
  default:
    image: {DEFAULT_IMAGE}
    init: true
    command: tail -f /dev/null
    network_mode: none
"""


def has_compose() -> bool:
    return subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0


def scores(sandbox: str, folder: Path) -> dict[str, str]:
    program = Path(sys.executable).with_name("inspect")
    command = [
        str(program),
        "eval",
        TASK.name,
        "--sandbox",
        sandbox,
        "--log-dir",
        str(folder),
        "--display",
        "none",
    ]
    done = subprocess.run(
        [*command, "--max-samples", "4"], capture_output=True, text=True, check=False, cwd=TASK.parent
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    (log,) = folder.glob("*.eval")
    runs = read_file(log)
    assert len(runs) == 20
    for run in runs:
        assert [call.output.strip() for step in run.trajectory.steps for call in step.calls] == [
            str(int(run.name) * 8)
        ]
    return {run.name: run.trajectory.checks[0].verdict.outcome for run in runs}


EXPECTED = {str(number): "failed" if number % 5 == 0 else "passed" for number in range(20)}


@pytest.mark.parametrize(
    "isolation",
    [
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
    ],
)
def test_a_task_has_the_scores_of_its_model(isolation: str, tmp_path: Path) -> None:
    support.require(isolation)
    assert scores(f"llm-sandbox-nb:{isolation}", tmp_path) == EXPECTED


def test_inspects_own_sandboxes_have_the_same(tmp_path: Path) -> None:
    assert scores("local", tmp_path / "local") == EXPECTED
    if has_compose():
        compose = tmp_path / "compose.yaml"
        compose.write_text(COMPOSE)
        assert scores(f"docker:{compose}", tmp_path / "docker") == EXPECTED


def test_an_unknown_isolation_is_named() -> None:
    with pytest.raises(
        ValueError, match="There is no isolation podmann: write --sandbox llm-sandbox-nb:NAME"
    ):
        asyncio.run(InspectSandbox.sample_init("task", "/here/podmann", {}))
