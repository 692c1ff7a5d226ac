"""Fixtures for every test: real isolations, and nothing left running."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import support
from check_tests import CAMPAIGNS_ONLY
from own_environments import environment
from shared_sandboxes import ISOLATION_PARAMS
from support import require

TESTS = Path(__file__).parent
ENGINE_FOLDERS = ("browser", "conformance", "contract", "integration", "performance")
ENGINE_FIXTURES = {
    "isolation", "some_isolation", "strong_isolation", "docker_engine", "bubblewrap_engine", "browser", "page",
}  # fmt: skip
LONG = ("test_packaging.py", "test_litellm_range.py", "test_binder.py", "test_labextension.py")
"""Files that take long: they start first, so that nobody waits for them alone when tests run in parallel."""
LOCKS = TESTS.parent / ".cache"
SEED_PACKAGES = ("llm-in-sandbox==0.2.0", "litellm<1.106", "tqdm", "math-verify>=0.9", "rouge-score>=0.1.2")
# What a change is judged by is the same each time; `make test-all` looks for new examples.
hypothesis.settings.register_profile(
    "usual",
    max_examples=support.examples(100),
    deadline=None,
    derandomize=not support.CAMPAIGN,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("usual")

# Under nohup or in the background of a script these are ignored, and a command of the package leaves them ignored.
for number, action in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, action)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of campaigns alone before their import, for each worker imports all files and some need torch.

    A file that the command names is collected, so that pytest reports its tests as deselected.
    """
    if "not campaign" not in config.option.markexpr or collection_path.suffix != ".py":
        return None
    if collection_path in {config.invocation_params.dir / arg.partition("::")[0] for arg in config.args}:
        return None
    if collection_path.parent.name == "performance" or CAMPAIGNS_ONLY.search(
        collection_path.read_text("utf-8")
    ):
        return True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector the modules and tests, which live to the end: it would go through them often."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set the tiers that follow from where a test lies; CONTRIBUTING.md says what they are."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in ENGINE_FOLDERS or ENGINE_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.engine)
        if item.get_closest_marker("alike") and "process" not in item.name:
            item.add_marker(pytest.mark.campaign)
        if folder == "performance":
            item.add_marker(pytest.mark.campaign)
            item.add_marker(pytest.mark.alone)
    # What is timed comes last: the workers are done then, and hardly have to wait for it.
    # Folders that one worker runs begin early, or the others would wait for it at the end.
    early = (*LONG, *(one.rstrip("/").rpartition("/")[2] for one in TOGETHER))
    items.sort(key=lambda item: 2 if item.get_closest_marker("alone") else not {*item.path.parts} & {*early})


BROWSER = "tests/browser"
TOGETHER = (
    f"{BROWSER}/",
    "tests/unit/model/",
    *(f"tests/integration/{one}/" for one in ("cli", "model", "server")),
)
"""Folders that one worker runs, with one server and one browser; or with LiteLLM, whose import takes seconds."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """A worker takes a file or one of the folders TOGETHER at a time.

    The first one takes tests/browser and nothing else: Playwright keeps an event loop in its thread, which no other
    test meets.
    """
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduler(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return next((one.rstrip("/") for one in TOGETHER if file.startswith(one)), file)

        def _assign_work_unit(self, node: Any) -> None:
            if BROWSER not in self.workqueue:
                super()._assign_work_unit(node)
            elif node is self.nodes[0]:
                self.workqueue.move_to_end(BROWSER, last=False)
                super()._assign_work_unit(node)
                if len(self.nodes) > 1:
                    node.shutdown()
            elif len(self.workqueue) > 1:
                self.workqueue.move_to_end(BROWSER)
                super()._assign_work_unit(node)

    return Scheduler(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """With several workers, no other test runs while one that is marked `alone` does."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    LOCKS.mkdir(exist_ok=True)
    with (LOCKS / "tests-entry.lock").open("w") as entry, (LOCKS / "tests-running.lock").open("w") as running:
        # Who waits to run alone holds the entry meanwhile. Without that, the others would never be done.
        fcntl.flock(entry, fcntl.LOCK_EX)
        fcntl.flock(running, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(entry, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            fcntl.flock(running, fcntl.LOCK_UN)


# Most tests count the sandboxes and processes that they start themselves; those of preparation turn it on.
os.environ.setdefault("LLM_SANDBOX_PREPARED", "0")
# What runs in the background of a script has SIGINT ignored, and so would all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=ISOLATION_PARAMS)
def isolation(request: pytest.FixtureRequest) -> str:
    return require(request.param)


@pytest.fixture(
    params=[
        ISOLATION_PARAMS[1],
        *(
            pytest.param(*other.values, marks=[*other.marks, pytest.mark.campaign])
            for other in (ISOLATION_PARAMS[0], *ISOLATION_PARAMS[2:])
        ),
    ]
)
def some_isolation(request: pytest.FixtureRequest) -> str:
    """For what goes through all layers and does not depend on the isolation: Docker; the others as a campaign."""
    return require(request.param)


@pytest.fixture(params=ISOLATION_PARAMS[1:])
def strong_isolation(request: pytest.FixtureRequest) -> str:
    return require(request.param)


@pytest.fixture
def docker_engine() -> str:
    return require("docker")


@pytest.fixture
def bubblewrap_engine() -> str:
    return require("bubblewrap")


@pytest.fixture(autouse=True)
def cells_wait_in_notebooks_only() -> None:
    """A test that loads the magics into this process makes no notebook of it for the tests that follow."""
    if (loaded := sys.modules.get("llm_sandbox_nb.runs.event_loops")) is not None:
        loaded.EventLoops.cells_wait = False


@pytest.fixture
def busy_machine() -> Iterator[None]:
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
    deadline = time.monotonic() + 60
    while left := support.child_pids() - before - support.KEPT_PIDS:
        if time.monotonic() > deadline:
            pytest.fail(f"left running: {[support.command_line(pid) for pid in left]}", pytrace=False)
        time.sleep(0.02)


@pytest.fixture(scope="session")
def seed_python() -> Path:
    """The interpreter of an environment with the paper's package."""
    return environment("seed", *SEED_PACKAGES) / "python"
