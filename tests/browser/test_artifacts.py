"""Files that need a real browser to be shown: pictures, sound, frames, downloads. Others: artifacts.test.mjs."""

from __future__ import annotations

import functools
import io
import math
import struct
import wave
from collections.abc import Iterator
from typing import Any

import pytest
from failures import new_window
from PIL import Image
from playwright.sync_api import Browser, Page, expect
from view_page import bundle, page_html
from waiting import eventually

from llm_sandbox_nb.trajectory import events as ev


def png(width: int = 600, height: int = 300) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (228, 87, 46)).save(out, "PNG")
    return out.getvalue()


def wav(seconds: float = 1.0) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        count = int(8000 * seconds)
        file.writeframes(b"".join(struct.pack("<h", int(20_000 * math.sin(i / 3))) for i in range(count)))
    return out.getvalue()


def midi(*events: bytes, length: int | None = None, division: int = 480) -> bytes:
    track = b"".join(events)
    size = len(track) if length is None else length
    return b"MThd" + struct.pack(">IHHH", 6, 0, 1, division) + b"MTrk" + struct.pack(">I", size) + track


NOTES = [bytes([0, 0x90, pitch, 90]) + bytes([0x83, 0x60, 0x80, pitch, 0]) for pitch in (60, 64, 67)]
END = b"\x00\xff\x2f\x00"


@pytest.fixture(scope="module")
def open_page(browser: Browser, assets: tuple[str, str]) -> Iterator[Page]:
    """One page with the view's script; each test shows its own files there."""
    with new_window(browser, viewport={"width": 1000, "height": 900}) as window:
        page = window.new_page()
        page.route(
            "http://view.test/",
            lambda route: route.fulfill(body=page_html(*assets), content_type="text/html"),
        )
        page.goto("http://view.test/")
        yield page


@pytest.fixture
def view(open_page: Page) -> Page:
    open_page.evaluate("document.getElementById('view').replaceChildren()")
    return open_page


def show(page: Page, path: str, data: bytes, **options: Any) -> None:
    """Show one file and wait until it is there. `entry` is added to what the bundle keeps of it."""
    entry = options.pop("entry", {})
    event = ev.ArtifactSaved(step=None, path=path, mime="", size=len(data), sha256="0" * 64)
    run = bundle([event], {path: data})
    run["artifacts"][path].update(entry)
    page.evaluate(
        "([run, path, options]) => { window.shown = lsn.showFile(run, path, options) }", [run, path, options]
    )
    page.wait_for_selector(".lsn-artifact-body:not([aria-busy])", state="attached")


def test_a_picture_fits_and_is_zoomed_with_mouse_and_keys(view: Page) -> None:
    show(view, "plots/a.png", png(2000, 1000))
    stage = view.locator(".lsn-picture")
    view.wait_for_function("document.querySelector('.lsn-picture').dataset.zoom === 'fit'")
    width = "document.querySelector('.lsn-picture img').clientWidth"
    view.wait_for_function(f"{width} < 1000")
    view.click(".lsn-picture img")
    view.wait_for_function(f"{width} === 2000")
    view.click(".lsn-picture img")
    view.wait_for_function(f"{width} === 6000")
    stage.press("0")
    view.wait_for_function(f"{width} < 1000")
    stage.press("Enter")
    stage.press("+")
    view.wait_for_function(f"{width} === 3000")
    expect(view.locator(".lsn-artifact")).to_contain_text("2000 × 1000")


def test_other_pictures_are_shown_and_what_is_none_says_so(view: Page) -> None:
    for format in ("JPEG", "GIF", "WEBP"):
        view.evaluate("document.getElementById('view').replaceChildren()")
        out = io.BytesIO()
        Image.new("RGB", (20, 10), (10, 20, 30)).save(out, format)
        show(view, f"a.{format.lower()}", out.getvalue())
        view.wait_for_function("document.querySelector('.lsn-picture img').naturalWidth === 20")
    show(view, "a.png", b"<html><script>1</script>")
    view.wait_for_selector("text=This picture cannot be shown")


def test_sound_plays_and_has_a_waveform(view: Page) -> None:
    show(view, "a.wav", wav(2.0))
    view.wait_for_function("document.querySelector('audio').duration === 2")
    view.wait_for_selector(".lsn-wave:visible")
    drawn = """() => { const c = document.querySelector('.lsn-wave');
      return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(x => x) }"""
    view.wait_for_function(drawn)
    view.click(".lsn-wave", position={"x": 300, "y": 20})
    view.wait_for_function("document.querySelector('audio').currentTime > 0.3")


