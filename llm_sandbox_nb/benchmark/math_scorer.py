r"""Scorer for mathematical answers. It compares the answer that is stated in a text with the gold answer.

The module `quantities` compares numbers and quantities exactly. The package math-verify compares other mathematics, if
it can read the whole text. A gold answer that is not mathematics, such as a date, an address, a range, a version, a
name or a sentence, is compared as text. The scorer runs in a separate process: see `scoring_worker`.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

from llm_sandbox_nb.benchmark.normalisation import boxes, normalised, text_key
from llm_sandbox_nb.benchmark.quantities import MONTHS, Quantity, cleaned, quantities, without_dollars
from llm_sandbox_nb.benchmark.stated_answer import given_answers, stated_text, stated_values, without_remarks
from llm_sandbox_nb.benchmark.text_scorers import Score

_ONE = Fraction(1)
_TIMEOUT_SECONDS = 5
_PRECISION_DIGITS = 40
_COMMANDS = re.compile(r"\\(?:text|mathrm|textbf|mathbf|operatorname|begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+")
_FUNCTIONS = re.compile(
    r"(?<![A-Za-z])(?:sqrt|cbrt|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|log|ln|exp|pi|inf|infinity|min|max|gcd|lcm|mod|det)(?![A-Za-z])"
)
_WORD = re.compile(r"[^\W\d_]{2,}")
_UNIT = re.compile(
    r"(?<=[\d})$°])\s*(?:\\(?:text|mathrm|mbox)\s*\{(?P<text>[^{}]+)\}(?P<power>\^\{?\d\}?)?"
    r"|\s(?P<words>[^\W\d_]{2,}(?:[ /·*^][^\W_\d]*\d?)*))\s*\Z"
)
_PRODUCT = re.compile(
    r"(?<![A-Za-z])(?!(?:is|of|or|at|as|to|in|it|we|so|if|no|on|by|be|an|do|he|my|up|us|go|me)\b)[a-z]{2}(?![A-Za-z])"
)
"""Matches a product of two variables, such as `xy`."""
_CONNECTIVE = re.compile(
    r"\b(?:not|to|times|plus|minus|if|when|only|too|also|but|is|are|was|were|does|do|can|cannot|fails?|seems?|would|could|might|may|must"
    r"|should|has|have|gives?|works?)\b",
    re.IGNORECASE,
)
_OR = re.compile(r"(?:,\s*)?\s(?:or|and|oder|und|y|ou|et|и|или)\s", re.IGNORECASE)
_TEXT_OR = re.compile(r"\\(?:text|mathrm)\s*\{\s*(and|or)\s*\}")
_NAME = re.compile(r"\s*(?!\d)[^=+\-*^<>\d]*(?:_\{?\w{1,4}\}?)?[^=+\-*^<>\d]*=\s*(?=[^=]+\Z)")
_RANGE = re.compile(
    r"(?:from\s+|between\s+)?(-?\d[\d.,]*)\s*(%?)\s*(?:-|to|and|bis|至|~)\s*(-?\d[\d.,]*)\s*(.{0,20})",
    re.IGNORECASE,
)
_STRICT_RANGE = re.compile(r"\d[\d.,]*%?-\d[\d.,]*\s*(?:%|[^\W\d_/]{0,12})")
_DATE = re.compile(
    rf"(?:(?P<d>\d{{1,2}})(?:[snrt][tdh])?\.?\s+(?:of\s+)?(?P<m>{'|'.join(MONTHS)})[a-z]*\.?,?(?:\s+(?P<y>\d{{3,4}}))?"
    rf"|(?P<m2>{'|'.join(MONTHS)})[a-z]*\.?\s+(?P<d2>\d{{1,2}})(?:[snrt][tdh])?(?:,?\s+(?P<y2>\d{{3,4}}))?"
    r"|(?P<y3>\d{4})[-/.](?P<m3>\d{1,2})[-/.](?P<d3>\d{1,2}))",
    re.IGNORECASE,
)
_NO_MATHEMATICS = re.compile(
    r"\d+\.\d+\.\d+|\d+(?:-\d+){2,}|\d+/\d+/\d+|\d:\d\d\b|(?:^|\s)v\d|@|://|\b(?:[0-9a-f]{2}:){3}|#\d|\d{3}-\d{4}\b|\b\d{1,2}(?:[snrt][tdh])\s+\D"
    r"|\d+\s*['′]\s*\d+|\b[a-z]+\d+[a-z]+\b(?<!\d[xyz])",
    re.IGNORECASE,
)
_ENDS_FORMULA = re.compile(r"(?<!\\)\$|\\boxed")
"""Matches a mark at which math-verify ends a formula: it would ignore the text before or after this mark."""
_PRIMES = re.compile(r"(?<=[A-Za-z)}\]])['′]+")
_OPEN, _CLOSE = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}
_SYMBOLS = {
    "**": "^", "π": "\\pi ", "∞": "\\infty ", "×": "\\times ", "·": "\\cdot ",
    "⋅": "\\cdot ", "÷": "/", "≤": "\\le ", "≥": "\\ge ",
    "≠": "\\ne ", "!=": "\\ne ", "±": "\\pm ",
    "∪": "\\cup ", "∩": "\\cap ", "∈": "\\in ", "∅": "\\emptyset ", "ℝ": "\\mathbb{R}",
    "∖": "\\setminus ",
    "<=": "\\le ", ">=": "\\ge ", "θ": "\\theta ", "α": "\\alpha ", "β": "\\beta ", "φ": "\\phi ", "λ": "\\lambda ",
}  # fmt: skip


def math_equal(answer: str, gold: str) -> Score:
    """Score 1 if the stated answer equals the gold answer.

    If the gold answer is not mathematics, the two answers are compared as text.
    """
    gold, answer = normalised(gold), normalised(answer)
    wanted = without_dollars(", ".join(boxes(gold)) or gold)
    if not wanted:
        return Score(None, "the gold answer is empty")
    if is_mathematics(wanted):
        if not quantities(wanted) and not _elements(wanted) and _parsed(_expression(wanted)) is None:
            return Score(None, f"the gold answer {gold[:50]!r} cannot be parsed")
        stated = stated_mathematics(answer)
        stated = stated or ([answer] if text_key(answer) == text_key(wanted) else [])
        if len(stated) > 1 and (elements := _elements(wanted)) and len(elements[1]) == len(stated):
            stated = [", ".join(stated)]  # several boxes, each with one value
        return _result(stated, bool(stated) and all(_same(wanted, value) for value in stated))
    given = given_answers(answer)
    stated = given if given is not None else [answer]
    if stated and all(_same_text(wanted, value) for value in stated):
        return _result(stated, True)
    if given is None:
        stated = stated_text(answer, _words)
    return _result(stated, bool(stated) and all(_same_text(wanted, value) for value in stated))


def stated_mathematics(text: str) -> list[str]:
    """Return the mathematics that a text states as its answer; see `stated_answer.stated_values`."""
    return stated_values(text, _mathematics)


def _result(stated: list[str], equal: bool) -> Score:
    return Score(float(equal), stated[-1].strip()[:200]) if stated else Score(0.0, "unparsable")


@lru_cache(maxsize=1024)
def is_mathematics(text: str) -> bool:
    """Return True if a gold answer is mathematics, and not a date, address, range, version, name or sentence."""
    plain = cleaned(text)
    # such as the blood group A+, the grade B-, the ion Na+ or the language C#
    if plain.endswith(("+", "-", "#")):
        return False
    if _NO_MATHEMATICS.search(plain) or _STRICT_RANGE.fullmatch(plain) or _DATE.search(plain):
        return bool(re.fullmatch(r"[^\n]*\\(?:begin|frac|sqrt|cdot|times)[^\n]*", text)) and not _DATE.search(
            plain
        )
    if quantities(text):
        return True
    if re.search(
        r"\\begin\{[pbvV]?matrix|\\(?:frac|dfrac|sqrt|pi|infty|cup|in\b|le|ge|pm|binom|log|ln|sin|cos|tan|emptyset)",
        text,
    ):
        return not _WORD.search(_FUNCTIONS.sub("", _COMMANDS.sub("", text))) or _splits_off_unit(text)
    bare = _OR.sub(", ", plain)
    rest = _FUNCTIONS.sub("", _COMMANDS.sub("", bare))
    words = _WORD.findall(rest)
    if words:
        short = all(len(word) <= 2 for word in words) and " " not in plain and not plain[:1].isupper()
        return (short and bool(re.search(r"[\d+*/^=<>()-]", rest))) or _splits_off_unit(text)
    if re.fullmatch(r"[A-Za-z]", plain) or re.fullmatch(r"\(?[A-Z]\)?[.)]?", plain):
        return plain.islower() or plain in "CERNQZ"
    return bool(re.search(r"[\dA-Za-zα-ωπ∞∅]", plain)) and not re.search(r"[?!]\s|[.]\s", plain)


def is_one_value(text: str) -> bool:
    """Return True if a text with commas is one value, such as a number, a date or a tuple, and not a list."""
    text = normalised(text)
    return bool(
        quantities(text) or _DATE.search(text) or _elements(text) is None or (_elements(text) or [""])[0]
    )


def _splits_off_unit(text: str) -> bool:
    match = _UNIT.search(text)
    return (
        match is not None
        and bool(quantities(f"1 {match['text'] or match['words']}{match['power'] or ''}"))
        and is_mathematics(text[: match.start()])
    )


def _words(text: str) -> str | None:
    found = without_remarks(text)
    return found if found and len(found) <= 300 else None


def _mathematics(text: str) -> str | None:
    """Remove remarks and reasons from a text. Return the rest, or None if the rest is not mathematics."""
    found = without_remarks(text)
    if not found or "?" in found:
        return None
    if found.count("$") > 1:
        found = found.replace("$", "")
    found = found.rstrip(".").strip()
    if not found:
        return None
    if quantities(found.rstrip("!")):
        return found
    if _elements(found):
        inner = _elements(found)
        return found if inner and all(_mathematics(element) for element in inner[1]) else None
    match = _UNIT.search(found)
    if match is not None and match.start() > 0:
        unit = match["text"] or match["words"]
        if not _CONNECTIVE.search(unit) and quantities(f"1 {unit}{match['power'] or ''}"):
            return found if _mathematics(found[: match.start()]) else None
    rest = _FUNCTIONS.sub("", _COMMANDS.sub("", found))
    if re.search(r"[+^=*]", rest):
        rest = _PRODUCT.sub("", rest)
    return found if not _WORD.search(rest) and re.search(r"[\w∞∅π]", found) else None


def _same(gold: str, stated: str) -> bool:
    """Return True if two texts are equal as quantities, as collections or as expressions."""
    stated = without_dollars(stated).rstrip(".")
    if _tight(gold) == _tight(stated):
        return True
    if stated.endswith("!") and not gold.endswith("!") and quantities(bare := stated.rstrip("!")):
        return _same(gold, bare) or _same_expressions(gold, stated)
    gold, stated = (
        text.replace("!=", "\\ne ").replace(">=", "\\ge ").replace("<=", "\\le ") for text in (gold, stated)
    )
    some, others = _elements(gold), _elements(stated)
    if some and others and "=" in gold + stated and _same_elements(some, others):
        return True
    gold, stated = _without_name(gold, stated)
    wanted, found = quantities(gold), quantities(stated)
    if wanted and found and any(quantity.agrees(other) for quantity in wanted for other in found):
        return True
    some, others = _elements(gold), _elements(stated)
    if (
        some
        and others
        and (not (wanted and found) or bool(set("{([") & {gold[:1], stated[:1]}) or ", " in gold + stated)
    ):
        return _same_elements(some, others)
    if wanted and found:
        return False
    if (some and some[0] in ("()", "[]", "(]", "[)")) or (others and others[0] in ("()", "[]", "(]", "[)")):
        return _one_element(some, gold, others, stated)
    return _same_expressions(gold, stated)


def _tight(text: str) -> str:
    """Remove the blanks of a formula, except between numbers."""
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", cleaned(text))


def _one_element(
    some: tuple[str, list[str]] | None, gold: str, others: tuple[str, list[str]] | None, stated: str
) -> bool:
    """Compare a collection of one element, such as `(3)`, with a single value.

    An interval may also equal a condition, such as `x > 3`.
    """
    if some and some[0] == "()" and len(some[1]) == 1:
        return _same(some[1][0], stated)
    if others and others[0] == "()" and len(others[1]) == 1:
        return _same(gold, others[1][0])
    return (
        not (some and others)
        and bool(re.search(r"[<>∈≤≥]|\\(?:in|le|ge|lt|gt|cup|mathbb)", gold + stated))
        and _same_expressions(gold, stated)
    )


def _without_name(gold: str, stated: str) -> tuple[str, str]:
    """Remove a name such as `x =` from a text if the other text has no name.

    If `stated` is an approximation, keep one side: the left side of `√2 ≈ 1.41`, but the right side after a name, as in
    `x ≈ 1.41`.
    """
    if ("=" in gold) != ("=" in stated) and not re.search(r"[<>≤≥]", gold + stated):
        if "=" in stated:
            parts = stated.split("=")
            stated = parts[-1].strip() or stated
        elif match := _NAME.match(gold):
            gold = gold[match.end() :]
    for mark in ("\\approx", "≈", "\\thickapprox"):
        if mark in stated and mark not in gold:
            before, _, after = stated.partition(mark)
            stated = (
                after.strip()
                if not before.strip() or re.fullmatch(r"\s*[a-zA-Z]\s*", before)
                else before.strip()
            )
    return gold.strip(), stated.strip()


@lru_cache(maxsize=2048)
def _elements(text: str) -> tuple[str, list[str]] | None:
    """Return the brackets and the elements of a collection, or None if the text is not a collection.

    A collection is a set, a tuple, an interval, or a list without brackets.
    """
    text = (
        text.strip()
        .replace("\\left", "")
        .replace("\\right", "")
        .replace("\\{", "{")
        .replace("\\}", "}")
        .replace("\\lbrace", "{")
        .replace("\\rbrace", "}")
    )
    brackets = ""
    if text[:1] in _OPEN and text[-1:] in _CLOSE and _matches(text):
        brackets, text = text[0] + text[-1], text[1:-1]
        if brackets in ("{)", "(}", "[}", "{]"):
            return None
    if "\\begin" in text or "|" in text:
        return None
    text = _TEXT_OR.sub(r" \1 ", text)
    parts = _split(text if brackets else _OR.sub(", ", text), tight=bool(brackets))
    if len(parts) < 2 and not brackets:
        return None
    return (brackets, [part.strip() for part in parts]) if all(part.strip() for part in parts) else None


def _matches(text: str) -> bool:
    """Return True if the last bracket of a text closes the first bracket."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character in _OPEN) - (character in _CLOSE)
        if depth == 0:
            return place == len(text) - 1
    return False


