"""Makes the README's pictures in docs/images: notebooks run in a real JupyterLab, with a scripted model.

    make labextension && python docs/pictures.py [--isolation NAME] [--theme light|dark] [--out FOLDER]
    python docs/pictures.py --moving      # only the moving picture: a live run, a rewind, a compare
    python docs/pictures.py --states --out FOLDER   # the view in each of its states; their records are made up

Needs what the browser tests need: JupyterLab, Playwright, Pillow and Chromium.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from PIL import Image, ImageChops
from playwright.sync_api import Browser, Locator, Page, sync_playwright

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests"), str(HERE.parent / "tests" / "browser")]

from programs import require_program  # noqa: E402 - the tests know how to start a JupyterLab
from servers import PATIENCE, FrontEnd, jupyter, open_notebook, run_all, show_panel  # noqa: E402
from view_page import build  # noqa: E402
from view_states import STATES, chained, finished, show_state, state_page  # noqa: E402

from llm_sandbox_nb.card.bundle import Caps  # noqa: E402
from llm_sandbox_nb.card.card import Card  # noqa: E402
from llm_sandbox_nb.sandbox.isolations import ISOLATIONS  # noqa: E402

THEMES = {"light": False, "dark": True}
NAMES = ("card", "diff", "map", "audio", "panel")
SIZE = {"width": 1180, "height": 1000}
COLOURS = 96
MOVING_SIZE = {"width": 1000, "height": 620}
MOVING_CELLS = (
    "%load_ext llm_sandbox_nb",
    "%%sandbox -m scripted/time-travel -i data/cities.csv -o result\n"
    "How many people live in the cities of cities.csv that have more than 25 million people?",
    'result.rewind(5, before="call")',
    "result.edit(command=\"awk -F, 'NR == 1 || $5 > 25000000' cities.csv > kept.csv && mv kept.csv cities.csv\")\n"
    "result.resume()",
    "result.compare()",
)
MOVING_FRAMES, EACH_FRAME, LAST_FRAME = 40, 350, 2600
"""Most frames of a cell while it runs; milliseconds that they are shown, and that the last one is."""
_PAGE_OF_CARD = "<!doctype html><style>:root {{ color-scheme: light dark }}</style><body>{card}"
TALLEST = 760
"""Pixels of a picture's height; what is longer is cut at its lower end."""


