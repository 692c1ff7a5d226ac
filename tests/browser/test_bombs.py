"""Small files that unfold to gigabytes: a page that shows them hardly grows until a person clicks.

What grows is measured as the peak of resident memory of all processes that draw the browser's pages.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import bombs
import pytest
from chromium import chromium
from failures import new_window
from playwright.sync_api import Browser, Error, Page, Playwright, expect
from servers import FrontEnd, open_notebook
from view_page import PACKAGE, build, bundle, page_html
from waiting import eventually

from llm_sandbox_nb.card.card import Card
from llm_sandbox_nb.trajectory import events as ev

GROWTH = 200 * 2**20
"""Bytes that a page may grow by for one file."""
FRESH = 90 * 2**20
"""Bytes that a process takes which draws an empty page."""
SAMPLE = ["silence.wav", "bits.png", "copies.svg"]
LARGEST = {
    "artifacts/bounds.ts": ("2 ** 20", "Infinity"),
    "artifacts/page-cost.ts": ("60_000", "Infinity"),
    "markdown-cost.ts": ("20_000", "Infinity"),
}
"""The bounds taken off."""
CANARIES: dict[str, Callable[[], bytes]] = {
    "silence.wav": lambda: bombs.flac(300),
    "bits.png": lambda: bombs.png(12_000),
    "copies.svg": lambda: bombs.copies(6).encode(),
    "cells.md": lambda: ("|a" * 5_000 + "\n" + "|-" * 5_000 + "\n" + "|b\n" * 400).encode(),
}
"""Smaller ones, which show without the bounds that the measurement sees them and need not fill this machine."""


class Memory:
    """Resident memory of the processes that draw pages of a browser."""

    def __init__(self, browser: Browser) -> None:
        self._session = browser.new_browser_cdp_session()
        self._before: dict[int, int] = {}

    def _processes(self) -> list[int]:
        info = self._session.send("SystemInfo.getProcessInfo")["processInfo"]
        return [one["id"] for one in info if one["type"] in ("renderer", "GPU")]

    def begin(self) -> None:
        self._before = {pid: _resident(pid, "VmRSS") for pid in self._processes()}
        for pid in self._before:
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")  # forget the peak

    def growth(self) -> int:
        return sum(
            max(0, _resident(pid, "VmHWM") - self._before.get(pid, FRESH)) for pid in self._processes()
        )


def _resident(pid: int, name: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    """One of its own: its memory is measured."""
    with chromium(playwright) as started:
        yield started


@pytest.fixture(scope="module")
def unbounded(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The view without its bounds."""
    changed = {}
    for name, (bound, other) in LARGEST.items():
        text = (PACKAGE / "src" / name).read_text("utf-8")
        assert bound in text
        changed[name] = text.replace(bound, other)
    return build(tmp_path_factory.mktemp("unbounded") / "built", changed)


@contextlib.contextmanager
def opened(browser: Browser, content: str) -> Iterator[Page]:
    with new_window(browser, viewport={"width": 1000, "height": 900}) as window:
        page = window.new_page()
        page.set_content(content)
        yield page


def show(page: Page, name: str, data: bytes) -> None:
    event = ev.ArtifactSaved(step=None, path=name, mime="", size=len(data), sha256="0" * 64)
    page.evaluate(
        "([run, name]) => { document.getElementById('view').replaceChildren(); lsn.showFile(run, name); }",
        [bundle([event], {name: data}), name],
    )


def settle(page: Page) -> None:
    page.wait_for_selector(".lsn-artifact-body:not([aria-busy])", state="attached")
    page.wait_for_timeout(700)  # on purpose: nothing may happen meanwhile


def shown_in_view(browser: Browser, assets: tuple[str, str], names: list[str]) -> dict[str, int]:
    files = bombs.bombs()
    grown = {}
    with opened(browser, page_html(*assets)) as page:
        memory = Memory(browser)
        show(page, "first.html", b"<p>first</p>")
        settle(page)
        for name in names or files:
            memory.begin()
            show(page, name, files[name])
            settle(page)
            grown[name] = memory.growth() // 2**20
    return grown


def outgrown(memory: Memory) -> bool:
    return memory.growth() > GROWTH


def check(browser: Browser, assets: tuple[str, str], names: list[str]) -> None:
    grown = shown_in_view(browser, assets, names)
    print(json.dumps(grown))
    assert {name: size for name, size in grown.items() if size > GROWTH // 2**20} == {}


@pytest.mark.campaign
def test_a_file_that_unfolds_to_gigabytes_waits_for_a_click(
    browser: Browser, assets: tuple[str, str], unbounded: tuple[str, str]
) -> None:
    check(browser, assets, SAMPLE)
    with opened(browser, page_html(*assets)) as page:
        show(page, "silence.wav", bombs.flac())
        expect(page.locator(".lsn-waits")).to_contain_text(
            "decodes to 2.9 GB (8 min 32 s at 192,000 Hz, 8 channels)"
        )
        page.click("text=Play it anyway")
        page.wait_for_function("document.querySelector('audio').duration > 500")
    for name, make in CANARIES.items():
        with opened(browser, page_html(*unbounded)) as page:
            memory = Memory(browser)
            memory.begin()
            with contextlib.suppress(Error):  # the page may end of it
                show(page, name, make())
            assert eventually(page, functools.partial(outgrown, memory)), (
                f"{name} does not grow without the bounds"
            )


@pytest.mark.campaign
def test_all_files_that_unfold_to_gigabytes_wait_for_a_click(
    browser: Browser, assets: tuple[str, str]
) -> None:
    check(browser, assets, [])


def run_of_bombs(folder: Path) -> list[ev.Event]:
    events: list[ev.Event] = [ev.RunStarted(run_id="r1", task="t", model="m")]
    for name, data in bombs.bombs().items():
        path = folder / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        events.append(ev.ArtifactSaved(step=None, path=name, mime="", size=len(data), sha256="0" * 64))
    return events


@pytest.mark.campaign
def test_a_static_card_with_all_of_them_opens(browser: Browser, tmp_path: Path) -> None:
    card = Card(folder=tmp_path)
    for event in run_of_bombs(tmp_path):
        card.add(event)
    html = card.final()["text/html"]
    memory = Memory(browser)
    memory.begin()
    with opened(browser, f"<body>{html}") as page:
        page.mouse.wheel(0, 100_000)
        page.wait_for_timeout(5_000)  # on purpose: nothing may happen meanwhile
        assert page.locator("figure").count() == len(bombs.bombs())
        assert memory.growth() < 2 * GROWTH


@pytest.mark.campaign
def test_a_saved_notebook_with_all_of_them_opens(server: FrontEnd, page: Page, tmp_path: Path) -> None:
    card = Card(folder=tmp_path)
    for event in run_of_bombs(tmp_path):
        card.add(event)
    data = card.final()
    output = {"output_type": "display_data", "data": data, "metadata": card.metadata}
    path = server.notebook("bombs.ipynb", "1")
    content = json.loads((server.root / path).read_text())
    content["cells"][0]["outputs"] = [output]
    (server.root / path).write_text(json.dumps(content))
    assert page.context.browser is not None
    memory = Memory(page.context.browser)
    open_notebook(page, server, path)
    memory.begin()
    page.locator(".lsn-artifact").first.wait_for()
    page.wait_for_timeout(5_000)  # on purpose: nothing may happen meanwhile
    # All 49 at once, with what Lab draws of them; without the bounds one of them alone takes up to 1.3 GB.
    assert memory.growth() < 6 * GROWTH
    assert page.evaluate("1 + 1") == 2
