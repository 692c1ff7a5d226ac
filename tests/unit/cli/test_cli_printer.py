"""A run as text: bounded, harmless to the terminal, the same live and loaded."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

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
    if not any(isinstance(item, ev.SandboxReady) for item in items):
        printer.end()  # they are of a run whose sandbox is known
    for item in items:
        printer(item)
    return out.getvalue()


def test_a_run_reads_from_top_to_bottom() -> None:
    text = printed(*events())
    wanted = [
        "How many r's? ...", "scripted/x (scripted",
        "docker · standard · user root · network open · 2.0 GB memory · 512 processes", "Keeps it in.", "Not from all.",
        "Step 1", "Too many requests.; trying again in 2.0 s", "  . Hm.", "  I count.",
        "  > echo 3", "  | 3", "  exit 0, 0.5 s", "added a.txt (2.0 KB)", "A new shell.",
        "Copied to the run's folder: answer.txt (3 B)",
        "left out: link", "near the limit", "Submitted, not checked · 1 step, scripted: free, 1.5 s",
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
    assert (
        f"Cut off at step 1: `llm-sandbox-nb resume {tmp_path}` continues this run."
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "Nothing to show: no run has begun in {folder}.\n"),
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


def test_each_step_says_its_own_tokens_and_what_was_spent_of_the_budget() -> None:
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
    lines = [line for line in text.splitlines() if line]
    assert [line for line in lines if not line.startswith(("Task", "Model", "  ."))] == [
        "Step 1", "  4.1k tokens", "Step 2 · $0.02 of $0.50", "  4.1k tokens", "Step 3 · $0.04 of $1.00",
    ]  # fmt: skip
    end = ev.RunFinished(stop_reason="answered", steps=3, usage=used + used + used)
    free = printed(start.model_copy(update={"scripted": True}), *steps, end)
    assert (
        "\nStep 3\n  .\n  4.1k tokens\n\nAnswered, not checked · 3 steps, 12,300 tokens in all, scripted: free"
        in free
    )


def test_steps_that_come_before_the_sandbox_stand_below_the_isolation() -> None:
    start, ready, *rest = events()
    assert isinstance(ready, ev.SandboxReady)
    text = printed(start, *rest[:3], ready, *rest[3:])
    assert text.index("Isolation") < text.index("Step 1")
    assert text == printed(start, ready, *rest)
    killed = Printer(out := io.StringIO())
    for event in (start, *rest[:3]):
        killed(event)
    assert "Step 1" not in out.getvalue()
    killed.end()
    assert "Step 1" in out.getvalue()


def test_a_failure_of_the_model_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "No server answers at http://localhost:1."
    tried = [
        ev.ModelFailed(step=1, attempt=number, error="unreachable", message=said, retry_in=wait)
        for number, wait in ((1, 2.0), (2, 4.0), (3, None))
    ]
    text = printed(ev.ModelRequested(step=1), *tried)
    assert text.count(said) == 1
    assert "the model failed again; trying again in 4.0 s" in text
    once = printed(ev.ModelRequested(step=1), tried[2])
    assert said not in once, "it is told at the end"
    journal = Journal(tmp_path)
    for event in (*events()[:3], tried[2], ev.RunFinished(stop_reason="model_error", error=said, steps=0)):
        journal.append(event)
    journal.close()
    assert main(["show", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count(said) == 1


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("terminal", "Denied by you; the model read your answer (terminal)"),
        ("nobody", "Nobody could approve it; the model read why"),
        ("mcp", "Withdrawn by the agent"),
    ],
)
def test_a_denied_call_is_shown_once_and_is_no_failure(source: str, words: str) -> None:
    start = ev.CallProposed(step=1, call_id="c", tool="execute_bash", raw_arguments="{}")
    denied = ev.CallDecided(step=1, call_id="c", action="skip", observation="Use the CSV.", source=source)
    finished = ev.CallFinished(
        step=1, call_id="c", observation="Use the CSV.\n\n[Steps remaining: 3]", error="skipped"
    )
    assert printed(start, denied, finished) == f"  {words}\n  | Use the CSV.\n"


# --- attempts ---


def step(number: int) -> list[ev.Event]:
    call = {"step": number, "call_id": f"c{number}", "tool": "execute_bash"}
    arguments = {"command": f"echo step-{number}"}
    return [
        ev.ModelRequested(step=number),
        ev.ModelReplied(step=number, message={"role": "assistant", "content": f"said-{number}"}),
        ev.CallProposed(**call, raw_arguments="{}", arguments=arguments),
        ev.CallStarted(**call, arguments=arguments),
        ev.CallFinished(step=number, call_id=f"c{number}", observation=f"out-{number}"),
    ]


def recorded(folder: Path, *items: ev.Event) -> str:
    journal = Journal(folder)
    for item in (events()[0], *items):
        journal.append(item)
    journal.close()
    return str(folder)


def back(to: ev.Event, number: int, **more: Any) -> list[ev.Event]:
    return [
        ev.RewindStarted(to=to.id, step=number, target="a", safety="b"),
        ev.Rewound(to=to.id, step=number, target="a", safety="b", **more),
    ]


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["show", *words]) == 0
    return capsys.readouterr().out


def test_a_rewound_run_shows_its_current_attempt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = step(1), step(2), step(3)
    again = [event.model_copy(update={"id": f"{event.id}x"}) for event in step(2)]
    again[1] = again[1].model_copy(update={"message": {"role": "assistant", "content": "said-again"}})
    end = ev.RunFinished(stop_reason="submitted", answer="done", steps=2)
    later = ev.Noted(text="later")
    folder = recorded(tmp_path, *first, *second, *third, *back(first[-1], 1), *again, end, later)
    out = shown(capsys, folder)
    order = [
        "said-1",
        "Rewound to step 1; steps 2 to 3 are kept as an earlier attempt",
        "said-again",
        "Answer\ndone",
    ]
    places = [out.index(text) for text in order]
    assert places == sorted(places)
    assert "said-2" not in out
    assert "said-3" not in out
    assert out.count("Step 2") == 1
    assert "resume" not in out
    assert "is over" not in out
    everything = shown(capsys, folder, "--all")
    order = [
        "said-1",
        "said-2",
        "said-3",
        "Rewound to step 1; steps 2 to 3 are kept",
        "said-again",
        "Answer\ndone",
    ]
    places = [everything.index(text) for text in order]
    assert places == sorted(places)
    assert everything.count("\nStep 2") == 2


def test_a_run_that_is_ready_after_a_rewind_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = step(1), step(2)
    end = ev.RunFinished(stop_reason="submitted", answer="old answer", steps=2)
    folder = recorded(tmp_path, *first, *second, end, *back(first[-1], 1))
    out = shown(capsys, folder)
    assert "Rewound to step 1; step 2 is kept as an earlier attempt" in out
    assert f"Ready to continue from step 1: `llm-sandbox-nb resume {folder}` continues this run." in out
    assert "old answer" not in out
    assert "still running" not in out


def test_an_undone_rewind_is_no_part_of_the_current_attempt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = step(1), step(2)
    end = ev.RunFinished(stop_reason="submitted", answer="kept answer", steps=2)
    rewind = back(first[-1], 1)
    folder = recorded(tmp_path, *first, *second, end, *rewind, *back(end, 2, undo_of=rewind[1].id))
    out = shown(capsys, folder)
    assert "Rew" not in out
    assert "Answer\nkept answer" in out
    assert "Rewind undone, back at step 2" in shown(capsys, folder, "--all")


def test_a_rewind_of_files_or_of_the_conversation_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = step(1), step(2)
    files = recorded(tmp_path / "a", *first, *second, *back(first[-1], 1, what="files"))
    out = shown(capsys, files)
    assert "said-2" in out
    assert "Files rewound to step 1" in out
    start = events()[0]
    talk = recorded(tmp_path / "b", *first, *back(start, 0, what="conversation"))
    assert (
        "Rewound to the beginning; step 1 is kept as an earlier attempt; the files stayed as they were"
        in shown(capsys, talk, "--all")
    )


def test_a_run_that_executes_is_not_called_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = recorded(tmp_path, events()[1], *step(1))
    journal = Journal(tmp_path)
    try:
        assert "Running · step 1: the run is not over." in shown(capsys, folder)
    finally:
        journal.close()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [({"word": "assay", "most": "many"}, "  > lookup word=assay most=many"), (None, "  > lookup {broken")],
)
def test_a_call_that_was_refused_before_its_start_is_shown(
    arguments: dict[str, Any] | None, line: str
) -> None:
    proposed = ev.CallProposed(
        step=1, call_id="c", tool="lookup", raw_arguments="{broken", arguments=arguments
    )
    shown = printed(
        proposed, ev.CallFinished(step=1, call_id="c", observation="Wrong.", error="bad_arguments")
    ).splitlines()
    assert shown == [line, "  | Wrong.", "  Arguments not valid"]
