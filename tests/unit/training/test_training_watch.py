"""A training as text."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from training_records import figures, row

from llm_sandbox_nb.benchmark.results import append_line
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.training.config import load_config
from llm_sandbox_nb.training.record import COMPLETE, END, TABLE, TrainingRecord
from llm_sandbox_nb.training.training_run import no_gradient
from llm_sandbox_nb.training.watch import follow, is_over, step_line


@pytest.fixture
def record(tmp_path: Path) -> TrainingRecord:
    made = TrainingRecord.begin(tmp_path / "run", load_config("tiny-cpu.yaml", {"steps": 3}))
    for step in (1, 2):
        made.add_step(figures(step, None if step == 2 else 0.5))
    made.step_folder(2).mkdir(parents=True)
    for place, group, reward in ((0, "b", 1.0), (1, "a", None), (2, "b", 0.0)):
        append_line(made.step_folder(2) / TABLE, asdict(row(place, group, reward)))
    return made


def test_steps_have_reward_spread_use_and_stops(
    record: TrainingRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "watch", str(record.folder), "--once"]) == 0
    title, head, first, second = capsys.readouterr().out.splitlines()
    assert title == "tiny-cpu: 2 of 3 steps, 32 rollouts each"
    assert (
        " ".join(head.split())
        == "step reward alike turns tokens read external files computation seconds stops"
    )
    assert first.split()[:4] == ["1", "0.500", "±", "0.25"]
    assert "█" * 6 in first
    assert first.endswith("3 submitted, 1 steps")
    assert "75.0%" in first
    assert second.split()[:2] == ["2", "none"]


def test_rollouts_of_a_step_by_row(record: TrainingRecord, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "watch", str(record.folder), "--step", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == ["rollout", "row", "1", "row", "0", "2", "Show"]
    assert "+0.500" in lines[4]
    assert "a b" in lines[4]
    assert lines[2].split()[1:3] == ["none", "none"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "There is no training in nowhere: give the folder that `train run` printed."),
        (["RUN", "--step", "7"], "There is no step 7 in"),
        (["RUN", "--step", "1"], "The rollouts of step 1 are no longer kept"),
    ],
)
def test_missing_trainings_and_steps_are_refused(
    record: TrainingRecord, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    words = [str(record.folder) if word == "RUN" else word for word in words]
    assert main(["train", "watch", *words]) == 2
    assert said in capsys.readouterr().err


def test_following_tells_new_steps_until_the_end(record: TrainingRecord) -> None:
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        if told[-1].startswith("2 "):  # the training goes further while somebody watches
            record.add_step(figures(3))
            (record.folder / END).mkdir()
            (record.folder / END / COMPLETE).touch()

    follow(record, tell, pause=0.0)
    assert [line.split()[0] for line in told[2:]] == ["1", "2", "3"]


def test_steps_without_a_gradient_are_reported_and_equal_groups_are_shown() -> None:
    steps = [
        figures(n) | {"grad_norm": norm} for n, norm in enumerate((0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    ]
    told = [no_gradient(steps[:count]) for count in range(len(steps) + 1)]
    assert [place for place, one in enumerate(told) if one] == [5, 8]
    assert told[5] is not None
    assert told[5].startswith("The last 3 steps had no gradient: the rollouts of each row had equal rewards")
    assert " 7 of 8 " in step_line(figures(1) | {"groups_alike": 7, "groups": 8})


def test_steps_after_a_checkpoint_are_forgotten(record: TrainingRecord) -> None:
    record.forget_after(1)
    assert [one["step"] for one in record.steps()] == [1]
    assert not record.step_folder(2).exists()


def test_a_training_that_goes_on_has_no_trained_policy(record: TrainingRecord) -> None:
    """The training ended, and a person raised its steps: the newest checkpoint is its policy until its new end."""
    for folder in (record.folder / END, record.checkpoints / "checkpoint-2"):
        folder.mkdir(parents=True)
        (folder / COMPLETE).touch()
    record.forget_after(3)
    assert record.newest_policy() == record.folder / END
    record.forget_after(2)
    assert record.newest_policy() == record.checkpoints / "checkpoint-2"
    record.add_step(figures(3))
    assert not is_over(record)
    (record.folder / END).mkdir(exist_ok=True)
    assert not is_over(record), "the policy is being written"
    (record.folder / END / COMPLETE).touch()
    assert is_over(record)


def test_a_checkpoint_counts_when_it_is_whole(record: TrainingRecord) -> None:
    for step, whole in ((2, True), (10, True), (12, False)):
        folder = record.checkpoints / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        if whole:
            (folder / "complete").touch()
    assert record.newest_checkpoint() == (10, record.checkpoints / "checkpoint-10")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--config", "none.yaml"], "There is no configuration none.yaml"),
        (["--config", "tiny-cpu.yaml", "--set", "rollouts"], "--set needs KEY=VALUE"),
        (["--config", "tiny-cpu.yaml", "--set", "rollouts.tunrs=3"], "did you mean rollouts.turns?"),
        ([], "--config"),
    ],
)
def test_run_refuses_mistakes_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["train", "run", *words]) == 2
    assert said in capsys.readouterr().err
