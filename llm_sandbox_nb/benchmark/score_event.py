"""Score of a benchmark in the journal of a run. The score is recorded as a check, after the end of the run."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

from llm_sandbox_nb.benchmark.results import Result
from llm_sandbox_nb.benchmark.scorers import IN_SANDBOX
from llm_sandbox_nb.benchmark.text_scorers import Score
from llm_sandbox_nb.formatting import format_number
from llm_sandbox_nb.plain_text import first_line
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import Journal, JournalError, read_journal
from llm_sandbox_nb.trajectory.protection import is_isolated
from llm_sandbox_nb.trajectory.run_folder import JOURNAL
from llm_sandbox_nb.trajectory.trajectory import Trajectory

logger = logging.getLogger(__name__)
_SUMMARY_CHARACTERS = 160
_OUTCOMES: dict[float | None, Literal["passed", "failed", "error"]] = {
    None: "error",
    0.0: "failed",
    1.0: "passed",
}


def record_score(folder: Path, trajectory: Trajectory, scorer: str, score: Score) -> None:
    """Add a score, or the failure of the scorer, to the journal in `folder`.

    Score 1 is a passed check, and score 0 is a failed check. The scorer `swe` works in a sandbox, and in the isolation
    `process` a run could tamper with it. Such a check is not marked as protected.

    Raises:
        JournalError, OSError: if the journal cannot be written.
    """
    if score.value is None and not score.failed:
        return
    name = Path(scorer).name
    detail = first_line(str(ev.clean_text(score.detail)), _SUMMARY_CHARACTERS)
    outcome: Literal["passed", "failed", "score", "error"] = "score"
    if score.value in _OUTCOMES:
        outcome = _OUTCOMES[score.value]
    number = format_number(score.value) if outcome == "score" and score.value is not None else ""
    protection = trajectory.sandbox.protection if trajectory.sandbox else {}
    verdict = ev.Verdict(
        outcome=outcome,
        summary=number or ": ".join(filter(None, [name, detail])),
        protected=scorer not in IN_SANDBOX or is_isolated(protection),
    )
    event = ev.Checked(
        parent=trajectory.head,
        number=len(trajectory.checks) + 1,
        what=name,
        verdict=verdict,
        score=score.value,
        output=detail,
    )
    journal = Journal(folder)
    try:
        journal.append(event)
    finally:
        journal.close()
    trajectory.add(event)


def record_result(out: Path, result: Result, scorer: str) -> None:
    """Add a later score, such as a judge's, to the journal of the run that gave the answer, if the journal exists.

    A damaged journal stays as it is: the answer and its score are in the results anyway. `out` is the folder of the
    results.

    Raises:
        OSError: if the journal cannot be read or written.
    """
    folder = out / result.run
    if result.run and (folder / JOURNAL).is_file():
        score = Score(result.score, result.detail, failed=bool(result.error_kind))
        try:
            record_score(folder, Trajectory(read_journal(folder)), scorer, score)
        except JournalError as error:
            logger.warning("The score is not in the record of its run: %s", error)
