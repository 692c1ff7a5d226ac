"""What a person gets wrong is answered at once, in one sentence that says what to do."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from card_runs import run_events, start_event, step_events
from traitlets import TraitError

import llm_sandbox_nb
from llm_sandbox_nb.agent.errors import InputError, RunError
from llm_sandbox_nb.agent.inputs import check_inputs
from llm_sandbox_nb.benchmark import commands
from llm_sandbox_nb.benchmark.item_pipeline import FatalError
from llm_sandbox_nb.benchmark.options import BENCHMARK_OPTIONS
from llm_sandbox_nb.benchmark.rows import DataError, make_row
from llm_sandbox_nb.card.card import Card
from llm_sandbox_nb.cli import benchmark_command, main
from llm_sandbox_nb.cli.parser import make_parser
from llm_sandbox_nb.cli.printer import Printer
from llm_sandbox_nb.cli.run_command import resume_line
from llm_sandbox_nb.notebook.magic_line import unknown_subcommand
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.options.parser import nearest
from llm_sandbox_nb.options.settings_files import read_settings_file
from llm_sandbox_nb.options.table import UsageError
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import Journal
from llm_sandbox_nb.trajectory.trajectory import Trajectory


def test_an_unknown_command_leads_to_the_list_of_all() -> None:
    all_of_them = "%sandbox? explains all commands, which are"
    near, far = (unknown_subcommand(typed, ["status", "held"]) for typed in ("stauts", "help"))
    assert near.startswith(f"Unknown subcommand %sandbox stauts: did you mean status? {all_of_them}")
    assert far.startswith(f"Unknown subcommand %sandbox help: {all_of_them} status, held.")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kept.ipynb", "kept.ipynb does not offer its sandbox: execute %sandbox mcp in it"),
        ("typo.ipynb", "--notebook: typo.ipynb does not exist; check the path."),
    ],
)
def test_a_notebook_that_is_not_there_is_named(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept.ipynb").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # restored, because the command replaces it
    assert main(["mcp", "--notebook", name]) == 2
    assert said in capsys.readouterr().err


def test_a_step_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    run = Run(tmp_path, Trajectory(run_events(2)))
    with pytest.raises(InputError) as caught:
        run.preview(99)
    said = "".join(traceback.format_exception(caught.value))
    assert "During handling" not in said
    assert "direct cause" not in said
    assert str(caught.value) == "There is no step 99 in this attempt: it has the steps 0 to 2."


@pytest.mark.parametrize("command", ["run", "benchmark run"])
def test_a_mistyped_option_names_the_nearest(command: str) -> None:
    _, commands = make_parser()
    for typed, meant in (("--modle", "--model"), ("--mdoel", "--model"), ("--tiem", "--time")):
        with pytest.raises(UsageError, match=f"did you mean {meant}\\?"):
            commands[command].unknown([typed])


def test_a_mistyped_option_of_an_inner_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "data", "build", "books", "--out", "data", "--qestions", "q.jsonl"]) == 2
    assert "did you mean --questions?" in capsys.readouterr().err
    known = [f"--{option.name}" for option in BENCHMARK_OPTIONS]
    assert nearest("--frobnicate", known) is None, "far from all others"
    assert nearest("-x", ["-m"]) is None


def test_a_mistyped_setting_is_refused_at_once() -> None:
    settings = SandboxSettings()
    for name, typed, meant in (
        ("isolation", "dcker", "docker"), ("profile", "strikt", "strict"), ("network", "opn", "open"),
    ):  # fmt: skip
        before = getattr(settings, name)
        with pytest.raises(TraitError, match=f"did you mean '{meant}'"):
            setattr(settings, name, typed)
        assert getattr(settings, name) == before
        setattr(settings, name, meant)
        assert getattr(settings, name) == meant


def test_a_missing_package_of_a_report_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> Any:
        raise ImportError("Plots need matplotlib: run `pip install matplotlib`.")

    monkeypatch.setattr(commands, "summary", missing)
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
    with pytest.raises(InputError, match=r"write inputs=\{'data.csv': frame\}"):
        check_inputs([frame])  # type: ignore[list-item]
    with pytest.raises(InputError, match=r"ends in .csv, .tsv or .parquet, not 'data.xls'"):
        check_inputs({"data.xls": frame})


def test_inputs_of_another_kind_are_refused_in_a_sentence() -> None:
    for given in (42, b"data", {"a.txt": 42}, {1: b"data"}, [42], [b"data"], ["/dev/zero"]):
        with pytest.raises(InputError, match=r"give|takes|use a plain file name"):
            check_inputs(given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("a", "a/b"), "The input 'a' is a file, but the input 'a/b' needs a folder of this name"),
        (("a/b/c", "a"), "The input 'a' is a file, but the input 'a/b/c' needs"),
        (("a.txt", "./a.txt"), "Two inputs have the name 'a.txt'"),
        (("a/",), "ends with a slash"),
        (("é" * 128,), "has more than 255 bytes"),
    ],
)
def test_names_that_cannot_be_written_together_are_refused(names: tuple[str, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_inputs(dict.fromkeys(names, b"x"))
    record = {"problem_statement": "?", "input_files": dict.fromkeys(names, "x")}
    with pytest.raises(DataError, match=f"The input_files of row 3 cannot be used: .*{said}"):
        make_row(record, 3)
    check_inputs({"a/b": b"", "a/c/d": b"", "a b/b": b"", "é" * 127: b""})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"task": None}, "The task is a text, not None."),
        ({"model": None}, "model is a name such as 'openai/gpt-5'"),
        ({"model": 5}, "model is a name such as 'openai/gpt-5'"),
        ({"control": "stop"}, r"control is a RunControl\(\), not 'stop'."),
        ({"files_of": "sandbox-runs"}, "files_of is a run"),
        ({"sandbox": "docker"}, "sandbox is an open sandbox"),
        ({"sandbox_options": "docker"}, "sandbox_options is a mapping"),
        ({"tools": 5}, r"tools are your functions, as in tools=\[lookup\], not 5."),
        ({"tools": "ls"}, "tools are your functions"),
        ({"command_timeout": 0}, "command_timeout must be a number above 0, not 0."),
        ({"command_timeout": "2m"}, "command_timeout must be 120.0, not '2m'."),
        ({"nudges": -1}, "nudges must be a whole number of at least 0, or all, not -1."),
        ({"retries": 5}, r"retries is a RetryPolicy\(...\), not 5."),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_argument_of_solve_starts_nothing(wrong: dict[str, Any], said: str, tmp_path: Path) -> None:
    arguments = {
        "task": "Work.",
        "model": "scripted/strawberry",
        "isolation": "process",
        "output_dir": tmp_path,
    }
    with pytest.raises(InputError, match=said):
        asyncio.run(solve(**arguments | wrong))
    assert list(tmp_path.iterdir()) == []


def test_the_public_names_are_listed_before_they_are_used() -> None:
    listed = subprocess.run(
        [sys.executable, "-c", "import llm_sandbox_nb; print(*dir(llm_sandbox_nb))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert {*llm_sandbox_nb.__all__} <= {*listed.stdout.split()}


def test_a_settings_file_of_windows_is_read(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_bytes("steps = 5\n".encode("utf-8-sig"))
    assert read_settings_file(path) == {"steps": (5, "steps")}
    path.write_bytes("steps = 5\n".encode("utf-16"))
    with pytest.raises(UsageError, match="is not UTF-8 text: save it as UTF-8"):
        read_settings_file(path)


@pytest.mark.parametrize(
    ("asked", "rows"), [(["--start_id", "100"], 3), (["--start_id", "2", "--end_id", "1"], 3)]
)
def test_no_row_is_one_sentence(asked: list[str], rows: int, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["benchmark", "run", "math", "--data", "sample", "--model", "scripted/strawberry", *asked]
    assert main(words) == 2
    said = f"{' '.join(asked)} selects no row: there are {rows} rows, and the first row has the number 0.\n"
    assert capsys.readouterr().err == said


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    command = "run hi -m scripted/strawberry --isolation process"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "llm_sandbox_nb", *command.split()],
            stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False,
        )  # fmt: skip
    assert done.stderr == (
        "Nothing more can be written (No space left on device): free disk space, then repeat the command.\n"
    )
    assert done.returncode == 1


def test_a_record_that_cannot_be_begun_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Journal, "append", full)
    with pytest.raises(
        RunError, match=r"cannot be written to .+ \(No space left on device\): free disk space"
    ):
        asyncio.run(solve("Work.", model="scripted/strawberry", isolation="process", output_dir=tmp_path))


def test_the_model_that_a_person_changed_to_is_the_runs_model(tmp_path: Path) -> None:
    events = [start_event(), *step_events(1), ev.SettingsChanged(model="openai/gpt-5"), *step_events(2)]
    assert Run(tmp_path, Trajectory(events)).model == "openai/gpt-5"
    for text in texts_of(events):
        assert "openai/gpt-5" in text
        assert "scripted/x" not in text
        assert "free" not in text


def texts_of(events: list[ev.Event]) -> tuple[str, str]:
    card = Card()
    for event in events:
        card.add(event)
    shown = card.final()
    return shown["text/html"].partition("</style>")[2], shown["text/plain"]


def test_a_step_without_a_reply_is_not_counted(tmp_path: Path) -> None:
    refused = ev.ModelFailed(step=3, attempt=1, error="authentication", message="No.", retry_in=None)
    events = [start_event(), *step_events(1), *step_events(2), ev.ModelRequested(step=3), refused]
    assert "2 steps" in texts_of(events)[0]
    assert "Cut off at step 3" in repr(Run(tmp_path, Trajectory(events)))


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_stream_that_the_shell_closed_is_not_written_to(
    closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, closed, None)
    assert main(["show", "nowhere"]) == 2
    Printer(sys.stdout)(start_event())


def test_an_error_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "a\x1b[31m"
    folder.mkdir()
    (folder / "journal.jsonl").write_text("no event\n")
    assert main(["show", str(folder)]) == 2
    assert "\x1b" not in capsys.readouterr().err

    async def work(items: list[Any]) -> None:
        raise FatalError("The server answers \x1b]0;owned\x07.")

    runner: Any = SimpleNamespace(
        open_items=lambda items: [], options=SimpleNamespace(workers=1), score_again=None
    )
    made: Any = SimpleNamespace(items=[], runner=runner, out=tmp_path)
    assert benchmark_command._until_over(made, work) == 3
    assert "The server answers ␛]0;owned␇." in capsys.readouterr().err


def test_the_command_that_continues_a_run_repeats_what_the_record_lacks(tmp_path: Path) -> None:
    given = ["--isolation", "docker", "--ca_bundle", "ca.pem", "--proxy", "http://p:1", "--memory_mb", "2000"]
    flags = vars(make_parser()[0].parse_args(["run", "Work", *given]))
    words = resume_line(Run(tmp_path, Trajectory(run_events(2))), flags).split("`")[1].split()
    assert words == ["llm-sandbox-nb", "resume", str(tmp_path), *given]
