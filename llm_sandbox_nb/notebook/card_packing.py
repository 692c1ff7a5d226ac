"""Keeps the saved card small: the record is compressed, and a file that is on the page is not in the record again.

`labextension/src/embedded.ts` reads both.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any

MOST = 64 * 1024 * 1024
"""Bytes of a record that a page unpacks; a larger one stays as it is."""

# Each alternative begins with a quote that is no part of a text, for in texts quotes are escaped.
_HELD = re.compile(
    r"</figcaption>.*?(?: (?:src|href|data)='data:[^']*;base64,([A-Za-z0-9+/=]*)'"
    r"| srcdoc=\"[^\"]*packed=&quot;([A-Za-z0-9+/=]*)&quot;)",
    re.DOTALL,
)


def packed(bundle: dict[str, Any]) -> dict[str, Any]:
    """The bundle with its events and files as one text: base64 of their JSON, compressed with zlib."""
    whole = {name: bundle[name] for name in ("events", "artifacts")}
    data = json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    if len(data) > MOST:
        return bundle
    rest = {name: value for name, value in bundle.items() if name not in whole}
    return {**rest, "packed": base64.b64encode(zlib.compress(data, 9)).decode("ascii")}


def unpacked(bundle: dict[str, Any]) -> dict[str, Any]:
    """The bundle of a saved notebook with its events and files, whether it was packed or not.

    Raises:
        ValueError: what is packed is damaged, or larger than anything that is packed here.
    """
    if "packed" not in bundle:
        return bundle
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(base64.b64decode(bundle["packed"]), MOST)
        whole = json.loads(data) if stream.eof else None
    except zlib.error as error:
        raise ValueError("The record in this notebook is damaged.") from error
    if not isinstance(whole, dict):
        raise ValueError("The record in this notebook is damaged, or too large to be unpacked.")
    return {**{name: value for name, value in bundle.items() if name != "packed"}, **whole}


def held_by(figure: str) -> bytes | None:
    """The file that a figure of the page holds whole; None when it shows only what can be read of it."""
    found = _HELD.search(figure)
    if not found:
        return None
    plain, compressed = found.groups()
    if plain is not None:
        return base64.b64decode(plain)
    return zlib.decompress(base64.b64decode(compressed))
