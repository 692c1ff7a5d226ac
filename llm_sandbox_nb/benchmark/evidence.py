"""Evidence that tests ran: the outcome of each test, and control tests that have to fail.

An exit code is not evidence: if the tested code calls `os._exit(0)`, the exit code is 0, but no test has run. Therefore
pytest and unittest send the outcome of each test at once to another process, where the tested code cannot change it
(see `results_collector`). A test has passed if the worst outcome that was sent for this test is `passed`.

The tested code runs in the process of the test runner, so hostile code can send false outcomes, or change the runner.
Therefore control tests, which must be reported as failed, run together with the requested tests. Code that reports
success for all tests, or that disables failures, does so for the control tests too. Finally, the run must not change
the files of the tests and their settings.
"""

from __future__ import annotations

import asyncio
import posixpath
import re
import secrets
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from llm_sandbox_nb.benchmark.patches import files_of, kept_tree, steering_changes
from llm_sandbox_nb.sandbox.contract import CommandResult, Sandbox
from llm_sandbox_nb.sandbox.errors import OutputLimitExceededError

Outcome = Literal["passed", "expected to fail", "skipped", "failed"]
_SEVERITIES: tuple[Outcome, ...] = ("passed", "expected to fail", "skipped", "failed")
REPORT_PLACEHOLDER = "{report}"
_PYTHON = "python3"
_UNITTEST = re.compile(r"-m\s+unittest(?![\w.])")
_MAX_REPORT_BYTES = 64 * 1024**2
_COLLECTOR_SECONDS = 30.0
"""Maximum seconds between the end of the tests and the end of the collector."""
_SEND_LINE_SCRIPT = """
import socket, sys
one = socket.socket(socket.AF_UNIX)
one.connect(sys.argv[1])
one.sendall(sys.stdin.buffer.read())
"""
_MAX_NEIGHBOURS = 20
"""Maximum number of tests whose files are searched for. The control tests go next to the first file that exists."""
_STOPS_EARLY = re.compile(r"(?<!\S)(?:-x|--exitfirst|--maxfail\S*|-f|--failfast)(?!\S)")
_CONTROL_TESTS = """\
import sys
import unittest


def {function}():
    raise AssertionError


def wrong():
    assert 1 == 2


def nothing():
    pass


class {name}(unittest.TestCase):
    def test_{name}(self):
        ways = [
            wrong,
            lambda: self.assertTrue(False),
            lambda: self.assertFalse(True),
            lambda: self.assertEqual(1, 2),
            lambda: self.assertNotEqual(1, 1),
            lambda: self.assertIs(1, None),
            lambda: self.assertIsNone(1),
            lambda: self.assertIsNotNone(None),
            lambda: self.assertIn(1, []),
            lambda: self.assertNotIn(1, [1]),
            lambda: self.assertIsInstance(1, str),
            lambda: self.assertGreater(1, 2),
            lambda: self.assertLess(2, 1),
            lambda: self.assertAlmostEqual(1, 2),
            lambda: self.assertRegex("a", "b"),
            lambda: self.assertRaises(ValueError, nothing),
            lambda: self.assertEqual([1], [2]),
            lambda: self.assertEqual("a", "b"),
            lambda: self.assertEqual({{1: 1}}, {{1: 2}}),
            lambda: self.assertListEqual([1], [2]),
            lambda: self.assertDictEqual({{1: 1}}, {{1: 2}}),
            lambda: self.fail(),
        ]
        pytest = sys.modules.get("pytest")
        if pytest is not None:
            ways += [lambda: pytest.raises(ValueError, nothing), lambda: pytest.fail("")]
        for way in ways:
            try:
                way()
            except BaseException:
                continue
            return
        raise AssertionError
"""
"""Template of a file with two control tests, one in the form of pytest and one in the form of unittest. The second test
tries many assertions that must fail. If the tested code has disabled an assertion, the second test passes.
"""


