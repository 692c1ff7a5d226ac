"""The README's first task, and twelve small tasks of every kind with their answers or checks.

Text mode was tuned on the twelve, so the table of them says that.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from typing import Any

_NOTES = "The valid code is the one in the line that starts with VALID.\nOLD 1111\nVALID 4729\nTEST 9999\n"
_TEST = """import unittest

import calc


class T(unittest.TestCase):
    def test(self):
        self.assertEqual(calc.area(3, 4), 12)
"""

README_TASK = "How many r's are in strawberry?"
"""The task of the command in README.md."""


def readme_rows() -> list[dict[str, Any]]:
    """The README's first task. Its answer is a sentence or a number, so the scorer reads the number in it."""
    return [{"id": "strawberry", "problem_statement": README_TASK, "ground_truth": "3", "form": "number"}]


def first_rows() -> list[dict[str, Any]]:
    chance = random.Random(7)
    people = [
        (f"P{number}", chance.randint(18, 80), chance.choice(("Oslo", "Rome", "Kyiv")))
        for number in range(60)
    ]
    table = "name,age,town\n" + "".join(f"{name},{age},{town}\n" for name, age, town in people)
    log = "".join(
        f"2026-01-{1 + i % 28:02d} {chance.choice(['INFO', 'WARN', 'ERROR'])} message {i}\n"
        for i in range(500)
    )
    records = json.dumps([{"a": i, "b": i * i} for i in range(8)])
    calc = {"calc.py": "def area(w, h):\n    return w + h\n", "test_calc.py": _TEST}
    oldest, romans = max(age for _, age, _ in people), sum(town == "Rome" for _, _, town in people)
    digest = hashlib.sha256(_NOTES.encode()).hexdigest()[:8]
    fruit = "strawberry raspberry blueberry"
    rows: list[tuple[str, str, object, str, Mapping[str, str]]] = [
        ("letters", f"How many times does the letter r occur in the text '{fruit}'?", fruit.count("r"), "exact", {}),
        ("product", "Compute 483920 * 771233.", 483920 * 771233, "exact", {}),
        ("weekday", "On which weekday was 14 March 1879?", "Friday", "exact", {}),
        ("primes", "What is the sum of all prime numbers below 1000?", 76127, "exact", {}),
        ("oldest", "What is the highest age in input/people.csv?", oldest, "exact", {"people.csv": table}),
        ("rome", "How many people in input/people.csv live in Rome?", romans, "exact", {"people.csv": table}),
        ("errors", "How many lines of input/app.log contain ERROR?", log.count("ERROR"), "exact", {"app.log": log}),
        ("code", "Read input/notes.txt. What is the valid code?", 4729, "exact", {"notes.txt": _NOTES}),
        ("fix", "The test input/test_calc.py fails. Save a mended calc.py as output/calc.py.", "", "fix", calc),
        ("sha", "What are the first 8 hexadecimal digits of the SHA-256 of input/notes.txt?", digest, "exact",
         {"notes.txt": _NOTES}),
        ("csv", "Convert input/d.json into the CSV file output/d.csv with the columns a and b.", "", "csv",
         {"d.json": records}),
        ("plot", "Draw a histogram of the ages in input/people.csv and save it as output/ages.png.", "", "plot",
         {"people.csv": table}),
    ]  # fmt: skip
    return [
        {
            "id": name,
            "problem_statement": task,
            "ground_truth": str(answer) or "a file",
            "form": form,
            "input_files": dict(files),
        }
        for name, task, answer, form, files in rows
    ]
