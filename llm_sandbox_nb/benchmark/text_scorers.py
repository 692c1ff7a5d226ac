"""Class `Score`, and the scorers that compare two normalised texts."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from llm_sandbox_nb.benchmark.multiple_choice import find_letter
from llm_sandbox_nb.benchmark.normalisation import boxes, normalised, text_key
from llm_sandbox_nb.benchmark.stated_answer import given_answers


@dataclass(frozen=True)
class Score:
    """Score from 0 to 1. If the value is None, the answer is unscored, and does not count as wrong."""

    value: float | None
    detail: str = ""
    """`no answer`, `unparsable`, the answer as the scorer read it, or the reason for the value."""
    failed: bool = False
    """True if the scorer itself failed, so that the answer can be scored again later."""


NO_ANSWER = Score(0.0, "no answer")
NO_GOLD = Score(None, "the gold answer is empty")
_LED_IN = re.compile(
    r"(?:(?:so|thus|therefore|hence),?\s+)?(?:(?:the|my|our)\s+)?(?:(?:final|correct|right)\s+)?(?:answers?|options?|choices?)\s*(?:(?:is|are)\b\s*:?|[:=])\s*",
    re.IGNORECASE,
)


def given_text(text: str) -> str:
    """Return the normalised content of the boxes, `<answer>` or JSON. Without such a place, return the whole text.

    Return an empty text if the boxes differ.
    """
    text = normalised(text)
    given = given_answers(text)
    if given is None:
        return text
    return given[0] if len({text_key(text) for text in given}) == 1 else ""


def exact(answer: str, gold: str) -> Score:
    """Score 1 for equal texts, ignoring case, blanks, decoration and "The answer is"."""
    wanted = text_key(given_text(gold))
    if not wanted:
        return Score(float(_bare(answer) == _bare(gold)), answer.strip()[:200]) if _bare(gold) else NO_GOLD
    stated = given_text(answer)
    forms = {text_key(stated)}
    if "\n" not in stated and (led := _LED_IN.match(stated.strip("*_ "))):
        forms.add(text_key(stated.strip("*_ ")[led.end() :]))
    return Score(float(wanted in forms), stated.strip()[:200])


def _bare(text: str) -> str:
    """Return the normalised text without blanks. It is compared if a gold answer is only punctuation, such as `**`."""
    return "".join(normalised(text).split())


def letter(answer: str, gold: str, options: int = 10) -> Score:
    """Score 1 if `answer` chooses the same letter as `gold`. If `gold` is not a letter, the answer is unscored."""
    wanted = find_letter(gold, options)
    if wanted is None:
        return Score(None, f"the gold answer {gold[:50]!r} is not a letter")
    found = find_letter(answer, options)
    if found is None:
        return Score(0.0, "unparsable")
    return Score(float(found == wanted), found)


def set_f1(answer: str, gold: str) -> Score:
    """Return the F1 of the items in `answer` and the items in `gold`, as the score.

    Commas, semicolons, lines, bullets and dashes separate items. The word "and" may separate items or be part of an
    item, so both readings are scored, and the higher score counts. If the gold items are letters, "C) water" counts as
    C.
    """
    answer, gold = given_text(answer), given_text(gold)
    found = [_f1(_items(answer, joined), _items(gold, joined)) for joined in (False, True)]
    if found[0] is None:
        return NO_GOLD
    return Score(
        max(value for value in found if value is not None), "" if _items(answer, False) else "unparsable"
    )


def _f1(stated: set[str], wanted: set[str]) -> float | None:
    if not wanted:
        return None
    if all(re.fullmatch(r"[a-z]", item) for item in wanted):
        stated = {letter for item in stated for letter in _letters(item)}
    hits = len(stated & wanted)
    if not hits:
        return 0.0
    precision, recall = hits / len(stated), hits / len(wanted)
    return 2 * precision * recall / (precision + recall)


_OPTION = re.compile(r"\(?(?:option\s+)?([a-z])(?:[).:]\s.*|\s-\s.*|\)?)", re.DOTALL)


def _letters(item: str) -> list[str]:
    """Return the option letters in an item, such as "c" for "c) water", or "a" and "c" for "ac".

    An item without option letters is returned as it is.
    """
    if match := _OPTION.fullmatch(item):
        return [match[1]]
    parts = re.split(r"\s*[/-]\s*|\s+", item)
    if len(parts) > 1 and all(re.fullmatch(r"\(?[a-j]\)?", part) for part in parts):
        return [part.strip("()") for part in parts]
    return list(item) if re.fullmatch(r"[a-j]{2,5}", item) and "".join(sorted(set(item))) == item else [item]


def _items(text: str, joined: bool) -> set[str]:
    """Return the items of a text. If `joined` is True, "and" is part of an item. Otherwise "and" separates items."""
    try:
        values = json.loads(text)
        if isinstance(values, list):
            return {text_key(str(value)) for value in values} - {""}
    except (ValueError, RecursionError):
        pass
    text = re.sub(
        r"^\s*(?:so\s+)?(?:the\s+)?(?:correct\s+|final\s+)?(?:answers?|options?|choices?)?\s*(?:is|are)?\s*:",
        "",
        text,
        flags=re.IGNORECASE,
    )
    text = _LED_IN.sub("", text.strip(), count=1)
    text = re.sub(r"^\s*(?:[-*•·–—‣]|\d{1,2}[.)])\s+", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*(?:both|all of|options?|choices?)\s+(?=\S)", "", text, flags=re.IGNORECASE)
    separators = r"[,;\n|、]|\s[–—-]\s(?=\S{1,30}(?:\s[–—-]\s|\Z))"
    if not joined:
        separators += r"|\s+(?:and|&|\+|und|et|y|e|и|та|と|和|및)\s+"
    text = re.sub(r"[,;]\s*(?:and|&|und|et|y|и)\s+", ", ", text)
    items = (
        item.strip().strip("[]{}()\"'*`.").strip() for item in re.split(separators, text, flags=re.IGNORECASE)
    )
    return {item.casefold() for item in items if item}


def rouge_l(answer: str, gold: str) -> Score:
    """Return the F-measure of ROUGE-L with stemming, from Google's package, as the score. Equal texts score 1.

    Texts in all scripts are split into words. In scripts without blanks, such as Chinese, each character is a word.
    """
    answer, gold = normalised(answer), normalised(gold)
    if boxed := boxes(answer):
        answer = boxed[0] if len(boxed) == 1 else ""
    wanted = text_key(gold)
    if not wanted:
        return NO_GOLD
    if text_key(answer) == wanted:
        return Score(1.0, "equal")
    found = _rouge(answer.isascii() and gold.isascii()).score(gold, answer)
    return Score(float(found["rougeL"].fmeasure))


@cache
def _rouge(plain: bool) -> Any:
    from rouge_score import rouge_scorer

    return rouge_scorer.RougeScorer(["rougeL"], use_stemmer=True, tokenizer=None if plain else _AnyScript())


class _AnyScript:
    """Tokenizer that splits a text of any Unicode script into words, and stems words in English letters."""

    def __init__(self) -> None:
        import regex
        from rouge_score import tokenizers

        self._words = regex.compile(
            r"[\p{Han}\p{Hiragana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]\p{M}*|\p{Katakana}[\p{M}ー]*"
            r"|[[\p{L}\p{N}]--[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]][[\p{L}\p{M}\p{N}]--[\p{Han}\p{Hiragana}\p{Katakana}]]*",
            regex.V1,
        )
        self._english = tokenizers.DefaultTokenizer(use_stemmer=True)

    def tokenize(self, text: str) -> list[str]:
        words: list[str] = []
        for word in self._words.findall(text.casefold()):
            words += self._english.tokenize(word) if word.isascii() else [word]
        return words
