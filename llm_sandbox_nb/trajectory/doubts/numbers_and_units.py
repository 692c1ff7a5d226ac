"""The rule about numbers in an answer, and about the units of these numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from llm_sandbox_nb.trajectory.doubts.command_rules import says_failure
from llm_sandbox_nb.trajectory.doubts.evidence import (
    Evidence,
)
from llm_sandbox_nb.trajectory.events import Doubt
from llm_sandbox_nb.trajectory.step_line import shown_text

NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")


def numbers_of(text: str) -> set[str]:
    """Return the numbers in a text in a normalised form."""
    return {plain_number(number) for number in NUMBER.findall(text[:20_000])}


def plain_number(number: str) -> str:
    """Remove thousands separators and trailing zeros from a number."""
    text = number.replace(",", "").lstrip("+")
    if "." in text and "e" not in text.lower():
        text = text.rstrip("0").rstrip(".")
    return text


_UNITS: dict[str, tuple[str, ...]] = {
    "length": ("km", "kilometres", "kilometers", "m", "metres", "meters", "cm", "mm", "miles", "mi", "feet", "ft",
               "inches", "nautical miles", "nm", "yards"),
    "mass": ("kg", "kilograms", "g", "grams", "lb", "lbs", "pounds", "ounces", "oz", "tonnes", "tons", "mg"),
    "time": ("seconds", "s", "minutes", "min", "hours", "h", "days", "ms", "milliseconds", "weeks", "years"),
    "temperature": ("°c", "celsius", "°f", "fahrenheit", "kelvin", "k"),
    "money": ("usd", "eur", "gbp", "dollars", "euros", "pounds", "cents", "$", "€", "£", "yen"),
    "speed": ("km/h", "kmh", "mph", "m/s", "knots", "kph"),
    "volume": ("litres", "liters", "l", "ml", "gallons", "cubic metres"),
    "size": ("bytes", "kb", "mb", "gb", "kib", "mib", "gib", "bits"),
    "power": ("w", "kw", "mw", "kwh", "mwh", "wh", "joules", "kj", "kcal", "cal"),
}  # fmt: skip
_SAME_UNIT = (
    {"km", "kilometres", "kilometers"}, {"m", "metres", "meters"}, {"miles", "mi"}, {"feet", "ft"}, {"kg", "kilograms"},
    {"g", "grams"}, {"lb", "lbs", "pounds"}, {"seconds", "s"}, {"minutes", "min"}, {"hours", "h"}, {"°c", "celsius"},
    {"°f", "fahrenheit"}, {"kelvin", "k"}, {"usd", "dollars", "$"}, {"eur", "euros", "€"}, {"gbp", "pounds", "£"},
    {"km/h", "kmh", "kph"}, {"litres", "liters", "l"}, {"ounces", "oz"}, {"ms", "milliseconds"},
    {"nautical miles", "nm"},
)  # fmt: skip


_UNIT_WORDS = sorted(
    {unit for units in _UNITS.values() for unit in units if len(unit) > 1 or unit in "$€£"},
    key=len,
    reverse=True,
)
_WITH_UNIT = re.compile(
    rf"(?<![\w.])([-+]?\d[\d,]*(?:\.\d+)?)\s?({'|'.join(map(re.escape, _UNIT_WORDS))}|[mgshklw])(?![\w/])",
    re.IGNORECASE,
)
_ASKED_UNIT = re.compile(
    rf"\b(?:in|as)\s+(?:whole\s+|full\s+)?({'|'.join(re.escape(unit) for unit in _UNIT_WORDS if len(unit) > 2)})\b",
    re.IGNORECASE,
)
_SEARCHED_CHARACTERS = 1_500_000
"""Maximum number of characters that are searched for a number of the answer, in all outputs together."""
_MAX_NUMBERS = 8


def units_and_numbers(evidence: Evidence) -> Iterator[Doubt]:
    """A number of the answer is in no output, no result file and not in the task, or has a wrong unit.

    The severity of this doubt is low.
    """
    answer = (evidence.answer or "").strip()
    if not answer or len(answer) > 4_000 or not evidence.actions or says_failure(answer):
        return
    step = evidence.answer_step
    if text := _other_unit(evidence, answer):
        yield Doubt(rule="units and numbers", step=step, text=text, severity="low")
        return
    bare = bool(
        re.fullmatch(r"[\s$€£]*[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?\s*(?:%|[^\s\d]{1,12})?\s*\.?", answer)
    )
    wanted = [number for number in dict.fromkeys(NUMBER.findall(answer)) if bare or _is_telling(number)]
    if not wanted or len(wanted) > _MAX_NUMBERS:
        return
    missing = [number for number in wanted if not _appears(evidence, number)]
    if missing:
        text = f"{missing[0]} of the answer is in no output of the run"
        yield Doubt(rule="units and numbers", step=step, text=text, severity="low")


def _is_telling(number: str) -> bool:
    digits = re.sub(r"\D", "", number.partition("e")[0]).lstrip("0")
    return len(digits) >= 3 and not re.fullmatch(r"(?:19|20)\d\d", number)


def _other_unit(evidence: Evidence, answer: str) -> str:
    found = [(plain_number(value), unit.lower()) for value, unit in _WITH_UNIT.findall(answer)]
    asked = _ASKED_UNIT.findall(evidence.task)
    for _, unit in found[:_MAX_NUMBERS]:
        for want in {unit.lower() for unit in asked}:
            if (
                len({unit.lower() for unit in asked}) == 1
                and _dimension(want) & _dimension(unit)
                and not _same_units(want, unit)
            ):
                return f"the answer is in {unit}, and the task asks for {want}"
    if not found:
        return ""
    for action in reversed(evidence.actions[-60:]):
        for value, unit in _WITH_UNIT.findall(action.output[:8_000]):
            for mine, own in found:
                if (
                    mine == plain_number(value)
                    and len(mine) > 2
                    and _dimension(own) & _dimension(unit.lower())
                    and not _same_units(own, unit.lower())
                ):
                    return f"the answer says {value} {own}; step {action.step} printed {value} {unit}"
    return ""


def _dimension(unit: str) -> set[str]:
    return {name for name, units in _UNITS.items() if unit in units}


def _same_units(first: str, second: str) -> bool:
    return first == second or any(first in group and second in group for group in _SAME_UNIT)


def _appears(evidence: Evidence, number: str) -> bool:
    """Return True if an output, a result file or the task contains the number, perhaps with more decimals.

    Also return True if the outputs are too long for a search, or if the number may come from an input.
    """
    plain = plain_number(number)
    forms = {number, plain} | ({f"{int(plain):,}"} if plain.lstrip("-").isdigit() else set())
    if any(form in evidence.task for form in forms):
        return True
    room = _SEARCHED_CHARACTERS
    texts: list[str] = []
    for action in reversed(evidence.actions):
        if action.kind == "submit":
            continue
        text = f"{shown_text(action.result.stdout)}\n{shown_text(action.result.stderr)}"
        text = text if action.kind == "bash" else action.output
        if any(_has(text, form) for form in forms):
            return True
        texts.append(text)
        room -= len(text)
        if room < 0:
            return True
    value = _float(plain)
    if value is None:
        return True
    places = len(plain.partition(".")[2])
    for text in texts[:200]:
        for found in NUMBER.findall(text[-6_000:])[:400]:
            other = _float(plain_number(found))
            if other is not None and (
                round(other, places) == value
                or (100 * other != 0 and abs(round(100 * other, places) - value) < 1e-9)
            ):
                return True
    return any(
        _has(version.text or "", form)
        for version in evidence.results
        if version is not evidence.answer_version
        for form in forms
    ) or _in_inputs(evidence, forms)


def _in_inputs(evidence: Evidence, forms: set[str]) -> bool:
    """Return True if a command without the number wrote the answer file. The number may then come from an input."""
    version = evidence.answer_version
    action = version.action if version is not None else None
    if action is None or action.kind != "bash":
        return False
    return not any(form in action.command for form in forms)


def _has(text: str, form: str) -> bool:
    start = text.find(form)
    while start >= 0:
        before, after = text[start - 1 : start], text[start + len(form) : start + len(form) + 1]
        if not (before.isdigit() or before == ".") and not after.isdigit():
            return True
        start = text.find(form, start + 1)
    return False


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
