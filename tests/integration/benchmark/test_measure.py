"""`make measure`: its rows, scores and tables, and a measurement of scripted columns that is stopped and continued."""

from __future__ import annotations

import asyncio
import calendar
import dataclasses
import itertools
import json
import shutil
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import SUBMIT, bash, script_text, turn
from measure import __main__ as measure
from measure import measures, summary
from measure.columns import COLUMNS, VARIANTS, modes_of, task_of
from measure.computation import computation_rows
from measure.documents import document_rows
from measure.local_server import Server
from measure.peers_backend import PeerBackend
from measure.rows import (
    DATA,
    DEVELOPMENT,
    IFBENCH_SHA256,
    NUMBERS,
    REPEATED,
    SEED,
    RowsError,
    drawn,
    gsm8k_rows,
    ifbench_rows,
    rows_of,
)
from measure.scorer import check_file, score
from scripted_server import ScriptedServer

from llm_sandbox_nb.agent.prompts import load_prompts
from llm_sandbox_nb.agent.text_mode import load_text_form
from llm_sandbox_nb.benchmark.runner import plan
from llm_sandbox_nb.benchmark.statistics import mcnemar, wilson

# --- rows ---


def test_each_set_has_its_number_of_rows_and_no_row_is_for_tuning_too() -> None:
    for name, number in NUMBERS.items():
        rows = rows_of(name)
        assert len({row.id for row in rows}) == (0 if name == "ifbench" else number)
    assert NUMBERS["gsm8k"] >= 100
    assert NUMBERS["ifbench"] >= 60
    tuning = {row["problem_statement"] for row in gsm8k_rows("train")}
    assert {name: len(rows_of(name)) for name in DEVELOPMENT} == DEVELOPMENT
    problems = {row.problem_statement for name in ("computation", "gsm8k") for row in rows_of(name)}
    assert not problems & {row.problem_statement for name in DEVELOPMENT for row in rows_of(name)}
    assert not tuning & {row.problem_statement for row in rows_of("gsm8k")}
    assert "MIT License" in (DATA / "gsm8k.LICENSE").read_text()


def test_the_same_seed_gives_the_same_rows_and_another_gives_others() -> None:
    for make in (computation_rows, document_rows):
        assert make(SEED, 10) == make(SEED, 10)
        assert make(SEED, 10) != make(SEED + 1, 10)
    assert drawn([json.dumps(i) for i in range(99)], 5, "x") == drawn(
        [json.dumps(i) for i in range(99)], 5, "x"
    )


def test_computed_answers_are_those_that_a_second_way_gives() -> None:
    rows = {row["id"].partition("-")[0]: row for row in computation_rows(SEED, 6)}
    words = rows["product"]["problem_statement"].removeprefix("Compute ").rstrip(".").split(" * ")
    assert int(rows["product"]["ground_truth"]) == int(words[0]) * int(words[1])
    month_names = list(calendar.month_name)
    day, month, year = rows["weekday"]["problem_statement"].partition(" is ")[2].partition("?")[0].split()
    when = date(int(year), month_names.index(month), int(day))
    assert rows["weekday"]["ground_truth"] == when.strftime("%A")
    question = rows["letters"]["problem_statement"]
    letter, text = question.partition("letter ")[2][0], question.partition(": ")[2]
    assert int(rows["letters"]["ground_truth"]) == sum(one == letter for one in text)
    listed = [int(one) for one in rows["sorting"]["ground_truth"].split(", ")]
    assert all(first < second for first, second in itertools.pairwise(listed))


def test_documents_are_long_and_hold_their_answer() -> None:
    for row in document_rows(SEED, NUMBERS["files"]):
        text = "\n".join(row["input_files"].values())
        assert 9_000 < len(text) < 24_000, "about 3,000 to 6,000 tokens"
        if row["id"].startswith(("look-up", "note", "most")):
            assert row["ground_truth"] in text
        if row["id"].startswith("count"):
            state = row["problem_statement"].rpartition(" ")[2].rstrip("?")
            assert int(row["ground_truth"]) == text.count(f", {state}.")


def test_another_ifbench_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RowsError, match="cannot be read"):
        ifbench_rows(tmp_path / "none.jsonl")
    (tmp_path / "other.jsonl").write_text("{}\n")
    with pytest.raises(RowsError, match="SHA-256 differs"):
        ifbench_rows(tmp_path / "other.jsonl")
    assert len(IFBENCH_SHA256) == 64


# --- scores ---


