"""Construction of training rows from documents and questions. The paper's own code for this is not public.

The paper (arXiv 2601.16206, section 3) has these rules. The context of a question, which is one or more documents, is
stored as files. Each document, and each part of a long document, is a separate file. A context of one file gets
distractors, which are files of other documents from the same source. Earlier questions on the same context are in the
prompt as examples. The model writes the answer to a file. All other rules come from this package.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import tempfile
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from llm_sandbox_nb.benchmark.rows import DataError, Row, make_row
from llm_sandbox_nb.benchmark.scorers import REWARDED_BY_DOMAIN
from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.formatting import format_size, plural
from llm_sandbox_nb.training.data.documents import Document, Unread, file_name, read_documents, split_text
from llm_sandbox_nb.training.data.questions import QUESTIONS, Question, contains_words, read_questions

TASK = "instruct_pretrain"
"""Name of the benchmark task for which the rows are made."""
ROWS = f"{TASK}.jsonl"
STATISTICS = "statistics.json"
_CANDIDATES_PER_DISTRACTOR = 40
"""Maximum number of documents that are tried for each distractor of a row."""


@dataclass(frozen=True)
class BuildOptions:
    """Options of the construction of rows."""

    seed: int = 42
    part: int = 20_000
    """Maximum number of characters of a file. A longer document becomes several files."""
    distractors: int = 3
    """Number of files from other documents that are added to a context of one file."""
    examples: int = 2
    """Number of earlier questions on the same documents that are in the prompt with their answers."""

    def __post_init__(self) -> None:
        for name, least in (("part", 200), ("distractors", 0), ("examples", 0)):
            if (value := getattr(self, name)) < least:
                raise DataError(f"{name} must be at least {least}, not {value}.")


@dataclass
class Statistics:
    """Counts of the built rows, and of the questions and documents that were left out."""

    options: dict[str, Any]
    documents: int = 0
    rows: int = 0
    types: Counter[str] = field(default_factory=Counter)
    domains: Counter[str] = field(default_factory=Counter)
    forms: Counter[str] = field(default_factory=Counter)
    """Number of rows about `one document`, and about `several documents`."""
    files: Counter[int] = field(default_factory=Counter)
    """Number of rows, by the number of their files including distractors."""
    distractors: Counter[int] = field(default_factory=Counter)
    examples: Counter[int] = field(default_factory=Counter)
    verbatim: int = 0
    """Number of rows whose documents contain the answer word for word."""
    characters: int = 0
    """Number of characters of all files together."""
    unread: list[dict[str, str]] = field(default_factory=list)
    """First hundred documents that could not be read."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of questions without a row, by reason."""
    sha256: str = ""
    """Digest of the file with the rows. The same documents, questions and options give the same digest."""


class _LeftOutError(LLMSandboxError):
    """Error for a question that cannot become a row. The message is the reason."""


@dataclass(frozen=True)
class _Piece:
    """Document, or part of a document."""

    title: str
    text: str
    part: int = 0
    """Number of the part, where the first part is 1. The number is 0 for a whole document."""


_EXAMPLES = "Earlier questions on the same documents, with their answers:"
_NOW = "Now answer this question:"
_HINTS = {
    "single_choice": "Answer with the letter of the right option.",
    "multiple_choice": "Answer with the letters of all right options, with commas between them.",
    "extraction": "Answer with the words of the documents; several answers have commas between them.",
}


def build_rows(folder: Path, questions: Path | None, out: Path, options: BuildOptions) -> Statistics:
    """Build rows from the documents in `folder` and from `questions`. Write the rows and their statistics to `out`.

    With `questions` None, the file `questions.jsonl` in `folder` is read. Only a few documents are in memory at a time.
    The same input gives the same bytes.

    Raises:
        DataError: if there are no documents or no questions, a line is not a question, no row could be made, or `out`
            cannot be made.
    """
    statistics = Statistics(asdict(options))
    questions = questions or folder / QUESTIONS
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"The rows cannot be written to {out} ({error.strerror or error}): choose another folder."
        ) from error
    partial = out / f"{ROWS}.partial"
    digest = hashlib.sha256()
    try:
        with tempfile.TemporaryDirectory(prefix="llm-sandbox-nb-data-") as converted:
            library = _Library(folder, Path(converted), statistics)
            with partial.open("w", encoding="utf-8", newline="\n") as file:
                for row in _rows(library, questions, options, statistics):
                    line = json.dumps(row, ensure_ascii=False) + "\n"
                    file.write(line)
                    digest.update(line.encode("utf-8"))
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if not statistics.rows:
        partial.unlink()
        reasons = "; ".join(f"{count}: {reason}" for reason, count in statistics.left_out.most_common())
        raise DataError(f"No row could be made of {questions} ({reasons or 'it has no questions'}).")
    statistics.sha256 = digest.hexdigest()
    partial.replace(out / ROWS)
    (out / STATISTICS).write_text(json.dumps(vars(statistics), indent=1, sort_keys=True) + "\n", "utf-8")
    return statistics


