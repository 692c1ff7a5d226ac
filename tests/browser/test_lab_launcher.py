"""The launcher's card: a notebook with the ten examples, in the folder that the file browser shows."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect
from servers import FrontEnd, command, open_notebook, wait_for_kernel

from llm_sandbox_nb.examples.notebook import examples_notebook

CELLS = [cell["source"] for cell in examples_notebook()["cells"]]
MAP = CELLS.index('files = EXAMPLES["map"].inputs / "*"')


def sources(page: Page) -> list[str]:
    found: list[str] = page.evaluate(
        "() => jupyterapp.shell.currentWidget.context.model.toJSON().cells.map(cell => [cell.source].flat().join(''))"
    )
    return found


def run_cells(page: Page, *places: int) -> None:
    for place in places:
        page.evaluate("place => { jupyterapp.shell.currentWidget.content.activeCellIndex = place; }", place)
        command(page, "notebook:run-cell")


@pytest.mark.campaign
@pytest.mark.parametrize("server", ["lab"], indirect=True)
def test_the_card_opens_ten_examples_that_run(server: FrontEnd, page: Page) -> None:
    open_notebook(page, server, server.notebook("before.ipynb", "1 + 1"))
    page.evaluate(
        "cwd => jupyterapp.commands.execute('launcher:create', { cwd }).then(() => null)", server.folder
    )
    card = page.locator(".jp-LauncherCard", has_text="Ten examples")
    expect(card).to_be_visible()
    expect(page.locator(".jp-Launcher-sectionTitle", has_text="Sandbox")).to_be_visible()
    card.click()
    page.wait_for_function("() => jupyterapp.shell.currentWidget?.context?.path.endsWith('Untitled.ipynb')")
    path = page.evaluate("() => jupyterapp.shell.currentWidget.context.path")
    assert path == server.path("Untitled.ipynb")
    page.wait_for_function("() => jupyterapp.shell.currentWidget.context.isReady")
    assert sources(page) == CELLS
    wait_for_kernel(page)
    run_cells(page, 1, MAP, MAP + 1, MAP + 2)
    notebook = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
    expect(notebook.locator(".lsn-header .lsn-badge").first).to_have_text("Submitted, not checked")
    expect(notebook.get_by_text("The result is right.", exact=True)).to_be_visible()
    assert not page.get_by_role("dialog").count()


@pytest.mark.campaign
def test_the_palette_s_command_makes_it_too(server: FrontEnd, page: Page) -> None:
    open_notebook(page, server, server.notebook("before.ipynb", "1 + 1"))
    label = page.evaluate("() => jupyterapp.commands.label('llm-sandbox:examples', { isPalette: true })")
    assert label == "New Notebook with Ten Examples"
    page.evaluate(
        "cwd => jupyterapp.commands.execute('llm-sandbox:examples', { cwd }).then(() => null)", server.folder
    )
    made = server.root / "Untitled.ipynb"
    assert made.is_file()
    assert "Ten examples" in made.read_text()