def _split(text: str, *, tight: bool) -> list[str]:
    """Split a text at commas and semicolons that are not inside brackets.

    In a list without brackets, do not split at the thousands separator of a number: `1,234, 5` has two elements.
    """
    mark = ";" if ";" in text else ","
    parts, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += (character in _OPEN) - (character in _CLOSE)
        if character == mark and depth == 0 and text[place - 1 : place] != "\\":
            following = text[place + 1 : place + 4]
            grouped = (
                following.isdigit()
                and len(following) == 3
                and text[place - 1 : place].isdigit()
                and not text[place + 4 : place + 5].isdigit()
            )
            if tight or mark == ";" or not grouped:
                parts.append(text[start:place])
                start = place + 1
    return [*parts, text[start:]]


def _same_elements(gold: tuple[str, list[str]], stated: tuple[str, list[str]]) -> bool:
    brackets, wanted = gold
    others, found = stated
    if brackets and others and brackets != others:
        return False
    if brackets not in ("", "{}") or others not in ("", "{}"):
        return len(wanted) == len(found) and all(map(_same, wanted, found))
    return all(any(_same(element, other) for other in found) for element in wanted) and all(
        any(_same(element, other) for element in wanted) for other in found
    )


def _same_text(gold: str, stated: str) -> bool:
    """Return True if two texts have the same words, or are the same date or the same range."""
    if text_key(gold) == text_key(stated):
        return True
    wanted, found = text_key(gold), text_key(stated)
    date, other = _DATE.fullmatch(wanted), _DATE.fullmatch(found)
    if date and other:
        return _date(date) == _date(other)
    some, others = _RANGE.fullmatch(wanted), _RANGE.fullmatch(found)
    if some and others and _STRICT_RANGE.fullmatch(re.sub(r"\s*-\s*", "-", wanted)):
        return [group.strip() for group in some.groups()] == [group.strip() for group in others.groups()]
    return re.sub(r"^(?:the|a|an)\s|[\"'`]", "", wanted) == re.sub(r"^(?:the|a|an)\s|[\"'`]", "", found)


