"""Evidence that tests ran: the outcome of each test, and a test among them that has to fail.

An exit code is no evidence: `os._exit(0)` in the tested code gives 0 without any test. So pytest and unittest send the
outcome of each test to another process as soon as it is known, see `results_collector`, and a test counts as passed
when nothing worse was sent. Nothing changes what was sent, not when the tests end either. Tested code runs in
the runner's own process and can send, too, or change the runner. Against that stand the controls: tests among those
that are asked for which have to be reported as failed. Who reports success for all tests, or switches failing off,
reports it for these. And the tests and their settings have to be after the run what they were before it.
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
_WORST: tuple[Outcome, ...] = ("passed", "expected to fail", "skipped", "failed")
REPORT = "{report}"
_PYTHON = "python3"
_UNITTEST = re.compile(r"-m\s+unittest(?![\w.])")
_LARGEST_REPORT = 64 * 1024**2
_LAST_LINES = 30.0
"""Seconds that the collector may take when the tests have ended."""
_SAY_LAST = """
import socket, sys
one = socket.socket(socket.AF_UNIX)
one.connect(sys.argv[1])
one.sendall(sys.stdin.buffer.read())
"""
_TRIED = 20
"""Tests beside which a place for the control is looked for."""
_STOPS_EARLY = re.compile(r"(?<!\S)(?:-x|--exitfirst|--maxfail\S*|-f|--failfast)(?!\S)")
_CONTROL = """\
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
"""Two tests: one as pytest has them, and one as unittest has them, which both runners find whatever names their
settings want. The second fails when every way to fail works, and passes where one was switched off."""


@dataclass
class Report:
    """What was reported of each test, found by the words of its name."""

    control: Outcome | None = None
    """What was reported of the controls: anything but `failed` shows a runner that is not to be trusted."""
    cases: int = 0
    _from_the_root: dict[tuple[str, ...], Outcome] = field(default_factory=dict)
    _anywhere: dict[tuple[str, ...], Outcome] = field(default_factory=dict)

    def add(self, place: str, name: str, outcome: Outcome) -> None:
        """Put a test in, for its own name and those of its class, file and folders."""
        self.cases += 1
        words = [*place.split("."), name] if place else [name]
        plain = [*words[:-1], name.partition("[")[0]]
        for start in range(max(1, len(words) - 1)):
            found = self._anywhere if start else self._from_the_root
            keys = {tuple(words[start:end]) for end in range(start + 1, len(words) + 1)} | {
                tuple(plain[start:])
            }
            for key in keys:
                found[key] = max(found.get(key, "passed"), outcome, key=_WORST.index)

    def outcome(self, test: str) -> Outcome | None:
        """What was reported of a test, or the worst of all that a class or file has; None: nothing was."""
        words, folders = words_of(test)
        if found := self._from_the_root.get(words) or self._anywhere.get(words):
            return found
        shorter = (self._from_the_root.get(words[cut:]) for cut in range(1, folders + 1))
        return next((one for one in shorter if one), None)  # the report's root is a folder of the repository


def words_of(test: str) -> tuple[tuple[str, ...], int]:
    """The words of a test's name, as a report has them, and how many of them may be folders."""
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
    """A command that ran tests, and its report."""

    result: CommandResult
    report: Report
    changed: frozenset[str] = frozenset()
    """Tests, and files that steer them, that are not what they were before."""


async def run_tests(
    box: Sandbox, tests: Sequence[str], beside: Sequence[str], command: str, timeout: float
) -> Ran:
    """Run tests, and the control beside those of `beside`, for at most `timeout` seconds; see `Report.control`.

    A command that has a place for the report is neither pytest nor unittest: there is no control for it, nor where
    `beside` is empty.
    """
    made = await box.exec(["mktemp", "-d", "/tmp/XXXXXXXXXXXXXXXX"])
    if made.exit_code != 0:
        raise OSError("The sandbox has no room for a report in /tmp.")
    folder, own = made.stdout.decode().strip(), REPORT in command
    controls = (
        await _put_controls(box, beside, dotted=bool(_UNITTEST.search(command))) if beside and not own else []
    )
    names = " ".join(map(shlex.quote, [*tests, *controls]))
    tree = await kept_tree(box)
    try:
        if beside and not own:
            result, said = await _collected(box, folder, command, names, timeout)
            report = await asyncio.to_thread(
                read_results, said, controls, stops_early=bool(_STOPS_EARLY.search(command))
            )
        else:
            filled = command.replace(REPORT, f"{folder}/report.xml").replace("{test}", names)
            result = await box.exec(["bash", "-c", filled], cwd=box.directories.root, timeout=timeout)
            report = await asyncio.to_thread(read_report, await _read(box, f"{folder}/report.xml"))
    finally:
        await box.exec(["rm", "-rf", folder])
    changed = await steering_changes(box, tree, [*tests, *controls]) if tree and controls else set()
    return Ran(result, report, frozenset(changed))


