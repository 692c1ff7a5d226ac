"""A real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import support
from playwright.sync_api import Browser, Page, expect, sync_playwright
from programs import require_program
from servers import PATIENCE

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
LONGEST = 900
"""Seconds for a test here that does not say it itself."""
expect.set_options(timeout=PATIENCE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real pages, kernels and sandboxes need more than the limit of the others when the machine is busy."""
    for item in items:
        if Path(__file__).parent in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONGEST))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for a module; no longer, because Playwright keeps an event loop in this thread meanwhile."""
    program = require_program("chromium")
    before = support.child_pids()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        mine = support.child_pids() - before
        support.KEPT_PIDS.update(mine)
        yield started
        started.close()
    support.KEPT_PIDS.difference_update(mine)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of its own, with no cookies and no storage of others."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(PATIENCE)
    yield context.new_page()
    context.close()
