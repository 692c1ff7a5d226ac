"""Equality of mathematical answers, by math-verify. To be run in a process of its own: see `scoring_worker`."""

from __future__ import annotations

from typing import Any

from llm_sandbox_nb.benchmark.math_statement import last_boxed, stated_values
from llm_sandbox_nb.benchmark.text_scorers import Score, without_thinking


def math_equal(answer: str, gold: str) -> Score:
    """Whether what the answer states equals gold as mathematics; see `math_statement`."""
    wanted = _parsed(last_boxed(gold) or gold)
    if not wanted:
        return Score(None, f"the gold answer {gold[:50]!r} cannot be parsed")
    said = stated_values(without_thinking(answer))
    found = [_parsed(one) for one in said]
    if not all(found) or not found:
        return Score(0.0, "unparsable")
    from math_verify import verify

    equal = all(verify(wanted, one, timeout_seconds=5) for one in found)
    return Score(float(equal), said[-1].strip()[:200])


def _parsed(text: str) -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    text = text.strip().strip("$").strip()
    if not text:
        return []
    configs = [LatexExtractionConfig(), ExprExtractionConfig()]
    found: list[Any] = parse(f"${text}$", extraction_config=configs, parsing_timeout=5)
    return found or parse(text, extraction_config=configs, parsing_timeout=5)
