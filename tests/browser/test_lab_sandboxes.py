"""The side panel on each isolation: its graphs tell what the sandbox uses, and files go in and out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from live_cells import BADGE, begin
from playwright.sync_api import Locator, Page, expect
from servers import FrontEnd, front_end, show_panel
from support import require
from test_lab_panel import drop

pytestmark = pytest.mark.slow
MEGABYTES = 200
BUSY = f"""
turns:
  - calls: [{{tool: execute_bash, arguments: {{command: "mkdir -p output; echo inside > output/note.txt"}}}}]
  - calls:
      - tool: execute_bash
        arguments:
          command: |
            echo begun
            python3 -c '
            kept = b"x" * ({MEGABYTES} << 20)
            while True: pass
            '
  - calls: [{{tool: submit}}]
"""
ISOLATIONS = (
    pytest.param("process"),
    pytest.param("docker", marks=pytest.mark.docker),
    pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
)


@pytest.fixture(params=ISOLATIONS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FrontEnd]:
    # In another thread: Playwright's event loop is under way in this one.
    with ThreadPoolExecutor(1) as thread:
        isolation = thread.submit(require, request.param).result()
    with front_end(tmp_path, "lab", isolation=isolation) as running:
        yield running


def number(section: Locator, name: str, unit: str) -> float:
    """What a graph says now."""
    text = section.get_by_role("group", name=name).locator("output").text_content() or ""
    found = re.fullmatch(rf"([\d.,]+) ?{unit}", text.strip())
    return float(found[1].replace(",", "")) if found else 0.0


def wait_until(page: Page, section: Locator, name: str, unit: str, low: float, high: float) -> None:
    for _ in range(120):
        if low <= number(section, name, unit) <= high:
            return
        page.wait_for_timeout(500)
    raise AssertionError(f"{name} is {number(section, name, unit)} {unit}, not {low} to {high}")


def test_graphs_and_files(server: FrontEnd, page: Page) -> None:
    begin(server, page, "busy", BUSY)
    show_panel(page)
    expect(page.locator(".lsn-output", has_text="begun")).to_be_visible()
    section = page.get_by_role("region", name="Sandbox of busy.ipynb", exact=True)
    expect(section.locator(".lsn-badge")).to_have_text("at work")
    wait_until(page, section, "Memory", "MB", MEGABYTES, 3 * MEGABYTES)
    wait_until(page, section, "CPU", "%", 10, 400)
    page.wait_for_timeout(5000)
    points = section.get_by_role("group", name="Memory").locator("polyline").get_attribute("points") or ""
    assert len(points.split()) >= 3
    page.locator(".lsn-view").get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator(BADGE)).to_have_text("interrupted")
    wait_until(page, section, "Memory", "MB", 1, MEGABYTES)
    wait_until(page, section, "CPU", "%", 0, 9)
    files(page, section)


def files(page: Page, section: Locator) -> None:
    """Dropped in, taken out, opened."""
    section.get_by_text("Files", exact=True).click()
    section.get_by_role("button", name="output/", exact=True).click()
    expect(section.get_by_role("button", name="note.txt", exact=True)).to_be_visible()
    drop(page, "dropped.txt", "by hand")
    expect(section.get_by_role("button", name="dropped.txt", exact=True)).to_be_visible()
    with page.expect_download() as started:
        section.get_by_role("button", name="Download dropped.txt").click()
    assert Path(started.value.path()).read_bytes() == b"by hand"
    section.get_by_role("button", name="note.txt", exact=True).click()
    expect(page.locator(".lsn-preview")).to_contain_text("inside")
