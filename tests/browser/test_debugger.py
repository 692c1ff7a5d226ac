"""A run that is stopped at a call, in a real JupyterLab and Notebook 7: step, edit, skip, keys; earlier files."""

from __future__ import annotations

import re
import shutil
from typing import Any

from playwright.sync_api import Locator, Page, expect
from servers import ROOT, FrontEnd, bundles, open_notebook
from waiting import eventually

SCRIPT = """
turns:
  - text: I write <b>a file</b>.
    calls: [{tool: execute_bash, arguments: {command: "echo one > notes.txt; cat notes.txt"}}]
  - calls: [{tool: execute_bash, arguments: {command: "echo wrong > notes.txt; cat notes.txt"}}]
  - calls: [{tool: execute_bash, arguments: {command: "rm -f notes.txt; echo removed"}}]
  - calls: [{tool: submit}]
"""


def begin(server: FrontEnd, page: Page, name: str, options: str) -> None:
    """Open a notebook whose cell plays the script, and run it."""
    (server.root / "script.yaml").write_text(SCRIPT)
    cell = f"%%sandbox -m scripted/./script.yaml {options}\nGo on."
    open_notebook(page, server, server.notebook(f"{name}.ipynb", "%load_ext llm_sandbox_nb", cell))
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")


def panel(page: Page) -> Locator:
    return page.locator(".lsn-stop-panel")


def stopped(page: Page, step: int, question: str = "Run this command?") -> Locator:
    """The panel, when it asks this at this step."""
    found = panel(page)
    expect(found.locator(".lsn-banner")).to_contain_text(f"Step {step}.")
    expect(found.locator(".lsn-banner b")).to_have_text(question)
    return found


def before_the_model(step: int) -> str:
    return f"Step {step}: the model has not read the result yet"


def act(page: Page, step: int, name: str) -> None:
    """Press a button of a step's line."""
    line = page.locator(f".lsn-view .lsn-step[data-step='{step}']").first
    line.hover()
    line.locator(".lsn-acts").get_by_role("button", name=name, exact=False).click()


def step_panel(page: Page, step: int) -> Locator:
    return page.get_by_role("region", name=f"Step {step}: rewind, fork, files")


def wait_for_the_end(page: Page, reason: str = "Submitted") -> list[dict[str, Any]]:
    """The events of the one run, when it is over and its last word is in the notebook."""
    expect(page.locator(".lsn-header .lsn-badge")).to_have_text(reason)
    events: list[dict[str, Any]] = []

    def are_whole() -> bool:
        (record,) = bundles(page)
        events[:] = record["events"]
        return bool(events) and events[-1]["kind"] == "run.finished"

    assert eventually(page, are_whole), events
    return events


def test_keys_step_and_continue_and_are_bound_only_then(server: FrontEnd, page: Page) -> None:
    begin(server, page, "keys", "--step")
    body = page.locator("body")
    stopped(page, 1)
    expect(body).to_have_attribute("data-llm-sandbox-stopped", "true")
    expect(page.locator(".lsn-header .lsn-badge")).to_have_text("Waiting for you")
    page.locator(".lsn-view").click(position={"x": 5, "y": 5})
    page.keyboard.press("F10")
    stopped(page, 1, before_the_model(1))
    page.keyboard.press("F10")
    stopped(page, 2)
    page.keyboard.press("F9")
    events = wait_for_the_end(page)
    expect(panel(page)).to_have_count(0)
    expect(body).not_to_have_attribute("data-llm-sandbox-stopped", "true")
    outputs = [event["observation"] for event in events if event["kind"] == "call.finished"]
    for text, word in zip(outputs, ("one", "wrong", "removed"), strict=False):
        assert word in text