def test_what_cannot_be_played_says_so(view: Page) -> None:
    for name in ("a.mp3", "a.mp4"):
        view.evaluate("document.getElementById('view').replaceChildren()")
        show(view, name, b"no media at all")
        view.wait_for_selector("text=cannot play")


def test_midi_is_a_piano_roll(view: Page) -> None:
    show(view, "song.mid", midi(*NOTES, END))
    expect(view.locator(".lsn-artifact")).to_contain_text("3 notes, 1 track, 1.5 s")
    drawn = """() => { const c = document.querySelector('.lsn-roll');
      return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(x => x) }"""
    view.wait_for_function(drawn)


def test_a_file_is_downloaded_also_after_the_browser_has_cleaned_up(view: Page) -> None:
    """Its address lives as long as its element is in the page, whether or not a script still holds that."""
    show(view, "out/a.bin", b"some bytes")
    session = view.context.new_cdp_session(view)
    view.evaluate(
        "() => { window.told = 0; window.registry = new FinalizationRegistry(() => { told += 1; }); }"
    )

    def is_told(count: int) -> bool:
        view.evaluate("() => registry.register({})")
        session.send("HeapProfiler.collectGarbage")
        return bool(view.evaluate("count => told >= count", count))

    for count in (1, 2, 3):
        assert eventually(view, functools.partial(is_told, count))
    with view.expect_download() as waiting:
        view.click("text=Download")
    assert waiting.value.suggested_filename == "a.bin"
    assert waiting.value.path().read_bytes() == b"some bytes"


def test_a_picture_opens_in_a_tab_under_its_own_type(view: Page) -> None:
    show(view, "a.png", b"<script>document.title = 'ran'</script>")
    with view.context.expect_page() as waiting:
        view.click("text=Open in a new tab")
    waiting.value.wait_for_function("document.contentType === 'image/png'")
    waiting.value.close()


def test_a_page_opens_in_a_tab_within_its_frame(view: Page) -> None:
    show(
        view,
        "a.html",
        b"<p id=p>hello</p><script>try { top.document.title = 'reached' } catch (e) { p.textContent += '!' }</script>",
    )
    for expected in ("hello", "hello!"):  # without its scripts, and when it runs
        with view.context.expect_page() as waiting:
            view.click("text=Open in a new tab")
        tab = waiting.value
        expect(tab.frame_locator("iframe").locator("#p")).to_have_text(expected)
        if expected == "hello":
            tab.close()
            view.click("text=Run this page")
    assert tab.title() != "reached"
    assert tab.evaluate("window.opener") is None
    tab.close()


def inner(page: Page) -> Any:
    return page.frame_locator(".lsn-frame").frame_locator("iframe")


MAP = b"""<p id=p>none</p><script>
addEventListener('securitypolicyviolation', () => { p.textContent = 'forbidden' });
const image = new Image();
image.onload = image.onerror = () => { if (p.textContent === 'none') p.textContent = 'requested' };
setTimeout(() => { image.src = 'https://tiles.invalid/1.png' }, 50);
</script>"""


def test_the_network_is_allowed_for_one_file_of_one_run(view: Page) -> None:
    show(view, "map.html", MAP)
    assert not view.locator("text=Allow this file").count()
    view.click("text=Run this page")
    inner(view).locator("text=forbidden").wait_for()
    view.click("text=Allow this file to use the network")
    inner(view).locator("text=requested").wait_for()
    again = """() => { const { host, node } = window.shown; window.again = (event, change) => {
      document.getElementById('view').replaceChildren(lsn.renderArtifact({ ...event, ...change }, host)) } }"""
    view.evaluate(again)
    event = view.evaluate("window.shown.host.bundle.events[0]")
    view.evaluate("([event]) => again(event, {})", [event])
    inner(view).locator("text=requested").wait_for()
    view.evaluate("([event]) => again(event, { id: 'other-run' })", [event])
    view.click("text=Run this page")
    inner(view).locator("text=forbidden").wait_for()
    change = "const file = shown.host.bundle.artifacts['map.html']; file.data = btoa(atob(file.data) + ' ')"
    view.evaluate(f"([event]) => {{ {change}; again(event, {{}}) }}", [event])
    view.click("text=Run this page")
    inner(view).locator("text=forbidden").wait_for()


STATIC = b"<p id=p>static</p><script>p.textContent='ran'</script>"


