"""Pictures come from a script that runs the real thing; it runs, and the pages show what it makes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
NAMES = ("card", "diff", "map", "audio", "panel")
LARGEST = 150_000


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_the_script_makes_each_picture(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "docs" / "pictures.py")]
    options = ["--isolation", "process", "--theme", "dark", "--out", str(tmp_path)]
    done = subprocess.run([*script, *options], capture_output=True, text=True, timeout=560)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}-dark.png" for name in NAMES}
    for path in tmp_path.iterdir():
        picture = Image.open(path).convert("RGB")
        assert picture.width > 150
        assert picture.height > 80
        assert len(picture.getcolors(1 << 20) or []) > 8, f"{path.name} shows nothing"
        corner = picture.getpixel((2, 2))
        assert isinstance(corner, tuple)
        assert sum(corner[:3]) < 384, f"{path.name} is not dark"


def test_the_page_of_the_view_shows_them_and_they_are_small() -> None:
    page = (ROOT / "docs" / "reference" / "view.md").read_text()
    shown = set(re.findall(r"images/([\w-]+\.png)", page))
    there = {path.name for path in (ROOT / "docs" / "images").glob("*.png")}
    assert shown == there == {f"{name}-{theme}.png" for name in NAMES for theme in ("light", "dark")}
    for name in there:
        assert (ROOT / "docs" / "images" / name).stat().st_size < LARGEST, name
    assert "docs/images/run.webp" in (ROOT / "README.md").read_text()
    moving = Image.open(ROOT / "docs" / "images" / "run.webp")
    assert moving.n_frames > 8
    assert (ROOT / "docs" / "images" / "run.webp").stat().st_size < 2_000_000
