"""The card says first what came of the run: its state, its answer, its files, where it first went wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from card_runs import PROTECTION, card_of, run_events, saved_file, start_event, step_events
from test_card import shown

from llm_sandbox_nb.formatting import clip
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.protection import protection_chip, protection_text
from llm_sandbox_nb.trajectory.trajectory import Trajectory

HUNDRED = "".join(f"line {number}\n" for number in range(100))


def failing(number: int, **more: Any) -> list[ev.Event]:
    lines = "".join(f"out {line}\n" for line in range(60))
    result = {"exit_code": 2, "stderr": "FATAL: no such column\n", "duration": 0.3, **more}
    return step_events(number, output=lines, **result)


def said(trajectory: Trajectory, *, live: bool) -> tuple[str, str]:
    state = trajectory.state(live=live)
    return state.words, state.meaning


def ended(events: list[ev.Event], reason: Any, **more: Any) -> list[ev.Event]:
    return [*events, ev.RunFinished(stop_reason=reason, steps=1, wall_time=3.0, **more)]


def test_the_answer_and_the_files_come_before_the_facts_and_these_before_the_steps(tmp_path: Path) -> None:
    events = run_events(3, answer="The largest is **Tokyo**.")
    card = card_of([*events[:-1], saved_file(tmp_path, "map.png", b"x"), events[-1]], folder=tmp_path)
    for text in (shown(card.final()), card.final()["text/plain"]):
        wanted = ["Submitted", "Count the letters.", "Tokyo", "map.png", "3 steps", "echo 1", "echo 3"]
        places = [text.index(part) for part in wanted]
        assert places == sorted(places), text


def test_the_reason_of_a_failure_stands_in_the_place_of_the_answer() -> None:
    refused = ev.ModelFailed(step=1, attempt=1, error="authentication", message="Bad key.", retry_in=None)
    events = [start_event(), ev.ModelRequested(step=1), refused]
    card = card_of(ended(events, "model_error", error="The provider refused the key: check OPENAI_API_KEY."))
    for text in (shown(card.final()), card.final()["text/plain"]):
        assert "Model error: key refused" in text
        assert text.index("check OPENAI_API_KEY") < text.index("0 steps")
        assert "First error: step 1" in text


@pytest.mark.parametrize(
    ("reason", "words"),
    [("total_tokens", "Token limit reached (9,000 in all)"), ("interrupted", "Interrupted")],
)
def test_words_of_ends_that_no_recorded_run_has(reason: str, words: str) -> None:
    trajectory = Trajectory(ended([start_event(settings={"limits": {"total_tokens": 9_000}})], reason))
    assert trajectory.state(live=False).words == words


def test_a_run_that_was_rewound_is_ready_and_one_that_was_killed_is_cut_off() -> None:
    events = run_events(3)
    back = next(event.id for event in events if isinstance(event, ev.CallFinished) and event.step == 2)
    trajectory = Trajectory(events)
    assert said(trajectory, live=False) == ("Submitted, not checked", "plain")
    trajectory.add(ev.RewindStarted(to=back, step=2))
    trajectory.add(ev.Rewound(to=back, step=2))
    assert said(trajectory, live=False) == ("Ready to continue from step 2", "run")
    trajectory.add(ev.Checkpointed(step=2, checkpoint="c"))
    assert trajectory.state(live=False).words == "Ready to continue from step 2"
    trajectory.add(ev.ModelRequested(step=3))
    assert said(trajectory, live=False) == ("Cut off at step 3", "bad")
    assert said(trajectory, live=True) == ("Running · step 3", "run")


def test_the_first_error_is_a_link_that_leads_to_its_step() -> None:
    events = [start_event(), *step_events(1), *failing(2), *failing(3)]
    page = card_of(ended(events, "submitted")).final()["text/html"]
    found = re.search(r"<a class='[^']*' href='#([\w-]+)'>First error: step 2 →</a>", page)
    assert found
    assert page.count(f" id='{found[1]}'") == 1
    assert re.search(f" id='{found[1]}'[^>]*>(?:(?!</summary>).)*echo 2", page, re.DOTALL)
    assert "First error" not in shown(card_of(run_events(2)).final())


def test_a_call_that_a_person_interrupted_is_no_error_of_the_run() -> None:
    interrupted = step_events(1, error="interrupted", stderr="half")
    events = ended([start_event(), *interrupted], "interrupted")
    card = card_of(events).final()
    for text in (shown(card), card["text/plain"]):
        assert "First error" not in text
    assert "lsn-x" in card["text/html"], "the step itself is marked"
    resumed = card_of([*events, *failing(2)]).final()
    assert "First error: step 2" in shown(resumed)


def test_two_cards_of_one_notebook_have_other_anchors() -> None:
    pages = [
        card_of([ev.RunStarted(run_id=name, task="t", model="m"), *failing(1)]).final()["text/html"]
        for name in ("a", "b")
    ]
    anchors = [set(re.findall(r" id='([^']+)'", page)) for page in pages]
    assert all(anchors)
    assert not anchors[0] & anchors[1]


def test_files_that_calls_changed_are_counted_once_each() -> None:
    changed = [ev.FileDiff(path=f"/w/{name}", kind="modified", size=1) for name in "ab"]
    events = [start_event(), *step_events(1, changes=changed), *step_events(2, changes=changed[:1])]
    assert "2 files changed" in shown(card_of(events).final())
    assert "2 files changed" in card_of(events).final()["text/plain"]


def test_after_a_rewind_the_facts_are_those_of_the_branch() -> None:
    events = [start_event(), *step_events(1), *failing(2)]
    back = next(event.id for event in events if isinstance(event, ev.CallFinished))
    card = card_of([*events, ev.Rewound(to=back, step=1)])
    assert "First error" not in shown(card.final())
    assert "First error: step 2" in shown(card_of(events).final()), "the canary"


def test_a_row_says_what_the_step_did_and_what_it_led_to() -> None:
    change = ev.FileDiff(
        path="/w/data.csv", kind="modified", size=3, diff="--- a\n+++ b\n@@ -1,3 +1 @@\n-x\n-y\n z\n"
    )
    events = [
        start_event(),
        ev.SandboxReady(sandbox_id="s", protection=PROTECTION, start_time=0.1, root="/w"),
        *step_events(1, text="**Filters** the rows. Then more.", changes=[change]),
        *failing(2),
    ]
    rows = card_of(events).final()["text/plain"].splitlines()[-2:]
    assert rows[0] == "  1  Filters the rows   $ echo 1   data.csv -2   15 · 0.5 s"
    assert rows[1] == "  2  I look.   $ echo 2   exit 2 · FATAL: no such column   15 · 0.8 s"


def test_nothing_is_said_twice(tmp_path: Path) -> None:
    diff = "--- /dev/null\n+++ a.py\n@@ -0,0 +1 @@\n+print(1)\n"
    written = ev.FileDiff(path="/w/a.py", kind="added", size=9, diff=diff)
    events: list[ev.Event] = [start_event()]
    said = "Exit code: 0\n[stdout]\nhello\n\n[Steps remaining: 99]"
    for event in step_events(1, output="hello\n", changes=[written]):
        command = {"arguments": {"command": "cat > a.py <<END\nprint(1)\nEND"}}
        if isinstance(event, ev.CallFinished):
            event = event.model_copy(update={"observation": said})
        elif isinstance(event, ev.CallProposed | ev.CallStarted):
            event = event.model_copy(update=command)
        events.append(event)
    silent = "Exit code: 0\n(no output)\n\n[Steps remaining: 98]"
    events += [
        event.model_copy(update={"observation": silent}) if isinstance(event, ev.CallFinished) else event
        for event in step_events(2, output="")
    ]
    card = card_of([*events, saved_file(tmp_path, "a.py", b"print(1)")], folder=tmp_path)
    for text in (shown(card.final()), card.final()["text/plain"]):
        for plumbing in ("Exit code", "[stdout]", "Steps remaining", "---", "+++", "@@", "(no output)"):
            assert plumbing not in text
    assert card.final()["text/plain"].count("a.py") == 3, (
        "in the list of files, in the command, and as what it led to"
    )


def test_a_text_is_cut_at_line_ends_and_keeps_its_end() -> None:
    text = clip(HUNDRED, 400)
    assert len(text) <= 450
    lines = text.splitlines()
    cut = lines.index(next(line for line in lines if line.endswith("lines hidden ...")))
    assert lines[cut] == f"... {100 - len(lines) + 1} lines hidden ..."
    whole, kept = HUNDRED.splitlines(), lines[:cut] + lines[cut + 1 :]
    assert kept == whole[:cut] + whole[cut - len(kept) :]
    assert clip(HUNDRED, 10_000) == HUNDRED


def test_the_last_twenty_lines_are_there_however_long_they_are() -> None:
    long = HUNDRED + "".join(f"{number} {'x' * 5_000} end{number}\n" for number in range(20))
    text = clip(long, 4_000)
    assert len(text) < 6_000
    assert all(f"end{number}" in text for number in range(20))
    assert "characters left out" in text
    assert "line 0\n" in text


def test_the_words_of_the_protection() -> None:
    assert protection_chip({"isolation": "docker", "network": "none"}) == "Docker, no network"
    assert protection_chip({"isolation": "process", "network": "open"}) == "No isolation, network: open"
    assert "user root" in protection_text({**PROTECTION, "user": "0"})
