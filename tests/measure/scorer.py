"""Scores an answer of any column by one rule: what stands behind `ANSWER:`, else what the text states."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from llm_sandbox_nb.benchmark.math_scorer import math_equal
from llm_sandbox_nb.examples.checks import read_files
from llm_sandbox_nb.examples.gallery import EXAMPLES

_ANSWER = re.compile(r"(?:^|\n)[*_#>\s]*(?:final )?answer[*_]*:[*_]*(.*)", re.IGNORECASE | re.DOTALL)


def score(
    answer: str | None,
    gold: str,
    output_files: Mapping[str, str] | None = None,
    form: str = "number",
    **row: object,
) -> float:
    """1 or 0. `form` is number, word, list, or the name of an example, whose own check then looks at the files."""
    text = answer or ""
    if form in EXAMPLES:
        folder = Path(next(iter(output_files.values()))).parent if output_files else None
        files = dict(read_files(folder)) if folder else {}
        if text:
            files = {"answer.txt": text.encode(), "poem.txt": text.encode()} | files
        return float(not EXAMPLES[form].check(files))
    found = _ANSWER.search(text)
    text = (found[1] if found else text).strip().strip("*_`").strip()
    if form == "list":
        return float(re.findall(r"-?\d+", text) == re.findall(r"-?\d+", gold))
    if form == "word":
        return float(text.casefold().strip(" .'\"") == gold.casefold())
    return float(bool(text) and math_equal(text, gold).value == 1.0)
