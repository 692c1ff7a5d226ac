"""The first notebook in a real JupyterLab and a real Notebook 7: run, saved, opened again elsewhere."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from servers import FrontEnd, bundles, command, empty_lab, open_as_run, open_notebook, run_all


def calls_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["kind"] == "call.finished"]


def telling(text: str) -> list[str]:
    """The lines by which a reader would know a text, however its blanks and colours are shown."""
    return [line.strip() for line in text.splitlines() if len(line.strip()) > 3 and "\x1b" not in line]


def assert_shows_all(page: Page, events: list[dict[str, Any]]) -> None:
    """Every step with its commands, outputs and diffs, and the answer, in the last card."""
    view = page.locator(".lsn-view").last
    steps = {event["step"] for event in events if event["kind"] == "model.replied"}
    expect(view.locator(".lsn-step")).to_have_count(len(steps))
    shown: dict[int, str] = {}
    for step in sorted(steps):
        node = view.locator(f".lsn-step[data-step='{step}']")
        node.scroll_into_view_if_needed()
        head = node.locator(".lsn-step-head")
        if head.get_attribute("aria-expanded") == "false":
            head.click()
        expect(node.locator(".lsn-call").first).to_be_attached()
        shown[step] = node.evaluate("node => node.textContent")
    proposed = {event["call_id"]: event for event in events if event["kind"] == "call.proposed"}
    for call in calls_of(events):
        text = shown[call["step"]]
        proposal = proposed[call["call_id"]]
        command_text = (proposal["arguments"] or {}).get("command", "")
        if proposal["tool"] == "str_replace_editor":
            command_text = ""  # the diff says what it did
        for change in call["changes"]:
            assert change["path"].rpartition("/")[2] in text
            lines = [line[1:] for line in (change["diff"] or "").splitlines()[2:] if line[:2] != "@@"]
            assert not [line for line in telling("\n".join(lines)) if line not in text]
        assert not [line for line in telling(command_text) if line not in text]
    finish = events[-1]
    assert finish["kind"] == "run.finished"
    ending = view.evaluate("node => node.textContent")
    for word in telling(finish["answer"]):
        assert word.replace("*", "").replace("`", "") in ending


def assert_shows_files(page: Page) -> None:
    """The picture has its pixels, the sound its length, the map its frame; their names begin where the answer does."""
    edges = page.evaluate(
        """() => {
          const view = [...document.querySelectorAll('.lsn-view')].at(-1);
          return ['.lsn-answer', '.lsn-out'].map(one => view.querySelector(one).getBoundingClientRect().x);
        }"""
    )
    assert edges[0] == edges[1] > 0
    for name in ("poster.png", "map.html", "chime.wav"):
        page.get_by_role("figure", name=f"File output/{name}").or_(
            page.locator(".lsn-artifact", has_text=name)
        ).first.scroll_into_view_if_needed()
    page.wait_for_function(
        "() => [...document.querySelectorAll('.lsn-artifact img')].some(one => one.naturalWidth > 100)"
    )
    page.wait_for_function(
        "() => [...document.querySelectorAll('.lsn-artifact audio')].some(one => one.duration > 0.1)"
    )
    expect(page.locator(".lsn-artifact iframe").first).to_have_attribute(
        "sandbox", re.compile("^(allow-scripts)?$")
    )


@pytest.mark.open_lab
def test_a_run_is_shown_and_saved(server: FrontEnd, page: Page) -> None:
    path = server.first_notebook()
    open_notebook(page, server, path)
    run_all(page)
    expect(page.locator(".lsn-view")).to_have_count(2)
    expect(page.locator(".jp-RenderedHTML [class*=sandbox]")).to_have_count(0)
    _, record = bundles(page)
    assert_shows_all(page, record["events"])
    assert_shows_files(page)
    command(page, "docmanager:save")
    page.goto("about:blank")  # the copy is read in an application that has not seen the run
    assert_reads_without_kernel(server, page, path, record["events"])
    if server.app == "lab":
        empty_lab(page)
        assert_a_journal_opens(server, page)


def assert_reads_without_kernel(server: FrontEnd, page: Page, path: str, events: list[Any]) -> None:
    """A colleague's copy: its kernel is none that exists here, and nobody trusts it."""
    copy = server.root / "copy.ipynb"
    text = (server.root / path).read_text().replace('"name": "python3"', '"name": "elsewhere"')
    copy.write_text(text.replace("cell-04", "cell-44"))
    # The question for another kernel comes at any time.
    no_kernel = page.get_by_role("dialog").get_by_role("button", name="No Kernel")
    page.add_locator_handler(no_kernel, lambda button: button.click())
    open_notebook(page, server, "copy.ipynb", kernel=False)
    page.wait_for_selector(".lsn-view", state="attached")
    trusted = page.evaluate(
        """() => [...jupyterapp.shell.currentWidget.content.model.cells]
             .some(cell => cell.type === 'code' && cell.trusted)"""
    )
    assert not trusted
    assert_shows_all(page, events)
    page.wait_for_function(
        "() => [...document.querySelectorAll('.lsn-artifact img')].some(one => one.naturalWidth > 100)"
    )
    copy.unlink()
    page.remove_locator_handler(no_kernel)


def assert_a_journal_opens(server: FrontEnd, page: Page) -> None:
    journal = max(server.root.glob("sandbox-runs/*/*/journal.jsonl"))
    open_as_run(page, server, str(journal.relative_to(server.root)))
    expect(page.locator(".lsn-file .lsn-view .lsn-step")).to_have_count(7)
