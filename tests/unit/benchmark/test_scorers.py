"""Scorers, with each trap of the paper's package as a test."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import CAMPAIGN, eventually, examples, own_mark, processes_with, run, size, until

from llm_sandbox_nb.benchmark.ifbench import follows, ifbench, loose_variants
from llm_sandbox_nb.benchmark.math_scorer import math_equal, stated_mathematics
from llm_sandbox_nb.benchmark.multiple_choice import find_letter
from llm_sandbox_nb.benchmark.rows import DataError, Row, make_row
from llm_sandbox_nb.benchmark.scorers import score_row
from llm_sandbox_nb.benchmark.scoring_pool import Scoring
from llm_sandbox_nb.benchmark.text_scorers import exact, letter, rouge_l, set_f1

DATA = Path(__file__).parents[2] / "data"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("C", "C"), ("c", "C"), ("**B**", "B"), ("(a)", "A"), ("`D`.", "D"), ("\\boxed{D}", "D"),
        ("\\boxed{\\text{B}}", "B"), ("so \\boxed{A}, no: \\boxed{B}", "B"), ("$\\boxed{(C)}$", "C"),
        ('"answer": "C"', "C"), ('{"answer": "C"}', "C"), ("answer: d", "D"), ("Answer: $C$", "C"),
        ("The correct answer is **(E)**.", "E"), ("The correct option is C", "C"), ("Final answer: B\n", "B"),
        ("(C) because A is wrong", "C"), ("Answer: (C) because A is wrong", "C"), ("Answer: A because B is wrong", "A"),
        ("C. CC(=O)O", "C"), ("C) foo", "C"), ("B\nbecause of B-cells", "B"), ("Answer: A. No. Answer: B", "B"),
        ("<think>The answer is A</think>B", "B"), ("J", "J"), ("I got B. Actually, the answer is D.", "D"),
        ("Is C the answer? No, D is the answer.", "D"),
        ("**Answer:** C", "C"), ("**Answer:** **C**", "C"), ("**Answer:**\nC", "C"), ("**Answer**: C", "C"),
        ("The answer is: C", "C"), ("The correct answer is:\n\n**C**", "C"), ("Answer: \\(C\\)", "C"),
        ("Answer: \\[\\boxed{C}\\]", "C"), ("option C", "C"), ("**Option C**", "C"), ("Option (C).", "C"),
        ("The answer is $\\mathbf{C}$", "C"), ("The answer is $\\mathbf{\\text{C}}$.", "C"), ("Answer: 'C'", "C"),
        ("**Answer: c. benzene**", None), ("**Answer: (c)**", "C"), ("The correct one is (C).", "C"),
        ("A. too small\nB. too large\nC. fits\n\n**Answer:** C", "C"), ("A) Rhine\nB) Nile\n\nThe answer is: B", "B"),
        ("Answer: C\n\nA. too small\nB. too large", "C"), ("The answer is C.\n\nC", "C"), ("**Answer:** C (C)", "C"),
        ("Answer: C, I think", "C"), ("Answer: C; A is wrong", "C"), ("C. A mixture of both", "C"),
        ("C. CC(N)C(O)C", "C"), ("C. cannot be determined", "C"), ("A. False", "A"),
        ("(C)\n\nA good reason is that it fits", "C"), ("Answer: C. A mixture", "C"),
        ("C) Benzene\n\nWhy not the others:\nA) is a ketone\nB) is an acid", "C"),
        ("C. Benzene\n\n- A: ketone\n- B: acid", "C"), ("(C)\n\n(A) is wrong", "C"), ("D. Both (A) and (B)", "D"),
        ("B. Antibodies block the channel (A)", "B"), ("C. B > A > C", "C"), ("The answer is C. B > A > C", "C"),
        ("The answer is D: A and C", "D"), ("Answer: C (A and B are wrong)", "C"),
    ],
)  # fmt: skip
def test_a_stated_letter_is_found(text: str, expected: str | None) -> None:
    assert find_letter(text) == expected


@pytest.mark.parametrize(
    "text",
    ["N/A", "n/a", "This is a guess", "A guess", "I think so", "The answer is a guess", "Answer: A guess", "Vitamin C",
     "The answer is not A", "A or B", "Answer: A or B", "Answer: A, B", "answer is B/C", "A. or B.", "ABCD", "K", "",
     "\\boxed{12}", "Answer: N/A", "I cannot tell", "Answer: B-cells", "none of A, B, C", "\\boxed{A, B}",
     "Answer: Ash", "A" * 1000, "42", "The answer is B.\n\nC", "Answer: C\n\nA", "The answer is C. Wait, no.",
     "Answer: A B C D", "Answer: A; B; C", "Answer: (A) (B) (C)", "A.B.C.D", "(A)(B)(C)(D)", "A | B", "A B C D",
     "Answer: A | B", "Answer: **A** **B**", "Answer: $\\mathbf{A}$ or $\\mathbf{B}$", "Answer: A, B, and C",
     "A. no\nB. no\nC. yes", "A. 12\nB. 13\nC. 14\nD. 15\n\nI cannot decide.", "A\nB\nC",
     "Option A: no\nOption B: yes", "- **A** no\n- **B** yes", "(A) is wrong because it is small; (C) fits",
     "A is wrong", "(A) is not it", "A) is clearly incorrect.", "**(A)** is wrong", "Option A is wrong",
     "option C is one of several", "The answer is (B) and (D)", "(A) red (B) blue (C) green", "A. B. C. D.",
     "**Answer:** a guess", "**Answer:** A guess", "*Answer: a guess*"],
)  # fmt: skip
def test_no_letter_is_made_out_of_what_states_none(text: str) -> None:
    assert find_letter(text) is None


def test_letters_beyond_the_options_are_none() -> None:
    assert find_letter("J", 10) == "J"
    assert find_letter("E", 4) is None
    assert score_row("letter", "E", "A", {"options": ["w", "x", "y", "z"]}).detail == "unparsable"


def labelled(name: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (DATA / name).read_text("utf-8").splitlines()]
    assert len(rows) >= 200
    assert len({json.dumps(row) for row in rows}) == len(rows)
    return rows


def test_letters_of_labelled_answers_are_never_wrong_and_seldom_missed() -> None:
    """A letter that the text does not state counts as wrong, whatever the label is."""
    rows = labelled("letters.jsonl")
    found = [(find_letter(row["text"]), row["letter"], row["text"]) for row in rows]
    stated = [one for one in found if one[1] is not None]
    assert len(stated) >= 120
    assert len(found) - len(stated) >= 60
    assert [one for one in found if one[0] not in (None, one[1])] == []
    missed = [one for one in stated if one[0] is None]
    assert len(missed) <= 0.05 * len(stated), missed


@pytest.mark.parametrize(
    "part",
    ["answer is ", "(A", "(A) ", "A. ", "A\n", "answer: C ", "answer: A, ", "answer:", " ", "\n", "*", "\\boxed{", "_",
     "\\text{", "\\text ", "Answer: C" + " " * 500, "option ", "correct ", "C, ", "C C ", ",(",
     "<answer>", "<answer>C</answer>", "C is correct. ", "I choose C. ", "Therefore, C. ", "if the answer is C ",
     "答案", "it is ", "C\n", "wait "],
)  # fmt: skip
def test_the_time_for_a_hostile_answer_grows_with_its_length_only(part: str) -> None:
    for before in ("", "C. ", "answer is ", "Answer: C"):
        started = time.process_time()
        find_letter(before + part * (size(30_000, 100_000) // len(part)) + "x")
        assert time.process_time() - started < 2, before


@given(st.text(max_size=80))
def test_any_text_has_one_letter_or_none(text: str) -> None:
    found = find_letter(text)
    assert found is None or found in "ABCDEFGHIJ"


def test_a_wrong_letter_an_unparsable_and_a_missing_one_are_told_apart() -> None:
    assert letter("B", "A").value == 0
    assert letter("N/A", "A").detail == "unparsable"
    assert score_row("letter", " \n", "A", {}).detail == "no answer"
    assert letter("A", "banana").value is None


def test_exact_set_f1_and_rouge() -> None:
    assert exact(" Forty  Two ", "forty two").value == 1
    assert exact("forty", "forty two").value == 0
    assert set_f1("A, C", "C;A").value == 1
    assert set_f1("Answer: a, b", "b, c").value == 0.5
    assert set_f1("A, B, C, D", "A").value == 0.4
    assert set_f1("x", "y").value == 0
    assert set_f1("x", " ").value is None
    assert set_f1("The correct options are A, B and D.", "A, B, D").value == 1
    assert set_f1("options, futures", "options, futures").value == 1
    assert rouge_l("the cat sat", "the cat sat").value == 1
    assert rouge_l("running cats", "run cat").value == 1  # stemmed
    assert rouge_l("a b c d", "a c").value == pytest.approx(2 * 0.5 * 1 / 1.5)
    assert rouge_l("x", "y").value == 0


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [("\\boxed{588}", "588", 1), ("588", "588", 1), ("first \\boxed{1} then \\boxed{588}", "588", 0),
     ("first \\boxed{1}, wait: \\boxed{588}", "588", 1), ("\\boxed{1}. Final answer: \\boxed{588}", "588", 1),
     ("5!", "120", 1), ("5!", "5", 1), ("5!", "24", 0),
     ("\\boxed{588} or \\boxed{589}", "588", 0), ("\\boxed{\\frac{1}{2}}", "0.5", 1),
     ("\\boxed{\\frac{\\sqrt{8}}{2}}", "\\sqrt{2}", 1),
     ("<think>\\boxed{588}</think>\\boxed{3}", "588", 0), ("no idea", "588", 0), ("\\boxed{}", "588", 0),
     ("x" * 5000 + " 588", "588", 0)],
)  # fmt: skip
def test_mathematics(answer: str, gold: str, expected: float) -> None:
    assert math_equal(answer, gold).value == expected


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("y", "y'", 0.0),
        ("\\boxed{y'=3x}", "y=3x", 0.0),
        ("f''(x)=2x", "f'(x)=2x", 0.0),
        ("$f'(x)=2\\cdot x + 1$", "f'(x)=1+2x", 1.0),
        ("y^{\\prime}=1+x", "y' = x + 1", 1.0),
        ("The answer is y'.", "y'", 1.0),
        ("y' + x", "x + y'", 1.0),
        ("The answer is 'x+1'.", "1+x", 1.0),
        ("The answer is 'y'.", "y", 1.0),
        ("x$y", "x", 0.0),
        ("\\boxed{7 $ 8}", "7", 0.0),
        ("$x+1", "1+x", 1.0),
        ("\\boxed{125\\textnormal{ miles}}", "$125$ miles", 1.0),
        ("7 miles", "$7$ $miles$", 1.0),
        ("\\boxed{$10$,$200$}", "10200", 0.0),
        ("\\boxed{$10$,$200$}", "10, 200", 1.0),
    ],
)
def test_a_formula_of_which_only_a_part_is_read_is_not_that_part(
    answer: str, gold: str, expected: float
) -> None:
    """math-verify drops a prime, and reads a text with a dollar sign only before or after the sign."""
    assert math_equal(answer, gold).value == expected


def test_mathematics_of_labelled_answers_is_never_wrong_and_seldom_missed() -> None:
    rows = labelled("math.jsonl")
    said = [(math_equal(row["text"], row["gold"]).value == 1, row) for row in rows]
    stated = [one for one in said if one[1]["states_gold"]]
    assert min(len(stated), len(said) - len(stated)) >= 100
    assert [row for equal, row in said if equal and not row["states_gold"]] == []
    missed = [row for equal, row in stated if not equal]
    assert len(missed) <= 0.05 * len(stated), missed


@pytest.mark.parametrize(
    "part",
    ["the answer is ", "answer: 2, ", "5 is the answer, ", "is ", "(see ", " (see x", "\\[", "$$", "$",
     "if the answer is ", "1 ", "1 m ", " or ", "a ", "**", "\n",
     "> ", "\\text{", "not ", "{", "<answer>", "answer to "],
)  # fmt: skip
def test_the_time_to_find_mathematics_in_a_hostile_answer_grows_with_its_length_only(part: str) -> None:
    long = part * (size(30_000, 100_000) // len(part))
    for text in (long, f"answer is {long}x"):
        started = time.process_time()
        stated_mathematics(text)
        assert time.process_time() - started < 2


def number_in_some_form(value: Fraction, chance: random.Random) -> str:
    a, b, k = value.numerator, value.denominator, chance.randint(2, 5)
    forms = [
        f"\\frac{{{a}}}{{{b}}}",
        f"{a}/{b}",
        f"\\frac{{{a * k}}}{{{b * k}}}",
        f"\\boxed{{\\dfrac{{{a}}}{{{b}}}}}",
    ]
    if b == 1:
        forms += [str(a), f"\\boxed{{{a}}}", f"{a}.0", f"\\boxed{{x = {a}}}"]
    elif 10**6 % b == 0:
        forms += [f"{float(value):.6f}".rstrip("0")]
    return chance.choice(forms)


NUMBERS = st.builds(Fraction, st.integers(-40, 400), st.sampled_from([1, 2, 3, 4, 5, 7, 8]))
MORE = st.just(Fraction()) | st.builds(Fraction, st.integers(1, 9), st.sampled_from([1, 2, 3]))


@settings(max_examples=examples(500))
@given(NUMBERS, MORE, st.randoms(use_true_random=False))
def test_mathematics_agrees_with_exact_arithmetic(
    value: Fraction, more: Fraction, chance: random.Random
) -> None:
    answer, gold = number_in_some_form(value + more, chance), number_in_some_form(value, chance)
    assert (math_equal(answer, gold).value == 1.0) == (more == 0), (answer, gold)


def some_text(chance: random.Random) -> str:
    words = ["time", "noon", "Level", "apple", "and", "he", "she", "42", "(a)", '"quoted"', "*bold*", "- point", "A)",
             "😀", "Paris", "kayak", "the", "a", "stats", "?", "!", "~", "2024-01-02", "...", ":"]  # fmt: skip
    lines = []
    for _ in range(chance.randint(1, 6)):
        line = " ".join(chance.choice(words) for _ in range(chance.randint(1, 12)))
        lines.append(line + chance.choice([".", "!", "?", "", ".*"]))
    return chance.choice(["\n", "\n\n", " "]).join(lines)


def test_constraints_agree_with_the_public_checkers() -> None:
    from if_verifiable.common import evaluate_instructions
    from if_verifiable.ifbench.instructions_registry import INSTRUCTION_DICT

    chance, compared, held, unscored, refused = random.Random(58), 0, 0, set(), set()
    each = 14 if CAMPAIGN else 5
    for identity in sorted(INSTRUCTION_DICT):
        for number in range(each):
            random.seed(number)  # checkers draw the arguments that are not given
            text = some_text(chance)
            arguments = arguments_for(identity)
            try:
                ours = follows(text, identity, arguments, "Write something.")
            except LookupError:
                unscored.add(identity)
                continue
            random.seed(number)
            try:
                theirs = evaluate_instructions(
                    text, [identity], [arguments], "Write something.", INSTRUCTION_DICT
                )[0]
            except (ValueError, TypeError, AttributeError, LookupError, ZeroDivisionError):
                assert (
                    not ours
                )  # a checker that breaks on a text not in its form: we say that it is not followed
                refused.add(identity)
                continue
            assert ours == theirs[0].loose_pass, (identity, text)
            compared, held = compared + 1, held + ours
    assert compared >= 36 * each
    assert 4 * each < held < compared - 4 * each
    assert len(unscored) <= 12
    assert len(refused) <= 8


def arguments_for(identity: str) -> dict[str, Any]:
    given: dict[str, dict[str, Any]] = {
        "repeat:repeat_change": {"prompt_to_repeat": "Write something."},
        "repeat:repeat_simple": {},
        "repeat:repeat_span": {"prompt_to_repeat": "Write something.", "n_start": 0, "n_end": 2},
        "ratio:overlap": {"reference_text": "time noon level apple", "percentage": 10},
    }
    return given.get(identity, {})


def test_there_are_the_eight_official_variants() -> None:
    from if_verifiable.common import get_loose_transformations

    text = "Sure!\n*one* two\nthree\nBye*"
    assert sorted(loose_variants(text)) == sorted(get_loose_transformations(text))
    assert len(loose_variants(text)) == 8
    assert "one two\nthree" in loose_variants(
        text
    )  # the paper's package lacks the three without asterisks and lines


def constraints(*names: str, **arguments: Any) -> str:
    return json.dumps({"instruction_id_list": list(names), "kwargs": [arguments for _ in names]})


def test_all_constraints_have_to_hold_for_some_variant() -> None:
    gold = constraints("format:no_whitespace")
    assert ifbench("Here you are:\n*all-one-word*", gold, {}).value == 1
    assert ifbench("two words", gold, {}).value == 0
    names = ["format:no_whitespace", "count:word_count_range"]
    both = json.dumps(
        {"instruction_id_list": names, "kwargs": [{"n": None}, {"min_words": 5, "max_words": 9}]}
    )
    assert ifbench("word", both, {}).detail == "not followed: count:word_count_range"
    assert ifbench("word", "", {"instruction_id_list": ["format:no_whitespace"], "kwargs": [{}]}).value == 1


@pytest.mark.parametrize("gold", ["", "{}", "[]", "not json", constraints("no:such")])
def test_constraints_that_cannot_be_checked_are_unscored_and_not_zero(gold: str) -> None:
    assert ifbench("word", gold, {}).value is None


@pytest.mark.parametrize(
    ("row", "answer", "gold", "value"),
    [({"domain": "math"}, "\\boxed{2}", "2", 1), ({"domain": "math_mini"}, "3", "2", 0),
     ({"domain": "chem"}, "N/A", "A", 0), ({"domain": "biomed"}, "(A)", "A", 1),
     ({"domain": "instruct_follow"}, "word", constraints("format:no_whitespace"), 1),
     ({"qa_type": "single_choice"}, "B", "B", 1), ({"qa_type": "multiple_choice"}, "A, B", "B, A", 1),
     ({"qa_type": "free_form"}, "the cat", "the cat", 1), ({"qa_type": "free_form"}, "\\boxed{0.5}", "1/2", 1),
     ({"qa_type": "free_form"}, "apples, pears", "apples, pears", 1),
     ({"qa_type": "single_choice"}, "K. mercury", "K", 1), ({"qa_type": "single_choice"}, "L. zinc", "K", 0),
     ({"qa_type": "multiple_choice"}, "A) tin, M) lead", "A, M", 1),
     # as the paper's package decides
     ({"qa_type": "multiple choice"}, "The answer is B", "B", 1), ({"qa_type": "Multiple Choice"}, "C", "B", 0),
     ({"qa_type": "multiple_choice_single_answer"}, "(B)", "B", 1), ({"qa_type": "multiple choice"}, "3", "3", 1),
     ({"qa_type": "multiple choice"}, "4", "3", 0), ({"qa_type": "multiple choice"}, "Ethanol", "ethanol", 1),
     ({"qa_type": "multiple choice"}, "A, B", "B, A", 1),
     ({"qa_type": "multiple_choice_multiple_answers"}, "A", "A", 1),
     ({"qa_type": "free-form"}, "0.50", "1/2", 1), ({"qa_type": "open_ended"}, "a cat", "the dog", 0),
     ({}, "3", "3", 1), ({}, "The answer is 3", "3", 1), ({}, "4", "3", 0), ({"qa_type": None}, "\\boxed{3}", "3", 1),
     ({"domain": "biomed_mini"}, "7", "7", 1), ({"domain": "Math"}, "2.0", "2", 1),
     ({"domain": "math documents", "qa_type": "free-form"}, "the cat", "the cat", 1)],
)  # fmt: skip
def test_training_tasks_are_routed(row: dict[str, str], answer: str, gold: str, value: float) -> None:
    assert score_row("routed", answer, gold, row).value == value


ROW = Row("1", "What?", "2")


@pytest.mark.parametrize(
    ("gold", "wrong"),
    [
        ("O+", "O-"),
        ("Na+", "Na"),
        ("B+", "B"),
        ("C#", "C"),
        ("C++", "C"),
        ("F", "F#"),
        (".5", "5"),
        ("5", ".5"),
    ],
)
def test_a_sign_at_the_end_or_a_point_at_the_beginning_is_part_of_an_answer(gold: str, wrong: str) -> None:
    for scorer in ("exact", "routed"):
        for form, answer in itertools.product(("{}", "**{}**.", "The answer is {}."), (gold, wrong)):
            scored = score_row(scorer, form.format(answer), gold, {"qa_type": "free_form"})
            assert scored.value == (answer == gold), (scorer, form, answer)


def test_scorers_have_a_process_that_can_be_killed(tmp_path: Path) -> None:
    own = tmp_path / "scorer.py"
    own.write_text(
        "import os, threading\n"
        "def score(answer, gold, **row):\n"
        "    print('hello'); os.write(1, b'noise')\n"
        "    if answer == 'hang': threading.Event().wait()\n"
        "    if answer == 'die': os._exit(3)\n"
        "    if answer == 'raise': raise RuntimeError('no')\n"
        "    odd = {'half': 0.5, 'two': 2, 'none': None, 'word': 'yes', 'nan': float('nan')}\n"
        "    return odd.get(answer, float(answer == gold))\n"
    )

    async def body() -> list[Any]:
        scores = []
        async with Scoring(2) as scoring:
            for one in ["2", "half", "hang", "die", "raise", "two", "none", "word", "nan", "2", None, " "]:
                scoring.deadline = 0.5 if one == "hang" else 100.0
                scores.append(await scoring.score(str(own), one, ROW))
                assert sum(worker._process is not None for worker in scoring._all) <= 1, "one at a time"
        return scores

    scores = run(body(), 120)
    assert [score.value for score in scores] == [1, 0.5, *[None] * 7, 1, 0, 0]
    assert "within 0.5 s" in scores[2].detail
    assert "died" in scores[3].detail
    assert "RuntimeError: no" in scores[4].detail
    assert "not between 0 and 1" in scores[5].detail


def test_half_a_character_in_an_id_is_replaced() -> None:
    assert make_row({"id": "a\ud800", "problem_statement": "?"}, 0).id == "a\ufffd"


def test_columns_may_have_the_names_of_a_scorers_parameters(tmp_path: Path) -> None:
    own = tmp_path / "scorer.py"
    own.write_text(
        "def score(answer, gold, **row):\n    return float(answer == gold and sorted(row) == ['id'])\n"
    )
    assert score_row(str(own), "4", "4", {"answer": "other", "gold": "other", "id": "a"}).value == 1.0


def test_a_scorer_may_say_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too much to keep is cut; what is too much to read is a failure of the scorer, and the next answer is scored."""
    own = tmp_path / "scorer.py"
    own.write_text(
        "from llm_sandbox_nb.benchmark.text_scorers import Score\n"
        "def score(answer, gold, **row):\n"
        "    return Score(1.0, int(answer) * 'x')\n"
    )

    async def body(*said: str) -> list[Any]:
        async with Scoring(deadline=30) as scoring:
            return [await scoring.score(str(own), one, ROW) for one in said]

    (long,) = run(body("3000000"), 60)
    assert (long.value, long.failed) == (1, False)
    assert 1000 <= len(long.detail) < 10_000
    monkeypatch.setattr("llm_sandbox_nb.benchmark.scoring_pool._MAX_REPLY_BYTES", 500)
    long, short = run(body("3000000", "3"), 60)
    assert (long.value, long.failed, long.detail) == (None, True, "the scorer's reply is too long")
    assert (short.value, short.detail) == (1, "xxx")


