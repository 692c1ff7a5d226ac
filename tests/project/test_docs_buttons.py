"""Buttons that pages and notebooks name are those of the view: a label in *italics* is one of the TypeScript."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
from pages import DOCS, ROOT, name_of, prose_of

SOURCE = ROOT / "labextension" / "src"
SHOWN = [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "notebooks").glob("*.ipynb"))]
_ITALIC = re.compile(r"(?<![*\w])\*([A-Z][^*\n]{0,60})\*(?!\*)")
_TEXT = re.compile(r"'((?:[^'\\\n]|\\.)*)'|\"((?:[^\"\\\n]|\\.)*)\"")
ELSEWHERE = {
    "Developer", "Start server",  # LM Studio
    "No Kernel", "Open With", "Python 3", "Run All", "Run all", "View → Presentation Mode",  # JupyterLab
    "Runtime", "Restart session", "Jupyternaut",  # Colab, jupyter-ai
    "LLM-in-Sandbox Elicits General Agentic Intelligence", "LLM-in-Sandbox-RL", "Frost", "G",  # titles and names
    "Billed", "Once", "No script has run",  # stressed words
}  # fmt: skip
"""What is in italics and is no label of ours."""


@cache
def labels() -> tuple[list[str], re.Pattern[str]]:
    """The texts of the TypeScript, and a pattern of those that have a place for a value."""
    sources = [file.read_text("utf-8") for file in sorted(SOURCE.rglob("*.ts"))]
    texts = {one or other for source in sources for one, other in _TEXT.findall(source)}
    texts = {text.replace("\\'", "'") for text in texts if text[:1].isupper()}
    parts = [re.sub(r"%\d", ".+", re.escape(text)) for text in texts if "%1" in text]
    return sorted(texts), re.compile("|".join(parts))


def is_label(name: str) -> bool:
    texts, patterns = labels()
    begins = any(text == name or text.startswith((f"{name}…", f"{name}:")) for text in texts)
    return begins or patterns.fullmatch(name) is not None or f"{name.partition(':')[0]}:" in texts


def named_in(page: Path) -> list[str]:
    if page.suffix == ".md":
        return _ITALIC.findall(prose_of(page))
    cells = json.loads(page.read_text("utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    return [name for text in texts for name in _ITALIC.findall(re.sub(r"`[^`\n]*`", "", text))]


@pytest.mark.parametrize("page", SHOWN, ids=name_of)
def test_a_button_that_a_page_names_is_in_the_view(page: Path) -> None:
    assert [name for name in named_in(page) if name not in ELSEWHERE and not is_label(name)] == []


def test_labels_are_told_from_others() -> None:
    assert all(
        map(is_label, ("Deny", "Deny…", "Fork", "First error: step 3 →", "First error", "What the model saw"))
    )
    assert not any(map(is_label, ("Skip", "Say", "Halt", "Observation")))


def test_every_exception_is_still_used() -> None:
    named = {name for page in SHOWN for name in named_in(page)}
    assert ELSEWHERE - named == set()


def test_the_decisions_of_a_pause_have_their_buttons() -> None:
    """The table of docs/how-to/pause.md names the buttons of the panel, and no other words for them."""
    page = (ROOT / "docs" / "how-to" / "pause.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and "result." in line]
    assert len(rows) > 7
    buttons = [name for row in rows for name in _ITALIC.findall(row)]
    assert {"Approve", "Continue", "Step", "Edit…", "Deny…", "Stop"} <= set(buttons)
    assert [name for name in buttons if not is_label(name)] == []
