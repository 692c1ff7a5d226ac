"""A run that is stopped at a call, and one that is rewound, in a real JupyterLab and Notebook 7.

What each form says and sends is tested in labextension/tests/decisions.test.mjs.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from live_cells import BADGE
from playwright.sync_api import Locator, Page, expect
from servers import FrontEnd, bundles, command, open_notebook, wait_for_kernel
from waiting import eventually

SCRIPT = """
turns:
  - text: I write <b>a file</b>.
    calls: [{tool: execute_bash, arguments: {command: "echo one > notes.txt; cat notes.txt"}}]
  - calls: [{tool: execute_bash, arguments: {command: "echo wrong > notes.txt; cat notes.txt"}}]
  - calls: [{tool: execute_bash, arguments: {command: "rm -f notes.txt; echo removed"}}]
  - calls: [{tool: execute_bash, arguments: {command: "echo end"}}]
  - calls: [{tool: submit}]
"""
COUNTS = """
turns:
  - calls: [{tool: execute_bash, arguments: {command: "echo 1 > one.txt"}}]
  - calls: [{tool: execute_bash, arguments: {command: "echo 2 > two.txt; cat one.txt two.txt"}}]
  - calls: [{tool: submit}]
"""
OTHER = """
turns:
  - calls: [{tool: execute_bash, arguments: {command: "echo other > other.txt"}}]
  - calls: [{tool: submit}]
