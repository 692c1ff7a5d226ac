"""Files that show nothing: what is recognized, and that hostile files cannot stop the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_sandbox_nb.agent.blank_files import NO_TEXT, blank


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("<html><head><title>Title</title></head><body> &nbsp;<p></p></body></html>", NO_TEXT),
        ("<style>p { color: red }</style ><!-- a comment -->\n<br/>", NO_TEXT),
        ("<style>p { color: red }", NO_TEXT),
        ("<!-- a comment", NO_TEXT),
        ("<head><meta charset=utf-8><title>T</title><body>Text", ""),
        ("<header>Text</header>", ""),
        ("<p title='<!--'>Text", ""),
        ("< 5 apples", ""),
        ("<img src=a.png>", ""),
    ],
)
def test_a_page_without_text(tmp_path: Path, page: str, reason: str) -> None:
    (tmp_path / "page.html").write_text(page)
    assert blank(tmp_path / "page.html") == reason


@pytest.mark.parametrize("piece", ["<", "<p ", "<!--", "<style ", "<head ", "</style ", "<style></style "])
def test_a_hostile_page_takes_no_quadratic_time(tmp_path: Path, piece: str) -> None:
    (tmp_path / "page.html").write_text(piece * (2**22 // len(piece)))
    assert blank(tmp_path / "page.html") in ("", NO_TEXT)
