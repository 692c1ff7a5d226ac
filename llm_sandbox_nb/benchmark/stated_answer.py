r"""Search for the answer that a text states: in a box or tag, after "the answer is", alone, or after the last verb.

Other numbers are not answers: for example 204 in "see step 204", "203, not 204" and "at least 204". After a correction
("Wait, no: it is 8") only the later text counts. All patterns run in linear time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from llm_sandbox_nb.benchmark.answer_words import ANSWER_INTRODUCTION, ANSWER_SUFFIX
from llm_sandbox_nb.benchmark.multiple_choice import is_retracted, is_supposed, tagged
from llm_sandbox_nb.benchmark.normalisation import boxes, last_correction

_MAX_CHARACTERS = 2000
_DISPLAY = re.compile(r"\\\[(.{0,1000}?)\\\]|\\\((.{0,1000}?)\\\)|\$\$(.{0,1000}?)\$\$", re.DOTALL)
_ALIGNED = re.compile(
    r"\\(?:begin|end)\{(?:align|aligned|equation|gather|eqnarray)\*?\}|(?<!\\)&(?=[^a-z]{0,40}=)"
)
_CLOSING_PATTERN = re.compile(
    r"(?:<\|\w{1,20}\|>(?:user|assistant)?|I\s{1,3}hope\s{1,3}(?:it|this)\s{1,3}(?:is\s{1,3}correct|helps)[.!]?)\Z",
    re.IGNORECASE,
)
"""Matches text that models write after their answer."""
_MARKUP = re.compile(r"(?<!\d)\*\*|\*\*(?!\d)|__|`|^[#> \t]+|[✅☑✔️👉→∴]", re.MULTILINE)
_ANSWER = re.compile(
    rf"""(?:(?<![^\W_])(?:final[ _])?(?:answer|ans|result|solution)(?:_\w{{1,9}})?
        (?:\s+(?:here|(?:to|for|of)\s[^.:=?\n]{{0,60}}?))?)["']?\s*
        (?:(?:is|comes\s+(?:out\s+)?to|must\s+be|should\s+be|has\s+to\s+be|would\s+be|will\s+be|becomes)\b
          (?:\s+(?:therefore|thus|hence|then|indeed|clearly|simply|just))?\s*:?|[:=]|(?=\s\$))\s*
        |{ANSWER_INTRODUCTION}\s*""",
    re.IGNORECASE | re.VERBOSE,
)
_IS_THE_ANSWER = re.compile(
    r"\s+is\s+(?:therefore\s+)?(?:the|our|my)\s+(?:final\s+|correct\s+|right\s+)?(?:answer|solution)\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[.!?;](?=\s|\Z)|\n|\Z")
_LIST_NUMBER = re.compile(r"\d[.)]\s")
"""Matches the number of a list entry."""
_LEADING = re.compile(
    r"(?:so|thus|hence|therefore|then|finally|we\s+get|in\s+total|that\s+is|exactly|precisely)\b[,:]?\s+",
    re.IGNORECASE,
)
_VERB = re.compile(
    r"\b(?:is|are|it's|equals?|get|got|have|(?:find|conclude|see)\s+that|obtain|gives?|yields?|be|comes?\s+to)\b"
    r"(?:\s+(?:therefore|thus|then|exactly|simply|just|about|approximately))?\s*:?\s+",
    re.IGNORECASE,
)
_INCONCLUSIVE = re.compile(
    r"\b(?:not|never|no|none|nor|neither|cannot|assume|suppose|let|if|unless|whether|might|may|could|would)\b|n't\b",
    re.IGNORECASE,
)
_REMARK = re.compile(r"\s+\((?=[^()]*[A-Za-z]{2})[^()\\$]*\)\s*\Z")
_REASON = re.compile(
    r",?\s+(?:not|because|since|as|rather\s+than|instead\s+of|and\s+not)\s|,\s+(?:so|but|which|where)\s|\s[—–―]\s|\s-\s+(?=[a-z]{2})",
    re.IGNORECASE,
)
_CLOSING_WORDS = re.compile(
    r"(?<=[\w%})])\s+(?:in\s+(?:total|all)|altogether|overall|exactly|of\s+(?:the|an?|all)\s+[a-z]{2,20})\Z",
    re.IGNORECASE,
)
_CORRECTION_LEAD = re.compile(
    r"[\s,:;.!-]*(?:(?:no|sorry|actually|wait|hmm|oops|i\s+mean|make\s+that|that's\s+(?:wrong|not\s+right)"
    r"|(?:it|that|this)\s+should\s+(?:have\s+been|be)|should\s+be|the\s+(?:correct|right)\s+(?:one|value|number)\s+is)\b[\s,:;.!-]*)*",
    re.IGNORECASE,
)
_PRIMABLE = re.compile(r"[A-Za-z)}\]]")
"""Matches a character after which `'` is a prime, as in `y'`, and not a quotation mark."""
_SUFFIX = re.compile(rf"{ANSWER_SUFFIX}+\s*\Z")
Reader = Callable[[str], str | None]
"""Function that returns the answer in a part of a sentence, or None if the part contains no answer."""


def given_answers(text: str) -> list[str] | None:
    """Return the answers in the first place that exists: all boxes, the last `<answer>`, or a field of a JSON object.

    Return an empty list if the place for the answer is empty, and None if the text has no such place.
    """
    if boxed := boxes(text):
        return [content for content in boxed if content] if any(boxed) else []
    for inner in (tagged(text), _of_json(text)):
        if inner is not None:
            return [inner] if inner.strip() else []
    return None


def stated_values(text: str, read: Reader) -> list[str]:
    """Return the answers that a text states. If there are several answers, the caller must check that they agree.

    `read` returns the answer in a part of a sentence, or None.
    """
    given = given_answers(text)
    if given is not None:
        return given
    text = _DISPLAY.sub(lambda match: f"${' '.join((match[1] or match[2] or match[3] or '').split())}$", text)
    text = _MARKUP.sub("", _ALIGNED.sub("", text)).strip()
    for _ in range(2):
        text = text[:-100] + _CLOSING_PATTERN.sub("", text[-100:]).rstrip()
    correction = last_correction(text)
    if correction is not None and (again := _corrected_answer(text, correction.end(), read)):
        return [again]
    last_line = text.rpartition("\n")[2]
    if alone := read(last_line):
        stated = _stated(text[: len(text) - len(last_line)], read)
        return [stated, alone] if stated else [alone]
    stated = _stated(text, read)
    if stated is None:
        stated = _concluded(last_line, read)
    if stated is None and "\n\n" in text and not is_retracted(text, 0):
        stated = read(text.partition("\n\n")[0])
    return [stated] if stated else []


def stated_text(text: str, read: Reader) -> list[str]:
    """Return a list with the answer in words that a text states, or an empty list.

    The answer follows a correction, "the answer is" or the last verb. Otherwise the last line is the answer if it is
    short.
    """
    text = _MARKUP.sub("", text).strip()
    correction = last_correction(text)
    if correction is not None:
        again = _corrected_answer(text, correction.end(), read)
        return [again] if again else []
    last_line = text.rpartition("\n")[2]
    stated = _stated(text, read)
    if stated is None:
        is_short = "\n" in text and len(last_line) < 100 and not _VERB.search(last_line)
        stated = read(last_line) if is_short else _concluded(last_line, read)
    return [stated] if stated else []


def _corrected_answer(text: str, place: int, read: Reader) -> str | None:
    """Return the answer after a correction, as in "no, it is 8"."""
    start = _CORRECTION_LEAD.match(text, place)
    rest = text[start.end() if start else place :][:_MAX_CHARACTERS]
    first = re.split(r"[.!?;](?=\s|\Z)|\n", rest, maxsplit=1)[0]
    others = rest[len(first) :].strip(" .!?;\n")
    found = read(first) if first.strip() else None
    found = (
        found or _stated(rest, read) or _concluded(first if not others else rest.rpartition("\n")[2], read)
    )
    return found or None


def _of_json(text: str) -> str | None:
    if not text.lstrip("` \njso").startswith("{"):
        return None
    try:
        record = json.loads(text[text.index("{") : text.rindex("}") + 1])
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    found = [
        str(value) for key, value in record.items() if key.lower() in ("answer", "final_answer", "result")
    ]
    return found[-1] if found else None


def _stated(text: str, read: Reader) -> str | None:
    """Return the value after the last "the answer is" or a similar phrase, or before a later "is the answer".

    Return None if the text has no such phrase, or retracts the value. The value is empty if the text at the phrase
    cannot be read.
    """
    found, place = None, 0
    for match in reversed(list(_ANSWER.finditer(text))):
        end = _SENTENCE.search(text, match.end(), match.end() + _MAX_CHARACTERS)
        assert end is not None
        if end[0] != "?" and not is_supposed(text, match.start()):
            part = text[match.end() : end.start()]
            found, place = read(part) or _concluded(part, read) or "", end.end()
            if not found and end[0] in ".!":  # "1.5 and so on. " ends a sentence, "St. " does not
                found = read(text[match.end() : _line_end(text, match.end())]) or ""
            if not found and end[0] == "!":
                found = read(text[match.end() : end.end()]) or ""
            break
    for match in _IS_THE_ANSWER.finditer(text, place):
        before = text[max(place, match.start() - _MAX_CHARACTERS) : match.start()]
        found = read(re.split(r"[.!?;,:]\s|\n", before)[-1]) or ""
        place = match.end()
    return None if found is not None and is_retracted(text, place) else found


def _line_end(text: str, place: int) -> int:
    end = text.find("\n", place, place + _MAX_CHARACTERS)
    return end if end >= 0 else min(len(text), place + _MAX_CHARACTERS)


def _concluded(line: str, read: Reader) -> str | None:
    """Return the value after the last verb of the last sentence, as in "there are 204 ways".

    Return None if the sentence is a question or has no such value.
    """
    line = line[-_MAX_CHARACTERS:].strip()
    if line.endswith("?"):
        return None
    sentence = re.split(r"[.!?;]\s+", line.rstrip(".!"))[-1]
    places = [match.end() for match in _VERB.finditer(sentence)]
    if not places or _INCONCLUSIVE.search(sentence[: places[-1]]):
        return None
    return read(sentence[places[-1] :])


def without_remarks(text: str) -> str | None:
    """Remove lead-in, remarks, reasons and closing words from a part of a sentence.

    Return None if the part is too long, or begins with the number of a list entry.
    """
    if len(text) > _MAX_CHARACTERS or _LIST_NUMBER.match(text):
        return None
    text = _LEADING.sub("", text.strip(), count=1)
    text = _REASON.split(_REMARK.sub("", text.rstrip(".,;: ")), maxsplit=1)[0]
    text = _CLOSING_WORDS.sub("", text)
    text = _REMARK.sub("", text).strip(' \t",;:')
    primed = text.endswith("'") and not text.startswith("'") and _PRIMABLE.match(text.rstrip("'")[-1])
    return _SUFFIX.sub("", text if primed else text.strip(" \t\"',;:"))
