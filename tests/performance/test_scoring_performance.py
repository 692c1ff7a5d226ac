"""The time to score ten thousand answers."""

from __future__ import annotations

import random
import time

from answer_sets import right, wrong
from best_of import best_of

from llm_sandbox_nb.benchmark.scorers import score_row

ANSWERS, SECONDS = 10_000, 40.0
"""Of processor time. The scorers took 19 s before they normalised and compared quantities, and take 5 s now."""


def test_ten_thousand_answers_are_scored_in_seconds() -> None:
    cases = right(ANSWERS // 2, seed=3) + wrong(ANSWERS // 2, seed=3)
    random.Random(3).shuffle(cases)

    def once() -> float:
        started = time.process_time()
        scored = [score_row(case.rule, case.answer, case.gold, {}).value for case in cases]
        assert abs(scored.count(1.0) / ANSWERS - 0.5) < 0.01
        return time.process_time() - started

    assert best_of(3, once, bar=SECONDS) <= SECONDS
