"""Software tasks: the model changes a repository. Tests of the resulting patch, in a second sandbox, give the score.

A row has the columns of SWE-bench: `base_commit`, `test_patch`, `FAIL_TO_PASS`, `PASS_TO_PASS`. The column `repository`
names a folder or a git repository on this machine. Alternatively, `image` names a Docker image that has the repository
in `working_dir`. `test_command` runs the tests. Its placeholder `{test}` becomes the names of the tests, quoted for a
shell, so the placeholder must not be inside quotes. The outcomes come from the report of pytest or unittest, or from
the report that another runner writes to `{report}`; see `evidence`. Printed output does not count.
"""

from __future__ import annotations

import asyncio
import io
import json
import shlex
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_sandbox_nb.benchmark.evidence import REPORT_PLACEHOLDER, Ran, run_tests
from llm_sandbox_nb.benchmark.patches import GIT, apply, restore_tests
from llm_sandbox_nb.benchmark.rows import DataError, Row
from llm_sandbox_nb.benchmark.text_scorers import NO_ANSWER, Score
from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.sandbox.contract import CommandResult, Sandbox

TEST_COMMAND = "python3 -m pytest -q {test}"
EVIDENCE = ("report", "exit_code")
"""Kinds of evidence that tests passed: a report of the test runner, or the exit code 0 of the test command."""
_PREPARE = (
    f"rm -rf .git && {GIT} init -q && {GIT} add -A --force . && "
    f"{GIT} commit -q --allow-empty -m base && {GIT} rev-parse HEAD"
)
_MAX_PATCH_BYTES = 5 * 1024**2
_MAX_NAMED_TESTS = 5
"""Maximum number of failing tests whose names a score contains."""
_MAX_NAMES_BYTES = 100_000
"""Maximum bytes of test names in a command. The whole command is one argument, for which Linux allows 128 KiB."""
_NO_COMMAND_CODES = (126, 127)
_NO_RUNNER = (
    "the tests cannot run here, even without the patch, or they leave no report ({}): use an image with their runner; "
    "a runner other than pytest or `-m unittest` has to write JUnit XML to {{report}}"
)
BoxOpener = Callable[[Row], AbstractAsyncContextManager[Sandbox]]


async def prepare_repository(box: Sandbox, row: Row, folder: Path) -> str:
    """Put the repository of a row into the working directory as a single commit. Return the name of the commit.

    The history is not copied, because it could contain the fix.

    Raises:
        DataError: if the repository or commit does not exist.
    """
    if source := row.extra.get("repository"):
        repository = folder / expanded(str(source))
        if not repository.is_dir():
            raise DataError(f"There is no repository {repository}: give a folder in the column `repository`.")
        with tempfile.TemporaryDirectory() as temporary:
            await asyncio.to_thread(_export, repository, row.extra.get("base_commit"), Path(temporary))
            await box.upload(temporary, box.directories.root)
    done = await box.exec(["bash", "-c", _PREPARE], cwd=box.directories.root)
    if done.exit_code != 0:
        reason = done.stderr.decode("utf-8", "replace").strip().rstrip(".")[:300]
        raise DataError(f"The repository cannot be prepared: {reason}.")
    return done.stdout.decode("ascii", "replace").strip()