class _Library:
    """Collection of the documents, by name and by domain."""

    def __init__(self, folder: Path, converted: Path, statistics: Statistics) -> None:
        self.documents: dict[str, Document] = {}
        self.unread: dict[str, str] = {}
        self.by_domain: dict[str, list[str]] = {}
        for document in read_documents(folder, converted):
            if isinstance(document, Unread):
                self.unread[document.name] = document.reason
                continue
            self.documents[document.name] = document
            self.by_domain.setdefault(document.domain, []).append(document.name)
        if not self.documents:
            raise DataError(
                f"There is no document with text in {folder}: put .txt, .md, .html, .epub or .pdf files there."
            )
        self.names = list(self.documents)
        statistics.documents = len(self.documents)
        first = list(self.unread.items())[:100]
        statistics.unread = [{"name": name, "reason": reason} for name, reason in first]

    def others(self, question: Question, chance: random.Random, most: int) -> Iterator[Document]:
        """Yield other documents than those of the question, in random order. Documents of the same domain come first.

        `most` is the maximum number of documents to draw from this domain, and again from all documents.
        """
        domain = self.documents[question.documents[0]].domain
        given = set(question.documents)
        for names in (self.by_domain[domain], self.names):
            for place in chance.sample(range(len(names)), min(most, len(names))):
                if names[place] not in given:
                    given.add(names[place])
                    yield self.documents[names[place]]


def _rows(
    library: _Library, questions: Path, options: BuildOptions, statistics: Statistics
) -> Iterator[Mapping[str, Any]]:
    earlier: dict[tuple[str, ...], deque[str]] = {}  # texts of earlier questions, by their documents
    for question in read_questions(questions):
        before = earlier.setdefault(question.documents, deque(maxlen=4 * options.examples))
        try:
            row, example = _row(library, question, list(before), options, statistics)
        except _LeftOutError as reason:
            statistics.left_out[str(reason)] += 1
            continue
        before.append(example)
        statistics.rows += 1
        yield row


def _row(
    library: _Library,
    question: Question,
    before: Sequence[str],
    options: BuildOptions,
    statistics: Statistics,
) -> tuple[Mapping[str, Any], str]:
    """Return the row of a question, and the question's text as an example for later rows."""
    chance = random.Random(f"{options.seed}-{question.id}")
    pieces = _context(library, question, options.part)
    whole = "\n".join(piece.text for piece in pieces)
    _check(question, whole)
    distractors = _distractors(library, question, chance, options) if len(pieces) == 1 else []
    files = _named([*pieces, *distractors], question.answers)
    asked, gold = _asked(question, chance)
    examples = [
        text for text in before if not any(contains_words(text, answer) for answer in question.answers)
    ]
    shown = examples[len(examples) - min(options.examples, len(examples)) :]
    domain = question.domain or library.documents[question.documents[0]].domain
    statistics.types[question.type] += 1
    statistics.domains[domain] += 1
    statistics.forms["several documents" if len(question.documents) > 1 else "one document"] += 1
    statistics.files[len(files)] += 1
    statistics.distractors[len(distractors)] += 1
    statistics.examples[len(shown)] += 1
    statistics.verbatim += all(contains_words(whole, answer) for answer in question.answers)
    statistics.characters += sum(map(len, files.values()))
    row = {
        "id": question.id,
        "domain": f"{domain} documents" if domain in REWARDED_BY_DOMAIN else domain,
        "problem_statement": "\n\n".join([*([_EXAMPLES, *shown, _NOW] if shown else []), asked]),
        "ground_truth": gold,
        "qa_type": question.type,
        "input_files": dict(sorted(files.items())),
    }
    return row, f"Question: {asked}\nAnswer: {gold}"


def _check(question: Question, whole: str) -> None:
    """Raise _LeftOutError if the question contains its answer, or if `whole` lacks the evidence for the answer."""
    if not question.options and any(contains_words(question.question, answer) for answer in question.answers):
        raise _LeftOutError("its answer is in the question")
    quotes = question.evidence or (question.answers if question.type == "extraction" else ())
    if not all(contains_words(whole, quote) for quote in quotes):
        subject = "its evidence" if question.evidence else "its answer"
        raise _LeftOutError(f"{subject} is not in its documents")


def _context(library: _Library, question: Question, size: int) -> list[_Piece]:
    """Return the documents of a question. Long documents are split into parts."""
    pieces = []
    for name in question.documents:
        document = library.documents.get(name)
        if document is None:
            reason = library.unread.get(name)
            raise _LeftOutError(
                f"its document {name} does not exist"
                if reason is None
                else f"of its document {name}: {reason}"
            )
        pieces += _parts(document, size)
    return pieces


def _parts(document: Document, size: int) -> list[_Piece]:
    parts = [part for part in split_text(document.text(), size) if part.strip()]
    if len(parts) == 1:
        return [_Piece(document.title, parts[0])]
    return [_Piece(document.title, part, number) for number, part in enumerate(parts, 1)]


