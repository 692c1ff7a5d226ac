"""Each kind of file as a person sees it, in a real browser."""

from __future__ import annotations

import io
import json
import math
import struct
import wave
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page
from view_page import build, bundle, page_html

from llm_sandbox_nb.trajectory import events as ev

pytestmark = pytest.mark.slow


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
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_html(*build(tmp_path_factory.mktemp("view") / "built"))


@pytest.fixture(scope="module")
def open_page(browser: Browser, html: str) -> Iterator[Page]:
    """One page with the view's script; each test shows its own files there."""
    context = browser.new_context(viewport={"width": 1000, "height": 900}, accept_downloads=True)
    context.set_default_timeout(60_000)
    page = context.new_page()
    page.route("http://view.test/", lambda route: route.fulfill(body=html, content_type="text/html"))
    page.goto("http://view.test/")
    yield page
    context.close()


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


def text(page: Page) -> str:
    return page.inner_text(".lsn-artifact")


def test_a_picture_fits_and_is_zoomed_with_mouse_and_keys(view: Page) -> None:
    show(view, "plots/a.png", png(2000, 1000))
    stage = view.locator(".lsn-picture")
    view.wait_for_function("document.querySelector('.lsn-picture').dataset.zoom === 'fit'")
    width = "document.querySelector('.lsn-picture img').clientWidth"
    assert view.evaluate(width) < 1000
    view.click(".lsn-picture img")
    assert view.evaluate(width) == 2000
    view.click(".lsn-picture img")
    assert view.evaluate(width) == 6000
    stage.press("0")
    assert view.evaluate(width) < 1000
    stage.press("Enter")
    stage.press("+")
    assert view.evaluate(width) == 3000
    assert "2000 × 1000" in text(view)


@pytest.mark.parametrize("format", ["JPEG", "GIF", "WEBP"])
def test_other_pictures_are_shown(view: Page, format: str) -> None:
    out = io.BytesIO()
    Image.new("RGB", (20, 10), (10, 20, 30)).save(out, format)
    show(view, f"a.{format.lower()}", out.getvalue())
    view.wait_for_function("document.querySelector('.lsn-picture img').naturalWidth === 20")


def test_what_is_no_picture_says_so(view: Page) -> None:
    show(view, "a.png", b"<html><script>1</script>")
    view.wait_for_selector("text=This is no picture")


def test_sound_plays_and_has_a_waveform(view: Page) -> None:
    show(view, "a.wav", wav(2.0))
    view.wait_for_function("document.querySelector('audio').duration === 2")
    view.wait_for_selector(".lsn-wave:visible")
    drawn = """() => { const c = document.querySelector('.lsn-wave');
      return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(x => x) }"""
    view.wait_for_function(drawn)
    view.click(".lsn-wave", position={"x": 300, "y": 20})
    assert view.evaluate("document.querySelector('audio').currentTime") > 0.3


def test_what_cannot_be_played_says_so(view: Page) -> None:
    for name in ("a.mp3", "a.mp4"):
        view.evaluate("document.getElementById('view').replaceChildren()")
        show(view, name, b"no media at all")
        view.wait_for_selector("text=cannot play")


def test_midi_is_a_piano_roll(view: Page) -> None:
    show(view, "song.mid", midi(*NOTES, END))
    assert "3 notes, 1 tracks, 1.5 s" in text(view)
    drawn = """() => { const c = document.querySelector('.lsn-roll');
      return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(x => x) }"""
    view.wait_for_function(drawn)


TEMPO = b"\x00\xff\x51\x03\x0f\x42\x40"


@pytest.mark.parametrize(
    ("data", "notes", "damaged"),
    [
        (midi(TEMPO, *NOTES, END), 3, False),
        (midi(*NOTES, END, length=2**32 - 1), 3, True),
        (midi(*NOTES, b"\x00\xff\x01\x7f"), 3, True),
        (midi(*NOTES, b"\x00\xf0\xff\xff\xff\x7f"), 3, True),
        (midi(*NOTES, b"\xff\xff\xff\xff\xff\xff"), 3, True),
        (midi(*NOTES[:1], bytes(5)), 1, True),
        (midi(), 0, False),
        (midi(*NOTES, END, division=0), 3, False),
        (midi(*NOTES, END, division=0x8000), 3, False),
        (midi(*([b"\x00\x90\x3c\x40\x00\x80\x3c\x00"] * 30_000)), 20_000, True),
        (b"MThd" + b"\xff" * 40, 0, False),
        (b"MThd", 0, False),
        (b"MThd" + struct.pack(">IHHH", 6, 1, 9, 96) + b"MTrk\0\0\0\0" * 50_000, 0, False),
    ],
)  # fmt: skip
def test_midi_files_with_wrong_lengths(view: Page, data: bytes, notes: int, damaged: bool) -> None:
    score = view.evaluate(
        "data => { const t = performance.now(); const s = lsn.parseMidi(Uint8Array.from(data)); "
        "return { notes: s.notes.length, damaged: s.damaged, seconds: s.seconds, took: performance.now() - t } }",
        list(data),
    )
    assert (score["notes"], score["damaged"]) == (notes, damaged)
    assert score["took"] < 1000
    assert math.isfinite(score["seconds"])


