"""Scores mathematical answers: what a text states as its answer, and whether that equals gold, by math-verify.

What stands in a box, behind "the answer is", or alone is stated. A number that merely occurs is no answer: not the one
of "see step 204", of "203, not 204", of "at least 204". A text that is neither mathematics nor a sentence in a usual
form states nothing. To be run in a process of its own: see `scoring_worker`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from llm_sandbox_nb.benchmark.multiple_choice import WIDE, closing_brace, is_retracted, is_supposed, tagged
from llm_sandbox_nb.benchmark.text_scorers import Score, without_thinking

_LONGEST = 2000
"""Characters of a sentence that is looked at."""
_DISPLAY = re.compile(r"\\\[(.{0,1000}?)\\\]|\\\((.{0,1000}?)\\\)|\$\$(.{0,1000}?)\$\$", re.DOTALL)
_MARKUP = re.compile(r"\*\*|__|`|^[#> \t]+|[✅☑✔️👉→]", re.MULTILINE)
_ANSWER = re.compile(
    r"""(?:(?<![^\W_])(?:final[ _])?(?:answer|ans|result|solution)(?:_\w{1,9})?
        (?:\s+(?:here|(?:to|for|of)\s[^.:=?\n]{0,60}?))?|答案)["']?\s*
        (?:(?:is|must\s+be|should\s+be|has\s+to\s+be)\b(?:\s+(?:therefore|thus|hence|then|indeed|clearly|simply|just))?\s*:?|[:=是])\s*""",
    re.IGNORECASE | re.VERBOSE,
)
_IS_THE_ANSWER = re.compile(
    r"\s+is\s+(?:therefore\s+)?(?:the|our|my)\s+(?:final\s+|correct\s+|right\s+)?answer\b", re.IGNORECASE
)
_SENTENCE = re.compile(r"[.!?;](?=\s|\Z)|\n|\Z")
_NO_SENTENCE = re.compile(r"\d[.)]\s")
"""The number of a list's entry."""
_LEADING = re.compile(
    r"(?:so|thus|hence|therefore|then|finally|we\s+get|in\s+total)\b[,:]?\s+", re.IGNORECASE
)
_VERB = re.compile(
    r"\b(?:is|are|it['’]s|equals?|get|have|obtain|gives?|yields?|be)\b(?:\s+(?:therefore|thus|then|exactly|simply|just))?\s*:?\s+",
    re.IGNORECASE,
)
_NO_CONCLUSION = re.compile(
    r"\b(?:not|never|no|none|nor|neither|cannot|assume|suppose|let|if|unless|whether|might|may|could|would)\b|n['’]t\b",
    re.IGNORECASE,
)
_REMARK = re.compile(r"\s+\((?=[^()]*[A-Za-z]{2})[^()\\$]*\)\s*\Z")
_REASON = re.compile(
    r",?\s+(?:not|because|since|as|rather\s+than|instead\s+of|and\s+not)\s|,\s+(?:so|but|which|where)\s|\s[—–]\s",
    re.IGNORECASE,
)
_UNITS = re.compile(
    r"(?<=[\d})$°])(?:\s+(?!(?:or|and|not|to|times|plus|minus|if|when|only|too|also|but|is|are|was|were|does|do|can|cannot|fails?|seems?|would"
    r"|could|might|may|must|should|has|have|gives?|works?)\b)[A-Za-z]{2,}(?:\^\{?\d\}?|[²³])?){1,4}\Z"
)
_OR = re.compile(r"\s+or\s+", re.IGNORECASE)
_COMMANDS = re.compile(r"\\(?:text|mathrm|textbf|mathbf|operatorname)\s*\{[^{}]*\}|\\[A-Za-z]+")
_FUNCTIONS = re.compile(r"\b(?:sqrt|sin|cos|tan|log|ln|exp|pi)\b")
_WORD = re.compile(r"[^\W\d_]{2,}")


def math_equal(answer: str, gold: str) -> Score:
    """Whether what the answer states equals gold as mathematics; see `stated_values`."""
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


def last_boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{...}`, braces matched; None when there is none."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    start += len("\\boxed{")
    return text[start : closing_brace(text, start)]


def stated_values(text: str) -> list[str]:
    """What a text gives as its answer: several where it says it twice and they have to agree, or nothing."""
    for inner in (last_boxed(text), tagged(text), _of_json(text)):
        if inner is not None:
            return [inner] if inner.strip() else []
    text = _DISPLAY.sub(lambda match: f"${' '.join((match[1] or match[2] or match[3] or '').split())}$", text)
    text = _MARKUP.sub("", text.translate(WIDE)).strip()
    last_line = text.rpartition("\n")[2]
    if alone := _mathematics(last_line):
        said = _said(text[: len(text) - len(last_line)])
        return [said, alone] if said else [alone]
    said = _said(text)
    if said is None:
        said = _concluded(last_line)
    if said is None and "\n\n" in text and not is_retracted(text, 0):
        said = _mathematics(text.partition("\n\n")[0])
    return [said] if said else []


def _of_json(text: str) -> str | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    found = [
        str(value) for key, value in record.items() if key.lower() in ("answer", "final_answer", "result")
    ]
    return found[-1] if found else None


def _said(text: str) -> str | None:
    """The value that "the answer is" gives, the last time; empty when it is none, None where it is not said."""
    found, place = None, 0
    for match in reversed(list(_ANSWER.finditer(text))):
        end = _SENTENCE.search(text, match.end(), match.end() + _LONGEST)
        assert end is not None
        if end[0] != "?" and not is_supposed(text, match.start()):
            found, place = _mathematics(text[match.end() : end.start()]) or "", end.end()
            break
    for match in _IS_THE_ANSWER.finditer(text, place):
        before = text[max(place, match.start() - _LONGEST) : match.start()]
        found = _mathematics(re.split(r"[.!?;,:]\s|\n", before)[-1]) or ""
        place = match.end()
    return None if found is not None and is_retracted(text, place) else found


def _concluded(line: str) -> str | None:
    """What stands behind the last verb of the last sentence: "there are 204 ways". A question concludes nothing."""
    line = line[-_LONGEST:].strip()
    if line.endswith("?"):
        return None
    sentence = re.split(r"[.!?;]\s+", line.rstrip(".!"))[-1]
    places = [match.end() for match in _VERB.finditer(sentence)]
    if not places or _NO_CONCLUSION.search(sentence[: places[-1]]):
        return None
    return _mathematics(sentence[places[-1] :])


def _mathematics(text: str) -> str | None:
    """A text that is mathematics but for remarks, reasons and units, without these; else None."""
    if len(text) > _LONGEST or _NO_SENTENCE.match(text):
        return None
    text = _LEADING.sub("", text.strip(), count=1)
    text = _REASON.split(_REMARK.sub("", text.rstrip(".,;: ")), maxsplit=1)[0]
    text = _REMARK.sub("", text).strip(" \t\"'“”,;:")
    text = _UNITS.sub("", _OR.sub(", ", text)).rstrip(".")
    if text.count("$") > 1:
        text = text.replace("$", "")
    rest = _FUNCTIONS.sub("", _COMMANDS.sub("", text))
    return text.strip() if text.strip() and "?" not in rest and not _WORD.search(rest) else None
