"""A run while it goes on, in a real JupyterLab and a real Notebook 7: seen at once, and stopped, paused, spoken to."""

from __future__ import annotations

import pytest
from live_cells import TRIES, begin, delays_of_steps, patient, pause_and_say, seconds_to_stop
from playwright.sync_api import Browser, Page, expect
from servers import APPS, PATIENCE, FrontEnd, command


@pytest.mark.parametrize("server", APPS, indirect=True)
def test_stop_ends_a_command(server: FrontEnd, page: Page) -> None:
    """How soon is measured with every version of Lab, Notebook and ipykernel, in test_lab_versions."""
    seconds_to_stop(server, page, "endless", "python3")


def test_pause_and_say(server: FrontEnd, page: Page) -> None:
    pause_and_say(server, page)


@pytest.mark.campaign
@pytest.mark.parametrize("server", APPS, indirect=True)
def test_each_step_is_seen_within_300_ms(server: FrontEnd, browser: Browser) -> None:
    """Every one of 30, and its output, by the time that the event itself bears.

    A machine that is busy with something else can delay anything, so it takes one of three runs in which none is late.
    """
    worst = []
    for _ in range(TRIES):
        context = browser.new_context(viewport={"width": 1200, "height": 900})
        context.set_default_timeout(PATIENCE)
        delays = delays_of_steps(server, context.new_page())
        context.close()
        worst.append(max(delays.values()))
        latest = sorted(delays, key=lambda name: -delays[name])[:5]
        print(
            f"{server.app}: seen last", ", ".join(f"{name}: {delays[name] * 1000:.0f} ms" for name in latest)
        )
        if worst[-1] < 0.3:
            return
    pytest.fail(f"seen after {worst} seconds")


def test_a_reload_during_a_run_shows_all_and_goes_on(server: FrontEnd, page: Page) -> None:
    go = server.root / "go"
    begin(server, page, "again", patient(go))
    expect(page.locator(".lsn-output", has_text="one")).to_be_visible()
    command(page, "docmanager:save")
    page.goto(server.address("again.ipynb"))
    expect(page.locator(".lsn-output", has_text="one")).to_be_visible()
    go.touch()
    expect(page.locator(".lsn-header .lsn-badge")).to_have_text("Submitted")
    expect(page.locator(".lsn-view")).to_have_count(1)
    expect(page.locator(".lsn-step")).to_have_count(4)