def test_midi_tempo_is_heeded(view: Page) -> None:
    score = view.evaluate("data => lsn.parseMidi(Uint8Array.from(data))", list(midi(TEMPO, *NOTES, END)))
    assert [note["start"] for note in score["notes"]] == pytest.approx([0, 1, 2])
    assert view.evaluate("lsn.parseMidi(new TextEncoder().encode('RIFF....')) === null")


def test_csv_is_a_table_with_types(view: Page) -> None:
    rows = "\n".join(f'{i},{i / 2},2026-01-0{i % 9 + 1},"a ""b"", c",' for i in range(500))
    show(view, "t.csv", f"n,half,day,text,none\r\n{rows}\n".encode())
    heads = view.locator(".lsn-table th").all_inner_texts()
    assert [head.split() for head in heads] == [
        ["n", "integer"], ["half", "number"], ["day", "date"], ["text", "text"], ["none", "empty"],
    ]  # fmt: skip
    assert view.locator(".lsn-table tbody tr").count() == 100
    assert view.locator(".lsn-table tbody tr").first.locator("td").all_inner_texts()[3] == 'a "b", c'
    assert "The first 100 rows" in text(view)


def test_other_delimiters(view: Page) -> None:
    show(view, "t.tsv", b"a\tb\n1\tx,y\n")
    assert view.locator(".lsn-table td").all_inner_texts() == ["1", "x,y"]
    view.evaluate("document.getElementById('view').replaceChildren()")
    show(view, "t.csv", b"a;b\n1,5;2\n")
    assert view.locator(".lsn-table td").all_inner_texts() == ["1,5", "2"]


@pytest.mark.parametrize(
    "data",
    [
        b"," * 4_000_000,
        b'"' + b"a" * 4_000_000,
        b'"' * 3_999_999,
        b"a" * 4_000_000,
        b"\n" * 4_000_000,
        b"a,b\n" * 1_000_000,
        (b",".join([b"x" * 1000] * 1000) + b"\n") * 4,
        bytes(range(256)) * 10_000,
    ],
    ids=["commas", "open quote", "quotes", "one cell", "lines", "rows", "wide", "bytes"],
)
def test_a_huge_table_costs_little(view: Page, data: bytes) -> None:
    took = view.evaluate("performance.now()")
    show(view, "t.csv", data)
    took = view.evaluate("performance.now()") - took
    assert took < 5000
    assert view.evaluate("document.querySelectorAll('*').length") < 12_000


def test_a_preview_of_parquet(view: Page) -> None:
    preview = {"columns": [{"name": "a<b", "type": "int64"}], "rows": [["1"], ["2"]], "total_rows": 1234}
    show(view, "t.parquet", b"PAR1", entry={"preview": preview})
    if view.locator(".lsn-table").count():
        assert "first 2 of 1,234 rows" in text(view)
        assert "a<b" in text(view)
    else:
        pytest.fail("the preview is not shown")


def test_json_is_a_tree(view: Page) -> None:
    show(
        view,
        "a.json",
        json.dumps({"list": list(range(250)), "__proto__": {"x": None}, "s": "te\u202ext"}).encode(),
    )
    assert "list: [250]" in text(view)
    assert "__proto__: {1}" in text(view)
    assert '"te\\u202ext"' in text(view)
    view.click("text=list: [250]")
    view.click("text=150 more")
    view.click("text=50 more")
    assert "249: 249" in text(view)


@pytest.mark.parametrize(
    "data", [b"[" * 400_000 + b"]" * 400_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
             b"[" + b"1," * 2_000_000 + b"1]",
             b'"' + b"x" * 7_000_000 + b'"', b"[" * 1000],
)  # fmt: skip
def test_huge_or_deep_json_costs_little(view: Page, data: bytes) -> None:
    show(view, "a.json", data)
    assert view.evaluate("document.querySelectorAll('*').length") < 2000
    assert len(text(view)) < 210_000