"""


def begin(server: FrontEnd, page: Page, name: str, options: str, *scripts: str) -> None:
    cells = ["%load_ext llm_sandbox_nb"]
    for number, text in enumerate(scripts):
        (server.root / f"{name}{number}.yaml").write_text(text)
        cells.append(f"%%sandbox -m scripted/./{name}{number}.yaml {options}\nTask {number}.")
    page.set_viewport_size({"width": 1280, "height": 1400})
    open_notebook(page, server, server.notebook(f"{name}.ipynb", *cells))
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")


def panel(page: Page) -> Locator:
    return page.locator(".lsn-stop-panel")


def stopped(page: Page, step: int, question: str = "Run this command?") -> Locator:
    found = panel(page)
    expect(found.locator(".lsn-banner")).to_contain_text(f"Step {step}.")
    expect(found.locator(".lsn-banner b")).to_have_text(question)
    return found


def before_the_model(step: int) -> str:
    return f"Step {step}: the model has not read the result yet"


def act(page: Page, step: int, name: str) -> None:
    line = page.locator(f".lsn-view .lsn-step[data-step='{step}']").first
    line.hover()
    line.locator(".lsn-acts").get_by_role("button", name=name, exact=False).click()


def press(button: Locator) -> None:
    """By the keyboard: below a field that grows as it is filled, a click may meet what has moved meanwhile."""
    button.focus()
    button.press("Enter")


def step_panel(page: Page, step: int) -> Locator:
    return page.get_by_role("region", name=f"Step {step}: rewind, fork, files")


def wait_for_the_end(page: Page, reason: str = "Submitted, not checked") -> list[dict[str, Any]]:
    """The events of the one run, when it is over and its last word is in the notebook."""
    expect(page.locator(BADGE)).to_have_text(reason)
    events: list[dict[str, Any]] = []

    def are_whole() -> bool:
        (record,) = bundles(page)
        events[:] = record["events"]
        return bool(events) and events[-1]["kind"] == "run.finished"

    assert eventually(page, are_whole), events
    return events


@pytest.mark.open_lab
def test_keys_edits_a_denial_and_words_at_a_run_that_is_stopped(server: FrontEnd, page: Page) -> None:
    """Keys are bound only while a run is stopped."""
    begin(server, page, "edit", "--step", SCRIPT)
    first = stopped(page, 1)
    body = page.locator("body")
    expect(body).to_have_attribute("data-llm-sandbox-stopped", "true")
    expect(page.locator(BADGE)).to_have_text("Waiting for you")
    first.get_by_text("Messages the model saw").click()
    expect(first.locator("li[data-role='user']")).to_contain_text("Task 0.")
    expect(first.locator("li[data-role='assistant']")).to_contain_text("I write <b>a file</b>.")
    expect(first.locator(".lsn-messages b")).to_have_count(0)  # what the model wrote is text
    first.get_by_role("button", name="Edit…").click()
    expect(first.get_by_role("button", name="Run edited")).to_be_disabled()
    first.get_by_label("Argument command").fill("echo edited > notes.txt; cat notes.txt")
    press(first.get_by_role("button", name="Run edited"))
    second = stopped(page, 1, before_the_model(1))
    expect(second.get_by_label("Result", exact=True)).to_have_value(re.compile("^edited$", re.MULTILINE))
    second.get_by_label("Result", exact=True).fill("what a person says it was")
    press(second.get_by_role("button", name="Use the edited result"))
    third = stopped(page, 2)
    third.get_by_role("button", name="Deny…").click()
    third.get_by_label("Reason; the model reads it in place of a result").fill("This is not needed.")
    press(third.get_by_role("button", name="Deny", exact=True))
    stopped(page, 3)
    page.get_by_label("Message to the model").fill("Be quick.")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_label("Message to the model")).to_have_value("")
    page.locator(".lsn-view").click(position={"x": 5, "y": 5})
    page.keyboard.press("F10")
    stopped(page, 3, before_the_model(3))
    page.keyboard.press("F10")
    stopped(page, 4)
    page.keyboard.press("F9")
    events = wait_for_the_end(page)
    expect(panel(page)).to_have_count(0)
    expect(body).not_to_have_attribute("data-llm-sandbox-stopped", "true")
    decided = [event["action"] for event in events if event["kind"] == "call.decided"]
    assert [one for one in decided if one != "run"] == ["edit", "observe", "skip"]
    started = [event["arguments"] for event in events if event["kind"] == "call.started"]
    assert started[0]["command"] == "echo edited > notes.txt; cat notes.txt"
    assert "echo wrong" not in str(started)
    assert "Be quick." in str(events)
    outputs = [event["observation"] for event in events if event["kind"] == "call.finished"]
    assert "removed" in outputs[2]
    expect(page.get_by_text("Edited by you; show original")).to_be_visible()
    expect(page.get_by_text("Denied by you; the model read your answer")).to_be_visible()


@pytest.mark.campaign
@pytest.mark.open_lab
def test_files_and_a_fork_at_a_breakpoint_where_the_run_is_ended(server: FrontEnd, page: Page) -> None:
    """By buttons, although the kernel is busy with the run; the files of a step are there after its end too."""
    begin(server, page, "break", "--break \"'rm ' in command\"", SCRIPT)
    found = stopped(page, 3)
    expect(found).to_contain_text("'rm ' in command")
    look_at_files(page)
    act(page, 1, "Fork")
    expect(step_panel(page, 1).get_by_text("Fork created.")).to_be_visible()
    expect(page.get_by_role("navigation", name="Timeline").get_by_text("Fork of step 1")).to_be_visible()
    found = stopped(page, 3)
    found.get_by_text("Model and limits from here on").click()
    found.get_by_label("Temperature").fill("0.5")
    found.get_by_role("button", name="Apply").click()
    expect(found.get_by_text("Applies from the next request")).to_be_visible()
    found.get_by_role("button", name="Stop", exact=True).click()
    events = wait_for_the_end(page, "Stopped by you")
    assert [event["step"] for event in events if event["kind"] == "forked"] == [1]
    assert {"temperature": 0.5} in [one["settings"] for one in events if one["kind"] == "settings.changed"]
    assert "removed" not in [one.get("observation") for one in events]
    look_at_files(page)


def look_at_files(page: Page) -> None:
    """Step 1's file as it was, and how it differs from step 2's."""
    act(page, 1, "Files")
    step = step_panel(page, 1)
    step.get_by_role("button", name="notes.txt").click()
    expect(step.locator(".lsn-old-file pre")).to_have_text("one\n")
    timeline = page.get_by_role("navigation", name="Timeline")
    timeline.get_by_role("option", name="Step 2", exact=False).click()
    step = step_panel(page, 2)
    step.get_by_role("button", name="Changes").click()
    step.get_by_label("Compare with").select_option("1")
    step.locator("summary", has_text="notes.txt").click()
    expect(step.locator(".lsn-diff-removed .lsn-diff-text")).to_have_text("one")
    expect(step.locator(".lsn-diff-added .lsn-diff-text")).to_have_text("wrong")
    timeline.get_by_role("option", name="Step 2", exact=False).click()


@pytest.mark.campaign
@pytest.mark.open_lab
def test_all_commands_of_a_run_are_approved_at_the_first(server: FrontEnd, page: Page) -> None:
    begin(server, page, "approve", "--approve ask", SCRIPT)
    stopped(page, 1).get_by_role("button", name="Approve all commands of this run").click()
    events = wait_for_the_end(page)
    assert [event["kind"] for event in events].count("call.held") == 1
    assert [one["source"] for one in events if one["kind"] == "settings.changed"] == ["server"]


def rewind_to(card: Locator, step: int) -> None:
    """By the button of the step's line, after what it undoes was said."""
    act(card.page, step, "Rewind")
    form = card.get_by_role("group", name=f"Rewind to the end of step {step}?")
    expect(form).to_contain_text(
        re.compile(r"Undoes \d+ steps?, restores \d+ files?\. You can undo this\. Running programs end\.")
    )
    form.get_by_role("button", name="Rewind", exact=True).click()


