"""What a page that the model made tells other hosts: sockets and look-ups of names, not requests.

A browser looks up a host and connects to it before a policy refuses to go there, so data leaves in name and port.
Every name below is in a zone of its own, which Chromium maps to this machine; each way has a port of its own, so that
a connection tells which way was taken. Names that are only looked up are found in Chromium's log of the network.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from chromium import ARGUMENTS
from playwright.sync_api import Page, Playwright
from programs import require_program
from servers import PATIENCE
from test_hostile import UNPROTECTED
from view_page import build, bundle, page_html
from waiting import eventually

from llm_sandbox_nb.card.artifacts import sandboxed_frame
from llm_sandbox_nb.trajectory import events as ev

ZONE = "leak.test"
WITHOUT_SCRIPTS = {
    "iframe": "<iframe src='URL'></iframe>",
    "iframe-in-svg": "<svg><foreignObject><iframe src='URL'></iframe></foreignObject></svg>",
    "object": "<object data='URL'></object>",
    "embed": "<embed src='URL'>",
    "refresh": "<meta http-equiv=refresh content='0;url=URL'>",
    "prefetch": "<link rel=prefetch href='URL'>",
    "style": "<link rel=stylesheet href='URL'>",
    "import": "<style>@import 'URL'; </style>",
    "font": "<style>@font-face { font-family: f; src: url(URL) } p { font-family: f }</style><p>text</p>",
    "background": "<p style='background: url(URL)'>text</p>",
    "picture": "<img src='URL'>",
    "picture-set": "<img srcset='URL 1x'>",
    "svg-picture": "<svg><image href='URL' width=9 height=9 /></svg>",
    "svg-filter": "<svg><filter id=f><feImage href='URL'/></filter><rect width=9 height=9 filter='url(#f)'/></svg>",
    "video": "<video src='URL' preload=auto></video>",
    "poster": "<video poster='URL'></video>",
    "base": "<base href='URL'><img src='a.png'>",
}
WITH_SCRIPTS = {
    "location": "<script>location = 'URL'</script>",
    "own-iframe": "<script>const f = document.createElement('iframe'); f.src = 'URL';"
    "document.documentElement.append(f)</script>",
    "anchor": "<a id=a href='URL'>x</a><script>a.click()</script>",
    "form": "<form id=f action='URL'></form><script>f.submit()</script>",
    "window": "<script>open('URL')</script>",
    "fetch": "<script>fetch('URL').catch(() => 0)</script>",
    "beacon": "<script>navigator.sendBeacon('URL')</script>",
    "socket": "<script>new WebSocket('URL'.replace('http', 'ws'))</script>",
    "turn": """<script>const c = new RTCPeerConnection({ iceServers:
        [{ urls: 'turn:HOST?transport=tcp', username: 'a', credential: 'b' }] });
        c.createDataChannel('x'); c.createOffer().then(offer => c.setLocalDescription(offer))</script>""",
}
WAYS = WITHOUT_SCRIPTS | WITH_SCRIPTS
REMAINDER = {
    "iframe",
    "iframe-in-svg",
    "refresh",
    "location",
    "own-iframe",
    "anchor",
    "look-up",
    "preconnect",
}
"""What still leaves a page that a person runs; the tooltip of the button says so."""


class Sockets:
    """A listener for each way; `reached` are those to which somebody connected."""

    def __init__(self) -> None:
        self.reached: set[str] = set()
        self.ports = {way: self._listen(way) for way in WAYS}

    def _listen(self, way: str) -> int:
        listener = socket.create_server(("127.0.0.1", 0))

        def accept() -> None:
            while True:
                connection, _ = listener.accept()
                self.reached.add(way)
                connection.close()

        threading.Thread(target=accept, daemon=True).start()
        return int(listener.getsockname()[1])

    def page(self, way: str) -> bytes:
        """The page that takes this way."""
        host = f"{way}.{ZONE}:{self.ports[way]}"
        return WAYS[way].replace("URL", f"http://{host}/").replace("HOST", host).encode()


@pytest.fixture(scope="module")
def sockets() -> Sockets:
    return Sockets()


@pytest.fixture(scope="module")
def bare_sockets() -> Sockets:
    """Those of the canary: what it reaches late is not taken for a leak of the test that follows."""
    return Sockets()


@contextmanager
def observed(playwright: Playwright, log: Path) -> Iterator[Page]:
    """A page of a browser that resolves the zone to this machine and writes all that its network does to `log`."""
    arguments = [f"--host-resolver-rules=MAP *.{ZONE} 127.0.0.1", f"--log-net-log={log}"]
    browser = playwright.chromium.launch(
        executable_path=require_program("chromium"), args=[*ARGUMENTS, *arguments]
    )
    try:
        page = browser.new_page(viewport={"width": 1000, "height": 16_000})
        page.set_default_timeout(PATIENCE)
        yield page
    finally:
        browser.close()


def named(log: Path) -> set[str]:
    """The ways whose names Chromium's network has heard of."""
    return set(re.findall(rf"([\w-]+)\.{re.escape(ZONE)}", log.read_text("utf-8", "replace")))