def _date(match: re.Match[str]) -> tuple[int, int, int]:
    day, month, year = (match[name] or match[f"{name}2"] or match[f"{name}3"] for name in "dmy")
    return int(year or 0), int(month) if month.isdigit() else MONTHS.index(month[:3].lower()) + 1, int(day)


def _expression(text: str) -> str:
    """Convert notations such as `√5`, `2**3`, `sqrt(2)`, `10^-4` and `y'` to LaTeX."""
    text = text.replace("$", "") if text.count("$") > 1 else text.strip().strip("$")
    text = text.strip().replace("\\!", "").replace("{,}", "")
    text = _PRIMES.sub(lambda match: "^{" + r"\prime" * len(match[0]) + "}", text)
    text = re.sub(r"\\mathrm\s*\{([a-z])\}", r"\1", re.sub(r"(?<!\\)\\[,;: ]|\\q?quad\b|~", " ", text))
    for symbol, command in _SYMBOLS.items():
        text = text.replace(symbol, command)
    text = re.sub(
        r"√\s*\(([^()]*)\)|√\s*(\d+(?:\.\d+)?|\\?[A-Za-z]+)",
        lambda match: f"\\sqrt{{{match[1] or match[2]}}}",
        text,
    )
    text = re.sub(r"∛\s*\(?(\d+|[a-z])\)?", r"\\sqrt[3]{\1}", text)
    text = re.sub(r"(?<![\\A-Za-z])sqrt\s*\(([^()]*(?:\([^()]*\)[^()]*)*)\)", r"\\sqrt{\1}", text)
    text = re.sub(r"(?<![\\A-Za-z])(?:infinity|inf)(?![A-Za-z])", r"\\infty ", text)
    text = re.sub(
        r"(?<![\\A-Za-z])(sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|log|ln|exp|pi)(?![A-Za-z])",
        r"\\\1 ",
        text,
    )
    text = re.sub(r"\^\s*\(([^()]*)\)", r"^{\1}", text)
    return re.sub(r"\^\s*(-\s*(?:\d+|[a-z]))", r"^{\1}", text)


