"""A saved notebook where there is no extension of ours, in Lab and Notebook 7: the static page tells the whole run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import support
from playwright.sync_api import Page, expect
from servers import FrontEnd, command, open_notebook, run_all
from test_lab import calls_of, telling

FOR_THE_MODEL = re.compile(r"Exit code: -?\d+|\[(stdout|stderr|Steps remaining: \d+)\]")


@pytest.fixture
def server(server: FrontEnd) -> Iterator[FrontEnd]:
    server.jupyter.show_extension(False)
    yield server
    server.jupyter.show_extension(True)


def record_in(server: FrontEnd, path: str) -> list[dict[str, Any]]:
    """The events of the second run that the saved notebook holds."""
    cells = json.loads((server.root / path).read_text())["cells"]
    data = [output["data"] for cell in cells for output in cell.get("outputs", []) if "data" in output]
    _, held = [support.record_of(one) for one in data if support.MIME in one]
    events: list[dict[str, Any]] = held["events"]
    return events


def read_by_a_person(page: Page) -> str:
    """All that can be seen of the run once everything is unfolded."""
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


def said_by(call: dict[str, Any]) -> list[str]:
    """What a person reads of a command: its exit code and its output, apart from the lines for the model alone."""
    if call["exit_code"] is None:
        return []
    lines = call["observation"].splitlines()
    return [f"exit {call['exit_code']}", *(line for line in lines if not FOR_THE_MODEL.fullmatch(line))]


def assert_reads(page: Page, events: list[dict[str, Any]]) -> None:
    """Every step with its commands, outputs and diffs, and the answer, as text that can be seen."""
    text = squeezed(read_by_a_person(page))
    proposed = {event["call_id"]: event for event in events if event["kind"] == "call.proposed"}
    assert len(calls_of(events)) >= 7
    for call in calls_of(events):
        words = [(proposed[call["call_id"]]["arguments"] or {}).get("command", ""), *said_by(call)]
        words += [change["diff"] or "" for change in call["changes"]]
        for line in [line for word in words for line in telling(word)]:
            if not line.startswith(("---", "+++", "@@")):
                assert squeezed(line) in text or squeezed(line.removeprefix("+")) in text
    for line in telling(events[-1]["answer"]):
        assert squeezed(line.replace("*", "").replace("`", "")) in text


def test_the_static_page_tells_everything(server: FrontEnd, page: Page) -> None:
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
