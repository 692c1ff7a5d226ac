"""Scorer of the task `demo`. It compares texts and ignores case. The scorer of each task is a function like this."""


def score(answer: str, gold: str, **row: object) -> float:
    """Return a score from 0 to 1, or None if the answer cannot be scored. `row` has the other columns of the data."""
    return float(answer.strip().casefold() == gold.strip().casefold())
