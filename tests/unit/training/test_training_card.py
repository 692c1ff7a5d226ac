"""A training in a cell: plots, links to records, hostile answers as text; and the process behind it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from support import processes_with, until
from training_records import figures, row

from llm_sandbox_nb.benchmark.results import append_line
from llm_sandbox_nb.notebook import train_command
from llm_sandbox_nb.notebook.errors import SandboxTrainingError, SandboxUsageError
from llm_sandbox_nb.notebook.train_command import TrainCommand, training_bundle
from llm_sandbox_nb.training.config import load_config
from llm_sandbox_nb.training.record import COMPLETE, END, TABLE, RecordError, TrainingRecord
from llm_sandbox_nb.training.watch import plot, plots

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingRecord:
    monkeypatch.chdir(tmp_path)
    made = TrainingRecord.begin(tmp_path / "run", load_config("tiny-cpu.yaml", {"steps": 4}))
    for step in (1, 2):
        made.add_step(figures(step, 0.25 * step) | {"turns_max": 5})
    made.step_folder(2).mkdir(parents=True)
    for place, reward in enumerate((1.0, None, 0.0)):
        told = asdict(row(place, f"row {place}", reward)) | {"answer": f"{EVIL} {place}"}
        append_line(made.step_folder(2) / TABLE, told)
    return made


def test_plots_and_rollouts_with_links_to_their_records(record: TrainingRecord) -> None:
    bundle = training_bundle(record, "running")
    page = bundle["text/html"]
    assert page.count("<svg ") == 5
    assert 'aria-label="Reward: mean 0.50"' in page
    assert "2 of 4 steps, 32 rollouts each" in page
    links = re.findall(r"<a class='lsn-record' href='([^']+)'>", page)
    assert links == [f"run/rollouts/step-0002/{place:04d}/run/journal.jsonl" for place in range(3)]
    assert "+0.500" in page
    assert "none" in page
    assert "2 of 4 steps" in bundle["text/plain"]


def test_answers_and_names_stay_text(record: TrainingRecord) -> None:
    page = training_bundle(record, EVIL, note=EVIL)["text/html"]
    assert "<img" not in page
    assert page.count("&lt;img") >= 4


def test_a_training_elsewhere_has_no_links(
    record: TrainingRecord, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert "<a " not in training_bundle(record, "done")["text/html"]


def test_a_step_is_chosen_or_named_as_not_kept(record: TrainingRecord) -> None:
    assert "Rollouts of step 2" in training_bundle(record, "done", step=2)["text/html"]
    with pytest.raises(RecordError, match=r"step 1 are not kept: choose a newer step, or raise record\.keep"):
        training_bundle(record, "done", step=1)


def test_plots_are_pictures_whatever_the_values_are() -> None:
    odd: list[dict[str, Any]] = [
        {"step": 1},
        {"step": 2, "reward": None, "stops": {}, "turns": 0.0, "model_tokens": 1e9},
        {
            "step": 3,
            "reward": 0.1,
            "reward_std": 0.9,
            "stops": {EVIL: 3, "time": 1},
            "capabilities": {"files": 1.0},
        },
    ]
    for steps in ([], odd[:1], odd):
        for picture in plots(steps, 3):
            drawn = ElementTree.fromstring(re.search(r"<svg.*</svg>", picture, re.DOTALL)[0])  # type: ignore[index]
            for place in drawn.iter():
                for pair in str(place.get("points") or "").split():
                    x, y = map(float, pair.split(","))
                    assert 0 <= x <= 260
                    assert 0 <= y <= 120
    assert "<img" not in "".join(plots(odd, 3))


def test_a_plot_rises_with_its_values() -> None:
    picture = plot("Reward", [("mean", [0.1, 0.5, 0.9])], [1, 2, 3], 3, top=1.0)
    points = re.search(r'polyline points="([^"]+)"', picture)
    assert points is not None
    heights = [float(pair.split(",")[1]) for pair in points[1].split()]
    assert heights == sorted(heights, reverse=True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run --config tiny-cpu.yaml --set steps=none", "steps has to be a whole number"),
        ("watch nowhere", "There is no training in nowhere"),
        ("walk", "invalid choice: 'walk'"),
        ("run", "--config"),
        ('watch "nowhere', "quot"),
    ],
)
def test_a_line_that_cannot_be_understood_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train_command, "_start", None)
    with pytest.raises(SandboxUsageError, match=said):
        TrainCommand(None)(line)


def test_watching_shows_a_training_that_is_over_once(
    record: TrainingRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[dict[str, str]] = []
    monkeypatch.setattr(train_command.UpdatedOutput, "publish", lambda self, bundle: shown.append(bundle))
    for step in (3, 4):
        record.add_step(figures(step, 0.9))
    (record.folder / END).mkdir()
    (record.folder / END / COMPLETE).touch()
    TrainCommand(None)(f"watch {record.folder}")
    assert len(shown) == 1
    assert "4 of 4 steps" in shown[0]["text/html"]


def test_a_failed_training_ends_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is real: it is told to use documents that are not there."""
    monkeypatch.chdir(tmp_path)
    shown: list[dict[str, str]] = []
    monkeypatch.setattr(train_command.UpdatedOutput, "publish", lambda self, bundle: shown.append(bundle))
    with pytest.raises(SandboxTrainingError, match=r"There is no data at absent\.jsonl"):
        TrainCommand(None)("run --config tiny-cpu.yaml --set data.rows=absent.jsonl --set model.path=x")
    assert shown[-1]["text/plain"].startswith("Training: failed. ")


def test_a_process_ends_with_its_kernel(record: TrainingRecord) -> None:
    code = "import sys; from llm_sandbox_nb.notebook.train_command import _start\n"
    code += "_start(['watch', sys.argv[1]], sys.stderr.buffer).wait()"
    folder = str(record.folder)
    kernel = subprocess.Popen([sys.executable, "-c", code, folder], stderr=subprocess.DEVNULL)
    until(lambda: len(processes_with(folder)) == 2)
    kernel.kill()
    kernel.wait()
    until(lambda: not processes_with(folder))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run --config tiny-cpu.yaml", "The training ended with exit code 1."),
        ("evaluate training", "%sandbox train evaluate ended with exit code 1."),
        ("data show rows", "%sandbox train data ended with exit code 1."),
    ],
)
def test_a_process_that_fails_silently_is_named(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train_command.sys, "executable", shutil.which("false"))
    with pytest.raises(SandboxTrainingError, match=f"^{re.escape(said)}$"):
        TrainCommand(None)(line)
