"""Fixtures for every test: real isolations, and nothing left running."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import support
from support import require

from llm_sandbox_nb.sandbox.opening import open_sandbox

Opener = Callable[..., Any]
ISOLATIONS = (
    pytest.param("process"),
    pytest.param("docker", marks=pytest.mark.docker),
    pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
)

LONG = ("test_packaging.py", "test_litellm_range.py", "test_binder.py")
"""Files that install much: begun first, so that nobody waits for them alone when tests run beside each other."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)


# What runs in the background of a script has SIGINT ignored, and so would all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=ISOLATIONS)
def isolation(request: pytest.FixtureRequest) -> str:
    """Each isolation in turn."""
    return require(request.param)


@pytest.fixture(params=support.size(ISOLATIONS[1:2], ISOLATIONS))
def some_isolation(request: pytest.FixtureRequest) -> str:
    """For what goes through all layers and does not depend on the isolation: as a rule one of them."""
    return require(request.param)


@pytest.fixture(params=ISOLATIONS[1:])
def strong_isolation(request: pytest.FixtureRequest) -> str:
    """Each isolation that isolates, in turn."""
    return require(request.param)


@pytest.fixture
def opener(isolation: str) -> Opener:
    """`async with opener(**options) as box:` for each isolation in turn."""
    return functools.partial(open_sandbox, isolation)


@pytest.fixture
def strong_opener(strong_isolation: str) -> Opener:
    """The same for each isolation that isolates."""
    return functools.partial(open_sandbox, strong_isolation)


@pytest.fixture
def process_opener() -> Opener:
    """The same for isolation `process` alone, for what does not depend on the isolation."""
    return functools.partial(open_sandbox, "process")


@pytest.fixture
def docker_engine() -> str:
    """For tests of Docker alone."""
    return require("docker")


@pytest.fixture
def bubblewrap_engine() -> str:
    """For tests of bubblewrap alone."""
    return require("bubblewrap")


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """Three processes that want all of it."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    yield
    for process in busy:
        process.kill()
        process.wait()


@pytest.fixture(autouse=True)
def no_child_left() -> Iterator[None]:
    """No test leaves a child process; a fixture of wider scope names its own in `support.KEPT_PIDS`."""
    before = support.child_pids()
    yield
    deadline = time.monotonic() + 5
    while left := support.child_pids() - before - support.KEPT_PIDS:
        if time.monotonic() > deadline:
            pytest.fail(f"left running: {[support.command_line(pid) for pid in left]}", pytrace=False)
        time.sleep(0.02)
