"""The tests of a row, run in a sandbox: their exit codes are the verdict, whatever they print."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator

from llm_sandbox_nb.benchmark.scores import Score
from llm_sandbox_nb.sandbox.contract import Sandbox

_NAMED = 5
"""So many failing tests are named; then the rest need not be looked at."""
_LONGEST = 100_000
"""Bytes of names in one command: Linux takes 128 KiB in one argument, and the command itself has to fit as well."""


class _LateError(Exception):
    """The time for all tests is over."""


async def verdict(box: Sandbox, tests: list[str], command: str, timeout: float) -> Score:
    """1 when every test ends with exit code 0 within `timeout` seconds for all of them together, else 0.

    They run together, and where that fails, each by itself, to name those that fail.
    """
    failed: list[str] = []
    try:
        all_seen = await _find_failing(box, tests, command, time.monotonic() + timeout, failed)
    except _LateError:
        all_seen = False
        if not failed:
            return Score(0.0, f"the {len(tests)} tests do not end within {timeout:g} s")
    if not failed:
        return Score(1.0, f"{len(tests)} tests pass")
    bound = "" if all_seen else "at least "
    return Score(0.0, f"{bound}{len(failed)} of {len(tests)} tests fail: {', '.join(failed)}")


async def _find_failing(
    box: Sandbox, tests: list[str], command: str, deadline: float, failed: list[str]
) -> bool:
    """Put tests that fail into `failed` until there are enough; whether all were looked at."""
    for piece in _pieces(tests, _LONGEST // max(1, command.count("{test}"))):
        if await _pass(box, piece, command, deadline):
            continue
        for test in piece:
            if len(failed) == _NAMED:
                return False
            if len(piece) == 1 or not await _pass(box, [test], command, deadline):
                failed.append(test)
    return True


async def _pass(box: Sandbox, tests: list[str], command: str, deadline: float) -> bool:
    filled = command.replace("{test}", " ".join(map(shlex.quote, tests)))
    left = deadline - time.monotonic()
    if left <= 0:
        raise _LateError
    done = await box.exec(["bash", "-c", filled], cwd=box.directories.root, timeout=left)
    if done.timed_out:
        raise _LateError
    return done.exit_code == 0


def _pieces(tests: list[str], longest: int) -> Iterator[list[str]]:
    """The tests in order, in as few pieces as have names of at most so many bytes."""
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
