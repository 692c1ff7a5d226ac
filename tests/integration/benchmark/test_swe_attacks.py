"""Patches that leave the code wrong and want to score: none does. Correct ones do, and a missing runner is an error."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import run, until
from test_swe import BASE, PYTEST, RIGHT, UNITTEST, patch_of, write

from llm_sandbox_nb.benchmark import results_collector, results_sender
from llm_sandbox_nb.benchmark.evidence import read_report, read_results
from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.swe import score_patch
from llm_sandbox_nb.benchmark.text_scorers import Score
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.open import open_sandbox

FORGE = """import glob, os, re, signal, socket, sys
def folder():
    words = open('/proc/self/cmdline').read().split('\\0')
    found = [word for word in words if re.fullmatch('/tmp/[^/]+/x[0-9a-f]{12}.py', word)]
    plugin = re.search(r'-p (x[0-9a-f]{12})', os.environ.get('PYTEST_ADDOPTS', ''))
    return os.path.dirname(found[0] if found else sys.modules[plugin[1]].__file__)
def asked():
    return [word for word in sys.argv + sys.orig_argv if 'test_' in word and '/tmp/' not in word]
def forge(names, outcome='passed', where=None):
    one = socket.socket(socket.AF_UNIX)
    one.connect((where or folder()) + '/results')
    for name in names:
        one.sendall(('%s\\t%s\\n' % (outcome, name)).encode())
def status(number):
    return open('/proc/%s/status' % number).read()
def others():
    above, number = set(), os.getpid()
    while number > 1:
        above.add(number)
        number = int(re.search(r'PPid:\\s+(\\d+)', status(number))[1])
    for name in filter(str.isdigit, os.listdir('/proc')):
        try:
            near = int(re.search(r'PPid:\\s+(\\d+)', status(name))[1]) in above
            if near and 'PR_SET_DUMPABLE' in open('/proc/%s/cmdline' % name).read():
                yield int(name)
        except OSError:
            pass
