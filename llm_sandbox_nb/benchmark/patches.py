"""Application of a patch to the repository in a sandbox, and restoration of tests and settings that a patch changed.

The tests decide the score, so a patch must not change the tests or the settings of their runner. Both are restored to
the base commit before the tests run. But the code of the patch runs in the same process as the tests: `evidence`
describes the protection against hostile code.
"""

from __future__ import annotations

import posixpath
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from llm_sandbox_nb.sandbox.contract import Sandbox

GIT = (
    "git -c user.name=sandbox -c user.email=sandbox@localhost -c commit.gpgsign=false "
    "-c core.hooksPath=/dev/null -c 'safe.directory=*'"
)
_STEERING_FILES = frozenset(
    ["conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg",
     "sitecustomize.py", "usercustomize.py"]
)  # fmt: skip
_STEERING_SUFFIXES = (".pth", ".pyc")
_PLUGIN_ENTRY_POINTS = re.compile(r"\.(?:egg|dist)-info/entry_points\.txt\Z")
_RUNNER_MODULES = frozenset(["pytest", "_pytest", "pluggy", "unittest"])
_LONE_SURROGATES = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Matches surrogates that stand for no byte. The others stand for bytes that are not UTF-8 (`surrogateescape`)."""


async def apply(box: Sandbox, patch: str, name: str) -> bool:
    """Apply a patch to the repository. Return True on success. `name` is the name of the patch's file in the sandbox.

    If the patch does not end with a newline, a newline is added, because git requires it.
    """
    path = await _write_patch(box, patch, name)
    return await _git(box, f"apply --whitespace=nowarn {shlex.quote(path)}") is not None


async def files_of(box: Sandbox) -> list[str]:
    """List the files of the repository, including untracked files."""
    return await _git(box, "ls-files -z --cached --others") or []


async def restore_tests(box: Sandbox, tests: Iterable[str], test_patch: str) -> bool:
    """Undo changes since the base commit that affect tests or their runner. Return False if git fails."""
    changes = await _changes(box, "HEAD")
    if changes is None:
        return False
    touched, roots = changes
    restored = _deciding(touched, tests, await _paths(box, test_patch), roots)
    for path, in_base in touched.items():
        if posixpath.basename(path) == "pyproject.toml" and await _steers(box, path, in_base):
            restored.add(path)
    new = [path for path in restored if not touched[path]]
    old = [path for path in restored if touched[path]]
    checkout = f"{GIT} --literal-pathspecs checkout -q HEAD --"
    return await _run_on_paths(box, "rm -rf --", new) and await _run_on_paths(box, checkout, old)


async def kept_tree(box: Sandbox) -> str | None:
    """Store all files in a git tree. Return the name of the tree, or None if git fails."""
    tree = await _git(box, f"add -A --force . && {GIT} write-tree")
    return tree[0].strip() if tree else None


async def steering_changes(box: Sandbox, tree: str, tests: Iterable[str]) -> set[str]:
    """Return the paths of tests and test settings that differ from `tree`.

    If git fails, return the name of the tree as the only path, so that the result counts as a change. Compiled files
    are left out, because running tests creates them.
    """
    changes = await _changes(box, tree)
    if changes is None:
        return {tree}
    touched, roots = changes
    return {path for path in _deciding(touched, tests, (), roots) if not path.endswith(".pyc")}


async def _changes(box: Sandbox, tree: str) -> tuple[dict[str, bool], list[str]] | None:
    """Return a dict of the paths that differ from `tree`, and the names in the tree's root. Return None if git fails.

    In the dict, the value of a path is True if the tree has the path.
    """
    listed = await _git(box, f"add -A --force . && {GIT} diff --cached --name-status --no-renames -z {tree}")
    roots = await _git(box, f"ls-tree --name-only -z {tree}")
    if listed is None or roots is None:
        return None
    return {path: status != "A" for status, path in zip(listed[::2], listed[1::2], strict=False)}, roots


def _deciding(
    touched: Mapping[str, bool], tests: Iterable[str], test_patch: Iterable[str], roots: Iterable[str]
) -> set[str]:
    """Return the paths in `touched` that affect test outcomes. `touched[path]` is True if the base has the path."""
    files, packages = _files(tests)
    shadows = _RUNNER_MODULES - {root.removesuffix(".py") for root in roots}
    wanted = list(test_patch)

    def decides(path: str, in_base: bool) -> bool:
        return (
            posixpath.basename(path) in _STEERING_FILES
            or path.endswith(_STEERING_SUFFIXES)
            or _PLUGIN_ENTRY_POINTS.search(path) is not None
            or path in (files if in_base else packages)
            # Python would import such a path instead of the test runner.
            or path.partition("/")[0].partition(".")[0] in shadows
            or any(
                path == other or path.startswith(f"{other}/") or other.startswith(f"{path}/")
                for other in wanted
            )
        )

    return {path for path, in_base in touched.items() if decides(path, in_base)}


def _files(tests: Iterable[str]) -> tuple[set[str], set[str]]:
    """Return the files that may contain the tests, and the packages that Python would import instead of these files.

    A test's name is `file::name`, or dotted as in unittest. A dotted name does not show which of its parts is the file,
    so all possible files are returned.
    """
    files, packages = set(), set()
    for test in tests:
        path = posixpath.normpath(test.partition("::")[0])
        files.add(path)
        words = path.split(".")
        for count in range(1, len(words) + 1):
            module = "/".join(words[:count])
            files.add(f"{module}.py")
            packages.add(f"{module}/__init__.py")
    return files, packages


async def _paths(box: Sandbox, patch: str) -> list[str]:
    """Return the files that a patch changes or renames."""
    if not patch:
        return []
    path = await _write_patch(box, patch, "paths.patch")
    counts = await _git(box, f"apply --numstat -z {shlex.quote(path)}") or []
    renamed = re.findall(r"^rename from (.+)$", patch, re.MULTILINE)
    return [*(line.split("\t", 2)[-1] for line in counts), *renamed]


async def _steers(box: Sandbox, path: str, in_base: bool) -> bool:
    """Return True if pytest's settings in a pyproject.toml differ from those in the base, or the file is unreadable."""
    before = await _git(box, f"show {shlex.quote(f'HEAD:{path}')}") if in_base else []
    try:
        now = (await box.read_file(path)).decode("utf-8", "replace")
    except FileNotFoundError:
        now = ""
    except OSError:
        return True
    return _pytest_settings("\0".join(before or [])) != _pytest_settings(now)


