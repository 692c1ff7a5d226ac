"""Text under way: whoever asks, however often, gets each character once; what is replaced is forgotten."""

from __future__ import annotations

import errno
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_sandbox_nb.server.runs import EventStore, PublishedRun
from llm_sandbox_nb.trajectory.live_tail import MAX_STREAM_CHARACTERS, LiveTail

PIECE = st.one_of(
    st.builds(
        lambda call, stream, text: {
            "kind": "call.output",
            "call_id": call,
            "stream": stream,
            "text": text,
            "id": "i",
        },
        st.sampled_from("ab"),
        st.sampled_from(["stdout", "stderr"]),
        st.text(max_size=5),
    ),
    st.builds(
        lambda text, reasoning: {
            "kind": "model.delta",
            "step": 1,
            "text": text,
            "reasoning": reasoning,
            "id": "i",
        },
        st.text(max_size=5),
        st.text(max_size=5),
    ),
)


class Reader:
    """Puts the pieces together as they say where they belong."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self.texts: dict[tuple[str, str], str] = {}
        self.ids: list[str] = []

    def read(self, tail: LiveTail) -> None:
        for piece in tail.since(self.seen):
            self.ids.append(
                piece["id"] + piece["kind"] + str(piece.get("call_id")) + str(piece.get("stream"))
            )
            for field in ("text", "reasoning"):
                if text := piece.get(field):
                    stream = str(piece.get("stream", field))
                    key = (str(piece.get("call_id")), stream)
                    before = self.texts.get(key, "")
                    assert piece["at"] == len(before), "nothing twice, nothing left out"
                    self.texts[key] = before + text


def together(events: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    whole: dict[tuple[str, str], str] = {}
    for event in events:
        for field in ("text", "reasoning"):
            if text := event.get(field):
                key = (str(event.get("call_id")), str(event.get("stream", field)))
                whole[key] = whole.get(key, "") + text
    return whole


@given(st.lists(st.tuples(PIECE, st.booleans()), max_size=30))
def test_every_reader_gets_everything_once_also_over_a_relay(
    given: list[tuple[dict[str, Any], bool]],
) -> None:
    """`relay` is fed from the first as the server is from the kernel, at times with pieces it has already."""
    tail, relay = LiveTail(), LiveTail()
    eager, late, behind = Reader(), Reader(), Reader()
    sent: dict[int, int] = {}
    for event, broken in given:
        tail.add(event)
        eager.read(tail)
        if broken:
            sent = {}
        for piece in list(tail.since(sent)):
            relay.add(json.loads(json.dumps(piece)))
        behind.read(relay)
    late.read(relay)
    whole = together([event for event, _ in given])
    assert eager.texts == whole
    assert behind.texts == whole
    assert late.texts == whole


def test_what_a_written_event_replaces_is_forgotten() -> None:
    tail, reader = LiveTail(), Reader()
    output = {"kind": "call.output", "call_id": "a", "stream": "stdout", "text": "abc", "id": "1"}
    delta = {"kind": "model.delta", "step": 1, "text": "first try", "reasoning": "", "id": "2"}
    assert tail.add(output)
    assert tail.add(delta)
    assert not tail.add({**output, "at": 0}), "a piece that came before holds no new text"
    reader.read(tail)
    tail.written({"kind": "model.requested", "step": 1})
    tail.add({**delta, "text": "second"})
    assert [piece["text"] for piece in tail.since(reader.seen)] == ["second"]
    assert [piece["at"] for piece in tail.since({})] == [0, 0]
    tail.written({"kind": "call.finished", "step": 1, "call_id": "a"})
    assert [piece["text"] for piece in tail.since({})] == ["second"]
    tail.written({"kind": "run.finished"})
    assert not list(tail.since({}))
    assert not tail.add({**output, "text": ""})


def test_the_end_of_much_output_is_kept() -> None:
    tail = LiveTail()
    for number in range(10_000):
        tail.add(
            {"kind": "call.output", "call_id": "a", "stream": "stdout", "text": f"{number:099d}\n", "id": "1"}
        )
    [piece] = tail.since({})
    assert MAX_STREAM_CHARACTERS <= len(piece["text"]) <= 2 * MAX_STREAM_CHARACTERS
    assert piece["text"].endswith("9999\n")
    assert piece["at"] + len(piece["text"]) == 1_000_000


def test_a_store_gives_back_what_it_got() -> None:
    store = EventStore(full_at=100_000)
    events = [{"kind": "note", "text": "é\n" * number} for number in range(200)]
    for event in events:
        store.append(event)
    read: list[Any] = []
    while lines := store.read(len(read), 1000):
        assert sum(map(len, lines)) <= 1000 or len(lines) == 1
        read += [json.loads(line) for line in lines]
    assert read == events
    store.close()
    assert (len(store), store.read(0, 10)) == (0, [])


def test_a_full_store_clips() -> None:
    store = EventStore(full_at=10)
    store.append({"kind": "note", "text": "x" * 10_000})
    store.append({"kind": "note", "text": "y" * 10_000, "list": ["z" * 10_000]})
    whole, clipped = (json.loads(line) for line in store.read(0, 10**6))
    assert whole["text"] == "x" * 10_000
    assert clipped["text"] == "y" * 2000 + " [... 8000 more characters]"
    assert len(clipped["list"][0]) < 2100
    store.close()


class SmallDisk(io.FileIO):
    """A file that has room for 100 bytes."""

    def write(self, data: Any) -> int:
        if self.tell() >= 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data[: 100 - self.tell()])


@pytest.mark.parametrize("room", [True, False])
def test_a_full_disk_clips_and_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    def made(**_: object) -> SmallDisk:
        if not room:
            raise FileNotFoundError("No usable temporary directory found")
        return SmallDisk(tmp_path / "events", "w+b")

    monkeypatch.setattr(tempfile, "TemporaryFile", made)
    run = PublishedRun("r", "k", "o", full_at=10**6)
    small = {"kind": "noted", "id": "a", "text": "é"}
    events = [small, small, {"kind": "noted", "id": "b", "text": "x" * 10_000}, small]
    run.take(0, events)
    run.take(4, [{"kind": "run.finished", "id": "c", "stop_reason": "submitted"}])
    assert (len(run.store), run.state) == (5, "finished")
    read: list[Any] = []
    while lines := run.store.read(len(read), 200):
        assert sum(map(len, lines)) <= 200 or len(lines) == 1
        read += map(json.loads, lines)
    assert [event["kind"] for event in read] == ["noted"] * 4 + ["run.finished"]
    assert [read[0], read[1], read[3]] == [small] * 3
    assert read[2]["text"] == "x" * 2000 + " [... 8000 more characters]"
    run.store.close()
    assert len(run.store) == 0
