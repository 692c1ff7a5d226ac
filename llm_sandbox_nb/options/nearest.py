"""The known word that a person meant who typed another one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """The end of a sentence about an unknown word."""
    close = nearest(word, known)
    return f"; did you mean {close}?" if close else f"; known are {', '.join(known)}."


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word with the fewest typing mistakes to `word`; None when all are too far from it.

    Of two that are as near, the one of the same length: `--modle` is `--model`, not `--mode`.
    """
    plain = _letters(word)
    found = []
    for one in known:
        other = _letters(one)
        if (mistakes := typing_mistakes(plain, other)) <= max(1, len(plain) // 3) and mistakes < len(plain):
            found.append((mistakes, abs(len(plain) - len(other)), typing_mistakes(word[:40], one), one))
    return min(found)[-1] if found else None


def _letters(word: str) -> str:
    return word.lstrip("-").replace("_", "-").lower()[:40]


def typing_mistakes(one: str, other: str) -> int:
    """Letters to add, remove, replace, or swap with the next, until one word is the other."""
    before, row = list[int](), list(range(len(other) + 1))
    for place, letter in enumerate(one, 1):
        last, before, row = before, row, [place]
        for column, wanted in enumerate(other, 1):
            cost = min(before[column] + 1, row[-1] + 1, before[column - 1] + (letter != wanted))
            if place > 1 < column and (letter, one[place - 2]) == (other[column - 2], wanted):
                cost = min(cost, last[column - 2] + 1)
            row.append(cost)
    return row[-1]