@lru_cache(maxsize=2048)
def _parsed(text: str) -> Any:
    """Parse a text with math-verify. Return None if math-verify does not read the whole text.

    However, math-verify silently ignores an unknown unit, and the base of a number, such as `_2` in `101_2`.
    """
    from math_verify import LatexExtractionConfig, parse

    if not text or len(text) > 1000 or _ENDS_FORMULA.search(text):
        return None
    found = parse(
        f"${text}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=_TIMEOUT_SECONDS
    )
    return found[0] if found else None


def _same_expressions(gold: str, stated: str) -> bool:
    """Return True if two expressions are equal: numbers by their relative difference, others by math-verify."""
    gold, stated, agree = _without_units(gold, stated)
    if not agree:
        return False
    wanted, found = _value(gold), _value(stated)
    if wanted is None or found is None:
        return False
    from math_verify import verify
    from math_verify.errors import TimeoutException
    from math_verify.utils import timeout

    if _is_number(wanted) and _is_number(found):
        try:
            return bool(timeout(_TIMEOUT_SECONDS)(_close)(wanted, found, _places(gold), _places(stated)))
        except TimeoutException:
            return False
    return bool(verify(wanted, found, timeout_seconds=_TIMEOUT_SECONDS))


def _without_units(gold: str, stated: str) -> tuple[str, str, bool]:
    """Return both texts without units, and True if the units agree."""
    units = []
    for text in (gold, stated):
        match = _UNIT.search(text)
        words = f"{match['text'] or match['words']}{match['power'] or ''}" if match else ""
        known = quantities(f"1 {words}") if words and not _CONNECTIVE.search(words) else ()
        read = quantities(text)
        units.append(
            (text[: match.start()], known[0])
            if match and known
            else (text, read[0] if read else Quantity(_ONE))
        )
    (gold, gold_quantity), (stated, stated_quantity) = units
    named = [quantity.unit for quantity in (gold_quantity, stated_quantity)]
    if all(named) and named[0] != named[1]:
        return gold, stated, Quantity(_ONE, unit=named[0]).agrees(Quantity(_ONE, unit=named[1]))
    return gold, stated, True


