"""A run and its files as the last value of a cell: shown by their kind, and harmless whatever is in them."""

from __future__ import annotations

import asyncio
import base64
import html
from pathlib import Path

import bombs
import pytest
from card_checks import not_static, read
from test_card_escaping import HOSTILE

from llm_sandbox_nb import Run, solve
from llm_sandbox_nb.card.bundle import MIME
from llm_sandbox_nb.card.card import _MAX_SHOWN_BYTES, ShownFile
from llm_sandbox_nb.trajectory.trajectory import Trajectory

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs")
    return asyncio.run(
        solve("How many r's?", model="scripted/strawberry", isolation="process", output_dir=folder)
    )


def file(tmp_path: Path, name: str, content: bytes) -> ShownFile:
    path = tmp_path / "files" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    found = Run(tmp_path, Trajectory()).files[name]
    assert isinstance(found, ShownFile)
    return found


def test_a_run_is_its_card(finished: Run) -> None:
    data, metadata = finished._repr_mimebundle_()
    assert set(data) == {MIME, "text/html", "text/plain"}
    assert "There are 3 r" in data["text/html"]
    assert metadata["llm_sandbox"]["run_id"] == finished.id


def test_a_loaded_run_has_the_same_card(finished: Run) -> None:
    loaded = Run.load(finished.folder)
    assert loaded._repr_mimebundle_() == finished._repr_mimebundle_()


def test_a_run_whose_card_the_cell_has_shown_is_one_line(finished: Run) -> None:
    loaded = Run.load(finished.folder)
    loaded.context.shown = True
    assert loaded._repr_mimebundle_() == ({"text/plain": repr(loaded)}, {})


@pytest.mark.parametrize("name", ["a.png", "deep/er/b.PNG", "c.jpg", "d.gif"])
def test_a_picture_is_a_picture(name: str, tmp_path: Path) -> None:
    shown = file(tmp_path, name, PNG)._repr_mimebundle_()
    (mime,) = set(shown) - {"text/plain"}
    assert mime.startswith("image/")
    assert base64.b64decode(shown[mime]) == PNG
    assert name in shown["text/plain"]


@pytest.mark.parametrize("name", ["a.jpe", "a.png.gz"])
def test_a_picture_by_another_name_is_a_download(name: str, tmp_path: Path) -> None:
    """Its decoded size would not be checked."""
    shown = file(tmp_path, name, bombs.png(12_000))._repr_mimebundle_()
    assert set(shown) == {"text/html", "text/plain"}
    assert "<img" not in shown["text/html"]


@pytest.mark.parametrize(
    ("name", "content", "tag"),
    [
        ("a.txt", b"two\nlines", "pre"), ("a.wav", b"RIFF", "audio"), ("a.mp4", b"x", "video"), ("a.webp", b"x", "img"),
        ("a.csv", b"a,b\n1,2\n", "table"), ("a.md", b"# Title", "h1"), ("a.json", b'{"a": 1}', "pre"),
        ("a.html", b"<h1>Page</h1>", "iframe"), ("a.svg", b"<svg/>", "iframe"), ("a.bin", b"\0", "a"),
    ],
)  # fmt: skip
def test_a_file_is_shown_by_its_kind(name: str, content: bytes, tag: str, tmp_path: Path) -> None:
    shown = file(tmp_path, name, content)._repr_mimebundle_()
    assert set(shown) == {"text/html", "text/plain"}
    assert tag in read(shown["text/html"]).tags
    assert "<details" not in shown["text/html"], "nothing of the one file can be folded"
    assert "<figure class='lsn-artifact lsn-whole'>" in shown["text/html"], "as wide as the output"
    assert not_static(shown["text/html"]) == []


@pytest.mark.parametrize("ending", [".txt", ".html", ".svg", ".xml", ".js", ".ipynb", ""])
def test_a_hostile_file_stays_static(ending: str, tmp_path: Path) -> None:
    for payload in HOSTILE:
        shown = file(tmp_path, f"x{ending}", payload.encode())._repr_mimebundle_()
        assert not_static(shown["text/html"]) == [], payload
        for frame in read(shown["text/html"]).frames:
            within = html.unescape(frame.get("srcdoc") or "")
            assert payload not in within, "only packed, for a frame without scripts"


@pytest.mark.parametrize("ending", ["", ".md", ".html", ".png", ".bin"])
def test_a_hostile_name_stays_static(ending: str, tmp_path: Path) -> None:
    for payload in (one for one in HOSTILE if "/" not in one):
        shown = file(tmp_path, payload + ending, b"x")._repr_mimebundle_()
        assert not_static(shown.get("text/html", "")) == [], payload
        assert set(shown) <= {"text/html", "text/plain", "image/png"}


def test_a_file_that_is_too_large_or_gone_says_so(tmp_path: Path) -> None:
    large = file(tmp_path, "large.png", PNG)
    with large.path.open("r+b") as opened:
        opened.truncate(_MAX_SHOWN_BYTES + 1)
    shown = large._repr_mimebundle_()
    assert set(shown) == {"text/html", "text/plain"}
    assert "larger than" in shown["text/html"]
    assert len(shown["text/html"]) < 10_000


def test_a_file_that_became_a_link_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    found = file(tmp_path, "a.txt", b"x")
    found.path.unlink()
    found.path.symlink_to(secret)
    assert "the secret" not in str(found._repr_mimebundle_())
