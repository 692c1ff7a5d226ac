"""An independent account of every file in a sandbox, made without anything of the history."""

from __future__ import annotations

import json
import os
from typing import Any

from llm_sandbox_nb.sandbox.contract import Sandbox

Manifest = dict[str, tuple[Any, ...]]

_PROGRAM = r"""
import hashlib, json, os, stat, sys
since = float(sys.argv[1])
skipped = sys.argv[2].split(":")
tops = sys.argv[3:]
out = []
def mounts():
    for line in open("/proc/self/mountinfo", "rb"):
        fields = line.split()
        kind = fields[fields.index(b"-") + 1]
        place = fields[4].decode("unicode_escape").encode("latin-1")
        if b"rw" in fields[5].split(b",") and kind in (b"overlay", b"tmpfs", b"ext4", b"xfs", b"btrfs"):
            if place == b"/dev/shm" or not place.startswith((b"/proc", b"/sys", b"/dev")):
                yield place
def digest(path):
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            found.update(piece)
    return found.hexdigest()
def tell(path, look):
    kind = stat.S_IFMT(look.st_mode)
    content = None
    if kind == stat.S_IFREG and look.st_ctime >= since:
        content = digest(path)
    elif kind == stat.S_IFLNK:
        content = os.fsdecode(os.readlink(path))
    size = look.st_size if kind == stat.S_IFREG else 0
    group = (look.st_dev, look.st_ino) if look.st_nlink > 1 and kind == stat.S_IFREG else None
    row = [os.fsdecode(path), kind, look.st_mode & 0o7777, look.st_uid, look.st_gid, size, look.st_mtime_ns, content]
    out.append((path, row, group))
def walk(path, look):
    tell(path, look)
    if stat.S_ISDIR(look.st_mode):
        for entry in os.scandir(path):
            inner = entry.stat(follow_symlinks=False)
            if inner.st_dev == look.st_dev and entry.path not in SKIPPED:
                walk(entry.path, inner)
SKIPPED = {b"/tmp/llm-sandbox", b"/proc", b"/sys", b"/dev", *map(os.fsencode, skipped)}
for top in ([os.fsencode(top) for top in tops] or sorted(set(mounts()))):
    walk(top, os.lstat(top))
first = {}
out.sort(key=lambda one: one[0])
for path, row, group in out:
    row.append(first.setdefault(group, row[0]) if group else None)
print("\n".join(json.dumps(row) for _, row, _ in out))
"""


async def full_manifest(box: Sandbox, since: float, *, skipped: str = "") -> Manifest:
    """Path to (type, mode, uid, gid, size, mtime, SHA-256 or link target, first name of a file with several).

    Of files that were last changed (ctime, which nobody can set) before `since` the SHA-256 is left out. `skipped` are
    folders, with colons between them.
    """
    tops = [box.directories.root] if box.protection.isolation == "process" else []
    result = await box.exec(
        ["python3", "-I", "-", str(since), skipped, *tops],
        stdin=_PROGRAM.encode(),
        timeout=240,
        output_limit=256 * 1024 * 1024,
    )
    assert result.exit_code == 0, result.stderr.decode()
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    for row in rows if tops else ():  # of one folder, wherever it lies
        row[0], row[8] = row[0].removeprefix(tops[0]), row[8] and row[8].removeprefix(tops[0])
    return {row[0]: tuple(row[1:]) for row in rows}


async def digests(box: Sandbox, paths: list[str]) -> dict[str, str]:
    """The SHA-256 of files in a sandbox."""
    result = await box.exec(["sha256sum", "-z", "--", *paths], timeout=240)
    rows = [row.partition(b"  ") for row in result.stdout.split(b"\0") if row]
    return {os.fsdecode(path): digest.decode() for digest, _, path in rows}


def untold(was: Manifest, now: Manifest) -> list[str]:
    """Files of which one side leaves the content out and the other does not."""
    return [
        path
        for path, row in was.items()
        if path in now and row[:6] == now[path][:6] and (row[6] is None) != (now[path][6] is None)
    ]


def differences(was: Manifest, now: Manifest, image: dict[str, str]) -> list[str]:
    """What differs, in words; content that was left out is that of the image."""
    told = []
    for path in sorted(was.keys() | now.keys()):
        old, new = was.get(path), now.get(path)
        if old != new and _filled(path, old, image) != _filled(path, new, image):
            told.append(f"{path!r}: was {old}, is {new}")
    return told


def _filled(path: str, row: tuple[Any, ...] | None, image: dict[str, str]) -> tuple[Any, ...] | None:
    if row is None or row[6] is not None or path not in image:
        return row
    return (*row[:6], image[path], *row[7:])
