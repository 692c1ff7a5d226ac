"""Measurements that are repeated, because other work of the machine makes one worse and never better."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def best_of(tries: int, measure: Callable[[], T], *, bar: float, by: Callable[[Any], float] = float) -> T:
    """Return the measurement whose figure `by` is the smallest; one that is at most the bar ends the series."""
    taken: list[T] = []
    for _ in range(tries):
        taken.append(measure())
        if by(taken[-1]) <= bar:
            break
    return min(taken, key=by)
