"""Debian's Chromium, driven by Playwright, beside tests that need an event loop of their own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import support
from failures import EVIDENCE
from playwright.sync_api import Browser, Playwright
from programs import require_program

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


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
        """There is none any more."""
        cls.loop = None
        asyncio._set_running_loop(None)


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
