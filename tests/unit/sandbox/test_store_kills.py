"""kill -9 of a process that keeps, drops and shares checkpoints: nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
from crash_points import at_every_change
from history_help import files_at, keep
from history_victim import content, keep_until_killed
from support import CAMPAIGN

from llm_sandbox_nb.sandbox.errors import HistoryError
from llm_sandbox_nb.sandbox.history.checkpoint_store import CheckpointStore
from llm_sandbox_nb.sandbox.history.pack_store import PackStore
from llm_sandbox_nb.sandbox.history.stores import STORES, is_history

KILLS = 100
LIMIT = 60_000
Kind = type[CheckpointStore]


def run_and_kill(kind: Kind, folder: Path, words: int, turns: int) -> list[str]:
    """What a child acknowledged until it was killed, so many turns of our loop after so many of its words."""
    mine, its = os.pipe()
    child = os.fork()
    if not child:
        try:
            keep_until_killed(kind, folder, LIMIT, its)
        finally:
            os._exit(1)
    os.close(its)
    with os.fdopen(mine, "rb") as said:
        told = b"".join(said.readline() for _ in range(words))
        for _ in range(turns):
            pass
        os.kill(child, signal.SIGKILL)
        told += said.read()
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    return told.decode().split("\n")[:-1]


def check(store: CheckpointStore, acknowledged: int) -> None:
    """All there is can be read and is right; of what was acknowledged only the oldest are missing, and told so."""
    left = [int(one.id) for one in store.checkpoints()]
    assert left == list(range(left[0], left[-1] + 1))
    assert left[-1] >= acknowledged
    assert store.dropped == left[0]
    for number in left:
        assert files_at(store, str(number)) == content(number)
        assert store.shell(str(number)) == str(number).encode()
    if left[0]:
        with pytest.raises(HistoryError, match="was dropped"):
            store.manifest(str(left[0] - 1))


def check_packs(store: CheckpointStore, folder: Path) -> None:
    """Half-made and half-removed checkpoints are gone."""
    if isinstance(store, PackStore):
        assert sum(path.stat().st_size for path in (folder / "packs").iterdir()) == store.size


def keep_some(kind: Kind, folder: Path, told: int) -> None:
    """Four checkpoints, with room for about two, and a copy of the history half-way."""
    store = kind(folder / "h", limit=25_000)
    for number in range(4):
        keep(store, str(number), content(number), str(number - 1) if number else None)
        os.write(told, b"%d\n" % number)
        if number == 1:
            store.continue_in(folder / "h-2")
    assert store.dropped


@pytest.mark.parametrize("kind", STORES)
def test_killed_before_any_change_of_a_file_a_history_is_whole(kind: Kind, tmp_path: Path) -> None:
    states = set()
    for folder, told in at_every_change(partial(keep_some, kind), tmp_path, every=1 if CAMPAIGN else 5):
        store = kind(folder / "h")
        states.add((len(store.checkpoints()), store.dropped, len(told)))
        if store.checkpoints():
            check(store, max(map(int, told), default=0))
        else:
            assert not told
        check_packs(store, folder / "h")
        store.close()
        if is_history(folder / "h-2"):
            copy = kind(folder / "h-2")
            check(copy, 1)
            copy.close()
    assert any(kept and number == kept + dropped - 1 for kept, dropped, number in states), (
        "kept, not yet told"
    )
    assert len({dropped for _, dropped, _ in states}) > 1


@pytest.mark.campaign
@pytest.mark.parametrize("kind", STORES)
def test_a_killed_process_leaves_a_whole_history(kind: Kind, tmp_path: Path) -> None:
    rng, acknowledged = random.Random(4), -1
    folder = tmp_path / "h"
    for _ in range(KILLS):
        told = run_and_kill(kind, folder, rng.randint(1, 4), rng.randrange(400_000))
        acknowledged = max([acknowledged, *map(int, told)])
        store = kind(folder)
        check(store, acknowledged)
        check_packs(store, folder)
        store.close()
        for other in tmp_path.glob("h-*"):
            if is_history(other):
                copy = kind(other)
                check(copy, int(other.name[2:]) - 1)
                copy.close()
            shutil.rmtree(other)
    assert acknowledged > KILLS
