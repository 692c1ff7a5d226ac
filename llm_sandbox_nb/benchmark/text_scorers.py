"""What a scorer says, and the scorers that need nothing but the two texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from llm_sandbox_nb.benchmark.multiple_choice import find_letter


@dataclass(frozen=True)
class Score:
    """`value` is 0 to 1. None: it could not be scored, which is counted apart and is not a wrong answer."""

    value: float | None
    detail: str = ""
    """`no answer`, `unparsable`, or what was understood."""
    failed: bool = False
    """Whether the scorer itself failed: then the answer can be scored again when it is mended."""


NO_ANSWER = Score(0.0, "no answer")
Rule = Callable[[str, str], Score]
"""Takes answer and gold."""


def without_thinking(text: str) -> str:
    """The text after a thinking part, which is no answer."""
    return text.rpartition("</think>")[2].strip()


def exact(answer: str, gold: str) -> Score:
    """The same text, but for case and blanks."""
    return Score(float(_plain(answer) == _plain(gold)), answer.strip()[:200])


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def letter(answer: str, gold: str, options: int = 10) -> Score:
    """The letter of a choice; see `multiple_choice.find_letter`. Gold that is no letter leaves it unscored."""
    wanted = find_letter(gold, options)
    if wanted is None:
        return Score(None, f"the gold answer {gold[:50]!r} is no letter")
    found = find_letter(answer, options)
    if found is None:
        return Score(0.0, "unparsable")
    return Score(float(found == wanted), found)


def set_f1(answer: str, gold: str) -> Score:
    """F1 of two sets of items, separated by commas, semicolons or lines."""
    said, wanted = _items(answer), _items(gold)
    if not wanted:
        return Score(None, "the gold answer is empty")
    hits = len(said & wanted)
    if not hits:
        return Score(0.0, "unparsable" if not said else "")
    precision, recall = hits / len(said), hits / len(wanted)
    return Score(2 * precision * recall / (precision + recall))


def _items(text: str) -> set[str]:
    text = re.sub(r"^\s*(?:the\s+)?answers?\s*(?:is|are)?\s*:", "", text, flags=re.IGNORECASE)
    items = (item.strip().strip("[]{}()\"'*`.").strip() for item in re.split(r"[,;\n]", text))
    return {item.casefold() for item in items if item}


def rouge_l(answer: str, gold: str) -> Score:
    """ROUGE-L F-measure with stemming, by Google's own package."""
    if not gold.strip():
        return Score(None, "the gold answer is empty")
    from rouge_score import rouge_scorer

    found = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=True).score(gold, answer)
    return Score(float(found["rougeL"].fmeasure))
