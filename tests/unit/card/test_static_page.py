"""Pages without their scripts: the table that the view's tests use too (`labextension/tests/artifacts.test.mjs`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_sandbox_nb.card.static_page import static_page

TABLE = json.loads((Path(__file__).parents[2] / "data" / "static_pages.json").read_text("utf-8"))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["page"][:50])
def test_what_names_an_address_is_gone_and_the_looks_stay(row: dict[str, Any]) -> None:
    page, runs = static_page(row["page"])
    assert row["runs"] in (runs, None), "None: parsers differ"
    assert [text for text in row["kept"] if text not in page] == []
    assert [text for text in row["gone"] if text in page] == []
