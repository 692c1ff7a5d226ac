"""Estimate, before a page is shown without its scripts, of how many elements and how much memory it needs.

The view makes the same estimate in `labextension/src/artifacts/page-cost.ts`.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import unquote_to_bytes

from llm_sandbox_nb.card.picture_size import MAX_DECODED_BYTES, picture_size
from llm_sandbox_nb.encoded_text import text_of
from llm_sandbox_nb.formatting import format_count, format_size

MAX_ELEMENTS = 60_000
"""Maximum number of elements of a page that is shown without a click."""
_FORMATTING = "a|b|big|code|em|font|i|nobr|s|small|strike|strong|tt|u"
_TAG = re.compile(rf"<(/?)(?:({_FORMATTING})(?=[\s>/])|[a-z])", re.IGNORECASE)
_ADDRESS = re.compile(r"data:([^,]{0,200}),([^\"')]*)", re.IGNORECASE)
_NUMBERED = re.compile(r"\\([0-9a-f]{1,6})\s?", re.IGNORECASE)
_VOID = frozenset(
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"]
)
_MAX_OPEN_ELEMENTS = 100
"""Maximum number of open elements that are remembered."""
_UNREAD_BYTES = 2**34
"""Assumed bytes of a decoded AVIF picture, whose size this module does not read: more than any limit."""
_MAX_DEPTH = 3
"""Maximum depth to which drawings within drawings are counted."""


def unfolding_warning(text: str) -> str:
    """Return a warning if a page has too many elements to remove its scripts; else ""."""
    elements, _ = page_cost(text)
    return f"This page unfolds to {format_count(elements)} elements." if elements > MAX_ELEMENTS else ""


def decoded_warning(text: str) -> str:
    """Return a warning if the page is shown only after a click, because its decoded content is large; else ""."""
    elements, decoded = page_cost(text)
    size = format_size(decoded) if decoded < _UNREAD_BYTES else "an unknown size"
    return (
        f"The content of this page decodes to {size}."
        if elements <= MAX_ELEMENTS and decoded > MAX_DECODED_BYTES
        else ""
    )


def page_cost(text: str, depth: int = 0) -> tuple[int, int]:
    """Return the number of elements, and the decoded bytes of pictures, drawings and fonts in `data:` addresses."""
    elements = open_tags = 0
    for end, formatting in _TAG.findall(text):
        if formatting:
            open_tags = max(0, open_tags - 1) if end else open_tags + 1
        # browsers repeat an unclosed formatting element in each later element
        elements += 0 if end else 1 + max(0, open_tags - 3)
    if depth > _MAX_DEPTH:
        return _MANY, 0
    if elements > MAX_ELEMENTS:
        return min(elements, _MANY), 0
    count = _Count(depth)
    count.feed(f"{text}>")  # without `>`, the parser searches the whole text for the end of each unclosed tag
    count.close()
    copied = sum(count.copied(name, 0) for name in count.uses)
    return min(count.elements + copied, _MANY), count.decoded


_MANY = 10**9  # more than any limit, so that counting can stop


@dataclass
class _Named:
    """An element with an id."""

    elements: int = 0
    """Number of elements inside, including this element."""
    uses: list[str] = field(default_factory=list)
    """Ids of the elements that `<use>` copies into this element."""


class _Count(HTMLParser):
    def __init__(self, depth: int) -> None:
        super().__init__(convert_charrefs=True)
        self.depth = depth
        self.elements = self.decoded = 0
        self.uses: list[str] = []
        self._named: dict[str, _Named] = {}
        self._open: list[tuple[str, _Named | None]] = []
        self._sizes: dict[str, int] = {}
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in reversed(attrs)}
        named = self._named.setdefault(values["id"], _Named()) if "id" in values else None
        self._open.append((tag, named))
        del self._open[:-_MAX_OPEN_ELEMENTS]
        within = [known for _, known in self._open if known]
        for outer in within:
            outer.elements += 1
        link = values.get("href", values.get("xlink:href", "")).strip()
        if tag == "use" and link.startswith("#"):
            for uses in (self.uses, *(outer.uses for outer in within)):
                uses.append(link[1:])
        if tag in _VOID:
            self._open.pop()
        self._in_style = tag == "style"
        self.elements += 1 + max(0, len(attrs) - 8) + (20 if tag.startswith("fe") else 0)
        for name in ("colspan", "span"):
            number = values.get(name, "")
            self.elements += min(1000, int(number)) if number.isdecimal() else 0
        for value in values.values():
            self._addresses(value)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        for place in range(len(self._open) - 1, -1, -1):
            if self._open[place][0] == tag:
                del self._open[place:]
                break
        self._in_style = False

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self._addresses(data)

    def copied(self, name: str, within: int) -> int:
        """Return the number of elements that a `<use>` of this id adds. Nested `<use>` elements are included."""
        if name in self._sizes or within > 100:
            return self._sizes.get(name, _MANY)
        self._sizes[name] = 1  # browsers do not draw circular references
        found = self._named.get(name, _Named())
        size = found.elements + sum([self.copied(use, within + 1) for use in found.uses])
        self._sizes[name] = min(size, _MANY)
        return self._sizes[name]

    def _addresses(self, text: str) -> None:
        """Count the content of the `data:` addresses in a text. CSS may write any letter as its character code."""
        if len(text) < 20:
            return
        plain = _NUMBERED.sub(lambda found: chr(min(int(found[1], 16), 0x10FFFF)), text)
        for kind, content in _ADDRESS.findall(plain):
            data = unquote_to_bytes(content)
            if re.search(r";\s*base64\s*$", kind, re.IGNORECASE):
                try:
                    data = base64.b64decode(b"".join(data.split()) + b"==")
                except binascii.Error:
                    continue
            if re.search("svg|xml|html", kind, re.IGNORECASE):
                elements, decoded = page_cost(text_of(data), self.depth + 1)
                self.elements, self.decoded = self.elements + elements, self.decoded + decoded
            elif data[4:8] == b"ftyp":
                self.decoded += _UNREAD_BYTES
            elif size := picture_size(data):
                self.decoded += size.decoded
            elif data[:4] in (b"wOFF", b"wOF2"):
                self.decoded += int.from_bytes(data[16:20], "big")
