"""A real browser (Debian's Chromium, driven by Playwright) and a real Jupyter server, one of each for the session."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path

import pytest
import support
from chromium import PlaywrightLoop, chromium
from failures import EVIDENCE, WINDOW, open_window
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
from servers import IN_FULL, PATIENCE, FrontEnd, Jupyter, empty_lab, jupyter
from view_page import build
from view_states import SCREENS, state_page

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
    # One after the other, so that their page is closed soon: an empty Lab takes a tenth of a processor.
    items.sort(key=lambda item: item.get_closest_marker("open_lab") is None)


NEXT_USES_LAB = pytest.StashKey[bool]()
"""True if the next test has the mark `open_lab`."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Playwright's loop runs during the tests of this folder and no others, for all of which this is called."""
    if HERE not in item.path.parents:
        return (yield)
    item.stash[NEXT_USES_LAB] = nextitem is not None and nextitem.get_closest_marker("open_lab") is not None
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


@pytest.fixture(scope="session")
def lab_window(browser: Browser) -> Iterator[BrowserContext]:
    """A window whose page shows an empty Lab between the tests marked `open_lab`."""
    context = open_window(browser)
    yield context
    with PlaywrightLoop.running():
        context.close()


def new_page(window: BrowserContext) -> Page:
    """Open a page that closes Lab's dialog about a lost connection, as a person does.

    Chromium drops requests when a container comes or goes: the network changes.
    """
    page = window.new_page()
    away = page.get_by_role("dialog", name="Server Connection Error")

    def close(dialog: Locator) -> None:
        with contextlib.suppress(TimeoutError):  # it may close before the click
            dialog.locator(".jp-mod-accept").click(timeout=10_000)

    page.add_locator_handler(away, close, no_wait_after=True)  # it comes back while the server is away
    return page


@pytest.fixture
def page(request: pytest.FixtureRequest) -> Iterator[Page]:
    """A fresh page, of which the applications' scripts are kept; with the mark `open_lab`, the shared Lab page."""
    if request.node.get_closest_marker("open_lab"):
        window = request.getfixturevalue("lab_window")
        yield from shared_page(window, request.node.stash[NEXT_USES_LAB])
        return
    window = request.getfixturevalue("window")
    yield new_page(window)
    for page in window.pages:
        with contextlib.suppress(Error):  # the page has crashed; the next test is to have none of it
            if page.url.startswith("http:"):
                page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
        page.close()
    window.clear_cookies()


def shared_page(window: BrowserContext, next_uses_it: bool) -> Iterator[Page]:
    """Give the page of the test before, whose documents are closed; a new one after a failure, or without a Lab."""
    page = window.pages[0] if window.pages else new_page(window)
    page.set_viewport_size(WINDOW)
    yield page
    kept: Page | None = None
    if next_uses_it and not EVIDENCE.failed:
        with contextlib.suppress(Error):  # the page is closed, shows something else, or has crashed
            page.unroute_all()
            empty_lab(page)
            kept = page
    for other in window.pages:
        if other is not kept:
            other.close()


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


@pytest.fixture(scope="session")
def on_screen(browser: Browser, assets: tuple[str, str]) -> Iterator[Callable[[str], Page]]:
    """The page of a screen, in which each run that is shown takes the place of the one before."""
    windows: list[BrowserContext] = []

    @cache
    def opened(screen: str) -> Page:
        windows.append(open_window(browser, **SCREENS[screen]))
        page = windows[-1].new_page()
        page.set_content(state_page(*assets))
        return page

    yield opened
    with PlaywrightLoop.running():
        for window in windows:
            window.close()
