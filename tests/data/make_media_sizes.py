"""Writes media_sizes.json: small files, and what they decode to. Both languages read it."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import bombs  # noqa: E402


def rows() -> list[dict[str, Any]]:
    """Name, content, and what it is: size, frames and depth of a picture, samples of a sound, size of a film."""
    avif = bombs.picture("AVIF")
    place = avif.index(b"ispe") + 8
    lie = avif[:place] + (4).to_bytes(4, "big") * 2 + avif[place + 8 :]
    pictures: dict[str, tuple[bytes, Any]] = {
        "png": (bombs.png(9, bits=8, colour=6), [9, 9, 1, 4]),
        "cut png": (bombs.png(bits=16, colour=2, whole=False), [30_000, 30_000, 1, 8]),
        "png film": (bombs.png(64, frames=3), [64, 64, 3, 4]),
        "jpeg": (bombs.jpeg(), [60_000, 60_000, 1, 4]),
        "progressive jpeg": (bombs.jpeg(progressive=True), [60_000, 60_000, 1, 10]),
        "gif": (bombs.gif(), [30_000, 30_000, 1, 4]),
        "gif film": (bombs.gif(5_000, 3), [5_000, 5_000, 3, 4]),
        "webp": (bombs.webp(lossless=False), [16_383, 16_383, 0, 4]),
        "lossless webp": (bombs.webp(lossless=True), [16_384, 16_384, 0, 4]),
        "bmp": (bombs.bmp(), [30_000, 30_000, 1, 4]),
        "icon": (bombs.icon(), [30_000, 30_000, 1, 4]),
        "avif": (bombs.avif(), [30_000, 30_000, 1, 8]),
        "avif that lies": (lie, [64, 64, 1, 8]),
        "no picture": (b"<html>", None),
        "half a png": (bombs.png(9)[:20], None),
        "half a jpeg": (bombs.jpeg()[:30], None),
    }
    frame = 65_535 * 8
    tag = b"ID3\4\0\0\0\0\0\x0a" + bytes(10)
    wav = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\1\0\2\0\x80\xbb\0\0\0\0\0\0\4\0\x10\0data\xff\xff\xff\xff" + bytes(
        400
    )
    sounds: dict[str, tuple[bytes, Any]] = {
        "flac": (bombs.flac(3), 3 * frame),
        "flac that lies": (bombs.flac(200, claimed=1), 200 * frame),
        "flac that claims": (bombs.flac(1, claimed=10**9), 8 * 10**9),
        "flac with a tag": (tag + bombs.flac(2), 2 * frame),
        "mp3": (bombs.mp3(5), 5 * 576 * 2),
        "aac": (bombs.adts(5), 5 * 2048 * 2),
        "opus": (bombs.opus(5), 5 * 5_760 * 2),
        "wav": (wav, 200),
        "mp3 in wav": (wav[:20] + b"\x55" + wav[21:44] + bombs.mp3(4), 4 * 576 * 2),
        "no sound": (b"nothing at all", None),
        "half a flac": (bombs.flac(1)[:10], None),
    }
    films: dict[str, tuple[bytes, Any]] = {
        "mp4": (bombs.film_mp4(), [16_000, 16_000]),
        "webm": (bombs.film_webm(), [16_000, 16_000]),
        "no film": (b"nothing at all", None),
    }
    kinds: dict[str, dict[str, tuple[bytes, Any]]] = {"picture": pictures, "sound": sounds, "film": films}
    return [
        {"name": name, "kind": kind, "data": base64.b64encode(data).decode(), "is": size}
        for kind, files in kinds.items()
        for name, (data, size) in files.items()
    ]


if __name__ == "__main__":
    (HERE / "media_sizes.json").write_text(json.dumps(rows(), indent=1) + "\n")