@pytest.mark.parametrize(
    ("answer", "gold", "form", "right"),
    [
        ("First 3, then 9.\nANSWER: 12", "12", "number", 1.0),
        ("First 12.\n**ANSWER:** 3", "12", "number", 0.0),
        ("$1,200", "1200", "number", 1.0),
        ("", "12", "number", 0.0),
        (None, "12", "number", 0.0),
        ("The final count.\nAnswer: Friday.", "Friday", "word", 1.0),
        ("Not Friday", "Friday", "word", 0.0),
        ("10 March 2023 was a Friday.", "Friday", "word", 1.0),
        ("It is Friday or Sunday.", "Friday", "word", 0.0),
        ("ANSWER: [-3, 1, 20]", "-3, 1, 20", "list", 1.0),
        ("1, -3, 20", "-3, 1, 20", "list", 0.0),
        ("1072", "", "math", 1.0),
        ("1071", "", "math", 0.0),
    ],
)
def test_one_rule_scores_all_columns(answer: str | None, gold: str, form: str, right: float) -> None:
    assert score(answer, gold, form=form) == right


def test_files_of_an_example_count_before_the_text(tmp_path: Path) -> None:
    (tmp_path / "answer.txt").write_text("1072")
    assert score("nothing", "", {"answer.txt": str(tmp_path / "answer.txt")}, "math") == 1.0
    (tmp_path / "a").mkdir()
    first = {"a/b.txt": str(tmp_path / "a" / "b.txt"), "answer.txt": str(tmp_path / "answer.txt")}
    assert score("nothing", "", first, "math") == 1.0, "the first file may be in a subfolder"


def test_the_checks_of_the_first_tasks_tell_right_files_from_wrong_ones() -> None:
    table = "a,b\n" + "".join(f"{i},{i * i}\n" for i in range(8))
    assert check_file("csv", {"d.csv": table.encode()})
    assert not check_file("csv", {"d.csv": table.replace("49", "48").encode()})
    assert check_file("fix", {"calc.py": b"def area(w, h):\n    return w * h\n"})
    assert not check_file("fix", {"calc.py": b"def area(w, h):\n    return 12\n"})
    assert not check_file("plot", {"ages.png": b"not a picture"})
    assert not check_file("plot", {})


# --- tables ---


def line(item: str, right: int, **more: Any) -> dict[str, Any]:
    base = {"task": "gsm8k", "mode": "llm", "item": item, "right": right, "answered": 1, "stop": "answered"}
    measured = {
        "steps": 1,
        "tokens_in": 10,
        "tokens_out": 5,
        "calls": 0,
        "without_call": 0,
        "refused": 0,
        "repaired": 0,
    }
    times = {"wall": 1.0, "agent_cpu": 0.1, "model_cpu": None, "uses": [], "doubts": []}
    return {**base, **measured, **times, "key": f"{more.get('mode', 'llm')}/{item}", **more}


def test_the_summary_has_intervals_pairs_capabilities_and_doubts(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "tiny"
    for name, lines in {
        "vanilla": [line(str(i), int(i < 4)) for i in range(10)],
        "text": [
            line(str(i), int(i < 8), mode="sandbox", uses=["computation"], doubts=["x"] * (i > 7))
            for i in range(10)
        ]
        + [line("failed", 0, mode="sandbox", key="failed") | {"right": None}],
    }.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "measures.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    (folder / "machine.json").write_text(
        json.dumps(measure.machine() | {"threads": 2, "isolation": "process"})
    )
    summary.publish(tmp_path / "out", tmp_path / "rows", COLUMNS)
    found = summary.summarise(tmp_path / "rows")["models"]["tiny"]["columns"]
    cell = found["text"]["gsm8k"]
    assert (cell["n"], cell["right"]) == (10, 8)
    assert cell["interval"] == pytest.approx(wilson(0.8, 10), abs=1e-4)
    assert cell["against_vanilla"] | {"interval": 0} == {
        "n": 10, "difference": 0.4, "interval": 0, "better": 4, "worse": 0, "p": mcnemar(4, 0)
    }  # fmt: skip
    assert cell["uses"]["computation"] == 10
    assert cell["doubts"] == {"right": [0, 8], "wrong": [2, 2]}
    assert "against_vanilla" not in found["vanilla"]["gsm8k"]
    docs = tmp_path / "docs"
    for name in ("explanation", "images"):
        (docs / name).mkdir(parents=True)
    marks = "".join(
        f"<!-- table-{name}: begin -->\nold\n<!-- table-{name}: end -->\n"
        for name in ("measured", "files", "repeated", "tuned")
    )
    (docs / summary.PAGE).write_text(f"# Measured\n{marks}")
    page = summary.write(tmp_path / "out", docs).read_text()
    assert "measured on 10 of 100 | 80% (" in page
    assert "| llm-in-sandbox 0.2.0 | not measured yet" in page
    assert "These sets are not measured yet with this model: `ifbench`, " in page
    assert "old" not in page
    assert (docs / summary.PLOT).read_text().count("<rect") == 2


