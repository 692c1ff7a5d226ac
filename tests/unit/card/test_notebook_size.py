"""What a run takes in a saved notebook: in proportion to its journal, however long it is."""

from __future__ import annotations

import base64
import json
import random
import zlib
from pathlib import Path
from typing import Any

import nbformat
import pytest
import support
from card_runs import PROTECTION, card_of, saved_file, start_event
from support import record_of

from llm_sandbox_nb.card import card as card_module
from llm_sandbox_nb.card.card import Card
from llm_sandbox_nb.runs.solve import solve
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


def notebook_size(card: Card) -> int:
    """Bytes of a notebook with nothing but that card."""
    output = nbformat.v4.new_output("display_data", card.final(), metadata=card.metadata)
    cell = nbformat.v4.new_code_cell("%%sandbox", outputs=[output])
    return len(nbformat.writes(nbformat.v4.new_notebook(cells=[cell])).encode())


def journal_size(events: list[ev.Event]) -> int:
    return sum(len((ev.dump_event(event) + "\n").encode()) for event in events)


def added_to_a_notebook(card: Card) -> int:
    return notebook_size(card) - len(nbformat.writes(nbformat.v4.new_notebook()).encode())


@pytest.mark.parametrize(
    ("steps", "output"),
    [
        (3, 400),
        (8, 100),
        (30, 12_000),
        (200, 60),
        *([(200, 3_000), (500, 40_000)] if support.CAMPAIGN else []),
    ],
)
def test_a_run_takes_little_more_than_its_journal(steps: int, output: int) -> None:
    events = run(steps, output)
    assert added_to_a_notebook(card_of(events)) <= 1.3 * journal_size(events)


NOISE = random.Random(5)
PAGE = "".join(f'<div class="p" data-x="{n}">city {n} &amp; "x"</div>\n' for n in range(1_500)).encode()
FILES = {
    "small picture": {"a.png": NOISE.randbytes(20_000)},
    "large picture": {"a.png": NOISE.randbytes(900_000)},
    "page": {"map.html": PAGE},
    "drawing": {"a.svg": b"<svg>" + PAGE + b"</svg>"},
    "table": {"a.csv": b"".join(b"%d,%d,name%d\n" % (n, n * n, n) for n in range(5_000))},
    "texts": {f"f{n}.txt": b"hello %d\n" % n for n in range(20)},
    "document": {
        "a.md": b"# Title\n\n" + b"A sentence that *says* what was found, and why. " * 150,
        "answer.txt": b"Done.",
    },
    "binary": {"a.bin": NOISE.randbytes(50_000), "b.parquet": b"PAR1" + NOISE.randbytes(30_000)},
    "all kinds": {
        "poster.png": NOISE.randbytes(40_000),
        "map.html": PAGE,
        "chime.wav": NOISE.randbytes(80_000),
        "film.mp4": NOISE.randbytes(60_000),
        "a.pdf": NOISE.randbytes(10_000),
        "tune.mid": NOISE.randbytes(500),
    },
}


@pytest.mark.parametrize("kind", FILES)
def test_a_run_with_files_takes_little_more_than_its_journal_and_them(tmp_path: Path, kind: str) -> None:
    """A notebook is text, so that what it embeds counts as base64; also without that only pictures come close."""
    files = FILES[kind]
    saved = [saved_file(tmp_path, name, data) for name, data in files.items()]
    events = [*run(8, 400), *saved]
    card = card_of(events, folder=tmp_path)
    added, journal, raw = added_to_a_notebook(card), journal_size(events), sum(map(len, files.values()))
    assert added <= 1.3 * (journal + raw * 4 / 3)
    assert added <= (1.34 if kind == "large picture" else 1.3) * (journal + raw)
    kept = record_of(card.final())["artifacts"]
    assert {name: base64.b64decode(kept[name]["data"]) for name in kept} == files


def test_a_demo_takes_little_more_than_its_journal_and_files(tmp_path: Path) -> None:
    inputs = {"cities.csv": Path(__file__).parents[3] / "notebooks" / "data" / "cities.csv"}
    done = support.run(
        solve("Do it.", model="scripted/first-task", isolation="process", output_dir=tmp_path, inputs=inputs)
    )
    journal = (done.folder / "journal.jsonl").stat().st_size
    raw = sum(file.size for file in done.trajectory.artifacts.values())
    assert added_to_a_notebook(card_of(done.trajectory.events, folder=done.folder)) <= 1.3 * (journal + raw)


