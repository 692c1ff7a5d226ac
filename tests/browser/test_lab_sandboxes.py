"""The side panel on each isolation: its graphs tell what the sandbox uses, and files go in and out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from chromium import PlaywrightLoop
from live_cells import BADGE, begin
from playwright.sync_api import Locator, Page, expect
from servers import FrontEnd, show_panel
from support import require
from test_lab_panel import drop
from waiting import eventually

pytestmark = pytest.mark.parametrize("server", ["lab"], indirect=True)
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
    pytest.param("process", marks=pytest.mark.campaign),
    pytest.param("docker", marks=pytest.mark.docker),
    pytest.param("bubblewrap", marks=[pytest.mark.bubblewrap, pytest.mark.campaign]),
)


def number(section: Locator, name: str, unit: str) -> float:
    """What a graph says now."""
    text = section.get_by_role("group", name=name).locator("output").text_content() or ""
    found = re.fullmatch(rf"([\d.,]+) ?{unit}", text.strip())
    return float(found[1].replace(",", "")) if found else 0.0


def wait_until(page: Page, section: Locator, name: str, unit: str, low: float, high: float) -> None:
    there = eventually(page, lambda: low <= number(section, name, unit) <= high)
    assert there, f"{name} is {number(section, name, unit)} {unit}, not {low} to {high}"


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_graphs_and_files(server: FrontEnd, page: Page, isolation: str) -> None:
    with PlaywrightLoop.aside():
        require(isolation)
    begin(server, page, "busy", BUSY, options=f"--isolation {isolation}")
    show_panel(page)
    expect(page.locator(".lsn-output", has_text="begun")).to_be_visible()
    section = page.get_by_role("region", name=f"Sandbox of {server.path('busy.ipynb')}", exact=True)
    expect(section.locator(".lsn-badge")).to_have_text("running step 2")
    section.get_by_role("button", name="More about this sandbox").click()
    wait_until(page, section, "Memory", "MB", MEGABYTES, 3 * MEGABYTES)
    wait_until(page, section, "CPU", "%", 5, 400)
    page.wait_for_function(
        "() => document.querySelector('.lsn-graph polyline')?.getAttribute('points')?.split(' ').length >= 3"
    )
    page.locator(".lsn-view").get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator(BADGE)).to_have_text("Stopped by you")
    wait_until(page, section, "Memory", "MB", 1, MEGABYTES)
    wait_until(page, section, "CPU", "%", 0, 4)
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
