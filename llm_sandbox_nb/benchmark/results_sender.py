"""Sender of test outcomes: a plug-in of pytest and a runner of unittest, which send each outcome to the collector.

This file runs in sandboxes with the Python of the tests, so it needs only Python 3.7 and the standard library. Nothing
can change a sent outcome, because the collector is a separate process: see `results_collector`.
"""

from __future__ import annotations

import _socket  # not `socket`, because the repository may have a module of that name
import os
import sys
import unittest
from typing import Any

SOCKET = os.path.join(os.path.dirname(os.path.abspath(__file__)), "results")  # noqa: PTH100, PTH118, PTH120
_channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
_connected: list[bool] = []


def send(test: str, outcome: str) -> None:
    if not _connected:
        _channel.connect(SOCKET)
        _connected.append(True)
    _channel.sendall(("%s\t%s\n" % (outcome, test.encode("unicode_escape").decode("ascii"))).encode("ascii"))  # noqa: UP031


# ------------------------------------------------------------------------------------------------- pytest


def pytest_runtest_logreport(report: Any) -> None:
    """Send the outcome of a test, and each failure or skip in its set-up and tear-down."""
    if report.failed:
        send(report.nodeid, "failed")
    elif report.skipped:
        send(report.nodeid, "expected to fail" if hasattr(report, "wasxfail") else "skipped")
    elif report.passed and report.when == "call":
        send(report.nodeid, "passed")


def pytest_collectreport(report: Any) -> None:
    """Send a failure for a file or class whose tests cannot be collected."""
    if report.failed:
        send(report.nodeid, "failed")


def pytest_configure(config: Any) -> None:
    """Unregister the plug-in in workers of pytest-xdist, because the main process sends their reports."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.unregister(sys.modules[__name__])


# ------------------------------------------------------------------------------------------------- unittest


class _Result(unittest.TextTestResult):
    def addSuccess(self, test: Any) -> None:  # noqa: N802
        super().addSuccess(test)
        send(test.id(), "passed")

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        super().addFailure(test, err)
        send(test.id(), "failed")

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        super().addError(test, err)
        send(test.id(), "failed")

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        send(test.id(), "skipped")

    def addExpectedFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        super().addExpectedFailure(test, err)
        send(test.id(), "expected to fail")

    def addUnexpectedSuccess(self, test: Any) -> None:  # noqa: N802
        super().addUnexpectedSuccess(test)
        send(test.id(), "failed")

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
        super().addSubTest(test, subtest, err)
        if err is not None:
            send(test.id(), "failed")


class _Runner(unittest.TextTestRunner):
    resultclass: Any = _Result


def main() -> None:
    """Run the tests that the arguments name, with the exit code of `python -m unittest`."""
    sys.argv[0] = "python -m unittest"
    sys.path[0] = os.getcwd()  # noqa: PTH109 - as for `-m`
    unittest.main(module=None, testRunner=_Runner)


if __name__ == "__main__":
    main()
