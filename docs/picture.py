"""Makes docs/images/first-task.png from the executed first notebook, as `jupyter nbconvert` exports it.

    make demo ISOLATION=docker && python docs/picture.py out/01-first-task.ipynb

Needs nbconvert, Pillow and Chromium. Two columns: the first steps, and what was made.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

TARGET = Path(__file__).parent / "images" / "first-task.png"
WIDTH, HEIGHT = 1000, 5200
LEFT, RIGHT = (405, 1515), (3366, 4768)
"""First and last line of pixels of each column in the picture of the whole page."""
MARGIN = 40


def main() -> None:
    """Export, take a picture of the page, cut out both columns, put them side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--left", nargs=2, type=int, default=LEFT, metavar=("FROM", "TO"))
    parser.add_argument("--right", nargs=2, type=int, default=RIGHT, metavar=("FROM", "TO"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = photograph(arguments.notebook.resolve(), Path(folder))
    columns = [column(page, *lines) for lines in (arguments.left, arguments.right)]
    TARGET.parent.mkdir(exist_ok=True)
    side_by_side(columns).quantize(192, dither=Image.Dither.NONE).save(TARGET, optimize=True)
    print(f"{TARGET}: {TARGET.stat().st_size // 1024} KB")


def photograph(notebook: Path, folder: Path) -> Image.Image:
    """The whole page in a browser."""
    convert = ["jupyter", "nbconvert", "--to", "html", "--output-dir", folder, "--output", "page", notebook]
    subprocess.run(convert, check=True, capture_output=True)
    browser = [
        "chromium",
        "--headless=new",
        "--no-sandbox",
        "--hide-scrollbars",
        "--virtual-time-budget=8000",
    ]
    size, picture = f"--window-size={WIDTH},{HEIGHT}", folder / "page.png"
    words = [*browser, size, f"--screenshot={picture}", (folder / "page.html").as_uri()]
    subprocess.run(words, check=True, capture_output=True)
    return Image.open(picture).convert("RGB")


def column(page: Image.Image, first: int, last: int) -> Image.Image:
    """Some lines of the page, without the prompts at its left."""
    return page.crop((30, first, WIDTH - 20, last))


def side_by_side(columns: list[Image.Image]) -> Image.Image:
    """The columns, scaled to one height."""
    height = max(one.height for one in columns)
    scaled = [
        one.resize((one.width * height // one.height, height), Image.Resampling.LANCZOS) for one in columns
    ]
    picture = Image.new("RGB", (sum(one.width for one in scaled) + MARGIN, height), "white")
    left = 0
    for one in scaled:
        picture.paste(one, (left, 0))
        left += one.width + MARGIN
    return picture


if __name__ == "__main__":
    main()