def test_without_packing_the_bar_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary of the bars above."""
    saved = [saved_file(tmp_path, name, data) for name, data in FILES["all kinds"].items()]
    events = [*run(8, 400), *saved]
    monkeypatch.setattr(card_module, "packed", lambda bundle: bundle)
    monkeypatch.setattr(card_module, "holds_all", lambda artifact: False)
    raw = sum(map(len, FILES["all kinds"].values()))
    assert added_to_a_notebook(card_of(events, folder=tmp_path)) > 1.3 * (journal_size(events) + raw * 4 / 3)


@pytest.mark.parametrize(
    "name",
    [
        "packed=&quot;AAAA&quot;.png",
        'srcdoc="packed="AAAA".html',
        "src='data:image/png;base64,AAAA'.png",
        "<figure class='lsn-artifact'>.wav",
        "</figcaption> src='data:;base64,AAAA'.svg",
    ],
)
def test_a_name_cannot_pass_for_the_file(tmp_path: Path, name: str) -> None:
    name = name.replace("/", "\\")
    files = {name: b"the file", "b.png": b"another", "empty.png": b""}
    card = card_of([*run(1, 10), *(saved_file(tmp_path, *one) for one in files.items())], folder=tmp_path)
    kept = record_of(card.final())["artifacts"]
    assert {name: base64.b64decode(kept[name]["data"]) for name in kept} == files
    assert packed_record(card)["artifacts"]["b.png"].keys() == {"mime", "size", "figure"}


def packed_record(card: Card) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        zlib.decompress(base64.b64decode(card.final()[support.MIME]["packed"]))
    )
    return found


def test_each_step_adds_the_same() -> None:
    sizes = {steps: notebook_size(card_of(run(steps, 1_000))) for steps in (50, 100, 200)}
    first, second = (sizes[100] - sizes[50]) / 50, (sizes[200] - sizes[100]) / 100
    assert second < first * 1.05, sizes


def test_a_file_is_embedded_once_in_the_record_however_often_it_was_saved(tmp_path: Path) -> None:
    saved = [saved_file(tmp_path, "a.bin", bytes(30_000), step=number) for number in range(1, 31)]
    sizes = [notebook_size(card_of([*run(30, 100), *saved[:count]], folder=tmp_path)) for count in (1, 30)]
    assert sizes[1] - sizes[0] < 30_000


def finished(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["kind"] == "call.finished"]


def test_what_is_said_twice_is_said_once_and_nothing_is_lost() -> None:
    events = run(1, 500)
    kept = record_of(card_of(events).final())["events"]
    assert [event["id"] for event in kept if event["kind"] not in ("step.facts", "doubts")] == [
        event.id for event in events
    ]
    said = [event for event in kept if event["kind"] not in ("step.facts", "doubts")]
    assert json.dumps(said).count("make part1") == 1
    assert (
        finished(kept)[0]["observation"]
        == next(e for e in events if isinstance(e, ev.CallFinished)).observation
    )


def test_what_is_said_nowhere_else_stays() -> None:
    edited = ev.CallProposed(step=1, call_id="a", tool="x", raw_arguments='{"a": 1}', arguments={"a": 1})
    unreadable = ev.CallProposed(step=1, call_id="b", tool="x", raw_arguments="{", arguments=None)
    started = ev.CallStarted(step=1, call_id="a", tool="x", arguments={"a": 2})
    cut = ev.CallFinished(step=1, call_id="a", observation="a…c", stdout="abc", stderr="c")
    kept = record_of(card_of([edited, unreadable, started, cut]).final())["events"]
    assert [kept[0]["arguments"], kept[2]["arguments"]] == [{"a": 1}, {"a": 2}]
    assert kept[1]["raw_arguments"] == "{"
    assert (kept[3]["stdout"], kept[3]["stderr"]) == ("abc", "c"), (
        "streams are not read out of what the model saw"
    )
