"""Apply a patch to a sandbox's repository, and restore what a patch must not change: the tests and their settings.

The tests are the verdict, so a patch that changes them or the settings of their runner would judge itself. Both are
restored to the base commit before a test runs. The tested code comes from the patch and runs in the same process as
the tests: what stands against hostile code is in `evidence`.
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
_STEERING = frozenset(
    ["conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg",
     "sitecustomize.py", "usercustomize.py"]
)  # fmt: skip
_STEERING_ENDINGS = (".pth", ".pyc")
_PLUGINS = re.compile(r"\.(?:egg|dist)-info/entry_points\.txt\Z")
_RUNNERS = frozenset(["pytest", "_pytest", "pluggy", "unittest"])
_HALF = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Halves of characters that stand for no byte; those that do are how bytes beyond UTF-8 are kept in a text."""


async def apply(box: Sandbox, patch: str, name: str) -> bool:
    """Put a patch into the files. A last line end is added where it is missing: git takes no patch without it."""
    path = await _stored(box, patch, name)
    return await _git(box, f"apply --whitespace=nowarn {shlex.quote(path)}") is not None


async def files_of(box: Sandbox) -> list[str]:
    """The files of the repository as it is now."""
    return await _git(box, "ls-files -z --cached --others") or []


async def restore_tests(box: Sandbox, tests: Iterable[str], test_patch: str) -> bool:
    """Undo the changes since the base commit that affect tests or their runner; False when the changes are unknown."""
    listed = await _git(box, f"add -A --force . && {GIT} diff --cached --name-status --no-renames -z HEAD")
    roots = await _git(box, "ls-tree --name-only -z HEAD")
    if listed is None or roots is None:
        return False
    touched = {path: status != "A" for status, path in zip(listed[::2], listed[1::2], strict=False)}
    back = _deciding(touched, tests, await _paths(box, test_patch), roots)
    for path, in_base in touched.items():
        if posixpath.basename(path) == "pyproject.toml" and await _steers(box, path, in_base):
            back.add(path)
    new = [path for path in back if not touched[path]]
    old = [path for path in back if touched[path]]
    return await _over(box, "rm -rf --", new) and await _over(
        box, f"{GIT} --literal-pathspecs checkout -q HEAD --", old
    )


async def kept_tree(box: Sandbox) -> str | None:
    """The name of a git tree with all files as they are now."""
    tree = await _git(box, f"add -A --force . && {GIT} write-tree")
    return tree[0].strip() if tree else None


async def steering_changes(box: Sandbox, tree: str, tests: Iterable[str]) -> set[str]:
    """The tests, and files that steer them, that are not as in a tree; all that changed when that cannot be told.

    Compiled files are left out: running tests makes them.
    """
    listed = await _git(box, f"add -A --force . && {GIT} diff --cached --name-status --no-renames -z {tree}")
    roots = await _git(box, f"ls-tree --name-only -z {tree}")
    if listed is None or roots is None:
        return {tree}
    touched = {path: status != "A" for status, path in zip(listed[::2], listed[1::2], strict=False)}
    return {path for path in _deciding(touched, tests, (), roots) if not path.endswith(".pyc")}


def _deciding(
    touched: Mapping[str, bool], tests: Iterable[str], test_patch: Iterable[str], roots: Iterable[str]
) -> set[str]:
    """Those of the touched paths that decide about tests. `touched` says whether the base has a path."""
    files, packages = _files(tests)
    shadows = _RUNNERS - {root.removesuffix(".py") for root in roots}
    wanted = list(test_patch)

    def decides(path: str, in_base: bool) -> bool:
        return (
            posixpath.basename(path) in _STEERING
            or path.endswith(_STEERING_ENDINGS)
            or _PLUGINS.search(path) is not None
            or path in (files if in_base else packages)
            or path.partition("/")[0].partition(".")[0] in shadows  # its name in the root, as for an import
            or any(_collide(path, other) for other in wanted)
        )

    return {path for path, in_base in touched.items() if decides(path, in_base)}


def _files(tests: Iterable[str]) -> tuple[set[str], set[str]]:
    """The files that tests may be in, and packages that would be taken in place of such a file.

    Names are `file::name`, or dotted ones as of unittest, whose file is known only by looking for it.
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


def _collide(path: str, other: str) -> bool:
    """Whether they cannot both be files, or are the same."""
    return path == other or path.startswith(f"{other}/") or other.startswith(f"{path}/")


async def _paths(box: Sandbox, patch: str) -> list[str]:
    """The files that a patch is about."""
    if not patch:
        return []
    path = await _stored(box, patch, "paths.patch")
    counts = await _git(box, f"apply --numstat -z {shlex.quote(path)}") or []
    renamed = re.findall(r"^rename from (.+)$", patch, re.MULTILINE)
    return [*(line.split("\t", 2)[-1] for line in counts), *renamed]


async def _steers(box: Sandbox, path: str, in_base: bool) -> bool:
    """Whether the part of a pyproject.toml that is pytest's is another one than in the base."""
    before = await _git(box, f"show {shlex.quote(f'HEAD:{path}')}") if in_base else []
    try:
        now = (await box.read_file(path)).decode("utf-8", "replace")
    except FileNotFoundError:
        now = ""
    except OSError:
        return True
    return _of_pytest("\0".join(before or [])) != _of_pytest(now)


def _of_pytest(text: str) -> dict[str, Any] | None:
    try:
        tool = tomllib.loads(text).get("tool", {})
    except tomllib.TOMLDecodeError:
        return None
    return {key: value for key, value in tool.items() if key.startswith("pytest")}


async def _stored(box: Sandbox, patch: str, name: str) -> str:
    path = f"{box.directories.root}/.git/{name}"
    whole = patch if patch.endswith("\n") else f"{patch}\n"
    await box.write_file(
        path, _HALF.sub("\N{REPLACEMENT CHARACTER}", whole).encode("utf-8", "surrogateescape")
    )
    return path


async def _git(box: Sandbox, command: str) -> list[str] | None:
    """What git printed, at its NUL bytes; None when it failed."""
    done = await box.exec(["bash", "-c", f"{GIT} {command}"], cwd=box.directories.root)
    if done.exit_code != 0 or done.truncated:
        return None
    return [part for part in done.stdout.decode("utf-8", "surrogateescape").split("\0") if part]


async def _over(box: Sandbox, command: str, paths: list[str]) -> bool:
    """Run a command over any number of paths; whether it went well."""
    names = "\0".join(paths).encode("utf-8", "surrogateescape")
    done = await box.exec(["bash", "-c", f"xargs -0 -r {command}"], stdin=names, cwd=box.directories.root)
    return done.exit_code == 0
