"""Around the card: the status bar's word, room for one more sandbox, a run in a tab, dots, the height of outputs."""

from __future__ import annotations

import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from axe import violations
from failures import new_window
from live_cells import BADGE, begin, patient, wait_for_idle, wait_until_noted
from playwright.sync_api import Browser, Page, expect
from servers import APPS, FrontEnd, jupyter, open_notebook, run_all, show_panel
from training_records import figures, row
from waiting import eventually

from llm_sandbox_nb.benchmark.results import append_line
from llm_sandbox_nb.training.config import load_config
from llm_sandbox_nb.training.record import TABLE, TrainingRecord

DONE = """
turns:
  - calls: [{tool: execute_bash, arguments: {command: "mkdir -p output; echo one > output/one.txt"}}]
  - calls: [{tool: execute_bash, arguments: {command: "echo two"}}]
  - calls: [{tool: execute_bash, arguments: {command: "echo three"}}]
  - text: Done.
    calls: [{tool: submit}]
"""
MANY = (
    "turns:"
    + "".join(
        f"""
  - calls: [{{tool: execute_bash, arguments: {{command: "seq {n} {n + 30}"}}}}]"""
        for n in range(7)
    )
    + "\n  - calls: [{tool: submit}]\n"
)
LAB = pytest.mark.parametrize("server", ["lab"], indirect=True)


def finished(server: FrontEnd, page: Page, name: str, options: str = "") -> None:
    begin(server, page, name, DONE, options=options)
    expect(page.locator(BADGE)).to_have_text("Submitted, not checked")
    wait_for_idle(page)


@pytest.mark.campaign
@LAB
def test_the_status_bar_tells_what_the_run_does(server: FrontEnd, page: Page) -> None:
    go = server.root / "go"
    begin(server, page, "told", patient(go))
    status = page.locator(".lsn-status")
    expect(status).to_have_text("Sandbox: running step 2")
    expect(page.locator("#jp-main-statusbar")).to_contain_text("Busy")
    page.get_by_role("button", name="Pause", exact=True).click()
    wait_until_noted(server, page, "told", "pause")
    go.touch()
    expect(status).to_have_text("Sandbox: waiting for you")
    expect(page.locator(".lm-TabBar-tab.lsn-waiting", has_text="told.ipynb")).to_have_count(1)
    expect(page.locator(".jp-SideBar .lsn-waiting")).to_have_attribute(
        "title", "Sandboxes: a run waits for you"
    )
    page.locator(".lsn-view").get_by_role("button", name="Stop", exact=True).first.click()
    expect(status).to_have_text("Sandbox: process, idle")
    expect(page.locator(".lsn-waiting")).to_have_count(0)