def _value(text: str) -> Any:
    if read := quantities(text):
        import sympy

        return sympy.Rational(read[0].value.numerator, read[0].value.denominator)
    return _parsed(_expression(text))


def _places(text: str) -> int | None:
    read = quantities(text)
    return read[0].places if read else None


def _is_number(expression: Any) -> bool:
    import sympy

    return (
        isinstance(expression, sympy.Expr)
        and not expression.free_symbols
        and bool(expression.is_number)
        and not expression.is_infinite
    )


def _close(gold: Any, stated: Any, places: int | None, others: int | None) -> bool:
    """Return True if two numbers agree in 30 digits, or if rounding one to at least six digits gives the other.

    If a number was parsed as a float, 12 equal digits are enough. `places` and `others` are the numbers of decimals of
    `gold` and `stated`, or None if unknown.
    """
    import sympy

    first, second = sympy.N(gold, _PRECISION_DIGITS), sympy.N(stated, _PRECISION_DIGITS)
    if not (first.is_number and second.is_number):
        return False
    difference, size = abs(first - second), max(abs(first), abs(second))
    if size == 0:
        return True
    if difference <= size * sympy.Float(10, _PRECISION_DIGITS) ** (
        -30 if not gold.has(sympy.Float) and not stated.has(sympy.Float) else -12
    ):
        return True
    known = [number for number in (places, others) if number is not None]
    step = sympy.Float(10, _PRECISION_DIGITS) ** -min(known) if known else 0
    return bool(known and difference <= step / 2 and size / step >= 10**5)