@pytest.fixture(scope="module")
def pages(
    sockets: Sockets, bare_sockets: Sockets, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """All ways as they are shown: by the view, by a saved card, and by nothing that protects."""
    folder = tmp_path_factory.mktemp("leaks")
    files = {f"{way}.html": sockets.page(way) for way in WAYS}
    shows = "lsn.show(RUN, { trusted: TRUSTED }); window.shown = true;"
    made = {}
    for name, replaced, trusted, reached in (
        ("view", {}, "true", sockets),
        ("untrusted", {}, "false", sockets),
        ("bare", UNPROTECTED, "true", bare_sockets),
    ):
        script, style = build(folder / name / "built", replaced)
        extra = shows.replace("RUN", json.dumps(run_with_pages(reached))).replace("TRUSTED", trusted)
        made[name] = folder / f"{name}.html"
        made[name].write_text(page_html(script, style, extra), encoding="utf-8")
    made["card"] = folder / "card.html"
    made["card"].write_text(
        "<body>" + "".join(sandboxed_frame(data) for data in files.values()), encoding="utf-8"
    )
    return made


def run_with_pages(sockets: Sockets) -> dict[str, Any]:
    """A run that made the page of each way."""
    files = {f"{way}.html": sockets.page(way) for way in WAYS}
    saved = [
        ev.ArtifactSaved(step=None, path=path, mime="text/html", size=len(data), sha256="0" * 64)
        for path, data in files.items()
    ]
    return bundle([ev.RunStarted(run_id="r1", task="t", model="m"), *saved], files)


@pytest.mark.parametrize("shown", ["view", "untrusted", "card"])
def test_a_page_that_nobody_runs_reaches_no_host(
    playwright: Playwright, sockets: Sockets, pages: dict[str, Path], tmp_path: Path, shown: str
) -> None:
    sockets.reached.clear()
    with observed(playwright, tmp_path / "net.json") as page:
        page.goto(pages[shown].as_uri())
        assert eventually(page, lambda: len(page.frames) > 2 * len(WAYS)), "all are shown"
        page.wait_for_timeout(3000)
    assert not sockets.reached
    assert not named(tmp_path / "net.json")


def test_without_the_protection_each_way_reaches_its_host(
    playwright: Playwright, bare_sockets: Sockets, pages: dict[str, Path], tmp_path: Path
) -> None:
    """The canary."""
    with observed(playwright, tmp_path / "net.json") as page:
        page.goto(pages["bare"].as_uri(), wait_until="commit")
        eventually(page, lambda: bare_sockets.reached == set(WAYS))
    assert bare_sockets.reached == set(WAYS)
    assert named(tmp_path / "net.json") >= set(WAYS) - {"turn"}


@pytest.mark.parametrize("shown", ["view", "card"])
def test_what_leaves_a_page_that_runs_is_the_remainder(
    playwright: Playwright, sockets: Sockets, pages: dict[str, Path], tmp_path: Path, shown: str
) -> None:
    sockets.reached.clear()
    with observed(playwright, tmp_path / "net.json") as page:
        page.goto(pages[shown].as_uri())
        assert eventually(page, lambda: len(page.frames) > 2 * len(WAYS)), "all are shown"
        page.wait_for_timeout(1000)
        places = page.main_frame.child_frames if shown == "card" else [page.main_frame]
        for place in places:
            while (button := place.locator("button:visible", has_text="Run this page")).count():
                button.first.click()
        eventually(page, lambda: {"location", "own-iframe"} <= sockets.reached)
        page.wait_for_timeout(3000)
    reached = sockets.reached | named(tmp_path / "net.json")
    assert {"location", "own-iframe"} <= reached, "the pages ran"
    assert reached <= REMAINDER
