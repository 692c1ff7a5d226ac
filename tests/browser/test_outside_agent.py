"""A scripted outside agent in an open notebook: a live card, Approve and Stop, and what the saved notebook keeps."""

from __future__ import annotations

import pytest
from outside_agents import PlainClient
from playwright.sync_api import Page, expect
from servers import FrontEnd, bundles, command, open_notebook
from waiting import eventually


@pytest.mark.open_lab
def test_an_outside_agent_is_watched_approved_and_stopped(server: FrontEnd, page: Page) -> None:
    first = "%load_ext llm_sandbox_nb\n%config SandboxMagics.isolation = 'process'"
    name = server.notebook("outside.ipynb", first, "%sandbox mcp --approve ask", "print(6 * 7)")
    page.set_viewport_size({"width": 1280, "height": 1400})
    open_notebook(page, server, name)
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")
    field = page.locator("textarea[disabled]").first
    expect(field).to_be_visible(timeout=60_000)
    token = field.input_value().split("Bearer ")[1].split('"')[0]
    expect(
        page.locator(".jp-OutputArea-output", has_text="42").first
    ).to_be_visible()  # the cell has ended at once

    agent = PlainClient(server.jupyter.url, token)
    waiting = agent.tool("run_command", command="echo from-outside > o.txt; cat o.txt", wait=0.5)
    panel = page.locator(".lsn-stop-panel")
    expect(panel.locator(".lsn-banner")).to_contain_text("Step 1.")
    panel.get_by_role("button", name="Approve", exact=True).click()
    done = agent.tool("wait_command", command_id=waiting["data"]["command_id"])
    assert done["data"]["stdout"] == "from-outside\n"
    expect(page.locator(".lsn-view .lsn-step[data-step='1']").first).to_contain_text("o.txt")

    second = agent.tool("run_command", command="echo never", wait=0.5)
    expect(panel.locator(".lsn-banner")).to_contain_text("Step 2.")
    panel.get_by_role("button", name="Stop", exact=True).click()
    ended = agent.tool("wait_command", command_id=second["data"]["command_id"])
    assert ended["error"]
    assert eventually(page, lambda: "run.finished" in str(bundles(page)))
    command(page, "docmanager:save")
    assert eventually(page, lambda: "from-outside" in (server.root / name).read_text())
    assert token not in (server.root / name).read_text()
