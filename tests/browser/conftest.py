"""A real browser (Debian's Chromium, driven by Playwright) and a real Jupyter server, one of each for the session."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import support
from chromium import PlaywrightLoop, chromium
from failures import EVIDENCE, open_window
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Error,
    Locator,
    Page,
    Playwright,
    TimeoutError,
    expect,
    sync_playwright,
)
from servers import IN_FULL, PATIENCE, FrontEnd, Jupyter, jupyter
from view_page import build

LONGEST = 900
"""Seconds for a test here that does not say it itself."""
HERE = Path(__file__).parent
expect.set_options(timeout=PATIENCE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real pages need time on a busy machine; with `--dist loadgroup` one worker runs all, with one server."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("browser"))
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(LONGEST))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Playwright's loop runs during the tests of this folder and no others, for all of which this is called."""
    if HERE not in item.path.parents:
        return (yield)
    with PlaywrightLoop.running():
        EVIDENCE.begin(item.nodeid)
        try:
            return (yield)
        finally:
            EVIDENCE.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if HERE in item.path.parents and report.failed:
        EVIDENCE.failed = True
        EVIDENCE.keep_all()
        kept = [str(path) for path in EVIDENCE.paths if path.exists()]
        report.sections.append(("kept of the browser", "\n".join(kept)))
    return report


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    before = support.child_pids()
    started = sync_playwright().start()
    mine = support.child_pids() - before
    support.KEPT_PIDS.update(mine)
    yield started
    # The last test of the session may be one of another folder.
    with PlaywrightLoop.running():
        started.stop()
    PlaywrightLoop.ended()
    support.KEPT_PIDS.difference_update(mine)


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    with chromium(playwright) as started:
        yield started


@pytest.fixture(scope="session")
def window(browser: Browser) -> Iterator[BrowserContext]:
    """A window that keeps the applications' scripts, so that their pages open quickly."""
    context = open_window(browser)
    yield context
    with PlaywrightLoop.running():
        context.close()


@pytest.fixture
def page(window: BrowserContext) -> Iterator[Page]:
    """A fresh page; nothing of it is kept but the applications' scripts.

    Chromium drops requests when a container comes or goes: the network changes. A person closes what Lab then says.
    """
    fresh = window.new_page()
    away = fresh.get_by_role("dialog", name="Server Connection Error")

    def close(dialog: Locator) -> None:
        with contextlib.suppress(TimeoutError):  # it may close before the click
            dialog.locator(".jp-mod-accept").click(timeout=10_000)

    fresh.add_locator_handler(away, close, no_wait_after=True)  # it comes back while the server is away
    yield fresh
    for page in window.pages:
        with contextlib.suppress(Error):  # the page has crashed; the next test is to have none of it
            if page.url.startswith("http:"):
                page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
        page.close()
    window.clear_cookies()


@pytest.fixture(scope="session")
def one_jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jupyter]:
    """The one server of all tests that do not need another."""
    with jupyter(tmp_path_factory.mktemp("jupyter")) as running:
        yield running


@pytest.fixture(params=IN_FULL)
def server(one_jupyter: Jupyter, request: pytest.FixtureRequest) -> Iterator[FrontEnd]:
    """JupyterLab, and Notebook 7 in the campaign; `parametrize("server", APPS, indirect=True)` always takes both."""
    if one_jupyter.process is None or one_jupyter.process.poll() is not None:
        one_jupyter.start()
    folder = re.sub(r"\W+", "-", request.node.name).strip("-")
    yield FrontEnd(one_jupyter, request.param, folder)
    one_jupyter.clear()


@pytest.fixture(scope="session")
def assets(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return build(tmp_path_factory.mktemp("view") / "built")