def test_ctrl_c_is_not_for_the_process_that_scores(tmp_path: Path) -> None:
    """A terminal and a kernel send it to the whole group; what is being scored then would look unscorable."""
    own = tmp_path / "scorer.py"
    own.write_text(
        "import os\n"
        "def score(answer, gold, **row):\n"
        "    return float(os.getpgrp() != int(gold) and os.getsid(0) == os.getpid())\n"
    )
    row = Row("r", "?", str(os.getpgrp()))

    async def body() -> Any:
        async with Scoring() as scoring:
            return await scoring.score(str(own), "x", row)

    assert run(body()).value == 1


def test_a_scorer_that_is_stopped_leaves_no_process(tmp_path: Path) -> None:
    own, mark = tmp_path / "scorer.py", own_mark()
    own.write_text(
        f"import subprocess\ndef score(answer, gold, **row):\n    subprocess.run(['sleep', '{mark}'])\n"
    )

    async def body() -> None:
        async with Scoring() as scoring:
            scored = asyncio.ensure_future(scoring.score(str(own), "x", ROW))
            await eventually(lambda: processes_with(mark), "the scorer's program has begun")
            scored.cancel()
            await eventually(lambda: not processes_with(mark), "the scorer's program has ended")

    run(body())


def test_a_scorer_that_hangs_ends_when_the_benchmark_is_killed(tmp_path: Path) -> None:
    own, pid = tmp_path / "scorer.py", tmp_path / "pid"
    own.write_text(
        "import os, pathlib\n"
        "def score(answer, gold, **row):\n"
        f"    pathlib.Path({str(pid)!r}).write_text(f'{{os.getpid()}}\\n')\n"
        "    while True: pass\n"
    )
    program = (
        "import asyncio, sys\n"
        "from llm_sandbox_nb.benchmark.rows import Row\n"
        "from llm_sandbox_nb.benchmark.scoring_pool import Scoring\n"
        "asyncio.run(Scoring().score(sys.argv[1], 'x', Row('r', '?', 'x')))\n"
    )
    benchmark = subprocess.Popen([sys.executable, "-c", program, str(own)])
    try:
        until(lambda: pid.exists() and pid.read_text().endswith("\n"), "the scorer has begun")
    finally:
        benchmark.kill()
        benchmark.wait()
    until(lambda: not Path(f"/proc/{int(pid.read_text())}").exists(), "the scorer has ended")


