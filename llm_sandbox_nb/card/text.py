"""Text made fit to show: no terminal control sequences, Markdown as safe HTML."""

from __future__ import annotations

import html
import re
import unicodedata
from functools import cache
from typing import TYPE_CHECKING

from llm_sandbox_nb.formatting import shorten

if TYPE_CHECKING:
    from mistune import Markdown

# CSI, OSC and other string sequences (ended by BEL, ST or the next escape), and two-character escapes, as
# ECMA-48 has them. No alternative may fail after a long match: hostile text would take quadratic time.
_ESCAPE_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_UNUSUAL = re.compile(r"[^\n\t -~]")
_KEPT_FORMATS = {"\u200d", "\u200c", "\ufeff"}


def plain(text: str) -> str:
    """`text` as a terminal would leave it on screen, without colours; what could hide or reorder it is shown.

    A carriage return starts its line again, as progress bars expect.
    """
    if text.isascii() and text.isprintable():
        return text
    text = _ESCAPE_SEQUENCE.sub("", text)
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _UNUSUAL.sub(lambda found: found[0] if found[0] in _KEPT_FORMATS else visible(found[0]), text)


def visible(character: str) -> str:
    """The character, or a picture or escape of one that could command a terminal, hide or reorder text."""
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if unicodedata.category(character) == "Zs":
        return character
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def escape(text: str) -> str:
    """`text`, made plain and then safe between tags and in quoted attributes."""
    return html.escape(plain(text), quote=True)


def first_line(text: str, limit: int = 120) -> str:
    """The first line that is not blank, shortened to `limit` characters."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return shorten(line, limit, "…")


_SAFE_LINKS = ("https://", "http://", "mailto:")


def markdown_html(text: str) -> str:
    """Markdown as HTML: no raw HTML passes, no picture is loaded, links open in a new tab."""
    return str(_renderer()(plain(text)))


@cache
def _renderer() -> Markdown:
    import mistune

    class _Renderer(mistune.HTMLRenderer):
        """Overrides the two elements of Markdown that hold an address."""

        def link(self, text: str, url: str, title: str | None = None) -> str:
            if not url.lower().startswith(_SAFE_LINKS):
                return f"{text} (<code>{escape(url)}</code>)"
            return f'<a href="{escape(url)}" target="_blank" rel="noopener noreferrer nofollow">{text}</a>'

        def image(self, text: str, url: str, title: str | None = None) -> str:
            return f"<em>{escape(text)}</em> (<code>{escape(url)}</code>)"

    return mistune.create_markdown(renderer=_Renderer(escape=True), plugins=["table", "strikethrough"])
