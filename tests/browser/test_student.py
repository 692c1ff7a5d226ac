"""The course as a student takes it: in a real JupyterLab, *Run All*, the buttons of its cards, and *Run All* again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import course
import nbformat
import pytest
from playwright.sync_api import Locator, Page, expect
from servers import FrontEnd, bundles, command, open_notebook
from waiting import eventually

pytestmark = pytest.mark.timeout(1800)
FINISHED = """() => {
  const { content, sessionContext } = jupyterapp.shell.currentWidget;
  const code = [...content.model.cells].filter(cell => cell.type === 'code' && cell.sharedModel.getSource().trim());
  return sessionContext.session.kernel.status === 'idle' && code.every(cell => cell.executionCount !== null);
}"""
SHOW = """async text => {
  const { content } = jupyterapp.shell.currentWidget;
  const place = [...content.model.cells].findIndex(cell => cell.sharedModel.getSource().startsWith(text));
  content.activeCellIndex = place;
  content.deselectAll();
  await content.scrollToItem(place, 'start');
  return place;
}"""


def take_a_picture_home(page: Page) -> None:
    card = card_in(page, "%%sandbox -m scripted/first-task")
    card.locator(".lsn-step").first.scroll_into_view_if_needed()  # steps are drawn when they come into sight
    head = card.locator(".lsn-step-head").first
    if head.get_attribute("aria-expanded") == "false":
        head.click()
    expect(card.locator(".lsn-call").first).to_be_visible()
    card.locator(".lsn-sandbox summary").click()
    expect(card.locator(".lsn-protection")).to_contain_text("commands run as you")
    assert downloaded(page, card, "poster.png").startswith(b"\x89PNG\r\n")


def run_the_map(page: Page) -> None:
    """Its scripts run only after a click, and answer to the keyboard after a click into it."""
    found = artifact(card_in(page, "%%sandbox -m scripted/map"), "map.html")
    inner = found.frame_locator(".lsn-frame").frame_locator("iframe")
    expect(inner.locator("[data-name]").first).to_be_attached()
    found.get_by_text("Run this page").click()
    expect(found.locator(".lsn-frame")).to_have_attribute("sandbox", "allow-scripts")
    name = inner.locator("[data-name]").first.get_attribute("data-name")
    assert name
    found.locator(".lsn-frame-cover").click()
    inner.locator("[data-name]").first.focus()
    expect(inner.locator("body")).to_contain_text(name)


def play_the_video(page: Page) -> None:
    found = artifact(card_in(page, "%%sandbox -m scripted/countdown"), "countdown.mp4")
    expect(found.locator("video")).to_be_visible()
    page.wait_for_function("() => [...document.querySelectorAll('video')].some(one => one.duration > 9)")


def rewind_and_undo(page: Page) -> None:
    card = card_in(page, "result.edit(command=")
    card.get_by_role("button", name="Compare attempts").click()
    expect(card.locator(".lsn-comparison tbody tr").first).to_be_visible()
    line = card.locator(".lsn-step[data-step='4']").first
    line.scroll_into_view_if_needed()
    line.hover()
    line.locator(".lsn-acts").get_by_role("button", name="Rewind", exact=False).click()
    form = card.get_by_role("group", name="Rewind to the end of step 4?")
    form.get_by_role("button", name="Rewind", exact=True).click()
    badge = card.locator(".lsn-header .lsn-badge").first
    expect(badge).to_have_text("Ready to continue from step 4")
    card.get_by_role("button", name="Undo", exact=True).first.click()
    expect(badge).to_have_text("Submitted, not checked")


def run_the_hostile_page(page: Page) -> None:
    """Shown without its script, then with it."""
    card = card_in(page, "%%sandbox -m scripted/hostile-page")
    found = artifact(card, "chart.html")
    inner = found.frame_locator(".lsn-frame").frame_locator("iframe")
    expect(inner.locator("body")).to_contain_text("No script has run")
    found.get_by_text("Run this page").click()
    expect(inner.locator("body")).not_to_contain_text("No script has run")


PRESSED: dict[str, tuple[Callable[[Page], None], ...]] = {
    "01-first-task": (take_a_picture_home,),
    "04-beyond-text": (run_the_map, play_the_video),
    "05-why-agents-fail": (rewind_and_undo,),
    "07-what-can-go-wrong": (run_the_hostile_page,),
}
"""The notebooks whose buttons a student presses, and how."""


# A minute each; test_lab.py, test_debugger.py, test_artifacts.py and test_hostile.py press these buttons too.
@pytest.mark.campaign
@pytest.mark.parametrize("name", [name for name in PRESSED if name in course.NAMES])
def test_a_student_takes_it(name: str, server: FrontEnd, page: Page) -> None:
    shutil.copytree(course.FOLDER / "data", server.root / "data", dirs_exist_ok=True)
    shutil.copy(course.FOLDER / f"{name}.ipynb", server.root)
    open_notebook(page, server, f"{name}.ipynb")
    first = run_all_cells(page, "Not yet: ")
    for press in PRESSED[name]:
        press(page)
    assert run_all_cells(page, "Not yet: ") == first, "the second Run All shows as many cards"
    command(page, "docmanager:save")
    saved = server.root / f"{name}.ipynb"
    assert eventually(page, lambda: '"output_type": "display_data"' in saved.read_text())


def run_all_cells(page: Page, verdict: str) -> int:
    command(page, "notebook:clear-all-cell-outputs")
    command(page, "notebook:run-all-cells")
    page.wait_for_function(FINISHED, timeout=600_000)
    content: dict[str, Any] = page.evaluate("() => jupyterapp.shell.currentWidget.context.model.toJSON()")
    assert course.problems_as_executed(nbformat.from_dict(content), verdict) == []
    found = bundles(page)
    assert found
    return len(found)


def show_cell(page: Page, beginning: str) -> Locator:
    """The cell whose source begins like this, in sight."""
    assert page.evaluate(SHOW, beginning) >= 0, beginning
    return page.locator(".jp-Notebook .jp-Cell.jp-mod-active")


def card_in(page: Page, beginning: str) -> Locator:
    card = show_cell(page, beginning).locator(".lsn-view")
    expect(card).to_have_count(1)
    return card


def artifact(card: Locator, name: str) -> Locator:
    found = card.locator(".lsn-artifact", has_text=name).first
    found.scroll_into_view_if_needed()
    return found


def downloaded(page: Page, card: Locator, name: str) -> bytes:
    """The bytes of a file that its Download link gives."""
    found = artifact(card, name)
    with page.expect_download() as waiting:
        found.get_by_role("link", name=f"Download {name}").click()
    assert waiting.value.suggested_filename == name
    return Path(waiting.value.path()).read_bytes()
