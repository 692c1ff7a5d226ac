"""What files decode to: the table that the view's tests use too (`labextension/tests/media-sizes.test.mjs`)."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

import bombs
import pytest
from support import CAMPAIGN

from llm_sandbox_nb.card.artifact_html import artifact_html
from llm_sandbox_nb.card.artifacts import Artifact
from llm_sandbox_nb.card.page_cost import page_cost
from llm_sandbox_nb.card.picture_size import picture_size

TABLE = json.loads((Path(__file__).parents[2] / "data" / "media_sizes.json").read_text("utf-8"))
PICTURES = [row for row in TABLE if row["kind"] == "picture" and not row["name"].startswith("avif")]
IN_CARD = {"png", "jpg", "gif", "webp", "svg", "html"}
"""What the static card decodes; the rest is text there, or plays a little at a time."""


@pytest.mark.parametrize("row", PICTURES, ids=lambda row: row["name"])
def test_the_size_of_a_picture(row: dict[str, object]) -> None:
    data = base64.b64decode(str(row["data"]))
    size = picture_size(data)
    assert (size and [size.width, size.height, size.frames, size.depth]) == row["is"]
    for end in range(len(data)):
        picture_size(data[:end])  # half a file raises nothing


def test_a_card_shows_no_file_that_unfolds_to_much_before_a_click() -> None:
    for number, (name, data) in enumerate(bombs.bombs().items()):
        if name.rpartition(".")[2] in IN_CARD and (CAMPAIGN or number % 4 == 0):
            for unfolded in (True, False):
                shown = artifact_html(Artifact(name, "", len(data), data), unfolded)
                assert ("Show it anyway</summary>" in shown and "loading=" in shown) or (
                    "elements. It is not shown here." in shown and "<iframe" not in shown
                ), name


@pytest.mark.parametrize(
    "text",
    [
        "<h1>a</h1><p>b<p>c" * 1000, "<svg><g id='a'><use href='#a'/></g><use href='#b'/></svg>",
        f"<img src='{bombs.address(bombs.png(9))}'>", "<style>p { background: url(data:,x) }</style>" * 10,
    ],
)  # fmt: skip
def test_a_plain_page_is_shown_at_once(text: str) -> None:
    shown = artifact_html(Artifact("a.html", "", len(text), text.encode()), unfolded=True)
    assert "<details" not in shown


def test_a_page_with_an_avif_picture_waits_for_a_click() -> None:
    data = next(row["data"] for row in TABLE if row["name"] == "avif")
    page = f"<img src='data:image/avif;base64,{data}'>".encode()
    shown = artifact_html(Artifact("a.html", "", len(page), page), unfolded=True)
    assert "<summary>The content of this page decodes to an unknown size. Show it anyway</summary>" in shown


def test_counting_takes_no_time() -> None:
    begun = time.process_time()
    for text in (
        "<a b='" * 30_000,
        "<p " * 18_000,
        "<use href=#a>" * 18_000,
        "<p id=a><use href='#a'>" * 9_000,
    ):
        page_cost(text)
    assert time.process_time() - begun < 8
