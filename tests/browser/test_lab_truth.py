"""A run that several look at, and one whose kernel or server goes: nothing hangs or doubles, what is shown is true."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import support
from live_cells import BADGE, ENDLESS, SLOW, begin, going_on, sleepers
from playwright.sync_api import Browser, BrowserContext, Page, expect
from servers import ALIKE, PATIENCE, FrontEnd, command, front_end, open_notebook

from llm_sandbox_nb.agent.run import Run

pytestmark = pytest.mark.slow
OUTLIVES = "outlives"


def waiting(go: Path) -> str:
    """Steps of which the second waits for a file."""
    return f"""
turns:
  - calls: [{{tool: execute_bash, arguments: {{command: "echo one"}}}}]
  - calls: [{{tool: execute_bash, arguments: {{command: "echo two; until [ -e {go} ]; do sleep 0.1; done"}}}}]
  - calls: [{{tool: execute_bash, arguments: {{command: "echo three"}}}}]
  - calls: [{{tool: submit}}]
"""


@pytest.fixture(scope="module", params=ALIKE)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontEnd]:
    with front_end(tmp_path_factory.mktemp(request.param), request.param) as running:
        running.add_kernel(OUTLIVES, before=("env", "-u", "JPY_PARENT_PID"))
        yield running


@pytest.fixture
def other(browser: Browser) -> Iterator[Page]:
    """The page of somebody else."""
    context: BrowserContext = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(PATIENCE)
    yield context.new_page()
    context.close()


def steps(page: Page) -> list[str]:
    """The numbers of the steps, as they stand there."""
    found: list[str] = page.evaluate(
        "() => [...document.querySelectorAll('.lsn-view .lsn-step')].map(step => step.dataset.step)"
    )
    return found


def record(server: FrontEnd, name: str) -> Run:
    """What the newest run of a notebook has written down."""
    return Run.load(max((server.root / "sandbox-runs" / name).iterdir()))


def assert_shows(page: Page, run: Run, *, end: str) -> None:
    """One view, with each step of the record once, in order, and how it ended."""
    expect(page.locator(BADGE)).to_have_text(end)
    expect(page.locator(".lsn-view")).to_have_count(1)
    wanted = [str(step.number) for step in run.steps]
    page.wait_for_function(
        "wanted => document.querySelectorAll('.lsn-view .lsn-step').length >= wanted", arg=len(wanted)
    )
    assert steps(page) == wanted
    for step in run.steps:
        node = page.locator(f".lsn-step[data-step='{step.number}']")
        node.scroll_into_view_if_needed()
        expect(node.locator(".lsn-call")).to_have_count(len(step.calls))
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)


def start_again(server: FrontEnd) -> None:
    """The server, after it was killed; it ends with the module."""
    before = support.child_pids()
    server.start(PATIENCE / 1000)
    support.KEPT_PIDS.update(support.child_pids() - before)


def test_two_browsers_see_and_steer_one_run(server: FrontEnd, page: Page, other: Page) -> None:
    go = server.root / "go-shared"
    begin(server, page, "shared", waiting(go))
    expect(page.locator(".lsn-output", has_text="two")).to_be_visible()
    command(page, "docmanager:save")
    open_notebook(other, server, "shared.ipynb", kernel=False)
    expect(other.locator(".lsn-output", has_text="two")).to_be_visible()
    other.get_by_role("button", name="Pause").click()
    expect(going_on(page)).to_be_visible()
    page.get_by_label("Say something to the agent").fill("Both of us see this.")
    page.get_by_label("Say something to the agent").press("Enter")
    expect(page.get_by_label("Say something to the agent")).to_have_value("")
    go.touch()
    page.wait_for_timeout(1500)
    assert len(steps(page)) == len(steps(other)) == 2, "it is held before its next request"
    going_on(page).click()
    for one in (page, other):
        expect(one.locator(BADGE)).to_have_text("submitted")
    run = record(server, "shared")
    assert run.stop_reason == "submitted"
    assert [control.action for control in run.trajectory.controls] == ["pause", "say", "paused", "resume"]
    for one in (page, other):
        assert_shows(one, run, end="submitted")


def test_a_kernel_that_is_restarted_in_a_run(server: FrontEnd, page: Page) -> None:
    begin(server, page, "kernel", ENDLESS)
    expect(page.locator(".lsn-output", has_text="begun")).to_be_visible()
    page.evaluate(
        "() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart().then(() => null)"
    )
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    run = record(server, "kernel")
    assert_shows(page, run, end=run.stop_reason or "broken off")
    assert not sleepers()
    (server.root / "kernel.yaml").write_text(SLOW)
    command(page, "notebook:run-all-cells")
    expect(page.locator(BADGE)).to_have_text("submitted")
    assert_shows(page, record(server, "kernel"), end="submitted")


def test_a_kernel_that_is_killed_in_a_run(server: FrontEnd, page: Page) -> None:
    begin(server, page, "killed", ENDLESS)
    expect(page.locator(".lsn-output", has_text="begun")).to_be_visible()
    kernel = page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.id")
    pid = server.kernel_pid(kernel)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert_shows(page, record(server, "killed"), end="broken off")
    assert not sleepers()


def test_a_server_that_goes_with_its_kernel(server: FrontEnd, page: Page) -> None:
    begin(server, page, "gone", ENDLESS)
    expect(page.locator(".lsn-output", has_text="begun")).to_be_visible()
    server.kill()
    expect(page.locator(BADGE)).to_contain_text("away")
    start_again(server)
    assert_shows(page, record(server, "gone"), end="broken off")
    assert not sleepers()


def test_a_server_that_is_restarted_under_a_kernel_that_lives_on(server: FrontEnd, page: Page) -> None:
    go = server.root / "go-lives"
    begin(server, page, "lives", waiting(go), kernel=OUTLIVES)
    expect(page.locator(".lsn-output", has_text="two")).to_be_visible()
    kernel = page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.id")
    pid = server.kernel_pid(kernel)
    assert pid is not None
    server.kill()
    expect(page.locator(BADGE)).to_contain_text("away")
    go.touch()
    start_again(server)
    expect(page.locator(BADGE)).not_to_contain_text("away")
    expect(page.locator(BADGE)).not_to_have_text("running")
    run = record(server, "lives")
    assert_shows(page, run, end=run.stop_reason or "broken off")
    os.kill(pid, signal.SIGKILL)
