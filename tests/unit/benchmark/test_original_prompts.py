"""`--prompts original`: the prompts of the paper's package, read where it is installed; here a made-up one is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import SUBMIT, bash, script, turn
from support import run

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.original_prompts import ORIGINAL, original_prompts
from llm_sandbox_nb.benchmark.commands import make_report, prepare, prepare_scoring
from llm_sandbox_nb.benchmark.report import as_text
from llm_sandbox_nb.benchmark.results import read_results
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.options.table import UsageError
from llm_sandbox_nb.runs.solve import solve

PROMPTS = """
system_prompt: |-
  Theirs. Leave \\boxed{{}} in {output_dir}/answer.txt. {command_docs}{demo}
instance_prompt: |-
  <p>{problem_statement}</p> '\\boxed{{x}}', in {working_dir}, from {input_dir}
working_dir: /testbed
"""
ASKER = """
def create_prompt(row):
    return f"THEIR FRAME {list(row['input_files'].values())} {row['problem_statement']}"
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of that name whose code fails when it is imported."""
    site = tmp_path / "site"
    folder = site / "llm_in_sandbox"
    for name in ("config", "benchmark/math", "benchmark/long_context"):
        (folder / name).mkdir(parents=True)
    (folder / "__init__.py").write_text("raise AssertionError('imported')")
    (folder / "config/general.yaml").write_text(
        f"{PROMPTS}output_dir: /testbed/output\ninput_dir: /testbed/input\n"
    )
    for name in ("math", "long_context"):
        task = folder / "benchmark" / name
        (task / "config.yaml").write_text(
            f"dataset: some/set\nconfig: {name}\n{PROMPTS}output_dir: /testbed\n"
        )
        (task / "vanilla_llm_prompt.py").write_text(ASKER)
    named(site, "0.2.0")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "llm_in_sandbox", raising=False)
    return site


def named(site: Path, version: str) -> None:
    for old in site.glob("*.dist-info"):
        (old / "METADATA").unlink()
        old.rmdir()
    made = site / f"llm_in_sandbox-{version}.dist-info"
    made.mkdir()
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: llm-in-sandbox\nVersion: {version}\n")


def test_a_run_asks_with_its_prompts(package: Path, tmp_path: Path) -> None:
    model = script(tmp_path, turn(bash("echo 3 > output/answer.txt")), SUBMIT)
    made = run(solve("Is it {1}?", model=model, isolation="process", output_dir=tmp_path, prompts="original"))
    system, user = (message["content"] for message in list(made.trajectory.messages())[:2])
    assert system == "Theirs. Leave \\boxed{} in /testbed/output/answer.txt. ".replace(
        "/testbed", made_root(made)
    )
    assert user.startswith(
        f"<p>Is it {{1}}?</p> '\\boxed{{x}}', in {made_root(made)}, from {made_root(made)}/input"
    )
    assert made.trajectory.start.settings["prompts"]["source"] == ORIGINAL  # type: ignore[union-attr]
    assert made.answer == "3"


def made_root(made: Any) -> str:
    return str(made.trajectory.sandbox.root)


def test_both_kinds_of_prompts_or_another_are_refused(package: Path, tmp_path: Path) -> None:
    for options, sentence in (
        ({"prompts": "original", "prompt_config": "own.yaml"}, "choose different prompts"),
        ({"prompts": "theirs"}, "prompts is own or original, not 'theirs'"),
    ):
        with pytest.raises(InputError, match=sentence):
            run(solve("t", model="scripted/strawberry", output_dir=tmp_path, **options))  # type: ignore[arg-type]


def test_missing_original_package_is_reported_with_the_install_command(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [
        "run",
        "-q",
        "t",
        "-m",
        "scripted/strawberry",
        "--prompts",
        "original",
        "-o",
        str(tmp_path / "runs"),
    ]
    named(package, "0.1.0")
    with pytest.raises(
        InputError, match=r"0\.1\.0 is installed: run `pip install 'llm-sandbox-nb\[original\]'`"
    ):
        original_prompts()
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(package)])
    if any((Path(one) / "llm_in_sandbox").is_dir() for one in sys.path):
        pytest.fail("the original package is installed here: test this without it")
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "which is not installed: run `pip install 'llm-sandbox-nb[original]'`" in said
    assert not (tmp_path / "runs").exists()


def flags(tmp_path: Path, **more: Any) -> dict[str, Any]:
    row = {"id": "a", "problem_statement": "Say 2.", "ground_truth": "2", "input_files": {"x.txt": "two"}}
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    model = more.get("model") or script(tmp_path, {"text": "\\boxed{2}"})
    usual = {"model": model, "data": str(tmp_path / "rows.json"), "out": str(tmp_path / "out"), "mode": "llm"}
    return usual | {"repeats": 1, "prompts": "original"} | more


def test_a_benchmark_with_original_prompts_is_marked_in_the_table(package: Path, tmp_path: Path) -> None:
    with prepare(["math"], flags(tmp_path), {}) as made:
        task = made.items[0].task
        assert task.prompts.messages("T")[0]["content"].startswith(
            "Theirs. Leave \\boxed{} in /testbed/answer.txt"
        )
        assert (task.scorer, task.repeats, task.prompts.answer_files[0]) == (
            "math",
            16,
            "/testbed/answer.txt",
        )
        run(made.runner.run(made.items), 60)
    (result,) = read_results(tmp_path / "out")
    assert (result.score, result.prompts) == (1.0, ORIGINAL)
    (journal,) = (tmp_path / "out").glob("math/llm/runs/*/*/journal.jsonl")
    assert "THEIR FRAME ['two'] Say 2." in journal.read_text()
    assert ORIGINAL in as_text(make_report(tmp_path / "out").found)
    with prepare_scoring(tmp_path / "out", {}, {}) as again:
        assert run(again.runner.score_again(again.items), 60) == [], "the answer is scored, not asked for"


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        ("swe", "has no prompts for the task swe: it has long_context, math"),
        ("chem", "no prompts for the task chem"),
    ],
)
def test_a_task_that_it_has_not_is_refused(package: Path, tmp_path: Path, task: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        prepare([task], flags(tmp_path), {})


def test_results_of_both_prompts_do_not_share_a_folder(package: Path, tmp_path: Path) -> None:
    prepare(["math"], flags(tmp_path), {}).lock.release()
    with pytest.raises(UsageError, match="holds results with prompts 'original', not None"):
        prepare(["math"], flags(tmp_path, prompts="own"), {})


def test_documents_in_the_prompt_of_a_sandbox_have_its_frame(package: Path, tmp_path: Path) -> None:
    with prepare(
        ["long_context"],
        flags(tmp_path, mode="sandbox", context="prompt", isolation="process", judge_model="scripted/strawberry",
              model=script(tmp_path, turn(bash("echo two > answer.txt")), SUBMIT)),
        {},
    ) as made:  # fmt: skip
        result, answer = run(attempt(made), 60)
    assert (result.error, answer) == ("", "two")
    (journal,) = (tmp_path / "out").glob("long_context/sandbox-prompt/runs/*/*/journal.jsonl")
    assert "<p>THEIR FRAME ['two'] Say 2.</p>" in journal.read_text()


async def attempt(made: Any) -> Any:
    async with made.runner.backend as backend:
        return await backend.attempt(made.items[0])
