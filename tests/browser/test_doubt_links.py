"""One click on the first doubt opens the faulty step of a planted run, and the line is on the first screen."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

from failures import new_window
from playwright.sync_api import Browser
from view_page import bundle, page_html

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.facts import with_facts

RUNS = Path(__file__).parents[1] / "data" / "doubted_runs.json.gz"
HEIGHT = 900


def test_one_click_opens_the_faulty_step(browser: Browser, assets: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "card.html"
    path.write_text(page_html(*assets), "utf-8")
    wrong = {
        name: row for name, row in json.loads(gzip.decompress(RUNS.read_bytes())).items() if row["guilty"]
    }
    missed, below = [], []
    with new_window(browser, viewport={"width": 1200, "height": HEIGHT}) as window:
        page = window.new_page()
        page.goto(path.as_uri())
        for name, row in wrong.items():
            events = [ev.parse_python(event) for event in row["events"]]
            page.evaluate("run => void (window.shown = lsn.show(run))", bundle(with_facts(events), {}))
            line = page.locator(".lsn-doubts")
            first = line.locator("button").first
            if not first.count():
                missed.append(name)
                continue
            box = line.bounding_box()
            below += [name] if box is None or box["y"] + box["height"] > HEIGHT else []
            assert re.match(r"\d+(-\d+)?: ", first.inner_text())
            first.click()
            current = page.locator(".lsn-step.lsn-current")
            current.locator(".lsn-step-body").wait_for()
            if current.get_attribute("data-step") != str(row["guilty"]):
                missed.append(name)
    print(f"{len(wrong) - len(missed)} of {len(wrong)} with one click; not: {missed}")
    assert len(wrong) >= 50
    assert len(missed) <= len(wrong) // 10, missed
    assert below == []