async def _read(box: Sandbox, path: str) -> bytes:
    try:
        return await box.read_file(path, limit=_LARGEST_REPORT)
    except (OSError, OutputLimitExceededError):
        return b""


async def _collected(
    box: Sandbox, folder: str, command: str, names: str, timeout: float
) -> tuple[CommandResult, bytes]:
    """Run tests, and what was sent of them to the collector; nothing, when that was ended or kept from its end."""
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
        box.exec(collector, stdin=order, timeout=timeout + 2 * _LAST_LINES, output_limit=_LARGEST_REPORT)
    )
    try:
        result = await box.exec(["bash", "-c", script], cwd=box.directories.root, timeout=timeout)
        say = [_PYTHON, "-I", "-S", "-c", _SAY_LAST, f"{folder}/results"]
        await box.exec(say, stdin=f"{last}\n".encode(), timeout=_LAST_LINES)
        collected = await asyncio.wait_for(collecting, _LAST_LINES)
    except TimeoutError:
        return result, b""
    finally:
        collecting.cancel()
        await asyncio.wait({collecting})
    return result, b"" if collected.exit_code != 0 or collected.truncated else collected.stdout


async def _put_controls(box: Sandbox, beside: Iterable[str], *, dotted: bool) -> list[str]:
    """Write the tests that have to fail beside the first of the tests that is found; their names."""
    name = f"x{secrets.token_hex(6)}"
    folder, prefix, like = "", "", "test"
    files = await files_of(box)
    for test in list(beside)[:_TRIED]:
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
    function = "_".join([first, name, *others])  # matches the patterns that the test's own name matches
    path = posixpath.join(box.directories.root, folder, f"test_{name}.py")
    await box.write_file(path, _CONTROL.format(name=name, function=function).encode())
    asked = posixpath.join(prefix, f"test_{name}")
    if dotted:
        return [f"{asked.replace('/', '.')}.{name}.test_{name}"]
    return [f"{asked}.py::{function}", f"{asked}.py::{name}::test_{name}"]


def _at_or_below(path: str, files: Sequence[str]) -> str | None:
    """The file of this path, or else of one that ends with it: commands may change the folder."""
    if path in files:
        return path
    return next((file for file in files if file.endswith(f"/{path}")), None)


def read_results(said: bytes, controls: Sequence[str] = (), *, stops_early: bool = False) -> Report:
    """A report out of the lines of the collector. One that stops early has the first control only."""
    report = Report()
    for line in said.splitlines():
        outcome, _, escaped = line.partition(b"\t")
        known = next((one for one in _WORST if one.encode() == outcome), None)
        if known is None:
            return Report()
        test = escaped.decode("unicode_escape", "replace").replace("::()::", "::")
        *place, name = words_of(test)[0] if "::" in test or ".py" in test else test.rsplit(".", 1)
        report.add(".".join(place), name, known)
    outcomes = [report.outcome(control) for control in controls]
    reported = [one for one in outcomes if one is not None]
    if reported and (stops_early or len(reported) == len(outcomes)):
        report.control = min(reported, key=_WORST.index)
    return report


def read_report(said: bytes) -> Report:
    """A report out of JUnit XML, of a runner that writes it itself; an empty one out of anything else."""
    report = Report()
    if b"<!DOCTYPE" in said or b"<!ENTITY" in said:
        return report
    try:
        cases = ElementTree.fromstring(said).iter("testcase")
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
