"""Looks for a secret everywhere: in files, whatever they are packed as, and in all processes of this machine.

    found = in_folder(folder, secret)     # the files that hold it
    found = in_processes(secret)          # ("environ", 4711), ("cmdline", 4711), ...

Text is looked at as it is, and through base64 and zlib (or gzip), each within the other, as a saved card has it.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

_DEEPEST = 4
_ENCODED = re.compile(rb"[A-Za-z0-9+/_-]{24,}={0,2}")
_ZLIB = re.compile(rb"\x78[\x01\x5e\x9c\xda]|\x1f\x8b\x08")
_LARGEST = 50_000_000


def holds(data: bytes, secret: str, depth: int = _DEEPEST) -> bool:
    """Whether the secret is in `data`, or in what is packed in it."""
    if secret.encode() in data:
        return True
    return depth > 0 and any(holds(inner, secret, depth - 1) for inner in _inner(data))


def _inner(data: bytes) -> Iterator[bytes]:
    for match in _ZLIB.finditer(data):
        wbits = 31 if match[0].startswith(b"\x1f") else 15
        try:
            yield zlib.decompressobj(wbits).decompress(data[match.start() :], _LARGEST)
        except zlib.error:
            continue
    for match in _ENCODED.finditer(data.replace(b"\\n", b"").replace(b"\n", b"")):
        text = match[0].rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
        for skipped in range(4):  # what stands in front may not be a part of it
            piece = text[skipped:]
            try:
                yield base64.b64decode(piece[: len(piece) // 4 * 4] if len(piece) % 4 == 1 else piece + b"==")
            except binascii.Error:
                continue


def in_folder(folder: Path, secret: str) -> list[Path]:
    """The files below `folder` that hold it, or have it in their name."""
    found = []
    for path in sorted(folder.rglob("*")):
        if secret in path.name or (
            path.is_file() and not path.is_symlink() and holds(path.read_bytes(), secret)
        ):
            found.append(path)
    return found


def in_processes(secret: str) -> set[tuple[str, int]]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                data = (entry / name).read_bytes()
            except OSError:
                continue
            if holds(data, secret, 0):
                found.add((name, int(entry.name)))
    return found
