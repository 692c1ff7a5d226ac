"""Software tasks: a repository goes into the sandbox, a patch comes out, tests decide in a sandbox of their own.

A row has the columns of SWE-bench: `base_commit`, `test_patch`, `FAIL_TO_PASS`, `PASS_TO_PASS`, and where the
repository is: `repository`, a folder or git repository on this machine, or `image`, a Docker image that has it in
`working_dir`. `test_command` runs one test, named by `{test}`; its exit code decides, not what it prints.
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

from llm_sandbox_nb.benchmark.rows import DataError, Row
from llm_sandbox_nb.benchmark.scores import NO_ANSWER, Score
from llm_sandbox_nb.sandbox.contract import Sandbox

TEST_COMMAND = "python3 -m pytest -q -x {test}"
_GIT = (
    "git -c user.name=sandbox -c user.email=sandbox@localhost -c commit.gpgsign=false "
    "-c core.hooksPath=/dev/null -c 'safe.directory=*'"
)
_PREPARE = (
    f"rm -rf .git && {_GIT} init -q && {_GIT} add -A --force . && "
    f"{_GIT} commit -q --allow-empty -m base && {_GIT} rev-parse HEAD"
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
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(target, filter="data")


async def collect_patch(box: Sandbox, base: str) -> str | None:
    """Everything that is different from the commit `base`, as a patch; None when nothing is.

    What the model committed, stashed away or told git to ignore is its own affair: the files decide.
    """
    diff = f"{_GIT} diff --cached --binary --no-ext-diff --no-textconv {shlex.quote(base)} -- ."
    done = await box.exec(
        ["bash", "-c", f"{_GIT} add -A . && {diff}"], cwd=box.directories.root, output_limit=_LARGEST_PATCH
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

    The tests are put in after the patch, so a patch that changes them changes nothing. Unscored when the row's
    own tests cannot be put in.
    """
    if patch is None or not patch.strip():
        return NO_ANSWER
    tests = [*_names(row, "FAIL_TO_PASS"), *_names(row, "PASS_TO_PASS")]
    if not tests:
        return Score(None, "the row names no test")
    async with open_box(row) as box:
        await prepare_repository(box, row, folder)
        if not await _apply(box, patch, "model.patch"):
            return Score(0.0, "the patch does not apply")
        if test_patch := str(row.extra.get("test_patch") or ""):
            await _restore(box, test_patch)
            if not await _apply(box, test_patch, "tests.patch"):
                return Score(None, "the row's tests cannot be put in")
        failed = await _failing(box, tests, str(row.extra.get("test_command") or test_command), timeout)
    if failed:
        return Score(0.0, f"{len(failed)} of {len(tests)} tests fail: {', '.join(failed[:5])}")
    return Score(1.0, f"{len(tests)} tests pass")


async def _failing(box: Sandbox, tests: list[str], command: str, timeout: float) -> list[str]:
    """The tests that do not end with exit code 0: all at once, then, when that fails, each by itself."""
    together = command.replace("{test}", " ".join(map(shlex.quote, tests)))
    if len(tests) > 1 and (await _shell(box, together, timeout)) == 0:
        return []
    failed = []
    for test in tests:
        if await _shell(box, command.replace("{test}", shlex.quote(test)), timeout) != 0:
            failed.append(test)
    return failed


async def _shell(box: Sandbox, command: str, timeout: float) -> int | None:
    done = await box.exec(["bash", "-c", command], cwd=box.directories.root, timeout=timeout)
    return done.exit_code


async def _apply(box: Sandbox, patch: str, name: str) -> bool:
    path = f"{box.directories.root}/.git/{name}"
    await box.write_file(path, patch.encode("utf-8", "surrogateescape"))
    return await _shell(box, f"{_GIT} apply --whitespace=nowarn {shlex.quote(path)}", 120) == 0


async def _restore(box: Sandbox, test_patch: str) -> None:
    """Undo what the patch did to the files of the tests."""
    for line in test_patch.splitlines():
        if line.startswith("diff --git a/"):
            name = shlex.quote(line.rpartition(" b/")[2])
            await _shell(box, f"{_GIT} checkout -q HEAD -- {name} 2>/dev/null || rm -rf -- {name}", 60)


def _names(row: Row, column: str) -> list[str]:
    value = row.extra.get(column) or []
    if isinstance(value, str):
        value = json.loads(value) if value.strip() else []
    return [str(name) for name in value]