@pytest.mark.open_lab
def test_a_rewound_run_continues_in_its_card(server: FrontEnd, page: Page) -> None:
    """Plainly, with words to the model, and with another next call; each time undone by a rewind."""
    begin(server, page, "continue", "", COUNTS)
    card = page.locator(".lsn-view").first
    badge = card.locator(BADGE).first
    expect(badge).to_have_text("Submitted, not checked")
    ready = card.get_by_role("group", name="After the rewind")
    rewind_to(card, 1)
    expect(badge).to_have_text("Ready to continue from step 1")
    expect(ready).to_contain_text("Steps 2 to 3 are kept as an earlier attempt. 1 file was restored.")
    ready.get_by_role("button", name="Continue", exact=True).click()
    expect(badge).to_have_text("Submitted, not checked")
    expect(ready).to_have_count(0)
    rewind_to(card, 1)
    ready.get_by_role("button", name="Say and continue…").click()
    card.get_by_label("Message to the model").fill('It\'s {not} "two".')
    card.get_by_role("button", name="Say and continue", exact=True).click()
    expect(badge).to_have_text("Submitted, not checked")
    rewind_to(card, 1)
    ready.get_by_role("button", name="Edit next call…").click()
    card.get_by_label("Argument command").fill("echo 'thr''ee' {x} > two.txt; cat two.txt")
    press(card.get_by_role("button", name="Run the edited call and continue"))
    expect(badge).to_have_text("Submitted, not checked")
    expect(card.get_by_text("edited by you").first).to_be_visible()

    def text() -> str:
        return "".join(str(record["events"]) for record in bundles(page)).replace("\\'", "'")

    assert eventually(page, lambda: "It's {not}" in text() and "three {x}" in text()), text()
    card.get_by_role("button", name="Compare attempts").click()
    table = card.locator(".lsn-comparison")
    expect(table.locator("tbody tr").first).to_have_text("11 step is the same")
    expect(table.get_by_text("edited by you")).to_be_visible()
    rewind_to(card, 1)
    ready.get_by_role("button", name="Undo").click()
    expect(badge).to_have_text("Submitted, not checked")


RESTART = "() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart().then(() => null)"


@pytest.mark.open_lab
def test_a_run_that_asks_for_approval_asks_again_after_a_reload_and_after_a_restart(
    server: FrontEnd, page: Page
) -> None:
    """Where its card is: the kernel knows another output. Then the notebook keeps the newest attempt."""
    begin(server, page, "asks", "--approve ask", COUNTS)

    def approve(*steps: int) -> None:
        for step in steps:
            question = "Submit?" if step == 3 else "Run this command?"
            stopped(page, step, question).get_by_role("button", name="Approve").first.click()

    approve(1, 2, 3)
    wait_for_the_end(page)
    command(page, "docmanager:save")
    open_notebook(page, server, "asks.ipynb")
    for attempts in (2, 3):
        card = page.locator(".lsn-view").first
        rewind_to(card, 1)
        ready = card.get_by_role("group", name="After the rewind")
        ready.get_by_role("button", name="Continue", exact=True).click()
        approve(2, 3)
        expect(page.locator(BADGE)).to_have_text("Submitted, not checked")

        def ends() -> int:
            (record,) = bundles(page)
            return [event["kind"] for event in record["events"]].count("run.finished")

        assert eventually(page, lambda wanted=attempts: ends() == wanted)
        page.evaluate(RESTART)
        wait_for_kernel(page)


@pytest.mark.campaign
@pytest.mark.open_lab
def test_keys_reach_all_and_a_rewind_shows_what_another_cell_made(server: FrontEnd, page: Page) -> None:
    """Labels are seen, not icons, and each is one click or a few keys from the card."""
    begin(server, page, "others", "", COUNTS, OTHER)
    expect(page.locator(BADGE)).to_have_text(["Submitted, not checked"] * 2)
    card = page.locator(".lsn-view").first
    line = card.locator(".lsn-step[data-step='1']")
    line.hover()
    for name in ("Rewind", "Files", "Fork"):
        expect(line.get_by_text(name, exact=True)).to_be_visible()
    card.focus()
    for name, reached in (("Rewind to", "Rewind to the end of step 1?"), ("Files at", "one.txt")):
        tab_to(page, name)
        page.keyboard.press("Enter")
        expect(step_panel(page, 1).get_by_text(reached).first).to_be_visible()
        page.keyboard.press("Escape")
        expect(step_panel(page, 1)).to_have_count(0)
    act(page, 1, "Rewind")
    form = card.get_by_role("group", name="Rewind to the end of step 1?")
    expect(form).to_contain_text("Undoes 2 steps, restores 1 file. You can undo this.")
    expect(form).to_contain_text(
        "1 more file was changed since by another run ('Task 1.'). Rewinding undoes this too:"
    )
    expect(form.locator("li")).to_contain_text("other.txt")
    form.get_by_role("button", name="Rewind, and undo these too").click()
    badge = card.locator(BADGE).first
    expect(badge).to_have_text("Ready to continue from step 1")
    card.get_by_role("button", name="Continue", exact=True).click()
    expect(badge).to_have_text("Submitted, not checked")
    card.focus()
    tab_to(page, "Compare attempts")
    page.keyboard.press("Enter")
    expect(card.locator(".lsn-comparison")).to_be_visible()


def tab_to(page: Page, name: str) -> None:
    script = (
        "() => { const e = document.activeElement; return e.getAttribute('aria-label') ?? e.textContent; }"
    )
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(script)[:60])
        if seen[-1].startswith(name):
            return
    raise AssertionError(seen)