"""
ATTACKS: dict[str, dict[str, str]] = yaml.safe_load(
    (Path(__file__).parents[2] / "data" / "hostile_patches.yaml").read_text()
)
PARTS = 15
TESTS = {PYTEST: "tests/test_total.py::test_total", UNITTEST: "test_case.Total.test_total"}


def scores(
    folder: Path, patches: dict[str, tuple[str, str]], timeout: float = 280, **more: Any
) -> dict[str, Score]:
    """The score of each patch with its command. All share one sandbox, in which the repository is made anew."""
    write(folder / "repository", BASE)

    async def body() -> dict[str, Score]:
        found = {}
        async with open_sandbox("process") as box:

            @asynccontextmanager
            async def emptied() -> AsyncIterator[Sandbox]:
                await box.exec(["bash", "-c", "find . -mindepth 1 -delete"], cwd=box.directories.root)
                yield box

            def opener(row: Row) -> AbstractAsyncContextManager[Sandbox]:
                return emptied()

            for name, (patch, command) in patches.items():
                extra = {
                    "repository": "repository",
                    "test_command": command,
                    "FAIL_TO_PASS": [TESTS[UNITTEST if "-m unittest" in command else PYTEST]],
                }
                row = Row(name, "p", "", extra=extra | more)
                found[name] = await score_patch(patch, row, opener, folder, timeout=timeout)
        return found

    return run(body(), 900)


def patches_of(folder: Path, changes: dict[str, dict[str, str]]) -> dict[str, tuple[str, str]]:
    made = {}
    for number, (name, files) in enumerate(changes.items()):
        changed = {file: text.replace("FORGE\n", FORGE) for file, text in files.items() if file != "runner"}
        command = UNITTEST if files.get("runner") == "unittest" else PYTEST
        made[name] = (patch_of(folder / str(number), BASE, changed), command)
    return made


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.campaign) for part in range(1, PARTS))]
)
def test_no_hostile_patch_scores(part: int, tmp_path: Path) -> None:
    assert len(ATTACKS) >= 40
    attacks = dict(list(ATTACKS.items())[part::PARTS])
    # A patch that hangs scores 0 when this time is over.
    found = scores(tmp_path, patches_of(tmp_path, attacks), timeout=60)
    for name, score in found.items():
        print(name, score)
    assert {name: score for name, score in found.items() if score.value != 0} == {}


RIGHTLY: dict[str, dict[str, str]] = {"right": {"total.py": RIGHT}}


def test_correct_patches_score(tmp_path: Path) -> None:
    patch = patches_of(tmp_path, RIGHTLY)["right"][0]
    commands = [PYTEST, UNITTEST, PYTEST.replace(" -x", "")]
    commands.append(f"{PYTEST.replace('{test}', '--junitxml={report} {test}')}")
    commands.append(
        f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 bash -c '{sys.executable} -m pytest -q \"$@\"' _ {{test}}"
    )
    found = scores(tmp_path, {command: (patch, command) for command in commands})
    assert found == dict.fromkeys(commands, Score(1.0, "1 tests pass"))


def test_a_missing_runner_is_an_error_and_never_a_zero(tmp_path: Path) -> None:
    patch = patches_of(tmp_path, RIGHTLY)["right"][0]
    commands = {
        f"{sys.executable} -S -m pytest {{test}}": "No module named pytest",
        "no-such-runner {test}": "no-such-runner: command not found",
        "true {test}": "exit code 0",  # says nothing of the tests
        "true {test} {report}": "exit code 0",
    }
    found = scores(tmp_path, {command: (patch, command) for command in commands})
    for command, said in commands.items():
        score = found[command]
        assert (score.value, score.failed) == (None, True), (command, score)
        assert said in score.detail
        assert "use an image with their runner" in score.detail
    command = "no-such-runner {test}"
    (score,) = scores(tmp_path, {command: (patch, command)}, test_evidence="exit_code").values()
    assert (score.value, score.failed) == (None, True)


def test_attacks_that_the_documentation_admits_succeed(tmp_path: Path) -> None:
    """When one of these scores 0, the documentation can promise more."""
    equal = "class Equal(list):\n    __eq__ = lambda self, other: True\ntotal = Equal\n"
    named = (
        "import _pytest.python as p\nrun = p.Function.runtest\n"
        "p.Function.runtest = lambda self: None if self.name == 'test_total' else run(self)\n"
        "def total(n): return n[0]\n"
    )
    found = scores(
        tmp_path, patches_of(tmp_path, {"equal": {"total.py": equal}, "named": {"total.py": named}})
    )
    assert {score.value for score in found.values()} == {1.0}


def test_a_test_that_is_expected_to_fail_passes_where_it_was_so_before(tmp_path: Path) -> None:
    """`xfail` in the base is a pass that is kept; `pytest.xfail` in the tested code is none."""
    text = (
        "import pytest\nfrom total import total\n@pytest.mark.xfail\ndef test_more(): assert total([]) == 1\n"
    )
    text += "def test_one(): assert total([2]) == 2\n"
    work = {
        "repository": "repository",
        "PASS_TO_PASS": ["tests/test_more.py::test_more", "tests/test_more.py::test_one"],
    }
    work["test_patch"] = patch_of(tmp_path / "tests", BASE, {"tests/test_more.py": text})
    evil = f"import pytest\n{RIGHT}right = total\n"
    evil += "def total(n):\n    return right(n) if len(n) == 2 else pytest.xfail()\n"
    changes = {**RIGHTLY, "evil": {"total.py": evil}}
    found = scores(tmp_path, patches_of(tmp_path, changes), **work)
    assert found["right"] == Score(1.0, "3 tests pass")
    assert found["evil"] == Score(0.0, "1 of 3 tests fail: tests/test_more.py::test_one")


REPORT = b"""<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.test_a.TestC" name="test_m[x.y::z/1]"/>
<testcase classname="tests.test_a.TestC" name="test_m[2]"><failure/></testcase>
<testcase classname="tests.test_a" name="test_f"/>
<testcase classname="tests.test_b" name="test_f"/><testcase classname="tests.test_b" name="test_f"><error/></testcase>
<testcase classname="tests.test_c" name="test_s"><skipped type="pytest.skip"/></testcase>
<testcase classname="tests.test_c" name="test_x"><skipped type="pytest.xfail"/></testcase>
</testsuite></testsuites>"""


RESULTS = b"""passed\ttests/test_a.py::TestC::test_m[x.y::z/1]
failed\ttests/test_a.py::TestC::test_m[2]
passed\ttests/test_a.py::test_f
passed\ttests/test_b.py::test_f
failed\ttests/test_b.py::test_f
skipped\ttests/test_c.py::test_s
expected to fail\ttests/test_c.py::test_x
"""


@pytest.mark.parametrize(
    ("test", "outcome"),
    [("tests/test_a.py::TestC::test_m[x.y::z/1]", "passed"), ("tests/test_a.py::TestC::test_m[2]", "failed"),
     ("tests/test_a.py::TestC::test_m", "failed"), ("tests/test_a.py", "failed"), ("tests/test_a.py::test_f", "passed"),
     ("./tests/test_a.py::test_f", "passed"), ("test_a.py::test_f", "passed"),
     ("sub/tests/test_a.py::test_f", "passed"),
     ("tests.test_a.test_f", "passed"), ("tests/test_b.py::test_f", "failed"), ("tests/test_c.py::test_s", "skipped"),
     ("tests/test_c.py::test_x", "expected to fail"), ("tests/test_a.py::test_g", None),
     ("other/test_a.py::test_f", None),
     ("tests/test_d.py::test_f", None), ("test_f", None), ("", None)],
)  # fmt: skip
def test_names_of_tests_are_found_in_a_report(test: str, outcome: str | None) -> None:
    assert read_report(REPORT).outcome(test) == outcome
    assert read_results(RESULTS).outcome(test) == outcome


@pytest.mark.parametrize(
    "said",
    [b"", b"<", b"no xml", b"<a>" * 10, b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', b"\xff\xfe<", b"<a/>"],
)
def test_text_that_is_not_a_report_has_no_tests(said: bytes) -> None:
    assert read_report(said).cases == 0
    report = read_results(said, ["tests/test_a.py::test_f"])
    assert (report.cases, report.control) == (0, None)


CASES = """import unittest
class Case(unittest.TestCase):
    def test_good(self): pass
    def test_bad(self): self.fail()
    def test_error(self): raise OSError
    def test_parts(self):
        with self.subTest(n=1): self.fail()
    @unittest.skip("no")
    def test_skipped(self): pass
    @unittest.expectedFailure
    def test_expected(self): self.fail()
    @unittest.expectedFailure
    def test_unexpected(self): pass
