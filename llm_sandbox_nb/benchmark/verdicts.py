r"""Parser of a judge's verdict, in the forms that judges write: a last line, JSON, `[[CORRECT]]`, a box, a tag.

A verdict counts only at the end of a reply and without reservations. "Not correct", "partially correct", "CORRECT if
units are ignored" and a line with both CORRECT and INCORRECT are not verdicts. After such a reply, the judge is asked
again.
"""

from __future__ import annotations

import json
import re
from typing import Literal

from llm_sandbox_nb.benchmark.normalisation import normalised

Opinion = Literal["correct", "incorrect", "unknown", "error"]
_DECORATION = " \t*_`#.\"'>|~!-=•✅❌✔✗☑🟢🔴✓✘\\"
_NAMES = (
    r"verdict|judgment|judgement|grade|grading|result|answer|decision|conclusion"
    r"|evaluation|assessment|rating|label|output|classification|correctness"
)
_AFTERTHOUGHT = re.compile(
    r"\W*(?:confidence|certainty|score|probability|reason(?:ing)?|explanation|justification|rationale|note|tokens?)\b.{0,500}",
    re.IGNORECASE,
)
_WORD = r"(?P<word>(?:IN)?CORRECT)"
_WRAPPED = re.compile(
    rf"(?:\[\[\s*{_WORD}\s*\]\]"
    rf"|\\(?:boxed|text|textbf)\s*\{{\s*(?:\\text\w*\s*\{{)?\s*{_WORD.replace('word', 'word2')}\s*\}}?\s*\}}"
    rf"|<(?P<tag>\w{{1,20}})>\s*{_WORD.replace('word', 'word3')}\s*</(?P=tag)>)",
    re.IGNORECASE,
)
_LINE = re.compile(
    rf"""(?:(?:so|thus|therefore|hence|overall|finally|in\s+conclusion)\b[,:]?\s*)?
        (?:(?:(?:my|the|our)\s+)?(?:(?:final|overall)\s+)?(?:{_NAMES})[*_`"']*\s*(?:is\b|:|=>?|-+>?|→|→)\s*:?
          |(?:the|this)\s+(?:candidate(?:'s)?|student(?:'s)?|given|model(?:'s)?|submitted|proposed)?\s*(?:final\s+)?(?:answer|response|solution|candidate)\s+is\b
          |(?:it|this|that)\s+is\b|i\s+(?:judge|grade|rate|mark)\s+(?:it|this|the\s+answer)(?:\s+as)?\b|i\s+(?:conclude|decide)\s*:)?
        [\s*_`"'(\[]*(?:therefore\s+|thus\s+)?{_WORD}\b[*_`"')\]]*(?P<tail>.*)""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_REMARK_PATTERN = re.compile(r"\s*(?:[.!]?\s*\(|[-–—:,;.]\s|(?:because|since|as)\b)", re.IGNORECASE)
_RESERVATION_PATTERN = re.compile(
    r"correct|\b(?:if|unless|but|however|except|though|although|not\s+sure|unsure|maybe|perhaps|partial\w*|otherwise|would|wrong|false|assuming|claims?"
    r"|says?|said|writes?|states?|wait|no)\b|\?",
    re.IGNORECASE,
)


def opinion_of(reply: str) -> Opinion:
    """Return the verdict at the end of a reply, or `unknown` if there is no verdict or the reply has reservations."""
    text = normalised(reply).strip("\n")
    if (found := _of_json(text)) is not None:
        return found
    lines = [
        line for line in text.splitlines() if line.strip(_DECORATION) and not line.strip().startswith("```")
    ]
    while (
        len(lines) > 1
        and _AFTERTHOUGHT.fullmatch(lines[-1].strip(_DECORATION))
        and not re.search("correct", lines[-1], re.IGNORECASE)
    ):
        lines.pop()
    if not lines:
        return "unknown"
    line = lines[-1].strip(_DECORATION).strip("$ ")
    wrapped = list(_WRAPPED.finditer(lines[-1]))
    if wrapped and len(re.findall("correct", lines[-1], re.IGNORECASE)) == 1:
        before, after = lines[-1][: wrapped[0].start()], lines[-1][wrapped[0].end() :]
        return (
            "unknown"
            if _RESERVATION_PATTERN.search(before + after) or re.search(r"\bnot\b", before)
            else _opinion(wrapped[0])
        )
    match = _LINE.fullmatch(line)
    if match is None:
        return "unknown"
    tail = match["tail"].strip(_DECORATION + ")]}$,;:")
    if tail and (
        not match["word"].isupper()
        or not _REMARK_PATTERN.match(match["tail"])
        or _RESERVATION_PATTERN.search(tail)
    ):
        return "unknown"
    return "unknown" if "?" in match["tail"] else _opinion(match)


def _opinion(match: re.Match[str]) -> Opinion:
    word = next(value for name, value in match.groupdict().items() if name.startswith("word") and value)
    return "correct" if word.upper() == "CORRECT" else "incorrect"


def _of_json(text: str) -> Opinion | None:
    """Return the verdict of a JSON object at the end of the reply, or None if there is no such object."""
    text = re.sub(r"\s*```\s*\Z", "", text).rstrip()
    if not text.endswith("}") or "\\boxed" in text[-40:] or "\\text" in text[-40:]:
        return None
    place = len(text)
    for _ in range(20):
        place = text.rfind("{", 0, place)
        if place < 0:
            return None
        try:
            record = json.loads(text[place:])
        except (ValueError, RecursionError):
            continue
        break
    else:
        return None
    words = set()
    for key, value in record.items():
        name = key.lower().strip()
        if isinstance(value, bool) and name in ("correct", "is_correct", "iscorrect", "equivalent"):
            words.add("CORRECT" if value else "INCORRECT")
        elif isinstance(value, str) and re.fullmatch(rf"(?:final[_ ])?(?:{_NAMES})|correct", name):
            words.add(value.strip(_DECORATION).upper())
    if words == {"CORRECT"}:
        return "correct"
    return "incorrect" if words == {"INCORRECT"} else "unknown"
