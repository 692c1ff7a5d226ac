"""Run pytest, then each test that failed once more, alone: `python tests/run_again.py NAME [argument of pytest ...]`.

A test that passes then is *unsteady*. Two of them at most are green, and are listed at the end with the text of their
failure. `.cache/unsteady.json` holds those of the last run of each NAME; `.cache/junit/NAME.xml` holds the first run's
results.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ALLOWED = 2
"""Unsteady tests in a green run."""
MOST_AGAIN = 10
"""Tests that are run again: so many failures are red anyway, and only the list gets longer."""
LIMIT = 1800
"""Seconds for a test that runs alone; pytest-timeout ends most of them earlier."""
COUNTED = ("failed", "error", "unsteady", "passed", "skipped", "deselected", "xfailed", "xpassed")


class Recorder:
    """A plugin that keeps the failures of a run; with xdist it sees those of all workers, and their crashes."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}
        self.uncollected = False
        self.counts: dict[str, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            text = self.failures.get(report.nodeid, "")
            self.failures[report.nodeid] = f"{text}\n{report.longreprtext}".strip()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.uncollected |= report.failed

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        self.counts = {kind: len(terminalreporter.stats.get(kind, ())) for kind in COUNTED}
        passed = {report.nodeid for report in terminalreporter.stats.get("passed", ())}
        self.counts["passed"] = len(passed - self.failures.keys())


def passes_alone(test: str, folder: Path) -> tuple[bool, str]:
    """Run one test in a process of its own; return whether it passed (a skip is no pass), and the output."""
    results = folder / "again.xml"
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={results}", test]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "LLM_SANDBOX_TRACE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired as error:
        return False, f"It did not end within {error.timeout:g} s."
    if done.returncode:
        return False, done.stdout
    cases = list(ElementTree.parse(results).iter("testcase"))
    return bool(cases) and not any(case.find("skipped") is not None for case in cases), done.stdout


def keep(folder: Path, name: str, unsteady: dict[str, str]) -> None:
    file = folder / "unsteady.json"
    known = json.loads(file.read_text("utf-8")) if file.exists() else {}
    known[name] = [{"test": test, "failure": text} for test, text in unsteady.items()]
    file.write_text(json.dumps(known, indent=1) + "\n", "utf-8")


def table(unsteady: dict[str, str]) -> str:
    """The unsteady tests, each with the text of its failure."""
    rows = [
        f"UNSTEADY {test}\n" + "\n".join(f"    | {line}" for line in text.splitlines())
        for test, text in unsteady.items()
    ]
    return "\n".join(
        ["", "Unsteady tests: failed, then passed alone. Mend them before anything else.", *rows]
    )


def main(name: str, arguments: list[str], folder: Path = Path(".cache")) -> int:
    """Run the tests; the exit code is pytest's, or 0 when all that failed is unsteady and allowed."""
    started = time.monotonic()
    recorder = Recorder()
    (folder / "junit").mkdir(parents=True, exist_ok=True)
    code = int(pytest.main([f"--junitxml={folder / 'junit' / name}.xml", *arguments], plugins=[recorder]))
    if code != pytest.ExitCode.TESTS_FAILED or recorder.uncollected or not recorder.failures:
        keep(folder, name, {})
        return code
    unsteady, failed = {}, []
    for number, (test, text) in enumerate(recorder.failures.items()):
        if number == MOST_AGAIN:
            failed += list(recorder.failures)[number:]
            print(f"{len(recorder.failures) - number} more tests failed and are not run again.", flush=True)
            break
        print(f"\nRunning once more, alone: {test}", flush=True)
        passed, output = passes_alone(test, folder)
        if passed:
            unsteady[test] = text
        else:
            failed.append(test)
            print(output)
    keep(folder, name, unsteady)
    if unsteady:
        print(table(unsteady))
    for test in failed:
        print(f"FAILED AGAIN {test}")
    if len(unsteady) > ALLOWED:
        print(f"{len(unsteady)} tests are unsteady; {ALLOWED} are allowed.")
    # Readers of the output, people and programs, look for the counts in the last line, as pytest writes it. What passed
    # at last counts as passed.
    passed = recorder.counts["passed"] + len(unsteady)
    counts = recorder.counts | {
        "failed": len(failed),
        "error": 0,
        "unsteady": len(unsteady),
        "passed": passed,
    }
    told = ", ".join(f"{counts[kind]} {kind}" for kind in COUNTED if counts[kind])
    print(f"{f' {told} in {time.monotonic() - started:.2f}s ':=^80}", flush=True)
    return code if failed or len(unsteady) > ALLOWED else 0


if __name__ == "__main__":
    sys.path[0] = str(Path.cwd())  # as `python -m pytest` has it
    sys.exit(main(sys.argv[1], sys.argv[2:]))
