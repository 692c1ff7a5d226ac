"""What users of the paper's package have: command lines, task folders, prompts, and the files it wrote."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.prompts import load_prompts
from llm_sandbox_nb.analysis.load import load_runs
from llm_sandbox_nb.benchmark.commands import prepare
from llm_sandbox_nb.benchmark.data import load_rows
from llm_sandbox_nb.benchmark.rows import DataError
from llm_sandbox_nb.benchmark.scoring_pool import Scoring
from llm_sandbox_nb.benchmark.task import TaskError, load_task
from llm_sandbox_nb.cli.parser import command_words, make_parser
from llm_sandbox_nb.options.table import UsageError

STEP = {
    "thought": "I count.",
    "reasoning_content": "",
    "action": {"function": "execute_bash", "parameters": {"command": "echo 3"}},
    "observation": "3",
    "metadata": {"step": 1, "exec_time": 0.5},
}
SUBMIT = STEP | {"action": {"function": "submit", "parameters": {}}}


def parsed(*words: str) -> dict[str, Any]:
    parser, _ = make_parser()
    return vars(parser.parse_args(command_words(list(words))))


# --- command lines ---


@pytest.mark.parametrize(
    ("letter", "name"),
    [("d", "image"), ("t", "temperature"), ("i", "input_dir"), ("o", "output_dir"), ("a", "api_key"),
     ("p", "prompt_config"), ("e", "extra_body"), ("q", "query")],
)  # fmt: skip
@pytest.mark.parametrize("joined", [True, False])
def test_short_flags(letter: str, name: str, joined: bool) -> None:
    words = [f"-{letter}=x"] if joined else [f"-{letter}", "x"]
    assert parsed("run", *words)[name] == "x"


def test_short_flags_of_a_benchmark_and_long_ones_with_one_dash() -> None:
    found = parsed("benchmark", "-n", "2", "-o", "out", "math", "-llm_name", "x", "-mode=llm", "-d", "image")
    assert (found["workers"], found["out"], found["tasks"]) == ("2", "out", ["math"])
    assert (found["model"], found["mode"], found["image"]) == ("x", "llm", "image")
    assert parsed("run", "-query", "count", "-max_steps", "3")["steps"] == "3"


def test_a_model_after_the_task_is_refused_with_the_name_of_the_flag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from llm_sandbox_nb.cli import main

    assert main(["run", "count the r's", "openai/gpt-5"]) == 2
    assert "and name the model with --model" in capsys.readouterr().err


def test_the_task_of_a_run_may_stand_alone(capsys: pytest.CaptureFixture[str]) -> None:
    from llm_sandbox_nb.cli import main

    assert parsed("run", "count the r's", "--llm_name", "m")["task"] == "count the r's"
    assert main(["run", "count", "--query", "count", "--llm_name", "scripted/strawberry"]) == 2
    assert "given twice" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["math"], ["--task", "math"], ["--task=math"], ["run", "math"]])
def test_a_task_needs_no_action(words: list[str]) -> None:
    found = parsed(
        "benchmark", *words, "--mode", "llm-in-sandbox", "--num_workers", "4", "--output_dir", "out",
        "--max_response_len", "100", "--save_litellm_response", "--start_id", "0",
    )  # fmt: skip
    assert found["action"] == "run"
    assert [*found["tasks"], *(found["more_tasks"] or ())] == ["math"]
    assert (found["workers"], found["out"], found["max_response_len"]) == ("4", "out", "100")
    assert found["save_litellm_response"] == "true"


@pytest.mark.parametrize(
    "words", [["llm-in-sandbox"], ["sandbox"], ["llm-in-sandbox,llm"], ["llm,sandbox,llm-in-sandbox"]]
)
def test_the_mode_has_either_name(words: list[str], tmp_path: Path) -> None:
    flags = parsed("benchmark", "demo", "--mode", *words, "--llm_name", "scripted/strawberry")
    items = prepare(flags["tasks"], flags | {"out": str(tmp_path)}, {}).items
    assert {item.mode for item in items} == {"sandbox", "llm"} & {
        "sandbox" if word == "llm-in-sandbox" else word for word in words[0].split(",")
    }


def test_missing_task_is_reported_in_one_sentence() -> None:
    with pytest.raises(UsageError, match="There is no task: name one"):
        prepare([], parsed("benchmark", "--mode", "llm"), {})


def test_limits_of_one_reply_and_kept_responses_reach_the_model(tmp_path: Path) -> None:
    flags = parsed(
        "benchmark", "demo", "--max_response_len", "7", "--save_litellm_response", "--llm_name", "m"
    )
    backend = prepare(flags["tasks"], flags | {"out": str(tmp_path)}, {}).runner.backend
    assert (backend.how.reply_tokens, backend.how.save_responses) == (7, True)  # type: ignore[attr-defined]


def test_build_is_image_build() -> None:
    found = parsed("build", "--image_name", "mine:1", "--force")
    assert (found["command"], found["action"], found["tag"], found["force"]) == (
        "image",
        "build",
        "mine:1",
        True,
    )


# --- prompts ---

DOUBLED = """
system_prompt: |-
  Answer with \\\\boxed{{}} in {output_dir}/answer.txt. {command_docs}{demo}
