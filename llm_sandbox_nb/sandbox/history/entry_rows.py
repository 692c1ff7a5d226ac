"""Checks of paths, and of rows. A row is a list of values that describes an entry; see `manifest.Entry.row`.

The rows come from a sandbox or from a history on disk, so they may be hostile.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence

from llm_sandbox_nb.sandbox.history.manifest import BLOCK, CHAR, FILE, FOLDER, LINK, TYPES

MAX_CHUNK_BYTES = 1024 * 1024
"""Maximum bytes of a piece of content."""
MAX_XATTRS_CHARACTERS = 64 * 1024
_MAX_PATH_BYTES, _MAX_NAME_BYTES = 4095, 255
_MAX_TIME_NS = 2**63 * 10**9  # a tmpfs keeps any 64-bit number of seconds
_KERNEL_FOLDERS = ("/proc/", "/sys/", "/dev/")
_SHARED_MEMORY = "/dev/shm/"
"""The only folder in `/dev` that the history covers, because programs make the files in it."""


def path_problem(path: object) -> str:
    """Return the problem with a path, as a part of a sentence. Empty if a sandbox may report this path."""
    invalid = "it reports a file with an invalid path"
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
        return invalid
    try:
        data = os.fsencode(path)
    except UnicodeEncodeError:
        return invalid
    if os.fsdecode(data) != path:
        return invalid
    names = data.split(b"/")[1:] if path != "/" else []
    if len(data) > _MAX_PATH_BYTES or any(
        name in (b"", b".", b"..") or len(name) > _MAX_NAME_BYTES for name in names
    ):
        return invalid
    if path.startswith(_KERNEL_FOLDERS) and not f"{path}/".startswith(_SHARED_MEMORY):
        return "it reports files of the kernel"
    return ""


_PATH_PATTERN = re.compile(rb"/|(?:/(?!\.\.?(?:/|\Z))[^/\0]{1,%d})+" % _MAX_NAME_BYTES)


def is_kept_path(data: object) -> bool:
    """Return True if `path_problem` would find no problem with the path `data`.

    For most paths, this function is much faster. Speed matters, because a history may have millions of paths.
    """
    if not isinstance(data, bytes) or len(data) > _MAX_PATH_BYTES or _PATH_PATTERN.fullmatch(data) is None:
        return False
    return not data.startswith((b"/proc/", b"/sys/", b"/dev/")) or not path_problem(os.fsdecode(data))


def is_entry(row: object, *, kept: bool = False) -> bool:
    """Return True if `row` has ten valid fields: those of `Entry.row` without the path of the entry itself.

    The path in the field `link` is not checked.

    `kept` is True for a row of an index on disk. An entry that is as in the image may have a detail (e.g. its content)
    in such a row, but not in a row from a sandbox.
    """
    if not isinstance(row, Sequence) or isinstance(row, str) or len(row) != 10:
        return False
    kind, base, mode, uid, gid, mtime_ns, size, detail, link, xattrs = row
    return (
        isinstance(kind, str)
        and kind in TYPES
        and base in (0, 1)
        and is_number(mode, 0, 0o7777)
        and all(is_number(id, 0, 2**32 - 1) for id in (uid, gid))
        and is_number(mtime_ns, -_MAX_TIME_NS, _MAX_TIME_NS)
        and is_number(size, 0, 2**63 - 1)
        and (link is None or (kind != FOLDER and isinstance(link, str)))
        and _is_attributes(xattrs)
        and (
            _is_detail(kind, bool(base), size, detail) or (kept and _is_kept_detail(kind, base, size, detail))
        )
    )


def is_number(value: object, least: int, most: int) -> bool:
    """Return True if `value` is a whole number from `least` to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_detail(kind: str, base: bool, size: int, detail: object) -> bool:
    if base:
        return detail is None
    if detail is None:
        return kind not in (LINK, CHAR, BLOCK)
    if kind == FILE:
        return isinstance(detail, list) and _are_chunks(detail, size)
    if kind == LINK:
        return isinstance(detail, str) and 0 < len(detail) <= _MAX_PATH_BYTES and _is_name(detail)
    if kind in (CHAR, BLOCK):
        return isinstance(detail, list) and len(detail) == 2 and all(is_number(n, 0, 2**32) for n in detail)
    return False


def _is_kept_detail(kind: str, base: int, size: int, detail: object) -> bool:
    """Return True if `detail` is valid for an entry that is as in the image. A link's target may be empty (unknown)."""
    return base == 1 and ((kind == LINK and detail == "") or _is_detail(kind, False, size, detail))


def _is_name(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _are_chunks(rows: list[object], size: int) -> bool:
    end = 0
    for row in rows:
        if not isinstance(row, list) or len(row) != 3:
            return False
        offset, length, digest = row
        if not is_number(offset, end, size) or not is_number(length, 1, MAX_CHUNK_BYTES):
            return False
        if not isinstance(digest, str) or len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            return False
        end = offset + length
    return end <= size


def _is_attributes(value: object) -> bool:
    if value is None:
        return True
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        return False
    return len(json.dumps(value)) <= MAX_XATTRS_CHARACTERS