"""


def test_unittest_and_pytest_send_every_outcome(tmp_path: Path) -> None:
    """To a collector that hears of the end after the tests; what came without a line end does not count."""
    (tmp_path / "cases.py").write_text(CASES)
    (tmp_path / "sender.py").write_text(Path(results_sender.__file__).read_text())
    names = ["good", "bad", "error", "parts", "skipped", "expected", "unexpected"]
    runners = {
        "cases.Case.test_": ["sender.py", "-q", "cases", "missing"],
        "cases.py::Case::test_": ["-m", "pytest", "-p", "sender", "-p", "no:cacheprovider", "cases.py"],
    }
    for prefix, arguments in runners.items():
        with subprocess.Popen(
            [sys.executable, results_collector.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as collector:
            assert collector.stdin is not None
            collector.stdin.write(f"{tmp_path}/results\nlast\n".encode())
            collector.stdin.close()
            collector.stdin = None
            until((tmp_path / "results").exists)
            environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
            done = subprocess.run(
                [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, check=False
            )
            with socket.socket(socket.AF_UNIX) as cut, socket.socket(socket.AF_UNIX) as last:
                cut.connect(f"{tmp_path}/results")
                cut.sendall(b"failed\tcases.Case.test_good")
                last.connect(f"{tmp_path}/results")
                last.sendall(b"last\n")
                said, _ = collector.communicate(timeout=60)
        (tmp_path / "results").unlink()
        report = read_results(said)
        outcomes = [report.outcome(f"{prefix}{name}") for name in names]
        expected = ["passed", "failed", "failed", "failed", "skipped", "expected to fail", "failed"]
        assert outcomes == expected, done.stdout
        assert report.outcome("missing") != "passed"
        assert done.returncode != 0
        assert collector.returncode == 0
