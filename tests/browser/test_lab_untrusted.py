"""The runs in a notebook that nobody trusts make no request before a click: not to this server, and to no other.

Lab itself loads pictures that HTML outputs name, with or without our extension: the card's own page names none.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

from playwright.sync_api import Page, expect
from servers import FrontEnd, open_notebook
from view_page import bundle
from waiting import eventually

from llm_sandbox_nb.card.bundle import MIME, live_json
from llm_sandbox_nb.trajectory import events as ev

WORDS = ("beside.txt", "-over", "-live", "folder", "/outside/")
"""In requests that are made for what the notebook holds."""


def hostile_outputs(mark: str) -> list[dict[str, Any]]:
    """What a stranger would put into cells so that the page asks for things: each address has the mark in it."""
    outside = f"http://127.0.0.1:9/outside/{mark}"
    page = f"<img src='{outside}/page.png'><script src='{outside}/page.js'></script>"
    run = bundle(
        [
            ev.RunStarted(run_id=f"{mark}-over", task=f"![x]({outside}/task.png)", model="m"),
            ev.ArtifactSaved(step=None, path="beside.txt", mime="text/plain", size=5, sha256="0" * 64),
            ev.ArtifactSaved(step=None, path="page.html", mime="text/html", size=5, sha256="0" * 64),
            ev.RunFinished(
                stop_reason="submitted", answer=f"![x]({outside}/answer.png)", steps=0, wall_time=1.0
            ),
        ],
        {"page.html": page.encode()},
    )
    run["run_id"] = f"{mark}-over"
    run["artifacts"]["beside.txt"] = {"mime": "text/plain", "size": 5, "href": f"{mark}/beside.txt"}
    live = live_json(f"{mark}-live", f"{mark}/folder")
    return [
        {"output_type": "display_data", "metadata": {}, "data": {MIME: data, "text/html": "<p>card</p>"}}
        for data in (run, live)
    ]


def test_an_untrusted_notebook_makes_no_request_before_a_click(server: FrontEnd, page: Page) -> None:
    mark = f"mark{secrets.token_hex(6)}"
    path = server.notebook("stranger.ipynb", "1")
    (server.root / mark).mkdir()
    (server.root / mark / "beside.txt").write_text("hello")
    content = json.loads((server.root / path).read_text())
    content["cells"][0]["outputs"] = hostile_outputs(mark)
    (server.root / path).write_text(json.dumps(content))
    sent: list[str] = []
    page.on("request", lambda request: sent.append(f"{request.url} {request.post_data or ''}"))
    page.on("websocket", lambda socket: sent.append(socket.url))

    def marked() -> set[str]:
        return {word for word in WORDS if any(mark in one and word in one for one in sent)}

    page.set_viewport_size({"width": 1200, "height": 2000})
    open_notebook(page, server, path)
    expect(page.locator(".lsn-host")).to_have_count(2)
    expect(page.locator(".lsn-artifact")).to_have_count(2)
    expect(page.get_by_text("Not loaded: this notebook is not trusted")).to_be_visible()
    asks = page.get_by_role("button", name="Ask the server")
    expect(asks).to_be_visible()
    page.wait_for_timeout(3_000)  # on purpose: nothing may happen meanwhile
    assert marked() == set(), [one[:300] for one in sent if mark in one]

    asks.click()  # the canaries: after a click, and in a notebook that is trusted, requests are seen here
    assert eventually(page, lambda: marked() >= {"-live", "folder"})
    page.evaluate("() => { jupyterapp.commands.execute('notebook:trust') }")
    page.get_by_role("dialog").get_by_role("button", name="Trust").click()
    assert eventually(page, lambda: marked() >= {"beside.txt", "-over"}), sent
    assert "/outside/" not in marked(), "other hosts are asked for nothing, trusted or not"
