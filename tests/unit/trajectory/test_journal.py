"""The journal on disk: complete to the last event, whatever was written and whenever it was cut."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from crash_points import at_every_change
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples

from llm_sandbox_nb.agent import recorder
from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory import journal as journal_file
from llm_sandbox_nb.trajectory.journal import (
    BLOB_THRESHOLD,
    Journal,
    JournalError,
    load_bytes,
    load_text,
    read_journal,
)
from llm_sandbox_nb.trajectory.run_folder import JOURNAL


def events(count: int) -> list[ev.Event]:
    return [ev.Noted(id=f"e{number}", text=f"nöte {number}\n😀") for number in range(count)]


def written(folder: Path, count: int) -> Path:
    journal = Journal(folder)
    for event in events(count):
        journal.append(event)
    journal.close()
    return journal.path


def test_every_append_is_on_disk_at_once_and_comes_back(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(read_journal(tmp_path))
    journal, kept = Journal(tmp_path), events(5)
    for number, event in enumerate(kept, 1):
        journal.append(event)
        assert list(read_journal(tmp_path)) == kept[:number]
    journal.close()
    journal.close()
    assert list(read_journal(journal.path)) == kept


def test_cut_anywhere_all_whole_lines_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, 4)
    data = path.read_bytes()
    for length in range(len(data) + 1):
        path.write_bytes(data[:length])
        found = list(read_journal(path))
        assert len(found) == data[:length].count(b"\n")


def append_some(folder: Path, told: int) -> None:
    journal = Journal(folder / "run")
    for event in events(3):
        journal.append(event)
        os.write(told, b"%s\n" % event.id.encode())
    text = journal.store_text("x" * (BLOB_THRESHOLD + 1))
    journal.append(ev.Noted(id="e3", text=text.preview))
    journal.close()


def test_killed_before_any_change_of_a_file_nothing_told_is_lost(tmp_path: Path) -> None:
    torn, points = 0, 0
    for folder, told in at_every_change(append_some, tmp_path):
        path = folder / "run" / JOURNAL
        found = [event.id for event in read_journal(path)] if path.exists() else []
        assert found == [f"e{number}" for number in range(len(found))]
        assert found[: len(told)] == told
        torn += path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
        journal = Journal(folder / "run")
        journal.append(ev.Noted(id="after", text=""))
        journal.close()
        assert [event.id for event in read_journal(path)] == [*found, "after"]
        points += 1
    assert (torn, points) == (4, 12)


def test_appending_after_a_crash_starts_on_a_line_of_its_own(tmp_path: Path) -> None:
    path = written(tmp_path, 3)
    data = path.read_bytes()
    for length in (0, 1, len(data) // 2, len(data) - 1, len(data)):
        path.write_bytes(data[:length])
        journal = Journal(tmp_path)
        journal.append(ev.Noted(id="after", text="x"))
        journal.close()
        found = [event.id for event in read_journal(path)]
        assert found == [f"e{number}" for number in range(data[:length].count(b"\n"))] + ["after"]


def test_a_torn_line_longer_than_a_block_is_dropped(tmp_path: Path) -> None:
    path = written(tmp_path, 2)
    whole = path.read_bytes()
    path.write_bytes(whole + b"x" * 300_000)
    Journal(tmp_path).close()
    assert path.read_bytes() == whole
    path.write_bytes(b"x" * 300_000)
    Journal(tmp_path).close()
    assert path.read_bytes() == b""


def test_nothing_is_appended_to_a_last_line_that_cannot_be_read(tmp_path: Path) -> None:
    """A reader ignores such a line only where no line follows."""
    path = written(tmp_path, 2)
    good = path.read_bytes()
    later = b'{"id":"x","time":1.0,"kind":"run.finished","stop_reason":"of a later version"}\n'
    path.write_bytes(good + later)
    with pytest.raises(JournalError, match=r"last line .* is not an event \(.*stop_reason"):
        Journal(tmp_path)
    assert path.read_bytes() == good + later
    assert [event.id for event in read_journal(path)] == ["e0", "e1"]
    path.write_bytes(good + b"torn")
    Journal(tmp_path).close()
    assert path.read_bytes() == good


def test_damage_in_the_middle_is_told_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, 3)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], b"{broken", *lines[2:]]))
    with pytest.raises(JournalError, match="line 2"):
        list(read_journal(path))


@pytest.mark.parametrize(
    "more",
    [
        '{"kind": "x"}\n' * 99,
        '{"kind": "x", "a": [' + "[]," * 999 + "1]}\n",
        '{"kind": "x", "a": [' + '"\\",",' * 999 + "1]}\n",
    ],
)
def test_a_small_file_does_not_fill_the_memory(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values of two bytes each need many times their size in memory. Marks in texts are no values."""
    monkeypatch.setattr(journal_file, "_MAX_VALUES", 999)
    text = json.dumps({"kind": "x", "text": '[{",' * 9999}) + "\n"
    (tmp_path / JOURNAL).write_text(text)
    assert len(list(read_journal(tmp_path))) == 1
    (tmp_path / JOURNAL).write_text(text + more + text)
    with pytest.raises(JournalError, match="the journal has more than 999 values"):
        list(read_journal(tmp_path))


