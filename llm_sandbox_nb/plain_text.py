"""Protection from hostile text: control sequences are removed, and hidden characters become visible."""

from __future__ import annotations

import re
import unicodedata

from llm_sandbox_nb.formatting import shorten

# The escape sequences of ECMA-48, a line for each kind: control sequences (CSI), strings such as OSC, which end at BEL,
# at ST or before the next escape, and short escapes. No alternative may fail after a long match, because a search in
# hostile text could then take quadratic time.
_ESCAPE_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_UNUSUAL_CHARACTER = re.compile(r"[^\n\t -~]")
_ALLOWED_FORMAT_CHARACTERS = {"\u200d", "\u200c", "\ufeff"}


def plain(text: str) -> str:
    """Return `text` as a terminal would leave it on screen, without colours, and with hidden characters made visible.

    Of each line, only the text after the last carriage return is kept. On screen, that text overwrites the rest.
    """
    if text.isascii() and text.isprintable():
        return text
    text = _ESCAPE_SEQUENCE.sub("", text)
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _UNUSUAL_CHARACTER.sub(
        lambda found: found[0] if found[0] in _ALLOWED_FORMAT_CHARACTERS else visible(found[0]), text
    )


def visible(character: str) -> str:
    """Return the character, or a visible substitute if it could control a terminal, or hide or reorder text."""
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if unicodedata.category(character) == "Zs":
        return character
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def first_line(text: str, limit: int = 120) -> str:
    """Return the first line that is not blank, shortened to `limit` characters."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return shorten(line, limit, "…")