@dataclass
class Report:
    """Reported outcomes of tests. A test's name is divided into folders, file, class and function."""

    control: Outcome | None = None
    """Least severe outcome of the control tests, or None if the report lacks a control test. Any outcome but `failed`
    shows that the tested code changed the test runner."""
    cases: int = 0
    _from_the_root: dict[tuple[str, ...], Outcome] = field(default_factory=dict)
    _anywhere: dict[tuple[str, ...], Outcome] = field(default_factory=dict)

    def add(self, place: str, name: str, outcome: Outcome) -> None:
        """Add the outcome of a test to the outcomes of its function, class, file and folders."""
        self.cases += 1
        words = [*place.split("."), name] if place else [name]
        plain = [*words[:-1], name.partition("[")[0]]
        for start in range(max(1, len(words) - 1)):
            found = self._anywhere if start else self._from_the_root
            keys = {tuple(words[start:end]) for end in range(start + 1, len(words) + 1)} | {
                tuple(plain[start:])
            }
            for key in keys:
                found[key] = max(found.get(key, "passed"), outcome, key=_SEVERITIES.index)

    def outcome(self, test: str) -> Outcome | None:
        """Return the outcome of a test, or the worst outcome of the tests in a class or file.

        Return None if no outcome was reported for `test`.
        """
        words, folders = words_of(test)
        if found := self._from_the_root.get(words) or self._anywhere.get(words):
            return found
        shorter = (self._from_the_root.get(words[cut:]) for cut in range(1, folders + 1))
        return next(
            (name for name in shorter if name), None
        )  # a runner that starts in a subfolder reports shorter names


def words_of(test: str) -> tuple[tuple[str, ...], int]:
    """Return the parts of a test's name, and the number of parts at the start that may be folders."""
    start, bracket, parameters = test.partition("[")
    file, *names = start.split("::")
    if names or file.endswith(".py"):
        path = posixpath.normpath(file).removesuffix(".py").replace("/", ".").split(".")
    else:
        path, names = file.replace("/", ".").split("."), []
    words = [*path, *names]
    words[-1] += bracket + parameters
    return tuple(words), len(path) - 1


@dataclass(frozen=True)
class Ran:
    """Result and report of a command that ran tests."""

    result: CommandResult
    report: Report
    changed: frozenset[str] = frozenset()
    """Paths that changed during the run and affect test outcomes."""


async def run_tests(
    box: Sandbox, tests: Sequence[str], neighbours: Sequence[str], command: str, timeout: float
) -> Ran:
    """Run `tests` and control tests for at most `timeout` seconds.

    The control tests are written next to the file of a test in `neighbours`. They run only if `neighbours` is not
    empty, and if the command has no placeholder `{report}`. A command with this placeholder has a runner other than
    pytest and unittest.
    """
    made = await box.exec(["mktemp", "-d", "/tmp/XXXXXXXXXXXXXXXX"])
    if made.exit_code != 0:
        raise OSError("The sandbox has no room for a report in /tmp.")
    folder, own = made.stdout.decode().strip(), REPORT_PLACEHOLDER in command
    controls = (
        await _put_controls(box, neighbours, dotted=bool(_UNITTEST.search(command)))
        if neighbours and not own
        else []
    )
    names = " ".join(map(shlex.quote, [*tests, *controls]))
    tree = await kept_tree(box)
    try:
        if neighbours and not own:
            result, lines = await _collected(box, folder, command, names, timeout)
            report = await asyncio.to_thread(
                read_results, lines, controls, stops_early=bool(_STOPS_EARLY.search(command))
            )
        else:
            filled = command.replace(REPORT_PLACEHOLDER, f"{folder}/report.xml").replace("{test}", names)
            result = await box.exec(["bash", "-c", filled], cwd=box.directories.root, timeout=timeout)
            report = await asyncio.to_thread(read_report, await _read(box, f"{folder}/report.xml"))
    finally:
        await box.exec(["rm", "-rf", folder])
    changed = await steering_changes(box, tree, [*tests, *controls]) if tree and controls else set()
    return Ran(result, report, frozenset(changed))


async def _read(box: Sandbox, path: str) -> bytes:
    try:
        return await box.read_file(path, limit=_MAX_REPORT_BYTES)
    except (OSError, OutputLimitExceededError):
        return b""


async def _collected(
    box: Sandbox, folder: str, command: str, names: str, timeout: float
) -> tuple[CommandResult, bytes]:
    """Run tests. Return the result of the command, and the lines of the collector with the outcomes.

    If the collector was killed, did not end in time or printed too much, no lines are returned.
    """
    plugin, last = f"x{secrets.token_hex(6)}", secrets.token_hex(16)
    here = Path(__file__).parent
    await box.write_file(f"{folder}/{plugin}.py", (here / "results_sender.py").read_bytes())
    command = _UNITTEST.sub(f"{folder}/{plugin}.py", command).replace("{test}", names)
    script = (
        f"for _ in {{1..300}}; do [ -S {folder}/results ] && break; sleep 0.1; done\n"
        f'export PYTHONPATH="{folder}${{PYTHONPATH:+:$PYTHONPATH}}" PYTEST_ADDOPTS="${{PYTEST_ADDOPTS-}} -p {plugin}"\n'
        f"{command}"
    )
    collector = [_PYTHON, "-I", "-S", "-c", (here / "results_collector.py").read_text("utf-8")]
    order = f"{folder}/results\n{last}\n".encode()
    collecting = asyncio.ensure_future(
        box.exec(
            collector, stdin=order, timeout=timeout + 2 * _COLLECTOR_SECONDS, output_limit=_MAX_REPORT_BYTES
        )
    )
    try:
        result = await box.exec(["bash", "-c", script], cwd=box.directories.root, timeout=timeout)
        send = [_PYTHON, "-I", "-S", "-c", _SEND_LINE_SCRIPT, f"{folder}/results"]
        await box.exec(send, stdin=f"{last}\n".encode(), timeout=_COLLECTOR_SECONDS)
        collected = await asyncio.wait_for(collecting, _COLLECTOR_SECONDS)
    except TimeoutError:
        return result, b""
    finally:
        collecting.cancel()
        await asyncio.wait({collecting})
    return result, b"" if collected.exit_code != 0 or collected.truncated else collected.stdout