@pytest.mark.parametrize("content", [b"a,b\n", b"[1, 2]\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n"])
def test_a_file_of_another_kind_is_no_journal(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(JournalError, match=r"table\.csv, line 1: not an event"):
        list(read_journal(path))


@pytest.mark.parametrize("time", ["Infinity", "NaN", "1e300", "-1", "1" + "0" * 400])
def test_a_time_that_no_calendar_has_makes_no_event(time: str, tmp_path: Path) -> None:
    """A received run with such a time would end the list of all runs."""
    (tmp_path / JOURNAL).write_text(f'{{"kind":"note","text":"t","time":{time}}}\n')
    with pytest.raises(JournalError, match="line 1: not an event"):
        list(read_journal(tmp_path))


def test_kinds_and_fields_of_a_later_version_are_kept(tmp_path: Path) -> None:
    line = '{"id":"x","parent":null,"time":1.0,"kind":"branch.made","more":{"a":[1]}}'
    (tmp_path / JOURNAL).write_text(f"{line}\n")
    (event,) = read_journal(tmp_path)
    assert isinstance(event, ev.UnknownEvent)
    assert ev.parse_event(ev.dump_event(event)) == event
    note = ev.parse_event('{"id":"y","time":1.0,"kind":"note","text":"t","later":true}')
    assert '"later":true' in ev.dump_event(note)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        "ünï".encode(),
        b"\xff\xfe",
        b"x" * (BLOB_THRESHOLD + 1),
        b"\x00\xff" * 50_000,
        "漢".encode() * 30_000,
    ],
)
def test_output_comes_back_byte_for_byte(tmp_path: Path, data: bytes) -> None:
    journal = Journal(tmp_path)
    stored = journal.store_bytes(data)
    assert journal.store_bytes(data) == stored
    journal.append(ev.CallFinished(step=1, call_id="c", observation="", stdout=stored))
    journal.close()
    (event,) = read_journal(tmp_path)
    assert isinstance(event, ev.CallFinished)
    assert load_bytes(tmp_path, event.stdout) == data
    assert load_text(tmp_path, event.stdout) == data.decode("utf-8", "replace")
    assert (tmp_path / JOURNAL).stat().st_size < BLOB_THRESHOLD * 3


def test_long_text_becomes_a_blob(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    text = "ä" * (BLOB_THRESHOLD + 1)
    stored = journal.store_text(text)
    journal.close()
    assert isinstance(stored, ev.Blob)
    assert load_text(tmp_path, stored) == text
    assert load_text(tmp_path, "plain") == "plain"


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(codec=None), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(500))
@given(
    st.dictionaries(st.text(max_size=8), VALUES, max_size=4), st.text(st.characters(codec=None), max_size=40)
)
def test_any_text_can_be_written_and_read(value: dict[str, object], text: str) -> None:
    """Lone surrogates too, which JSON in UTF-8 cannot hold: they are replaced."""
    event = ev.MessageAdded(message={"role": "user", "content": text, "more": value})
    line = ev.dump_event(event)
    assert "\n" not in line
    line.encode()
    again = ev.parse_event(line)
    assert isinstance(again, ev.MessageAdded)
    assert again.message == ev.clean_text(event.message)


def test_folders_of_runs_are_in_the_order_of_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for tick in range(80):  # over the end of a second
        monkeypatch.setattr(recorder.time, "time", lambda tick=tick: 1.8e9 + tick / 40)
        made.append(recorder.new_run_folder(tmp_path, "notebook"))
    assert sorted(made) == made


def test_a_folder_of_runs_on_a_disk_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to(tmp_path / "unmounted" / "runs")
    with pytest.raises(
        InputError, match=r"The run's folder cannot be made in .*: choose another output folder"
    ):
        recorder.new_run_folder(tmp_path / "runs", None)