def _pytest_settings(text: str) -> dict[str, Any] | None:
    try:
        tool = tomllib.loads(text).get("tool", {})
    except tomllib.TOMLDecodeError:
        return None
    return {key: value for key, value in tool.items() if key.startswith("pytest")}


async def _write_patch(box: Sandbox, patch: str, name: str) -> str:
    path = f"{box.directories.root}/.git/{name}"
    whole = patch if patch.endswith("\n") else f"{patch}\n"
    await box.write_file(
        path, _LONE_SURROGATES.sub("\N{REPLACEMENT CHARACTER}", whole).encode("utf-8", "surrogateescape")
    )
    return path


async def _git(box: Sandbox, command: str) -> list[str] | None:
    """Return git's output, split at NUL bytes, or None if git fails."""
    done = await box.exec(["bash", "-c", f"{GIT} {command}"], cwd=box.directories.root)
    if done.exit_code != 0 or done.truncated:
        return None
    return [part for part in done.stdout.decode("utf-8", "surrogateescape").split("\0") if part]


async def _run_on_paths(box: Sandbox, command: str, paths: list[str]) -> bool:
    """Run a command on any number of paths, and return True on success."""
    names = "\0".join(paths).encode("utf-8", "surrogateescape")
    done = await box.exec(["bash", "-c", f"xargs -0 -r {command}"], stdin=names, cwd=box.directories.root)
    return done.exit_code == 0
