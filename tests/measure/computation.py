"""Computation tasks beyond mental arithmetic, with their answers: products, dates, letters, sorting, simulations.

All come from a seed: the same seed gives the same tasks, another one gives others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from typing import Any

WORDS = (
    "archipelago", "balance", "carpenter", "daffodil", "elephant", "foundation", "gravity", "harbour", "illumination",
    "journey", "kangaroo", "lighthouse", "mandarin", "nightingale", "orchestra", "peninsula", "quartz", "raspberry",
    "strawberry", "telescope", "umbrella", "village", "watermelon", "xylophone", "yesterday", "zeppelin",
)  # fmt: skip
_BEGIN = date(1850, 1, 1)


def _product(chance: random.Random) -> dict[str, Any]:
    first, second = chance.randint(100_000, 999_999), chance.randint(100_000, 999_999)
    return _task(f"Compute {first} * {second}.", first * second)


def _weekday(chance: random.Random) -> dict[str, Any]:
    day = _BEGIN + timedelta(days=chance.randrange(70_000))
    return _task(
        f"On which day of the week was or is {_written(day)}? Answer with its English name.",
        f"{day:%A}",
        "word",
    )


def _days(chance: random.Random) -> dict[str, Any]:
    first = _BEGIN + timedelta(days=chance.randrange(40_000))
    last = first + timedelta(days=chance.randrange(1_000, 30_000))
    question = f"How many days after {_written(first)} is {_written(last)}?"
    return _task(question, (last - first).days)


def _letters(chance: random.Random) -> dict[str, Any]:
    text = " ".join(chance.choices(WORDS, k=14))
    letter = chance.choice("aeinrt")
    return _task(f"How many times does the letter {letter} occur in this text: {text}", text.count(letter))


def _sorting(chance: random.Random) -> dict[str, Any]:
    numbers = chance.sample(range(-999, 1_000), 24)
    question = f"Sort these numbers from the smallest to the largest: {', '.join(map(str, numbers))}"
    return _task(question, ", ".join(map(str, sorted(numbers))), "list")


def _simulation(chance: random.Random) -> dict[str, Any]:
    start, factor, added = chance.randint(10, 99), chance.randint(11, 49), chance.randint(3, 97)
    modulus, rounds = chance.randint(1_000, 9_999), chance.randint(40, 90)
    value = start
    for _ in range(rounds):
        value = (value * factor + added) % modulus
    question = (
        f"A number begins as {start}. In each round it is multiplied by {factor}, then {added} is added, and then the "
        f"remainder after division by {modulus} is taken. What is the number after {rounds} rounds?"
    )
    return _task(question, value)


_KINDS: Mapping[str, Callable[[random.Random], dict[str, Any]]] = {
    "product": _product,
    "weekday": _weekday,
    "days": _days,
    "letters": _letters,
    "sorting": _sorting,
    "simulation": _simulation,
}


def computation_rows(seed: int, number: int) -> list[dict[str, Any]]:
    chance = random.Random(f"computation {seed}")
    kinds = list(_KINDS)
    return [
        {"id": f"{kinds[i % len(kinds)]}-{i // len(kinds)}", **_KINDS[kinds[i % len(kinds)]](chance)}
        for i in range(number)
    ]


def _task(question: str, answer: object, form: str = "number") -> dict[str, Any]:
    return {"problem_statement": question, "ground_truth": str(answer), "form": form}


def _written(day: date) -> str:
    return f"{day.day} {day:%B %Y}"
