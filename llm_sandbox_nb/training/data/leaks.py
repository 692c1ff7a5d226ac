"""Whether a text tells an answer."""

from __future__ import annotations

import re
from functools import lru_cache


def tells(text: str, answer: str) -> bool:
    """Whether `text` holds the words of `answer` in their order; case, blanks and punctuation do not count."""
    wanted = _words(answer)
    return bool(wanted.strip()) and wanted in _words(text)


@lru_cache(4)  # one text is often asked for several answers
def _words(text: str) -> str:
    words = " ".join(re.findall(r"[^\W_]+", text.casefold()))
    return f" {words} "
