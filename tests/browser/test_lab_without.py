"""A saved notebook where there is no extension of ours, in Lab and Notebook 7: the static page tells how it went."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import support
from playwright.sync_api import Page, expect
from servers import FrontEnd, command, open_notebook, run_all
from test_lab import telling


@pytest.fixture
def server(server: FrontEnd) -> Iterator[FrontEnd]:
    server.jupyter.show_extension(False)
    yield server
    server.jupyter.show_extension(True)


def record_in(server: FrontEnd, path: str) -> list[dict[str, Any]]:
    cells = json.loads((server.root / path).read_text())["cells"]
    data = [output["data"] for cell in cells for output in cell.get("outputs", []) if "data" in output]
    _, held = [support.record_of(one) for one in data if support.MIME in one]
    events: list[dict[str, Any]] = held["events"]
    return events


def read_by_a_person(page: Page) -> str:
    card = page.locator(".jp-RenderedHTML").filter(has=page.locator("details"), has_text="Delhi").first
    card.wait_for(state="visible")
    for _ in range(10):
        folded = card.locator("details:not([open]) > summary:visible")
        if not folded.count():
            break
        for place in reversed(range(folded.count())):
            folded.nth(place).evaluate("node => node.click()")
    text: str = card.evaluate("node => node.innerText")
    return text


def squeezed(text: str) -> str:
    return " ".join(text.split())


def assert_reads(page: Page, events: list[dict[str, Any]]) -> None:
    """What each step did and what it led to, and the answer, as text that can be seen."""
    text = squeezed(read_by_a_person(page))
    lines = [event["line"] for event in events if event["kind"] == "step.facts"]
    assert len(lines) >= 7
    for line in lines:
        for words in (
            line.get("thought", ""),
            line.get("what", ""),
            *(chip["text"] for chip in line.get("chips", ())),
        ):
            assert squeezed(words) in text
    [answer] = [event["answer"] for event in events if event["kind"] == "run.finished"]
    for words in telling(answer):
        assert squeezed(words.replace("*", "").replace("`", "")) in text


@pytest.mark.campaign
def test_the_static_page_tells_each_step_and_the_answer(server: FrontEnd, page: Page) -> None:
    path = server.first_notebook()
    open_notebook(page, server, path)
    assert page.evaluate("() => jupyterapp.hasPlugin('llm-sandbox-nb:plugin')") is False
    run_all(page)
    page.wait_for_function(
        "() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'"
    )
    expect(page.locator(".jp-RenderedHTML details").first).to_be_attached()
    command(page, "docmanager:save")
    events = record_in(server, path)
    page.close()
    for trusted in (True, False):
        reopened = page.context.new_page()
        name = path if trusted else "copy.ipynb"
        if not trusted:
            copied = (server.root / path).read_text().replace('"name": "python3"', '"name": "elsewhere"')
            (server.root / name).write_text(copied.replace("cell-04", "cell-44"))
        open_notebook(reopened, server, name, kernel=False)
        reopened.keyboard.press("Escape")
        expect(reopened.locator(".lsn-view")).to_have_count(0)
        assert_reads(reopened, events)
        reopened.close()