def main() -> None:
    """Both themes, every picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isolation", choices=tuple(ISOLATIONS), default="docker")
    parser.add_argument("--theme", choices=tuple(THEMES), action="append", help="default: both")
    parser.add_argument("--moving", action="store_true", help="only the moving picture")
    parser.add_argument(
        "--states", action="store_true", help="only the states of the view, in a page of their own"
    )
    parser.add_argument("--out", type=Path, default=HERE / "images")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        browser = playwright.chromium.launch(executable_path=require_program("chromium"), args=flags)
        if arguments.moving:
            with (
                tempfile.TemporaryDirectory() as folder,
                jupyter(Path(folder), dark=False, isolation=arguments.isolation) as server,
            ):
                save_moving(frames(FrontEnd(server), browser), arguments.out / "run.webp")
            browser.close()
            return
        if arguments.states:
            for name, data in states(browser, arguments.theme or list(THEMES)):
                (arguments.out / f"{name}.png").write_bytes(data)
            browser.close()
            return
        for theme in arguments.theme or THEMES:
            with tempfile.TemporaryDirectory() as folder:
                options = {"dark": THEMES[theme], "isolation": arguments.isolation}
                with jupyter(Path(folder), **options) as server:
                    for name, picture in pictures(FrontEnd(server), browser):
                        save(picture, arguments.out / f"{name}-{theme}.png")
        browser.close()


def pictures(server: FrontEnd, browser: Browser) -> Iterator[tuple[str, bytes]]:
    """Each picture by its name."""
    page = browser.new_page(viewport=SIZE)
    page.set_default_timeout(PATIENCE)
    open_notebook(page, server, server.first_notebook())
    run_all(page)
    cell = page.locator(".jp-Cell", has_text="%%sandbox -m scripted/first-task").first
    cell.scroll_into_view_if_needed()
    view = cell.locator(".lsn-view")
    view.locator(".lsn-header .lsn-badge[data-state='plain']").wait_for()
    page.evaluate("() => jupyterapp.commands.execute('application:toggle-left-area').then(() => null)")
    yield "diff", taken(step_with(view, ".lsn-diff"))
    for name, file in (("map", "map.html"), ("audio", "chime.wav")):
        yield name, taken(view.locator(".lsn-artifact", has_text=file).first)
    view.evaluate("node => { node.scrollTop = 0; }")
    yield "card", taken(view)
    yield "panel", panel(page)
    page.close()


def states(browser: Browser, themes: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """The view in each of its states, and the card of an untrusted notebook, by name and theme."""
    with tempfile.TemporaryDirectory() as folder:
        html = state_page(*build(Path(folder) / "view"))
    card = Card(Caps(), Path())
    for event in chained(finished()):
        card.add(event)
    static = _PAGE_OF_CARD.format(card=card.final()["text/html"])
    for theme in themes:
        for name, width in [*((name, 1000) for name in STATES), ("narrow", 640), ("untrusted", 1000)]:
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
            page.set_content(static if name == "untrusted" else html)
            if name != "untrusted":
                show_state(page, "finished" if name == "narrow" else name)
            yield f"{name.replace(' ', '-')}-{theme}", page.screenshot()
            page.close()


def frames(server: FrontEnd, browser: Browser) -> list[tuple[Image.Image, int]]:
    """A live run, a rewind to the call with the mistake, its correction, and what differs; each with milliseconds."""
    page = browser.new_page(viewport=MOVING_SIZE)
    page.set_default_timeout(PATIENCE)
    server.first_notebook()  # for its data
    open_notebook(page, server, server.notebook("moving.ipynb", *MOVING_CELLS))
    page.evaluate("() => jupyterapp.commands.execute('application:toggle-left-area').then(() => null)")
    taken_frames: list[tuple[Image.Image, int]] = []
    for number, _ in enumerate(MOVING_CELLS):
        page.evaluate(
            "number => { const panel = jupyterapp.shell.currentWidget; panel.content.activeCellIndex = number;"
            " window.ran = null; jupyterapp.commands.execute('notebook:run-cell').then(() => (window.ran = true)); }",
            number,
        )
        cell = page.locator(".jp-CodeCell").nth(number)
        for _ in range(MOVING_FRAMES):
            done = page.evaluate("() => window.ran")
            cell.evaluate("node => node.scrollIntoView({ block: 'start' })")
            if number:  # the first cell only loads
                taken_frames.append((_picture(page), EACH_FRAME))
            if done:
                break
            page.wait_for_timeout(EACH_FRAME)
        page.wait_for_timeout(1000)
        cell.evaluate("node => node.scrollIntoView({ block: 'start' })")
        if number:
            taken_frames.append((_picture(page), LAST_FRAME))
    page.close()
    return taken_frames


def _picture(page: Page) -> Image.Image:
    return Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")


def save_moving(taken_frames: list[tuple[Image.Image, int]], path: Path) -> None:
    """As an animated WebP; a frame that is like the one before only makes that one longer."""
    kept: list[tuple[Image.Image, int]] = []
    for picture, time in taken_frames:
        if kept and not ImageChops.difference(kept[-1][0], picture).getbbox():
            kept[-1] = (picture, max(kept[-1][1], time))
        else:
            kept.append((picture, time))
    first, *rest = (picture for picture, _ in kept)
    times = [time for _, time in kept]
    first.save(path, save_all=True, append_images=rest, duration=times, loop=0, lossless=True, method=4)
    print(f"{path}: {len(kept)} frames, {path.stat().st_size // 1024} KB")


def step_with(view: Locator, what: str) -> Locator:
    """The first step that shows something of this kind; steps far from the window show nothing."""
    for step in view.locator(".lsn-step").all():
        step.scroll_into_view_if_needed()
        step.page.wait_for_timeout(500)
        if step.locator(what).count():
            return step
    raise LookupError(f"no step shows {what}")


def taken(part: Locator) -> bytes:
    """A part of the page as it is shown, once its pictures and frames are there."""
    part.scroll_into_view_if_needed()
    part.evaluate("node => (node.scrollTop = 0)")
    part.page.wait_for_timeout(1500)
    part.evaluate("node => node.scrollIntoView({ block: 'start' })")
    part.page.wait_for_timeout(500)
    return part.screenshot(animations="disabled")


def panel(page: Page) -> bytes:
    """The side panel, with its graphs grown a little and its files open."""
    show_panel(page)
    section = page.locator(".lsn-panel-front .lsn-panel-section").first
    section.locator(".lsn-panel-files summary").click()
    section.get_by_role("button", name="output/", exact=True).click()
    section.locator(".lsn-file-name", has_text="poster.png").wait_for()
    page.wait_for_function("() => document.querySelectorAll('.lsn-graph polyline').length >= 2")
    page.wait_for_timeout(20_000)
    return page.locator(".lsn-panel").screenshot(animations="disabled")


def filled(picture: Image.Image) -> Image.Image:
    """Without the empty part at its lower end."""
    empty = Image.new("RGB", picture.size, picture.getpixel((picture.width // 2, picture.height - 1)))
    box = ImageChops.difference(picture, empty).getbbox()
    return picture.crop((0, 0, picture.width, min(picture.height, box[3] + 12))) if box else picture


def save(data: bytes, path: Path) -> None:
    """Cut, with few colours, so that the repository stays small."""
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    picture = filled(picture.crop((0, 0, picture.width, min(picture.height, TALLEST))))
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {picture.width} x {picture.height}, {path.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()
