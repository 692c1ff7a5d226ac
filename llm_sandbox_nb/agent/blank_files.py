"""Detection of blank files, such as a picture of one colour, silence, or a page without text.

Files above a size limit are not decoded, so that time and memory are bounded. Such files, and files of unknown types,
are regarded as not blank.
"""

from __future__ import annotations

import re
import struct
import wave
import zlib
from collections.abc import Callable
from pathlib import Path

_MAX_FILE_BYTES = 32 * 1024**2
_MAX_PIXEL_BYTES = 64 * 1024**2
_MAX_SOUND_BYTES = 8 * 1024**2
_MAX_TEXT_CHARACTERS = 4 * 1024**2
ONE_COLOUR, SILENT, NO_TEXT, NOTHING_DRAWN = "is of one colour", "is silent", "has no text", "draws nothing"


def blank(path: Path) -> str:
    """Return the reason why a file is blank, such as `is silent`. Empty if the file is regarded as not blank."""
    look = _LOOKS.get(path.suffix.lower())
    try:
        if look is None or not 0 < path.stat().st_size <= _MAX_FILE_BYTES:
            return ""
        return look(path)
    except (OSError, ValueError, EOFError, IndexError, struct.error, zlib.error, wave.Error):
        return ""


def _png(path: Path) -> str:
    data = path.read_bytes()
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        return ""
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", data[16:29])
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(colour, 0)
    if interlaced or depth not in (8, 16) or not channels or not width * height >= 4:
        return ""
    unit = channels * depth // 8
    row = width * unit
    if (row + 1) * height > _MAX_PIXEL_BYTES:
        return ""
    packed = b"".join(_chunks(data))
    pixels = zlib.decompressobj().decompress(packed, (row + 1) * height)
    if len(pixels) < (row + 1) * height:
        return ""
    return ONE_COLOUR if _same_pixels(pixels, row, unit, height) else ""


def _chunks(data: bytes) -> list[bytes]:
    """Return the parts of the compressed pixels of a PNG file, in order."""
    found, at = [], 8
    while at + 8 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if data[at + 4 : at + 8] == b"IDAT":
            found.append(data[at + 8 : at + 8 + size])
        at += size + 12
    return found


def _same_pixels(pixels: bytes, row: int, unit: int, height: int) -> bool:
    """Return True if all pixels of a PNG file are equal.

    A PNG file stores most pixels as differences from neighbours. Each row begins with a byte for its filter, which says
    how the differences are computed. The other bytes must be those that the filter makes of equal pixels.
    """
    first = pixels[1 : 1 + unit]
    zeros = bytes(row - unit)
    for y in range(height):
        kind, line = pixels[y * (row + 1)], pixels[y * (row + 1) + 1 : (y + 1) * (row + 1)]
        head, rest = line[:unit], line[unit:]
        halves = bytes(value - value // 2 for value in first)
        if kind == 0:
            fits = line == first * (row // unit)
        elif kind == 1:
            fits = head == first and rest == zeros
        elif kind == 2:
            fits = (head == first and rest == first * (row // unit - 1)) if y == 0 else line == bytes(row)
        elif kind == 3:
            expected = halves * (row // unit - 1) if y == 0 else zeros
            fits = head == (first if y == 0 else halves) and rest == expected
        else:
            fits = head == (first if y == 0 else bytes(unit)) and rest == zeros
        if not fits:
            return False
    return True


def _jpeg(path: Path) -> str:
    # JPEG compresses a block of 64 pixels of one colour to about half a byte, which is 0.008 bytes per pixel.
    data = path.read_bytes()
    at = 2
    while at + 9 < len(data) and data[at] == 0xFF:
        kind, size = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if kind in (0xC0, 0xC1, 0xC2):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            scan = data.find(b"\xff\xda", at)
            used = len(data) - scan - 14
            return (
                ONE_COLOUR
                if scan > 0 and width * height >= 4096 and used < width * height * 0.008 + 16
                else ""
            )
        at += 2 + size
    return ""


def _wav(path: Path) -> str:
    with wave.open(str(path), "rb") as file:
        frames = file.readframes(_MAX_SOUND_BYTES // max(1, file.getsampwidth() * file.getnchannels()))
        if file.getnframes() * file.getsampwidth() * file.getnchannels() > _MAX_SOUND_BYTES:
            return ""
        return (
            SILENT
            if not frames or (not frames.strip(frames[:1]) and file.getsampwidth() == 1) or not any(frames)
            else ""
        )


def _midi(path: Path) -> str:
    data = path.read_bytes()
    return (
        SILENT if data[:4] == b"MThd" and not re.search(rb"[\x90-\x9f][\x00-\x7f][\x01-\x7f]", data) else ""
    )


def _html(path: Path) -> str:
    text = path.read_text("utf-8", "replace")[:_MAX_TEXT_CHARACTERS]
    if re.search(
        r"<(?:svg|img|canvas|video|audio|iframe|object|embed|script|table|input)\b", text, re.IGNORECASE
    ):
        return ""
    # A comment or tag without an end reaches to the end of the text, as in a browser. So the search for an end never
    # fails, and the time is linear in the length of the text.
    bare = re.sub(
        r"<!--(?:.*?-->|.*)|<(style|title)\b(?:.*?</\1\s*>|.*)|<[a-z/!?][^>]*>?|&nbsp;|&#160;",
        "",
        text,
        flags=re.DOTALL | re.IGNORECASE,
    )
    return "" if bare.strip() else NO_TEXT


def _svg(path: Path) -> str:
    text = path.read_text("utf-8", "replace")[:_MAX_TEXT_CHARACTERS]
    drawn = r"<(?:\w+:)?(?:path|circle|line|polyline|polygon|text|image|ellipse|use|foreignObject)\b"
    if re.search(drawn, text) or len(re.findall(r"<(?:\w+:)?rect\b", text)) > 1:
        return ""
    return NOTHING_DRAWN if "<svg" in text else ""


def _pdf(path: Path) -> str:
    data = path.read_bytes()
    if not data.startswith(b"%PDF") or b"/ObjStm" in data:
        return ""
    return "" if b"/Font" in data or b"/Image" in data or re.search(rb"\bre\b|\bl\b|\bc\b", data) else NO_TEXT


_LOOKS: dict[str, Callable[[Path], str]] = {
    ".png": _png,
    ".jpg": _jpeg,
    ".jpeg": _jpeg,
    ".wav": _wav,
    ".mid": _midi,
    ".midi": _midi,
    ".html": _html,
    ".htm": _html,
    ".svg": _svg,
    ".pdf": _pdf,
}
