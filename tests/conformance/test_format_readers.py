"""Other projects' own programs read what we write: Harbor's validator and converter, Inspect's reader and timeline.

Harbor needs Python 3.12 and an environment of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import format_table
import pytest

from llm_sandbox_nb.formats import inspect_log
from llm_sandbox_nb.formats.records import branches_of, read_bytes, write_record

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(900)]

HARBOR = "harbor==0.26.*"
PYTHONS = ("python3.12", "python3.13")
HARBORS_PROGRAM = """
import json, sys
from pathlib import Path
from harbor.agents.installed.mini_swe_agent import convert_mini_swe_agent_to_atif
from harbor.utils.trajectory_validator import TrajectoryValidator
found = {}
for path in sorted(Path(sys.argv[1]).glob("*.json")):
    if path.name.endswith(".traj.json"):
        made = convert_mini_swe_agent_to_atif(json.loads(path.read_text()), "s").to_json_dict()
        found[path.name] = made
    else:
        validator = TrajectoryValidator()
        found[path.name] = [] if validator.validate(path) else validator.errors
print(json.dumps(found))
"""


def newer_python() -> str:
    """A Python that Harbor runs with; HARBOR_PYTHON may name one that has it."""
    given = os.environ.get("HARBOR_PYTHON")
    for name in filter(None, (given, *PYTHONS)):
        path = shutil.which(name)
        works = path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0
        if path and works:
            return path
    pytest.fail("Harbor needs Python 3.12: install it, or name it in HARBOR_PYTHON.")


@pytest.fixture(scope="module")
def harbor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = newer_python()
    if subprocess.run([given, "-c", "import harbor"], capture_output=True, check=False).returncode == 0:
        return Path(given)
    folder = tmp_path_factory.mktemp("harbor")
    subprocess.run([given, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", HARBOR], check=True)
    return python


def asked(python: Path, folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [str(python), "-c", HARBORS_PROGRAM, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_harbor_accepts_every_run_and_reads_our_mini_swe_agent(harbor: Path, tmp_path: Path) -> None:
    steps: dict[str, int] = {}
    for place, run in enumerate(format_table.runs()):
        for form, ending in (("atif", "json"), ("mini-swe-agent", "traj.json")):
            for number, data in enumerate(write_record(run, form)):
                name = f"{place}-{number}.{ending}"
                (tmp_path / name).write_bytes(data)
                steps[name] = sum(step.replied for step in branches_of(run)[number].steps)
    (tmp_path / "broken.json").write_text('{"schema_version": "ATIF-v1.8", "steps": []}')
    found = asked(harbor, tmp_path)
    assert found.pop("broken.json"), "the canary"
    assert set(found) == set(steps)
    refused = {name: said for name, said in found.items() if not name.endswith(".traj.json") and said}
    assert refused == {}
    for name, made in found.items():
        if name.endswith(".traj.json"):
            agents = [step for step in made["steps"] if step["source"] == "agent"]
            assert len(agents) == steps[name], name
            (again,) = read_bytes(json.dumps(made).encode(), "x")
            assert len(again.trajectory.steps) == steps[name]


def test_inspect_reads_every_run_and_shows_its_branches(tmp_path: Path) -> None:
    from inspect_ai.event import timeline_build
    from inspect_ai.log import read_eval_log

    branches = 0
    for place, run in enumerate(format_table.runs()):
        path = tmp_path / f"{place}.eval"
        path.write_bytes(inspect_log.write(branches_of(run)))
        log = read_eval_log(str(path))
        assert log.samples is not None
        (sample,) = log.samples
        assert len([one for one in sample.events if one.event == "model"]) >= len(
            [step for step in run.steps if step.replied]
        )
        shown = timeline_build(sample.events)
        branches += len(shown.root.branches)
    assert branches >= 10


def test_inspects_command_line_lists_a_log(tmp_path: Path) -> None:
    run = next(one for one in format_table.runs() if one.answer)
    (tmp_path / "run.eval").write_bytes(inspect_log.write(branches_of(run)))
    program = Path(sys.executable).with_name("inspect")
    done = subprocess.run(
        [str(program), "log", "dump", str(tmp_path / "run.eval")], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["samples"][0]["metadata"]["llm_sandbox_nb"]["tree"]
