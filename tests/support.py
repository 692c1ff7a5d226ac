"""Small helpers for tests."""

from __future__ import annotations

import asyncio
import base64
import functools
import importlib.util
import os
import re
import secrets
import time
import zlib
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

from llm_sandbox_nb.card.bundle import unpacked
from llm_sandbox_nb.sandbox.open import load_isolation

T = TypeVar("T")
MIME = "application/vnd.llm-sandbox.trajectory+json"
QUICK_IMPORTS = Path(__file__).parent / "data" / "quick_imports"
"""To be put on the path of processes that import jsonschema."""
BUSY = 4
"""How many times as long things may take where others work too."""
PATIENCE = 150.0
"""Seconds to wait for what takes one or two on a machine that does nothing else."""
POLL = 0.05
"""Seconds between two looks at what is waited for: looks take time from what is waited for."""
SLOWEST_POLL = 0.25
"""Seconds between two looks at what has been waited for during five seconds or more."""
WHOLE = os.environ.get("LLM_SANDBOX_TESTS") == "whole"
"""Whether tests that take samples (random instants, sequences, pairs of versions) take as many as is promised."""
CAMPAIGN = WHOLE or os.environ.get("LLM_SANDBOX_TESTS") == "campaign"
"""Whether this is `make test-all`."""


def size(usual: T, whole: T) -> T:
    """How much of something a test is to do: as a rule, and with `LLM_SANDBOX_TESTS=whole`."""
    return whole if WHOLE else usual


def examples(count: int) -> int:
    """How many examples hypothesis makes: a tenth, but 20 at least, when this is not `make test-all`."""
    return count if CAMPAIGN else min(count, max(20, count // 10))


# Each alternative begins with a quote that is no part of a text, for in texts quotes are escaped.
_HELD = re.compile(
    r"</figcaption>.*?(?: (?:src|href|data)='data:[^']*;base64,([A-Za-z0-9+/=]*)'"
    r"| srcdoc=\"[^\"]*packed=&quot;([A-Za-z0-9+/=]*)&quot;)",
    re.DOTALL,
)


def held_by(figure: str) -> bytes | None:
    """The file that a figure of the page holds; None when the figure shows only an excerpt or a rendering."""
    found = _HELD.search(figure)
    if not found:
        return None
    plain, compressed = found.groups()
    if plain is not None:
        return base64.b64decode(plain)
    return zlib.decompress(base64.b64decode(compressed))


def record_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a card, given all that the card's output holds: unpacked, each file's content as base64."""
    record = unpacked(data[MIME])
    figures = "".join(data.get("text/html", "")).split("<figure class='lsn-artifact'>")[1:]
    for entry in record["artifacts"].values():
        content = None
        if "figure" in entry:
            content = held_by(figures[entry["figure"]])
        elif "text" in entry:
            content = entry["text"].encode()
        if content is not None:
            assert len(content) == entry["size"]
            entry["data"] = base64.b64encode(content).decode()
    return record


def run(coroutine: Coroutine[Any, Any, T], timeout: float = 60.0) -> T:
    """Run an async test body in a loop of its own; it may take `BUSY` times `timeout` seconds."""

    async def bounded() -> T:
        async with asyncio.timeout(BUSY * timeout):
            return await coroutine

    return asyncio.run(bounded())


def until(
    condition: Callable[[], object], what: str = "it did not become so in time", *, poll: float = POLL
) -> None:
    for pause in _pauses(what, poll):
        if condition():
            return
        time.sleep(pause)


async def eventually(condition: Callable[[], object], what: str = "it did not become so in time") -> None:
    for pause in _pauses(what):
        if condition():
            return
        await asyncio.sleep(pause)


def _pauses(what: str, first: float = POLL) -> Iterator[float]:
    """Pauses between looks at what is waited for; an AssertionError with `what` after PATIENCE seconds."""
    begun = time.monotonic()
    while (waited := time.monotonic() - begun) < PATIENCE:
        yield max(first, min(waited / 20, SLOWEST_POLL))
    raise AssertionError(what)


def own_mark() -> str:
    """Return a word that only this test puts into command lines; `sleep` takes it for about an hour.

    Processes of `process` are in the host's list, where those of another checkout's tests are too.
    """
    return f"3600.{secrets.randbelow(10**15):015d}"


def processes_with(word: str) -> list[int]:
    """The processes of this machine that have this word, an `own_mark()`, among their arguments."""
    wanted = word.encode()
    return [pid for pid in _pids() if wanted in _content(f"/proc/{pid}/cmdline").split(b"\0")]


@functools.cache
def why_not(isolation: str) -> str:
    """Why an isolation does not work here, or nothing."""
    return run(load_isolation(isolation).why_unavailable(None))


def require(isolation: str) -> str:
    """Skip the test when its engine is not there; fail it when engines are required."""
    reason = why_not(isolation)
    if reason and os.environ.get("LLM_SANDBOX_REQUIRE_ENGINES") == "1":
        pytest.fail(f"{isolation} is required (LLM_SANDBOX_REQUIRE_ENGINES=1), but {reason}", pytrace=False)
    if reason:
        pytest.skip(f"{isolation} does not work here: {reason}")
    return isolation


KEPT_PIDS: set[int] = set()
"""Children of the test process that outlive a single test on purpose."""


def child_pids() -> set[int]:
    """Living children of this process, as its threads list them: a look at all processes takes 10 ms."""
    lists = [_content(str(path)) for path in Path("/proc/self/task").glob("*/children")]
    # A kernel without these lists needs the look.
    pids = [int(pid) for one in lists for pid in one.split()] if lists else _pids()
    found = {pid: _state_and_parent(pid) for pid in pids}
    return {pid for pid, (state, parent) in found.items() if parent == os.getpid() and state not in b"ZX"}


def descendants(pid: int) -> set[int]:
    found, todo = set[int](), [pid]
    children: dict[int, list[int]] = {}
    for one in _pids():
        state, parent = _state_and_parent(one)
        if state not in b"ZX":
            children.setdefault(parent, []).append(one)
    while todo:
        new = children.get(todo.pop(), [])
        found.update(new)
        todo += new
    return found


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - many times as fast


def _content(path: str) -> bytes:
    """The bytes of a file of /proc; nothing if its process or thread is gone. Fast, because tests poll with it."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return b""


def _state_and_parent(pid: int) -> tuple[bytes, int]:
    fields = _content(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return (fields[0], int(fields[1])) if fields else (b"X", 0)


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")[:200]
    except OSError:
        return f"process {pid}"


def module_at(path: Path, name: str = "") -> ModuleType:
    """Import a file anew under its own name or another, whatever is imported already."""
    spec = importlib.util.spec_from_file_location(name or path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
