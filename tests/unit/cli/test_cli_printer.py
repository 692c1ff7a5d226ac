"""A run as text: bounded, harmless to the terminal, the same live and loaded."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_sandbox_nb.cli import main
from llm_sandbox_nb.cli.printer import LIVE_LINES, Printer, harmless
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import Journal

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31mred\u202etxt.exe\r\x08\x7f"


def events(output: str = "3\n") -> list[ev.Event]:
    bash = {"command": "echo 3"}
    return [
        ev.RunStarted(run_id="r", task="How many r's?\nSecond line", model="scripted/x", scripted=True),
        ev.SandboxReady(
            sandbox_id="s",
            start_time=0.1,
            protection={
                "isolation": "docker", "profile": "standard", "network": "open", "user": "root", "pids": 512,
                "memory_bytes": 2 * 1024**3, "protects": "Keeps it in.", "does_not_protect": "Not from all.",
            },
        ),
        ev.ModelRequested(step=1),
        ev.ModelFailed(step=1, attempt=1, error="rate_limit", message="Too many requests.", retry_in=2),
        ev.ModelRequested(step=1, attempt=2),
        ev.ModelReplied(step=1, message={"role": "assistant", "content": "I count."}, reasoning="Hm."),
        ev.CallProposed(step=1, call_id="c", tool="execute_bash", raw_arguments="{}", arguments=bash),
        ev.CallStarted(step=1, call_id="c", tool="execute_bash", arguments=bash),
        ev.CallFinished(step=1, call_id="c", observation="shown", exit_code=0, stdout=output, duration=0.5,
                        changes=[ev.FileDiff(path="a.txt", kind="added", size=2048)], notice="A new shell."),
        ev.ArtifactSaved(path="answer.txt", mime="text/plain", size=3, sha256="0"),
        ev.ArtifactSkipped(reason="link: is a link"),
        ev.Noted(text="near the limit"),
        ev.RunFinished(stop_reason="submitted", answer="3", steps=1, wall_time=1.5),
    ]  # fmt: skip


def printed(*items: ev.Event, lines: int | None = LIVE_LINES) -> str:
    out = io.StringIO()
    printer = Printer(out, lines=lines)
    for item in items:
        printer(item)
    return out.getvalue()


def test_a_run_reads_from_top_to_bottom() -> None:
    text = printed(*events())
    wanted = [
        "How many r's? ...", "scripted/x (scripted",
        "docker · standard · user root · network open · 2.0 GB memory · 512 processes", "Keeps it in.", "Not from all.",
        "Step 1", "Too many requests.; trying again in 2.0 s", "  . Hm.", "  I count.",
        "  > echo 3", "  | 3", "  exit 0, 0.5 s", "added a.txt (2.0 KB)", "A new shell.", "saved answer.txt",
        "left out: link", "near the limit", "Submitted after 1 step, scripted: free, 1.5 s",
    ]  # fmt: skip
    places = [text.index(part) for part in wanted]
    assert places == sorted(places)
    assert text.count("Step 1") == 1


def test_output_is_shown_as_it_streams_and_not_again_at_the_end() -> None:
    start, finish = (
        next(e for e in events() if isinstance(e, kind)) for kind in (ev.CallStarted, ev.CallFinished)
    )
    pieces = [ev.CallOutput(call_id="c", stream="stdout", text=part) for part in ("on", "e\ntw", "o\nthree")]
    assert "  | one\n" in printed(start, *pieces)
    assert "three" not in printed(start, *pieces)
    assert printed(start, *pieces, finish).count("  | ") == 3


def test_long_outputs_are_cut_live_and_whole_when_loaded() -> None:
    long = "".join(f"line {number}\n" for number in range(1000))
    assert "line 19\n  | ... 960 lines hidden ...\n  | line 980\n" in printed(*events(long))
    assert "line 999" in printed(*events(long))
    assert "line 999" in printed(*events(long), lines=None)
    assert len(printed(*events("x" * 2_000_000))) < 3000


def test_what_a_model_writes_cannot_command_the_terminal() -> None:
    text = printed(*events(EVIL), lines=None)
    assert "␛]0;owned␇" in text
    for character in "\x1b\x07\x9b\u202e\r\x08\x7f":
        assert character not in text


@given(st.text())
def test_harmless_text_prints_nothing_but_text(text: str) -> None:
    shown = harmless(text)
    assert all(c in "\n\t" or c.isprintable() or c.isspace() for c in shown)
    assert not {chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))} & set(shown)
    shown.encode()
    assert harmless(shown) == shown


def test_show_prints_a_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal(tmp_path / "run")
    long = "".join(f"line {number}\n" for number in range(20_000))
    for event in events():
        stored = (
            event.model_copy(update={"stdout": journal.store_text(long)})
            if event.kind == "call.finished"
            else event
        )
        journal.append(stored)
    journal.close()
    assert main(["show", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "line 19999" in out
    assert out.rstrip().endswith("Answer\n3")
    assert main(["show", "--brief", str(tmp_path / "run" / "journal.jsonl")]) == 0
    assert "line 10000" not in capsys.readouterr().out


def test_show_reads_a_killed_run_up_to_its_last_event(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(tmp_path)
    for event in events()[:6]:
        journal.append(event)
    journal.close()
    with journal.path.open("ab") as file:
        file.write(b'{"kind": "call.propo')
    assert main(["show", str(tmp_path)]) == 0
    assert "The record ends here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "There is nothing to show: no run has begun in {folder}.\n"),
        ('nonsense\n{"kind": "note", "text": "x"}\n', "line 1"),
    ],
)
def test_show_says_what_is_wrong(
    content: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "journal.jsonl").write_text(content)
    assert main(["show", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said.format(folder=tmp_path) in err
    assert err.count("\n") == 1


def test_each_step_says_what_was_spent_of_the_budget() -> None:
    used = ev.Usage(prompt_tokens=4000, completion_tokens=100, cost=0.02)
    start = ev.RunStarted(run_id="r", task="t", model="openai/x", settings={"limits": {"cost": 0.5}})
    steps = [
        event
        for number in (1, 2, 3)
        for event in (
            ev.ModelRequested(step=number),
            ev.ModelReplied(step=number, message={"role": "assistant", "content": "."}, usage=used),
        )
    ]
    text = printed(start, *steps[:4], ev.SettingsChanged(limits={"cost": 1.0}), *steps[4:])
    lines = [line for line in text.splitlines() if line.startswith("Step")]
    assert lines == [
        "Step 1",
        "Step 2 · 4.1k tokens · $0.02 of $0.50",
        "Step 3 · 8.2k tokens · $0.04 of $1.00",
    ]
    free = printed(start.model_copy(update={"scripted": True}), *steps)
    assert "Step 3 · 8.2k tokens · scripted: free" in free
