"""Tasks on long documents, with their answers: 3,000 to 6,000 tokens in which little matters.

All come from a seed. The same text is given in files, or in the prompt.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

_TOWNS = (
    "Aldra", "Benholt", "Corvik", "Dunmere", "Esterby", "Falkona", "Gretna", "Holmsund", "Istra", "Jarvo",
    "Kelmar", "Lindau",
)  # fmt: skip
_NAMES = (
    "Adams", "Bauer", "Costa", "Dahl", "Evans", "Fischer", "Garcia", "Hansen", "Ivanov", "Jensen", "Keller", "Larsen",
    "Moreau", "Novak",
)  # fmt: skip
_STATES = ("delivered", "delayed", "returned", "lost")
_CHATTER = (
    "The weather was mild and nothing of note happened on the road.",
    "A short meeting took place in the morning; the minutes are kept elsewhere.",
    "Two visitors asked for the way and were shown to the gate.",
    "The heating was repaired again, and the bill is expected next month.",
    "Nobody answered the telephone between noon and one o'clock.",
    "The new shelves were put up along the northern wall.",
)


def _journals(chance: random.Random) -> dict[str, str]:
    files = {}
    for month in ("january", "february", "march", "april"):
        lines = [f"Shipping journal, {month}", ""]
        for number in range(1, 25):
            goods = f"{chance.randint(5, 95)} crates for {chance.choice(_NAMES)}"
            place = f"{chance.choice(_TOWNS)}, {chance.choice(_STATES)}."
            entry = f"Shipment {month[:3].upper()}-{number:03d}: {goods}, {place}"
            lines += [entry, chance.choice(_CHATTER)]
        files[f"{month}.txt"] = "\n".join(lines) + "\n"
    return files


def _entries(files: dict[str, str]) -> list[tuple[str, int, str, str, str]]:
    found = []
    for text in files.values():
        for line in text.splitlines():
            if line.startswith("Shipment "):
                number, _, rest = line.removeprefix("Shipment ").partition(": ")
                crates, name, town, state = rest.rstrip(".").replace(" crates for ", ", ").split(", ")
                found.append((number, int(crates), name, town, state))
    return found


def _count(chance: random.Random, files: dict[str, str]) -> dict[str, Any]:
    state = chance.choice(_STATES)
    wanted = sum(one[4] == state for one in _entries(files))
    return _task(f"The journals list shipments. How many shipments of all four months are {state}?", wanted)


def _sum(chance: random.Random, files: dict[str, str]) -> dict[str, Any]:
    name = chance.choice(sorted({one[2] for one in _entries(files)}))
    wanted = sum(one[1] for one in _entries(files) if one[2] == name)
    return _task(
        f"The journals list shipments. How many crates went to {name} in all four months together?", wanted
    )


def _look_up(chance: random.Random, files: dict[str, str]) -> dict[str, Any]:
    number, crates, *_ = chance.choice(_entries(files))
    return _task(f"The journals list shipments. How many crates had shipment {number}?", crates)


def _most(chance: random.Random, files: dict[str, str]) -> dict[str, Any]:
    month = chance.choice(sorted(files))
    entries = _entries({month: files[month]})
    largest = max(one[1] for one in entries)
    first = next(one for one in entries if one[1] == largest)
    question = (
        f"Which shipment in {month} has the most crates? Answer with its number; of several, the first."
    )
    return _task(question, first[0], "word")


def _kept_word(chance: random.Random, files: dict[str, str]) -> dict[str, Any]:
    word = f"{chance.choice(_TOWNS).lower()}-{chance.randint(1000, 9999)}"
    month = chance.choice(sorted(files))
    lines = files[month].splitlines()
    lines.insert(chance.randrange(10, len(lines)), f"Note: the word for the night watch is {word}.")
    files[month] = "\n".join(lines) + "\n"
    return _task(
        "One of the journals has a note with the word for the night watch. What is the word?", word, "word"
    )


_KINDS: dict[str, Callable[[random.Random, dict[str, str]], dict[str, Any]]] = {
    "count": _count,
    "sum": _sum,
    "look-up": _look_up,
    "most": _most,
    "note": _kept_word,
}


def document_rows(seed: int, number: int) -> list[dict[str, Any]]:
    chance = random.Random(f"documents {seed}")
    kinds, rows = list(_KINDS), []
    for i in range(number):
        files = _journals(chance)
        task = _KINDS[kinds[i % len(kinds)]](chance, files)
        rows.append({"id": f"{kinds[i % len(kinds)]}-{i // len(kinds)}", **task, "input_files": files})
    return rows


def _task(question: str, answer: object, form: str = "number") -> dict[str, Any]:
    return {"problem_statement": question, "ground_truth": str(answer), "form": form}