def test_a_call_is_edited_another_skipped_and_an_observation_changed(server: FrontEnd, page: Page) -> None:
    begin(server, page, "edit", "--step")
    first = stopped(page, 1)
    first.get_by_text("Messages the model saw").click()
    expect(first.locator("li[data-role='system']")).to_be_visible()
    expect(first.locator("li[data-role='user']")).to_contain_text("Go on.")
    expect(first.locator("li[data-role='assistant']")).to_contain_text("I write <b>a file</b>.")
    expect(first.locator(".lsn-messages b")).to_have_count(0)  # what the model wrote is text
    first.get_by_role("button", name="Edit…").click()
    expect(first.get_by_role("button", name="Run edited")).to_be_disabled()
    first.get_by_label("Argument command").fill("echo edited > notes.txt; cat notes.txt")
    first.get_by_role("button", name="Run edited").click()
    second = stopped(page, 1, before_the_model(1))
    expect(second.get_by_label("Result", exact=True)).to_have_value(re.compile("^edited$", re.MULTILINE))
    second.get_by_label("Result", exact=True).fill("what a person says it was")
    second.get_by_role("button", name="Use the edited result").click()
    third = stopped(page, 2)
    third.get_by_role("button", name="Deny…").click()
    third.get_by_label("Reason; the model reads it in place of a result").fill("This is not needed.")
    third.get_by_role("button", name="Deny", exact=True).click()
    expect(panel(page).locator(".lsn-banner")).to_contain_text("Step 3.")
    page.get_by_label("Say something to the model").fill("Be quick.")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_label("Say something to the model")).to_have_value("")
    panel(page).get_by_role("button", name="Continue").click()
    events = wait_for_the_end(page)
    decided = [event["action"] for event in events if event["kind"] == "call.decided"]
    assert [one for one in decided if one != "run"] == ["edit", "observe", "skip"]
    started = [event["arguments"] for event in events if event["kind"] == "call.started"]
    assert started[0]["command"] == "echo edited > notes.txt; cat notes.txt"
    assert "echo wrong" not in str(started)
    assert "Be quick." in str(events)
    expect(page.get_by_text("Edited by you; show original")).to_be_visible()
    expect(page.get_by_text("Denied by you; the model read your answer")).to_be_visible()


def test_a_breakpoint_stops_and_the_run_can_be_ended_there(server: FrontEnd, page: Page) -> None:
    begin(server, page, "break", "--break \"'rm ' in command\"")
    found = stopped(page, 3)
    expect(found).to_contain_text("'rm ' in command")
    found.get_by_text("Model and limits from here on").click()
    found.get_by_label("Temperature").fill("0.5")
    found.get_by_role("button", name="Apply").click()
    expect(found.get_by_text("This holds from the next request")).to_be_visible()
    found.get_by_role("button", name="Stop", exact=True).click()
    events = wait_for_the_end(page, "Stopped by you")
    assert {"temperature": 0.5} in [one["settings"] for one in events if one["kind"] == "settings.changed"]
    assert "removed" not in [one.get("observation") for one in events]


def test_the_files_of_a_step_while_it_is_stopped_and_after(server: FrontEnd, page: Page) -> None:
    begin(server, page, "files", "--break \"'rm ' in command\"")
    stopped(page, 3)
    look_at_files(page)
    fork_while_it_is_stopped(page)
    panel(page).get_by_role("button", name="Continue").click()
    events = wait_for_the_end(page)
    assert [event["step"] for event in events if event["kind"] == "forked"] == [1]
    look_at_files(page)


def fork_while_it_is_stopped(page: Page) -> None:
    """By a button, although the kernel is busy with the run."""
    act(page, 1, "Fork")
    expect(step_panel(page, 1).get_by_text("Fork created.")).to_be_visible()
    expect(page.get_by_role("navigation", name="Timeline").get_by_text("Fork of step 1")).to_be_visible()
    stopped(page, 3)


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


