"""Equality of mathematical answers, by math-verify. To be run in a process of its own: see `worker`."""

from __future__ import annotations

from typing import Any

from llm_sandbox_nb.benchmark.letters import closing_brace
from llm_sandbox_nb.benchmark.scores import Score, without_thinking

_LONGEST = 2000
"""Characters of an answer without a box; longer ones are prose in which some number will always fit."""


def last_boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{...}`, braces matched; None when there is none."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    start += len("\\boxed{")
    return text[start : closing_brace(text, start)]


def math_equal(answer: str, gold: str) -> Score:
    """Whether the answer, its last boxed part when it has one, equals gold as mathematics."""
    wanted = _parsed(last_boxed(gold) or gold)
    if not wanted:
        return Score(None, f"the gold answer {gold[:50]!r} cannot be parsed")
    answer = without_thinking(answer)
    said = last_boxed(answer)
    if said is None:
        said = answer
        if len(said) > _LONGEST:
            return Score(0.0, "unparsable")
    found = _parsed(said)
    if not found:
        return Score(0.0, "unparsable")
    from math_verify import verify

    equal = bool(verify(wanted, found, timeout_seconds=5))
    return Score(float(equal), said.strip()[:200])


def _parsed(text: str) -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    text = text.strip().strip("$").strip()
    if not text:
        return []
    configs = [LatexExtractionConfig(), ExprExtractionConfig()]
    found: list[Any] = parse(f"${text}$", extraction_config=configs, parsing_timeout=5)
    return found or parse(text, extraction_config=configs, parsing_timeout=5)
