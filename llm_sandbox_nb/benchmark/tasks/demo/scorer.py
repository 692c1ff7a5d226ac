"""The scorer of the demo: the same text, but for case. A task's own scorer is one such function."""


def score(answer: str, gold: str, **row: object) -> float:
    """From 0 to 1, or None when it cannot be scored. `row` has the other columns of the data."""
    return float(answer.strip().casefold() == gold.strip().casefold())
