"""The card: whole at the end, bounded while it is live, and the same from a record."""

from __future__ import annotations

import base64
import json
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import nbformat
import pytest
from card_checks import not_static, read
from card_runs import card_of, run_events, saved_file, start_event, step_events
from support import record_of

from llm_sandbox_nb.card import tables
from llm_sandbox_nb.card.bundle import MIME, Caps
from llm_sandbox_nb.card.card import Bundle, Card
from llm_sandbox_nb.card.page import style
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory

TABLE = {"columns": [{"name": "a", "type": "int64"}], "rows": [["1"]], "total_rows": 1, "width": 1}
ROOT = Path(__file__).parents[3]
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def shown(bundle: Bundle) -> str:
    """The text of the page, without its style sheet."""
    page: str = bundle["text/html"]
    return "".join(read(page.partition("<style>")[0] + page.partition("</style>")[2]).text)


def test_the_final_card_holds_the_whole_run() -> None:
    bundle = card_of(run_events(3, answer="There are **3**.")).final()
    assert set(bundle) == {MIME, "text/html", "text/plain"}
    text = shown(bundle)
    for part in (
        "Submitted",
        "3 steps · 45 tokens in all · 3.0 s · scripted/x · scripted: free",
        "Docker, network: open",
        "Count the letters.",
        "echo 2",
    ):
        assert part in text
    assert "<strong>3</strong>" in bundle["text/html"]
    assert "network open" in text
    assert "There are **3**." in bundle["text/plain"]
    kinds = [event["kind"] for event in record_of(bundle)["events"]]
    assert kinds.count("step.facts") == 3, "what is said of a step is in the record"
    assert len(kinds) - 4 == len(run_events(3)) - 3, (
        "transient events are not kept; lines and doubts are added"
    )


def test_the_bundle_folds_to_the_same_run() -> None:
    card = card_of(run_events(4))
    events = record_of(card.final())["events"]
    loaded = Trajectory(map(ev.parse_python, events))
    assert [step.calls[0].output for step in loaded.steps] == ["out\n"] * 4
    assert loaded.answer == card.trajectory.answer
    assert card_of(loaded.events).final()["text/plain"] == card.final()["text/plain"]


def test_a_notebook_with_the_bundle_is_valid(tmp_path: Path) -> None:
    card = card_of([*run_events(1), saved_file(tmp_path, "a.png", PNG)], folder=tmp_path)
    output = nbformat.v4.new_output("display_data", card.final(), metadata=card.metadata)
    cell = nbformat.v4.new_code_cell("%%sandbox", outputs=[output])
    assert nbformat.validator.isvalid(nbformat.v4.new_notebook(cells=[cell]))


def test_files_are_embedded_within_the_caps(tmp_path: Path) -> None:
    events = [
        *run_events(1),
        saved_file(tmp_path, "small.png", PNG),
        saved_file(tmp_path, "big.png", b"x" * 501),
        saved_file(tmp_path, "a.txt", b"y" * 400),
        saved_file(tmp_path, "b.txt", b"z" * 400),
    ]
    bundle = card_of(events, Caps(artifact=500, run=700), tmp_path).final()
    kept = record_of(bundle)["artifacts"]
    assert base64.b64decode(kept["small.png"]["data"]) == PNG
    assert "larger than the limit of 500 B for a file" in kept["big.png"]["omitted"]
    assert "data" in kept["a.txt"]
    assert "what is left of the run's limit" in kept["b.txt"]["omitted"]
    assert f"data:image/png;base64,{base64.b64encode(PNG).decode()}" in bundle["text/html"]
    assert "some files are only in the run's folder" in shown(bundle).lower()


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("SECRET-CONTENT")
    event = saved_file(tmp_path, "a.txt", b"x" * 14)
    (tmp_path / "files" / "a.txt").unlink()
    (tmp_path / "files" / "a.txt").symlink_to(secret)
    bundle = card_of([event], folder=tmp_path).final()
    assert "SECRET-CONTENT" not in json.dumps([bundle, record_of(bundle)])
    assert "SECRET-CONTENT" in (tmp_path / "files" / "a.txt").read_text(), "the canary: the link leads there"