instance_prompt: |-
  {problem_statement}

  Write '\\\\boxed{{answer}}' to {output_dir}/answer.txt, from {working_dir} and {input_dir}.
output_dir: /testbed
"""


def rendered(text: str, task: str = "Add {1}, {{2}}.") -> list[str]:
    """The prompts of a file of the paper's package as that package makes them: replaced, then formatted."""
    import yaml

    content = yaml.safe_load(text)
    folders = {
        "working_dir": "/testbed",
        "input_dir": "/testbed/input",
        "output_dir": "/testbed/output",
    } | content
    system, user = content["system_prompt"], content["instance_prompt"]
    for name in ("working_dir", "input_dir", "output_dir"):
        system, user = (one.replace(f"{{{name}}}", folders[name]) for one in (system, user))
    return [system.format(command_docs="", demo=""), user.format(problem_statement=task)]


def texts(folder: Path, text: str, task: str = "Add {1}, {{2}}.") -> list[str]:
    (folder / "prompts.yaml").write_text(text)
    return [message["content"] for message in load_prompts(folder / "prompts.yaml").messages(task)]


def test_its_prompts_are_rendered_as_it_renders_them(tmp_path: Path) -> None:
    assert texts(tmp_path, DOUBLED) == rendered(DOUBLED)
    assert "{{" not in texts(tmp_path, DOUBLED, "x")[1]


@pytest.mark.parametrize(
    "prompt",
    [
        "Write \\boxed{...} and \\frac{{a}}{b}.",  # a brace that is no field
        'Answer as {"a": {"b": {}}}.',
        "Say {problem_statement} and {{twice}} and {other}.",
        "An open {{ brace and { another",
        "Plain {working_dir}.",
        "{problem_statement!r} {{x}}",
    ],
)
def test_our_own_form_is_text(prompt: str, tmp_path: Path) -> None:
    text = json.dumps({"system_prompt": "x", "instance_prompt": prompt})
    told = prompt.replace("{problem_statement}", "T").replace("{working_dir}", "/testbed")
    assert texts(tmp_path, text, "T")[1] == told


def test_a_file_can_say_its_form(tmp_path: Path) -> None:
    said = {"system_prompt": "x", "instance_prompt": "{{x}}"}
    assert texts(tmp_path, json.dumps(said | {"braces": "plain"}))[1] == "{{x}}"
    assert texts(tmp_path, json.dumps(said))[1] == "{x}"
    with pytest.raises(InputError, match="braces can be plain or doubled, not 'odd'"):
        texts(tmp_path, json.dumps(said | {"braces": "odd"}))


# --- task folders ---

REWARD = """
def compute_score(agent_answer, ground_truth, **kwargs):
    assert set(kwargs) >= {"id", "domain", "problem_statement", "input_files"}, kwargs
    return 1.0 if agent_answer.strip() == ground_truth else 0.25
"""
ASKER = """
def create_prompt(problem_data):
    files = problem_data["input_files"]
    return f"{problem_data['problem_statement']} {problem_data['ground_truth']} {sorted(files.values())}"
"""
ROWS = [
    {
        "id": "one",
        "domain": "x",
        "problem_statement": "Add.",
        "ground_truth": "42",
        "input_files": {"n.txt": "17"},
    }
]


@pytest.fixture
def papers_task(tmp_path: Path) -> Path:
    """A folder `benchmark/mine` as the paper's package has them, with its data named from `benchmark`."""
    folder = tmp_path / "benchmark" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"dataset: json\ndata_files: mine/data.json\nsplit: train\n{DOUBLED}")
    (folder / "reward.py").write_text(REWARD)
    (folder / "data.json").write_text(json.dumps(ROWS))
    return folder


