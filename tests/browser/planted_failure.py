"""Tests for test_failures.py, which runs them: pytest does not collect a file of this name."""

from __future__ import annotations

import contextlib

from failures import new_window
from playwright.sync_api import Browser, Page


def an_error_that_is_expected(browser: Browser) -> None:
    with contextlib.suppress(AssertionError), new_window(browser) as other:
        other.new_page()
        raise AssertionError


def test_that_fails(page: Page, browser: Browser) -> None:
    an_error_that_is_expected(browser)
    page.set_content("<h1>planted</h1><script>console.log('said in the page')</script>")
    assert page.locator("h1").inner_text() == "another"


def test_that_passes(page: Page, browser: Browser) -> None:
    page.set_content("<h1>right</h1>")
    an_error_that_is_expected(browser)
