"""A run while it goes on, in a real JupyterLab and a real Notebook 7: seen at once, and stopped, paused, spoken to."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psutil
import pytest
from playwright.sync_api import Page, expect
from servers import APPS, FrontEnd, bundles, command, front_end, open_notebook

pytestmark = pytest.mark.slow
expect.set_options(timeout=30_000)
MARK = "86391.5"
ENDLESS = f"""
turns:
  - calls: [{{tool: execute_bash, arguments: {{command: "echo kept"}}}}]
  - calls: [{{tool: execute_bash, arguments: {{command: "echo begun; sleep {MARK}"}}}}]
  - calls: [{{tool: submit}}]
"""
SLOW = """
turns:
  - calls: [{tool: execute_bash, arguments: {command: "echo one; sleep 1"}}]
  - calls: [{tool: execute_bash, arguments: {command: "echo two; sleep 1"}}]
  - calls: [{tool: execute_bash, arguments: {command: "echo three"}}]
  - calls: [{tool: submit}]
"""
MANY = "turns:" + "".join(
    f"""
  - calls: [{{tool: execute_bash, arguments: {{command: "date +stamp-%s.%N-{n}; sleep 0.2"}}}}]"""
    for n in range(30)
)
OBSERVE = r"""() => {
  window.delays = {};
  new MutationObserver(() => {
    const now = Date.now() / 1000;
    document.querySelector('.lsn-step:last-child')?.scrollIntoView({ block: 'end' });
    for (const node of document.querySelectorAll('.lsn-output')) {
      for (const found of node.textContent.matchAll(/stamp-(\d+\.\d+)-(\d+)/g)) {
        window.delays[found[2]] ??= now - Number(found[1]);
      }
    }
  }).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""


@pytest.fixture(scope="module", params=APPS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontEnd]:
    with front_end(tmp_path_factory.mktemp(request.param), request.param) as running:
        yield running


def begin(server: FrontEnd, page: Page, name: str, script: str) -> None:
    """Open a notebook whose cell plays the script, and run it."""
    (server.root / f"{name}.yaml").write_text(script)
    cell = f"%%sandbox -m scripted/./{name}.yaml\nGo on."
    path = server.notebook(f"{name}.ipynb", "%load_ext llm_sandbox_nb", cell)
    open_notebook(page, server, path)
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")


def wait_for_idle(page: Page) -> None:
    """Until the cell is done and its last word is in the notebook."""
    status = "jupyterapp.shell.currentWidget.sessionContext.session.kernel.status"
    page.wait_for_function(f"() => {status} === 'idle'")


def sleepers() -> int:
    return sum(MARK in (one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"]))


def test_stop_ends_a_command_at_once(server: FrontEnd, page: Page) -> None:
    begin(server, page, "endless", ENDLESS)
    expect(page.locator(".lsn-output", has_text="begun")).to_be_visible()
    assert sleepers() == 1
    pressed = time.monotonic()
    page.get_by_role("button", name="Stop", exact=True).first.click()
    expect(page.locator(".lsn-header .lsn-badge")).to_have_text("interrupted")
    assert time.monotonic() - pressed < 2
    assert not sleepers()
    wait_for_idle(page)
    (record,) = bundles(page)
    assert record["events"][-1]["stop_reason"] == "interrupted"
    assert "kept" in str(record["events"])


def test_pause_and_say(server: FrontEnd, page: Page) -> None:
    begin(server, page, "slow", SLOW)
    page.get_by_role("button", name="Pause").click()
    page.get_by_label("Say something to the agent").fill("Count in French.")
    page.get_by_label("Say something to the agent").press("Enter")
    expect(page.get_by_label("Say something to the agent")).to_have_value("")
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    page.wait_for_timeout(3500)
    assert page.locator(".lsn-header .lsn-badge").text_content() != "submitted"
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".lsn-header .lsn-badge")).to_have_text("submitted")
    wait_for_idle(page)
    (record,) = bundles(page)
    assert "Count in French." in str(record["events"])


def test_each_step_is_seen_within_300_ms(server: FrontEnd, page: Page) -> None:
    page.set_viewport_size({"width": 1200, "height": 20_000})
    page.add_init_script(f"addEventListener('DOMContentLoaded', {OBSERVE})")
    begin(server, page, "many", MANY + "\n  - calls: [{tool: submit}]\n")
    expect(page.locator(".lsn-header .lsn-badge")).to_have_text("submitted")
    delays = page.evaluate("() => window.delays")
    assert len(delays) == 30
    print(f"{server.app}: seen after {max(delays.values()) * 1000:.0f} ms at most")
    late = sorted(delays.values())
    assert late[-2] < 0.3, "one may meet a machine that is busy with something else"


def test_a_reload_during_a_run_shows_all_and_goes_on(server: FrontEnd, page: Page) -> None:
    begin(server, page, "again", SLOW.replace("sleep 1", "sleep 4"))
    expect(page.locator(".lsn-output", has_text="one")).to_be_visible()
    command(page, "docmanager:save")
    page.goto(server.address("again.ipynb"))
    expect(page.locator(".lsn-output", has_text="one")).to_be_visible()
    expect(page.locator(".lsn-header .lsn-badge")).to_have_text("submitted")
    expect(page.locator(".lsn-view")).to_have_count(1)
    expect(page.locator(".lsn-step")).to_have_count(4)
