"""Scorer for the constraints of the benchmark IFBench, such as a number of words. It uses IFBench's public checkers.

As in IFBench, eight variants of an answer are checked. The answer passes if each constraint of the row holds for at
least one variant. Some checkers need data files of NLTK, which no package registry has. If a checker lacks its data,
the answer is unscored, and does not count as wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from llm_sandbox_nb.benchmark.normalisation import without_thinking
from llm_sandbox_nb.benchmark.text_scorers import NO_ANSWER, Score


def loose_variants(text: str) -> list[str]:
    """Return eight variants of a text: whole, or without the first line, the last line, or both of these lines.

    Each of these four variants is returned with and without asterisks.
    """
    lines = text.split("\n")
    cut = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*cut, *(variant.replace("*", "") for variant in cut)]


def ifbench(answer: str, gold: str, row: Mapping[str, Any]) -> Score:
    """Score 1 if `answer` follows the row's constraints. The constraints are in `gold` or in the row's columns."""
    answer = without_thinking(answer)
    if not answer:
        return NO_ANSWER
    identities, arguments = constraints_of(gold, row)
    if not identities:
        return Score(None, "the row names no constraint")
    prompt = str(row.get("problem_statement") or row.get("prompt") or "")
    failed = []
    for identity, given in zip(identities, arguments, strict=True):
        try:
            _check_arguments(identity, given)
            holds = follows(answer, identity, given, prompt)
        except LookupError as error:
            lines = [line.strip(" *") for line in str(error).splitlines() if line.strip(" *")]
            return Score(None, f"{identity} cannot be checked: {lines[0] if lines else 'unknown'}")
        if not holds:
            failed.append(identity)
    return Score(float(not failed), f"not followed: {', '.join(failed)}" if failed else "")


def constraints_of(gold: str, row: Mapping[str, Any]) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the names of the constraints and their arguments, from the gold column or from separate columns.

    Return empty lists if a constraint has no `kwargs`, because its checker would draw the missing numbers at random.
    """
    source: Any = row
    if "instruction_id_list" not in row:
        try:
            source = json.loads(gold)
        except ValueError:
            return [], []
    if not isinstance(source, Mapping):
        return [], []
    identities = _list(source.get("instruction_id_list"))
    arguments = _list(source.get("kwargs"))
    if len(arguments) != len(identities):
        return [], []
    return [str(name) for name in identities], [dict(argument or {}) for argument in arguments]


def _list(value: Any) -> list[Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return []
    return list(value) if isinstance(value, Iterable) else []


def _check_arguments(identity: str, arguments: Mapping[str, Any]) -> None:
    """Raise LookupError if an argument is missing, because the checker would then draw a random value."""
    from if_verifiable.ifbench.instructions_registry import INSTRUCTION_DICT

    keys = INSTRUCTION_DICT[identity](identity).get_instruction_args_keys()
    missing = [key for key in keys if arguments.get(key) is None and key != "prompt_to_repeat"]
    if missing:
        raise LookupError(f"its kwargs lack {', '.join(missing)}, which its checker would draw at random")


def follows(answer: str, identity: str, arguments: Mapping[str, Any], prompt: str) -> bool:
    """Return True if one of the answer's variants follows the constraint.

    Raises:
        LookupError: if the constraint is unknown, or its checker lacks data.
    """
    from if_verifiable.ifbench.instructions_registry import INSTRUCTION_DICT

    checker = INSTRUCTION_DICT[identity](identity)
    try:
        checker.build_description(**{key: value for key, value in arguments.items() if value is not None})
    except TypeError as error:
        raise LookupError(f"its checker does not take these arguments ({error})") from error
    needed = checker.get_instruction_args()
    if needed and "prompt" in needed:
        checker.build_description(prompt=prompt)
    return any(_holds(checker, variant) for variant in loose_variants(answer) if variant.strip())


def _holds(checker: Any, variant: str) -> bool:
    try:
        return bool(checker.check_following(variant))
    except LookupError as error:
        if "Resource" in str(error):  # raised by NLTK for missing data
            raise
        return False
    except (ValueError, TypeError, AttributeError, ZeroDivisionError):
        return False  # raised by a checker if the text does not have the expected form
