"""A run that is stopped at a call, in a real JupyterLab and Notebook 7: step, edit, skip, keys; earlier files."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from servers import ALIKE, PATIENCE, ROOT, FrontEnd, bundles, front_end, open_notebook

pytestmark = pytest.mark.slow
expect.set_options(timeout=90_000)
SCRIPT = """
turns:
  - text: I write <b>a file</b>.
    calls: [{tool: execute_bash, arguments: {command: "echo one > notes.txt; cat notes.txt"}}]
  - calls: [{tool: execute_bash, arguments: {command: "echo wrong > notes.txt; cat notes.txt"}}]
  - calls: [{tool: execute_bash, arguments: {command: "rm -f notes.txt; echo removed"}}]
  - calls: [{tool: submit}]
"""


@pytest.fixture(scope="module", params=ALIKE)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontEnd]:
    with front_end(tmp_path_factory.mktemp(request.param), request.param) as running:
        (running.root / "script.yaml").write_text(SCRIPT)
        yield running


def begin(server: FrontEnd, page: Page, name: str, options: str) -> None:
    """Open a notebook whose cell plays the script, and run it."""
    cell = f"%%sandbox -m scripted/./script.yaml {options}\nGo on."
    open_notebook(page, server, server.notebook(f"{name}.ipynb", "%load_ext llm_sandbox_nb", cell))
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")


def panel(page: Page) -> Locator:
    return page.locator(".lsn-stop-panel")


def stopped(page: Page, title: str) -> Locator:
    """The panel, when it says so."""
    found = panel(page)
    expect(found.locator("h3")).to_have_text(title)
    return found


def wait_for_the_end(page: Page, reason: str = "submitted") -> list[dict[str, Any]]:
    """The events of the one run, when it is over and its last word is in the notebook."""
    expect(page.locator(".lsn-header .lsn-badge")).to_have_text(reason)
    deadline = time.monotonic() + PATIENCE / 1000
    while True:
        (record,) = bundles(page)
        events: list[dict[str, Any]] = record["events"]
        if events and events[-1]["kind"] == "run.finished":
            return events
        assert time.monotonic() < deadline, events
        page.wait_for_timeout(100)


def test_keys_step_and_continue_and_are_bound_only_then(server: FrontEnd, page: Page) -> None:
    begin(server, page, "keys", "--step")
    body = page.locator("body")
    stopped(page, "Stopped at step 1, before execute_bash")
    expect(body).to_have_attribute("data-llm-sandbox-stopped", "true")
    expect(page.locator(".lsn-header .lsn-badge")).to_have_text("stopped")
    page.locator(".lsn-view").click(position={"x": 5, "y": 5})
    page.keyboard.press("F10")
    stopped(page, "Stopped at step 1, before the model sees what execute_bash gave")
    page.keyboard.press("F10")
    stopped(page, "Stopped at step 2, before execute_bash")
    page.keyboard.press("F9")
    events = wait_for_the_end(page)
    expect(panel(page)).to_have_count(0)
    expect(body).not_to_have_attribute("data-llm-sandbox-stopped", "true")
    outputs = [event["observation"] for event in events if event["kind"] == "call.finished"]
    for text, word in zip(outputs, ("one", "wrong", "removed"), strict=False):
        assert word in text


def test_a_call_is_edited_another_skipped_and_an_observation_changed(server: FrontEnd, page: Page) -> None:
    begin(server, page, "edit", "--step")
    first = stopped(page, "Stopped at step 1, before execute_bash")
    first.get_by_text("Messages the model saw").click()
    expect(first.locator("li[data-role='system']")).to_be_visible()
    expect(first.locator("li[data-role='user']")).to_contain_text("Go on.")
    expect(first.locator("li[data-role='assistant']")).to_contain_text("I write <b>a file</b>.")
    assert not first.locator(".lsn-messages b").count(), "what the model wrote is text"
    expect(first.get_by_role("button", name="Run edited")).to_be_disabled()
    first.get_by_label("Argument command").fill("echo edited > notes.txt; cat notes.txt")
    first.get_by_role("button", name="Run edited").click()
    second = stopped(page, "Stopped at step 1, before the model sees what execute_bash gave")
    expect(second.get_by_label("Observation")).to_have_value(re.compile("^edited$", re.MULTILINE))
    second.get_by_label("Observation").fill("what a person says it was")
    second.get_by_role("button", name="Give the edited observation").click()
    third = stopped(page, "Stopped at step 2, before execute_bash")
    third.get_by_text("Skip this call and answer in its place").click()
    third.get_by_label("What the model reads as the result").fill("This is not needed.")
    third.get_by_role("button", name="Skip", exact=True).click()
    expect(panel(page).locator("h3")).to_contain_text("Stopped at step 3")
    page.get_by_label("Say something to the agent").fill("Be quick.")
    page.get_by_role("button", name="Say").click()
    expect(page.get_by_label("Say something to the agent")).to_have_value("")
    panel(page).get_by_role("button", name="Continue").click()
    events = wait_for_the_end(page)
    decided = [event["action"] for event in events if event["kind"] == "call.decided"]
    assert [one for one in decided if one != "run"] == ["edit", "observe", "skip"]
    started = [event["arguments"] for event in events if event["kind"] == "call.started"]
    assert started[0]["command"] == "echo edited > notes.txt; cat notes.txt"
    assert "echo wrong" not in str(started)
    assert "Be quick." in str(events)
    expect(page.get_by_text("edited by a person")).to_be_visible()
    expect(page.get_by_text("not carried out: a person answered in its place")).to_be_visible()


def test_a_breakpoint_stops_and_the_run_can_be_ended_there(server: FrontEnd, page: Page) -> None:
    begin(server, page, "break", "--break \"'rm ' in command\"")
    found = stopped(page, "Stopped at step 3, before execute_bash")
    expect(found).to_contain_text("'rm ' in command")
    found.get_by_text("Model and limits for what follows").click()
    found.get_by_label("Temperature").fill("0.5")
    found.get_by_role("button", name="Apply").click()
    expect(found.get_by_text("This holds from the next request")).to_be_visible()
    found.get_by_role("button", name="Stop", exact=True).click()
    events = wait_for_the_end(page, "interrupted")
    assert {"temperature": 0.5} in [one["settings"] for one in events if one["kind"] == "settings.changed"]
    assert "removed" not in [one.get("observation") for one in events]


def test_the_files_of_a_step_while_it_is_stopped_and_after(server: FrontEnd, page: Page) -> None:
    begin(server, page, "files", "--break \"'rm ' in command\"")
    stopped(page, "Stopped at step 3, before execute_bash")
    look_at_files(page)
    fork_while_it_is_stopped(page)
    panel(page).get_by_role("button", name="Continue").click()
    events = wait_for_the_end(page)
    assert [event["step"] for event in events if event["kind"] == "forked"] == [1]
    look_at_files(page)


def fork_while_it_is_stopped(page: Page) -> None:
    """By a button, although the kernel is busy with the run."""
    timeline = page.get_by_role("navigation", name="Timeline")
    timeline.get_by_role("button", name="Step 1", exact=False).click()
    step = page.get_by_role("region", name="Step 1: its files, and going back")
    step.get_by_role("button", name="Fork here").click()
    expect(timeline.get_by_text("Fork of step 1")).to_be_visible()
    stopped(page, "Stopped at step 3, before execute_bash")
    timeline.get_by_role("button", name="Step 1", exact=False).click()


def look_at_files(page: Page) -> None:
    """Step 1's file as it was, and how it differs from step 2's."""
    timeline = page.get_by_role("navigation", name="Timeline")
    cell = timeline.get_by_role("button", name="Step 1", exact=False)
    if cell.get_attribute("aria-pressed") == "true":
        cell.click()
    cell.click()
    step = page.get_by_role("region", name="Step 1: its files, and going back")
    step.get_by_role("button", name="Files as they were").click()
    step.get_by_role("button", name="notes.txt").click()
    expect(step.locator(".lsn-old-file pre")).to_have_text("one\n")
    cell.click()
    timeline.get_by_role("button", name="Step 2", exact=False).click()
    step = page.get_by_role("region", name="Step 2: its files, and going back")
    step.get_by_role("button", name="Changes").click()
    step.get_by_label("Compare with").select_option("1")
    step.locator("summary", has_text="notes.txt").click()
    expect(step.locator(".lsn-diff-removed")).to_have_text("-one")
    expect(step.locator(".lsn-diff-added")).to_have_text("+wrong")
    timeline.get_by_role("button", name="Step 2", exact=False).click()


def run_cells(page: Page, *places: int) -> None:
    """Run these cells one after the other, each to its end."""
    page.evaluate(
        """async places => {
          const { content, sessionContext } = jupyterapp.shell.currentWidget;
          for (const place of places) {
            content.activeCellIndex = place;
            content.deselectAll();
            await jupyterapp.commands.execute('notebook:run-cell');
            while (sessionContext.session.kernel.status !== 'idle') await new Promise(done => setTimeout(done, 100));
          }
        }""",
        list(places),
    )


def test_the_notebook_about_time_with_its_buttons(server: FrontEnd, page: Page) -> None:
    """Back before the mistake by a button, taken back by another, a fork; then the notebook's own way to its end."""
    shutil.copytree(ROOT / "notebooks" / "data", server.root / "data", dirs_exist_ok=True)
    shutil.copy(ROOT / "notebooks" / "02-time-travel.ipynb", server.root)
    page.set_default_timeout(120_000)
    page.set_viewport_size({"width": 1200, "height": 1600})
    open_notebook(page, server, "02-time-travel.ipynb")
    run_cells(page, 1, 3)
    card = page.locator(".lsn-view").first
    expect(card.locator(".lsn-header .lsn-badge").first).to_have_text("submitted")
    timeline = card.get_by_role("navigation", name="Timeline")
    timeline.get_by_role("button", name="Step 4", exact=False).click()
    step = card.get_by_role("region", name="Step 4: its files, and going back")
    expect(step.get_by_text("Running processes end.")).to_contain_text(
        "steps of the conversation are taken back"
    )
    expect(step.get_by_text("Running processes end.")).to_contain_text(re.compile(r"\d+ paths? changes?"))
    step.get_by_role("button", name="Rewind to here").click()
    left = timeline.get_by_role("group", name="Branch that was left after step 4")
    expect(left.get_by_role("button")).not_to_have_count(0)
    expect(
        timeline.get_by_role("group", name="Steps of this branch").get_by_role("button", name="Step 5")
    ).to_have_count(0)
    left.get_by_role("button", name="Step 5", exact=False).click()
    shown = card.get_by_role("region", name="Step 5: its files, and going back")
    expect(shown.locator(".lsn-code")).to_contain_text("25000000")
    timeline.get_by_role("button", name="Step 4", exact=False).click()
    step.get_by_role("button", name="Undo the last rewind").click()
    expect(
        timeline.get_by_role("group", name="Steps of this branch").get_by_role("button", name="Step 5")
    ).to_have_count(1)
    timeline.get_by_role("button", name="Step 4", exact=False).click()
    step.get_by_role("button", name="Fork here").click()
    expect(timeline.get_by_text("Fork of step 4")).to_be_visible()
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-below'); }")
    comparison = page.locator(".jp-OutputArea", has_text="25000000").last
    expect(comparison).to_be_attached()
