"""A host of the filesystem's history at its barest: it asks an executor and believes what it says."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Sequence
from typing import Any

HEAD = struct.Struct(">BI")


def record(kind: str, payload: bytes) -> bytes:
    return HEAD.pack(ord(kind), len(payload)) + payload


def rows(kind: str, *items: object) -> bytes:
    return record(kind, json.dumps(items).encode())


class Told:
    """What one request has told."""

    def __init__(self, data: bytes, outcome: dict[str, Any]) -> None:
        self.data = data
        self.outcome = outcome
        self.records = list(records_of(data))
        self.chunks = {hashlib.sha256(body).hexdigest(): body for kind, body in self.records if kind == "C"}
        self.entries: dict[str, list[Any]] = {}
        self.gone: list[str] = []
        self.shell: bytes | None = None
        for kind, body in self.records:
            if kind == "E":
                self.entries.update((row[0], row) for row in json.loads(body))
            elif kind == "G":
                self.gone += json.loads(body)
            elif kind == "S":
                self.shell = body


def records_of(data: bytes) -> Iterable[tuple[str, bytes]]:
    at = 0
    while at < len(data):
        kind, size = HEAD.unpack_from(data, at)
        body = data[at + HEAD.size : at + HEAD.size + size]
        assert len(body) == size
        yield chr(kind), body
        at += HEAD.size + size


class Host:
    """Keeps the manifest of one sandbox, as far as it has been told."""

    def __init__(self, box: Any) -> None:
        self.box = box
        self.last: str | None = None
        self.count = 0
        self.chunks: dict[str, bytes] = {}
        self.manifest: dict[str, list[Any]] = {}
        self.shell: bytes | None = None

    async def ask(self, op: str, body: bytes | None = None, **params: Any) -> Told:
        found: list[bytes] = []
        outcome = await self.box.channel.call(
            {"op": op, "timeout": 60, **params}, body=body, sink=lambda _, data: found.append(data)
        )
        return Told(b"".join(found), outcome)

    async def checkpoint(self, *, since: str | None = "last", **limits: Any) -> Told:
        self.count += 1
        id = f"c{self.count}"
        since = self.last if since == "last" else since
        told = await self.ask("checkpoint", id=id, since=since, limits=limits)
        assert "error" not in told.outcome, told.outcome
        if not told.outcome["incremental"]:
            self.manifest = {}
        self.take(told)
        self.last = id
        return told

    def take(self, told: Told) -> None:
        for kind, body in told.records:
            if kind == "C":
                self.chunks[hashlib.sha256(body).hexdigest()] = body
            elif kind == "G":
                for path in json.loads(body):
                    self.drop(path)
            elif kind == "E":
                for row in json.loads(body):
                    if row[1] != "d":
                        self.drop(row[0])
                    self.manifest[row[0]] = row
            elif kind == "S":
                self.shell = body

    def drop(self, path: str) -> None:
        below = path.rstrip("/") + "/"
        for other in [other for other in self.manifest if other == path or other.startswith(below)]:
            del self.manifest[other]

    def content(self, path: str) -> bytes:
        row = self.manifest[path]
        data = bytearray(row[7])
        for offset, length, digest in row[8]:
            data[offset : offset + length] = self.chunks[digest]
        return bytes(data)

    def file_records(self, row: Sequence[Any], kind: str = "F") -> bytes:
        parts = [record(kind, json.dumps(row).encode())]
        for offset, _, digest in row[8]:
            parts.append(record("W", struct.pack(">Q", offset) + self.chunks[digest]))
        return b"".join(parts)

    def plan(self, target: dict[str, list[Any]]) -> bytes:
        """All that makes `target` of what is there; what is of the image and has gone cannot be made."""
        here = self.manifest
        parts = [rows("D", *(path for path in here if path not in target))]
        for path in sorted(target):
            row = target[path]
            if here.get(path) == row:
                continue
            if row[2]:
                parts.append(rows("M", row))
            elif row[1] == "f" and row[8] and row[9] in (None, path):
                parts.append(self.file_records(row))
            else:
                parts.append(rows("E", row))
        return b"".join(parts)

    async def restore(self, target: dict[str, list[Any]], shell: bytes | None = None) -> Told:
        """Make the files `target`."""
        self.count += 1
        id = f"r{self.count}"
        body = self.plan(target) + (record("S", shell) if shell is not None else b"")
        told = await self.ask("restore", body, id=id, since=self.last)
        assert "error" not in told.outcome, told.outcome
        self.manifest, self.last = dict(target), id
        return told


WALK = """
import hashlib, json, os, stat, sys
def walk(path):
    look = os.lstat(path)
    kind = stat.S_IFMT(look.st_mode)
    row = [kind, stat.S_IMODE(look.st_mode), look.st_uid, look.st_gid, look.st_mtime_ns]
    if kind == stat.S_IFREG:
        with open(path, 'rb') as file:
            row += [look.st_size, hashlib.sha256(file.read()).hexdigest()]
        if look.st_nlink > 1:
            links.setdefault(look.st_ino, []).append(path)
    elif kind == stat.S_IFLNK:
        row.append(os.readlink(path))
    elif kind in (stat.S_IFCHR, stat.S_IFBLK):
        row.append(look.st_rdev)
    row.append({name: os.getxattr(path, name, follow_symlinks=False).hex()
                for name in os.listxattr(path, follow_symlinks=False)})
    found[path] = row
    if kind == stat.S_IFDIR:
        for name in sorted(os.listdir(path)):
            below = os.path.join(path, name)
            if os.lstat(below).st_dev == look.st_dev or not os.path.ismount(below):
                walk(below)
found, links = {}, {}
for path in sys.argv[1:]:
    walk(path)
print(json.dumps([found, sorted(sorted(paths) for paths in links.values())]))
"""


async def truth(box: Any, *paths: str) -> Any:
    """What is really below some folders, seen by a program of its own: every entry, and which are one file."""
    result = await box.exec(["python3", "-c", WALK, *paths], output_limit=100_000_000)
    assert result.exit_code == 0, result.text[-2000:]
    return json.loads(result.stdout)
