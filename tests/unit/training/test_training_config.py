"""The configuration of a training: files, keys, sentences."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest
import yaml

from llm_sandbox_nb.training.config import (
    ConfigError,
    RolloutConfig,
    config_names,
    documented_keys,
    load_config,
    make_config,
)
from llm_sandbox_nb.training.record import RecordError, TrainingRecord
from llm_sandbox_nb.training.reward import reward
from llm_sandbox_nb.training.training_run import TrainingRun, task_and_rows

LEARNING = Path(__file__).parents[3] / "docs" / "explanation" / "learning.md"


def test_packaged_configurations_load_and_return_from_yaml() -> None:
    assert {"tiny-cpu.yaml", "qwen3-4b.yaml"} <= set(config_names())
    for name in config_names():
        config = load_config(name)
        assert make_config(yaml.safe_load(config.as_yaml())) == config


def test_each_addition_of_the_reward_can_be_switched_off() -> None:
    """Keys of the reward are found in its code. A validation scores the answers without them."""
    names = set(re.findall(r"\bconfig\.(\w+)", inspect.getsource(reward)))
    used = {name: getattr(RolloutConfig(), name) or 0.5 for name in names}
    assert names >= {"zero_reward_for"}
    assert not any(getattr(RolloutConfig(**used).unshaped(), name) for name in names)
    page = LEARNING.read_text("utf-8")
    assert [name for name in names if f"`rollouts.{name}`" not in page] == []


def test_papers_recipe() -> None:
    config = load_config("qwen3-4b.yaml")
    rollouts, objective = config.rollouts, config.objective
    assert (rollouts.rows_per_step, rollouts.per_row, rollouts.turns) == (8, 8, 100)
    assert (rollouts.prompt_tokens, rollouts.completion_tokens, rollouts.time) == (16_384, 65_536, 5400.0)
    assert (objective.learning_rate, objective.epsilon_high, objective.beta) == (1e-6, 0.28, 0.0)
    assert (rollouts.temperature, rollouts.zero_reward_for) == (1.0, ("steps", "tokens"))


def test_every_key_is_documented() -> None:
    keys = documented_keys()
    assert len({name for name, _, _ in keys}) == len(keys) > 50
    assert all(text for _, _, text in keys)
    assert (
        "rollouts.per_row",
        "8",
        "number of rollouts of a row; the baseline of a rollout is the mean reward of the row's other rollouts",
    ) in keys


def test_changes_replace_keys() -> None:
    config = load_config(
        "tiny-cpu.yaml", {"rollouts.per_row": "4", "objective.learning_rate": "1e-5", "steps": 3}
    )
    assert (config.rollouts.per_row, config.objective.learning_rate, config.steps) == (4, 1e-5, 3)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"stepz": 3}, "There is no key stepz; did you mean steps?"),
        ({"rollouts": {"perrow": 3}}, r"There is no key rollouts\.perrow; did you mean rollouts\.per_row\?"),
        ({"steps": "many"}, "steps has to be a whole number, not 'many'"),
        ({"steps": 0}, "steps has to be more than zero, not 0"),
        ({"steps": True}, "steps has to be a whole number, not True"),
        ({"rollouts": 7}, "rollouts has to hold keys, not 7"),
        ({"rollouts": {"per_row": 1}}, "per_row has to be at least 2, not 1"),
        ({"rollouts": {"mode": "vm"}}, "rollouts.mode has to be sandbox, sandbox-prompt or llm, not 'vm'"),
        ({"objective": {"micro_batch": 7}}, "micro_batch has to divide the 64 rollouts of a step, not 7"),
        ({"objective": {"learning_rate": "fast"}}, "learning_rate has to be a number, not 'fast'"),
        ({"objective": {"learning_rate": float("nan")}}, "learning_rate has to be more than zero, not nan"),
        ({"objective": {"learning_rate": float("inf")}}, "learning_rate has to be more than zero, not inf"),
        ({"seed": -1}, "seed has to be at least zero, not -1"),
        ({"seed": 2**32}, r"seed has to be less than 2\*\*32, not 4294967296"),
        ({"validation": {"repeats": 0}}, r"validation\.repeats has to be more than zero, not 0"),
        ({"data": {"count": -5}}, r"data\.count has to be at least zero, not -5"),
        ({"record": {"keep": -1}}, r"record\.keep has to be at least zero, not -1"),
        ({"rollouts": {"top_p": 2}}, r"rollouts\.top_p has to be more than zero and at most 1, not 2"),
        ({"rollouts": {"zero_reward_for": "steps"}}, "zero_reward_for has to be a list of texts"),
        ({}, "A tiny model is for the tiny task: set data.rows to notes, or model.path to a model"),
    ],
)
def test_mistakes_are_one_sentence(content: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_config(content)


def test_a_change_that_is_not_yaml_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"rollouts\.turns=\[ is not valid YAML: "):
        load_config("tiny-cpu.yaml", {"rollouts.turns": "["})


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RecordError, match=r"cannot be written to .*: choose another --out\."):
            TrainingRecord.begin(folder, load_config("tiny-cpu.yaml"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rollouts.isolation": "vm"}, "Unknown isolation 'vm': choose 'auto'"),
        ({"rollouts.profile": "x"}, "Unknown profile 'x': choose 'standard' or 'strict'"),
        ({"rollouts.secrets": "[X]"}, "A secret is NAME=host"),
        ({"rollouts.isolation": "process"}, "isolation 'process' has no network 'none'"),
    ],
)
def test_options_that_open_no_sandbox_are_refused_before_the_start(
    change: dict[str, str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        TrainingRun(load_config("tiny-cpu.yaml", change), tmp_path / "training")
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_not_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"There is no configuration .*none\.yaml: give a YAML file, or one of"
    ):
        load_config(tmp_path / "none.yaml")
    file = tmp_path / "bad.yaml"
    file.write_text("a: [")
    with pytest.raises(ConfigError, match=r"bad\.yaml is not valid YAML"):
        load_config(file)
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"bad\.yaml is not UTF-8 text: save it as UTF-8"):
        load_config(file)
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\): give a YAML file\."):
        load_config(tmp_path)
    file.write_text("- a\n")
    with pytest.raises(ConfigError, match="has to hold keys"):
        load_config(file)


DATA = {"model": {"path": "some/model"}, "rollouts": {"rows_per_step": 1}}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": "a", "problem_statement": "?", "ground_truth": ""}', "Row 0 .*has no ground_truth"),
        (
            '{"id": "a", "problem_statement": "?", "ground_truth": "x", "input_files": {"a.txt": " "}}',
            "Row a has an empty document",
        ),
        (
            '{"id": "a", "problem_statement": "Is it the long answer of all answers?",'
            ' "ground_truth": "the long answer of all answers"}',
            "The prompts of all rows contain the answer, as in row a",
        ),
    ],
)
def test_rows_that_teach_nothing(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(ConfigError, match=said):
        task_and_rows(make_config({**DATA, "data": {"rows": str(file)}}))


def test_some_rows_that_tell_are_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [
        {
            "id": "short",
            "problem_statement": "Paris is the capital of which land? Not Paris.",
            "ground_truth": "Paris",
        },
        {"id": "chance", "problem_statement": "Is it 7 or 8? Say yes or no.", "ground_truth": "yes"},
        {
            "id": "choice",
            "problem_statement": "Who?\nA. Dorin Vale",
            "ground_truth": "Dorin Vale",
            "qa_type": "Choice",
        },
        {"id": "open", "problem_statement": "Who keeps the light?", "ground_truth": "Dorin Vale"},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, found = task_and_rows(make_config({**DATA, "data": {"rows": str(file)}}))
    assert [row.id for row in found] == ["chance", "choice", "open"]
    assert caplog.messages == ["1 row is left out, because the prompt contains the answer: short"]


def test_missing_or_too_little_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no data at"):
        task_and_rows(make_config({**DATA, "data": {"rows": str(tmp_path / "none.jsonl")}}))
    config = load_config("tiny-cpu.yaml")
    _, rows = task_and_rows(config)
    assert rows == task_and_rows(config)[1]
    assert all(row.ground_truth not in row.problem_statement for row in rows)
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": "a", "problem_statement": "?", "ground_truth": "x"}\n')
    with pytest.raises(ConfigError, match="There are 1 rows and a step needs 8"):
        task_and_rows(make_config({"model": {"path": "m"}, "data": {"rows": str(file)}}))
    with pytest.raises(ConfigError, match="There are 3 rows and a step needs 4"):
        task_and_rows(load_config("tiny-cpu.yaml", {"data.count": 3}))


def test_without_torch_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ImportError, match=r"Training needs torch and trl: run `pip install 'llm-sandbox-nb\[rl\]'`"
    ):
        TrainingRun(load_config("tiny-cpu.yaml"), tmp_path)


def test_two_starts_do_not_train_in_one_folder(tmp_path: Path) -> None:
    """The first keeps its configuration, and a folder of somebody else gets no lock."""
    config = load_config("tiny-cpu.yaml")
    first = TrainingRecord.begin(tmp_path / "a", config, alone=True)
    longer = load_config("tiny-cpu.yaml", {"steps": 99})
    with pytest.raises(
        RecordError, match=r"Another start works in .*\(process \d+ on .*\): wait for its end"
    ):
        TrainingRecord.begin(tmp_path / "a", longer, alone=True)
    assert first.config == config
    first.release()
    TrainingRecord.begin(tmp_path / "a", longer, alone=True).release()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("x")
    with pytest.raises(RecordError, match="is not empty and does not hold a training"):
        TrainingRecord.begin(tmp_path / "b", config, alone=True)
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["mine.txt"]


def test_a_folder_holds_one_training(tmp_path: Path) -> None:
    config = load_config("tiny-cpu.yaml")
    TrainingRecord.begin(tmp_path / "a", config)
    longer = load_config("tiny-cpu.yaml", {"steps": 99, "record.keep": 1, "validation.every": 3})
    assert TrainingRecord.begin(tmp_path / "a", longer).config == longer
    with pytest.raises(RecordError, match="holds a training with another configuration"):
        TrainingRecord.begin(tmp_path / "a", load_config("tiny-cpu.yaml", {"seed": 5}))
    with pytest.raises(RecordError, match="There is no training in"):
        TrainingRecord.load(tmp_path / "c")
