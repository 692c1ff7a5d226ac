"""Makes the README's pictures in docs/images: the first notebook, run in a real JupyterLab, light and dark.

    make labextension && python docs/pictures.py [--isolation NAME] [--theme light|dark] [--out FOLDER]

Needs what the browser tests need: JupyterLab, Playwright, Pillow and Chromium.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image, ImageChops
from playwright.sync_api import Browser, Locator, Page, sync_playwright

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests"), str(HERE.parent / "tests" / "browser")]

from programs import require_program  # noqa: E402 - the tests know how to start a JupyterLab
from servers import PATIENCE, FrontEnd, front_end, open_notebook, run_all, show_panel  # noqa: E402

THEMES = {"light": False, "dark": True}
NAMES = ("card", "diff", "map", "audio", "panel")
SIZE = {"width": 1180, "height": 1000}
COLOURS = 96
TALLEST = 760
"""Pixels of a picture's height; what is longer is cut at its lower end."""


def main() -> None:
    """Both themes, every picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isolation", choices=("docker", "bubblewrap", "process"), default="docker")
    parser.add_argument("--theme", choices=tuple(THEMES), action="append", help="default: both")
    parser.add_argument("--out", type=Path, default=HERE / "images")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        browser = playwright.chromium.launch(executable_path=require_program("chromium"), args=flags)
        for theme in arguments.theme or THEMES:
            with tempfile.TemporaryDirectory() as folder:
                options = {"dark": THEMES[theme], "isolation": arguments.isolation}
                with front_end(Path(folder), "lab", **options) as server:
                    for name, picture in pictures(server, browser):
                        save(picture, arguments.out / f"{name}-{theme}.png")
        browser.close()


def pictures(server: FrontEnd, browser: Browser) -> Iterator[tuple[str, bytes]]:
    """Each picture by its name."""
    page = browser.new_page(viewport=SIZE)
    page.set_default_timeout(PATIENCE)
    open_notebook(page, server, server.first_notebook())
    run_all(page)
    page.wait_for_selector(".lsn-header .lsn-badge[data-state='done']")
    page.evaluate("() => jupyterapp.commands.execute('application:toggle-left-area').then(() => null)")
    view = page.locator(".lsn-view").first
    yield "diff", taken(step_with(view, ".lsn-diff"))
    for name, file in (("map", "map.html"), ("audio", "chime.wav")):
        yield name, taken(view.get_by_role("figure", name=file))
    yield "card", taken(view)
    yield "panel", panel(page)
    page.close()


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
    part.page.wait_for_timeout(1500)
    part.evaluate("node => node.scrollIntoView({ block: 'start' })")
    part.page.wait_for_timeout(500)
    return part.screenshot(animations="disabled")


def panel(page: Page) -> bytes:
    """The side panel, with its graphs grown a little and its files open."""
    show_panel(page)
    section = page.locator(".lsn-panel-section").first
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
