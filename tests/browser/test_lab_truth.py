"""A run that several look at, and one whose kernel or server goes: nothing hangs or doubles, what is shown is true."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator

import psutil
import pytest
from failures import new_window
from live_cells import (
    BADGE,
    ENDLESS,
    begin,
    going_on,
    journal,
    patient,
    wait_for_sleepers,
    wait_until_held,
    wait_until_noted,
)
from playwright.sync_api import Browser, Page, WebSocketRoute, expect
from servers import FrontEnd, command, open_notebook
from waiting import eventually

from llm_sandbox_nb.runs.run import Run

OUTLIVES = "outlives"
WAITS = """
turns:
  - calls: [{tool: execute_bash, arguments: {command: "echo one; until [ -e GO-1 ]; do sleep 0.1; done"}}]
  - calls: [{tool: execute_bash, arguments: {command: "echo two; until [ -e GO-2 ]; do sleep 0.1; done"}}]
  - calls: [{tool: submit}]
"""


@pytest.fixture
def other(browser: Browser) -> Iterator[Page]:
    with new_window(browser) as window:
        yield window.new_page()


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


def record(server: FrontEnd, name: str) -> Run:
    return Run.load(max((server.root / "sandbox-runs" / name).iterdir()))


def end_words(run: Run) -> str:
    return run.trajectory.state(live=False).words


def assert_shows(page: Page, run: Run) -> None:
    expect(page.locator(BADGE)).to_have_text(end_words(run))
    expect(page.locator(".lsn-view")).to_have_count(1)
    wanted = [str(step.number) for step in run.steps]
    expect(page.locator(".lsn-view .lsn-step")).to_have_count(len(wanted))
    for place, number in enumerate(wanted):
        expect(page.locator(".lsn-view .lsn-step").nth(place)).to_have_attribute("data-step", number)
    for step in run.steps:
        node = page.locator(f".lsn-step[data-step='{step.number}']")
        node.scroll_into_view_if_needed()
        expect(node.locator(".lsn-call")).to_have_count(len(step.calls))
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)


@pytest.mark.open_lab
def test_two_browsers_see_and_steer_one_run(server: FrontEnd, page: Page, other: Page) -> None:
    go = server.root / "go-shared"
    begin(server, page, "shared", patient(go))
    expect(page.locator(".lsn-output", has_text="two")).to_be_visible()
    command(page, "docmanager:save")
    open_notebook(other, server, "shared.ipynb", kernel=False)
    expect(other.locator(".lsn-output", has_text="two")).to_be_visible()
    other.get_by_role("button", name="Pause", exact=True).click()
    expect(going_on(page)).to_be_visible()
    page.get_by_label("Message to the model").fill("Both of us see this.")
    page.get_by_label("Message to the model").press("Enter")
    expect(page.get_by_label("Message to the model")).to_have_value("")
    wait_until_noted(server, page, "shared", "say")
    go.touch()
    wait_until_held(server, page, "shared")
    for one in (page, other):
        expect(one.locator(".lsn-view .lsn-step")).to_have_count(2)  # it is held before its next request
    going_on(page).click()
    for one in (page, other):
        expect(one.locator(BADGE)).to_have_text("Submitted, not checked")
    run = record(server, "shared")
    assert run.stop_reason == "submitted"
    assert [control.action for control in run.trajectory.controls] == ["pause", "say", "paused", "resume"]
    for one in (page, other):
        assert_shows(one, run)


@pytest.mark.campaign
def test_while_the_server_is_away_the_card_says_so_and_then_catches_up(server: FrontEnd, page: Page) -> None:
    line = Line(page)
    begin(server, page, "run", WAITS.replace("GO", str(server.root / "go")))
    expect(page.locator(".lsn-output", has_text="one")).to_be_visible()
    badge = page.locator(BADGE)
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
    expect(badge).to_have_text("Submitted, not checked")
    expect(page.locator(".lsn-step")).to_have_count(3)


@pytest.mark.campaign
@pytest.mark.parametrize("how", ["restarted", "killed"])
def test_a_kernel_that_goes_in_a_run(server: FrontEnd, page: Page, how: str) -> None:
    begin(server, page, how, ENDLESS)
    expect(page.locator(".lsn-output", has_text="begun")).to_be_visible()
    if how == "killed":
        os.kill(kernel_pid(server, page), signal.SIGKILL)
    else:
        page.evaluate(
            "() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart().then(() => null)"
        )
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    assert_shows(page, record(server, how))
    wait_for_sleepers(page, 0)
    if how == "restarted":
        go = server.root / "go"
        go.touch()
        (server.root / f"{how}.yaml").write_text(patient(go))
        command(page, "notebook:run-all-cells")
        expect(page.locator(BADGE)).to_have_text("Submitted, not checked")
        assert_shows(page, record(server, how))


def kernel_pid(server: FrontEnd, page: Page) -> int:
    kernel = page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.id")
    pid = server.jupyter.kernel_pid(kernel)
    assert pid is not None
    return pid


@pytest.mark.campaign
def test_a_server_that_goes_with_its_kernel(server: FrontEnd, page: Page) -> None:
    begin(server, page, "gone", ENDLESS)
    expect(page.locator(".lsn-output", has_text="begun")).to_be_visible()
    server.jupyter.kill()
    expect(page.locator(BADGE)).to_have_text("The server does not answer")
    server.jupyter.start()
    assert_shows(page, record(server, "gone"))
    wait_for_sleepers(page, 0)


@pytest.mark.campaign
def test_a_server_that_is_restarted_under_a_kernel_that_lives_on(server: FrontEnd, page: Page) -> None:
    server.jupyter.add_kernel(OUTLIVES, before=("env", "-u", "JPY_PARENT_PID"))
    go = server.root / "go-lives"
    begin(server, page, "lives", patient(go), kernel=OUTLIVES)
    expect(page.locator(".lsn-output", has_text="two")).to_be_visible()
    pid = kernel_pid(server, page)
    try:
        server.jupyter.kill()
        expect(page.locator(BADGE)).to_have_text("The server does not answer")
        go.touch()
        server.jupyter.start()
        expect(page.locator(BADGE)).not_to_have_text("The server does not answer")
        expect(page.locator(BADGE)).not_to_have_text(re.compile("^Running"))
        assert_shows(page, record(server, "lives"))
        assert psutil.pid_exists(pid), server.jupyter.log
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
