"""A run that goes on, in a real JupyterLab and Notebook 7: seen at once, stopped, paused, spoken to, loaded again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from failures import new_window
from live_cells import (
    BADGE,
    TRIES,
    begin,
    delays_of_steps,
    journal,
    patient,
    pause_and_say,
    seconds_to_stop,
    wait_for_idle,
)
from playwright.sync_api import Browser, Page, expect
from servers import APPS, FrontEnd, bundles, command, open_notebook
from support import MIME
from waiting import eventually

PACKED = (
    """() => JSON.stringify(jupyterapp.shell.currentWidget.context.model.toJSON()).includes('"packed"')"""
)


@pytest.mark.parametrize(
    "server", ["lab", pytest.param("notebook", marks=pytest.mark.campaign)], indirect=True
)
@pytest.mark.open_lab
def test_stop_ends_a_command(server: FrontEnd, page: Page) -> None:
    """How soon is measured with every version of Lab, Notebook and ipykernel, in test_lab_versions."""
    seconds_to_stop(server, page, "endless", "python3")


@pytest.mark.campaign
@pytest.mark.open_lab
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
        with new_window(browser) as window:
            delays = delays_of_steps(server, window.new_page())
        worst.append(max(delays.values()))
        latest = sorted(delays, key=lambda name: -delays[name])[:5]
        print(
            f"{server.app}: seen last", ", ".join(f"{name}: {delays[name] * 1000:.0f} ms" for name in latest)
        )
        if worst[-1] < 0.3:
            return
    pytest.fail(f"seen after {worst} seconds")


def reload(server: FrontEnd, page: Page, name: str) -> None:
    """As the browser's button does, whatever is not saved."""
    page.once("dialog", lambda dialog: dialog.accept())
    open_notebook(page, server, f"{name}.ipynb", kernel=False)


def saved_outputs(server: FrontEnd, name: str) -> list[dict[str, Any]]:
    cells = json.loads((server.root / f"{name}.ipynb").read_text())["cells"]
    outputs: list[dict[str, Any]] = cells[1]["outputs"]
    return outputs


def is_over(server: FrontEnd, name: str) -> bool:
    return any(event["kind"] == "run.finished" for event in journal(server, name))


@pytest.mark.open_lab
def test_after_a_reload_the_card_of_a_live_run_comes_back(server: FrontEnd, page: Page) -> None:
    """Once nothing of it was saved, then its beginning was; in the end with the file that the run made."""
    go = server.root / "go"
    begin(server, page, "unsaved", patient(go).replace("echo three", "echo three | tee output/file.txt"))
    expect(page.locator(".lsn-output", has_text="one")).to_be_visible()
    assert saved_outputs(server, "unsaved") == []
    reload(server, page, "unsaved")
    expect(page.locator(".lsn-output", has_text="one")).to_be_visible()
    command(page, "docmanager:save")
    assert saved_outputs(server, "unsaved")
    reload(server, page, "unsaved")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    expect(page.locator(".jp-InputPrompt").nth(1)).to_have_text("[*]:")
    go.touch()
    expect(page.locator(BADGE)).to_have_text("Submitted, not checked")
    wait_for_idle(page)
    expect(page.locator(".lsn-view")).to_have_count(1)
    expect(page.locator(".lsn-step")).to_have_count(4)
    expect(page.locator(".jp-InputPrompt").nth(1)).to_have_text("[2]:")
    page.wait_for_function(PACKED)
    expect(page.locator(".lsn-artifact", has_text="file.txt").locator("pre")).to_have_text("three")
    (record,) = bundles(page)
    assert record["events"][-1]["kind"] == "run.finished"
    command(page, "docmanager:save")
    (output,) = saved_outputs(server, "unsaved")
    assert MIME in output["data"], "what is saved is the whole card"
    assert "three" in "".join(output["data"]["text/html"]), "what is saved is the whole card"


@pytest.mark.campaign
@pytest.mark.open_lab
def test_the_card_of_a_run_that_ended_meanwhile_comes_back_until_it_is_cleared(
    server: FrontEnd, page: Page
) -> None:
    go = server.root / "go-meanwhile"
    begin(server, page, "meanwhile", patient(go))
    expect(page.locator(".lsn-output", has_text="one")).to_be_visible()
    page.once("dialog", lambda dialog: dialog.accept())
    page.goto("about:blank")
    go.touch()
    assert eventually(page, lambda: is_over(server, "meanwhile"))
    reload(server, page, "meanwhile")
    expect(page.locator(BADGE)).to_have_text("Submitted, not checked")
    page.wait_for_function(PACKED)
    (record,) = bundles(page)
    assert record["events"][-1]["kind"] == "run.finished"
    command(page, "notebook:clear-all-cell-outputs")
    command(page, "docmanager:save")
    with page.expect_response(lambda response: response.url.split("?")[0].endswith("/api/runs")) as asked:
        reload(server, page, "meanwhile")
    assert [run["state"] for run in asked.value.json()["runs"]][-1] == "finished"
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    expect(page.locator(".lsn-view")).to_have_count(0)
