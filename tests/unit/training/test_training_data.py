"""Rows built from documents: what a searcher finds in them, what they do not tell, and what is refused."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_sandbox_nb.benchmark.data import load_rows
from llm_sandbox_nb.benchmark.rows import DataError, Row
from llm_sandbox_nb.benchmark.scorers import score_row
from llm_sandbox_nb.benchmark.task import load_task
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.training.data import build
from llm_sandbox_nb.training.data.build import ROWS, BuildOptions, Statistics, build_rows
from llm_sandbox_nb.training.data.documents import split_text
from llm_sandbox_nb.training.data.questions import TYPES, contains_words

TASK = load_task("instruct_pretrain")
KINDS = ("fiction", "news", "trivia")
FILLER = "The harbour was quiet that evening. Nobody spoke of the matter again!\n\n"


def word(chance: random.Random) -> str:
    return "".join(chance.choice("bdfgklmnprst") + chance.choice("aeiou") for _ in range(4)).capitalize()


def corpus(folder: Path, count: int, *, long_every: int = 5) -> list[dict[str, Any]]:
    """Documents with one planted fact each, and questions of all types on them; every fifth document is long.

    The fact is a line `The keeper of PLACE is NAME.`; the question names the place.
    """
    chance = random.Random(7)
    questions: list[dict[str, Any]] = []
    facts = []
    for number in range(count):
        place, name = f"{word(chance)}{number}", f"{word(chance)} {word(chance)}"
        facts.append((place, name))
        body = FILLER * (400 if number % long_every == 0 else 4)
        cut = chance.randrange(0, len(body) // len(FILLER)) * len(FILLER)
        kind = KINDS[number % len(KINDS)]
        path = folder / kind / f"{number:04d} Report on {place}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{body[:cut]}The keeper of {place} is {name}.\n\n{body[cut:]}", "utf-8")
    for number, (place, name) in enumerate(facts):
        asked = {"id": f"q{number}", "question": f"Who is the keeper of {place}?", "answer": name}
        document = f"{KINDS[number % len(KINDS)]}/{number:04d} Report on {place}.txt"
        kind = TYPES[number % len(TYPES)]
        if "choice" in kind:
            others = [facts[(number + step) % count][1] for step in (1, 2, 3)]
            asked["options"] = [name, *others]
        if kind in ("multiple_choice", "extraction"):  # two documents, two answers
            second = (number + 4) % count
            asked["question"] = f"Who are the keepers of {place} and of {facts[second][0]}?"
            asked["answer"] = [name, facts[second][1]]
            asked["documents"] = [
                document,
                f"{KINDS[second % len(KINDS)]}/{second:04d} Report on {facts[second][0]}.txt",
            ]
            if "choice" in kind:
                asked["options"] = [name, facts[second][1], *others[:2]]
        else:
            asked["document"] = document
        questions.append({**asked, "type": kind})
    ask(folder, *questions)
    return questions


def ask(folder: Path, *questions: dict[str, Any]) -> None:
    (folder / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in questions), "utf-8")


def built(folder: Path, out: Path, **options: Any) -> tuple[list[Row], Statistics]:
    statistics = build_rows(folder, None, out, BuildOptions(**options))
    return load_rows(TASK, str(out)), statistics


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Row], list[dict[str, Any]], Statistics]:
    folder = tmp_path_factory.mktemp("corpus")
    questions = corpus(folder, 60)
    rows, statistics = built(folder, folder / "out", part=4000)
    return rows, questions, statistics


def searched(row: Row, question: dict[str, Any]) -> str:
    """What a script answers that reads the files for the facts that the question names."""
    places = [
        one.strip("?,") for one in question["question"].split() if any(letter.isdigit() for letter in one)
    ]
    found = []
    for place in places:
        for text in row.input_files.values():
            for line in text.splitlines():
                if f"The keeper of {place} is " in line:
                    found.append(line.rpartition(" is ")[2].rstrip("."))
    if "choice" not in row.qa_type:
        return ", ".join(found)
    listed = dict(
        line.split(". ", 1)[::-1]
        for line in row.problem_statement.rpartition("Now answer")[2].splitlines()
        if line[1:3] == ". "
    )
    return ", ".join(listed[one] for one in found)


def test_a_searcher_finds_every_answer_and_is_rewarded(
    planted: tuple[list[Row], list[dict[str, Any]], Statistics],
) -> None:
    rows, questions, _ = planted
    assert len(rows) == 60
    assert {row.qa_type for row in rows} == set(TYPES)
    for row, question in zip(rows, questions, strict=True):
        fields = {"domain": row.domain, "qa_type": row.qa_type}
        assert score_row(TASK.scorer, searched(row, question), row.ground_truth, fields).value == 1.0, row.id
        assert score_row(TASK.scorer, "Somebody Else", row.ground_truth, fields).value in (0.0, None), row.id


def test_prompts_names_and_distractors_do_not_tell(
    planted: tuple[list[Row], list[dict[str, Any]], Statistics],
) -> None:
    rows, questions, statistics = planted
    with_distractors = 0
    for row, question in zip(rows, questions, strict=True):
        answers = question["answer"] if isinstance(question["answer"], list) else [question["answer"]]
        documents = question.get("documents") or [question["document"]]
        places = [document.rpartition(" ")[2].removesuffix(".txt") for document in documents]
        for answer in answers:
            assert not any(contains_words(name, answer) for name in row.input_files)
            if not question.get("options"):
                assert not contains_words(row.problem_statement, answer)
            for name, text in row.input_files.items():
                if not any(place in name for place in places):
                    assert not contains_words(text, answer), (row.id, name)
        with_distractors += any(not any(place in name for place in places) for name in row.input_files)
    assert with_distractors > 10
    assert statistics.forms == {"one document": 30, "several documents": 30}
    assert max(statistics.files) > 5, "long documents are split"


def test_without_the_check_distractors_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        (tmp_path / f"{number}.txt").write_text("The keeper is Dorin Vale.\n")
    ask(tmp_path, {"document": "0.txt", "question": "Who is the keeper?", "answer": "dorin  VALE"})
    rows, statistics = built(tmp_path, tmp_path / "out")
    assert len(rows[0].input_files) == 1
    assert statistics.distractors == {0: 1}
    monkeypatch.setattr(build, "contains_words", lambda text, answer: False)
    rows, _ = built(tmp_path, tmp_path / "out")
    assert len(rows[0].input_files) == 4


def test_a_title_that_tells_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "Dorin Vale.txt").write_text("The keeper is Dorin Vale.\n")
    (tmp_path / "The life of DORIN-VALE.txt").write_text("He kept the light.\n")
    ask(tmp_path, {"document": "Dorin Vale.txt", "question": "Who is the keeper?", "answer": "Dorin Vale"})
    rows, _ = built(tmp_path, tmp_path / "out")
    assert sorted(rows[0].input_files) == ["document-2.txt", "document.txt"]


def test_examples_are_earlier_questions_that_do_not_tell(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Alba keeps the light. Boro keeps the gate. Alba is tall. Ceda sings.\n")
    questions = [
        {"question": "Who keeps the light?", "answer": "Alba"},
        {"question": "Who keeps the gate?", "answer": "Boro"},
        {"question": "Who is tall?", "answer": "Alba"},
        {"question": "Who sings?", "answer": "Ceda"},
    ]
    ask(tmp_path, *({"document": "a.txt", **one} for one in questions))
    rows, statistics = built(tmp_path, tmp_path / "out")
    assert rows[0].problem_statement == "Who keeps the light?"
    assert "Boro" in rows[2].problem_statement
    assert "light" not in rows[2].problem_statement, "that example tells the answer"
    shown = rows[3].problem_statement
    assert "Answer: Boro" in shown
    assert "Answer: Alba" in shown
    assert shown.endswith("Who sings?")
    assert statistics.examples == {0: 1, 1: 2, 2: 1}


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    corpus(tmp_path / "books", 24)
    made = []
    for name, seed in (("one", 1), ("two", 1), ("three", 2)):
        built(tmp_path / "books", tmp_path / name, seed=seed)
        made.append((tmp_path / name / ROWS).read_bytes())
    assert made[0] == made[1]
    assert made[0] != made[2]


def test_memory_does_not_grow_with_the_number_of_documents(tmp_path: Path) -> None:
    """4,000 documents of 20 KB are 80 MB of text: the process may grow by a sixth of it."""
    peaks = {}
    for count in (500, 4_000):
        folder = tmp_path / str(count)
        folder.mkdir()
        body = FILLER * 280
        with (folder / "questions.jsonl").open("w") as file:
            for number in range(count):
                (folder / f"{number}.txt").write_text(f"{body}The keeper of {number} is K{number}.\n")
                asked = {
                    "document": f"{number}.txt",
                    "question": f"Who keeps {number}?",
                    "answer": f"K{number}",
                }
                if number % 10 == 0:
                    file.write(json.dumps(asked) + "\n")
        program = (
            "import resource, sys; from pathlib import Path\n"
            "from llm_sandbox_nb.training.data.build import BuildOptions, build_rows\n"
            "build_rows(Path(sys.argv[1]), None, Path(sys.argv[1], 'out'), BuildOptions(part=100_000))\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True
        )
        peaks[count] = int(done.stdout) * 1024
        assert len((folder / "out" / ROWS).read_bytes()) > count * 2000
    assert peaks[4_000] - peaks[500] < 12e6, peaks


@given(st.text(alphabet="ab .!?\n#\tC", max_size=400), st.integers(2, 60))
def test_parts_together_are_the_text_and_within_the_size(text: str, size: int) -> None:
    parts = list(split_text(text, size))
    assert "".join(parts) == text
    assert all(0 < len(part) <= size for part in parts)


def test_parts_end_where_a_reader_would_cut() -> None:
    text = "One. " * 30 + "\n\nTwo two.\n\n" + "# A heading\n" + "Three three. " * 30
    first, second, *_ = split_text(text, 230)
    assert first.endswith("Two two.\n\n")
    assert second.startswith("# A heading")
    assert next(iter(split_text("word " * 50, 33))).endswith(" ")
    assert next(iter(split_text("x" * 50, 33))) == "x" * 33


def pdf(text: str) -> bytes:
    stream = f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET".encode()
    bodies = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
    ]
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(bodies, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return (
        out
        + b"xref\n0 5\n0000000000 65535 f \n%strailer << /Size 5 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF"
        % (table, len(out))
    )


def epub(path: Path, chapter: str, package: str = "") -> None:
    """A book with a chapter before and one after `chapter`."""
    package = package or (
        '<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/"><metadata>'
        "<dc:title>The Lighthouse</dc:title></metadata><manifest>"
        '<item id="b" href="text/b%20two.xhtml"/><item id="a" href="text/a.xhtml"/></manifest>'
        '<spine><itemref idref="a"/><itemref idref="b"/></spine></package>'
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as book:
        book.writestr(
            "META-INF/container.xml",
            '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
            '<rootfile full-path="OEBPS/content.opf"/></rootfiles></container>',
        )
        book.writestr("OEBPS/content.opf", package)
        book.writestr("OEBPS/text/a.xhtml", "<html><body><p>It begins.</p></body></html>")
        book.writestr("OEBPS/text/b two.xhtml", chapter)


def test_documents_of_every_kind_are_read(tmp_path: Path) -> None:
    said = "The keeper is Dorin Vale."
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + said.encode())
    (tmp_path / "b.md").write_bytes(f"# Keeper\r\n\r\n{said} caf\xe9".encode("cp1252"))
    page = f"<title>Keepers</title><script>evil()</script><h1>Who</h1><p>{said}</p><table><tr><td>1</td></tr></table>"
    (tmp_path / "c.html").write_text(page)
    epub(tmp_path / "d.epub", f"<html><body><h2>Two</h2><p>{said}</p></body></html>")
    (tmp_path / "e.pdf").write_bytes(pdf(said))
    (tmp_path / "f.txt").write_text(said, "utf-16")
    asked = {"question": "Who?", "answer": "Dorin Vale", "evidence": said}
    ask(
        tmp_path,
        *(
            {"document": f"{name}", **asked}
            for name in ("a.txt", "b.md", "c.html", "d.epub", "e.pdf", "f.txt")
        ),
    )
    rows, statistics = built(tmp_path, tmp_path / "out")
    assert statistics.verbatim == 6
    texts = {next(iter(row.input_files)): next(iter(row.input_files.values())) for row in rows}
    assert set(texts) == {"a.txt", "b.txt", "Keepers.txt", "The_Lighthouse.txt", "e.txt", "f.txt"}
    assert "café" in texts["b.txt"]
    assert "\r" not in texts["b.txt"]
    assert "evil" not in texts["Keepers.txt"]
    assert "# Who" in texts["Keepers.txt"]
    assert texts["The_Lighthouse.txt"].index("It begins") < texts["The_Lighthouse.txt"].index(said)


def test_documents_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("The keeper is Dorin Vale.")
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.4 nothing")
    (tmp_path / "broken.epub").write_bytes(b"PK nothing")
    bomb = (
        '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><package>&b;</package>'
    )
    epub(tmp_path / "entities.epub", "", bomb)
    epub(tmp_path / "large.epub", "<p>" + "x" * (65 * 2**20) + "</p>")
    asked = {"question": "Who?", "answer": "Dorin Vale"}
    names = ("good.txt", "empty.txt", "broken.pdf", "entities.epub", "large.epub", "absent.txt")
    ask(tmp_path, *({"document": name, **asked} for name in names))
    rows, statistics = built(tmp_path, tmp_path / "out")
    assert len(rows) == 1
    reasons = {one["name"]: one["reason"] for one in statistics.unread}
    assert set(reasons) == {"empty.txt", "broken.pdf", "broken.epub", "entities.epub", "large.epub"}
    assert reasons["empty.txt"] == "it is empty"
    assert "larger than 64 MiB" in reasons["large.epub"]
    assert "Entit" in reasons["entities.epub"], "an entity is never expanded"
    assert statistics.left_out["its document absent.txt does not exist"] == 1
    assert sum(statistics.left_out.values()) == 5


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "Line 2 of questions.jsonl is not JSON"),
        ("[]", "has to be a JSON object"),
        ("\udcff", "Line 2 of questions.jsonl is not UTF-8 text"),
        ({"question": "Q?", "answer": "A"}, "names no document"),
        ({"document": "a.txt", "answer": "A"}, "has no question"),
        ({"document": "a.txt", "question": "Q?", "answer": " "}, "has no answer"),
        ({"document": "a.txt", "question": "Q?", "answer": {"a": 1}}, "answer of line 2 has to be a text"),
        ({"document": "a.txt", "question": "Q?", "answer": "A", "kind": "x"}, "unknown key 'kind'"),
        (
            {"document": "a.txt", "question": "Q?", "answer": "A", "type": "essay"},
            "the type 'essay'; the known types are",
        ),
        (
            {"document": "a.txt", "question": "Q?", "answer": "C", "options": ["x", "y"]},
            "not one of its options",
        ),
        (
            {"document": "a.txt", "question": "Q?", "answer": "x", "options": ["x"]},
            "1 options; a choice has 2",
        ),
        (
            {"document": "a.txt", "question": "Q?", "answer": "x", "options": ["x", "y", "x"]},
            "has the same option twice",
        ),
        ({"document": "a.txt", "question": "Q?", "answer": ["A", "B"], "type": "free_form"}, "has 2 answers"),
        ({"id": "1", "document": "a.txt", "question": "Q?", "answer": "A"}, "ids have to differ"),
    ],
)
def test_lines_that_are_not_a_question(tmp_path: Path, line: Any, said: str) -> None:
    (tmp_path / "a.txt").write_text("A text.")
    first = json.dumps({"document": "a.txt", "question": "What?", "answer": "text"})
    second = line if isinstance(line, str) else json.dumps(line)
    (tmp_path / "questions.jsonl").write_bytes(f"{first}\n{second}\n".encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=said):
        build_rows(tmp_path, None, tmp_path / "out", BuildOptions())
    assert not list((tmp_path / "out").iterdir())


def test_half_a_character_in_a_question_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A text.")
    ask(tmp_path, {"document": "a.txt", "question": "What \ud800?", "answer": "text"})
    (row,), _ = built(tmp_path, tmp_path / "out")
    assert row.problem_statement == "What \ufffd?"


def test_a_question_that_tells_or_cannot_be_answered_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The keeper is Dorin Vale.")
    questions = [
        {"question": "Who is Dorin Vale?", "answer": "Dorin Vale"},
        {"question": "Who?", "answer": "Dorin Vale", "evidence": "Dorin Vale, the keeper"},
        {"question": "Who?", "answer": ["Alba", "Boro"]},
    ]
    ask(tmp_path, *({"document": "a.txt", **one} for one in questions))
    with pytest.raises(DataError, match="No row could be made") as said:
        build_rows(tmp_path, None, tmp_path / "out", BuildOptions())
    assert "1: its answer is in the question" in str(said.value)
    assert "1: its evidence is not in its documents" in str(said.value)
    assert "1: its answer is not in its documents" in str(said.value)
    assert not list((tmp_path / "out").iterdir())


def test_answers_are_found_in_texts_without_blanks(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("日本の首都は東京です。", "utf-8")
    (tmp_path / "b.txt").write_text("東京には川があります。", "utf-8")
    asked = {"document": "a.txt", "type": "extraction", "answer": "東京"}
    ask(tmp_path, {**asked, "question": "首都はどこですか。"}, {**asked, "question": "東京はどこですか。"})
    (row,), statistics = built(tmp_path, tmp_path / "out")
    assert list(row.input_files) == ["a.txt"], "the other document has the answer"
    assert statistics.left_out == {"its answer is in the question": 1}
    assert not contains_words("東京です", "京都")


def test_domains_with_a_reward_of_their_own_do_not_change_the_reward(tmp_path: Path) -> None:
    (tmp_path / "chem").mkdir()
    (tmp_path / "chem" / "a.txt").write_text("The colour is deep blue.")
    asked = {"document": "chem/a.txt", "question": "Which colour?", "answer": "deep blue"}
    ask(tmp_path, {**asked, "type": "extraction"})
    (row,), _ = built(tmp_path, tmp_path / "out")
    score = score_row(
        TASK.scorer, "Deep blue", row.ground_truth, {"domain": row.domain, "qa_type": row.qa_type}
    )
    assert score.value == 1.0


def test_the_command_line_builds_and_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus(tmp_path / "books", 12)
    out = tmp_path / "data"
    assert main(["train", "data", "build", str(tmp_path / "books"), "--out", str(out), "--seed", "3"]) == 0
    said = capsys.readouterr().out
    assert "12 rows from 12 documents" in said
    assert said.strip().endswith(str(out / ROWS))
    assert main(["train", "data", "show", str(out), "--row", "q4"]) == 0
    said = capsys.readouterr().out
    assert "row q4, free_form" in said
    assert "gold answer (for the reward alone): " in said
    assert "documents/" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["build", "nowhere", "--out", "x"], "There is no folder nowhere"),
        (["build", ".", "--out", "x"], "There is no document with text"),
        (["build", ".", "--out", "/dev/null"], "The rows cannot be written to /dev/null"),
        (["build", ".", "--out", "x", "--part", "3"], "part must be at least 200, not 3"),
        (["show", "."], "There is no training data in"),
    ],
)
def test_the_command_line_names_the_mistake(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "data", *words]) == 2
    assert said in capsys.readouterr().err
