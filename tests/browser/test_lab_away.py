"""A run's card in a real JupyterLab while its server cannot be reached, and when it can be again."""

from __future__ import annotations

import re

import pytest
from live_cells import begin, journal
from playwright.sync_api import Page, WebSocketRoute, expect
from servers import FrontEnd
from waiting import eventually

pytestmark = pytest.mark.parametrize("server", ["lab"], indirect=True)
SCRIPT = """
turns:
  - calls: [{tool: execute_bash, arguments: {command: "echo one; until [ -e GO-1 ]; do sleep 0.1; done"}}]
  - calls: [{tool: execute_bash, arguments: {command: "echo two; until [ -e GO-2 ]; do sleep 0.1; done"}}]
  - calls: [{tool: submit}]
"""


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


def begin_waiting(server: FrontEnd, page: Page) -> None:
    """A run whose steps wait for the files `go-1` and `go-2`."""
    begin(server, page, "run", SCRIPT.replace("GO", str(server.root / "go")))
    expect(page.locator(".lsn-output", has_text="one")).to_be_visible()


def test_the_card_says_so_and_catches_up(server: FrontEnd, page: Page) -> None:
    line = Line(page)
    begin_waiting(server, page)
    badge = page.locator(".lsn-header .lsn-badge")
    expect(badge).to_have_text(re.compile("^Running"))
    line.cut_off()
    expect(badge).to_have_text("The server does not answer")
    (server.root / "go-1").touch()
    assert eventually(page, lambda: "echo two" in str(journal(server, "run")))
    expect(page.locator(".lsn-step", has_text="echo two")).to_have_count(0)
    line.cut = False
    expect(badge).to_have_text(re.compile("^Running"))
    expect(page.locator(".lsn-output", has_text="two")).to_be_visible()
    (server.root / "go-2").touch()
    expect(badge).to_have_text("Submitted")
    expect(page.locator(".lsn-step")).to_have_count(3)


def test_a_server_that_died_with_its_kernel(server: FrontEnd, page: Page) -> None:
    begin_waiting(server, page)
    badge = page.locator(".lsn-header .lsn-badge")
    server.jupyter.kill()
    expect(badge).to_have_text("The server does not answer")
    server.jupyter.start()
    expect(badge).to_have_text("Cut off at step 1")
    expect(page.locator(".lsn-output", has_text="one")).to_be_visible()
