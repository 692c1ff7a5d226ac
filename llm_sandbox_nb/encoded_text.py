"""Decoding of text that may begin with a byte order mark, which many Windows programs write."""

from __future__ import annotations

import codecs

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # checked before UTF-16, whose mark is the beginning of this mark
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def text_of(data: bytes, errors: str = "replace") -> str:
    """Decode `data` in the encoding of its byte order mark, or in UTF-8 if there is no mark. Remove the mark."""
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS if data.startswith(mark)), "utf-8")
    return data.decode(encoding, errors)