@pytest.mark.campaign
def test_a_cell_that_finds_no_room_offers_to_make_some(browser: Browser, tmp_path: Path) -> None:
    limit = ("--SandboxManager.max_sandboxes=1",)
    with new_window(browser) as window, jupyter(tmp_path / "jupyter", options=limit) as one:
        page, server = window.new_page(), FrontEnd(one)
        finished(server, page, "first")
        page.once("dialog", lambda dialog: dialog.accept())
        begin(server, page, "second", DONE)
        error = page.locator(".jp-OutputArea", has_text="as many as its site allows").last
        expect(error).to_contain_text("Idle: first.ipynb (for ")
        expect(error).to_contain_text("%sandbox stop --idle")
        page.get_by_role("button", name="Stop the longest idle sandbox and run again…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("first.ipynb: its files are lost")
        dialog.get_by_role("button", name="Stop and run again").click()
        expect(page.locator(BADGE)).to_have_text("Submitted, not checked")
        assert [box["notebook"] for box in one.sandboxes()] == ["second.ipynb"]


@pytest.mark.campaign
def test_stop_all_idle(server: FrontEnd, page: Page) -> None:
    finished(server, page, "idle-one")
    page.once("dialog", lambda dialog: dialog.accept())
    finished(server, page, "idle-two")
    show_panel(page)
    panel = page.get_by_role("region", name="Sandboxes")
    panel.get_by_text("1 idle sandbox in another notebook").click()
    expect(panel.get_by_role("region", name=f"Sandbox of {server.path('idle-one.ipynb')}")).to_be_visible()
    panel.get_by_role("button", name="Stop all").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("idle-one.ipynb")
    dialog.get_by_role("button", name="Stop").click()
    expect(panel.get_by_text("1 idle sandbox in another notebook")).not_to_be_visible()
    left = [server.path("idle-two.ipynb")]
    assert eventually(page, lambda: [box["notebook"] for box in server.jupyter.sandboxes()] == left)


@pytest.mark.campaign
@LAB
def test_a_run_opens_in_a_tab_where_keys_go_from_step_to_step(server: FrontEnd, page: Page) -> None:
    finished(server, page, "tab")
    size = page.viewport_size
    assert size is not None
    page.set_viewport_size({"width": size["width"], "height": 500})
    page.get_by_role("button", name="Open in tab").click()
    tab = page.locator(".lsn-run-tab")
    expect(tab.locator(BADGE)).to_have_text("Submitted, not checked")
    expect(tab.locator(".lsn-capped")).to_have_count(0)
    expect(tab.locator(".lsn-view")).to_be_focused()
    assert tab.evaluate("node => node.scrollHeight > node.clientHeight"), "a part of it is out of sight"
    assert tab.evaluate("node => node.scrollTop") == 0, "the title is in sight"
    page.set_viewport_size(size)
    current = tab.locator(".lsn-current")
    for key, step in (
        ("ArrowDown", "1"),
        ("ArrowRight", "2"),
        ("ArrowDown", "3"),
        ("ArrowUp", "2"),
        ("End", "4"),
    ):
        page.keyboard.press(key)
        expect(current).to_have_attribute("data-step", step)
    view = tab.locator(".lsn-view")
    before = view.evaluate("node => node.getBoundingClientRect().width")
    page.keyboard.press("p")
    expect(tab.locator(".lsn-present")).to_be_visible()
    assert violations(page, ".lsn-run-tab") == []

    def is_large() -> bool:
        zoom = view.evaluate("node => Number(getComputedStyle(node).zoom)")
        return zoom >= 1.5 and abs(view.evaluate("node => node.getBoundingClientRect().width") - before) <= 2

    def is_in_sight() -> bool:
        """The tools, the timeline and the chosen step stand below each other, none over another."""
        boxes = (tab.locator(one).bounding_box() for one in (".lsn-tab-tools", ".lsn-sticky", ".lsn-current"))
        tools, timeline, step = (box or {"y": 0, "height": 0} for box in boxes)
        return (
            tools["y"] + tools["height"]
            <= timeline["y"] + 1
            < timeline["y"] + timeline["height"]
            <= step["y"] + 2
        )

    assert eventually(page, is_large), "large type is no wider than the tab"
    assert eventually(page, is_in_sight)
    page.keyboard.press("Escape")
    expect(tab.locator(".lsn-present")).to_have_count(0)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("F10")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keys")).to_have_count(0)


@LAB
@pytest.mark.open_lab
def test_the_panel_opens_runs_that_go_on_and_those_that_are_over(server: FrontEnd, page: Page) -> None:
    go = server.root / "go-tab"
    finished(server, page, "rows")
    show_panel(page)
    panel = page.get_by_role("region", name="Sandboxes")
    row = panel.get_by_role("button", name="Submitted, not checked: Go on., Answer: Done., 4 steps")
    expect(row.first).to_have_attribute(
        "aria-label", re.compile(r"^\d\d:\d\d Submitted, not checked: Go on\., Answer: Done\., 4 steps$")
    )
    row.first.click()
    expect(page.locator(".lsn-run-tab").locator(BADGE)).to_have_text("Submitted, not checked")
    expect(page.locator(".lm-TabBar-tab.lm-mod-current", has_text="Go on.")).to_have_count(1)
    page.once("dialog", lambda dialog: dialog.accept())
    begin(server, page, "live-row", patient(go))
    show_panel(page)
    live = panel.get_by_role("button", name="Running · step 2: Go on., 2 steps")
    live.click()
    tab = page.locator(".lsn-run-tab")
    expect(tab.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    go.touch()
    expect(tab.locator(BADGE)).to_have_text("Submitted, not checked")


@pytest.mark.campaign
@pytest.mark.parametrize("server", APPS, indirect=True)
def test_no_scroll_box_is_around_the_scroll_box_of_a_card(server: FrontEnd, page: Page) -> None:
    begin(server, page, "room", MANY)
    expect(page.locator(BADGE)).to_have_text("Submitted, not checked")
    wait_for_idle(page)
    page.evaluate("() => jupyterapp.shell.currentWidget.content.widgets[1].outputsScrolled = true")
    expect(page.locator(".jp-CodeCell.jp-mod-outputsScrolled")).to_have_count(1)
    area = page.locator(".jp-Cell-outputArea", has=page.locator(".lsn-view"))
    expect(area).to_have_css("overflow-y", "visible")
    assert eventually(page, lambda: area.evaluate("node => node.getBoundingClientRect().height") > 500)


@pytest.mark.campaign
@LAB
def test_a_rollout_of_a_training_opens_with_a_click(server: FrontEnd, page: Page) -> None:
    finished(server, page, "rollout")
    (journal,) = server.root.glob("sandbox-runs/rollout/*/journal.jsonl")
    record = TrainingRecord.begin(server.root / "trained", load_config("tiny-cpu.yaml"))
    record.add_step(figures(1) | {"turns_max": 4})
    told = replace(row(0, "notes-1", 1.0), step=1, run="rollouts/step-0001/0000/run")
    shutil.copytree(journal.parent, record.folder / told.run)
    append_line(record.step_folder(1) / TABLE, asdict(told))
    page.close()
    page = page.context.new_page()
    cells = ("%load_ext llm_sandbox_nb", "%sandbox train watch trained --once")
    open_notebook(page, server, server.notebook("trained.ipynb", *cells))
    run_all(page)
    plot = page.get_by_role("img", name="Reward: mean")
    expect(plot).to_be_visible()
    assert violations(page, ".lsn") == []
    page.locator(".lsn-table a", has_text="0").click()
    opened = page.locator(".lsn-file .lsn-view")
    expect(opened.locator(".lsn-step")).to_have_count(4)
    expect(opened.locator(BADGE)).to_have_text("Submitted, not checked")
