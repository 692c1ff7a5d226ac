"""The second run of what failed: what is unsteady, what is red, and what the end of the output says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import run_again

FLAKY = """
import pathlib
def first(name):
    mark = pathlib.Path(__file__).with_name(name + ".ran")
    was = mark.exists()
    mark.touch()
    return not was
"""
UNSTEADY = "def test_{0}():\n    assert not first('{0}'), 'reason {0}'\n"
STEADY = "def test_steady():\n    assert True\n"
BROKEN = "def test_broken():\n    assert False, 'always'\n"
SET_UP = (
    "import pytest\n@pytest.fixture\ndef fixed():\n    assert not first('set_up'), 'at set-up'\n    yield\n"
    "    assert not first('teardown'), 'at teardown'\ndef test_it(fixed):\n    assert True\n"
)
CRASH = "import os\ndef test_crash():\n    if first('crash'):\n        os._exit(3)\n"
SKIPS = "import pytest\ndef test_skips():\n    assert not first('skips')\n    pytest.skip('no reason')\n"


@dataclass
class Done:
    code: int
    out: str
    unsteady: list[dict[str, Any]]

    @property
    def last(self) -> str:
        return self.out.splitlines()[-1]


def run(folder: Path, *bodies: str, more: tuple[str, ...] = ()) -> Done:
    for number, body in enumerate(bodies):
        (folder / f"test_{number}.py").write_text(FLAKY + body)
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they take seconds to import
    command = [
        sys.executable,
        run_again.__file__,
        "test",
        "-p",
        "no:cacheprovider",
        "-p",
        "xdist.plugin",
        *more,
    ]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    kept = json.loads((folder / ".cache" / "unsteady.json").read_text())["test"]
    return Done(done.returncode, done.stdout + done.stderr, kept)


def test_nothing_runs_again_when_all_pass(tmp_path: Path) -> None:
    done = run(tmp_path, STEADY)
    assert (done.code, done.unsteady) == (0, [])
    assert "1 passed in" in done.last
    assert "once more" not in done.out


def test_two_unsteady_tests_are_green_and_listed_with_their_failure(tmp_path: Path) -> None:
    done = run(tmp_path, STEADY, UNSTEADY.format("one"), UNSTEADY.format("two"), more=("-n", "2"))
    assert done.code == 0
    assert {one["test"] for one in done.unsteady} == {"test_1.py::test_one", "test_2.py::test_two"}
    assert all("reason" in one["failure"] for one in done.unsteady)
    end = done.out[done.out.index("Unsteady tests:") :]
    assert "UNSTEADY test_1.py::test_one" in end
    assert "reason two" in end
    assert "2 unsteady, 3 passed in" in done.last
    assert "failed" not in done.last


def test_three_unsteady_tests_are_red(tmp_path: Path) -> None:
    done = run(tmp_path, *map(UNSTEADY.format, ("one", "two", "three")))
    assert done.code == 1
    assert "3 tests are unsteady; 2 are allowed." in done.out
    assert "3 unsteady, 3 passed in" in done.last


def test_a_test_that_fails_alone_is_red(tmp_path: Path) -> None:
    done = run(tmp_path, STEADY, BROKEN, UNSTEADY.format("one"))
    assert done.code == 1
    assert "FAILED AGAIN test_1.py::test_broken" in done.out
    assert [one["test"] for one in done.unsteady] == ["test_2.py::test_one"]
    assert "1 failed, 1 unsteady, 2 passed in" in done.last


def test_errors_at_set_up_and_teardown_count_as_failures(tmp_path: Path) -> None:
    done = run(tmp_path, SET_UP)
    assert done.code == 1, "its second run ends with an error at teardown"
    assert "at teardown" in done.out
    again = run(tmp_path, SET_UP)
    assert (again.code, again.unsteady) == (0, [])


def test_an_error_at_teardown_alone_is_unsteady(tmp_path: Path) -> None:
    (tmp_path / "set_up.ran").touch()
    done = run(tmp_path, SET_UP)
    assert done.code == 0
    assert "at teardown" in done.unsteady[0]["failure"]
    assert "1 unsteady, 1 passed in" in done.last


def test_the_test_of_a_worker_that_crashed_runs_again(tmp_path: Path) -> None:
    done = run(tmp_path, CRASH, STEADY, more=("-n", "2"))
    assert done.code == 0
    assert [one["test"] for one in done.unsteady] == ["test_0.py::test_crash"]
    assert "crashed" in done.unsteady[0]["failure"]


def test_a_skip_is_no_pass(tmp_path: Path) -> None:
    done = run(tmp_path, SKIPS)
    assert done.code == 1
    assert "1 failed in" in done.last


@pytest.mark.parametrize("more", [(), ("-n", "2")], ids=["one process", "workers"])
def test_a_file_that_cannot_be_collected_is_red(tmp_path: Path, more: tuple[str, ...]) -> None:
    done = run(tmp_path, STEADY, "import nothing_of_this_name\n", more=more)
    assert done.code in (1, 2)
    assert done.unsteady == []


def test_no_test_at_all_is_red(tmp_path: Path) -> None:
    assert run(tmp_path, "").code == pytest.ExitCode.NO_TESTS_COLLECTED


def test_the_second_run_keeps_traces_of_browsers(tmp_path: Path) -> None:
    body = "import os\ndef test_it():\n    assert os.environ.get('LLM_SANDBOX_TRACE') == '1'\n"
    assert len(run(tmp_path, body).unsteady) == 1


def test_the_list_of_another_target_stays(tmp_path: Path) -> None:
    run_again.keep(tmp_path, "test", {"a.py::test_a": "text"})
    run_again.keep(tmp_path, "test-all", {})
    kept = json.loads((tmp_path / "unsteady.json").read_text())
    assert kept == {"test": [{"test": "a.py::test_a", "failure": "text"}], "test-all": []}
