"""Print the final card of an ended or abandoned run, as JSON: the data and metadata of a cell's output.

    python -m llm_sandbox_nb.card.saved FOLDER

The Jupyter server runs this module to put the card into a notebook that was saved while the run was live. A separate
process reads the record, so that a damaged or very large record does not slow the server. Paths of files are relative
to the working folder, which is the notebook's folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from llm_sandbox_nb.card.card import Card
from llm_sandbox_nb.trajectory.journal import JournalError, is_being_written, read_journal
from llm_sandbox_nb.trajectory.trajectory import Trajectory

UNREADABLE, RUNNING = 3, 4
"""Exit codes: the record is missing or invalid (3), or a process still executes the run (4)."""


def main() -> int:
    """Print the card of the run in the given folder. Return 0, or, if there is no card, the code of the reason."""
    folder = Path(sys.argv[1])
    try:
        if is_being_written(folder):
            return RUNNING
        card = Card(folder=folder, trajectory=Trajectory(read_journal(folder)))
    except (OSError, JournalError) as error:
        print(error, file=sys.stderr)
        return UNREADABLE
    if card.trajectory.start is None:
        return UNREADABLE
    json.dump({"data": card.final(), "metadata": card.metadata}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