def test_its_folder_is_a_task(papers_task: Path) -> None:
    task = load_task(str(papers_task))
    (row,) = load_rows(task)
    assert (task.name, row.ground_truth, dict(row.input_files)) == ("mine", "42", {"n.txt": "17"})
    prompts = task.prompts
    folders = (prompts.working_dir, prompts.input_dir, prompts.output_dir)
    assert folders == ("/testbed", "/testbed/documents", "/testbed")
    assert [message["content"] for message in prompts.messages("T")] == rendered(
        DOUBLED.replace("output_dir:", "input_dir: /testbed/documents\noutput_dir:"), "T"
    )

    async def scored() -> list[float | None]:
        async with Scoring() as scoring:
            return [(await scoring.score(task.scorer, answer, row)).value for answer in ("42 ", "41")]

    assert asyncio.run(scored()) == [1.0, 0.25]


def test_a_judge_scores_where_its_reward_gives_all_answers_the_same(papers_task: Path) -> None:
    """Its physics and long_context have a `reward.py` that returns 0.0, and a `judge.py` to run by hand."""
    placeholder = 'def compute_score(answer, gold, **kwargs):\n    """Placeholder."""\n    return 0.0\n'
    (papers_task / "reward.py").write_text(placeholder)
    assert load_task(str(papers_task)).scorer.endswith("reward.py"), "there is no judge to do it"
    (papers_task / "judge.py").write_text("")
    assert load_task(str(papers_task)).scorer == "judge"
    (papers_task / "reward.py").write_text(REWARD)
    assert load_task(str(papers_task)).scorer.endswith("reward.py")


def test_a_reward_that_needs_the_package_names_the_package(papers_task: Path) -> None:
    """Its instruct_pretrain imports the rewards of its other tasks."""
    (papers_task / "reward.py").write_text("from llm_in_sandbox.benchmark.math.reward import compute_score\n")

    async def checked() -> str:
        async with Scoring() as scoring:
            return await scoring.check(load_task(str(papers_task)).scorer)

    assert asyncio.run(checked()) == (
        "reward.py imports llm_in_sandbox: install llm-in-sandbox==0.2.0 next to this package, or run the task mine of "
        "this package"
    )


def test_its_own_prompt_without_a_sandbox_is_used(papers_task: Path) -> None:
    async def prompt(content: str) -> str:
        (papers_task / "vanilla_llm_prompt.py").write_text(content)
        task = load_task(str(papers_task))
        async with Scoring() as scoring:
            return await scoring.prompt(task.asker, load_rows(task)[0])

    assert asyncio.run(prompt(ASKER)) == "Add. 42 ['17']"
    assert asyncio.run(prompt("")) == "Add."
    with pytest.raises(DataError, match="create_prompt failed with ZeroDivisionError"):
        asyncio.run(prompt("def create_prompt(row): return 1 / 0"))


def test_its_data_set_and_its_separate_prompts(papers_task: Path) -> None:
    (papers_task / "prompts.yaml").write_text(DOUBLED)
    (papers_task / "config.yaml").write_text(
        "dataset: some/set\nconfig: math\nprompt_config: mine/prompts.yaml\n"
    )
    task = load_task(str(papers_task))
    assert (task.data.dataset, task.data.config, task.data.split) == ("some/set", "math", "test")
    assert task.prompts.output_dir == "/testbed"
    (papers_task / "config.yaml").write_text("dataset: some/set\nsystem_promt: x\n")
    with pytest.raises(TaskError, match="unknown key 'system_promt'; did you mean system_prompt"):
        load_task(str(papers_task))


def test_each_domain_has_prompts_of_its_own() -> None:
    from llm_sandbox_nb.benchmark.task import task_names

    systems = {name: load_task(name).prompts.messages("T")[0]["content"] for name in task_names()}
    assert len(set(systems.values())) == len(systems)
    assert not any(
        part in text for text in systems.values() for part in ("{role}", "{goal}", "{answer_rules}")
    )
    for name, words in {"math": "\\boxed{...}", "chem": "letter", "biomed": "letter", "swe": "repository",
                        "long_context": "/testbed/documents", "physics": "several questions"}.items():  # fmt: skip
        assert words in systems[name], name


# --- what it wrote ---


def test_what_its_benchmark_wrote_is_read(tmp_path: Path) -> None:
    one = {"problem_statement": "How many?", "reward": 1.0, "agent_answer": "3", "ground_truth": "3"}
    content = {"p1": one | {"trajectory": [STEP, SUBMIT]}, "p2": one | {"trajectory": []}}
    (tmp_path / "trajectory_math.json").write_text(json.dumps(content))
    reading = load_runs([tmp_path])
    assert reading.problems == []
    (first,) = reading.runs
    assert (first.name, len(first.trajectory.steps), first.trajectory.answer) == ("p1", 2, "3")
    assert first.trajectory.steps[0].calls[0].arguments == {"command": "echo 3"}
    assert reading.without_turns == 1
