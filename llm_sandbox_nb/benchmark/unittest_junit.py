"""Run unittest as `python -m unittest` does, and write JUnit XML to the file that the first argument names.

This runs inside of sandboxes, with whatever Python the tests have: it needs 3.6 and the standard library only.
"""

from __future__ import annotations

import os
import sys
import unittest
from typing import Any
from xml.sax.saxutils import quoteattr


class _Result(unittest.TextTestResult):
    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.seen: list[tuple[str, str]] = []

    def addSuccess(self, test: Any) -> None:  # noqa: N802
        super().addSuccess(test)
        self.seen.append((test.id(), ""))

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        super().addFailure(test, err)
        self.seen.append((test.id(), "<failure/>"))

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        super().addError(test, err)
        self.seen.append((test.id(), "<error/>"))

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        self.seen.append((test.id(), "<skipped/>"))

    def addExpectedFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        super().addExpectedFailure(test, err)
        self.seen.append((test.id(), '<skipped type="xfail"/>'))

    def addUnexpectedSuccess(self, test: Any) -> None:  # noqa: N802
        super().addUnexpectedSuccess(test)
        self.seen.append((test.id(), "<failure/>"))

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.seen.append((test.id(), "<failure/>"))


class _Runner(unittest.TextTestRunner):
    resultclass = _Result


def main() -> None:
    """Run the tests that the other arguments name, and exit as unittest does."""
    report = sys.argv.pop(1)
    sys.argv[0] = "python -m unittest"
    sys.path[0] = os.getcwd()  # noqa: PTH109 - as for `-m`
    result: Any = unittest.main(module=None, testRunner=_Runner, exit=False).result
    with open(report, "w", encoding="utf-8", errors="replace") as file:
        file.write("<testsuites><testsuite>\n")
        for identity, said in result.seen:
            where, _, name = identity.rpartition(".")
            file.write(
                "<testcase classname=%s name=%s>%s</testcase>\n" % (quoteattr(where), quoteattr(name), said)  # noqa: UP031
            )
        file.write("</testsuite></testsuites>\n")
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
