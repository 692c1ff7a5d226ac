"""A run's card in a real JupyterLab while its server cannot be reached, and when it can be again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect
from servers import PATIENCE, FrontEnd, front_end, open_notebook

pytestmark = pytest.mark.slow
SCRIPT = """
turns:
  - calls: [{tool: execute_bash, arguments: {command: "echo one; sleep 2"}}]
  - calls: [{tool: execute_bash, arguments: {command: "echo two; sleep SECONDS"}}]
  - calls: [{tool: submit}]
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FrontEnd]:
    with front_end(tmp_path, "lab") as running:
        yield running


class Line:
    """The page's connections to runs; they can be cut."""

    def __init__(self, page: Page) -> None:
        self.cut = False
        self.open: list[WebSocketRoute] = []
        page.route_web_socket("**/llm-sandbox/api/runs/*/events*", self._connect)

    def _connect(self, socket: WebSocketRoute) -> None:
        if self.cut:
            socket.close(code=1001)
        else:
            socket.connect_to_server()
            self.open.append(socket)

    def cut_off(self) -> None:
        self.cut = True
        while self.open:
            self.open.pop().close(code=1001)


def begin(server: FrontEnd, page: Page, seconds: int) -> None:
    (server.root / "run.yaml").write_text(SCRIPT.replace("SECONDS", str(seconds)))
    cell = "%%sandbox -m scripted/./run.yaml\nGo on."
    path = server.notebook("run.ipynb", "%load_ext llm_sandbox_nb", cell)
    open_notebook(page, server, path)
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")
    expect(page.locator(".lsn-output", has_text="one")).to_be_visible()


def test_the_card_says_so_and_catches_up(server: FrontEnd, page: Page) -> None:
    line = Line(page)
    begin(server, page, 12)
    badge = page.locator(".lsn-header .lsn-badge")
    expect(badge).to_have_text("running")
    line.cut_off()
    expect(badge).to_have_text("away: the server does not answer")
    page.wait_for_timeout(3000)
    expect(page.locator(".lsn-step", has_text="echo two")).to_have_count(0)
    line.cut = False
    expect(badge).to_have_text("running")
    expect(page.locator(".lsn-output", has_text="two")).to_be_visible()
    expect(badge).to_have_text("submitted")
    expect(page.locator(".lsn-step")).to_have_count(3)


def test_a_server_that_died_with_its_kernel(server: FrontEnd, page: Page) -> None:
    begin(server, page, 600)
    badge = page.locator(".lsn-header .lsn-badge")
    server.kill()
    expect(badge).to_have_text("away: the server does not answer")
    server.start(PATIENCE / 1000)
    expect(badge).to_have_text("broken off")
    expect(page.locator(".lsn-output", has_text="one")).to_be_visible()