def test_texts_of_the_record_are_clipped_until_they_fit_and_that_is_said() -> None:
    card = card_of(run_events(5, output="x" * 50_000), Caps(events=100_000, text=1_000))
    bundle = card.final()
    assert len(json.dumps(record_of(bundle)["events"])) <= 110_000
    assert bundle[MIME]["text_limit"] == 4_000
    assert "clipped to 4,000 characters" in shown(bundle)


def test_a_very_long_run_lists_its_last_steps_and_counts_the_others() -> None:
    bundle = card_of(run_events(300, output="word " * 400)).final()
    assert len(bundle["text/html"]) < 90_000
    text = " ".join(shown(bundle).split())
    assert (
        "1-299 299 reads, nothing changed 4.5k · 2 min 30 s99 steps before100 $ I look. echo 100 15" in text
    )
    assert "echo 300" in text
    assert len(record_of(bundle)["events"]) > 1_500, "all are in the record"
    assert not not_static(bundle["text/html"])


def test_the_live_card_shows_the_last_steps_and_streams_output() -> None:
    card = card_of([start_event()])
    for number in range(1, 31):
        for event in step_events(number):
            card.add(event)
    card.add(
        ev.CallProposed(
            step=31, call_id="z", tool="execute_bash", raw_arguments="", arguments={"command": "make"}
        )
    )
    card.add(ev.CallStarted(step=31, call_id="z", tool="execute_bash", arguments={"command": "make"}))
    card.add(ev.CallOutput(call_id="z", stream="stdout", text="compiling 1\n"))
    first = shown(card.live())
    card.add(ev.CallOutput(call_id="z", stream="stdout", text="compiling 2\n"))
    second = shown(card.live())
    assert "compiling 1" in first
    assert "compiling 2" not in first
    assert "compiling 2" in second
    assert "16 steps before" in second
    assert second.count("echo 30") == 1
    assert "echo 16" not in second
    assert MIME not in card.live()


def test_an_update_costs_the_same_at_any_step() -> None:
    """Functions that are called to add a step's events and render the live card, at step 200 against step 20."""
    card = card_of([start_event()])
    calls, sizes = Counter[int](), dict[int, int]()
    for number in range(1, 201):
        if number in (20, 200):
            sys.setprofile(lambda *_, number=number: calls.update((number,)))
        try:
            for event in step_events(number, output="some output\n" * 200):
                card.add(event)
            sizes[number] = len(card.live()["text/html"])
        finally:
            sys.setprofile(None)
    assert sizes[200] < sizes[20] * 1.2
    assert 1000 < calls[200] < calls[20] * 1.2, calls


def test_live_files_are_bounded(tmp_path: Path) -> None:
    card = card_of([start_event()], folder=tmp_path)
    card.add(saved_file(tmp_path, "small.png", PNG))
    for number in range(20):
        card.add(saved_file(tmp_path, f"big{number}.png", b"\x89PNG" + bytes(70_000)))
    bundle = card.live()
    assert len(bundle["text/html"]) < 500_000
    assert "big19.png" in bundle["text/html"]


def test_the_live_card_forgets_files_that_it_shows_no_more(tmp_path: Path) -> None:
    card = card_of([start_event()], folder=tmp_path)
    kept = []
    for number in range(30):
        event = saved_file(tmp_path, "plot.png", PNG + bytes([number]))
        card.add(event.model_copy(update={"sha256": f"{number:064}"}))
        card.live()
        kept.append(len(pickle.dumps(card._files)))
    assert kept[-1] < 2 * kept[0]


