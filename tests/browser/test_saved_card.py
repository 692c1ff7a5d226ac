"""A saved card shows its run as it was when it was saved, whatever became of the run since."""

from __future__ import annotations

import pytest
from live_cells import BADGE, wait_for_idle
from playwright.sync_api import Page, expect
from servers import FrontEnd, command, open_notebook

SCRIPT = """
turns:
  - calls: [{tool: execute_bash, arguments: {command: "echo one > notes.txt"}}]
  - calls: [{tool: execute_bash, arguments: {command: "echo wrong >> notes.txt"}}]
  - calls: [{tool: execute_bash, arguments: {command: "wc -l notes.txt"}}]
  - text: Two lines.
    calls: [{tool: submit}]
"""
CORRECT = """
result.rewind(2, before="call")
result.edit(command="echo corrected >> notes.txt")
result.resume()
"""


def corrected(server: FrontEnd, page: Page, name: str) -> None:
    """A saved notebook whose second cell corrects the run of the first; its kernel has ended; opened again."""
    (server.root / "wrong.yaml").write_text(SCRIPT)
    cell = "%%sandbox -m scripted/./wrong.yaml -o result\nWrite two lines."
    path = server.notebook(f"{name}.ipynb", "%load_ext llm_sandbox_nb", cell, CORRECT)
    open_notebook(page, server, path)
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")
    expect(page.locator(BADGE)).to_have_count(2)
    expect(page.locator(BADGE).last).to_have_text("Submitted, not checked")
    wait_for_idle(page)
    page.wait_for_function(
        "count => JSON.stringify(jupyterapp.shell.currentWidget.context.model.toJSON()).split('packed').length > count",
        arg=2,
    )
    command(page, "docmanager:save")
    server.jupyter.clear()
    open_notebook(page, server, path, kernel=False)


def expect_commands(page: Page, *words: str) -> None:
    """Wait until the first card shows these commands: the lines of its steps are drawn after the steps are there."""
    page.wait_for_function(
        """words => {
          const steps = [...document.querySelector('.lsn-host').querySelectorAll('.lsn-step')];
          const word = text => ['corrected', 'wrong', 'wc', 'one'].find(one => text.includes(one));
          return words.every((one, place) => one === word(steps[place]?.textContent ?? ''));
        }""",
        arg=words,
    )


@pytest.mark.campaign
def test_a_saved_card_offers_a_newer_attempt_and_does_not_turn_into_it(server: FrontEnd, page: Page) -> None:
    page.set_viewport_size({"width": 1200, "height": 1600})
    corrected(server, page, "corrected")
    card = page.locator(".lsn-host").first
    newer = card.get_by_text("This run has a newer attempt.")
    expect(newer).to_be_visible()
    expect_commands(page, "one", "wrong", "wc")
    with page.expect_response(lambda response: "/history/journal" in response.url):
        card.get_by_role("option", name="Step 1").first.click()
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    expect_commands(page, "one", "wrong", "wc")  # the card is as it was saved
    card.get_by_role("button", name="Show it").click()
    expect(card.locator(".lsn-step", has_text="corrected")).to_be_attached()
    expect_commands(page, "one", "corrected", "wc")
    card.get_by_role("button", name="Show the saved attempt").click()
    expect(newer).to_be_visible()
    expect_commands(page, "one", "wrong", "wc")
