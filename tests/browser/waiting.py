"""Waiting for what a page does later than the click or key that caused it."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page
from servers import PATIENCE


def eventually(page: Page, condition: Callable[[], bool]) -> bool:
    for _ in range(PATIENCE // 100):
        if condition():
            return True
        page.wait_for_timeout(100)
    return False


def wait_until_in_sight(page: Page, selector: str) -> None:
    """Until all of the first such element is in the window, below what sticks to its top."""
    page.wait_for_function(
        """selector => {
          const node = document.querySelector(selector);
          if (!node) return false;
          const box = node.getBoundingClientRect();
          const sticky = document.querySelector('.lsn-sticky');
          const top = !sticky || sticky.contains(node) || !node.closest('.lsn-steps')
            ? 0 : sticky.getBoundingClientRect().bottom - 1;
          return box.width > 0 && box.left >= 0 && box.right <= innerWidth
            && box.top >= top && box.bottom <= innerHeight;
        }""",
        arg=selector,
    )