def test_of_many_parquet_files_the_first_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    monkeypatch.setattr(tables, "find_spec", lambda name: True)
    monkeypatch.setattr(tables, "first_rows", lambda data: read.append(data) or TABLE)
    saved = [saved_file(tmp_path, f"part{number:02}.parquet", b"%d" % number) for number in range(20)]
    bundle = card_of([start_event(), *saved], folder=tmp_path).final()
    assert read == [b"%d" % number for number in range(10)]
    assert bundle["text/html"].count("Only the first 10 Parquet files are shown.") == 10
    kept = record_of(bundle)["artifacts"]
    assert ["preview" in kept[f"part{number:02}.parquet"] for number in (9, 10)] == [True, False]
    assert base64.b64decode(kept["part19.parquet"]["data"]) == b"19"


def test_a_later_version_of_a_file_takes_the_place_of_the_earlier(tmp_path: Path) -> None:
    card = card_of([start_event(), saved_file(tmp_path, "a.txt", b"first")], folder=tmp_path)
    assert "first" in shown(card.live())
    card.add(saved_file(tmp_path, "a.txt", b"second").model_copy(update={"sha256": "1" * 64}))
    assert "second" in shown(card.live())
    assert "first" not in shown(card.final())


def test_the_answer_file_is_not_shown_beside_the_same_answer(tmp_path: Path) -> None:
    answer = saved_file(tmp_path, "answer.txt", b"forty-two\n")
    card = card_of([answer, *run_events(1, answer="forty-two")], folder=tmp_path)
    assert shown(card.final()).count("forty-two") == 1
    assert "answer.txt" in record_of(card.final())["artifacts"]


def test_a_run_that_was_killed_says_so() -> None:
    events = run_events(2)[:-3]
    assert "Cut off at step 2" in shown(card_of(events).final())


def test_the_live_card_says_how_to_stop_and_the_final_one_does_not() -> None:
    """It has no buttons: it is shown in VS Code and Colab, where no page can reach a busy kernel."""
    card = card_of([start_event()])
    assert "Interrupt the cell to stop the run." in shown(card.live())
    assert "Interrupt the cell" not in shown(card.final())


def test_a_card_without_events_is_harmless() -> None:
    assert shown(Card().live()).split() == ["●", "Starting", "the", "sandbox", "0", "steps"]


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.png", PNG, "<img alt='a.png' loading='lazy' src='data:image/png;base64,"),
        ("a.JPG", b"x", "src='data:image/jpeg;base64,"),
        ("a.gif", b"x", "src='data:image/gif;base64,"),
        ("a.webp", b"x", "src='data:image/webp;base64,"),
        ("a.svg", b"<svg/>", "<iframe sandbox="),
        ("a.html", b"<p>hi", "<iframe sandbox="),
        ("a.wav", b"x", "<audio controls preload='metadata' src='data:audio/wav;base64,"),
        ("a.mp3", b"x", "src='data:audio/mpeg;base64,"),
        ("a.ogg", b"x", "src='data:audio/ogg;base64,"),
        ("a.mp4", b"x", "<video controls preload='none' style='max-width:100%' src='data:video/mp4;base64,"),
        ("a.webm", b"x", "src='data:video/webm;base64,"),
        ("a.mid", b"x", "<a download='a.mid' href='data:audio/midi;base64,"),
        ("a.csv", b"h,i\n1,2\n", "<td>2</td>"),
        ("a.csv", b"h;i\n1;2\n", "<th>i</th>"),
        ("a.csv", b"h\n\n" + b"1\n\n" * 50, ">20 more rows<"),
        ("a.tsv", b"h\ti\n1\t2\n", "<td>2</td>"),
        ("a.md", b"# Title\n\n**bold**", "<h1>Title</h1>"),
        ("a.json", b'{"a":[1]}', "<pre>{\n  &quot;a&quot;: [\n    1"),
        ("a.pdf", b"x", "<object type='application/pdf' data='data:application/pdf;base64,"),
        ("a.py", b"x = 1", "<pre>x = 1</pre>"),
        ("a.xyz", b"x", "<a download='a.xyz' href='data:application/octet-stream;base64,"),
    ],
)
def test_each_kind_of_file_is_shown_as_what_it_is(
    tmp_path: Path, name: str, data: bytes, expected: str
) -> None:
    page = card_of([saved_file(tmp_path, name, data)], folder=tmp_path).final()["text/html"]
    assert expected in page
    assert not not_static(page)