def test_markdown_and_text(view: Page) -> None:
    show(view, "a.md", b"# Head\n\n**bold** and `code`\n")
    assert view.inner_text(".lsn-markdown h1") == "Head"
    view.evaluate("document.getElementById('view').replaceChildren()")
    show(view, "a.log", b"\x1b[31mred\x1b[0m <b>plain</b>")
    assert view.inner_text(".lsn-text") == "red <b>plain</b>"


def test_a_long_text_is_cut_and_that_is_said(view: Page) -> None:
    show(view, "a.txt", b"x" * 300_000)
    assert len(view.inner_text(".lsn-text")) == 200_000
    assert "97.7 KB more are in the file" in text(view)


def test_what_was_left_out_is_said(view: Page) -> None:
    show(
        view, "a.bin", b"", entry={"data": None, "omitted": "Larger than 1 MB; it lies in the run's folder."}
    )
    assert "Larger than 1 MB" in text(view)
    assert not view.locator("a[download]").count()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("out/report.pdf", "report.pdf"),
        ("a/../../etc/passwd", "passwd"),
        ("..\\..\\x.txt", "x.txt"),
        ("invoice\u202efdp.exe", "invoicefdp.exe"),
        (".bashrc", "bashrc"),
        ("CON.txt", "_CON.txt"),
        ("a\x00b\n.txt", "ab.txt"),
        ('<a href="x">.html', "_a href=_x__.html"),
        ("x" * 400 + ".png", "x" * 116 + ".png"),
        ("..", "file"),
    ],
)
def test_download_names(view: Page, path: str, name: str) -> None:
    assert view.evaluate("path => lsn.downloadName(path)", path) == name


def test_a_name_that_hides_its_ending_is_shown_as_it_is(view: Page) -> None:
    show(view, "invoice\u202efdp.exe", b"MZ")
    assert "invoice\\u202efdp.exe" in text(view)


def test_download(view: Page) -> None:
    show(view, "out/a.bin", b"some bytes")
    with view.expect_download() as waiting:
        view.click("text=Download")
    assert waiting.value.suggested_filename == "a.bin"
    assert waiting.value.path().read_bytes() == b"some bytes"


def test_a_picture_opens_in_a_tab_under_its_own_type(view: Page) -> None:
    show(view, "a.png", b"<script>document.title = 'ran'</script>")
    with view.context.expect_page() as waiting:
        view.click("text=Open in a new tab")
    waiting.value.wait_for_load_state()
    assert waiting.value.evaluate("document.contentType") == "image/png"
    waiting.value.close()


def test_a_page_opens_in_a_tab_within_its_frame(view: Page) -> None:
    show(
        view,
        "a.html",
        b"<p id=p>hello</p><script>try { top.document.title = 'reached' } catch (e) { p.textContent += '!' }</script>",
    )
    with view.context.expect_page() as waiting:
        view.click("text=Open in a new tab")
    tab = waiting.value
    assert tab.frame_locator("iframe").locator("#p").inner_text(timeout=10_000) == "hello!"
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
    inner(view).locator("text=forbidden").wait_for()
    change = "const file = shown.host.bundle.artifacts['map.html']; file.data = btoa(atob(file.data) + ' ')"
    view.evaluate(f"([event]) => {{ {change}; again(event, {{}}) }}", [event])
    inner(view).locator("text=forbidden").wait_for()


def test_an_untrusted_page_is_shown_without_its_scripts(view: Page) -> None:
    show(view, "a.html", b"<p id=p>static</p><script>p.textContent='ran'</script>", trusted=False)
    assert inner(view).locator("#p").inner_text() == "static"
    assert view.get_attribute(".lsn-frame", "sandbox") == ""
    assert not view.locator("text=Allow this file").count()
    assert "scripts do not run" in text(view)


def test_scripts_of_a_trusted_page_run_within_the_frame(view: Page) -> None:
    show(view, "a.html", b"<p id=p>static</p><script>p.textContent='ran'</script>")
    inner(view).locator("text=ran").wait_for()
    assert view.get_attribute(".lsn-frame", "sandbox") == "allow-scripts"


def test_the_policy_is_that_of_the_static_card(view: Page) -> None:
    from llm_sandbox_nb.notebook.framing import POLICY

    assert view.evaluate("lsn.policy({ scripts: true, network: false })") == POLICY


def test_sha256(view: Page) -> None:
    import hashlib

    for size in (0, 3, 55, 56, 63, 64, 119, 1000):
        data = bytes(range(256)) * 4
        assert (
            view.evaluate("data => lsn.sha256(Uint8Array.from(data))", list(data[:size]))
            == hashlib.sha256(data[:size]).hexdigest()
        )
