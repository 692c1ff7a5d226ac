"""In a browser: an artifact cannot reach the network or the notebook, and an export reads well."""

from __future__ import annotations

import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbconvert import HTMLExporter
from PIL import Image
from playwright.sync_api import sync_playwright

from llm_sandbox_nb.notebook.framing import sandboxed_frame
from notebooks import ROOT, execute, kernel_environment

pytestmark = pytest.mark.slow
BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")


@pytest.fixture
def browser() -> Any:
    """Opens a page for some seconds and takes its picture: `browser(page, picture, height)`."""
    if not BROWSER:
        reason = "there is no chromium here"
        if os.environ.get("LLM_SANDBOX_REQUIRE_ENGINES") == "1":
            pytest.fail(f"a browser is required (LLM_SANDBOX_REQUIRE_ENGINES=1), but {reason}")
        pytest.skip(reason)

    def look(page: Path, picture: Path, height: int = 800) -> None:
        arguments = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        with sync_playwright() as playwright:
            started = playwright.chromium.launch(executable_path=BROWSER, args=arguments)
            tab = started.new_page(viewport={"width": 1000, "height": height})
            tab.goto(page.as_uri(), wait_until="commit")
            tab.wait_for_timeout(4000)
            tab.screenshot(path=picture)
            started.close()

    return look


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


def colours(picture: Path) -> set[tuple[int, ...]]:
    with Image.open(picture) as image:
        return {colour for _, colour in image.convert("RGB").getcolors(2**24) or ()}


def test_a_framed_page_runs_but_loads_nothing(browser: Any, listener: Listener, tmp_path: Path) -> None:
    document = LOADING.replace("ADDRESS", listener.address)
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    page.write_text(f"<body>{sandboxed_frame(document.encode())}")
    browser(page, picture)
    assert not listener.asked
    assert (1, 250, 3) in colours(picture), "its own script ran"
    assert (250, 1, 3) not in colours(picture), "and did not reach the page"
    page.write_text(f"<body>{document}")
    browser(page, picture)
    assert {"/image", "/style", "/fetch", "/beacon", "/frame"} <= listener.asked, (
        "the canary: unframed it does"
    )


@pytest.mark.parametrize("way", LEAVING)
def test_a_framed_page_cannot_go_elsewhere(
    browser: Any, listener: Listener, tmp_path: Path, way: str
) -> None:
    page = tmp_path / "page.html"
    page.write_text(f"<body>{sandboxed_frame(LEAVING[way].replace('ADDRESS', listener.address).encode())}")
    browser(page, tmp_path / "page.png")
    assert not listener.asked


def test_without_the_frame_a_page_goes_elsewhere(browser: Any, listener: Listener, tmp_path: Path) -> None:
    """The canary of the test above."""
    page = tmp_path / "page.html"
    page.write_text(f"<body>{LEAVING['location'].replace('ADDRESS', listener.address)}")
    browser(page, tmp_path / "page.png")
    assert "/away" in listener.asked


def test_the_export_of_the_first_notebook_reads_well(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "notebooks"
    shutil.copytree(ROOT / "notebooks" / "data", folder / "data")
    notebook = nbformat.read(ROOT / "notebooks" / "01-first-task.ipynb", as_version=4)
    execute(notebook, folder, kernel_environment(tmp_path, LLM_SANDBOX_ISOLATION="process"))
    exported, _ = HTMLExporter().from_notebook_node(notebook)
    for part in (
        "Step 7",
        "scripted",
        "reverse=True",
        "The three largest cities are Tokyo",
        "srcdoc=",
        "<audio",
    ):
        assert part in exported
    page, picture = tmp_path / "01.html", tmp_path / "01.png"
    page.write_text(exported, encoding="utf-8")
    browser(page, picture, height=7000)
    seen = colours(picture)
    assert (228, 87, 46) in seen, "the poster's first bar"
    assert (41, 51, 92) in seen, "the map's headline, drawn within its frame"
    assert (238, 243, 247) in seen, "the map's sea"
