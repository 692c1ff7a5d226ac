"""In a browser: an artifact cannot reach the network or the notebook, and an export reads well."""

from __future__ import annotations

import http.server
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter
from PIL import Image
from playwright.sync_api import Error, Page, sync_playwright
from support import PATIENCE
from warm_kernels import ROOT, kernel_environment

from llm_sandbox_nb.card.artifacts import sandboxed_frame
from notebooks import execute

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")


Colours = set[tuple[int, ...]]
Look = Callable[..., Colours]
SETTLED = 2.0
"""Seconds after what is waited for in which a page may still do what it must not."""


@pytest.fixture
def look() -> Iterator[Look]:
    """Opens a page and gives the colours it shows: `look(page, until=condition, height=..., run=pages run?)`."""
    if not BROWSER:
        reason = "there is no chromium here"
        if os.environ.get("LLM_SANDBOX_REQUIRE_ENGINES") == "1":
            pytest.fail(f"a browser is required (LLM_SANDBOX_REQUIRE_ENGINES=1), but {reason}")
        pytest.skip(reason)
    arguments = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=BROWSER, args=arguments)

        def shown(
            page: Path, until: Callable[[Colours], bool], height: int = 800, run: bool = False
        ) -> Colours:
            tab = started.new_page(viewport={"width": 1000, "height": height})
            tab.goto(page.as_uri(), wait_until="commit")
            deadline = time.monotonic() + PATIENCE
            while not until(painted(tab)) and time.monotonic() < deadline:
                tab.wait_for_timeout(200)
                for frame in tab.main_frame.child_frames if run else ():
                    button = frame.get_by_text("Run this page", exact=True)
                    if button.is_visible():
                        button.click()
            tab.wait_for_timeout(SETTLED * 1000)
            found = colours(tab.screenshot())
            tab.close()
            return found

        yield shown
        started.close()


def painted(tab: Page) -> Colours:
    """The colours that it shows now: none while Chromium has nothing to take a picture of."""
    try:
        return colours(tab.screenshot())
    except Error:
        return set()


def colours(picture: bytes) -> Colours:
    with Image.open(BytesIO(picture)) as image:
        return {colour for _, colour in image.convert("RGB").getcolors(2**24) or ()}


@dataclass
class Listener:
    """A server that notes who asks."""

    address: str
    asked: set[str] = field(default_factory=set)


@pytest.fixture
def listener() -> Iterator[Listener]:
    noted = Listener("")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            noted.asked.add(self.path)
            self.send_response(200)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        noted.address = f"127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield noted
        server.shutdown()


LOADING = """
<img src="http://ADDRESS/image"><link rel="stylesheet" href="http://ADDRESS/style">
<link rel="prefetch" href="http://ADDRESS/prefetch"><iframe src="http://ADDRESS/frame"></iframe>
<script src="http://ADDRESS/script"></script>
<script>
  document.body.style.background = 'rgb(1, 250, 3)';
  fetch('http://ADDRESS/fetch').catch(() => 0);
  navigator.sendBeacon('http://ADDRESS/beacon', 'x');
  try { new WebSocket('ws://ADDRESS/socket'); } catch (error) {}
  try { parent.parent.document.title = 'reached'; } catch (error) {}
  try { top.document.body.style.background = 'rgb(250, 1, 3)'; } catch (error) {}
</script>
"""
LEAVING = {
    "refresh": '<meta http-equiv="refresh" content="0;url=http://ADDRESS/away">',
    "location": "<script>location.href = 'http://ADDRESS/away'</script>",
    "top": "<script>try { top.location = 'http://ADDRESS/away' } catch (error) {}</script>",
    "parent": "<script>try { parent.location = 'http://ADDRESS/away' } catch (error) {}</script>",
    "form": '<form id="f" action="http://ADDRESS/away"></form><script>f.submit()</script>',
    "open": "<script>open('http://ADDRESS/away')</script>",
    "link": '<a id="a" href="http://ADDRESS/away">x</a><script>a.click()</script>',
}


def test_a_framed_page_runs_but_loads_nothing(look: Look, listener: Listener, tmp_path: Path) -> None:
    document = LOADING.replace("ADDRESS", listener.address)
    page = tmp_path / "page.html"
    page.write_text(f"<body>{sandboxed_frame(document.encode())}")
    seen = look(page, until=lambda seen: (255, 255, 255) in seen)
    assert (1, 250, 3) not in seen, "its script waits for a click"
    assert not listener.asked
    seen = look(page, until=lambda seen: (1, 250, 3) in seen, run=True)
    assert not listener.asked
    assert (1, 250, 3) in seen, "its own script ran"
    assert (250, 1, 3) not in seen, "and did not reach the page"
    page.write_text(f"<body>{document}")
    everything = {"/image", "/style", "/fetch", "/beacon", "/frame"}
    look(page, until=lambda _: everything <= listener.asked)
    assert everything <= listener.asked, "the canary: unframed it does"


def test_framed_pages_cannot_go_elsewhere(look: Look, listener: Listener, tmp_path: Path) -> None:
    """Each way in a frame of its own; the last frame stays, and shows that scripts of frames have run."""
    page = tmp_path / "page.html"
    ways = [way.replace("ADDRESS", listener.address) for way in LEAVING.values()]
    last = "<script>document.body.style.background = 'rgb(1, 250, 3)'</script>"
    page.write_text("<body>" + "".join(sandboxed_frame(one.encode()) for one in (*ways, f"<body>{last}")))
    seen = look(page, until=lambda seen: (1, 250, 3) in seen, height=7000, run=True)
    assert (1, 250, 3) in seen
    assert not listener.asked


def test_without_the_frame_a_page_goes_elsewhere(look: Look, listener: Listener, tmp_path: Path) -> None:
    """The canary of the test above."""
    page = tmp_path / "page.html"
    page.write_text(f"<body>{LEAVING['location'].replace('ADDRESS', listener.address)}")
    look(page, until=lambda _: "/away" in listener.asked)
    assert "/away" in listener.asked


@pytest.fixture
def first_notebook(tmp_path: Path) -> nbformat.NotebookNode:
    """The first notebook, executed. A fixture, for no event loop may run in the thread of Playwright's."""
    folder = tmp_path / "notebooks"
    shutil.copytree(ROOT / "notebooks" / "data", folder / "data")
    notebook = nbformat.read(ROOT / "notebooks" / "01-first-task.ipynb", as_version=4)
    return execute(notebook, folder, kernel_environment(tmp_path, LLM_SANDBOX_ISOLATION="process"))


def test_the_export_of_the_first_notebook_reads_well(
    first_notebook: nbformat.NotebookNode, look: Look, tmp_path: Path
) -> None:
    exported, _ = HTMLExporter().from_notebook_node(first_notebook)
    for part in (
        "7 steps",
        "scripted",
        "reverse=True",
        "The three largest cities are Tokyo",
        "srcdoc=",
        "<audio",
    ):
        assert part in exported
    page = tmp_path / "01.html"
    page.write_text(exported, encoding="utf-8")
    sea = (238, 243, 247)
    seen = look(page, until=lambda seen: sea in seen, height=7000)
    assert (228, 87, 46) in seen, "the poster's first bar"
    assert (41, 51, 92) in seen, "the map's headline, drawn within its frame"
    assert sea in seen, "the map's sea"