def _export(source: Path, commit: Any, target: Path) -> None:
    """Write the files of a commit to `target`, without the history.

    If there is no commit, or the folder has no git, copy the folder's present files.
    """
    if not commit or not ((source / ".git").exists() or (source / "HEAD").exists()):
        shutil.copytree(
            source, target, dirs_exist_ok=True, symlinks=True, ignore=shutil.ignore_patterns(".git")
        )
        return
    command = ["git", "-C", str(source), "archive", "--format=tar", "--end-of-options", str(commit)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise DataError(
            f"The commit {commit} of {source} cannot be read: {done.stderr.decode('utf-8', 'replace').strip()}."
        )
    try:
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(target, filter="data")
    except tarfile.TarError as error:
        reason = " ".join(str(error).split())
        raise DataError(f"The commit {commit} of {source} cannot be unpacked here: {reason}.") from error


async def collect_patch(box: Sandbox, base: str) -> str | None:
    """Return all differences between the files and the commit `base` as a patch.

    Return None if git fails, or if the patch would be empty or too large. The model may or may not have committed its
    changes. New files that git ignores are left out, unless the model has added them to git. Such files are caches and
    build results, which could make the patch too large. The harnesses of SWE-bench leave them out too.
    """
    # `diff-index` ignores settings of `diff`, such as colours. `git add` exits with 1 if it leaves out a nested
    # repository without a commit.
    add = f"{{ {GIT} add -A --ignore-errors . || [ $? -eq 1 ]; }}"
    diff = f"{GIT} diff-index -p -M --cached --binary --no-ext-diff --no-textconv {shlex.quote(base)} -- ."
    done = await box.exec(
        ["bash", "-c", f"{add} && {diff}"], cwd=box.directories.root, output_limit=_MAX_PATCH_BYTES
    )
    if done.exit_code != 0 or done.truncated:
        return None
    return done.stdout.decode("utf-8", "surrogateescape") or None


async def score_patch(
    patch: str | None,
    row: Row,
    open_box: BoxOpener,
    folder: Path,
    test_command: str = TEST_COMMAND,
    test_evidence: str = "report",
    timeout: float = 1800.0,
) -> Score:
    """Score 1 if there is evidence that all required tests passed with the patch, and 0 otherwise.

    After the patch was applied, files that affect test outcomes are restored, and the row's tests are added; see
    `patches` and `evidence`. `timeout` is the maximum seconds for all tests together. If the row's tests cannot be
    added, the patch is unscored. If the tests cannot run without the patch either, the score is marked as failed.

    Raises:
        DataError: if the row's tests are not lists, its `test_evidence` is unknown, or the repository or commit does
            not exist.
    """
    tests = tests_of(row)
    if patch is None or not patch.strip():
        return NO_ANSWER
    if not tests:
        return Score(None, "the row names no test")
    evidence = str(row.extra.get("test_evidence") or test_evidence)
    if evidence not in EVIDENCE:
        raise DataError(
            f"test_evidence of the row {row.id!r} must be {' or '.join(EVIDENCE)}, not {evidence!r}."
        )
    command = str(row.extra.get("test_command") or test_command)
    trial = _Trial(row, open_box, folder, command, evidence == "exit_code", timeout)
    try:
        return await trial.verdict(patch, tests)
    except _DecidedError as decided:
        return decided.score


def tests_of(row: Row) -> list[str]:
    """Return the names of the tests that must pass.

    Raises:
        DataError: if a column of tests is not a list.
    """
    return [*_names(row, "FAIL_TO_PASS"), *_names(row, "PASS_TO_PASS")]


def _names(row: Row, column: str) -> list[str]:
    value = row.extra.get(column) or []
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else []
        except ValueError:
            value = None
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise DataError(
            f'{column} of the row {row.id!r} must be a list of tests, or the JSON of one: ["test_a.py::test_b"].'
        )
    return list(value)


class _DecidedError(LLMSandboxError):
    """Error that ends a trial early, because the score is decided before all tests have run."""

    def __init__(self, score: Score) -> None:
        super().__init__(score.detail)
        self.score = score


@dataclass(frozen=True)
class _Trial:
    """Tests of a row. Each run of tests has a new sandbox, so that a patch cannot affect a later run."""

    row: Row
    open_box: BoxOpener
    folder: Path
    command: str
    by_exit_code: bool
    timeout: float

    async def verdict(self, patch: str, tests: list[str]) -> Score:
        """Score 1 if every test passed, and 0 otherwise. Raise `_DecidedError` if the score is decided early."""
        failing: list[str] = []
        deadline = time.monotonic() + self.timeout
        for piece in _pieces(tests, _MAX_NAMES_BYTES // max(1, self.command.count("{test}"))):
            left = deadline - time.monotonic()
            ran = await self._run(piece, piece, patch, left) if left > 0 else None
            if ran is None or ran.result.timed_out:
                return Score(0.0, f"the {len(tests)} tests do not end within {self.timeout:g} s")
            failing += await (self._judged_by_exit_code if self.by_exit_code else self._failing)(piece, ran)
        if not failing:
            return Score(1.0, f"{len(tests)} tests pass")
        return Score(
            0.0, f"{len(failing)} of {len(tests)} tests fail: {', '.join(failing[:_MAX_NAMED_TESTS])}"
        )

    async def _run(self, tests: list[str], neighbours: list[str], patch: str | None, timeout: float) -> Ran:
        """Apply `patch`, if there is one, and the row's test patch in a new sandbox. Then run `tests` there.

        For `neighbours`, see `run_tests`.
        """
        test_patch = str(self.row.extra.get("test_patch") or "")
        async with self.open_box(self.row) as box:
            await prepare_repository(box, self.row, self.folder)
            if patch is not None and not await apply(box, patch, "model.patch"):
                raise _DecidedError(Score(0.0, "the patch does not apply"))
            if patch is not None and not await restore_tests(box, neighbours, test_patch):
                raise _DecidedError(Score(0.0, "git cannot list the changes of the patch"))
            if test_patch and not await apply(box, test_patch, "tests.patch"):
                raise _DecidedError(Score(None, "the row's tests cannot be added"))
            ran = await run_tests(box, tests, [] if self.by_exit_code else neighbours, self.command, timeout)
            if patch is not None and ran.changed and not ran.result.timed_out:
                names = ", ".join(sorted(ran.changed)[:_MAX_NAMED_TESTS])
                raise _DecidedError(
                    Score(0.0, f"the patch changes tests or their settings while they run: {names}")
                )
            return ran

    async def _failing(self, tests: list[str], ran: Ran) -> list[str]:
        """Return the tests that the report does not list as passed.

        If all these tests are in `PASS_TO_PASS`, and reported as expected to fail, run them also without the patch.
        Leave out those that are then reported in the same way.
        """
        report, own = ran.report, REPORT_PLACEHOLDER in self.command
        if report.control not in (None, "failed"):
            detail = "the patch changes the test runner: a test that has to fail is not reported as failed"
            raise _DecidedError(Score(0.0, detail))
        outcomes = {test: report.outcome(test) for test in tests}
        failing = [test for test in tests if outcomes[test] != "passed"]
        reported = report.control is not None or (own and report.cases > 0)
        if not reported and "failed" not in outcomes.values():
            raise _DecidedError(await self._without_a_report(tests, ran))
        if own and not failing and ran.result.exit_code != 0:
            raise _DecidedError(Score(0.0, f"the tests end with exit code {ran.result.exit_code}"))
        kept = _names(self.row, "PASS_TO_PASS")
        expected = [test for test in failing if outcomes[test] == "expected to fail" and test in kept]
        if expected and len(expected) == len(failing):
            base = await self._run(expected, tests, None, self.timeout)
            return [test for test in expected if base.report.outcome(test) != "expected to fail"]
        return failing

    async def _without_a_report(self, tests: list[str], ran: Ran) -> Score:
        """Return the score of a patch whose tests left no report. Run the tests without the patch to find the cause.

        If they then leave a report, the patch prevents the report, and the score is 0. Otherwise the patch cannot be
        scored.
        """
        own = REPORT_PLACEHOLDER in self.command
        base = await self._run(tests if own else [], tests, None, self.timeout)
        if base.report.control == "failed" or (own and base.report.cases):
            return Score(0.0, "the tests end without a report that they ran")
        return Score(None, _NO_RUNNER.format(_last_line(base.result)), failed=True)

    async def _judged_by_exit_code(self, tests: list[str], ran: Ran) -> list[str]:
        code = ran.result.exit_code
        if code == 0:
            return []
        if code in _NO_COMMAND_CODES:
            base = await self._run(tests, tests, None, self.timeout)
            if base.result.exit_code == code:
                raise _DecidedError(Score(None, _NO_RUNNER.format(_last_line(base.result)), failed=True))
        raise _DecidedError(Score(0.0, f"the tests end with exit code {code}"))


def _last_line(result: CommandResult) -> str:
    lines = [line for line in result.text.splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else f"exit code {result.exit_code}"


def _pieces(tests: list[str], longest: int) -> Iterator[list[str]]:
    """Split the list of tests, in its order, into pieces whose names have at most `longest` bytes together."""
    piece: list[str] = []
    size = 0
    for test in tests:
        more = len(shlex.quote(test).encode("utf-8", "surrogatepass")) + 1
        if piece and size + more > longest:
            yield piece
            piece, size = [], 0
        piece.append(test)
        size += more
    if piece:
        yield piece
