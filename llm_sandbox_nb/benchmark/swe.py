"""Software tasks: a repository goes into the sandbox, a patch comes out, tests decide in a sandbox of their own.

A row has the columns of SWE-bench: `base_commit`, `test_patch`, `FAIL_TO_PASS`, `PASS_TO_PASS`, and where the
repository is: `repository`, a folder or git repository on this machine, or `image`, a Docker image that has it in
`working_dir`. `test_command` runs the tests named by `{test}`, which stand there quoted for a shell, as words of
their own: inside of quotes they would be changed. Its exit code decides, not what it prints.
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
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from llm_sandbox_nb.benchmark.patches import GIT, apply, take_back
from llm_sandbox_nb.benchmark.rows import DataError, Row
from llm_sandbox_nb.benchmark.scores import NO_ANSWER, Score
from llm_sandbox_nb.benchmark.verdicts import verdict
from llm_sandbox_nb.sandbox.contract import Sandbox

TEST_COMMAND = "python3 -m pytest -q -x {test}"
_PREPARE = (
    f"rm -rf .git && {GIT} init -q && {GIT} add -A --force . && "
    f"{GIT} commit -q --allow-empty -m base && {GIT} rev-parse HEAD"
)
_LARGEST_PATCH = 5 * 1024**2
BoxOpener = Callable[[Row], AbstractAsyncContextManager[Sandbox]]


async def prepare_repository(box: Sandbox, row: Row, folder: Path) -> str:
    """Put the repository of a row into the working directory, as a git repository with one commit; its name.

    History is left behind: it could hold the fix.

    Raises:
        DataError: there is no such repository or commit.
    """
    if source := row.extra.get("repository"):
        with tempfile.TemporaryDirectory() as temporary:
            await asyncio.to_thread(
                _export, _resolved(str(source), folder), row.extra.get("base_commit"), Path(temporary)
            )
            await box.upload(temporary, box.directories.root)
    done = await box.exec(["bash", "-c", _PREPARE], cwd=box.directories.root)
    if done.exit_code != 0:
        reason = done.stderr.decode("utf-8", "replace").strip().rstrip(".")[:300]
        raise DataError(f"The repository cannot be prepared: {reason}.")
    return done.stdout.decode("ascii", "replace").strip()


def _resolved(source: str, folder: Path) -> Path:
    path = folder / Path(source).expanduser()
    if not path.is_dir():
        raise DataError(f"There is no repository {path}: give a folder in the column `repository`.")
    return path


def _export(source: Path, commit: Any, target: Path) -> None:
    """The files of a commit, or of a plain folder, without history."""
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
    """Everything that is different from the commit `base`, as a patch; None when nothing is.

    What the model committed, stashed away or told git to ignore is its own affair: the files decide.
    """
    diff = f"{GIT} diff --cached --binary --no-ext-diff --no-textconv {shlex.quote(base)} -- ."
    done = await box.exec(
        ["bash", "-c", f"{GIT} add -A . && {diff}"], cwd=box.directories.root, output_limit=_LARGEST_PATCH
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
    timeout: float = 1800.0,
) -> Score:
    """1 when, after the patch and the row's own tests, every test that has to pass does; else 0.

    The tests are put in after the patch, and what steers them is as in the base again, so a patch that changes
    them changes nothing; see `patches`. Unscored when the row's own tests cannot be put in. `timeout` is for all
    tests together.

    Raises:
        DataError: the row's tests are no lists, or there is no such repository or commit.
    """
    tests = tests_of(row)
    if patch is None or not patch.strip():
        return NO_ANSWER
    if not tests:
        return Score(None, "the row names no test")
    test_patch = str(row.extra.get("test_patch") or "")
    async with open_box(row) as box:
        await prepare_repository(box, row, folder)
        if not await apply(box, patch, "model.patch"):
            return Score(0.0, "the patch does not apply")
        if not await take_back(box, tests, test_patch):
            return Score(0.0, "it cannot be told what the patch changes")
        if test_patch and not await apply(box, test_patch, "tests.patch"):
            return Score(None, "the row's tests cannot be put in")
        return await verdict(box, tests, str(row.extra.get("test_command") or test_command), timeout)


def tests_of(row: Row) -> list[str]:
    """The tests that have to pass.

    Raises:
        DataError: they are no lists.
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
            f'{column} of the row {row.id!r} has to be a list of tests, or the JSON of one: ["test_a.py::test_b"].'
        )
    return list(value)