def _distractors(
    library: _Library, question: Question, chance: random.Random, options: BuildOptions
) -> list[_Piece]:
    """Return pieces of other documents. They contain neither an answer to the question nor a quote of its evidence.

    There may be fewer than `options.distractors` pieces if too few documents are suitable.
    """
    found: list[_Piece] = []
    if not options.distractors:
        return found
    for document in library.others(question, chance, _CANDIDATES_PER_DISTRACTOR * options.distractors):
        piece = chance.choice(_parts(document, options.part))
        if not any(contains_words(piece.text, quote) for quote in (*question.answers, *question.evidence)):
            found.append(piece)
        if len(found) == options.distractors:
            break
    return found


def _named(pieces: Sequence[_Piece], answers: Sequence[str]) -> dict[str, str]:
    """Return the texts of the files by file name. If a document's title contains an answer, the name is `document`."""
    files: dict[str, str] = {}
    for piece in pieces:
        has_answer = any(contains_words(file_name(piece.title), answer) for answer in answers)
        name = "document" if has_answer else file_name(piece.title)
        part = f"-part-{piece.part:03d}" if piece.part else ""
        file, again = f"{name}{part}.txt", itertools.count(2)
        while file in files:
            file = f"{name}-{next(again)}{part}.txt"
        files[file] = piece.text
    return files


def _asked(question: Question, chance: random.Random) -> tuple[str, str]:
    """Return the question as the prompt shows it, and its gold answer. The options are in random order."""
    if not question.options:
        hint = f"\n{_HINTS['extraction']}" if question.type == "extraction" else ""
        return f"{question.question}{hint}", ", ".join(question.answers)
    options = chance.sample(question.options, len(question.options))
    listed = [f"{letter}. {option}" for letter, option in zip(ascii_uppercase, options, strict=False)]
    gold = sorted(ascii_uppercase[options.index(answer)] for answer in set(question.answers))
    return "\n".join([question.question, *listed, _HINTS[question.type]]), ", ".join(gold)


_PREVIEW_CHARACTERS = 300
"""Number of characters of each file that a preview shows."""


def statistics_lines(folder: Path) -> Iterator[str]:
    """Yield lines about the built rows, and about the reasons why documents and questions were left out.

    Raises:
        DataError: if the folder holds no training data.
    """
    path = folder / STATISTICS
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"There is no training data in {folder}: give the --out folder of `train data build`."
        ) from error
    rows, documents = plural(found["rows"], "row"), plural(found["documents"], "document")
    yield f"{rows} from {documents}, {format_size(found['characters'])} of text in their files"
    for name, label in (
        ("types", "type"),
        ("domains", "domain"),
        ("forms", "form"),
        ("files", "files in a row"),
        ("distractors", "distractors in a row"),
        ("examples", "examples in a prompt"),
    ):
        counts = found[name]
        ordered = sorted(
            counts, key=lambda key: (not key.isdigit(), int(key) if key.isdigit() else -counts[key], key)
        )
        yield f"{label:<22}" + ", ".join(f"{key or 'none'}: {counts[key]}" for key in ordered)
    yield f"{'answer in documents':<22}{found['verbatim']} of {found['rows']}, word by word"
    for document in found["unread"]:
        yield f"left out: document {document['name']}: {document['reason']}"
    for reason, count in sorted(found["left_out"].items(), key=lambda item: -item[1]):
        yield f"left out: {plural(count, 'question')}: {reason}"
    yield f"seed {found['options']['seed']}, sha256 {found['sha256']}"


def row_lines(folder: Path, identity: str | None = None) -> Iterator[str]:
    """Yield the lines of a row with its prompt, its answer and its files. If `identity` is None, show the first row.

    Raises:
        DataError: if the row does not exist.
    """
    row = _find(folder, identity)
    yield f"row {row.id}, {row.qa_type}, domain {row.domain or 'none'}"
    yield ""
    yield row.problem_statement
    yield ""
    yield f"gold answer (for the reward alone): {row.ground_truth}"
    for name, text in row.input_files.items():
        head = text[:_PREVIEW_CHARACTERS].strip()
        yield ""
        yield f"documents/{name}, {format_size(len(text.encode('utf-8', 'replace')))}"
        yield from (f"  | {line}" for line in head.split("\n"))
        if len(text) > _PREVIEW_CHARACTERS:
            yield "  | ..."


def _find(folder: Path, identity: str | None) -> Row:
    try:
        with (folder / ROWS).open(encoding="utf-8") as file:
            for number, line in enumerate(file):
                record: Mapping[str, Any] = json.loads(line)
                if identity is None or str(record["id"]) == identity:
                    return make_row(record, number)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{folder / ROWS} cannot be read: build the data again.") from error
    raise DataError(f"There is no row {identity} in {folder / ROWS}: leave out --row to see the first.")