async def _put_controls(box: Sandbox, neighbours: Iterable[str], *, dotted: bool) -> list[str]:
    """Write the control tests next to the first existing file of the tests in `neighbours`. Return their names.

    The names have the same form as the name of the neighbour: `file::name`, or dotted as in unittest. If
    no neighbour exists, `dotted` decides between the two forms.
    """
    name = f"x{secrets.token_hex(6)}"
    folder, prefix, like = "", "", "test"
    files = await files_of(box)
    for test in list(neighbours)[:_MAX_NEIGHBOURS]:
        file, _, function = test.partition("[")[0].partition("::")
        file = posixpath.normpath(file)
        words = [] if file.endswith(".py") else file.split(".")
        paths = ["/".join(words[:count]) + ".py" for count in range(1, len(words) + 1)] or [file]
        if found := [(path, there) for path in paths if (there := _at_or_below(path, files))]:
            path, there = found[0]
            folder, prefix, dotted = posixpath.dirname(there), posixpath.dirname(path), bool(words)
            like = function.rpartition("::")[2] or like
            break
    first, *others = like.split("_")
    # a pattern such as `test_*` or `*_total` that selects the neighbour selects this name too
    function = "_".join([first, name, *others])
    path = posixpath.join(box.directories.root, folder, f"test_{name}.py")
    await box.write_file(path, _CONTROL_TESTS.format(name=name, function=function).encode())
    asked = posixpath.join(prefix, f"test_{name}")
    if dotted:
        return [f"{asked.replace('/', '.')}.{name}.test_{name}"]
    return [f"{asked}.py::{function}", f"{asked}.py::{name}::test_{name}"]


def _at_or_below(path: str, files: Sequence[str]) -> str | None:
    """Return `path` if it is one of `files`, or else the first of `files` that ends with `/` and `path`.

    A command may change the folder before it runs the tests, so `path` may be relative to a subfolder. Return None if
    there is no such file.
    """
    if path in files:
        return path
    return next((file for file in files if file.endswith(f"/{path}")), None)


def read_results(lines: bytes, controls: Sequence[str] = (), *, stops_early: bool = False) -> Report:
    """Read a report from the lines of the collector.

    `stops_early` is True if the run ends at the first failure. In this case, the outcome of one of `controls` is
    enough, because the others may not have run.
    """
    report = Report()
    for line in lines.splitlines():
        outcome, _, escaped = line.partition(b"\t")
        known = next((severity for severity in _SEVERITIES if severity.encode() == outcome), None)
        if known is None:
            return Report()
        test = escaped.decode("unicode_escape", "replace").replace("::()::", "::")
        *place, name = words_of(test)[0] if "::" in test or ".py" in test else test.rsplit(".", 1)
        report.add(".".join(place), name, known)
    outcomes = [report.outcome(control) for control in controls]
    reported = [outcome for outcome in outcomes if outcome is not None]
    if reported and (stops_early or len(reported) == len(outcomes)):
        report.control = min(reported, key=_SEVERITIES.index)
    return report


def read_report(xml: bytes) -> Report:
    """Read a report from JUnit XML, from a runner other than pytest and unittest. Other data gives an empty report."""
    report = Report()
    if b"<!DOCTYPE" in xml or b"<!ENTITY" in xml:  # entities could expand without end
        return report
    try:
        cases = ElementTree.fromstring(xml).iter("testcase")
    except (ElementTree.ParseError, ValueError, LookupError):
        return report
    for case in cases:
        tags = {child.tag: child.get("type", "") for child in case}
        outcome: Outcome = "passed"
        if tags.keys() & {"failure", "error"}:
            outcome = "failed"
        elif "skipped" in tags:
            outcome = "expected to fail" if tags["skipped"] in ("pytest.xfail", "xfail") else "skipped"
        report.add(case.get("classname") or "", case.get("name") or "", outcome)
    return report