def test_the_page_has_the_tables_of_its_data(tmp_path: Path) -> None:
    docs = Path(__file__).parents[3] / "docs"
    copy = shutil.copytree(
        docs, tmp_path / "docs", ignore=lambda folder, names: {n for n in names if n.endswith("png")}
    )
    summary.rewrite(copy)
    for name in (summary.PAGE, summary.PLOT):
        assert (copy / name).read_text() == (docs / name).read_text(), "call summary.rewrite"


# --- a measurement ---

SCRIPT = script_text(turn(bash("echo 4 > output/answer.txt")), SUBMIT)
PEER = """
import json, pathlib, sys
given = json.load(sys.stdin)
assert given["temperature"] == 0.2 and given["steps"] == 12 and given["api_base"] == "http://peer/v1"
folder = pathlib.Path(given["folder"]) / "copied"
folder.mkdir()
(folder / "answer.txt").write_text("{answer}")
calls = [{{"tool": "execute_bash", "arguments": {{"command": "python3 -c 'print(6 * 7 / 2)'"}}}}]
counts = {{"requests": 2, "prompt_tokens": 30, "completion_tokens": 4}}
print("noise")
print(json.dumps({{"text": "", "submitted": True, "calls": calls, "without_call": 1, "wall": 1.5, **counts}}))
"""


def measured(out: Path, server: ScriptedServer, *words: str) -> int:
    given = ["--model", "scripted", "--api-base", server.url, "--isolation", "process", "--out", str(out)]
    docs = out.parent / "docs"
    for name in ("explanation", "images"):
        (docs / name).mkdir(parents=True, exist_ok=True)
    (docs / summary.PAGE).write_text(
        "".join(
            f"<!-- table-{name}: begin --><!-- table-{name}: end -->"
            for name in ("measured", "files", "repeated", "tuned")
        )
    )
    return measure.main([*given, "--docs", str(docs), *words])


def test_rows_at_the_same_time_share_the_cpu_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([(0.0, 100.0), (1.0, 110.0), (3.0, 130.0), (4.0, 135.0), (9.0, 150.0)])
    monkeypatch.setattr(measures.Clock, "_now", lambda _: next(now))
    clock = measures.Clock()
    clock.start("a")
    clock.start("b")
    assert clock.stop("a") == (1.0 + 1.0, 10.0 + 10.0)
    clock.start("c")
    assert clock.stop("b") == (1.0 + 1.0 + 2.5, 10.0 + 5.0 + 7.5)


