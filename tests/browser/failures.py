"""Evidence of a browser test that failed: pictures, pages, consoles and traces in out/browser-failures/<test>/.

A trace costs time in each test. It is kept only with `LLM_SANDBOX_TRACE=1`, which CI sets to run a failed test again.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from playwright.sync_api import Browser, BrowserContext, Error, Page
from servers import PATIENCE

KEPT = Path(__file__).parents[2] / "out" / "browser-failures"
TRACED = os.environ.get("LLM_SANDBOX_TRACE") == "1"
WINDOW = {"width": 1200, "height": 900}
ANSWER = 10_000
"""Milliseconds that a page has for its picture: a hostile one may hang."""


class Evidence:
    """What can be kept of the windows of the test that runs now."""

    def __init__(self) -> None:
        self.consoles: WeakKeyDictionary[BrowserContext, list[str]] = WeakKeyDictionary()
        self.browsers: list[Browser] = []
        self.folder = KEPT
        self.paths: list[Path] = []
        self.failed = False

    def begin(self, nodeid: str) -> None:
        self.folder = KEPT / re.sub(r"[^\w.-]+", "-", nodeid.removeprefix("tests/browser/")).strip("-")
        self.paths, self.failed = [], False
        for context, lines in list(self.consoles.items()):
            lines.clear()
            if TRACED and context.browser and context in context.browser.contexts:
                context.tracing.stop_chunk()
                context.tracing.start_chunk()

    def watch(self, context: BrowserContext) -> None:
        """Note from now on what its pages say, and trace them if that is wanted."""
        lines = self.consoles[context] = []
        context.on("console", lambda said: lines.append(f"{said.type}: {said.text}"))
        context.on("weberror", lambda error: lines.append(f"error: {error.error}"))
        if TRACED:
            context.tracing.start(screenshots=True, snapshots=True, sources=True)

    def keep(self, context: BrowserContext) -> None:
        if not self.paths:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        if TRACED:
            with contextlib.suppress(Error):
                context.tracing.stop_chunk(path=self._path("trace", "zip"))
                context.tracing.start_chunk()
        for page in context.pages:
            self._keep_page(page)
        self._path("console", "txt").write_text("\n".join(self.consoles.get(context, [])), "utf-8")

    def _keep_page(self, page: Page) -> None:
        with contextlib.suppress(Error):
            page.screenshot(path=self._path("page", "png"), timeout=ANSWER)
        with contextlib.suppress(Error):
            self._path("page", "html").write_text(f"<!-- {page.url} -->\n{page.content()}", "utf-8")

    def _path(self, name: str, ending: str) -> Path:
        number = sum(path.suffix == f".{ending}" for path in self.paths) + 1
        self.paths.append(self.folder / f"{name}-{number}.{ending}")
        return self.paths[-1]

    def keep_all(self) -> None:
        for browser in self.browsers:
            for context in browser.contexts if browser.is_connected() else []:
                self.keep(context)

    def end(self) -> None:
        if self.paths and not self.failed:
            shutil.rmtree(self.folder, ignore_errors=True)


EVIDENCE = Evidence()


def open_window(browser: Browser, **options: Any) -> BrowserContext:
    context = browser.new_context(**{"viewport": WINDOW, **options})
    context.set_default_timeout(PATIENCE)
    EVIDENCE.watch(context)
    return context


@contextlib.contextmanager
def new_window(browser: Browser, **options: Any) -> Iterator[BrowserContext]:
    """A window for a block; what it shows is kept when an error leaves the block."""
    context = open_window(browser, **options)
    try:
        yield context
    except BaseException:
        EVIDENCE.keep(context)
        raise
    finally:
        context.close()
