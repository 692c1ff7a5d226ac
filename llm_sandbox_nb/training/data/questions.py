"""Questions on documents, in a file with one JSON object per line, and a test that a text contains an answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from llm_sandbox_nb.benchmark.rows import DataError
from llm_sandbox_nb.trajectory.events import clean_text

QUESTIONS = "questions.jsonl"
TYPES = ("free_form", "single_choice", "multiple_choice", "extraction")
_KEYS = ("id", "documents", "document", "question", "answer", "type", "options", "evidence", "domain")


@dataclass(frozen=True)
class Question:
    """Question on documents, with its answers.

    `type` decides how answers are rewarded: by equality or ROUGE-L for `free_form`, by the letter for `single_choice`,
    and by the F1 of the items for `multiple_choice` and `extraction`.
    """

    id: str
    documents: tuple[str, ...]
    """Names of the question's documents: paths relative to the folder of documents."""
    question: str
    answers: tuple[str, ...]
    """Right answers. For a choice, these are the texts of the right options."""
    type: str
    options: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    """Quotes from the documents that contain the answer. For an extraction without quotes, the answers are the quotes.
    """
    domain: str = ""


def read_questions(path: Path) -> Iterator[Question]:
    """Yield the questions of a file.

    Raises:
        DataError: if the file does not exist, or a line is not a question.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(
            f"There are no questions at {path}: write {QUESTIONS} next to the documents, or name a file "
            "with --questions."
        ) from error
    seen: set[str] = set()
    with file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"Line {number} of {path.name}"
            try:
                record = clean_text(json.loads(line.decode("utf-8-sig")))
            except UnicodeDecodeError as error:
                raise DataError(f"{where} is not UTF-8 text: save the file as UTF-8.") from error
            except ValueError as error:
                raise DataError(f"{where} is not JSON ({error}).") from error
            if not isinstance(record, dict):
                raise DataError(f"{where} has to be a JSON object with question, answer and document.")
            question = _question(record, number, where)
            if question.id in seen:
                raise DataError(f"{where} has the id {question.id!r} of an earlier line: ids have to differ.")
            seen.add(question.id)
            yield question


def _question(record: Mapping[str, Any], number: int, where: str) -> Question:
    if unknown := [key for key in record if key not in _KEYS]:
        raise DataError(f"{where} has the unknown key {unknown[0]!r}; the known keys are {', '.join(_KEYS)}.")
    texts = {key: _texts(record.get(key), f"{key} of line {number}") for key in _KEYS}
    documents = texts["documents"] or texts["document"]
    if not documents:
        raise DataError(f"{where} names no document: add `document` or `documents`.")
    if not texts["question"] or not texts["answer"]:
        missing = "answer" if texts["question"] else "question"
        raise DataError(f"{where} has no {missing}: add it or leave the line out.")
    options = texts["options"]
    kind = texts["type"][0] if texts["type"] else _kind(options, texts["answer"])
    if kind not in TYPES:
        raise DataError(f"{where} has the type {kind!r}; the known types are {', '.join(TYPES)}.")
    answers = texts["answer"]
    if "choice" in kind:
        if not 2 <= len(options) <= 26:
            raise DataError(f"{where} has {len(options)} options; a choice has 2 to 26.")
        if len(set(options)) < len(options):
            raise DataError(f"{where} has the same option twice: options have to differ.")
        answers = tuple(_option(one, options, where) for one in answers)
    elif options:
        raise DataError(
            f"{where} has options, but {kind} has none: leave them out, or write type single_choice."
        )
    if kind in ("single_choice", "free_form") and len(answers) != 1:
        raise DataError(f"{where} has {len(answers)} answers, and {kind} has one.")
    return Question(
        id=texts["id"][0] if texts["id"] else str(number),
        documents=documents,
        question=texts["question"][0],
        answers=answers,
        type=kind,
        options=options,
        evidence=texts["evidence"],
        domain=texts["domain"][0] if texts["domain"] else "",
    )


def _kind(options: Sequence[str], answers: Sequence[str]) -> str:
    if options:
        return "single_choice" if len(answers) == 1 else "multiple_choice"
    return "free_form" if len(answers) == 1 else "extraction"


def _texts(value: Any, name: str) -> tuple[str, ...]:
    """Return the texts in a value. The value may be None, a text or a number, or a list of these."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, str | int | float) and not isinstance(item, bool) for item in values):
        raise DataError(f"The {name} has to be a text or a list of texts, not {value!r}.")
    return tuple(text for item in values if (text := str(item).strip()))


def _option(answer: str, options: Sequence[str], where: str) -> str:
    """Return the option that an answer names by its text or by its letter."""
    if answer in options:
        return answer
    place = ascii_uppercase.find(answer.upper()) if len(answer) == 1 else -1
    if not 0 <= place < len(options):
        raise DataError(f"{where} has the answer {answer!r}, which is not one of its options.")
    return options[place]


def contains_words(text: str, answer: str) -> bool:
    """Return True if `text` has the words of `answer` in their order, ignoring case, blanks and punctuation.

    In scripts without blanks, such as Chinese, each character is a word.
    """
    wanted = _words(answer)
    return bool(wanted.strip()) and wanted in _words(text)


_WITHOUT_BLANKS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
"""Characters of Thai, Lao, Burmese, Khmer, Japanese and Chinese."""
_WORD = re.compile(rf"[{_WITHOUT_BLANKS}]|[^\W_{_WITHOUT_BLANKS}]+")


@lru_cache(4)  # one text is often searched for several answers
def _words(text: str) -> str:
    words = " ".join(_WORD.findall(text.casefold()))
    return f" {words} "