def test_a_formula_that_takes_for_ever_does_not_stop_the_rest() -> None:
    async def body() -> list[Any]:
        async with Scoring(deadline=5) as scoring:
            slow = await scoring.score("math", "\\boxed{9^{9^{9^{9^{9}}}}}", ROW)
            scoring.deadline = 60  # a new process imports sympy first, which takes long on a busy machine
            return [slow, await scoring.score("math", "\\boxed{2}", ROW)]

    slow, good = run(body(), 120)
    assert slow.value != 1
    assert good.value == 1


def test_rows_are_read_as_published() -> None:
    files = '{"a/b.txt": "x", "n": null}'
    record = {"id": 7, "problem_statement": "p", "ground_truth": "A", "input_files": files, "domain": "chem"}
    row = make_row(record | {"options": ["w"]}, 0)
    assert (row.id, row.input_files, row.domain, row.extra) == (
        "7",
        {"a/b.txt": "x"},
        "chem",
        {"options": ["w"]},
    )
    assert make_row({"problem_statement": "p", "input_files": ""}, 3).id == "3"
    assert make_row({"prompt": "p", "key": "k"}, 0, {"problem_statement": "prompt", "id": "key"}).id == "k"
    assert json.loads(make_row({"problem_statement": "p", "ground_truth": {"a": [1]}}, 0).ground_truth) == {
        "a": [1]
    }


@pytest.mark.parametrize(
    "record",
    [{}, {"problem_statement": ""}, {"problem_statement": " \n\t"},
     {"problem_statement": "p", "input_files": "{"}, {"problem_statement": "p", "input_files": [1]},
     *({"problem_statement": "p", "input_files": {name: "x"}} for name in ("/etc/x", "../x", "a/../../x", "", "a\0b")),
     {"problem_statement": "p", "input_files": {"a": 3}}],
)  # fmt: skip
def test_rows_that_cannot_be_used_say_why(record: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"Row 4|row 4"):
        make_row(record, 4)
