"""What a page that the model made tells other hosts: sockets and look-ups of names, not requests.

Chromium starts as a person starts it: under its driver's switches, preconnect and dns-prefetch do nothing.
A browser looks up a host and connects to it before a policy refuses to go there, so data leaves in name and port.
Every name below is in a zone of its own, which Chromium maps to this machine; each way has a port of its own, so that
a connection tells which way was taken. Names that are only looked up are found in Chromium's log of the network.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import personal_window
from playwright.sync_api import BrowserContext, Error, Page, Playwright
from test_hostile import UNPROTECTED
from view_page import build, bundle, page_html
from waiting import eventually

from llm_sandbox_nb.card.frame import sandboxed_frame
from llm_sandbox_nb.trajectory import events as ev

ZONE = "leak.test"
HERE = "127." + ".".join(str(secrets.randbelow(253) + 1) for _ in range(3))
"""An address of this machine to which nobody else connects, whatever port others look for."""
WITHOUT_SCRIPTS = {
    "iframe": "<iframe src='URL'></iframe>",
    "iframe-in-svg": "<svg><foreignObject><iframe src='URL'></iframe></foreignObject></svg>",
    "object": "<object data='URL'></object>",
    "embed": "<embed src='URL'>",
    "refresh": "<meta http-equiv=refresh content='0;url=URL'>",
    "prefetch": "<link rel=prefetch href='URL'>",
    "preconnect": "<link rel=preconnect href='URL'>",
    "dns-prefetch": "<link rel=dns-prefetch href='URL'>",
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
    "preconnect",
}
"""What still leaves a page that a person runs; the tooltip of the button says so."""

ONLY_NAMED = {"dns-prefetch"}
"""Look up a name and connect to nothing: the log has the name only if it is not mapped."""
SHOWN = ("view", "untrusted", "card")
"""By the view, by the view of a notebook that nobody trusts, and by a saved card."""
AROUND = {
    "top": "<script>try { top.location = 'URL' } catch (error) {}</script>",
    "parent": "<script>try { parent.location = 'URL' } catch (error) {}</script>",
    "title": "<script>try { top.document.title = 'reached' } catch (error) {}</script>",
}
"""What would change the page around a page that runs."""
RAN = "<p id=p></p><script>p.textContent = 'ran'</script>"


class Sockets:
    """A listener for each way: somebody connected to those of `reached`, and sent something to those of `asked`."""

    def __init__(self, name: str) -> None:
        self.zone = f"{name}.{ZONE}"
        self.reached: set[str] = set()
        self.asked: set[str] = set()
        self.ports = {way: self._listen(way) for way in (*WAYS, *AROUND)}

    def _listen(self, way: str) -> int:
        listener = socket.create_server((HERE, 0))

        def accept() -> None:
            while True:
                connection, _ = listener.accept()
                self.reached.add(way)
                threading.Thread(target=read, args=(connection,), daemon=True).start()

        def read(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                if connection.recv(1):
                    self.asked.add(way)

        threading.Thread(target=accept, daemon=True).start()
        return int(listener.getsockname()[1])

    def filled(self, way: str, text: str) -> bytes:
        host = f"{way}.{self.zone}:{self.ports[way]}"
        return text.replace("URL", f"http://{host}/").replace("HOST", host).encode()

    def named(self, log: Path) -> set[str]:
        return set(re.findall(rf"([\w-]+)\.{re.escape(self.zone)}", log.read_text("utf-8", "replace")))


@pytest.fixture(scope="module")
def sockets() -> dict[str, Sockets]:
    return {name: Sockets(name) for name in (*SHOWN, "bare")}


@pytest.fixture(scope="module")
def pages(sockets: dict[str, Sockets], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All ways as they are shown, and with nothing that protects."""
    folder = tmp_path_factory.mktemp("leaks")
    ways = {
        name: {f"{way}.html": one.filled(way, WAYS[way]) for way in WAYS} for name, one in sockets.items()
    }
    scripts = {"view": build(folder / "built"), "bare": build(folder / "bare", UNPROTECTED)}
    scripts["untrusted"] = scripts["view"]
    made = {name: folder / f"{name}.html" for name in sockets}
    for name, (script, style) in scripts.items():
        run = json.dumps(run_with_pages(ways[name]))
        shows = f"lsn.show({run}, {{ trusted: {json.dumps(name != 'untrusted')} }});"
        made[name].write_text(page_html(script, style, shows), "utf-8")
    made["card"].write_text(
        "<body>" + "".join(sandboxed_frame(data) for data in ways["card"].values()), "utf-8"
    )
    return made


def run_with_pages(files: dict[str, bytes]) -> dict[str, Any]:
    saved = [
        ev.ArtifactSaved(step=None, path=path, mime="text/html", size=len(data), sha256="0" * 64)
        for path, data in files.items()
    ]
    return bundle([ev.RunStarted(run_id="r1", task="t", model="m"), *saved], files)


