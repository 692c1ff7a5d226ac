"""A card that was saved, or brought back, as it was while its run went on: it says how the run ended, on disk too."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from live_cells import BADGE, ENDLESS, begin, patient
from playwright.sync_api import Page, expect
from servers import FrontEnd, bundles, command, open_notebook
from support import MIME
from waiting import eventually

pytestmark = pytest.mark.campaign


def saved(server: FrontEnd, page: Page, name: str) -> dict[str, Any]:
    command(page, "docmanager:save")
    cells = json.loads((server.root / f"{name}.ipynb").read_text())["cells"]
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    (card,) = [data for data in outputs if MIME in data]
    return card


def test_a_cell_that_was_deleted_in_its_run_and_brought_back(server: FrontEnd, page: Page) -> None:
    go = server.root / "go-back"
    begin(server, page, "back", patient(go))
    expect(page.locator(".lsn-output", has_text="two")).to_be_visible()
    page.evaluate(
        """() => {
          const notebook = jupyterapp.shell.currentWidget.content;
          notebook.activeCellIndex = notebook.widgets.length - 1;
          notebook.deselectAll();
        }"""
    )
    command(page, "notebook:delete-cell")
    expect(page.locator(".lsn-view")).to_have_count(0)
    go.touch()
    journal = lambda: next((server.root / "sandbox-runs" / "back").glob("*/journal.jsonl")).read_text()  # noqa: E731
    assert eventually(page, lambda: "run.finished" in journal())
    command(page, "notebook:undo-cell-action")
    expect(page.locator(BADGE)).to_have_text("Submitted, not checked")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    assert eventually(page, lambda: "live" not in str(list(bundles(page)[0])))
    assert "Submitted" in str(saved(server, page, "back")["text/plain"])


def test_a_notebook_that_was_saved_in_a_run_and_reopened_after_the_server_ended(
    server: FrontEnd, page: Page
) -> None:
    begin(server, page, "saved", ENDLESS)
    expect(page.locator(".lsn-output", has_text="begun")).to_be_visible()
    command(page, "docmanager:save")
    server.jupyter.kill()
    server.jupyter.start()
    open_notebook(page, server, "saved.ipynb", kernel=False)
    expect(page.locator(BADGE)).to_have_text(re.compile("^Cut off at step"))
    for name in ("Pause", "Stop"):
        expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
    assert eventually(page, lambda: "live" not in str(list(bundles(page)[0])))
    assert re.match("Cut off at step", str(saved(server, page, "saved")["text/plain"][0:40]).lstrip("['"))
