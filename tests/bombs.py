"""Small files that unfold to gigabytes when a page shows them: `bombs()` makes them, by their names.

A name that does not fit its content is meant.
"""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Callable
from functools import cache

from PIL import Image

SIDE = 30_000
"""Pixels of a large picture: with four bytes for each, 3.4 GB."""


def _crc(data: bytes, polynomial: int, width: int) -> int:
    value = 0
    for byte in data:
        value ^= byte << (width - 8)
        for _ in range(8):
            value = (value << 1) ^ (polynomial if value >> (width - 1) else 0)
            value &= (1 << width) - 1
    return value


def flac(frames: int = 1_500, claimed: int | None = None) -> bytes:
    """Silence at 192 kHz in 8 channels: 36 bytes are 65,535 samples of each."""
    total = 65_535 * frames if claimed is None else claimed
    facts = struct.pack(">I", 192_000 << 12 | 7 << 9 | 15 << 4 | total >> 32) + struct.pack(
        ">I", total & 2**32 - 1
    )
    info = struct.pack(">HH", 65_535, 65_535) + bytes(6) + facts + bytes(16)
    made = [b"fLaC\x80\0\0\x22" + info]
    for number in range(frames):
        coded = bytes([number]) if number < 128 else bytes([0xC0 | number >> 6, 0x80 | number & 63])
        head = b"\xff\xf8\x70\x78" + coded + struct.pack(">H", 65_534)
        frame = head + bytes([_crc(head, 0x107, 8)]) + bytes(24)
        made.append(frame + struct.pack(">H", _crc(frame, 0x18005, 16)))
    return b"".join(made)


def mp3(frames: int = 42_000) -> bytes:
    """Silence in frames of 24 bytes, each 576 samples of two channels."""
    return (b"\xff\xf3\x14\x40" + bytes(20)) * frames


def adts(frames: int = 60_000) -> bytes:
    """Silence as AAC in two channels."""
    silence = bytes.fromhex("210049900219002380")
    length = 7 + len(silence)
    return (b"\xff\xf1\x4c" + bytes([0x80, length >> 3, (length & 7) << 5 | 31, 0xFC]) + silence) * frames


def ogg(packets: list[bytes]) -> bytes:
    """Packets as pages of one stream, at most 255 in each."""
    made, position = [], 0
    groups = [packets[:1], packets[1:2], *(packets[at : at + 255] for at in range(2, len(packets), 255))]
    for number, group in enumerate(groups):
        position += 5_760 * len(group) if number > 1 else 0
        flags = 2 if number == 0 else 4 if number == len(groups) - 1 else 0
        head = struct.pack("<4sBBqIII", b"OggS", 0, flags, position, 7, number, 0)
        page = head + bytes([len(group), *map(len, group)]) + b"".join(group)
        made.append(page[:22] + struct.pack("<I", _ogg_crc(page)) + page[26:])
    return b"".join(made)


@cache
def _ogg_table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte << 24
        for _ in range(8):
            value = ((value << 1) ^ (0x04C11DB7 if value >> 31 else 0)) & 0xFFFFFFFF
        table.append(value)
    return table


def _ogg_crc(data: bytes) -> int:
    value, table = 0, _ogg_table()
    for byte in data:
        value = (value << 8) & 0xFFFFFFFF ^ table[value >> 24 ^ byte]
    return value


