"""The verdict on a command that ended: exit code and what test runners say, in a few words."""

from __future__ import annotations

import pytest

from llm_sandbox_nb.agent.check_summary import judged

PYTEST = "python3 -m pytest -q tests"
LINE = "=" * 20


@pytest.mark.parametrize(
    ("command", "output", "code", "verdict"),
    [
        (PYTEST, "............  [100%]\n12 passed in 0.12s", 0, (True, "pytest 12 passed")),
        ("pytest", f"{LINE} 1 failed, 11 passed in 61.20s (0:01:01) {LINE}", 1, (False, "pytest 1 failed, 11 passed")),
        ("pytest", f"{LINE} 2 passed, 3 skipped, 1 warning in 0.1s {LINE}", 0, (True, "pytest 2 passed, 3 skipped")),
        ("pytest", f"{LINE} 1 passed, 2 errors in 0.1s {LINE}", 1, (False, "pytest 2 failed, 1 passed")),
        ("pytest", "5 skipped in 0.01s", 0, (False, "pytest 0 passed, 5 skipped: no test passed")),
        ("pytest", "no tests ran in 0.00s", 5, (False, "pytest 0 passed")),
        ("pytest; true", "1 failed, 11 passed in 0.1s", 0, (False, "pytest 1 failed, 11 passed")),
        ("pytest", "1 passed in 0.1s\n" + "x\n" * 100, 0, (False, "pytest wrote no summary: ...")),
        (PYTEST, "", 0, (False, "pytest wrote no summary: the tested code ...")),
        ("/venv/bin/pytest -x a", "", 0, (False, "pytest wrote no summary: ...")),
        ("pytest -q > log; cat log", "", 0, (True, "pytest -q > log; cat log")),
        ("echo pytest", "pytest", 0, (True, "echo pytest")),
        ("make", "...\n-----\nRan 12 tests in 0.001s\n\nOK\n", 0, (True, "unittest 12 passed")),
        ("make", "Ran 1 test in 0.1s\n\nOK (skipped=1)\n", 0, (False, "unittest 0 passed, 1 skipped: no test passed")),
        ("make", "Ran 0 tests in 0.000s\n\nOK\n", 0, (False, "unittest 0 passed: no test passed")),
        (
            "make", "Ran 12 tests in 0.1s\n\nFAILED (failures=1, errors=2, skipped=3)\n", 1,
            (False, "unittest 3 failed, 6 passed, 3 skipped"),
        ),
        ("cargo test", "test result: ok. 3 passed; 0 failed; 0 ignored\n\ntest result: ok. 9 passed; 0 failed; 0", 0,
         (True, "cargo test 12 passed")),
        ("npm test", "Tests:       1 failed, 11 passed, 12 total\nTime: 1 s", 1, (False, "tests 1 failed, 11 passed")),
        ("npx vitest", " Test Files  1 passed (1)\n      Tests  12 passed (12)\n", 0, (True, "tests 12 passed")),
        ("node --test", "# tests 12\n# pass 12\n# fail 0\n# duration_ms 1", 0, (True, "tests 12 passed")),
        ("npx mocha", "  12 passing (9ms)\n  1 failing\n", 1, (False, "tests 1 failed, 12 passed")),
        ("test  -s\n a", "", 0, (True, "test -s a")),
        ("test -s a", "", 1, (False, "test -s a, exit 1")),
        ("sh a", "first\n\x1b[31mno such column\x1b[0m\n\n", 2, (False, "sh a, exit 2: no such column")),
        ("sh a", "", None, (False, "sh a, it was interrupted")),
        ("make", f"Tests: 1 failed, {'1' * 5000} passed\n", 0, (False, "tests 1 failed")),
        ("pytest", f"{'1' * 5000} passed in 0.1s", 0, (False, "pytest wrote no summary: ...")),
        ("make", f"Ran 2 tests in 0.1s\n\nFAILED (failures=1, errors={'1' * 5000})\n", 1,
         (False, "unittest 1 failed, 1 passed")),
        ("x" * 100, "y" * 100, 1, (False, f"{'x' * 79}…, exit 1: {'y' * 79}…")),
    ],
)  # fmt: skip
def test_a_verdict(command: str, output: str, code: int | None, verdict: tuple[bool, str]) -> None:
    passed, said = judged(command, output, code)
    begins, _, _ = verdict[1].partition("...")
    assert (passed, said[: len(begins)]) == (verdict[0], begins)
    assert said == verdict[1] or "..." in verdict[1]


@pytest.mark.parametrize(
    "output",
    [
        f"Ran 1 test in 0.1s\n\nFAILED ({'a' * 250_000})",
        f"Tests: {'1' * 250_000}",
        f"Tests: 1 passed {'1' * 250_000}",
        f"Tests: {' ' * 250_000}x",
        f"{'=' * 250_000} 1 passed",
        "1 a" * 80_000,
    ],
)
def test_hostile_output_takes_no_quadratic_time(output: str) -> None:
    judged("make", output, 1)
    assert judged("make", f"{output}\n1 failed in 0.1s", 1) == (False, "pytest 1 failed")
