"""Texts by the mark of their encoding."""

import json
from pathlib import Path

import pytest

from llm_sandbox_nb.benchmark.data import _file
from llm_sandbox_nb.encoded_text import text_of


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_the_mark_names_the_encoding(encoding: str, tmp_path: Path) -> None:
    assert text_of("é 42\r\n".encode(encoding)) == "é 42\r\n"
    path = tmp_path / "data.jsonl"
    path.write_bytes(json.dumps({"answer": "é"}, ensure_ascii=False).encode(encoding))
    assert list(_file(path)) == [{"answer": "é"}]


@pytest.mark.parametrize("mark", ["\ufeff".encode("utf-16-be"), "\ufeff".encode("utf-16-le")])
def test_both_orders_of_bytes(mark: bytes) -> None:
    order = "utf-16-be" if mark[0] == 0xFE else "utf-16-le"
    assert text_of(mark + "4".encode(order)) == "4"


def test_bytes_that_are_no_text_are_replaced_and_a_cut_text_is_read() -> None:
    assert text_of(b"\xff\xfe4\0\x05") == "4\ufffd"
    assert text_of(b"a\xff") == "a\ufffd"
    assert text_of(b"") == ""
