"""Debian's Chromium, driven by Playwright, beside tests that need an event loop of their own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import support
from failures import EVIDENCE, WINDOW
from playwright.sync_api import Browser, BrowserContext, Error, Page, Playwright
from programs import require_program
from servers import PATIENCE

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip

PERSONAL = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"]
"""What a browser needs here that otherwise starts as a person's: no screen, root, and a way to drive it."""


class PlaywrightLoop:
    """Playwright's event loop, which counts as running in this thread for as long as the browser lives.

    `asyncio.run` refuses to work while it does, so it is put aside wherever no page is driven.
    """

    loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    @contextlib.contextmanager
    def aside(cls) -> Iterator[None]:
        """Without it, as other tests need."""
        found = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            yield
        finally:
            asyncio._set_running_loop(found)

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator[None]:
        """With it, once it was started; also where it runs already."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(before or cls.loop)
        try:
            yield
        finally:
            cls.loop = asyncio._get_running_loop()
            asyncio._set_running_loop(before)

    @classmethod
    def ended(cls) -> None:
        cls.loop = None
        asyncio._set_running_loop(None)


def go(page: Page, address: str, **options: Any) -> None:
    """Open an address, again if a container came or went meanwhile, because Chromium then drops the request."""
    for attempt in range(3):
        try:
            page.goto(address, **options)
            return
        except Error as error:
            if "ERR_NETWORK_CHANGED" not in str(error) or attempt == 2:
                raise


@contextlib.contextmanager
def chromium(playwright: Playwright, *arguments: str) -> Iterator[Browser]:
    """A browser that may outlive single tests."""
    program = require_program("chromium")
    before = support.child_pids()
    started = playwright.chromium.launch(executable_path=program, args=[*ARGUMENTS, *arguments])
    mine = support.child_pids() - before
    support.KEPT_PIDS.update(mine)
    EVIDENCE.browsers.append(started)
    try:
        yield started
    finally:
        EVIDENCE.browsers.remove(started)
        with PlaywrightLoop.running():
            started.close()
        support.KEPT_PIDS.difference_update(mine)


@contextlib.contextmanager
def personal_window(
    playwright: Playwright, profile: Path, *arguments: str, **options: Any
) -> Iterator[BrowserContext]:
    """A window of a browser that starts as a person does it, with a profile of its own.

    The driver's own switches turn off what tells other hosts of a page before any request: with them, preconnect and
    dns-prefetch do nothing, and a test cannot see them.
    """
    before = support.child_pids()
    context = playwright.chromium.launch_persistent_context(
        profile,
        executable_path=require_program("chromium"),
        ignore_default_args=True,
        args=[*PERSONAL, f"--user-data-dir={profile}", *arguments, "about:blank"],
        **{"viewport": WINDOW, **options},
    )
    mine = support.child_pids() - before
    support.KEPT_PIDS.update(mine)
    context.set_default_timeout(PATIENCE)
    EVIDENCE.watch(context)
    try:
        yield context
    except BaseException:
        EVIDENCE.keep(context)
        raise
    finally:
        with PlaywrightLoop.running():
            context.close()
        support.KEPT_PIDS.difference_update(mine)
