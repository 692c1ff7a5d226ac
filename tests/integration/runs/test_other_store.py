"""Sandboxes and runs do everything with another store of checkpoints, because they know its contract only."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_store import MARK, MemoryStore
from support import run as in_loop
from time_travel import awaited, files_of, played_in, same_as_loaded, writes

from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import HistoryError
from llm_sandbox_nb.sandbox.history import stores
from llm_sandbox_nb.sandbox.open import open_sandbox
from llm_sandbox_nb.server.history_reader import HistoryReader
from llm_sandbox_nb.trajectory.run_folder import HISTORY


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "STORES", [MemoryStore])


@awaited
async def test_a_sandbox_goes_back_and_forks(box: Sandbox, tmp_path: Path) -> None:
    await box.run("echo one > f; export A=1; mkdir d; cd d")
    one = await box.checkpoint()
    assert box.history.folder is not None
    assert (box.history.folder / MARK).exists(), "the temporary history is in memory too"
    await box.keep_history(tmp_path / "h")
    await box.run("echo two > ../f; unset A; cd ..; rmdir d; echo new > g")
    changes = {change.path.rpartition("/")[2]: change for change in (await box.changes(one)).files}
    assert {name: change.kind for name, change in changes.items()} == {
        "f": "modified", "g": "added", "d": "deleted",
    }  # fmt: skip
    assert (changes["f"].before, changes["f"].after) == (b"one\n", b"two\n")
    restored = await box.restore(one)
    assert (restored.problems, restored.shell) == ((), True)
    assert (await box.run("cat ../f; echo $A; ls -d ../[df]")).stdout == b"one\n1\n../d\n../f\n"
    async with await box.fork(restored.safety, history=tmp_path / "fork") as fork:
        assert await files_of(fork) == {"f": b"two\n", "g": b"new\n"}
        await fork.run("echo forked > f")
        own = await fork.checkpoint()
        assert await fork.read_file("f", at=own) == b"forked\n"
        assert await fork.read_file("f", at=one) == b"one\n"
        with pytest.raises(HistoryError, match="no checkpoint"):
            await box.read_file("f", at=own)
    assert (await box.restore(restored.safety)).problems == ()
    assert await files_of(box) == {"f": b"two\n", "g": b"new\n"}


def test_a_run_goes_back_and_forks_with_and_without_its_sandbox(tmp_path: Path) -> None:
    async def with_its_sandbox() -> Path:
        async with open_sandbox("process") as box:
            run = await played_in(box, tmp_path, writes(3))
            await run.rewind(1)
            assert sorted(await files_of(box)) == ["log.txt", "new1.txt", "output/last.txt"]
            await run.undo()
            assert (await files_of(box))["log.txt"] == b"1\n2\n3\n"
            fork = await run.fork(2)
            assert fork.files["last.txt"].read_text() == "2\n"
            await fork.close()
        return same_as_loaded(run).folder

    async def without(folder: Path) -> None:
        run = Run.load(folder)
        assert (await run.rewind(1)).problems == ()
        assert run.files["last.txt"].read_text() == "1\n"

    folder = in_loop(with_its_sandbox(), timeout=120)
    in_loop(without(folder))
    reader = HistoryReader(folder / HISTORY)
    first, *_, last = (one["id"] for one in reader.checkpoints())
    changed = {change["path"].rpartition("/")[2] for change in reader.changes(first, last)["changes"]}
    assert {"log.txt", "new1.txt"} <= changed
    reader.close()
