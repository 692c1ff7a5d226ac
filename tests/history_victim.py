"""A process that keeps checkpoints until it is killed; says each that is acknowledged.

python tests/history_victim.py FOLDER LIMIT
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from history_help import keep

from llm_sandbox_nb.sandbox.history.store import HistoryStore


def content(number: int) -> dict[str, bytes]:
    """The files of a checkpoint: known to whoever knows its number."""
    rng = random.Random(number)
    own = {f"/f{name}": rng.randbytes(rng.randrange(1, 6000)) for name in rng.sample(range(8), 4)}
    return {**own, "/always": b"there"}


def main() -> None:
    store = HistoryStore(Path(sys.argv[1]), limit=int(sys.argv[2]))
    known = [one.id for one in store.checkpoints()]
    number = int(known[-1]) + 1 if known else 0
    parent = known[-1] if known else None
    while True:
        keep(store, str(number), content(number), parent)
        print(number, flush=True)
        parent, number = str(number), number + 1
        if number % 20 == 0:
            store.continue_in(Path(sys.argv[1] + f"-{number}"))


if __name__ == "__main__":
    main()
