"""The static page in front ends that have no extension of ours: NbClassic, and what VS Code makes of an output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from card_runs import card_of, run_events, saved_file
from live_cells import patient
from playwright.sync_api import Browser, Page, expect
from servers import FrontEnd, Jupyter
from versions import nbclassic

HEAD = ".lsn-head"


class NbClassic(Jupyter):
    """A server that shows notebooks as before Notebook 7."""

    module = "nbclassic"
    without = ("jupyterlab", "jupyter_lsp", "notebook")


@pytest.mark.campaign
def test_nbclassic_shows_the_run_as_it_goes_and_its_end_after_a_reload(page: Page, tmp_path: Path) -> None:
    server = NbClassic(tmp_path, python=nbclassic())
    go = server.root / "go"
    (server.root / "wait.yaml").write_text(patient(go))
    cells = ["%load_ext llm_sandbox_nb", "%%sandbox -m scripted/./wait.yaml\nGo on."]
    try:
        server.start()
        path = FrontEnd(server).notebook("classic.ipynb", *cells)
        page.goto(f"{server.url}nbclassic/notebooks/{path}?token={server.token}")
        page.wait_for_function("() => window.Jupyter?.notebook?.kernel?.is_connected()")
        page.evaluate("() => { Jupyter.notebook.execute_all_cells(); }")
        expect(page.locator(HEAD)).to_contain_text(re.compile("Running . step 2"))
        expect(page.get_by_text("Interrupt the cell to stop the run.")).to_be_visible()
        go.touch()
        expect(page.locator(HEAD)).to_contain_text("Submitted")
        page.wait_for_function("() => !Jupyter.notebook.kernel_busy")
        page.evaluate("() => Jupyter.notebook.save_notebook()")
        page.reload()
        expect(page.locator(HEAD)).to_contain_text("Submitted")
        expect(page.locator(HEAD)).to_have_count(1)
        expect(page.get_by_text("Running")).to_have_count(0)
    finally:
        server.stop()


VSCODE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src https: http: data:; font-src https:; connect-src https:; child-src https: data:"
)
"""Of the page in which VS Code shows outputs, when `notebook.experimental.enableCsp` is on; else it has none."""
VSCODE_ORDER = ("application/json", "application/javascript", "text/html", "image/svg+xml", "text/plain")
"""What it shows of an output first; a type for which it has no renderer is passed over."""


@pytest.mark.parametrize("theme", ["vscode-light", "vscode-dark"])
def test_vscode_shows_the_static_page_of_a_saved_run(browser: Browser, theme: str, tmp_path: Path) -> None:
    """As its renderer of HTML does: the text becomes an element's content, in a page with this policy and theme."""
    page_of_model = b"<h1>Map</h1><script>document.body.append('ran')</script>"
    events = run_events(3, answer="It is **Tokyo**.")
    events[-1:-1] = [saved_file(tmp_path, "map.html", page_of_model)]
    data = card_of(events, folder=tmp_path).final()
    assert next(kind for kind in VSCODE_ORDER if kind in data) == "text/html"
    page = browser.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    policy = f'<meta http-equiv="Content-Security-Policy" content="{VSCODE_POLICY}">'
    page.set_content(f"<html><head>{policy}</head><body class='{theme}'><div id='out'></div></body></html>")
    page.evaluate("html => { document.getElementById('out').innerHTML = html; }", data["text/html"])
    expect(page.locator(HEAD)).to_contain_text("Submitted")
    expect(page.locator(".lsn-answer strong")).to_have_text("Tokyo")
    expect(page.locator(".lsn-row")).to_have_count(3)
    page.locator(".lsn-artifact summary").click()
    framed = page.frame_locator(".lsn-artifact iframe")
    framed.get_by_role("button", name="Run this page").click()
    expect(framed.frame_locator("iframe").locator("body")).to_contain_text("ran")
    dark = page.locator(".lsn").evaluate("node => getComputedStyle(node).backgroundColor")
    assert (dark == "rgb(255, 255, 255)") == (theme == "vscode-light")
    assert problems == []
    page.close()
