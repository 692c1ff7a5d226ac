"""A page that is loaded again before the notebook was saved: the cards of its runs come back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from live_cells import BADGE, begin, journal, patient, wait_for_idle
from playwright.sync_api import Page, expect
from servers import APPS, FrontEnd, bundles, command, open_notebook
from support import MIME
from waiting import eventually


def reload(server: FrontEnd, page: Page, name: str) -> None:
    """As the browser's button does, whatever is not saved."""
    page.once("dialog", lambda dialog: dialog.accept())
    open_notebook(page, server, f"{name}.ipynb", kernel=False)


def saved_outputs(server: FrontEnd, name: str) -> list[dict[str, Any]]:
    """The outputs of the cell of the run, as the file has them."""
    cells = json.loads((server.root / f"{name}.ipynb").read_text())["cells"]
    outputs: list[dict[str, Any]] = cells[1]["outputs"]
    return outputs


def is_over(server: FrontEnd, name: str) -> bool:
    return any(event["kind"] == "run.finished" for event in journal(server, name))


@pytest.mark.parametrize("server", APPS, indirect=True)
def test_the_card_of_a_live_run_comes_back(server: FrontEnd, page: Page) -> None:
    go = server.root / "go"
    begin(server, page, "unsaved", patient(go))
    expect(page.locator(".lsn-output", has_text="one")).to_be_visible()
    assert saved_outputs(server, "unsaved") == []
    reload(server, page, "unsaved")
    expect(page.locator(".lsn-output", has_text="one")).to_be_visible()
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    expect(page.locator(".jp-InputPrompt").nth(1)).to_have_text("[*]:")
    go.touch()
    expect(page.locator(BADGE)).to_have_text("Submitted")
    wait_for_idle(page)
    expect(page.locator(".lsn-view")).to_have_count(1)
    expect(page.locator(".jp-InputPrompt").nth(1)).to_have_text("[2]:")
    page.wait_for_function(
        """mime => JSON.stringify(jupyterapp.shell.currentWidget.context.model.toJSON()).includes('"packed"')"""
    )
    (record,) = bundles(page)
    assert record["events"][-1]["kind"] == "run.finished"
    command(page, "docmanager:save")
    (output,) = saved_outputs(server, "unsaved")
    assert MIME in output["data"], "what is saved is the whole card"
    assert "three" in "".join(output["data"]["text/html"]), "what is saved is the whole card"


def test_the_card_of_a_run_that_ended_meanwhile_comes_back(server: FrontEnd, page: Page) -> None:
    go = server.root / "go-meanwhile"
    begin(server, page, "meanwhile", patient(go))
    expect(page.locator(".lsn-output", has_text="one")).to_be_visible()
    page.once("dialog", lambda dialog: dialog.accept())
    page.goto("about:blank")
    go.touch()
    assert eventually(page, lambda: is_over(server, "meanwhile"))
    reload(server, page, "meanwhile")
    expect(page.locator(BADGE)).to_have_text("Submitted")
    page.wait_for_function(
        """mime => JSON.stringify(jupyterapp.shell.currentWidget.context.model.toJSON()).includes('"packed"')"""
    )
    (record,) = bundles(page)
    assert record["events"][-1]["kind"] == "run.finished"


def test_a_card_that_was_cleared_and_saved_stays_away(server: FrontEnd, page: Page) -> None:
    go = server.root / "go-cleared"
    go.touch()
    begin(server, page, "cleared", patient(go))
    expect(page.locator(BADGE)).to_have_text("Submitted")
    wait_for_idle(page)
    command(page, "notebook:clear-all-cell-outputs")
    command(page, "docmanager:save")
    with page.expect_response(lambda response: response.url.split("?")[0].endswith("/api/runs")) as asked:
        open_notebook(page, server, "cleared.ipynb")
    assert [run["state"] for run in asked.value.json()["runs"]][-1] == "finished"
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    expect(page.locator(".lsn-view")).to_have_count(0)
