"""The view by itself, in a real browser: what it says of steps under a filter, and while nobody tells it anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from scale_run import long_run
from view_page import build, bundle, page_html

from llm_sandbox_nb.trajectory import events as ev

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return build(tmp_path_factory.mktemp("view") / "built")


def show(page: Page, assets: tuple[str, str], folder: Path, run: object) -> None:
    script, style = assets
    path = folder / "view.html"
    path.write_text(page_html(script, style), "utf-8")
    page.goto(path.as_uri())
    page.evaluate("run => { window.shown = lsn.show(run).view; shown.setLive(true); }", run)


def step_of(number: int) -> list[object]:
    steps = long_run(number, 100 * number)
    return [json.loads(ev.dump_event(event)) for event in steps if getattr(event, "step", None) == number]


def test_the_count_follows_steps_that_come_under_a_filter(
    page: Page, assets: tuple[str, str], tmp_path: Path
) -> None:
    show(page, assets, tmp_path, bundle(long_run(8, 800)[:-1], {}))
    page.locator(".lsn-search").fill("target 9*")
    count = page.locator(".lsn-bar .lsn-count")
    expect(count).to_have_text("0 of 8 steps")
    page.evaluate("events => shown.add(...events)", step_of(9))
    expect(count).to_have_text("1 of 9 steps")
    page.evaluate("events => shown.add(...events)", step_of(10))
    expect(count).to_have_text("1 of 10 steps")
    page.locator(".lsn-search").fill("")
    expect(count).to_have_text("")
    assert page.locator(".lsn-step:visible").count() == 10


def test_who_is_away_is_said_until_it_is_back(page: Page, assets: tuple[str, str], tmp_path: Path) -> None:
    show(page, assets, tmp_path, bundle(long_run(2, 200)[:-1], {}))
    badge = page.locator(".lsn-header .lsn-badge")
    for away, words in (("server", "the server does not answer"), ("kernel", "the kernel is silent")):
        page.evaluate("away => shown.setAway(away)", away)
        expect(badge).to_have_text(f"away: {words}")
        expect(badge).to_have_attribute("data-state", "away")
        page.evaluate("shown.setAway(null)")
        expect(badge).to_have_text("running")
        expect(badge).to_have_attribute("data-state", "live")
    page.evaluate("shown.setAway('server'); shown.setLive(false)")
    expect(badge).to_have_text("broken off")
