"""The scorer of the demo: same text, ignoring case. A task's own scorer is one such function."""


def score(answer: str, gold: str, **row: object) -> float:
    """Return a score from 0 to 1, or None if the answer cannot be scored. `row` has the other columns of the data."""
    return float(answer.strip().casefold() == gold.strip().casefold())
