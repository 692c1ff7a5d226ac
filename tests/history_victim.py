"""A process that keeps checkpoints until it is killed; says each that is acknowledged."""

from __future__ import annotations

import os
import random
from pathlib import Path

from history_help import keep

from llm_sandbox_nb.sandbox.history.checkpoint_store import CheckpointStore


def content(number: int) -> dict[str, bytes]:
    """The files of a checkpoint: known to whoever knows its number."""
    rng = random.Random(number)
    own = {f"/f{name}": rng.randbytes(rng.randrange(1, 6000)) for name in rng.sample(range(8), 4)}
    return {**own, "/always": b"there"}


def keep_until_killed(kind: type[CheckpointStore], folder: Path, limit: int, told: int) -> None:
    """Keep checkpoints, and now and then continue in another folder; numbers go to the descriptor `told`."""
    store = kind(folder, limit=limit)
    known = [one.id for one in store.checkpoints()]
    number = int(known[-1]) + 1 if known else 0
    parent = known[-1] if known else None
    while True:
        keep(store, str(number), content(number), parent)
        os.write(told, b"%d\n" % number)
        parent, number = str(number), number + 1
        if number % 20 == 0:
            store.continue_in(folder.with_name(f"{folder.name}-{number}"))
