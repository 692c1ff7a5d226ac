"""The host's side of a checkpoint computes and stores only what the sandbox reported as changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from history_help import file_entry, file_row, folder_row, record
from support import run

from llm_sandbox_nb.sandbox.history import sandbox_history
from llm_sandbox_nb.sandbox.history.sandbox_history import SandboxHistory
from llm_sandbox_nb.sandbox.protocol.frames import Kind

FILES = [f"/d/{number}" for number in range(100)]
FIRST = record("E", [folder_row("/"), folder_row("/d")]) + record("C", b"old")
FIRST += record("E", [file_row(path, b"old") for path in FILES])


class Executor:
    """A connection whose sandbox reports these streams, one for each checkpoint."""

    def __init__(self, *streams: bytes) -> None:
        self.streams = list(streams)
        self.requests: list[Any] = []

    async def request_files(self, params: Any, sink: Any, timeout: float) -> dict[str, Any]:
        self.requests.append(params)
        for byte in range(0, len(stream := self.streams.pop(0)), 7):  # records are cut anywhere
            sink(Kind.STDOUT, stream[byte : byte + 7])
        return {"incremental": len(self.requests) > 1, "roots": ["/"], "incomplete": ""}


def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *later: bytes) -> tuple[Any, list[str]]:
    """Take a checkpoint of 100 files, then one for each stream of `later`, without a comparison of all files."""

    async def body() -> tuple[Any, list[str]]:
        history, executor = SandboxHistory("everything"), Executor(FIRST, *later)
        await history.keep(tmp_path / "history", None, None)
        taken = [await history.take(executor)]  # type: ignore[arg-type]
        monkeypatch.setattr(sandbox_history, "delta", None)
        taken += [await history.take(executor) for _ in later]  # type: ignore[arg-type]
        return history, taken

    return run(body())


def test_without_changes_the_entries_are_not_even_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_history, "apply_delta", lambda before, changed: {**before, **changed})
    history, (first, second) = checkpoints(tmp_path, monkeypatch, b"")
    assert first == second
    assert history.entries is history.stored[1]


def test_a_changed_and_a_deleted_file_are_two_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = record("G", [FILES[1]]) + record("C", b"new") + record("E", [file_row(FILES[0], b"new")])
    history, (first, second) = checkpoints(tmp_path, monkeypatch, changed)
    store = history.store_with(second)
    rows = store._index.sql.execute("SELECT count(*) FROM entries GROUP BY checkpoint").fetchall()
    assert rows == [(102,), (2,)]
    assert store.checkpoint(second).files == 2
    wanted = {**store.manifest(first), FILES[0]: file_entry(b"new")}
    del wanted[FILES[1]]
    assert store.manifest(second) == wanted == history.entries
    store._manifests.clear()
    assert store.manifest(second) == wanted  # as the rows have it