def opus(packets: int = 20_000) -> bytes:
    """Silence: two bytes are 120 ms of two channels."""
    head = b"OpusHead" + struct.pack("<BBHIHB", 1, 2, 0, 48_000, 0, 0)
    tags = b"OpusTags" + struct.pack("<I", 1) + b"x" + struct.pack("<I", 0)
    return ogg([head, tags] + [b"\x1f\x02"] * packets)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(side: int = SIDE, bits: int = 1, colour: int = 0, *, whole: bool = True, frames: int = 0) -> bytes:
    """A black picture; one that is not whole ends in its first line, and is shown all the same."""
    parts = [
        b"\x89PNG\r\n\x1a\n",
        _chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, bits, colour, 0, 0, 0)),
    ]
    if frames:
        parts.append(_chunk(b"acTL", struct.pack(">II", frames, 0)))
    squeezer = zlib.compressobj(9)
    line = bytes(1 + side * bits * {0: 1, 2: 3, 6: 4}[colour] // 8)
    body = b"".join(squeezer.compress(line) for _ in range(side if whole else 1)) + squeezer.flush()
    for frame in range(max(1, frames)):
        if frames:
            control = struct.pack(">IIIIIHHBB", max(0, 2 * frame - 1), side, side, 0, 0, 1, 100, 0, 0)
            parts.append(_chunk(b"fcTL", control))
        parts.append(_chunk(b"fdAT", struct.pack(">I", 2 * frame) + body) if frame else _chunk(b"IDAT", body))
    return b"".join([*parts, _chunk(b"IEND", b"")])


def picture(format: str, **options: object) -> bytes:
    """A small real picture."""
    out = io.BytesIO()
    Image.new("RGB", (64, 64), (9, 9, 9)).save(out, format, **options)
    return out.getvalue()


def jpeg(side: int = 60_000, *, progressive: bool = False) -> bytes:
    """A small one that says that it is large: what is missing is shown grey."""
    data = picture("JPEG", progressive=progressive)
    at = data.index(b"\xff\xc2" if progressive else b"\xff\xc0")
    return data[: at + 5] + struct.pack(">HH", side, side) + data[at + 9 :]


def gif(side: int = SIDE, frames: int = 1) -> bytes:
    screen = b"GIF89a" + struct.pack("<HHBBB", side, side, 0x80, 0, 0) + bytes(6)
    frame = b",\0\0\0\0" + struct.pack("<HHB", side, side, 0) + b"\x02\x02\x4c\x01\x00"
    return screen + (b"\x21\xf9\x04\0\x0a\0\0\0" + frame) * frames + b";"


def webp(*, lossless: bool) -> bytes:
    data = picture("WEBP", lossless=lossless)
    if lossless:
        at = data.index(b"VP8L") + 9
        bits = struct.unpack_from("<I", data, at)[0] & ~0xFFFFFFF | 16_383 << 14 | 16_383
        return data[:at] + struct.pack("<I", bits) + data[at + 4 :]
    at = data.index(b"\x9d\x01\x2a") + 3
    return data[:at] + struct.pack("<HH", 16_383, 16_383) + data[at + 4 :]


def bmp() -> bytes:
    """Run lengths; what is missing is black."""
    palette = bytes(8)
    facts = struct.pack("<IiiHHIIiiII", 40, SIDE, SIDE, 1, 8, 1, 4, 0, 0, 2, 0)
    return struct.pack("<2sIHHI", b"BM", 70, 0, 0, 62) + facts + palette + b"\0\1\0\1"


def icon() -> bytes:
    inside = png(whole=False)
    return (
        struct.pack("<HHH", 0, 1, 1) + struct.pack("<BBBBHHII", 0, 0, 0, 0, 1, 32, len(inside), 22) + inside
    )


def avif() -> bytes:
    """A small one whose property says that it is large."""
    data = picture("AVIF")
    at = data.index(b"ispe") + 8
    return data[:at] + struct.pack(">II", SIDE, SIDE) + data[at + 8 :]


def film_mp4() -> bytes:
    """The head of a film of 16,000 pixels a side."""

    def box(name: bytes, *inside: bytes) -> bytes:
        body = b"".join(inside)
        return struct.pack(">I", 8 + len(body)) + name + body

    entry = box(b"avc1", bytes(24), struct.pack(">HH", 16_000, 16_000), bytes(50))
    table = box(b"stbl", box(b"stsd", bytes(4), struct.pack(">I", 1), entry))
    track = box(b"trak", box(b"tkhd", bytes(84)), box(b"mdia", box(b"minf", table)))
    return box(b"ftyp", b"isom", bytes(4), b"isom") + box(b"moov", track)


def film_webm() -> bytes:
    """The same as WebM."""

    def element(name: str, *inside: bytes) -> bytes:
        body = b"".join(inside)
        return bytes.fromhex(name) + struct.pack(">I", 0x10000000 | len(body)) + body

    size = struct.pack(">H", 16_000)
    video = element("e0", element("b0", size), element("ba", size))
    tracks = element("1654ae6b", element("ae", element("d7", b"\1"), element("83", b"\1"), video))
    return element("1a45dfa3", element("4282", b"webm")) + element("18538067", tracks)


def address(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def copies(levels: int = 8) -> str:
    groups = "<rect id='g0' width='1' height='1'/>"
    for level in range(1, levels):
        groups += f"<g id='g{level}'>" + f"<use href='#g{level - 1}'/>" * 10 + "</g>"
    return f"<svg xmlns='http://www.w3.org/2000/svg'>{groups}</svg>"


def _pages() -> dict[str, Callable[[], str]]:
    large = cache(lambda: address(png()))
    return {
        "copies.svg": copies,
        "elements.svg": lambda: "<svg>" + "<g/>" * 240_000,
        "filters.svg": lambda: (
            f"<svg><filter id='f'>{'<feTurbulence/>' * 20_000}</filter><rect filter='url(#f)'/>"
        ),
        "picture.svg": lambda: f"<svg><image width='9' height='9' href='{large()}'/></svg>",
        "drawing.html": lambda: f'<img src="{address(copies().encode(), "image/svg+xml")}">',
        "style.html": lambda: (
            '<style>p { background: url("\\64 ata' + large()[4:] + '") }</style><p>text</p>'
        ),
        "font.html": lambda: (
            "<style>@font-face { font-family: f; src: url("
            + address(b"wOF2\0\1\0\0" + struct.pack(">IHHI", 1000, 9, 0, 2**30) + bytes(976), "font/woff2")
            + ") } p { font-family: f }</style><p>text</p>"
        ),
        "elements.html": lambda: "<p>" * 330_000,
        "formatting.html": lambda: "".join(f"<b a={n}>" for n in range(3_000)) + "<p>x" * 3_000,
        "spans.html": lambda: "<table><tr>" + "<td colspan=1000 rowspan=65534>x" * 5_000,
        "attributes.html": lambda: "<p " + " ".join(f"a{n}" for n in range(130_000)) + ">",
        "deep.html": lambda: "<div>" * 200_000,
        "picture.html": lambda: f"<img src='{large()}'>",
        "pictures.html": lambda: f"<img src='{address(png(4_000))}'>" * 60,
        "copies-in-page.html": lambda: "<p>x</p>" + copies(),
    }


def _texts() -> dict[str, Callable[[], str]]:
    return {
        "commas.csv": lambda: "," * 1_000_000,
        "cells.tsv": lambda: ("x\t" * 500 + "\n") * 900,
        "lists.json": lambda: "[" + "[]," * 320_000 + "[]]",
        "objects.json": lambda: "[" + "{}," * 320_000 + "{}]",
        "deep.json": lambda: "[" * 500_000 + "]" * 500_000,
        "cells.md": lambda: "|a" * 40_000 + "\n" + "|-" * 40_000 + "\n" + "|b\n" * 10_000,
        "quotes.md": lambda: ">" * 190_000 + "a",
        "picture.md": lambda: f"![x]({address(png())})",
        "drawing.md": lambda: f"![x]({address(copies().encode(), 'image/svg+xml')})",
        "pages.pdf": lambda: (
            "%PDF-1.7\n1 0 obj <</Type /Pages /Count 9000000 /Kids []>> endobj\ntrailer <</Size 9>>"
        ),
        "picture.pdf": lambda: (
            "%PDF-1.7\n1 0 obj <</Subtype /Image /Width 60000 /Height 60000>> stream\nendstream"
        ),
    }


_MEDIA: dict[str, Callable[[], bytes]] = {
    "silence.wav": flac,
    "lie.wav": lambda: flac(claimed=1),
    "tagged.mp3": lambda: b"ID3\4\0\0\0\0\0\x0a" + bytes(10) + flac(),
    "frames.mp3": mp3,
    "aac.mp3": adts,
    "opus.ogg": opus,
    "opus.wav": opus,
    "bits.png": png,
    "cut.png": lambda: png(bits=8, colour=6, whole=False),
    "deep.png": lambda: png(bits=16, colour=2, whole=False),
    "film.png": lambda: png(6_000, frames=20),
    "large.jpg": jpeg,
    "fine.jpg": lambda: jpeg(progressive=True),
    "large.gif": gif,
    "frames.gif": lambda: gif(5_000, 60),
    "lossy.webp": lambda: webp(lossless=False),
    "lossless.webp": lambda: webp(lossless=True),
    "bitmap.png": bmp,
    "icon.png": icon,
    "avif.png": avif,
    "png.jpg": png,
    "film.mp4": film_mp4,
    "film.webm": film_webm,
}


def bombs() -> dict[str, bytes]:
    made = {name: make() for name, make in _MEDIA.items()}
    return made | {name: make().encode() for name, make in (_pages() | _texts()).items()}