def rewind_to(card: Locator, step: int) -> None:
    """By the button of the step's line, after what it undoes was said."""
    act(card.page, step, "Rewind")
    form = card.get_by_role("group", name=f"Rewind to the end of step {step}?")
    expect(form).to_contain_text(
        re.compile(r"Undoes \d+ steps?, restores \d+ files?\. You can undo this\. Running programs end\.")
    )
    form.get_by_role("button", name="Rewind", exact=True).click()


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
    """Back before the mistake by a button, undone by another, a fork; then the notebook's own way to its end."""
    shutil.copytree(ROOT / "notebooks" / "data", server.root / "data", dirs_exist_ok=True)
    shutil.copy(ROOT / "notebooks" / "05-why-agents-fail.ipynb", server.root)
    page.set_viewport_size({"width": 1200, "height": 1600})
    open_notebook(page, server, "05-why-agents-fail.ipynb")
    run_cells(page, 1, 3)
    card = page.locator(".lsn-view").first
    expect(card.locator(".lsn-header .lsn-badge").first).to_have_text("Submitted")
    timeline = card.get_by_role("navigation", name="Timeline")
    rewind_to(card, 4)
    banner = card.get_by_role("group", name="After the rewind")
    expect(banner).to_contain_text(re.compile(r"Steps 5 to \d+ are kept as an earlier attempt\. \d files? w"))
    expect(card.locator(".lsn-header .lsn-badge").first).to_have_text("Ready to continue from step 4")
    now = timeline.get_by_role("group", name="Steps of this attempt")
    expect(now.get_by_role("option", name="Step 5")).to_have_count(0)
    left = timeline.get_by_role("group", name="Earlier attempt after step 4")
    left.get_by_role("option", name="Step 5", exact=False).click()
    shown = card.get_by_role("region", name="Step 5: rewind, fork, files")
    expect(shown.locator(".lsn-code")).to_contain_text("25000000")
    banner.get_by_role("button", name="Undo").click()
    expect(now.get_by_role("option", name="Step 5")).to_have_count(1)
    expect(card.locator(".lsn-header .lsn-badge").first).to_have_text("Submitted")
    act(page, 4, "Fork")
    expect(card.get_by_text("Fork created.")).to_be_visible()
    expect(timeline.get_by_text("Fork of step 4")).to_be_visible()
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-below'); }")
    comparison = page.locator(".jp-OutputArea", has_text="25000000").last
    expect(comparison).to_be_attached()


APPROVALS = """
turns:
  - text: The old logs are not needed any more.
    calls: [{tool: execute_bash, arguments: {command: "mkdir -p logs; touch logs/a; rm -rf logs/ && ls"}}]
  - calls: [{tool: execute_bash, arguments: {command: "echo two > two.txt"}}]
  - calls: [{tool: submit}]
"""


def test_an_approval_says_what_the_command_destroys(server: FrontEnd, page: Page) -> None:
    (server.root / "approvals.yaml").write_text(APPROVALS)
    cell = "%%sandbox -m scripted/./approvals.yaml --approve ask\nTidy up."
    open_notebook(page, server, server.notebook("approve.ipynb", "%load_ext llm_sandbox_nb", cell))
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")
    found = stopped(page, 1)
    expect(page.locator(".lsn-header .lsn-badge")).to_have_text("Waiting for you")
    expect(found.locator(".lsn-banner")).to_contain_text("It deletes files.")
    expect(found.locator(".lsn-held-call mark")).to_have_text(["rm -rf"])
    expect(found).to_contain_text("The old logs are not needed any more.")
    found.get_by_role("button", name="Approve all commands of this run").click()
    events = wait_for_the_end(page)
    assert [event["kind"] for event in events].count("call.held") == 1
    assert [one["source"] for one in events if one["kind"] == "settings.changed"] == ["server"]


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


def card_of(page: Page, server: FrontEnd, name: str, *scripts: str) -> Locator:
    """The card of the first of these cells, when all have run."""
    cells = ["%load_ext llm_sandbox_nb"]
    for number, text in enumerate(scripts):
        (server.root / f"{name}{number}.yaml").write_text(text)
        cells.append(f"%%sandbox -m scripted/./{name}{number}.yaml\nTask {number}.")
    open_notebook(page, server, server.notebook(f"{name}.ipynb", *cells))
    page.set_viewport_size({"width": 1280, "height": 1400})
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")
    expect(page.locator(".lsn-header .lsn-badge")).to_have_text(["Submitted"] * len(scripts))
    return page.locator(".lsn-view").first


