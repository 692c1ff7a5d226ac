"""The panel in the cell, in a real JupyterLab whose server has no part of ours and whose page has none either."""

from __future__ import annotations

import base64
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from servers import FrontEnd, Jupyter, bundles, command, open_notebook
from support import own_mark
from versions import IPYKERNELS, ipykernel

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SCRIPT = f"""
turns:
  - text: "I **begin**."
    calls: [{{tool: execute_bash, arguments: {{command: "echo one; echo {PNG} | base64 -d > output/dot.png"}}}}]
  - calls: [{{tool: execute_bash, arguments: {{command: "echo two; until [ -e GO ]; do sleep 0.1; done; echo last"}}}}]
  - calls: [{{tool: execute_bash, arguments: {{command: "sleep WAIT"}}}}]
  - calls: [{{tool: submit}}]
"""


class WithoutServerPart(Jupyter):
    """As a person has it who installed the package for the kernel alone."""

    answers_at = "api/status"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontEnd]:
    options = ("--ServerApp.jpserver_extensions=llm_sandbox_nb=False",)
    running = WithoutServerPart(tmp_path_factory.mktemp("bare"), extension=False, options=options)
    try:
        running.start()
        assert running.ask("llm-sandbox/api/info")[0] == 404
        yield FrontEnd(running)
    finally:
        running.stop()


def begin(server: FrontEnd, page: Page, name: str, wait: str = "1", kernel: str = "python3") -> Path:
    """Run the script, whose third step waits so many seconds; gives the file that its second step waits for."""
    go = server.root / f"{name}.go"
    (server.root / f"{name}.yaml").write_text(SCRIPT.replace("WAIT", wait).replace("GO", str(go)))
    cell = f"%%sandbox -m scripted/./{name}.yaml\nGo on."
    path = server.notebook(f"{name}.ipynb", "%load_ext llm_sandbox_nb", cell, kernel=kernel)
    open_notebook(page, server, path)
    assert page.evaluate("() => !jupyterapp.hasPlugin('llm-sandbox-nb:live')")
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")
    return go


def test_a_run_is_seen_live_and_kept_as_a_card(server: FrontEnd, page: Page) -> None:
    go = begin(server, page, "seen")
    view = page.locator(".lsn-view")
    badge = page.locator(".lsn-header .lsn-badge")
    expect(view.locator(".lsn-output", has_text="one")).to_be_visible()
    expect(badge).to_have_text(re.compile("^Running"))
    expect(view.locator(".lsn-thought strong")).to_have_text("begin")
    output = view.locator(".lsn-output", has_text="two")
    expect(output).to_be_visible()
    expect(output).not_to_contain_text("last")  # as it streams
    page.wait_for_function("() => document.querySelector('.lsn-artifact img')?.naturalWidth === 1")
    go.touch()
    expect(page.locator(".lsn")).to_contain_text("Submitted")
    expect(view).to_have_count(0)
    (record,) = bundles(page)
    assert record["events"][-1]["stop_reason"] == "submitted"
    assert "last" in str(record["events"])
    assert base64.b64decode(record["artifacts"]["dot.png"]["data"]) == base64.b64decode(PNG)
    command(page, "docmanager:save")
    saved = (server.root / "seen.ipynb").read_text()
    assert "widget-view" not in saved
    assert len(saved) < 40_000, "the widget's state is not kept"


SUBSHELLS = "@jupyterlab/apputils-extension/kernels-settings"


@pytest.mark.campaign
@pytest.mark.parametrize(
    "version", [None, *(pytest.param(one, marks=pytest.mark.campaign) for one in IPYKERNELS if one > "7")]
)
def test_the_stop_button_ends_a_command_in_a_busy_cell(
    server: FrontEnd, page: Page, version: str | None
) -> None:
    """In the installed ipykernel and in those of other rules, where the page speaks on a subshell, as Lab does."""
    kernel = f"ipykernel-{version}" if version else "python3"
    if version:
        server.jupyter.add_kernel(kernel, ipykernel(version))
    begin(server, page, f"heard-{version}", own_mark(), kernel).touch()
    expect(page.locator(".lsn-step")).to_have_count(3)
    page.get_by_role("button", name="Stop", exact=True).click(timeout=60_000)
    expect(page.get_by_text("Interrupt the cell to stop the run.")).to_have_count(0)
    expect(page.locator(".lsn")).to_contain_text("Stopped by you")


@pytest.fixture
def one_shell(server: FrontEnd) -> Iterator[None]:
    """Pages that do not speak on subshells, as in ipykernel 6, which has none."""
    server.jupyter.set(SUBSHELLS, {"commsOverSubshells": "disabled"})
    yield
    server.jupyter.set(SUBSHELLS, None)


@pytest.mark.campaign
@pytest.mark.usefixtures("one_shell")
def test_a_kernel_that_hears_nothing_shows_no_buttons_and_says_how_to_stop(
    server: FrontEnd, page: Page
) -> None:
    begin(server, page, "deaf", own_mark()).touch()
    expect(page.locator(".lsn-output", has_text="one")).to_be_visible()
    expect(page.get_by_text("Interrupt the cell to stop the run.")).to_be_visible()
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    expect(page.locator(".lsn-step")).to_have_count(3)
    badge = page.locator(".lsn-header .lsn-badge")
    expect(badge).to_have_text(re.compile("^Running"))
    kernel = page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.id")
    pid = server.jupyter.kernel_pid(kernel)
    assert pid
    os.kill(pid, signal.SIGSTOP)
    try:
        expect(badge).to_have_text("The kernel is silent")
    finally:
        os.kill(pid, signal.SIGCONT)
    expect(badge).to_have_text(re.compile("^Running"))
    page.evaluate("() => { jupyterapp.shell.currentWidget.sessionContext.session.kernel.interrupt(); }")
    expect(page.locator(".lsn")).to_contain_text("Stopped by you")
