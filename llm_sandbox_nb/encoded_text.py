"""Text files with a byte order mark, as Windows programs write them in UTF-8 and UTF-16."""

from __future__ import annotations

import codecs

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # checked before the mark of UTF-16, which begins with the same bytes
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def text_of(data: bytes, errors: str = "replace") -> str:
    """Decode text in the encoding of its byte order mark, else as UTF-8, and remove the mark."""
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS if data.startswith(mark)), "utf-8")
    return data.decode(encoding, errors)
