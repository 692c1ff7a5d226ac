"""Memory that a decoded picture needs, read from the headers of the file.

The format is read from the content and not from the name, as in browsers: a file named .png may hold any format.
`labextension/src/artifacts/picture-size.ts` does the same for the view, and also reads AVIF. The test files of both are
in tests/data/media_sizes.json.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

MAX_DECODED_BYTES = 128 * 2**20
"""Maximum bytes of a decoded picture that is shown without a click."""


@dataclass(frozen=True)
class PictureSize:
    """Size of the largest picture in a file."""

    width: int
    height: int
    frames: int = 1
    """Number of frames of an animation."""
    depth: int = 4
    """Bytes that each pixel needs during decoding."""

    @property
    def decoded(self) -> int:
        """Bytes that a browser needs to show the picture. For an animation, this is the size of three frames."""
        return self.width * self.height * self.depth * (3 if self.frames > 1 else 1)


def picture_size(data: bytes) -> PictureSize | None:
    """Return the size in the headers; None for AVIF, for other unknown formats, and for damaged headers."""
    for begins, read in _READERS:
        if begins.match(data):
            try:
                return read(data)
            except (struct.error, IndexError):
                return None  # the file ends within its headers
    return None


def _u16(data: bytes, at: int, order: str = ">") -> int:
    return int(struct.unpack_from(f"{order}H", data, at)[0])


def _u32(data: bytes, at: int, order: str = ">") -> int:
    return int(struct.unpack_from(f"{order}I", data, at)[0])


def _three(data: bytes, at: int) -> int:
    return _u16(data, at, "<") + 0x10000 * data[at + 2] + 1


def _png(data: bytes) -> PictureSize:
    frames, at = 1, 8
    while at + 12 <= len(data) and data[at + 4 : at + 8] != b"IDAT":
        if data[at + 4 : at + 8] == b"acTL":
            frames = _u32(data, at + 8)
        at += 12 + _u32(data, at)
    return PictureSize(_u32(data, 16), _u32(data, 20), frames, 8 if data[24] == 16 else 4)


def _jpeg(data: bytes) -> PictureSize | None:
    at = 2
    while True:
        marker = data[at + 1]
        if data[at] != 0xFF or marker in (0xFF, 1) or 0xD0 <= marker <= 0xD8:
            at += 1  # padding, or a marker without a length
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            # Decoding of a progressive picture also needs coefficients: two bytes per pixel for each of three colours.
            depth = 10 if marker in (0xC2, 0xC6, 0xCA, 0xCE) else 4
            return PictureSize(_u16(data, at + 7), _u16(data, at + 5), 1, depth)
        elif marker == 0xDA:
            return None
        else:
            at += 2 + _u16(data, at + 2)


def _gif(data: bytes) -> PictureSize:
    width, height, frames = _u16(data, 6, "<"), _u16(data, 8, "<"), 0

    def table(flags: int) -> int:
        return 3 << ((flags & 7) + 1) if flags & 0x80 else 0

    at = 13 + table(data[10])
    with suppress(IndexError, struct.error):  # browsers show the intact beginning of a damaged file
        while data[at] != 0x3B:
            if data[at] == 0x2C:
                frames += 1
                width = max(width, _u16(data, at + 1, "<") + _u16(data, at + 5, "<"))
                height = max(height, _u16(data, at + 3, "<") + _u16(data, at + 7, "<"))
                at += 11 + table(data[at + 9])
            else:
                at += 2
            while data[at]:
                at += 1 + data[at]
            at += 1
    return PictureSize(width, height, frames)


def _webp(data: bytes) -> PictureSize:
    sizes, frames = [(0, 0)], 0
    places = [(12, len(data))]
    with suppress(struct.error, IndexError):  # browsers ignore bytes after the picture
        while places:
            at, end = places.pop()
            while at + 8 <= end:
                name, length = data[at : at + 4], _u32(data, at + 4, "<")
                if name == b"VP8X":
                    sizes.append((_three(data, at + 12), _three(data, at + 15)))
                elif name == b"VP8 ":
                    sizes.append((_u16(data, at + 14, "<") & 0x3FFF, _u16(data, at + 16, "<") & 0x3FFF))
                elif name == b"VP8L":
                    bits = _u32(data, at + 9, "<")
                    sizes.append(((bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1))
                elif name == b"ANMF":
                    frames += 1
                    sizes.append((_three(data, at + 14), _three(data, at + 17)))
                    places.append((at + 24, min(end, at + 8 + length)))
                at += 8 + length + (length & 1)
    return PictureSize(max(width for width, _ in sizes), max(height for _, height in sizes), frames)


def _bmp(data: bytes) -> PictureSize:
    if _u32(data, 14, "<") == 12:
        return PictureSize(_u16(data, 18, "<"), _u16(data, 20, "<"))
    width, height = struct.unpack_from("<ii", data, 18)
    return PictureSize(abs(width), abs(height))


def _icon(data: bytes) -> PictureSize:
    """Return the size of the largest picture in an icon file, which may contain a large PNG."""
    sizes = [PictureSize(256, 256)]
    for entry in range(min(_u16(data, 4, "<"), 256)):
        at = _u32(data, 6 + 16 * entry + 12, "<")
        if at + 40 <= len(data):
            if data[at : at + 4] == b"\x89PNG":
                sizes.append(_png(data[at:]))
            else:
                width, height = struct.unpack_from("<ii", data, at + 4)
                sizes.append(PictureSize(abs(width), abs(height)))
    return max(sizes, key=lambda size: size.decoded)


_READERS: list[tuple[re.Pattern[bytes], Callable[[bytes], PictureSize | None]]] = [
    (re.compile(rb"\x89PNG\r\n\x1a\n"), _png),
    (re.compile(rb"\xff\xd8\xff"), _jpeg),
    (re.compile(rb"GIF8[79]a"), _gif),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), _webp),
    (re.compile(rb"BM"), _bmp),
    (re.compile(rb"\0\0[\1\2]\0"), _icon),
]
