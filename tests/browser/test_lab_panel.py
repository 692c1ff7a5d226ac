"""The side panel, the toolbar's button, the commands and the settings, in JupyterLab and Notebook 7."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe import violations
from chromium import PlaywrightLoop
from live_cells import BADGE, begin
from playwright.sync_api import Locator, Page, expect
from servers import FrontEnd, command, open_notebook, show_panel
from shared_sandboxes import ISOLATION_PARAMS
from support import require
from waiting import eventually

SCRIPT = """
turns:
  - calls: [{tool: execute_bash, arguments: {command: "mkdir -p output/deep; echo inside > output/deep/note.txt"}}]
  - text: Done.
    calls: [{tool: submit}]
"""
TASK = "Write the task here."
SETTINGS = {"model": "scripted/./it's.yaml", "isolation": "process", "steps": 7, "time": "10m"}


@pytest.fixture
def server(server: FrontEnd) -> Iterator[FrontEnd]:
    server.jupyter.set("llm-sandbox-nb/plugin", SETTINGS)
    (server.root / "it's.yaml").write_text(SCRIPT)
    yield server
    server.jupyter.set("llm-sandbox-nb/plugin", None)


def set_theme(page: Page, theme: str) -> None:
    page.evaluate("theme => jupyterapp.commands.execute('apputils:change-theme', { theme })", theme)
    page.wait_for_function("theme => document.body.dataset.jpThemeName === theme", arg=theme)


def wait_for_cells(page: Page, *sources: str) -> None:
    page.wait_for_function(
        """sources => {
          const cells = jupyterapp.shell.currentWidget.context.model.toJSON().cells;
          const last = cells.slice(-sources.length).map(cell => [cell.source].flat().join(''));
          return JSON.stringify(last) === JSON.stringify(sources);
        }""",
        arg=sources,
    )


def test_the_button_inserts_a_cell_as_the_settings_say(server: FrontEnd, page: Page) -> None:
    open_notebook(page, server, server.notebook("insert.ipynb", "1 + 1"))
    button = page.locator("[data-command='llm-sandbox:insert-cell']").first
    expect(button).to_be_visible()
    button.click()
    page.wait_for_function(
        f"() => String(getSelection()) === '{TASK}' && document.activeElement.closest('.cm-content')"
    )
    line = """%%sandbox -m 'scripted/./it'"'"'s.yaml' --isolation process --steps 7 --time 10m"""
    before = ("1 + 1", "%load_ext llm_sandbox_nb")
    wait_for_cells(page, *before, f"{line}\n{TASK}")
    page.keyboard.type("Say hello")
    wait_for_cells(page, *before, f"{line}\nSay hello")  # the placeholder was selected
    page.keyboard.press("Escape")
    page.keyboard.press("Shift+S")
    wait_for_cells(page, *before, f"{line}\nSay hello", f"{line}\n{TASK}")  # the extension is loaded once
    command(page, "notebook:run-all-cells")
    expect(page.locator(".lsn-header .lsn-badge").first).to_have_text("Submitted, not checked")


@pytest.mark.campaign
def test_a_model_is_chosen_in_the_panel(server: FrontEnd, page: Page) -> None:
    cell = "%%sandbox\nHow many?"
    open_notebook(page, server, server.notebook("choose.ipynb", "%load_ext llm_sandbox_nb", cell))
    show_panel(page)
    picker = page.locator(".lsn-panel-model")
    picker.locator("summary").click()
    expect(picker.get_by_role("alert")).to_have_text("First run %load_ext llm_sandbox_nb in this notebook.")
    picker.locator("summary").click()
    page.evaluate("() => { jupyterapp.shell.currentWidget.content.activeCellIndex = 0; }")
    command(page, "notebook:run-cell")
    picker.locator("summary").click()
    expect(picker.locator("summary")).to_have_text("Model: none is chosen")
    expect(picker.locator("option[value='scripted/strawberry']")).to_have_count(1)
    picker.get_by_label("Model").fill("scripted/no-such")
    picker.get_by_role("button", name="Use").click()
    expect(picker.get_by_role("alert")).to_contain_text("There is no script")
    picker.get_by_label("Model").fill("scripted/strawberry")
    picker.get_by_role("button", name="Use").click()
    expect(picker.get_by_role("status")).to_contain_text(
        "Cells of this notebook now use scripted/strawberry."
    )
    expect(picker.locator("summary")).to_have_text("Model: scripted/strawberry")
    command(page, "notebook:run-all-cells")
    expect(page.locator(".lsn-header .lsn-badge").first).to_have_text("Submitted, not checked")


def test_the_panel_shows_the_sandbox_and_its_files(server: FrontEnd, page: Page, tmp_path: Path) -> None:
    cell = """%%sandbox -m "scripted/./it's.yaml"\nGo."""
    open_notebook(page, server, server.notebook("panel.ipynb", "%load_ext llm_sandbox_nb", cell))
    show_panel(page)
    panel = page.get_by_role("region", name="Sandboxes")
    command(page, "notebook:run-all-cells")
    section = panel.get_by_role("region", name=f"Sandbox of {server.path('panel.ipynb')}")
    expect(section.locator(".lsn-badge")).to_have_text("idle")
    expect(section.get_by_text("process, not isolated · network: open")).to_be_visible()
    expect(section.get_by_text("output/ 1")).to_be_visible()
    expect(section.get_by_text("Does not protect")).not_to_be_visible()
    section.get_by_role("button", name="More about this sandbox").click()
    expect(section.get_by_text("Does not protect")).to_be_visible()
    expect(section.get_by_role("group", name="Memory").locator("output")).to_contain_text("MB")
    expect(section.get_by_role("group", name="CPU").locator("output")).to_contain_text("%")
    expect(panel.get_by_role("region", name="Runs of this notebook").get_by_role("listitem")).to_have_count(1)
    section.get_by_text("Outside agents (MCP)").click()
    section.get_by_role("button", name="Make a token").click()
    lines = section.get_by_label("How to connect, shown once")
    expect(lines).to_have_value(re.compile("claude mcp add .* Bearer lsnb_"))
    panel.locator(".lsn-panel-model > summary").click()
    expect(panel.locator(".lsn-panel-model > summary")).to_have_text(re.compile("^Model: "))
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        set_theme(page, theme)
        assert violations(page, ".lsn-panel") == []
    if server.app == "lab":
        expect(page.locator(".lsn-status")).to_have_text("Sandbox: process, idle")
    section.get_by_role("button", name="Revoke").click()
    expect(lines).to_be_hidden()
    files_of(page, section, tmp_path)
    note = section.get_by_role("button", name="note.txt", exact=True)
    if server.app == "lab":
        note.click()
        expect(page.locator(".lsn-preview")).to_contain_text("inside")
    else:  # Notebook 7 has one document to a page
        with page.expect_download() as started:
            note.click()
        assert Path(started.value.path()).read_bytes() == b"inside\n"
    section.get_by_role("button", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    expect(section).to_have_count(0)
    path = server.path("panel.ipynb")
    assert eventually(page, lambda: path not in [one["notebook"] for one in server.jupyter.sandboxes()])


def files_of(page: Page, section: Locator, tmp_path: Path) -> None:
    section.get_by_text("Files", exact=True).click()
    section.get_by_role("button", name="output/").click()
    section.get_by_role("button", name="deep/").click()
    expect(section.locator(".lsn-files-place")).to_have_text("testbed/output/deep")
    expect(section.get_by_role("button", name="note.txt", exact=True)).to_be_visible()
    given = tmp_path / "given <b>.csv"
    given.write_bytes(b"a,b\n1,2\n")
    section.locator("input[type=file]").set_input_files(str(given))
    expect(section.get_by_role("button", name=given.name, exact=True)).to_be_visible()
    drop(page, "dropped.txt", "by hand")
    expect(section.get_by_role("button", name="dropped.txt", exact=True)).to_be_visible()
    with page.expect_download() as started:
        section.get_by_role("button", name=f"Download {given.name}").click()
    assert Path(started.value.path()).read_bytes() == b"a,b\n1,2\n"


def drop(page: Page, name: str, text: str) -> None:
    page.evaluate(
        """([name, text]) => {
          const data = new DataTransfer();
          data.items.add(new File([text], name));
          const options = { dataTransfer: data, bubbles: true, cancelable: true };
          document.querySelector('.lsn-files').dispatchEvent(new DragEvent('drop', options));
        }""",
        [name, text],
    )


MEGABYTES = 200
BUSY = f"""
turns:
  - calls:
      - tool: execute_bash
        arguments:
          command: |
            echo begun
            python3 -c '
            kept = b"x" * ({MEGABYTES} << 20)
            while True: pass
            '
  - calls: [{{tool: submit}}]
