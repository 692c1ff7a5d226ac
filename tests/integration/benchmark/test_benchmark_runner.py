"""The runner: planted values, many at once, going on where it was, errors told apart, nothing given away."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import bash, script_text, turn
from benchmark_models import FunctionModel, calls, fails, says, turn_of
from support import eventually, own_mark, processes_with, run, until

from llm_sandbox_nb.analysis.load import load_runs
from llm_sandbox_nb.benchmark.attempt import HowToAsk
from llm_sandbox_nb.benchmark.item_pipeline import FatalError
from llm_sandbox_nb.benchmark.judge import Judge
from llm_sandbox_nb.benchmark.report import as_html, as_text, summary, tables
from llm_sandbox_nb.benchmark.results import FILE, Result, read_results, write_result
from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.runner import Runner, RunnerOptions, make_opener, plan
from llm_sandbox_nb.benchmark.statistics import Interval, bootstrap, mcnemar, passes, score_interval
from llm_sandbox_nb.benchmark.task import Task, load_task
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.model.contract import ModelSettings, Reply
from llm_sandbox_nb.model.model_names import make_model
from llm_sandbox_nb.model.retries import RetryPolicy

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "benchmark.md"
ROWS = [Row(f"q{n}", f"Question {n}: what is {n} plus {n}?", str(2 * n)) for n in range(6)]


def number_asked(messages: list[dict[str, Any]]) -> int:
    text = next(m["content"] for m in messages if m["role"] == "user")
    return int(text.partition("Question ")[2].partition(":")[0])


def planted(messages: list[dict[str, Any]]) -> Reply:
    """Vanilla: right on 0 and 1. In the sandbox: right on 0 to 4; one look, one answer, one submission."""
    number = number_asked(messages)
    if messages[0]["role"] != "system":
        return says(str(2 * number) if number < 2 else "no idea", prompt=50, completion=20)
    answer = 2 * number if number < 5 else 1
    turns = [
        calls("execute_bash", json.dumps({"command": f"echo {answer} > answer.txt"}), 100, 10),
        calls("submit", "{}", 140, 5, 1),
    ]
    return turns[turn_of(messages)]


def runner(out: Path, model: FunctionModel, **options: Any) -> Runner:
    how = HowToAsk(model, ModelSettings(), RetryPolicy(attempts=1))
    return Runner(how, make_opener("process"), RunnerOptions(out, **{"workers": 4} | options))


def items(modes: tuple[str, ...] = ("sandbox",), repeats: int = 1, rows: list[Row] = ROWS) -> Any:
    return plan([(load_task("demo"), rows)], modes, repeats)


def test_planted_values_come_out_exactly(tmp_path: Path) -> None:
    results = run(runner(tmp_path, FunctionModel(planted)).run(items(("sandbox", "llm"), 2)), 120)
    assert len(results) == 24
    cells, comparisons = tables(read_results(tmp_path))
    vanilla, sandbox = cells
    assert (vanilla["mode"], sandbox["mode"]) == ("llm", "sandbox")
    assert vanilla["score"] == 2 / 6
    assert sandbox["score"] == 5 / 6
    assert (sandbox["items"], sandbox["results"], sandbox["errors"]) == (6, 12, 0)
    assert (sandbox["turns_mean"], vanilla["turns_mean"]) == (2, 1)
    # Prompt 100, written 10 and 5, so 140 - 100 - 10 = 30 from the environment.
    assert sandbox["tokens_once_mean"] == 100 + 15 + 30
    assert sandbox["environment_share"] == 30 / 145
    assert sandbox["tokens_billed_mean"] == 100 + 10 + 140 + 5
    assert vanilla["tokens_once_mean"] == vanilla["tokens_billed_mean"] == 70
    assert sandbox["cost"] == pytest.approx(12 * 0.02)
    (compared,) = comparisons
    assert compared["delta"] == 3 / 6
    assert compared["token_ratio"] == pytest.approx(145 / 70)
    expected = bootstrap([0, 0, 1, 1, 1, 0])
    assert expected is not None
    assert (compared["delta_low"], compared["delta_high"]) == (expected.low, expected.high)
    text = as_text(summary(tmp_path))
    assert "Spent on demo/sandbox: 3,060 tokens as billed, $0.2400, " in text
    timeless = [part for part in text.split("\n\n") if not part.startswith("Spent")]
    assert "\n\n".join(timeless) in DOCUMENT.read_text("utf-8")
    groups = Counter(loaded.group for loaded in load_runs([tmp_path]).runs)
    assert groups == {"demo/sandbox": 12, "demo/llm": 12}


def test_the_report_is_complete_and_escaped(tmp_path: Path) -> None:
    run(runner(tmp_path, FunctionModel(planted)).run(items(("sandbox", "llm"), rows=ROWS[:2])), 120)
    write_result(tmp_path, Result("demo", "sandbox", "<b>", 0, error_kind="<script>", error="x"))
    found = summary(tmp_path)
    text = as_text(found)
    assert "Errors: 1 <script>" in text
    assert "sandbox - llm" in text
    page = as_html(tmp_path, found)
    assert "<script" not in page
    assert "<svg" in page
    assert page == as_html(tmp_path, found)


def test_many_are_under_way_at_once(tmp_path: Path) -> None:
    model = FunctionModel(planted, meet=100)
    rows = [Row(f"r{n}", ROWS[n % 6].problem_statement, ROWS[n % 6].ground_truth) for n in range(300)]
    results = run(runner(tmp_path, model, workers=300).run(items(("llm",), rows=rows)), 240)
    assert len(results) == 300
    assert model.most >= 100, "asked at the same time; else nobody would have got a reply"


def test_a_stopped_benchmark_resumes(tmp_path: Path) -> None:
    model = FunctionModel(planted)
    run(runner(tmp_path, model).run(items(rows=ROWS[:3])), 60)
    with (tmp_path / "demo" / "sandbox" / FILE).open("a") as file:
        file.write('{"task": "demo", "mode": "sand')  # torn by a crash
    asked = len(model.asked)
    results = run(runner(tmp_path, model).run(items()), 60)
    assert sorted(result.item for result in results) == ["q3", "q4", "q5"]
    assert len(model.asked) == asked + 6
    assert sorted(result.item for result in read_results(tmp_path)) == [row.id for row in ROWS]
    assert run(runner(tmp_path, model).run(items())) == []


def failing(kind: str, number: int) -> Any:
    def speak(messages: list[dict[str, Any]]) -> Reply:
        return fails(kind) if number_asked(messages) == number else planted(messages)

    return speak


@pytest.mark.parametrize("mode", ["sandbox", "llm"])
def test_errors_are_counted_and_tried_again_later(mode: str, tmp_path: Path) -> None:
    model = FunctionModel(failing("server", 1))
    run(runner(tmp_path, model).run(items((mode,))), 60)
    assert sum(number_asked(messages) == 1 for messages in model.asked) == 2  # two attempts
    (failed,) = [result for result in read_results(tmp_path) if result.error_kind]
    assert (failed.item, failed.error_kind, failed.score) == ("q1", "server", None)
    (cell,), _ = tables(read_results(tmp_path))
    assert cell["errors"] == 1
    assert summary(tmp_path)["errors"] == {"server": 1}
    assert run(runner(tmp_path, FunctionModel(planted), retry_errors=False).run(items((mode,)))) == []
    (mended,) = run(runner(tmp_path, FunctionModel(planted)).run(items((mode,))), 60)
    assert (mended.item, mended.score) == ("q1", 1.0)
    assert summary(tmp_path)["errors"] == {}


@pytest.mark.parametrize("mode", ["sandbox", "llm"])
def test_without_a_key_it_stops_early(mode: str, tmp_path: Path) -> None:
    model = FunctionModel(lambda messages: fails("authentication"))
    with pytest.raises(FatalError, match="fails with authentication"):
        run(runner(tmp_path, model, workers=2).run(items((mode,))), 60)
    assert len(model.asked) <= 2
    assert read_results(tmp_path) == []


def test_a_missing_key_is_found_before_a_sandbox_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    opened: list[str] = []

    def opener(task: Task, row: Row) -> Any:
        opened.append(row.id)
        return make_opener("process")(task, row)

    how = HowToAsk(make_model("openai/gpt-5"), ModelSettings(), RetryPolicy(attempts=1))
    with pytest.raises(FatalError, match=r"^No API key: "):
        run(Runner(how, opener, RunnerOptions(tmp_path)).run(items()), 60)
    assert (opened, read_results(tmp_path), list(tmp_path.rglob("journal.jsonl"))) == ([], [], [])


def test_a_missing_key_of_the_judge_is_found_before_the_model_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    model, judge = FunctionModel(planted), Judge(make_model("openai/gpt-5"), tmp_path / "judge")
    judged_task = replace(load_task("demo"), scorer="judge")
    one = Runner(HowToAsk(model), make_opener("process"), RunnerOptions(tmp_path), judge)
    with pytest.raises(FatalError, match=r"^No API key: "):
        run(one.run(plan([(judged_task, ROWS)], ("llm",))), 60)
    assert model.asked == []


@pytest.mark.parametrize(("isolation", "said"), [("docker", "."), ("bubblewrap", "needs isolation 'docker'")])
def test_without_an_engine_it_stops_early(isolation: str, said: str, tmp_path: Path) -> None:
    how = HowToAsk(FunctionModel(planted), ModelSettings())
    one = Runner(how, make_opener(isolation, image="no-such/image:1"), RunnerOptions(tmp_path))
    with pytest.raises(FatalError, match=said):
        run(one.run(items()), 60)


def test_ids_lead_nowhere(tmp_path: Path) -> None:
    rows = [
        Row(name, ROWS[0].problem_statement, "0")
        for name in ("../../../up", "/etc/x", "a/b", "..", "\0x", "ü" * 300, "\U00020000" * 300)
    ]
    results = run(runner(tmp_path / "out", FunctionModel(planted)).run(items(("llm",), rows=rows)), 60)
    assert len(results) == 7
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    assert all((tmp_path / "out" / result.run / "journal.jsonl").is_file() for result in results)


def test_a_limit_is_not_an_error_and_the_answer_counts(tmp_path: Path) -> None:
    def endless(messages: list[dict[str, Any]]) -> Reply:
        number = number_asked(messages)
        return calls(
            "execute_bash",
            json.dumps({"command": f"echo {2 * number} > answer.txt"}),
            number=turn_of(messages),
        )

    run(runner(tmp_path, FunctionModel(endless)).run(items(rows=ROWS[:1])), 60)
    (result,) = read_results(tmp_path)
    assert (result.stop_reason, result.error_kind, result.score, result.turns) == ("steps", "", 1.0, 20)
    (cell,) = summary(tmp_path)["cells"]
    assert (cell["at_limit"], cell["score_low"]) == (1, None), "one item has no interval"
    assert "stopped at a limit" in as_text(summary(tmp_path))


def test_cancelling_leaves_nothing_behind(tmp_path: Path) -> None:
    mark = own_mark()
    hang = calls("execute_bash", json.dumps({"command": f"sleep {mark}"}))

    async def body() -> None:
        work = asyncio.create_task(runner(tmp_path, FunctionModel(lambda messages: hang)).run(items()))
        await eventually(lambda: len(processes_with(mark)) >= 4)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    run(body(), 60)
    assert read_results(tmp_path) == []
    until(lambda: not processes_with(mark))


DOCUMENTS = Row("d", "Question 3: which word?", "pear", input_files={"notes/a.txt": "The word is pear.\n"})


def test_documents_are_files_or_stand_in_the_prompt(tmp_path: Path) -> None:
    def look(messages: list[dict[str, Any]]) -> Reply:
        if messages[0]["role"] != "system":
            return says("pear")
        look_in = json.dumps({"command": "cp input/notes/a.txt answer.txt; ls -R ."})
        return [calls("execute_bash", look_in), calls("submit", "{}", number=1)][turn_of(messages)]

    model = FunctionModel(look)
    results = run(
        runner(tmp_path, model).run(items(("sandbox", "sandbox-prompt", "llm"), rows=[DOCUMENTS])), 60
    )
    answers = {result.mode: result.answer for result in results}
    assert answers == {"sandbox": "The word is pear.", "sandbox-prompt": None, "llm": "pear"}
    first = [str(messages) for messages in model.asked if turn_of(messages) == 0]
    assert sorted("The word is pear" in text for text in first) == [False, True, True]


CANARY = "gold-4f1c9d-canary"


@pytest.mark.parametrize("name", ["math", "long_context", "instruct_follow", "swe"])
def test_gold_never_enters_the_sandbox_or_the_prompt(name: str, tmp_path: Path) -> None:
    extra: dict[str, Any] = {"patch": CANARY, "test_patch": CANARY, "hints": CANARY}
    if name == "swe":
        extra |= {"repository": "repository", "FAIL_TO_PASS": [CANARY]}
    row = Row("g", "Question 1: what?", CANARY, "math", {"a.txt": "a document"}, extra=extra)
    halves = f"{CANARY[:8]}''{CANARY[8:]}"
    look_everywhere = f'grep -rl {halves} "$PWD"; env | grep {halves}; git log -p | grep {halves}'
    search = f"{look_everywhere}; echo LOOK''ED"

    def look(messages: list[dict[str, Any]]) -> Reply:
        if messages[0]["role"] != "system":
            return says("nothing")
        turns = [calls("execute_bash", json.dumps({"command": search})), calls("submit", "{}", number=1)]
        return turns[turn_of(messages)]

    model = FunctionModel(look)
    work = plan([(load_task(name), [row])], ("sandbox", "sandbox-prompt", "llm"), 1)
    results = run(runner(tmp_path, model).run(work), 120)
    assert {result.error_kind for result in results} <= {
        "",
        "scorer",
    }  # this gold fits no scorer of these tasks
    assert CANARY not in json.dumps(model.asked)
    assert sum("LOOKED" in json.dumps(messages) for messages in model.asked) == 2
    for journal in tmp_path.rglob("journal.jsonl"):
        assert CANARY not in journal.read_text("utf-8")


def test_the_search_for_gold_finds_it_when_it_is_there(tmp_path: Path) -> None:
    row = Row("g", "Question 1: what?", CANARY, input_files={"a.txt": CANARY})
    halves = f"{CANARY[:8]}''{CANARY[8:]}"

    def look(messages: list[dict[str, Any]]) -> Reply:
        search = json.dumps({"command": f'grep -rl {halves} "$PWD"; echo over'})
        return [calls("execute_bash", search), calls("submit", "{}", number=1)][turn_of(messages)]

    model = FunctionModel(look)
    run(runner(tmp_path, model).run(plan([(load_task("demo"), [row])], ("sandbox",), 1)), 60)
    assert "a.txt" in json.dumps(model.asked)


def test_intervals_are_those_of_a_mean() -> None:
    assert bootstrap([]) is None
    assert bootstrap([0.5]) == bootstrap([0.5, 0.5]) == Interval(0.5), "chance does not show"
    assert score_interval([]) is None
    assert score_interval([1.0]) == Interval(1.0)
    assert score_interval([0.3, 0.4]) == bootstrap([0.3, 0.4])
    # Wilson's interval of 20 of 20, and of 1 of 10: as in Newcombe (1998), table I.
    full, few = score_interval([1.0] * 20), score_interval([1.0] + [0.0] * 9)
    assert (full, few) == (
        Interval(1.0, pytest.approx(0.8389, abs=1e-4), 1.0),
        Interval(0.1, pytest.approx(0.0179, abs=1e-4), pytest.approx(0.4042, abs=1e-4)),
    )
    assert [mcnemar(*split) for split in ((0, 0), (5, 5), (10, 0))] == [1.0, 1.0, 2 / 1024]
    whole = 2 * sum(math.comb(90, k) for k in range(38)) / 2**90
    assert mcnemar(37, 53) == mcnemar(53, 37) == pytest.approx(whole, abs=0, rel=1e-15)
    assert passes([[1.0], [0.0, 1.0]]) == []
    found_passes = passes([[1.0, 0.0, 0.5], [1.0, 1.0, 1.0]])
    assert [(one.k, round(one.any, 6), round(one.all, 6)) for one in found_passes] == [
        (1, 0.666667, 0.666667),
        (2, 0.833333, 0.5),
        (3, 1.0, 0.5),
    ]
    found = bootstrap([0.0, 1.0] * 50)
    assert found is not None
    assert found.mean == 0.5
    # The standard error is 0.05, so the interval is about 0.4 to 0.6.
    assert 0.38 < found.low < 0.43
    assert 0.57 < found.high < 0.62
    assert found == bootstrap([0.0, 1.0] * 50)


def test_the_demo_is_solved_in_every_isolation(isolation: str, tmp_path: Path) -> None:
    """Also its fourth problem, whose file lies where the task says."""
    said = [
        bash("if grep -q secret input/secret.txt 2>/dev/null; then sed 's/.*: //' input/secret.txt > answer.txt; "
             "else echo 3 > answer.txt; fi"),
    ]  # fmt: skip
    path = tmp_path / "script.yaml"
    path.write_text(script_text(turn(*said), turn({"tool": "submit"})))
    out = tmp_path / "out"
    arguments = ["benchmark", "run", "demo", "--model", f"scripted/{path}", "--isolation", isolation]
    assert main([*arguments, "--out", str(out)]) == 0
    scores = {result.item: result.score for result in read_results(out)}
    assert scores == {"1": 1.0, "2": 0.0, "3": 0.0, "4": 1.0}


@pytest.mark.alike
def test_a_patch_comes_out_of_a_repository_and_tests_decide(isolation: str, tmp_path: Path) -> None:
    """Also when the model commits its work, and leaves a file behind that git is told to ignore."""
    mend = (
        "sed -i 's/    result = numbers.0./    result = 0/; s/numbers.1:./numbers/' total.py; "
        "echo x > .gitignore; echo x > x; git -c user.name=m -c user.email=m@x commit -qam mended; git log --oneline"
    )
    path = tmp_path / "script.yaml"
    path.write_text(script_text(turn(bash(mend)), turn({"tool": "submit"})))
    arguments = ["benchmark", "run", "swe", "--data", "sample", "--model", f"scripted/{path}"]
    assert main([*arguments, "--isolation", isolation, "--out", str(tmp_path / "out")]) == 0
    (result,) = read_results(tmp_path / "out")
    assert (result.score, result.detail) == (1.0, "2 tests pass"), result
    assert "result = 0" in (result.answer or "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["run", "phisics", "--model", "x"], "did you mean"), (["run", "demo"], "no model"),
     (["run", "demo", "--model", "x", "--mode", "both"], "--mode"),
     (["run", "demo", "--model", "x", "--worker", "3"], "Unknown"),
     (["run", "demo", "demo", "--model", "x"], "same name"), (["report", "nowhere"], "no results"),
     (["run", "demo", "--model", "scripted/none-such"], "none-such"), (["run"], "There is no task")],
)  # fmt: skip
def test_a_wrong_command_line_is_one_sentence(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LLM_NAME", raising=False)
    assert main(["benchmark", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "results" / "demo").exists()
