"""Scores an answer of any column by one rule: what stands behind `ANSWER:`, else what the text states."""

from __future__ import annotations

import calendar
import csv
import io
import re
from collections.abc import Mapping
from pathlib import Path

from llm_sandbox_nb.benchmark.math_scorer import math_equal
from llm_sandbox_nb.examples.checks import read_files
from llm_sandbox_nb.examples.gallery import EXAMPLES

FILE_FORMS = ("plot", "fix", "csv")
_WEEKDAYS = frozenset(calendar.day_name)
_ANSWER = re.compile(r"(?:^|\n)[*_#>\s]*(?:final )?answer[*_]*:[*_]*(.*)", re.IGNORECASE | re.DOTALL)


def score(
    answer: str | None,
    gold: str,
    output_files: Mapping[str, str] | None = None,
    form: str = "number",
    **row: object,
) -> float:
    """1 or 0. `form` is number, word, list, exact, or the name of an example or file, whose check reads the files."""
    text = answer or ""
    name, path = next(iter(output_files.items())) if output_files else ("", "")
    folder = Path(path).parents[name.count("/")] if path else None  # the first file may be in a subfolder
    files = dict(read_files(folder)) if folder else {}
    if form in FILE_FORMS:
        return float(check_file(form, files))
    if form in EXAMPLES:
        if text:
            files = {"answer.txt": text.encode(), "poem.txt": text.encode()} | files
        return float(not EXAMPLES[form].check(files))
    found = _ANSWER.search(text)
    text = (found[1] if found else text).strip().strip("*_`").strip()
    if form == "exact":
        return float(text == gold)
    if form == "list":
        return float(re.findall(r"-?\d+", text) == re.findall(r"-?\d+", gold))
    if form == "word":
        if not found and gold in _WEEKDAYS:  # "10 November 2022 was a Thursday." states the day as well
            last = text.rpartition("\n")[2]
            return float({day for day in _WEEKDAYS if day in last} == {gold} and "not " not in last.lower())
        return float(text.casefold().strip(" .'\"") == gold.casefold())
    return float(bool(text) and math_equal(text, gold).value == 1.0)


def check_file(form: str, files: Mapping[str, bytes]) -> bool:
    """Whether the saved file is right. It is read as data and never executed."""
    if form == "plot":
        return files.get("ages.png", b"")[:8] == b"\x89PNG\r\n\x1a\n"
    if form == "fix":
        words = "".join(files.get("calc.py", b"").decode("utf-8", "replace").split())
        return "returnw*h" in words or "returnh*w" in words
    rows = list(csv.reader(io.StringIO(files.get("d.csv", b"").decode("utf-8", "replace"))))
    return [row for row in rows if row] == [["a", "b"], *([str(i), str(i * i)] for i in range(8))]