def test_only_what_cannot_run_is_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "r 1"
    names = ["a b.png", "map.html", "x.svg", "X.HTM", "d.pdf", "x.xml", "x.js", "x.unknown", "none"]
    names += [
        f"run.{suffix}" for suffix in ("shtm", "ehtml", "xht", "xhtm", "atom", "rss", "xbl")
    ]  # in Chromium
    card = card_of([saved_file(folder, name, b"x") for name in names], folder=folder)
    page = card.final()["text/html"]
    assert "href='runs/r%201/files/a%20b.png'" in page
    assert page.count("<a href=") == 1


def test_a_parquet_file_is_a_table(tmp_path: Path) -> None:
    import pandas as pd

    path = tmp_path / "t.parquet"
    pd.DataFrame({"city": ["Tokyo"] * 100, "n": range(100)}).to_parquet(path)
    page = card_of([saved_file(tmp_path, "t.parquet", path.read_bytes())], folder=tmp_path).final()[
        "text/html"
    ]
    assert "<th>city</th>" in page
    assert "70 more rows" in page
    broken = card_of([saved_file(tmp_path, "t.parquet", b"PAR1 not")], folder=tmp_path).final()["text/html"]
    assert "Not a Parquet file that can be read" in broken


def test_long_tables_say_how_much_more_there_is(tmp_path: Path) -> None:
    data = "\n".join(",".join(str(n) for n in range(30)) for _ in range(100)).encode()
    page = card_of([saved_file(tmp_path, "t.csv", data)], folder=tmp_path).final()["text/html"]
    assert "69 more rows, 10 more columns" in page


def test_a_small_parquet_file_that_holds_far_more_does_not_take_the_kernel_along(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"a": ["x" * (8 * 1024 * 1024)] * 30})
    pq.write_table(table, tmp_path / "bomb.parquet", compression="zstd")
    data = (tmp_path / "bomb.parquet").read_bytes()
    assert len(data) < 10_000
    tracker = "import sys; from llm_sandbox_nb.card.tables import parquet_rows, parquet_table; "
    tracker += "page = parquet_table(parquet_rows(sys.stdin.buffer.read())); "
    tracker += "print(len(page), open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
    done = subprocess.run([sys.executable, "-c", tracker], input=data, capture_output=True, cwd=ROOT)
    length, kilobytes = map(int, done.stdout.split())
    assert length < 20_000
    assert kilobytes < 150_000


def test_the_card_says_what_was_spent_of_the_budget_while_the_run_executes() -> None:
    card = Card()
    limits = {"limits": {"cost": 0.5, "steps": 9}}
    card.add(ev.RunStarted(run_id="r", task="t", model="openai/x", settings=limits))
    card.add(ev.ModelRequested(step=1))
    usage = ev.Usage(prompt_tokens=4000, cost=0.04)
    card.add(ev.ModelReplied(step=1, message={"role": "assistant", "content": "."}, usage=usage))
    for bundle in (card.live(), card.final()):
        assert "$0.04 of $0.50" in bundle["text/plain"]
        assert "$0.04 of $0.50" in bundle["text/html"]
    card.add(ev.SettingsChanged(limits={"cost": None}))
    assert " of $" not in card.live()["text/plain"]


def test_the_style_is_for_what_is_in_a_card_alone() -> None:
    """The live view beside a card has classes of the same names."""
    outer, depth = [""], 0
    for letter in style().removeprefix("<style>").removesuffix("</style>"):
        depth += (letter == "{") - (letter == "}")
        if letter == "}" and depth == 0:
            outer.append("")
        elif depth == 0:
            outer[-1] += letter
    selectors = [one for rule in outer if rule for one in rule.split(",")]
    assert len(selectors) == 5
    assert {one.split()[-1] for one in selectors} == {".lsn"}
