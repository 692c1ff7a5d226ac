"""The search of the site: the pages that it names exist, and `make docs` tells a right order from a wrong one."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest
from pages import DOCS


@pytest.fixture(scope="module")
def ask() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ask_search", DOCS / "ask_search.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_that_the_search_names_exists(ask: ModuleType) -> None:
    scorer = (DOCS / "_static" / "scorer.js").read_text("utf-8")
    named = re.findall(r"^  '([a-z-]+/[a-z-]*)': ", scorer, re.MULTILINE)
    assert len(named) > 25
    answers = [page for pages in ask.QUESTIONS.values() for page in pages]
    missing = [
        name
        for name in (*named, *answers)
        if not (DOCS / name).is_dir() and not (DOCS / f"{name}.md").exists()
    ]
    assert missing == []
    assert len(ask.QUESTIONS) == 20


def test_a_page_that_stands_too_far_down_is_found(ask: ModuleType) -> None:
    found = {
        "rewind": ["reference/api", "how-to/rewind"],
        "fork": ["reference/api"] * 5,
        "pause": ["how-to/pause"],
    }
    assert ask.places(found) == {"rewind": 2, "fork": None, "pause": 1}


def test_the_site_is_asked_where_it_is_built() -> None:
    makefile = (DOCS.parent / "Makefile").read_text("utf-8")
    [recipe] = re.findall(r"^docs: .*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert "docs/ask_search.py out/docs/html" in recipe
    conf = (DOCS / "conf.py").read_text("utf-8")
    for needed in ("scorer.js", "sphinx_copybutton", "sphinx.ext.viewcode"):
        assert needed in conf
