"""What a run takes in a saved notebook: in proportion to its journal, however long it is."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import nbformat
import pytest
from card_runs import PROTECTION, saved_file, start_event

from llm_sandbox_nb.notebook.card import Card
from llm_sandbox_nb.notebook.card_bundle import MIME
from llm_sandbox_nb.trajectory import events as ev

WORDS = ["cc -O2 -c part.c -o part.o\n", "warning: unused 'x'\n", "ok ", "0.25 s ", "Tokyo\t", "ünï "]


def text(source: random.Random, size: int) -> str:
    return "".join(source.choices(WORDS, k=size // 12))


def run(steps: int, output: int) -> list[ev.Event]:
    """A run as the loop records one: a reply with its call, the call proposed, started and finished."""
    source = random.Random(1)
    events: list[ev.Event] = [start_event()]
    events.append(ev.SandboxReady(sandbox_id="s", protection=PROTECTION, start_time=0.2))
    for number in range(1, steps + 1):
        events += one_step(number, text(source, 200), text(source, output))
    events.append(ev.RunFinished(stop_reason="submitted", answer="Done.", steps=steps, wall_time=3.0))
    return events


def one_step(number: int, thought: str, output: str) -> list[ev.Event]:
    call, arguments = f"call_{number}", {"command": f"make part{number}"}
    raw = json.dumps(arguments)
    asked = {"id": call, "type": "function", "function": {"name": "execute_bash", "arguments": raw}}
    message = {"role": "assistant", "content": thought, "tool_calls": [asked]}
    return [
        ev.ModelRequested(step=number, settings={"temperature": 0.0}),
        ev.ModelReplied(step=number, message=message, usage=ev.Usage(prompt_tokens=10), model_time=0.5),
        ev.CallProposed(
            step=number, call_id=call, tool="execute_bash", raw_arguments=raw, arguments=arguments
        ),
        ev.CallStarted(step=number, call_id=call, tool="execute_bash", arguments=arguments),
        ev.CallFinished(
            step=number,
            call_id=call,
            observation=f"Exit code: 0\n\n[stdout]\n{output}",
            stdout=output,
            exit_code=0,
        ),
    ]


def card_of(events: list[ev.Event], folder: Path | None = None) -> Card:
    card = Card(folder=folder)
    for event in events:
        card.add(event)
    return card


def notebook_size(card: Card) -> int:
    """Bytes of a notebook with nothing but that card."""
    output = nbformat.v4.new_output("display_data", card.final(), metadata=card.metadata)
    cell = nbformat.v4.new_code_cell("%%sandbox", outputs=[output])
    return len(nbformat.writes(nbformat.v4.new_notebook(cells=[cell])).encode())


def journal_size(events: list[ev.Event]) -> int:
    return sum(len((ev.dump_event(event) + "\n").encode()) for event in events)


@pytest.mark.parametrize(("steps", "output"), [(30, 12_000), (100, 20_000), (500, 40_000)])
def test_a_run_with_much_output_takes_little_more_than_its_journal(steps: int, output: int) -> None:
    events = run(steps, output)
    assert notebook_size(card_of(events)) <= 1.3 * journal_size(events)


def test_each_step_adds_the_same() -> None:
    sizes = {steps: notebook_size(card_of(run(steps, 1_000))) for steps in (50, 100, 200)}
    first, second = (sizes[100] - sizes[50]) / 50, (sizes[200] - sizes[100]) / 100
    assert second < first * 1.05, sizes


def test_a_file_is_embedded_once_in_the_record_however_often_it_was_saved(tmp_path: Path) -> None:
    saved = [saved_file(tmp_path, "a.bin", bytes(30_000), step=number) for number in range(1, 31)]
    sizes = [notebook_size(card_of([*run(30, 100), *saved[:count]], tmp_path)) for count in (1, 30)]
    assert sizes[1] - sizes[0] < 30_000


def finished(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["kind"] == "call.finished"]


def test_what_is_said_twice_is_said_once_and_nothing_is_lost() -> None:
    events = run(1, 500)
    kept = card_of(events).final()[MIME]["events"]
    assert [event["id"] for event in kept] == [event.id for event in events]
    assert json.dumps(kept).count("make part1") == 1
    assert "stdout" not in finished(kept)[0]
    assert (
        finished(kept)[0]["observation"]
        == next(e for e in events if isinstance(e, ev.CallFinished)).observation
    )


def test_what_is_said_nowhere_else_stays() -> None:
    edited = ev.CallProposed(step=1, call_id="a", tool="x", raw_arguments='{"a": 1}', arguments={"a": 1})
    unreadable = ev.CallProposed(step=1, call_id="b", tool="x", raw_arguments="{", arguments=None)
    started = ev.CallStarted(step=1, call_id="a", tool="x", arguments={"a": 2})
    cut = ev.CallFinished(step=1, call_id="a", observation="a…c", stdout="abc", stderr="c")
    kept = card_of([edited, unreadable, started, cut]).final()[MIME]["events"]
    assert [kept[0]["arguments"], kept[2]["arguments"]] == [{"a": 1}, {"a": 2}]
    assert kept[1]["raw_arguments"] == "{"
    assert kept[3]["stdout"] == "abc"
    assert "stderr" not in kept[3]