"""


def number(section: Locator, name: str, unit: str) -> float:
    text = section.get_by_role("group", name=name).locator("output").text_content() or ""
    found = re.fullmatch(rf"([\d.,]+) ?{unit}", text.strip())
    return float(found[1].replace(",", "")) if found else 0.0


def wait_until(page: Page, section: Locator, name: str, unit: str, low: float, high: float) -> None:
    there = eventually(page, lambda: low <= number(section, name, unit) <= high)
    assert there, f"{name} is {number(section, name, unit)} {unit}, not {low} to {high}"


@pytest.mark.campaign
@pytest.mark.parametrize("server", ["lab"], indirect=True)
@pytest.mark.parametrize("isolation", ISOLATION_PARAMS)
def test_the_graphs_tell_what_a_sandbox_uses(server: FrontEnd, page: Page, isolation: str) -> None:
    with PlaywrightLoop.aside():
        require(isolation)
    begin(server, page, "busy", BUSY, options=f"--isolation {isolation}")
    show_panel(page)
    expect(page.locator(".lsn-output", has_text="begun")).to_be_visible()
    section = page.get_by_role("region", name=f"Sandbox of {server.path('busy.ipynb')}", exact=True)
    expect(section.locator(".lsn-badge")).to_have_text("running step 1")
    section.get_by_role("button", name="More about this sandbox").click()
    wait_until(page, section, "Memory", "MB", MEGABYTES, 3 * MEGABYTES)
    wait_until(page, section, "CPU", "%", 5, 400)
    page.wait_for_function(
        "() => document.querySelector('.lsn-graph polyline')?.getAttribute('points')?.split(' ').length >= 3"
    )
    page.locator(".lsn-view").get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator(BADGE)).to_have_text("Stopped by you")
    wait_until(page, section, "Memory", "MB", 1, MEGABYTES)
    wait_until(page, section, "CPU", "%", 0, 4)
    section.get_by_text("Files", exact=True).click()
    expect(section.get_by_text("output/", exact=True)).to_be_visible()
    drop(page, "dropped.txt", "by hand")
    with page.expect_download() as started:
        section.get_by_role("button", name="Download dropped.txt").click()
    assert Path(started.value.path()).read_bytes() == b"by hand"