def test_scripts_run_after_a_click_in_a_trusted_page_alone_or_at_once_where_a_person_says_so(
    view: Page,
) -> None:
    show(view, "a.html", STATIC, trusted=False)
    expect(inner(view).locator("#p")).to_have_text("static")
    expect(view.locator(".lsn-frame")).to_have_attribute("sandbox", "")
    for button in ("Allow this file", "Run this page"):
        expect(view.locator(f"text={button}")).to_have_count(0)
    expect(view.locator(".lsn-artifact")).to_contain_text("scripts do not run")
    view.evaluate("document.getElementById('view').replaceChildren()")
    show(view, "a.html", STATIC)
    expect(inner(view).locator("#p")).to_have_text("static")
    expect(view.locator(".lsn-frame")).to_have_attribute("sandbox", "")
    run = view.locator("text=Run this page")
    assert "few bytes in the host name" in (run.get_attribute("title") or "")
    run.click()
    inner(view).locator("text=ran").wait_for()
    expect(view.locator(".lsn-frame")).to_have_attribute("sandbox", "allow-scripts")
    view.click("text=Stop this page")
    inner(view).locator("text=static").wait_for()
    view.evaluate("document.getElementById('view').replaceChildren()")
    show(view, "a.html", STATIC, runsPages=True)
    inner(view).locator("text=ran").wait_for()


THIEF = b"""<h1>hello</h1><script>let keys = '';
addEventListener('keydown', event => { keys += event.key; document.querySelector('h1').textContent = keys });
const steal = () => {  // by the function of a frame of its own, from which nothing was taken away
  const own = document.createElement('iframe');
  document.body.append(own);
  const { focus } = own.contentWindow;
  setInterval(() => focus.call(window), 5);
};
WHEN</script>"""


@pytest.mark.parametrize("pointer", ["on the page", "on the artifact"])
def test_a_page_that_takes_the_keyboard_is_stopped(view: Page, pointer: str) -> None:
    """Without a click, in a loop, wherever the pointer rests: what is typed goes where the person writes."""
    show(view, "a.html", THIEF.replace(b"WHEN", b"setTimeout(steal, 1200)"))
    cell = "<textarea id=cell></textarea>"
    view.evaluate("html => document.getElementById('view').insertAdjacentHTML('afterbegin', html)", cell)
    view.click("text=Run this page")
    view.click("#cell")
    if pointer == "on the artifact":
        view.locator(".lsn-frame-cover").hover()
    told = view.get_by_text("took the keyboard")

    def is_told() -> bool:
        # It gets the key that is on its way while it takes the keyboard, and no other.
        view.keyboard.press("s")
        return told.count() > 0

    assert eventually(view, is_told), "it is told while a person types"
    before = view.input_value("#cell")
    view.keyboard.type("secret words")
    expect(view.locator("#cell")).to_have_value(f"{before}secret words")
    expect(inner(view).locator("h1")).to_have_text("hello")


def test_a_page_has_the_keyboard_from_a_click_into_it_until_one_elsewhere(view: Page) -> None:
    """By Tab and Enter too. What it does with `focus()` before is of no effect and ends nothing."""
    show(
        view,
        "a.html",
        b"<input id=i><script>const i = document.getElementById('i'); i.focus(); focus()</script>",
    )
    view.evaluate(
        "html => document.getElementById('view').insertAdjacentHTML('afterbegin', html)", "<input id=cell>"
    )
    view.click("text=Run this page")
    typed = inner(view).locator("#i")
    expect(typed).to_be_visible()
    view.locator(".lsn-frame-cover").focus()
    view.keyboard.press("Enter")
    view.keyboard.press("Tab")
    expect(typed).to_be_focused()
    view.keyboard.type("one")
    view.click("#cell")
    view.keyboard.type("two")
    view.click(".lsn-frame-cover")
    typed.click()
    view.keyboard.type("three")
    expect(typed).to_have_value("onethree")
    expect(view.locator("#cell")).to_have_value("two")
    expect(view.get_by_text("took the keyboard")).to_have_count(0)


def test_the_policy_is_that_of_the_static_card(view: Page) -> None:
    from llm_sandbox_nb.card.frame import DENIED, POLICY, PRELUDE, STATIC_POLICY

    assert view.evaluate("lsn.policy({ scripts: true, network: false })") == POLICY
    assert view.evaluate("lsn.policy({ scripts: false, network: false })") == STATIC_POLICY
    assert view.evaluate("[lsn.DENIED, lsn.PRELUDE]") == [DENIED, PRELUDE]