def test_a_rewound_run_continues_in_its_card(server: FrontEnd, page: Page) -> None:
    """Plainly, with words to the model, and with another next call; each time undone by a rewind."""
    card = card_of(page, server, "continue", COUNTS)
    badge = card.locator(".lsn-header .lsn-badge").first
    ready = card.get_by_role("group", name="After the rewind")
    rewind_to(card, 1)
    expect(badge).to_have_text("Ready to continue from step 1")
    expect(ready).to_contain_text("Steps 2 to 3 are kept as an earlier attempt. 1 file was restored.")
    ready.get_by_role("button", name="Continue", exact=True).click()
    expect(badge).to_have_text("Submitted")
    expect(ready).to_have_count(0)
    rewind_to(card, 1)
    ready.get_by_role("button", name="Say and continue…").click()
    card.get_by_label("Say something to the model").fill('It\'s {not} "two".')
    card.get_by_role("button", name="Say and continue", exact=True).click()
    expect(badge).to_have_text("Submitted")
    rewind_to(card, 1)
    ready.get_by_role("button", name="Edit next call…").click()
    card.get_by_label("Argument command").fill("echo 'thr''ee' {x} > two.txt; cat two.txt")
    card.get_by_role("button", name="Run the edited call and continue").click()
    expect(badge).to_have_text("Submitted")
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
    expect(badge).to_have_text("Submitted")


def test_a_rewind_shows_what_another_cell_made_before_it_removes_it(server: FrontEnd, page: Page) -> None:
    card = card_of(page, server, "others", COUNTS, OTHER)
    act(page, 1, "Rewind")
    form = card.get_by_role("group", name="Rewind to the end of step 1?")
    expect(form).to_contain_text("Undoes 2 steps, restores 1 file. You can undo this.")
    expect(form).to_contain_text(
        "1 more file was changed since by another run ('Task 1.'). Rewinding undoes this too:"
    )
    expect(form.locator("li")).to_contain_text("other.txt")
    form.get_by_role("button", name="Cancel").click()
    expect(form).to_have_count(0)
    act(page, 1, "Rewind")
    form.get_by_role("button", name="Rewind, and undo these too").click()
    expect(card.locator(".lsn-header .lsn-badge").first).to_have_text("Ready to continue from step 1")
    card.get_by_role("button", name="Undo", exact=True).click()
    expect(card.locator(".lsn-header .lsn-badge").first).to_have_text("Submitted")


def test_discoverability(server: FrontEnd, page: Page) -> None:
    """Rewind, fork, compare and files are at most two clicks from the card, by their labels; keys reach them too."""
    card = card_of(page, server, "discover", COUNTS)
    panel_of_step = step_panel(page, 1)
    for name, reached in (
        ("Rewind", "Rewind to the end of step 1?"),
        ("Files", "one.txt"),
        ("Fork", "Fork created."),
    ):
        line = card.locator(".lsn-step[data-step='1']")
        line.hover()
        expect(line.get_by_text(name, exact=True)).to_be_visible()  # the label itself, no icon
        line.get_by_text(name, exact=True).click()  # the first click
        expect(panel_of_step.get_by_text(reached).first).to_be_visible()
        page.keyboard.press("Escape")
        expect(panel_of_step).to_have_count(0)
    rewind_to(card, 1)
    card.get_by_role("button", name="Continue", exact=True).click()
    expect(card.locator(".lsn-header .lsn-badge").first).to_have_text("Submitted")
    card.get_by_text("Compare attempts", exact=True).click()  # the first click
    expect(card.locator(".lsn-comparison")).to_be_visible()
    card.get_by_text("Compare attempts", exact=True).click()
    by_keyboard(page, card)


def by_keyboard(page: Page, card: Locator) -> None:
    """The same with Tab, Enter and Escape only."""
    card.focus()
    for name, reached in (("Rewind to", "Rewind to the end of step 1?"), ("Files at", "one.txt")):
        tab_to(page, f"{name}")
        page.keyboard.press("Enter")
        expect(step_panel(page, 1).get_by_text(reached).first).to_be_visible()
        page.keyboard.press("Escape")
        expect(step_panel(page, 1)).to_have_count(0)
    card.focus()
    tab_to(page, "Compare attempts")
    page.keyboard.press("Enter")
    expect(card.locator(".lsn-comparison")).to_be_visible()
    tab_to(page, "Fork: a second run")
    page.keyboard.press("Enter")
    expect(step_panel(page, 1).get_by_text("Fork created.")).to_be_visible()


def tab_to(page: Page, name: str) -> None:
    """Press Tab until a button of this name has the focus."""
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
