"""A notebook that several people have open at once: each sees the one card of a run, and the file holds one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from failures import new_window
from live_cells import BADGE, wait_for_idle
from playwright.sync_api import Browser, Page, expect
from servers import FrontEnd, jupyter, open_notebook
from support import MIME, record_of
from versions import shared_notebooks
from waiting import eventually

pytestmark = pytest.mark.campaign
WAITS = """
turns:
  - calls: [{tool: execute_bash, arguments: {command: "echo two; until [ -e GO ]; do sleep 0.1; done", timeout: 900}}]
  - calls: [{tool: submit}]
"""
"""Its step waits for a file, for as long as three pages need on a busy machine."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontEnd]:
    folder = tmp_path_factory.mktemp("shared")
    (folder / "data").mkdir()  # the server keeps the ids of files there
    with jupyter(folder, python=shared_notebooks()) as running:
        running.set(
            "@jupyterlab/docmanager-extension/plugin", None
        )  # the server saves it, unless a page asks not to
        yield FrontEnd(running)


@pytest.fixture
def others(browser: Browser) -> Iterator[tuple[Page, Page]]:
    """The pages of two other people."""
    with new_window(browser) as one, new_window(browser) as two:
        yield one.new_page(), two.new_page()


def cards_on_disk(server: FrontEnd, name: str) -> list[dict[str, Any]]:
    """What the saved notebook holds of runs: the output's data with its record."""
    cells = json.loads((server.root / f"{name}.ipynb").read_text())["cells"]
    found = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    return [data for data in found if MIME in data]


def test_three_people_see_one_card(server: FrontEnd, page: Page, others: tuple[Page, Page]) -> None:
    peer, late = others
    go = server.root / "go-shared"
    (server.root / "script.yaml").write_text(WAITS.replace("GO", str(go)))
    cell = "%%sandbox -m scripted/./script.yaml\nGo on."
    path = server.notebook("shared.ipynb", "%load_ext llm_sandbox_nb", cell)
    open_notebook(peer, server, path)
    open_notebook(page, server, path)
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")
    expect(page.locator(".lsn-output", has_text="two")).to_be_visible()
    open_notebook(late, server, path, kernel=False)  # the kernel answers when the cell is done
    everybody = (page, peer, late)
    for one in everybody:
        expect(one.locator(BADGE)).to_have_text(re.compile("^Running"))
        expect(one.locator(".lsn-view")).to_have_count(1)
        expect(one.get_by_role("button", name="Stop", exact=True)).to_have_count(1)
    go.touch()
    for one in everybody:
        expect(one.locator(BADGE)).to_have_text("Submitted, not checked")
    wait_for_idle(page)
    assert eventually(page, lambda: "Submitted" in str(cards_on_disk(server, "shared")))
    for one in everybody:
        expect(one.locator(".lsn-view")).to_have_count(1)
    (card,) = cards_on_disk(server, "shared")
    assert record_of(card)["events"][-1]["stop_reason"] == "submitted"
