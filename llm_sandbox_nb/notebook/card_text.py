"""Text made fit to show: no terminal control sequences, long texts clipped, sizes and times in words."""

from __future__ import annotations

import html
import re
import unicodedata

# CSI, OSC and other string sequences (ended by BEL, ST or the next escape), and two-character escapes, as
# ECMA-48 has them. No alternative may fail after a long match: the text is hostile, and time would be squared.
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
    return _UNUSUAL.sub(_visible, text)


def _visible(match: re.Match[str]) -> str:
    character = match.group()
    if character.isprintable() or character in _KEPT_FORMATS:
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


def clip(text: str, limit: int) -> str:
    """The head and the tail of `text`, about `limit` characters; says how much is left out between them."""
    if len(text) <= limit:
        return text
    head, tail = text[: limit // 2], text[-(limit // 2) :]
    return f"{head}\n… {len(text) - limit // 2 * 2:,} characters left out …\n{tail}"


def first_line(text: str, limit: int = 120) -> str:
    """The first line that is not blank, shortened to `limit` characters."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= limit else line[: limit - 1] + "…"


def size_in_words(size: int) -> str:
    """A number of bytes as people read it."""
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KB", "MB", "GB"):
        value /= 1024
        if value < 1024 or unit == "GB":
            break
    return f"{value:.1f} {unit}"


def time_in_words(seconds: float) -> str:
    """A duration as people read it."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def cost_in_words(cost: float | None) -> str:
    """US dollars, or that nobody knows."""
    if cost is None:
        return "cost unknown"
    return f"${cost:.2f}" if cost >= 1 or cost == 0 else f"${cost:.4f}"
