"""How a model writes: phrases of verification, and marks of structure, counted by published patterns."""

from __future__ import annotations

import re
from dataclasses import dataclass

PATTERNS_VERSION = "1"
_CHECK = r"(?:verify|check|confirm|test|validate|double[- ]check)"
VERIFICATION = re.compile(
    "|".join(
        (
            rf"\blet(?:['’]s| me| us) {_CHECK}\b",
            r"\b(?:double|cross|sanity)[- ]check(?:ing|ed|s)?\b",
            r"\b(?:to|we|i|i['’]ll|will|must|should) (?:verify|confirm|validate)\b",
            r"\bcheck(?:ing)? (?:that|whether|if)\b",
            r"\bverif(?:y|ying) that\b",
            r"\b(?:does|do) this (?:hold|work|match)\b",
            r"\bplug(?:ging)? (?:it|this|that|these) back\b",
            r"\bwait,",
        )
    ),
    re.IGNORECASE,
)
"""Words with which a model checks its own work."""
STRUCTURE = {
    "headings": re.compile(r"^ {0,3}#{1,6} \S", re.MULTILINE),
    "separators": re.compile(r"^ {0,3}(?:-{3,}|\*{3,}|_{3,}|={3,})[ \t]*$", re.MULTILINE),
    "lists": re.compile(r"^[ \t]*(?:[-*+•]|\d{1,3}[.)])[ \t]+\S", re.MULTILINE),
    "math": re.compile(r"\$\$.+?\$\$|\\\[.+?\\\]|\\begin\{(?:align|equation|gather)\*?\}", re.DOTALL),
}
"""Markdown headings, separators, list items, and displayed formulas. Code blocks are left out."""
_CODE = re.compile(r"^ {0,3}(```|~~~).*?(?:^ {0,3}\1|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Writing:
    """Counts of one text."""

    verification: int
    structure: int
    parts: dict[str, int]


def writing_of(text: str) -> Writing:
    """Count one reply; what stands in code blocks does not count."""
    plain = _CODE.sub("", text)
    texts = {"math": _closable(plain)}
    parts = {name: len(pattern.findall(texts.get(name, plain))) for name, pattern in STRUCTURE.items()}
    return Writing(len(VERIFICATION.findall(plain)), sum(parts.values()), parts)


def _closable(text: str) -> str:
    r"""The text without each `\[` after the last `\]`: looking for its end from each of them takes long."""
    last = max(0, text.rfind("\\]"))
    return text[:last] + text[last:].replace("\\[", "  ")