def test_a_measurement_continues_where_it_was_stopped(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with ScriptedServer(SCRIPT) as server:
        words = ("--columns", "vanilla,native,text", "--rows", "gsm8k,files")
        assert measured(out, server, *words, "--limit", "1") == 0
        asked = len(server.requests)
        assert measured(out, server, *words, "--limit", "1") == 0
        assert len(server.requests) == asked, "nothing is done twice"
        assert measured(out, server, "--columns", "text", "--rows", "gsm8k", "--limit", "2") == 0
    found = json.loads((tmp_path / "docs" / summary.DATA).read_text())["models"]["scripted"]
    text = found["columns"]["text"]["gsm8k"]
    assert (text["n"], text["steps"], text["calls"]) == (2, 2.0, 2.0)
    assert found["columns"]["vanilla"]["gsm8k"]["no_answer"] == 1
    assert found["places"]["native"]["files"]["n"] == found["places"]["native"]["prompt"]["n"] == 1
    prompts = [request.body["messages"] for request in server.requests]
    assert sum("Shipment APR-024" in json.dumps(one) for one in prompts) == 5, (
        "in the prompt of vanilla, and of two columns twice"
    )
    sampling = {
        (one.body["temperature"], one.body["max_tokens"], one.body["top_k"]) for one in server.requests
    }
    assert sampling == {(0.2, 512, 20)}


def test_published_rows_are_not_asked_again_on_another_machine(tmp_path: Path) -> None:
    words = ("--columns", "vanilla", "--rows", "gsm8k")
    with ScriptedServer(SCRIPT) as server:
        assert measured(tmp_path / "first", server, *words, "--limit", "1") == 0
        shutil.rmtree(tmp_path / "first")
        assert measured(tmp_path / "second", server, *words, "--limit", "2") == 0
        assert len(server.requests) == 2
        assert measured(tmp_path / "third", server, *words, "--limit", "2", "--again") == 0
        assert len(server.requests) == 4, "as a reader does who doubts the published rows"
    (published,) = (tmp_path / "docs" / summary.ROWS).rglob("vanilla.jsonl")
    lines = [json.loads(one) for one in published.read_text().splitlines()]
    assert [line["item"] for line in lines] == sorted(row.id for row in rows_of("gsm8k")[:2])
    assert (tmp_path / "docs" / summary.PAGE).read_text().count("measured on 2 of 100") == 1


def test_a_row_that_is_only_scored_again_keeps_its_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--columns", "vanilla", "--rows", "gsm8k", "--limit", "1")
    with ScriptedServer(SCRIPT) as server:
        assert measured(tmp_path / "out", server, *words) == 0
        monkeypatch.setattr("llm_sandbox_nb.benchmark.runner.scorer_digest", lambda *_: "another scorer")
        assert measured(tmp_path / "out", server, *words, "--workers", "2") == 0
        assert len(server.requests) == 1
    lines = (tmp_path / "out" / "scripted" / "vanilla" / measures.FILE).read_text().splitlines()
    first, second = map(json.loads, lines)
    assert second == first
    assert first["agent_cpu"] > 0


def test_variants_differ_from_text_mode_in_one_part(tmp_path: Path) -> None:
    plain = task_of("first", VARIANTS["text"], tmp_path).prompts
    assert plain == load_prompts()
    for name, column in VARIANTS.items():
        prompts = task_of("first", column, tmp_path).prompts
        if column.form:
            first, second = (dataclasses.asdict(load_text_form(one.text_form)) for one in (plain, prompts))
            assert {key for key in first if first[key] != second[key]} == set(column.form), name
        assert {key for key in column.prompts if getattr(plain, key) == getattr(prompts, key)} == set(), name


def test_tuning_uses_the_rows_for_tuning_and_a_table_of_its_own(tmp_path: Path) -> None:
    with ScriptedServer(SCRIPT) as server:
        words = (
            "--tuning",
            "--columns",
            "text,guesses-count",
            "--rows",
            "computation-train",
            "--limit",
            "1",
        )
        assert measured(tmp_path / "out", server, *words) == 0
    page = (tmp_path / "docs" / summary.PAGE).read_text()
    assert "| text mode as it is | 1 | 0%" in page
    assert "### scripted, tuning\n\n| |" in page
    assert "| an error is answered like a result | not measured yet" in page
    assert "All rows: not measured yet" in page


def test_repeated_tasks_are_done_several_times_by_text_mode_alone(tmp_path: Path) -> None:
    with ScriptedServer(script_text(turn(bash("echo '2|3' > output/answer.txt")), SUBMIT)) as server:
        assert measured(tmp_path / "out", server, "--columns", "vanilla,text", "--rows", "readme") == 0
        assert len(server.requests) == 2 * REPEATED["readme"], "by text mode, with two replies each"
    page = (tmp_path / "docs" / summary.PAGE).read_text()
    assert "### scripted, readme: 20 times each" in page
    assert "| strawberry | 0 of 20 (0% to 16%) | 20 of 20 | " in page
    assert "| `submitted: 2/3` (20) |" in page
    assert "`readme`" not in page, "it is no set of the other tables"


def test_wrong_words_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        measure.arguments(["--model", "x", "--columns", "vanila"])
    assert "there is no 'vanila'; known are vanilla" in capsys.readouterr().err
    assert measure.main(["--model", str(tmp_path / "none.gguf"), "--out", str(tmp_path / "out")]) == 2
    assert "none.gguf" in capsys.readouterr().err


def peer_row(folder: Path, program: str) -> tuple[Any, dict[str, Any]]:
    row = rows_of("computation")[0]
    (folder / "peer.py").write_text(program.replace("GOLD", row.ground_truth))
    (item,) = plan([(task_of("computation"), [row])], modes_of(COLUMNS["mini-swe-agent"], "computation"))

    async def attempt() -> Any:
        python, program = Path(sys.executable), folder / "peer.py"
        async with PeerBackend(python, program, folder, Server("m", "http://peer/v1"), "image") as backend:
            return (await backend.attempt(item))[0]

    result = asyncio.run(attempt())
    return result, measures.measures_of(folder, result, (0.0, None))


@pytest.mark.parametrize(("answer", "right"), [("GOLD", 1), ("no number", 0)])
def test_a_row_of_a_peer_is_scored_and_counted_like_all(tmp_path: Path, answer: str, right: int) -> None:
    result, line = peer_row(tmp_path, PEER.format(answer=answer))
    assert (result.score, result.stop_reason, line["right"]) == (right, "submitted", right)
    assert (line["steps"], line["tokens_in"], line["tokens_out"], line["without_call"]) == (2, 30, 4, 1)
    assert line["uses"] == ["computation"]


def test_a_peer_that_dies_is_an_error_not_a_wrong_answer(tmp_path: Path) -> None:
    result, line = peer_row(tmp_path, "import sys\nsys.exit('no engine')")
    assert (result.error_kind, line["right"]) == ("error", None)
    assert "no engine" in result.error
