"""Keeping a history within its size: the oldest checkpoints go first."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from llm_sandbox_nb.sandbox.history.entry import Entry, digests
from llm_sandbox_nb.sandbox.history.index import Index
from llm_sandbox_nb.sandbox.history.packs import PackWriter

_ROOM = 0.9
"""Part of the limit that is in use after dropping, so that not every checkpoint drops one."""


def keep_within(index: Index, packs: Path, limit: int, kept: Collection[str]) -> list[str]:
    """Drop the oldest checkpoints, none of `kept`, until their content fits into `limit` bytes.

    Returns the packs that are no more.
    """
    sizes = index.packs()
    if sum(sizes.values()) <= limit:
        return []
    old = [one.id for one in index.checkpoints() if one.id not in kept]
    new: list[PackWriter] = []
    try:
        with index.transaction():
            live = _live(index)
            while sum(live.values()) > _ROOM * limit and old:
                _drop(index, old.pop(0))
                live = _live(index)
            gone = _repack(index, packs, live, new)
    except BaseException:
        for writer in new:
            writer.discard()
        raise
    for name in gone:
        (packs / name).unlink(missing_ok=True)
    return gone


def _live(index: Index) -> dict[bytes, int]:
    """Every piece of content that is still named, and its size."""
    rows = index.sql.execute(
        "SELECT entry FROM entries WHERE entry IS NOT NULL UNION ALL SELECT entry FROM image"
    )
    named = digests(Entry.decode(row[0]) for row in rows if row[0])
    sizes = index.sql.execute("SELECT digest, size FROM objects")
    return {digest: size for digest, size in sizes if digest in named}


def _drop(index: Index, id: str) -> None:
    """Drop a checkpoint; what came after it gets what it had changed."""
    sql, number = index.sql, index.number(id)
    (parent,) = sql.execute("SELECT parent FROM checkpoints WHERE number = ?", (number,)).fetchone()
    children = [row[0] for row in sql.execute("SELECT number FROM checkpoints WHERE parent = ?", (number,))]
    for child in children:
        sql.execute(
            "INSERT OR IGNORE INTO entries SELECT ?, path, entry FROM entries WHERE checkpoint = ?",
            (child, number),
        )
        if parent is None:
            sql.execute("DELETE FROM entries WHERE checkpoint = ? AND entry IS NULL", (child,))
        sql.execute("UPDATE checkpoints SET parent = ? WHERE number = ?", (parent, child))
    sql.execute("DELETE FROM entries WHERE checkpoint = ?", (number,))
    sql.execute("DELETE FROM checkpoints WHERE number = ?", (number,))
    sql.execute("INSERT INTO dropped VALUES (?)", (id,))


def _repack(index: Index, packs: Path, live: dict[bytes, int], new: list[PackWriter]) -> list[str]:
    """Write what is live of packs that hold more than that into new ones; the names of the old."""
    gone = []
    for number, name, size in index.sql.execute("SELECT number, name, size FROM packs").fetchall():
        rows = index.sql.execute(
            "SELECT digest, offset, size FROM objects WHERE pack = ?", (number,)
        ).fetchall()
        needed = [row for row in rows if row[0] in live]
        if sum(row[2] for row in needed) == size:
            continue
        writer = PackWriter(packs)
        new.append(writer)
        descriptor = os.open(packs / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for _, offset, length in sorted(needed, key=lambda row: row[1]):
                writer.add(os.pread(descriptor, length, offset))
        finally:
            os.close(descriptor)
        writer.finish()
        index.sql.execute("DELETE FROM objects WHERE pack = ?", (number,))
        index.sql.execute("DELETE FROM packs WHERE number = ?", (number,))
        index.add_pack(writer)
        gone.append(name)
    return gone
