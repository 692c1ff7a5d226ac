r"""Parser and exact comparison of numbers with magnitudes and units, as people write them.

Examples are `65 432`, `12\,345`, `7,25`, `2×10^{-4}`, `1 3/4`, `6 million`, `80 km/h`, `€9` and `50 %`. The package
pint knows the units. A magnitude such as `million` is a factor. If both compared numbers have a unit, the units must
agree: 9 kg equals 9000 g.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

from llm_sandbox_nb.benchmark.answer_words import words

_FACTORS: dict[str, int] = {
    word: factor for factor, aliases in words()["magnitudes"].items() for word in aliases
}
_SHORT_FACTORS = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9}
_CURRENCY_OF: dict[str, str] = {
    word: sign for sign, aliases in words()["currencies"].items() for word in [sign.lower(), *aliases]
}
_UNIT_OF: dict[str, str] = {alias: unit for unit, aliases in words()["units"].items() for alias in aliases}
_PERCENT = frozenset(words()["percent"])
_NO_UNIT = re.compile(
    r"\b(?:or|and|not|to|times|plus|minus|if|when|only|too|also|but|is|are|was|were|does|do|can|cannot|fails?|seems?|would|could|might|may"
    r"|must|should|has|have|gives?|works?|of|out|in|from|than|as|mod|at|on|by|through|until|less|more|x)\b",
    re.IGNORECASE,
)
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_MONTH = re.compile(rf"\b(?:{'|'.join(MONTHS)})[a-z]*\b", re.IGNORECASE)
_TEXT = re.compile(
    r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname|rm|si|unit)\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
)
_SPACING = re.compile(r"(?<!\\)\\[,;:! ]|\\q?quad\b|~")
_GROUPED = re.compile(r"[1-9]\d{0,2}(?P<mark>[ '_])\d{3}(?:(?P=mark)\d{3})*(?:[.,]\d+)?"
                      r"|[1-9]\d{0,2}(?:,\d{3})+(?:[.]\d+)?"
                      r"|\d{1,3}(?:\.\d{3}){2,}(?:,\d+)?|\d{1,3}(?:\.\d{3})+,\d+"
                      r"|\d{1,3}(?: \d{3})+,\d+|\d{1,2}(?:,\d{2})+,\d{3}(?:\.\d+)?")  # fmt: skip
_NUMBER = (
    rf"(?:{_GROUPED.pattern.replace('(?P<mark>', '(?P<mark_N>').replace('(?P=mark)', '(?P=mark_N)')}"
    r"|\d+[.,]\d+|[.,]\d+|\d+[.]?(?!\d))"
)
_TIMES = r"\s*(?:[x×*·⋅]|\\times|\\cdot)\s*"
_POWER_OF_TEN = r"10\s*(?:\^|\*\*)\s*[({]?\s*(?P<power>[-+]?\d{1,4})\s*[)}]?"
_FRACTION = r"\\[dtc]?frac\s*\{?\s*(?P<top>\d+)\s*\}?\s*(?:\{\s*(?P<bottom>\d+)\s*\}|(?P<bottom1>\d))"
_VALUE = re.compile(
    rf"""\s*(?P<sign>[-+])?\s*(?P<money>US\$|R\$|\\?\$|[€£¥₹₩₽₫₺฿])?\s*(?P<sign2>[-+])?
    (?:(?:(?P<whole>\d+)\s*)?(?:{_FRACTION})
      |(?P<whole2>\d+)\ +(?P<top2>\d+)\s*/\s*(?P<bottom2>\d+)
      |(?P<top3>{_NUMBER.replace('mark_N', 'mark_a')})\s*/\s*(?P<bottom3>\d+(?:\.\d+)?)(?![.,/]?\d)
      |{_POWER_OF_TEN.replace('power', 'power2')}(?!\d)
      |(?P<number>{_NUMBER.replace('mark_N', 'mark_b')})
        (?:[eE](?P<exponent>[-+]?\d{{1,4}})(?!\d)|{_TIMES}{_POWER_OF_TEN}(?!\d))?)
    """,
    re.VERBOSE,
)  # fmt: skip
_UNIT_TEXT_PATTERN = re.compile(
    r"[^\d=+<>|\\()\[\],;:?!]{0,60}(?:[\^²³]?\{?-?\d\}?[^\d=+<>|\\()\[\],;:?!]{0,30}){0,3}"
)


@dataclass(frozen=True)
class Quantity:
    """Number with its unit. `places` is the number of written decimals, or None if there are no decimals."""

    value: Fraction
    places: int | None = None
    unit: str = ""
    attached: bool = False
    """True if the unit is a letter right after the number, as in `2m`, which may be a variable."""

    def agrees(self, other: Quantity) -> bool:
        """Return True if the numbers are equal after rounding, and their units do not contradict each other."""
        if "%" in (self.unit, other.unit) and self.unit != other.unit:
            share, plain = (self, other) if self.unit == "%" else (other, self)
            if plain.unit:
                return False
            return _same(share.value / 100, plain.value, None, plain.places) or (
                abs(plain.value) >= 1 and _same(share.value, plain.value, share.places, plain.places)
            )
        if not (self.unit and other.unit):
            return not (self.attached or other.attached) and _same(
                self.value, other.value, self.places, other.places
            )
        if _plain_unit(self.unit) == _plain_unit(other.unit):
            return _same(self.value, other.value, self.places, other.places)
        converted = _converted(self.value, self.unit, other.unit)
        return converted is not None and _same(
            converted, other.value, None, other.places, near=Fraction(1, 10**9)
        )


def _same(
    one: Fraction,
    other: Fraction,
    places: int | None,
    others: int | None,
    near: Fraction = Fraction(1, 10**12),
) -> bool:
    """Return True if the numbers are equal, or if rounding one number to at least six digits gives the other."""
    if one == other:
        return True
    difference = abs(one - other)
    if difference <= near * max(abs(one), abs(other)) and (
        places is not None or others is not None or near > Fraction(1, 10**10)
    ):
        return True
    known = [number for number in (places, others) if number is not None]
    if not known:
        return False
    rounded = min(known)
    step = Fraction(10) ** -rounded
    return difference <= step / 2 and min(abs(one), abs(other)) / step >= 10**5


def cleaned(text: str) -> str:
    r"""Simplify a formula.

    Spacing becomes single blanks, `\text{cm}` becomes `cm`, and commands such as `\%` become characters. `\left`,
    `\right`, `\displaystyle` and the `$` around formulas are removed.
    """
    text = (
        text.strip()
        .replace("\\left", "")
        .replace("\\right", "")
        .replace("\\displaystyle", "")
        .replace("{,}", ",")
    )
    text = (
        text.replace("\\%", "%")
        .replace("^\\circ", "°")
        .replace("^{\\circ}", "°")
        .replace("\\degree", "°")
        .replace("\\$", "$")
    )
    text = _SPACING.sub(" ", re.sub(r"(?<=,)\s*\\!\s*|\\!", "", text))
    text = _TEXT.sub(r" \1", text)
    return " ".join(without_dollars(text).split())


def without_dollars(text: str) -> str:
    """Remove the `$` around a formula, or around each of several formulas: `$x$ and $y$` becomes `x and y`.

    A `$` at only one end of the text is a currency sign, and is kept.
    """
    text = text.strip()
    if len(text) < 2 or not text.startswith("$") or not re.search(r"(?<!\\)\$$", text):
        return text
    # the blank after a comma keeps `$10$,$200$` apart from the number 10,200
    return re.sub(r"(?<!\\)\$", " ", re.sub(r"(?<!\\)\$\s*,", ", ", text)).strip()


@lru_cache(maxsize=4096)
def quantities(text: str) -> tuple[Quantity, ...]:
    """Return the possible meanings of a text that is one number, perhaps with a unit.

    Return an empty tuple for any other text.
    """
    text = re.sub(
        r"^(?:[≈~∼]|\\approx|\\sim|(?:about|approximately|around|roughly|circa|etwa|environ)\s)\s*",
        "",
        cleaned(text),
        flags=re.IGNORECASE,
    )
    if text[:1].isalpha() and (number := _in_words(text)) is not None:
        return (number,)
    text = text.rstrip(". ") if not text.endswith(" .") else text
    match = _VALUE.match(text)
    if match is None:
        return ()
    read = _value(match)
    if read is None:
        return ()
    value, places = read
    money, rest = match["money"], text[match.end() :]
    if rest and rest[0] in "!^*/×·(":
        return ()
    found = []
    for factor, unit, attached in _magnitudes_and_units(rest, bool(money)):
        if money:
            if unit and _CURRENCY_OF.get(unit.lower()) != _sign(money):
                continue
            unit = _sign(money)
        unit = "%" if _plain_unit(unit) == "%" else unit
        decimals = None if places is None else places - len(str(factor)) + 1
        found.append(Quantity(value * factor, decimals, unit, attached))
    return tuple(found)


_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
)
_SMALL_NUMBERS = {word: number for number, word in enumerate(f"{_ONES} seventeen eighteen nineteen".split())}
_TENS = {
    word: 10 * number
    for number, word in enumerate(
        ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], 2
    )
}


def _in_words(text: str) -> Quantity | None:
    """Parse a number below a thousand in English words, perhaps followed by a unit, as in "twenty-one days"."""
    words = text.lower().rstrip(".").replace("-", " ").split()
    total, used = 0, 0
    for word in words:
        if word in _SMALL_NUMBERS:
            total += _SMALL_NUMBERS[word]
        elif word in _TENS:
            total += _TENS[word]
        elif word == "hundred" and 0 < total < 10:
            total *= 100
        elif not (word == "and" and total and total % 100 == 0):
            break
        used += 1
    rest = " ".join(words[used:])
    read = _magnitudes_and_units(f" {rest}", money=False) if used else []
    return Quantity(Fraction(total * read[0][0]), None, read[0][1]) if read else None


def _sign(money: str) -> str:
    return _CURRENCY_OF[money.removeprefix("\\").lower()]


def _value(match: re.Match[str]) -> tuple[Fraction, int | None] | None:
    sign = -1 if "-" in (match["sign"], match["sign2"]) else 1
    for whole, top, bottom in (
        ("whole", "top", "bottom"),
        ("whole2", "top2", "bottom2"),
        (None, "top3", "bottom3"),
    ):
        if match[top]:
            below = match[bottom] or (match["bottom1"] if bottom == "bottom" else None)
            parts = decimal_of(match[top]), decimal_of(below or "0")
            if parts[0] is None or parts[1] is None or not parts[1][0]:
                return None
            before = int(match[whole]) if whole and match[whole] else 0
            return sign * (before + parts[0][0] / parts[1][0]), None
    if match["power2"]:
        return sign * Fraction(10) ** int(match["power2"]), None
    read = decimal_of(match["number"])
    if read is None:
        return None
    value, places = read
    power = int(match["exponent"] or match["power"] or 0)
    return sign * value * Fraction(10) ** power, None if places is None else places - power


def decimal_of(text: str) -> tuple[Fraction, int | None] | None:
    """Return the value and the number of decimals of a number in digits, such as `1,234.5`, `1.234,5` or `65 432`.

    The number of decimals is None if there are none. Return None if the text is not such a number.
    """
    if _GROUPED.fullmatch(text):
        last = max(text.rfind("."), text.rfind(","))
        mark = text[last] if last >= 0 else ""
        decimal = (
            bool(mark)
            and text.count(mark) == 1
            and (len(text) - last != 4 or len(set(re.sub(r"\d", "", text))) > 1)
        )
        whole, decimals = (text[:last], text[last + 1 :]) if decimal else (text, "")
        digits = re.sub(r"\D", "", whole) + "." + decimals
    else:
        digits = text.replace(",", ".")
    if not re.fullmatch(r"\d*\.?\d*", digits) or not digits.strip("."):
        return None
    decimals = digits.partition(".")[2]
    return Fraction(digits.rstrip(".") or "0"), len(decimals) if decimals else None


def _magnitudes_and_units(rest: str, money: bool) -> list[tuple[int, str, bool]]:
    """Return the possible meanings of the text after a number, each with a factor, a unit and a flag.

    The flag is True if the unit is a letter right after the number. `money` is True if a currency sign is before the
    number.
    """
    if not rest.strip():
        return [(1, "", False)]
    if not _UNIT_TEXT_PATTERN.fullmatch(rest) or len(rest.split()) > 6:
        return []
    words = rest.replace("{", "").replace("}", "").strip()
    attached = not rest[0].isspace()
    factor, found = 1, []
    while True:
        first, _, more = words.partition(" ")
        first = first.lower().rstrip(".")
        if first not in _FACTORS:
            head = next(
                (
                    word
                    for word in _FACTORS
                    if not word.isascii() and words.startswith(word) and len(word) == 1
                ),
                None,
            )
            if head is None or words.lower() in _UNIT_OF:
                break
            first, more = head, words[len(head) :]
        factor, words = factor * _FACTORS[first], more.strip()
    if (
        factor == 1
        and attached
        and words[:1] in _SHORT_FACTORS
        and (money or words[0] != "B")
        and not words[1:2].isalpha()
    ):
        unit = words[1:].strip()
        if not unit or _is_unit(unit):
            found.append((_SHORT_FACTORS[words[0]], unit, False))
    if not words:
        return [*found, (factor, "", False)]
    if _is_unit(words):
        single = attached and len(words) == 1 and words.isalpha() and factor == 1
        found.append((factor, words, single))
    return found


def _is_unit(words: str) -> bool:
    """Return True if words after a number are a unit or a counted thing, such as "days", but not "Baker Street"."""
    if (
        _plain_unit(words) in _PERCENT
        or words.lower() in _CURRENCY_OF
        or words.lower() in _UNIT_OF
        or _parsed(words)
    ):
        return True
    if (
        _NO_UNIT.search(words)
        or _MONTH.search(words)
        or words.lower() in ("am", "pm", "a.m", "p.m", "bc", "ad", "bce", "ce")
    ):
        return False
    lowest = all(not word[:1].isupper() for word in words.split())
    return lowest and len(words) > 1 and bool(re.fullmatch(r"[^\W\d_]+(?:[ '-][^\W\d_]+){0,3}\.?", words))


@lru_cache(maxsize=1024)
def _plain_unit(unit: str) -> str:
    unit = unit.strip().rstrip(".")
    low = unit.lower()
    if low in _PERCENT:
        return "%"
    if low in _CURRENCY_OF:
        return _CURRENCY_OF[low]
    low = low.replace(" ", "_") if low.startswith(("degree", "grad")) else low
    if low in _UNIT_OF:
        return _UNIT_OF[low]
    return unit


_CONSTANTS = frozenset({"pi", "π", "e", "c", "k", "i", "R", "G", "n", "x"})
"""Names that pint could read as units, but that mean a constant or a variable if they follow a number."""


@cache
def _registry() -> Any:
    import pint

    return pint.UnitRegistry(autoconvert_offset_to_baseunit=True)


@lru_cache(maxsize=1024)
def _parsed(unit: str) -> Any:
    """Return pint's unit for a text, or None if the unit is unknown."""
    unit = _plain_unit(unit)
    if not unit or unit[0] in "_.-" or unit in _CONSTANTS or re.search(r"[^\w/^*·⋅° .²³Ωμ%-]", unit):
        return None
    text = (
        re.sub(r"(?<=[A-Za-z])([23])(?!\d)", r"^\1", unit)
        .replace("⋅", "*")
        .replace("·", "*")
        .replace("^2^", "^")
    )
    text = re.sub(r"(?<=[A-Za-z])\s+(?=-?\d)", "^", text)
    for form in dict.fromkeys((text, text.lower() if len(text) > 2 else text)):
        try:
            found = _registry().parse_units(form)
        except Exception:  # noqa: BLE001 - pint passes on errors of Python's tokenizer and of its own grammar
            continue
        if str(found) != "dimensionless":
            return found
    return None


def _converted(value: Fraction, unit: str, other: str) -> Fraction | None:
    """Convert a value to the other unit. Return None if the units do not agree."""
    one, two = _parsed(unit), _parsed(other)
    if one is None and two is None:
        words, others = _stems(unit), _stems(other)
        return value if words and others and (words <= others or others <= words) else None
    if one is None or two is None or one.dimensionality != two.dimensionality:
        return None
    if _RATIO_UNITS & {str(one), str(two)}:
        return None
    try:
        return Fraction(str(_registry().Quantity(float(value), one).to(two).magnitude))
    except (ValueError, ArithmeticError, TypeError):
        return None


_RATIO_UNITS = frozenset({"percent", "permille"})


def _stems(unit: str) -> frozenset[str]:
    """Return the lower-case words of a unit, such as `red apples`, without a final `s` or `es`."""
    return frozenset(re.sub(r"(?:es|s)$", "", word) for word in unit.lower().rstrip(".").split())
