"""`convert`, and the other commands on records of other projects."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from llm_sandbox_nb.cli import main
from llm_sandbox_nb.formats.format_names import WRITTEN
from llm_sandbox_nb.formats.records import read_run
from llm_sandbox_nb.trajectory.journal import read_journal
from llm_sandbox_nb.trajectory.trajectory import Trajectory

DATA = Path(__file__).parents[2] / "data"
BRANCHES = next((DATA / "journals" / "branches").glob("*b75437"))
TRAJ = DATA / "records" / "swe-agent" / "test-repo.traj"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def said(capsys: pytest.CaptureFixture[str], *words: str | Path, code: int = 0) -> tuple[str, str]:
    assert main([str(word) for word in words]) == code
    return capsys.readouterr()


@pytest.mark.parametrize(
    ("out", "form", "files"),
    [
        ("a.json", "atif", ["a.json", "a-branch-2.json"]),
        ("a.traj.json", "mini-swe-agent", ["a.traj.json", "a-branch-2.traj.json"]),
        ("trajectory.json", "llm-in-sandbox", ["trajectory.json", "trajectory-branch-2.json"]),
    ],
)
def test_the_name_says_the_format(
    capsys: pytest.CaptureFixture[str], out: str, form: str, files: list[str]
) -> None:
    printed, _ = said(capsys, "convert", BRANCHES, out)
    assert printed.split() == files
    assert [read_run(Path(name)).form for name in files] == [form, form]
    assert "three" in said(capsys, "show", files[0])[0]


def test_a_record_becomes_a_journal_and_is_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said(capsys, "convert", TRAJ, "runs/mine")
    found = Trajectory(read_journal(tmp_path / "runs" / "mine"))
    assert found.steps == read_run(TRAJ).trajectory.steps
    assert "mine" in said(capsys, "runs", "runs", "--json")[0]
    _, problem = said(capsys, "convert", TRAJ, "runs/mine", code=2)
    assert problem == "runs/mine holds a run already: choose another folder.\n"


def test_what_a_format_loses_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    _, problem = said(capsys, "convert", BRANCHES, "m.json", "--to", "openai")
    assert problem.startswith("It holds only the messages")
    assert said(capsys, "convert", BRANCHES, "a.json")[1] == ""


def test_a_record_is_not_overwritten_by_its_conversion(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    record = tmp_path / "mine.traj"
    shutil.copy(TRAJ, record)
    run = shutil.copytree(BRANCHES, tmp_path / "run")
    before = record.read_bytes(), (run / "journal.jsonl").read_bytes()
    for words in (
        ("convert", record, record, "--to", "atif"),
        ("convert", run, run / "journal.jsonl", "--to", "openai"),
        ("export", record, "--out", record),
        ("export", run, "--out", "run/journal.jsonl"),
    ):
        assert (
            "is the record itself, which would be lost: choose another file."
            in said(capsys, *words, code=2)[1]
        )
    assert (record.read_bytes(), (run / "journal.jsonl").read_bytes()) == before


def test_runs_whose_names_differ_in_a_sign_only_do_not_share_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def record(task: str) -> dict[str, object]:
        return {"problem_statement": task, "steps": []}

    (tmp_path / "many.json").write_text(json.dumps({"a b": record("first"), "a/b": record("second")}))
    printed, _ = said(capsys, "convert", "many.json", "out.json", "--to", "atif")
    files = printed.split()
    assert len(set(files)) == 2
    tasks = [read_run(Path(file)).trajectory.start for file in files]
    assert [start.task for start in tasks if start] == ["first", "second"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((TRAJ, "a.txt"), "The name a.txt does not imply a format: add --to atif, "),
        (("none.traj", "a.json"), "There is no run "),
        ((TRAJ.with_name("LICENSE"), "a.json"), "LICENSE is text, not a trajectory: give a journal"),
        ((TRAJ, TRAJ / "a.json"), "cannot be written (File exists): choose another file."),
        ((BRANCHES, "copy"), f"{BRANCHES.name} is a run of this package already: copy the folder, or name"),
        ((BRANCHES, "copy.json", "--to", "journal"), "copy the folder, or name another format with --to."),
        ((TRAJ, "http://127.0.0.1:9/v1/traces"), "No collector answers at http://127.0.0.1:9/v1/traces"),
    ],
)
def test_what_cannot_be_converted(
    capsys: pytest.CaptureFixture[str], words: tuple[str | Path, ...], problem: str
) -> None:
    _, printed = said(capsys, "convert", *words, code=2)
    assert problem in printed
    assert printed.count("\n") == 1


def test_runs_lists_the_records_of_others(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shutil.copytree(DATA / "records" / "swe-agent", tmp_path / "mine")
    (tmp_path / "mine" / "broken.traj").write_text("{")
    printed, _ = said(capsys, "runs", "mine")
    lines = [line for line in printed.splitlines() if not line.startswith(" ")]
    assert [line.split()[0] for line in lines] == [
        "broken.traj", "history-only.traj", "humanevalfix.traj", "older.traj", "test-repo.traj",
    ]  # fmt: skip
    assert "Not readable" in lines[0]
    rows = json.loads(said(capsys, "runs", "mine", "--json")[0])
    assert [row["state"] for row in rows] == ["unreadable", *["submitted"] * 4]
    assert rows[1]["bytes"] == (DATA / "records" / "swe-agent" / "history-only.traj").stat().st_size


def test_runs_lists_the_runs_of_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    message = {"role": "assistant", "content": "Done."}
    lines = [json.dumps({"messages": [{"role": "user", "content": f"Task {n}."}, message]}) for n in (1, 2)]
    (tmp_path / "two.jsonl").write_text("\n".join(lines))
    printed, _ = said(capsys, "runs", "two.jsonl")
    assert [line.split()[0] for line in printed.splitlines()] == ["#0", "#1"]
    assert "Done." in said(capsys, "show", "two.jsonl#1")[0]
    assert "holds 2 runs (0, 1): name one, such as " in said(capsys, "show", "two.jsonl", code=2)[1]
    written, _ = said(capsys, "convert", "two.jsonl", "out.traj.json")
    assert written.split() == ["out-0.traj.json", "out-1.traj.json"]
    collector = "http://127.0.0.1:9/v1/traces"
    problem = said(capsys, "convert", "two.jsonl", collector, code=2)[1]
    assert problem.startswith(f"No collector answers at {collector}")


def test_export_and_analyze_take_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shutil.copy(TRAJ, tmp_path)
    printed, _ = said(capsys, "export", "test-repo.traj")
    assert printed.strip().endswith("test-repo.html")
    assert "missing_colon" in (tmp_path / "test-repo.html").read_text("utf-8")
    assert "Submitted 1" in said(capsys, "analyze", "test-repo.traj")[0]


@pytest.mark.parametrize("form", ["journal", *WRITTEN])
def test_half_a_character_of_a_record_is_replaced(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, form: str
) -> None:
    call = {"id": "a", "function": {"name": "bash", "arguments": '{"command": "echo \\ud800"}'}}
    messages = [
        {"role": "user", "content": "Work \ud800"},
        {"role": "assistant", "content": "\ud800", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "\ud800"},
    ]
    (tmp_path / "half.json").write_text(json.dumps(messages))
    said(capsys, "convert", "half.json", "out", "--to", form)
    assert "Work \ufffd" in said(capsys, "show", "half.json")[0]
    said(capsys, "analyze", "half.json")
