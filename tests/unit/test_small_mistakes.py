"""What a person gets wrong is answered at once, in one sentence that says what to do."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
from card_runs import run_events, start_event, step_events
from test_card import card_of, shown

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.inputs import check_inputs
from llm_sandbox_nb.benchmark import commands
from llm_sandbox_nb.benchmark.options import BENCHMARK_OPTIONS
from llm_sandbox_nb.cli.parser import make_parser
from llm_sandbox_nb.notebook.errors import SandboxUsageError
from llm_sandbox_nb.notebook.magic_options import unknown_subcommand
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.options.parser import nearest
from llm_sandbox_nb.options.table import UsageError
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory


@pytest.mark.parametrize(
    ("typed", "begins"),
    [
        (
            "stauts",
            "There is no %sandbox stauts: did you mean status? %sandbox? explains all commands, which are",
        ),
        ("help", "There is no %sandbox help: %sandbox? explains all commands, which are status, held."),
    ],
)
def test_an_unknown_command_leads_to_the_list_of_all(typed: str, begins: str) -> None:
    assert unknown_subcommand(typed, ["status", "held"]).startswith(begins)


def test_a_step_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    run = Run(tmp_path, Trajectory(run_events(2)))
    with pytest.raises(InputError) as caught:
        run.preview(99)
    said = "".join(traceback.format_exception(caught.value))
    assert "During handling" not in said
    assert "direct cause" not in said
    assert str(caught.value) == "There is no step 99 on this branch: it has the steps 0 to 2."


@pytest.mark.parametrize("command", ["run", "benchmark run"])
@pytest.mark.parametrize(
    ("typed", "meant"),
    [("--modle", "--model"), ("--mdoel", "--model"), ("--tiem", "--time")],
)
def test_a_mistyped_option_names_the_nearest(command: str, typed: str, meant: str) -> None:
    _, commands = make_parser()
    with pytest.raises(UsageError, match=f"did you mean {meant}\\?"):
        commands[command].unknown([typed])


def test_words_that_are_far_from_all_others_get_no_hint() -> None:
    known = [f"--{option.name}" for option in BENCHMARK_OPTIONS]
    assert nearest("--frobnicate", known) is None
    assert nearest("-x", ["-m"]) is None


@pytest.mark.parametrize(
    ("name", "typed", "meant"),
    [("isolation", "dcker", "docker"), ("profile", "strikt", "strict"), ("network", "opn", "open")],
)
def test_a_mistyped_setting_is_refused_at_once(name: str, typed: str, meant: str) -> None:
    settings = SandboxSettings()
    before = getattr(settings, name)
    with pytest.raises(SandboxUsageError, match=f"did you mean '{meant}'"):
        setattr(settings, name, typed)
    assert getattr(settings, name) == before
    setattr(settings, name, meant)
    assert getattr(settings, name) == meant


def test_a_missing_package_of_a_report_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> Any:
        raise ImportError("Plots need matplotlib: run `pip install matplotlib`.")

    monkeypatch.setattr("llm_sandbox_nb.benchmark.report.summary", missing)
    with pytest.raises(UsageError) as caught:
        commands.make_report(tmp_path)
    assert "None" not in str(caught.value)
    assert "matplotlib" in str(caught.value)


def test_a_data_frame_without_a_name_says_how_to_give_it_one() -> None:
    import pandas as pd

    frame = pd.DataFrame({"city": ["Tokyo"], "n": [1]})
    with pytest.raises(InputError, match=r"write inputs=\{'data.csv': frame\}"):
        check_inputs(frame)  # type: ignore[arg-type]
    named = check_inputs({"data.csv": frame, "data.tsv": frame, "n.csv": frame["n"]})
    assert dict(named.contents) == {
        "data.csv": b"city,n\nTokyo,1\n", "data.tsv": b"city\tn\nTokyo\t1\n", "n.csv": b"n\n1\n",
    }  # fmt: skip
    with pytest.raises(InputError, match=r"ends in .csv, .tsv or .parquet, not 'data.xls'"):
        check_inputs({"data.xls": frame})


@pytest.mark.parametrize("given", [42, b"data", {"a.txt": 42}])
def test_inputs_of_another_kind_are_refused_in_a_sentence(given: Any) -> None:
    with pytest.raises(InputError, match=r"give|takes"):
        check_inputs(given)


def test_the_model_that_a_person_changed_to_is_the_runs_model(tmp_path: Path) -> None:
    events = [start_event(), *step_events(1), ev.SettingsChanged(model="openai/gpt-5"), *step_events(2)]
    run = Run(tmp_path, Trajectory(events))
    assert run.model == "openai/gpt-5"
    card = card_of(events).final()
    for text in (shown(card), card["text/plain"]):
        assert "openai/gpt-5" in text
        assert "scripted/x" not in text
        assert "free" not in text


def test_a_step_without_a_reply_is_not_counted(tmp_path: Path) -> None:
    refused = ev.ModelFailed(step=3, attempt=1, error="authentication", message="No.", retry_in=None)
    events = [start_event(), *step_events(1), *step_events(2), ev.ModelRequested(step=3), refused]
    assert "2 steps" in shown(card_of(events).live())
    assert "after 2 steps" in repr(Run(tmp_path, Trajectory(events)))
