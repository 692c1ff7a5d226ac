"""Words that introduce an answer, in twenty major languages and some more.

English has its own patterns, in `stated_answer` and `multiple_choice`.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import yaml


@cache
def words() -> dict[str, Any]:
    """Return the tables of `words.yaml`, by name."""
    # Every process that scores reads this file. The loader in C is eight times as fast as the loader in Python.
    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    tables: dict[str, Any] = yaml.load(
        Path(__file__).with_name("words.yaml").read_text("utf-8"), Loader=loader
    )
    return tables


def _alternatives(table: str) -> str:
    """Return a pattern that matches any word of a table."""
    normal = {re.escape(unicodedata.normalize("NFKC", word)) for word in words()[table]}
    return "|".join(sorted(normal, key=len, reverse=True))


OTHER_SCRIPT = "\u0900-\u0dff\u0e00-\u0eff\u1100-\u11ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Characters of scripts such as Chinese and Thai, in which a Latin letter and the next word need no blank between them.
"""
ANSWER_INTRODUCTION = (
    rf"(?<![^\W\d_{OTHER_SCRIPT}])(?:{_alternatives('answer')})(?:[^\W\d_]{{1,4}}(?=\s*[:=]))?"
    rf"(?:\s+(?![A-Z]\b|(?:{_alternatives('not')})\b)[^\W\d_]{{2,12}}){{0,2}}?\s*[*_`\"']{{0,4}}"
    rf"(?:\s*(?:[:=\-–—→ःঃ]|\s(?:{_alternatives('is')})(?=[\s:*])|は|が|คือ|은|는|이|가|是|为|為|选|選)\s*:?"
    r"|(?=\s+(?:[*_`\"'(\[]*[A-Z]\b|[-+\d$\\√(])))"
)
"""Matches the words before an answer, such as "Die richtige Antwort ist", "正解は" or "Ответ:"."""
ANSWER_SUFFIX = rf"(?:\s*(?:{_alternatives('behind')}))"
NEGATION = r"(?:\s*(?:değil|नहीं|नाही|가\s*아|이\s*아|은\s*아|는\s*아|では|じゃな|でな|নয়|নয়|نہیں|نیست|ไม่))"
"""Matches a negation that stands after the answer, as in Turkish and Hindi."""
