"""Verdict on a check command, from its exit code and from the test summary in its output."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from llm_sandbox_nb.formatting import shorten
from llm_sandbox_nb.plain_text import plain

SEARCHED_LINES: Final = 40
"""Number of lines at the end of an output that are searched for the summary."""
_MAX_WORDS_LENGTH = 80
_PYTEST_COMMAND = re.compile(r"\s*(?:\S*python[\d.]*\s+-m\s+)?(?:\S*/)?(?:pytest|py\.test)(?:\s[^;&|<>]*)?")
"""Matches a command that runs only pytest. Pytest writes a summary unless the code under test exits early."""


@dataclass(frozen=True)
class TestCount:
    """Counts in the summary that a test runner prints."""

    __test__ = False  # otherwise, pytest would collect this class as a test

    runner: str
    passed: int
    failed: int = 0
    others: str = ""
    """Counts of other outcomes as text, such as `2 skipped`."""

    @property
    def words(self) -> str:
        """The summary as text, such as `pytest 1 failed, 11 passed`."""
        parts = [f"{self.failed:,} failed"] if self.failed else []
        parts += [f"{self.passed:,} passed"] if self.passed or not self.failed else []
        return f"{self.runner} {', '.join([*parts, *filter(None, [self.others])])}"


def _pytest(text: str) -> TestCount | None:
    found = re.findall(
        r"^=*\s*((?:\d{1,9} [a-z]+(?:, )?)+|no tests ran) in [\d.]+s(?: \([\d:]+\))?\s*=*$",
        text,
        re.MULTILINE,
    )
    if not found:
        return None
    counts = {name: int(number) for number, name in re.findall(r"(\d+) ([a-z]+)", found[-1])}
    failed = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0)
    others = ", ".join(f"{counts[name]:,} {name}" for name in ("skipped", "xfailed") if name in counts)
    return TestCount("pytest", counts.get("passed", 0), failed, others)


def _unittest(text: str) -> TestCount | None:
    found = re.search(
        r"^Ran (\d{1,9}) tests? in [\d.]+s\s+(OK|FAILED|NO TESTS RAN)(?: \((.*)\))?\s*\Z", text, re.MULTILINE
    )
    if not found:
        return None
    parts = (re.fullmatch(r"([a-z ]+)=(\d{1,9})", part) for part in (found[3] or "").split(", "))
    named = {part[1]: int(part[2]) for part in parts if part}
    failed = named.get("failures", 0) + named.get("errors", 0) + named.get("unexpected successes", 0)
    skipped = named.get("skipped", 0)
    passed = max(0, int(found[1]) - failed - skipped)
    return TestCount("unittest", passed, failed, f"{skipped:,} skipped" if skipped else "")


def _cargo(text: str) -> TestCount | None:
    found = re.findall(r"^test result: \w+\. (\d{1,9}) passed; (\d{1,9}) failed;", text, re.MULTILINE)
    passed, failed = (sum(int(match[place]) for match in found) for place in (0, 1))
    return TestCount("cargo test", passed, failed) if found else None


def _javascript(text: str) -> TestCount | None:
    """Parse the summary of Jest, Vitest, `node --test` or Mocha."""
    if found := re.findall(r"^\s*Tests:?\s++(.*\d (?:passed|failed|total).*)$", text, re.MULTILINE):
        counts = {
            name: int(number) for number, name in re.findall(r"(?<!\d)(\d{1,9}) (passed|failed)", found[-1])
        }
        return TestCount("tests", counts.get("passed", 0), counts.get("failed", 0))
    passed = re.findall(r"^(?:#|ℹ) pass (\d{1,9})$|^\s*(\d{1,9}) passing\b", text, re.MULTILINE)
    failed = re.findall(r"^(?:#|ℹ) fail (\d{1,9})$|^\s*(\d{1,9}) failing\b", text, re.MULTILINE)
    if not passed:
        return None
    return TestCount("tests", int("".join(passed[-1])), int("".join(failed[-1])) if failed else 0)


_READERS: tuple[Callable[[str], TestCount | None], ...] = (_pytest, _unittest, _cargo, _javascript)


def judged(command: str, output: str, exit_code: int | None) -> tuple[bool, str]:
    """Return True if a command has passed, and a short text about the outcome.

    `exit_code` is None if the command was interrupted.
    A command with exit code 0 fails anyway if its test summary has a failed test or no passed test, or if pytest wrote
    no summary. Without this rule, the code under test could pass by ending the test runner early with exit code 0.
    """
    end = "\n".join(plain(output).rstrip().split("\n")[-SEARCHED_LINES:])
    counted = next((found for reader in _READERS if (found := reader(end)) is not None), None)
    if counted is not None:
        if exit_code == 0 and not counted.failed and not counted.passed:
            return False, f"{counted.words}: no test passed"
        return exit_code == 0 and not counted.failed, counted.words
    name = shorten(" ".join(command.split()), _MAX_WORDS_LENGTH, "…")
    if exit_code != 0:
        last = next((line.strip() for line in reversed(plain(output).split("\n")) if line.strip()), "")
        ended = "it was interrupted" if exit_code is None else f"exit {exit_code}"
        return False, ": ".join(filter(None, [f"{name}, {ended}", shorten(last, _MAX_WORDS_LENGTH, "…")]))
    if _PYTEST_COMMAND.fullmatch(command):
        return False, "pytest wrote no summary: the tested code may have ended pytest (use -q at most once)"
    return True, name
