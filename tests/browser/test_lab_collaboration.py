"""A notebook that several people have open at once: each sees the one card of a run, and the file holds one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from failures import new_window
from live_cells import BADGE, wait_for_idle
from nbconvert import HTMLExporter
from playwright.sync_api import Browser, Page, expect
from servers import FrontEnd, jupyter, open_notebook, wait_for_kernel
from support import MIME
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
    with new_window(browser) as one, new_window(browser) as two:
        yield one.new_page(), two.new_page()


def cards_on_disk(server: FrontEnd, name: str) -> list[dict[str, Any]]:
    """What the saved notebook holds of runs: the output's data with its record."""
    cells = json.loads((server.root / f"{name}.ipynb").read_text())["cells"]
    found = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    return [data for data in found if MIME in data]


def rename(page: Page, name: str) -> None:
    page.evaluate("name => jupyterapp.shell.currentWidget.context.rename(name)", f"{name}.ipynb")


def restart_kernel(page: Page) -> None:
    page.evaluate("() => jupyterapp.shell.currentWidget.context.sessionContext.restartKernel()")
    wait_for_kernel(page)


def assert_one_card(server: FrontEnd, everybody: tuple[Page, ...], name: str, words: str) -> None:
    """Each page shows one card that has ended in this way, and so do the file and nbconvert's page of it."""
    for page in everybody:
        expect(page.locator(BADGE)).to_have_text(words)
        expect(page.locator(".lsn-view")).to_have_count(1)
        for button in ("Pause", "Stop"):
            expect(page.get_by_role("button", name=button, exact=True)).to_have_count(0)
    page = everybody[0]
    assert eventually(page, lambda: [one for one in cards_on_disk(server, name) if "live" not in one[MIME]])
    (card,) = cards_on_disk(server, name)
    assert "".join(card["text/plain"]).startswith(words)
    shown, _ = HTMLExporter().from_filename(str(server.root / f"{name}.ipynb"))
    (head,) = re.findall(r"<div class=.lsn-head.>.*?</b>", shown)
    assert words in head


def started(server: FrontEnd, page: Page, peer: Page, name: str) -> Path:
    """Both have the notebook open, one runs its cell; the file that lets its step end."""
    go = server.root / f"go-{name}"
    (server.root / f"{name}.yaml").write_text(WAITS.replace("GO", str(go)))
    cell = f"%%sandbox -m scripted/./{name}.yaml\nGo on."
    path = server.notebook(f"{name}.ipynb", "%load_ext llm_sandbox_nb", cell)
    open_notebook(peer, server, path)
    open_notebook(page, server, path)
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")
    expect(page.locator(".lsn-output", has_text="two")).to_be_visible()
    return go


def test_three_people_see_one_card(server: FrontEnd, page: Page, others: tuple[Page, Page]) -> None:
    peer, late = others
    go = started(server, page, peer, "shared")
    open_notebook(late, server, "shared.ipynb", kernel=False)  # the kernel answers when the cell is done
    everybody = (page, peer, late)
    for one in everybody:
        expect(one.locator(BADGE)).to_have_text(re.compile("^Running"))
        expect(one.locator(".lsn-view")).to_have_count(1)
        expect(one.get_by_role("button", name="Stop", exact=True)).to_have_count(1)
    go.touch()
    for one in everybody:
        expect(one.locator(BADGE)).to_have_text("Submitted, not checked")
    wait_for_idle(page)
    assert_one_card(server, everybody, "shared", "Submitted")

    rename(peer, "renamed")
    open_notebook(late, server, "renamed.ipynb")
    restart_kernel(page)
    assert_one_card(server, everybody, "renamed", "Submitted")
    runs = page.evaluate(
        """async () => {
          const { kernel } = jupyterapp.shell.currentWidget.context.sessionContext.session;
          let said = '';
          const code = '%load_ext llm_sandbox_nb\\n%sandbox runs';
          const asked = kernel.requestExecute({ code, store_history: false });
          asked.onIOPub = message => (said += JSON.stringify(message.content));
          await asked.done;
          return said;
        }"""
    )
    assert "Submitted" in runs


@pytest.mark.parametrize("first", ["rename", "reload"])
def test_a_run_that_ends_with_its_kernel_says_so_to_everybody(
    server: FrontEnd, page: Page, others: tuple[Page, Page], first: str
) -> None:
    peer, late = others
    name = f"cut-{first}"
    started(server, page, peer, name)
    if first == "rename":
        rename(peer, name := f"{name}-renamed")
    else:
        open_notebook(page, server, f"{name}.ipynb", kernel=False)
    expect(page.locator(BADGE)).to_have_text(re.compile("^Running"))
    restart_kernel(peer)
    open_notebook(late, server, f"{name}.ipynb")
    # A restart interrupts the cell, as a person's stop does, and kills the kernel if that takes too long.
    expect(page.locator(BADGE)).to_have_text(re.compile("^(Stopped by you|Cut off at step 1)$"))
    assert_one_card(server, (page, peer, late), name, page.locator(BADGE).inner_text())
