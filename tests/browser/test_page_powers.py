"""What a page that runs can do to the person who looks at it: 27 powers, each tried after a real click into the page.

docs/reference/running-pages.md has the table. The same page, in a frame without protection, is the canary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import personal_window
from playwright.sync_api import BrowserContext, Dialog, Error, Frame, Locator, Page, Playwright, expect
from view_page import bundle, page_html
from waiting import eventually

from llm_sandbox_nb.trajectory import events as ev

ROOT = "http://localhost:1/"
"""A secure place: nothing listens there, the test answers."""
TABLE = Path(__file__).parents[2] / "docs" / "reference" / "running-pages.md"
MEDIA = "navigator.mediaDevices.getUserMedia"
AT_A_CLICK = {
    "reads the clipboard": "await navigator.clipboard.readText(); return true",
    "writes the clipboard": "await navigator.clipboard.writeText('taken'); return true",
    "copies text that is selected in it": "getSelection().selectAllChildren(document.body);"
    "return document.execCommand('copy')",
    "fills the screen": "await document.body.requestFullscreen(); return !!document.fullscreenElement",
    "captures the mouse pointer": "await document.body.requestPointerLock(); return true",
    "shows notifications": "await Notification.requestPermission(); const n = new Notification('x');"
    "return await new Promise(done => { n.onshow = () => done(true); n.onerror = () => done(false) })",
    "alert": "alert('power'); return false",
    "confirm": "return confirm('power')",
    "prompt": "return prompt('power') !== null",
    "prints": "let p = false; addEventListener('beforeprint', () => { p = true }); print(); return p",
    "opens windows": "return !!open('about:blank')",
    "opens another page in the whole tab": "top.location.href = 'ROOT#reached'; return false",
    "downloads": "const a = document.createElement('a'); a.download = 'x'; a.href = 'data:,x'; a.click(); return false",
    "sends forms": "const f = document.createElement('form'); f.action = 'ROOTform'; f.target = 'sink';"
    "document.body.append(f); f.submit(); return false",
    "reads your location": "await new Promise((yes, no) => navigator.geolocation.getCurrentPosition(yes, no));"
    "return true",
    "uses the camera": f"await {MEDIA}({{ video: true }}); return true",
    "uses the microphone": f"await {MEDIA}({{ audio: true }}); return true",
    "records the screen": "await navigator.mediaDevices.getDisplayMedia(); return true",
    "reads the motion sensors of the device": "new Gyroscope(); return true",
    "lists your fonts": "await queryLocalFonts(); return true",
    "reads the layout of your keyboard": "await navigator.keyboard.getLayoutMap(); return true",
    "stores data": "localStorage.setItem('x', '1'); return true",
    "plays sound after a click into it": "const c = new AudioContext(); await c.resume(); return c.state === 'running'",
    "asks you to choose a file": "const i = document.createElement('input'); i.type = 'file'; i.click(); return false",
}
"""Says whether it worked, in the page; the rest is seen from outside."""
WITHOUT_CLICK = {
    "plays sound without a click",
    "takes the keyboard",
    "gets text and files that are dragged over it",
}
POWERS = {*AT_A_CLICK, *WITHOUT_CLICK}
NAMED = {
    "copies text that is selected in it",
    "plays sound after a click into it",
    "asks you to choose a file",
}
"""On the button that runs a page."""
PERMISSIONS = [
    "clipboard-read",
    "clipboard-write",
    "notifications",
    "geolocation",
    "camera",
    "microphone",
    "midi",
]
SWITCHES = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]


def page_of_powers() -> bytes:
    """A button for each power; it is disabled while it tries, and then says `yes` or `no`."""
    tries = "".join(f"{name!r}: async () => {{ {code} }}," for name, code in AT_A_CLICK.items())
    script = f"""
      const tries = {{ {tries} }};
      const sound = new AudioContext();
      const told = document.getElementById('told');
      addEventListener('keydown', event => {{ told.dataset.keys = (told.dataset.keys ?? '') + event.key }});
      addEventListener('dragover', event => event.preventDefault());
      addEventListener('drop', event => {{
        told.dataset.drop = event.dataTransfer.getData('text/plain');
        event.preventDefault();
      }});
      setTimeout(() => {{ told.dataset.sound = sound.state }}, 500);
      for (const [name, attempt] of Object.entries(tries)) {{
        const button = document.createElement('button');
        button.id = name.replaceAll(' ', '-');
        button.textContent = 'try';
        button.onclick = async () => {{
          const late = new Promise(done => setTimeout(done, 3000, false));
          const worked = await Promise.race([attempt(), late]).catch(() => false);
          button.textContent = worked ? 'yes' : 'no';
          if (document.fullscreenElement) await document.exitFullscreen();
          document.exitPointerLock();
        }};
        document.body.append(button);
      }}
      document.getElementById('steal').onclick = () => setTimeout(() => {{
        const own = document.createElement('iframe');
        document.body.append(own);
        const {{ focus }} = own.contentWindow;
        setInterval(() => focus.call(window), 5);
      }}, 500);
    """.replace("ROOT", ROOT)
    return f"<p id=told>told</p><button id=steal>steal</button><script>{script}</script>".encode()


@pytest.fixture
def window(playwright: Playwright, assets: tuple[str, str], tmp_path: Path) -> Iterator[BrowserContext]:
    with personal_window(playwright, tmp_path / "profile", *SWITCHES) as opened:
        opened.grant_permissions(PERMISSIONS, origin=ROOT)
        opened.set_geolocation({"latitude": 1, "longitude": 1})
        opened.route(
            f"{ROOT}**", lambda route: route.fulfill(body=page_html(*assets), content_type="text/html")
        )
        yield opened


def around(page: Page) -> None:
    """What the person has beside the page: a cell, and something to drag."""
    html = "<p id=drag draggable=true>dragged text</p><textarea id=cell></textarea><iframe name=sink hidden></iframe>"
    page.evaluate("html => document.body.insertAdjacentHTML('afterbegin', html)", html)
    page.evaluate(
        "() => { document.getElementById('drag').ondragstart = e => e.dataTransfer.setData('text/plain', 'dragged') }"
    )


def tried(page: Page, frame: Frame, enter: Locator | None) -> set[str]:
    """The powers that work in the page in `frame`, which is entered by a click on `enter`, or has no protection."""
    worked: set[str] = set()
    told = frame.locator("#told")

    def accept(dialog: Dialog) -> None:
        worked.add(dialog.type)
        dialog.accept()

    page.on("dialog", accept)
    page.on("popup", lambda opened: opened.close())
    page.on("download", lambda _: worked.add("downloads"))
    page.on("filechooser", lambda _: worked.add("asks you to choose a file"))
    page.context.on("request", lambda sent: worked.add("sends forms") if sent.url == f"{ROOT}form?" else None)
    expect(told).to_have_attribute("data-sound", re.compile("."))
    if told.get_attribute("data-sound") == "running":
        worked.add("plays sound without a click")
    page.drag_and_drop("#drag", "iframe.tried", force=True)
    if told.get_attribute("data-drop"):
        worked.add("gets text and files that are dragged over it")
    for name in AT_A_CLICK:
        if enter and enter.is_visible():
            enter.click()
        button = frame.locator(f"[id='{name.replace(' ', '-')}']")
        button.click()
        expect(button).to_have_text(re.compile("yes|no"))
        if button.text_content() == "yes":
            worked.add(name)
    if page.url.endswith("#reached"):
        worked.add("opens another page in the whole tab")
    frame.locator("#steal").click()
    page.click("#cell")

    def is_over() -> bool:
        page.keyboard.press("s")
        if page.get_by_text("took the keyboard").count():
            return True
        try:
            return bool(frame.locator("#told").get_attribute("data-keys", timeout=5_000))
        except Error:  # it was stopped meanwhile, and its frame is gone
            return False

    assert eventually(page, is_over)
    if not page.get_by_text("took the keyboard").count():
        worked.add("takes the keyboard")
    return worked


def test_a_page_has_no_powers_but_those_named_on_its_button(window: BrowserContext) -> None:
    bare = window.new_page()
    bare.goto(ROOT)
    around(bare)
    bare.evaluate(
        "html => { const f = document.createElement('iframe'); f.className = 'tried'; f.srcdoc = html;"
        " document.body.append(f); }",
        page_of_powers().decode(),
    )
    bare.click("#cell")
    unprotected = bare.locator("iframe.tried").element_handle().content_frame()
    assert unprotected is not None
    assert tried(bare, unprotected, None) == POWERS, "the canary: all of them work without the protection"
    bare.close()

    page = window.new_page()
    page.goto(ROOT)
    around(page)
    event = ev.ArtifactSaved(step=None, path="a.html", mime="", size=1, sha256="0" * 64)
    page.evaluate("run => { lsn.showFile(run, 'a.html') }", bundle([event], {"a.html": page_of_powers()}))
    button = page.locator("text=Run this page")
    named = button.get_attribute("title") or ""
    button.click()
    outer = page.locator(".lsn-frame")
    expect(outer).to_have_attribute("sandbox", "allow-scripts")
    outer.evaluate("frame => frame.classList.add('tried')")
    inside = outer.element_handle().content_frame()
    assert inside is not None
    assert eventually(page, lambda: len(inside.child_frames) == 1)
    frame = inside.child_frames[0]
    features = "document.featurePolicy.allowedFeatures()"
    expect(frame.locator("#told")).to_be_attached()
    assert [name for name in frame.evaluate(features) if not name.startswith("ch-")] == []
    assert tried(page, frame, page.locator(".lsn-frame-cover")) == NAMED
    for word in ("keys", "sound", "clipboard", "file"):
        assert word in named
    rows = re.findall(r"^\| ([^|]+?) \|", TABLE.read_text("utf-8"), re.MULTILINE)
    assert set(rows) >= POWERS
