"""A benchmark that is killed, or asked to end, at half and started again: every item once, nothing left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import SUBMIT, bash, script_text, turn
from support import PATIENCE, own_mark, processes_with, require, until

from llm_sandbox_nb.benchmark.results import FILE, read_results
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.sandbox.bubblewrap.limits import find_bases, find_groups
from llm_sandbox_nb.sandbox.docker.engine import connect
from llm_sandbox_nb.sandbox.docker.ownership import owner_of

HALF, ITEMS = 6, 12
ISOLATIONS = [
    "process",
    pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.campaign]),
    pytest.param("bubblewrap", marks=[pytest.mark.bubblewrap, pytest.mark.campaign]),
]
pytestmark = pytest.mark.timeout(900)


class Halting:
    """A benchmark of which the second half of the problems waits for ever, until `go_on`."""

    def __init__(self, folder: Path, isolation: str) -> None:
        self.isolation, self.task, self.out = isolation, folder / "halting", folder / "out"
        self.lines, self.script = self.out / "halting" / "sandbox" / FILE, folder / "script.yaml"
        self.mark, self.started = own_mark(), list[subprocess.Popen[str]]()
        self.task.mkdir()
        (self.task / "task.yaml").write_text("scorer: exact\ninput_dir: /testbed/input\n")
        rows = [
            {"id": f"s{n}", "problem_statement": f"p{n}", "ground_truth": "3"}
            | ({} if n < HALF else {"input_files": {"wait.txt": "x"}})
            for n in range(ITEMS)
        ]
        (self.task / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self._play(f"[ ! -e input/wait.txt ] || sleep {self.mark}; ")

    def _play(self, first: str) -> None:
        self.script.write_text(script_text(turn(bash(f"{first}echo 3 > answer.txt")), SUBMIT))

    def go_on(self) -> None:
        self._play("")

    @property
    def words(self) -> list[str]:
        words = ["benchmark", "run", str(self.task), "--model", f"scripted/{self.script}"]
        return [*words, "--isolation", self.isolation, "--workers", "3", "--out", str(self.out)]

    def start(self) -> subprocess.Popen[str]:
        program = [sys.executable, "-m", "llm_sandbox_nb", *self.words]
        self.started.append(
            subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        return self.started[-1]

    def start_to_half(self) -> subprocess.Popen[str]:
        """Start it; the first half is done then, and the others wait in their sandboxes."""
        started = self.start()
        until(lambda: len(read_results(self.out)) == HALF or started.poll() is not None, "half of the items")
        until(lambda: len(processes_with(self.mark)) >= 3 or started.poll() is not None, "half of the items")
        assert started.poll() is None, started.communicate()
        return started

    def engine_left(self) -> list[str]:
        pids = {one.pid for one in self.started}
        if self.isolation == "docker":
            client: Any = connect()
            found = [(one, owner_of(one)) for one in client.api.containers(all=True)]
            return [one["Id"] for one, owner in found if owner and owner.pid in pids]
        names = [str(group) for group in find_groups()]
        return [name for name in names if any(f"-{pid}-" in name for pid in pids)]


@pytest.fixture
def halting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Halting]:
    made = Halting(tmp_path, require(request.param))
    yield made
    for process in made.started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("halting", ISOLATIONS, indirect=True)
def test_killed_at_half_and_started_again_it_has_every_item_once(
    halting: Halting, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = halting.start_to_half()
    # They have to be seen, else that they are gone would say nothing.
    assert halting.isolation == "process" or halting.engine_left() or not find_bases()
    started.send_signal(signal.SIGKILL)
    started.communicate()
    assert {one.item for one in read_results(halting.out)} == {f"s{n}" for n in range(HALF)}

    halting.go_on()
    again = halting.start()
    out, told = again.communicate(timeout=400)
    assert again.returncode == 0, out + told
    assert f"{HALF} of {ITEMS} were done before" in told
    lines = [json.loads(line) for line in halting.lines.read_bytes().splitlines() if line.endswith(b"}")]
    assert Counter(line["item"] for line in lines) == {f"s{n}": 1 for n in range(ITEMS)}
    until(lambda: not halting.engine_left(), "sandboxes are left")
    until(lambda: not processes_with(halting.mark), "processes are left")
    results = read_results(halting.out)
    assert {(one.score, one.answer, one.stop_reason, one.error_kind, one.turns) for one in results} == {
        (1.0, "3", "submitted", "", 2)
    }
    if halting.isolation == "docker":
        assert all(one.disk is not None for one in results)
        assert any(one.memory_peak for one in results), "none of a sandbox's first items has it"
    assert main(["benchmark", "report", str(halting.out), "--html", str(tmp_path / "r.html")]) == 0
    assert main([*halting.words, "--temperature", "0.1"]) == 2
    assert "choose another --out" in capsys.readouterr().err


@pytest.mark.parametrize("halting", ISOLATIONS[:1], indirect=True)
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.campaign), signal.SIGTERM])
def test_a_signal_ends_it_in_good_order(number: signal.Signals, halting: Halting) -> None:
    started = halting.start_to_half()
    started.send_signal(number)
    told = started.communicate(timeout=PATIENCE)[1]
    assert started.returncode == 130
    assert "The same command resumes there." in told
    assert "Traceback" not in told
    assert processes_with(halting.mark) == []
    assert len(read_results(halting.out)) == HALF
