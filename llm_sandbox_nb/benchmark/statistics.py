"""Confidence intervals of scores, and tests of the difference between two sets of scores.

Shares of right answers, and means of equal scores, have Wilson's interval. All other means have the bootstrap interval
over items. Two sets of scores on the same items are compared by the paired bootstrap. If each score is 0 or 1, they are
also compared by McNemar's exact test. For repeated items, pass@k and pass^k are estimated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

RESAMPLES = 10_000
SEED = 20_260_122
"""Fixed seed, so that equal results have equal intervals."""
_BATCH_RESAMPLES = 1000
"""Number of resamples in memory at the same time."""
_NORMAL_QUANTILE = 1.959963984540054
"""Quantile of the normal distribution for a 95 % interval."""


@dataclass(frozen=True)
class Interval:
    """Mean with its 95 % interval. The bounds are None for a single item, and if `bootstrap` gets equal values."""

    mean: float
    low: float | None = None
    high: float | None = None


def score_interval(values: Sequence[float]) -> Interval | None:
    """Return the mean of scores from 0 to 1 with its interval, or None if there are no scores.

    A single score has no bounds. If each score is 0 or 1, or if all scores are equal, the interval is Wilson's.
    Otherwise it is the bootstrap interval.
    """
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Interval(mean)
    alike = min(values) == max(values)
    if alike or all(value in (0.0, 1.0) for value in values):
        return Interval(mean, *wilson(mean, len(values)))
    return bootstrap(values)


def wilson(share: float, number: int) -> tuple[float, float]:
    """Return the bounds of Wilson's interval for `share`, a share of `number` items. The two bounds always differ."""
    square = _NORMAL_QUANTILE**2
    middle = (share + square / (2 * number)) / (1 + square / number)
    half = (
        _NORMAL_QUANTILE
        * math.sqrt(share * (1 - share) / number + square / (4 * number**2))
        / (1 + square / number)
    )
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def bootstrap(values: Sequence[float]) -> Interval | None:
    """Return the mean of `values` with its percentile interval, or None if there are no values.

    The values are resampled with replacement.
    """
    if not values:
        return None
    import numpy

    data = numpy.asarray(values, dtype=float)
    mean = float(data.mean())
    if len(data) == 1 or data.min() == data.max():
        return Interval(mean)
    chance = numpy.random.default_rng(SEED)
    size = (_BATCH_RESAMPLES, len(data))
    means = numpy.concatenate([
        data[chance.integers(0, len(data), size=size)].mean(axis=1) for _ in range(RESAMPLES // _BATCH_RESAMPLES)
    ])  # fmt: skip
    low, high = numpy.percentile(means, [2.5, 97.5])
    return Interval(mean, float(low), float(high))


@dataclass(frozen=True)
class Paired:
    """Comparison of two sets of scores over their common items.

    `better` is the number of items whose first score is higher. `worse` is the number of items whose first score is
    lower.
    """

    items: int
    delta: Interval
    better: int
    worse: int
    p: float | None
    """P value of McNemar's exact two-sided test, or None if a score is neither 0 nor 1."""


def paired(first: Mapping[str, float], second: Mapping[str, float]) -> Paired | None:
    """Compare two sets of scores over their common items. The delta is `first` minus `second`.

    Return None if there are no common items.
    """
    common = sorted(first.keys() & second.keys())
    deltas = [first[item] - second[item] for item in common]
    interval = bootstrap(deltas)
    if interval is None:
        return None
    better, worse = sum(delta > 0 for delta in deltas), sum(delta < 0 for delta in deltas)
    whole = all(scores[item] in (0.0, 1.0) for item in common for scores in (first, second))
    return Paired(len(common), interval, better, worse, mcnemar(better, worse) if whole else None)


def mcnemar(better: int, worse: int) -> float:
    """Return the two-sided p value of McNemar's exact test.

    This is the probability of a split at least as uneven as `better` to `worse` if both sides are equally good."""
    number = better + worse
    tail = ways = 1
    for k in range(min(better, worse)):
        ways = ways * (number - k) // (k + 1)  # the binomial coefficient of `number` and k + 1
        tail += ways
    return min(1.0, float(2 * tail / 2**number))


@dataclass(frozen=True)
class Passes:
    """Shares of items for a number `k` of attempts.

    `any` (pass@k) is the share of items for which at least one of the attempts is right. `all` (pass^k) is the share of
    items for which all attempts are right.
    """

    k: int
    any: float
    all: float


def passes(repeats: Iterable[Sequence[float]]) -> list[Passes]:
    """Return unbiased estimates of pass@k and pass^k.

    `repeats` contains the scores of each item. The highest k is the smallest number of scores that an item has. The
    other values of k are 1, 2, 4, ... below the highest k. An attempt is right if its score is 1. If an item has only
    one score, the result is empty.
    """
    items = [(len(scores), sum(score == 1.0 for score in scores)) for scores in repeats if scores]
    most = min((number for number, _ in items), default=0)
    if most < 2:
        return []
    ks = sorted({*(2**n for n in range(most.bit_length()) if 2**n <= most), most})
    return [
        Passes(
            k,
            math.fsum(1 - math.comb(n - right, k) / math.comb(n, k) for n, right in items) / len(items),
            math.fsum(math.comb(right, k) / math.comb(n, k) for n, right in items) / len(items),
        )
        for k in ks
    ]