@contextlib.contextmanager
def observed(playwright: Playwright, log: Path) -> Iterator[BrowserContext]:
    """A window of a browser that finds the zone on this machine and writes all that its network does to `log`."""
    # Windows that open without a click are for the page without protection, the canary.
    rules = f"--host-resolver-rules=MAP *.{ZONE} {HERE}, EXCLUDE dns-prefetch.*"
    switches = (rules, f"--log-net-log={log}", "--disable-popup-blocking")
    profile = log.with_name("profile")
    with personal_window(
        playwright, profile, *switches, viewport={"width": 1000, "height": 16_000}
    ) as window:
        yield window


def show(window: BrowserContext, page: Path) -> Page:
    tab = window.new_page()
    tab.goto(page.as_uri())
    assert eventually(tab, lambda: len(tab.frames) > 2 * len(WAYS)), "all are shown"
    return tab


def run_pages(tab: Page) -> None:
    """Press the button of each page: in a view, or within each frame of a card, which stays as it is."""
    in_view = tab.get_by_role("button", name="Run this page").count()
    for place in [tab.main_frame] if in_view else tab.main_frame.child_frames:
        while (button := place.locator("button:visible", has_text="Run this page")).count():
            button.first.click()


def let_pass(window: BrowserContext, sockets: dict[str, Sockets], pages: dict[str, Path]) -> None:
    """The canary, and time: until each way reached its host from a page without protection, opened later."""
    tab = window.new_page()
    tab.goto(pages["bare"].as_uri(), wait_until="commit")
    bare, expected = sockets["bare"], set(WAYS) - ONLY_NAMED
    assert eventually(tab, lambda: bare.reached >= expected), expected - bare.reached
    assert eventually(tab, lambda: bare.asked >= {"location", "iframe", "fetch", "form", "picture", "style"})


@pytest.fixture(autouse=True)
def nothing_reached(sockets: dict[str, Sockets]) -> None:
    for one in sockets.values():
        one.reached.clear()
        one.asked.clear()


def test_a_page_that_nobody_runs_reaches_no_host(
    playwright: Playwright, sockets: dict[str, Sockets], pages: dict[str, Path], tmp_path: Path
) -> None:
    log = tmp_path / "net.json"
    with observed(playwright, log) as window:
        for name in SHOWN:
            show(window, pages[name])
        let_pass(window, sockets, pages)
    for name in SHOWN:
        assert not sockets[name].reached, name
        assert not sockets[name].named(log), name
    assert sockets["bare"].named(log) >= set(WAYS) - {"turn"}


@pytest.mark.campaign
def test_what_leaves_a_page_that_runs_is_the_remainder(
    playwright: Playwright, sockets: dict[str, Sockets], pages: dict[str, Path], tmp_path: Path
) -> None:
    """A host name and a connection, and never a request."""
    log = tmp_path / "net.json"
    with observed(playwright, log) as window:
        for name in ("view", "card"):
            tab = show(window, pages[name])
            run_pages(tab)
            assert eventually(tab, lambda name=name: {"location", "own-iframe"} <= sockets[name].reached)
        let_pass(window, sockets, pages)
    for name in ("view", "card"):
        assert sockets[name].reached | sockets[name].named(log) <= REMAINDER, name
        assert not sockets[name].asked, name


@pytest.mark.parametrize("shown", ["view", pytest.param("card", marks=pytest.mark.campaign)])
def test_a_page_that_runs_changes_nothing_around_it(
    playwright: Playwright, assets: tuple[str, str], sockets: dict[str, Sockets], tmp_path: Path, shown: str
) -> None:
    one = sockets[shown]
    files = {f"{way}.html": one.filled(way, text + RAN) for way, text in AROUND.items()}
    path = tmp_path / "page.html"
    if shown == "card":
        path.write_text("<title>run</title>" + "".join(map(sandboxed_frame, files.values())), "utf-8")
    else:
        shows = f"lsn.show({json.dumps(run_with_pages(files))}, {{ trusted: true }});"
        path.write_text(page_html(*assets, shows), "utf-8")
    with observed(playwright, tmp_path / "net.json") as window:
        tab = window.new_page()
        tab.goto(path.as_uri())
        assert eventually(tab, lambda: len(tab.frames) > 2 * len(AROUND)), "all are shown"
        run_pages(tab)

        def have_run() -> bool:
            with contextlib.suppress(Error):  # a frame that is replaced meanwhile
                return sum(one.locator("#p", has_text="ran").count() for one in tab.frames) == len(AROUND)
            return False

        assert eventually(tab, have_run)
        assert (tab.url, tab.title()) == (path.as_uri(), "run")
        for way in ("top", "parent"):  # the canary, in another tab: without the frames they go there
            bare = window.new_page()
            bare.set_content(sockets["bare"].filled(way, AROUND[way]).decode(), wait_until="commit")
            assert eventually(bare, lambda way=way: way in sockets["bare"].asked)
        assert not one.asked
        assert (tab.url, tab.title()) == (path.as_uri(), "run")
