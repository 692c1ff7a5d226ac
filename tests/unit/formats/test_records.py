"""Records of other projects: which a file is, what it is instead, and files that were made to harm."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_sandbox_nb.formats import inspect_log, received
from llm_sandbox_nb.formats.entries import REST
from llm_sandbox_nb.formats.records import NoRecordError, read_bytes, read_file, read_run, split_name
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.trajectory.trajectory import Trajectory

DATA = Path(__file__).parents[2] / "data"
SAMPLES = sorted((DATA / "records").glob("*/*.traj*"))


def read(content: Any) -> Trajectory:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (run,) = read_bytes(data, "x")
    return run.trajectory


def refused(content: Any) -> str:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    with pytest.raises(NoRecordError) as caught:
        read_bytes(data, "x", "The file")
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 700
    return said


# --- real files ---


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_real_file_is_read(path: Path) -> None:
    run = read_run(path)
    steps = run.trajectory.steps
    assert run.form == path.parent.name
    assert run.trajectory.stop_reason == "submitted"
    assert "issue" in run.trajectory.start.task if run.trajectory.start else False
    assert len(steps) == {"github_issue.traj.json": 10, "local.traj.json": 2}.get(path.name, 5)
    calls = [call for step in steps for call in step.calls]
    assert len(calls) == len(steps)
    assert all(call.result is not None for call in calls if call.tool != "submit")
    assert all(step.thought for step in steps)


def test_commands_of_real_files_are_read() -> None:
    mini = read_run(DATA / "records" / "mini-swe-agent" / "github_issue.traj.json").trajectory
    first = mini.steps[0].calls[0]
    assert first.arguments == {
        "command": "cat /Users/fuchur/Documents/24/git_sync/swe-agent-test-repo/tests/./missing_colon.py"
    }
    assert first.exit_code == 1
    assert first.result is not None
    assert str(first.result.stdout).startswith("cat: ")
    older = read_run(DATA / "records" / "swe-agent" / "older.traj").trajectory
    assert older.answer is not None
    assert older.answer.startswith("\ndiff --git a/tests/missing_colon.py")
    assert older.finish is not None
    assert older.finish.usage.cost == pytest.approx(0.53839)
    assert not any("demonstration" in str(message["content"]) for message in older.messages())


def test_a_real_file_is_a_run_of_the_package() -> None:
    run = Run.load(DATA / "records" / "swe-agent" / "test-repo.traj")
    assert [step.calls[0].tool for step in run.steps] == ["bash"] * 4 + ["submit"]
    assert run.messages[0]["role"] == "system"


# --- small ones of each form ---

CALL = {"id": "a", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
OPENAI = [
    {"role": "user", "content": "Count."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "a", "content": "3"},
    {"role": "assistant", "content": "Three."},
]
ANTHROPIC = [
    {"role": "user", "content": "Count."},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "x"},
            {"type": "tool_use", "id": "a", "name": "bash", "input": {"command": "ls"}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "3"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "Three."}]},
]
ATIF = {
    "schema_version": "ATIF-v1.4",
    "agent": {"name": "other", "version": "2", "model_name": "m"},
    "steps": [
        {"step_id": 1, "source": "user", "message": "Count.", "timestamp": "2026-01-02T03:04:05Z"},
        {
            "step_id": 2,
            "source": "agent",
            "message": [{"type": "text", "text": "I look."}, {"type": "image", "source": {"path": "a.png"}}],
            "tool_calls": [{"tool_call_id": "a", "function_name": "bash", "arguments": {"command": "ls"}}],
            "observation": {"results": [{"content": "3"}]},
            "metrics": {"prompt_tokens": 5, "completion_tokens": 2, "cost_usd": 0.5},
        },
        {"step_id": 3, "source": "agent", "message": "Three."},
    ],
}
RESPONSES = {
    "trajectory_format": "mini-swe-agent-1.1",
    "info": {"exit_status": "Submitted", "submission": "Three."},
    "messages": [
        {"role": "user", "content": "Count."},
        {
            "object": "response",
            "output": [
                {"type": "function_call", "call_id": "a", "name": "bash", "arguments": '{"command": "ls"}'}
            ],
        },
        {"type": "function_call_output", "call_id": "a", "output": "3", "extra": {"returncode": 0}},
    ],
}

MINI_CALL = {"role": "assistant", "content": "```bash\nls\n```"}
SWE_STEP = {"action": "ls", "observation": "3"}
SEED_STEP = {"thought": "", "action": {"function": "bash", "parameters": {}}, "observation": "3"}


@pytest.mark.parametrize(
    ("content", "form"),
    [(OPENAI, "openai"), ({"messages": OPENAI, "tools": []}, "openai"), (ANTHROPIC, "anthropic"), (ATIF, "atif"),
     (RESPONSES, "mini-swe-agent")],
)  # fmt: skip
def test_a_small_record_of_each_form(content: Any, form: str) -> None:
    (run,) = read_bytes(json.dumps(content).encode(), "x")
    assert run.form == form
    found = run.trajectory
    assert found.start is not None
    assert found.start.task == "Count."
    first = found.steps[0].calls[0]
    assert (first.tool, first.arguments, first.output) == ("bash", {"command": "ls"}, "3")
    assert found.answer == "Three."
    assert found.stop_reason in ("answered", "submitted")


def test_times_tokens_and_pictures_of_atif() -> None:
    found = read(ATIF)
    assert found.steps[0].usage is not None
    assert (found.usage.total_tokens, found.steps[0].usage.cost) == (7, 0.5)
    assert found.steps[0].thought == "I look.[image]"
    assert found.events[1].time == 1767323045.0


def test_a_file_with_several_runs_names_them(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text("\n".join(json.dumps({"messages": OPENAI}) for _ in range(3)))
    assert [run.name for run in read_file(path)] == ["0", "1", "2"]
    with pytest.raises(NoRecordError, match=r"holds 3 runs \(0, 1, 2\): name one, such as .*many\.jsonl#0"):
        read_run(path)
    assert split_name(f"{path}#2") == (path, "2")
    assert Run.load(f"{path}#2").answer == "Three."
    with pytest.raises(NoRecordError, match="has no run 7"):
        Run.load(f"{path}#7")


# --- what is none ---


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "empty"),
        (b"# A page\n", "text"),
        (b"\x89PNG\r\n\x1a\n", "a PNG picture"),
        (b"PK\x05\x06" + b"\0" * 18, "an empty ZIP archive"),
        ({"nbformat": 4, "cells": []}, "a Jupyter notebook"),
        ({"resourceSpans": []}, "a file of OpenTelemetry spans"),
        ({"a": 1, "b\n": 2}, "a JSON object with a, "),
        ([{"rule": 1}], "a list of JSON objects with rule"),
        ([1, 2], "a JSON list of 2"),
        (3, "text"),
    ],
)
def test_a_file_that_is_not_a_record_is_named(content: Any, kind: str) -> None:
    assert refused(content).startswith(f"The file is {kind}")


# --- made to harm ---

DEEP = b'{"messages":' + b"[" * 200_000 + b"]" * 200_000 + b"}"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (DEEP, "nested too deeply"),
        (b'{"messages": [{"role": "user", "content": NaN}]}', "NaN"),
        (b'{"messages": [{"role": "user", "content": 1e999}]}', "too large"),
        (b'{"messages": [{"role": "user", "content": ' + b"9" * 5000 + b"}]}", "4300 digits"),
        (b'{"messages": [', "not JSON"),
        (b'{"steps": [], "a": "\xff"}', "UTF-8"),
        ({"schema_version": "ATIF-v1.8", "steps": 3}, "steps is not an array"),
        ({"schema_version": "ATIF-v1.8", "steps": [3]}, "steps is not an array of objects"),
        ({"schema_version": "ATIF-v1.8", "agent": [], "steps": []}, "agent is not an object"),
        ({"schema_version": "ATIF-v1.8", "steps": [{"source": {}, "message": ""}]}, "source is not a text"),
        ({"messages": [{"role": "user", "content": 3}]}, "neither text nor"),
        ({"messages": [{"role": "assistant", "tool_calls": 3}]}, "tool_calls is not an array"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": 3}]}]}, "function is not an object"),
        ({"messages": [], "info": {"extra": {REST: 3}}}, REST),
        ({"messages": [], "info": {"extra": {REST: [{"kind": "model.replied", "step": "x"}]}}}, "step"),
        ({"trajectory": [{"action": "ls", "observation": ""}], "history": 3}, "history is not an array"),
        ({"trajectory": [{"action": "ls", "observation": ""}, {"action": []}]}, "action is not a text"),
    ],
)  # fmt: skip
def test_a_damaged_record_is_one_sentence(content: Any, why: str) -> None:
    assert why in refused(content)


@pytest.mark.parametrize("time", ["99999-01-01", "1899-01-01", -1, 1.8e12])
def test_odd_numbers_do_not_count(time: object) -> None:
    odd = {"prompt_tokens": -5, "completion_tokens": 2**70, "cached_tokens": True, "cost_usd": "x"}
    step = {"source": "agent", "message": "", "metrics": odd, "timestamp": time}
    found = read({**ATIF, "steps": [step]})
    assert {event.time for event in found.events} == {0.0}
    assert found.usage.total_tokens == 0
    assert found.usage.cost is None
    stats = {"tokens_sent": -5, "tokens_received": 2**70, "instance_cost": "x"}
    end = read({"trajectory": [SWE_STEP], "info": {"exit_status": "submitted", "model_stats": stats}}).finish
    assert end is not None
    assert (end.usage.total_tokens, end.usage.cost) == (0, None)


@pytest.mark.parametrize(
    "content",
    [
        {"info": {}, "messages": [MINI_CALL, {"role": "user", "content": "<output>" * 50_000}]},
        {"problem_statement": "?", "steps": [{**SEED_STEP, "observation": " " * 200_000}]},
    ],
    ids=["mini-swe-agent", "llm-in-sandbox"],
)
def test_the_time_to_read_a_hostile_output_grows_with_its_length_only(content: Any) -> None:
    started = time.process_time()
    assert len(read(content).steps) == 1
    assert time.process_time() - started < 5


def test_a_rest_cannot_lead_out_of_its_run() -> None:
    """A rewind in a stranger's rest leads nowhere, and a parent that it names does not count."""
    rest = [
        {"kind": "rewound", "to": "nowhere", "step": 9},
        {"kind": "note", "text": "x", "parent": "nowhere"},
    ]
    found = read({**ATIF, "extra": {REST: rest}})
    assert [event.parent for event in found.events][1:] == [event.id for event in found.events[:-1]]


def archive(**files: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in files.items():
            packed.writestr(name.replace("__", "/") + ".json", data)
    return made.getvalue()


def damaged(packed: bytes) -> bytes:
    """The archive with wrong bytes in the compressed data of its first file."""
    start = packed.index(b".json") + len(b".json")
    return packed[:start] + b"\xff" * 4 + packed[start + 4 :]


ARRAYS = b"[" + b"[]," * 1_500_000 + b"[]]"


def test_branches_repeat_a_limited_number_of_messages() -> None:
    """A few bytes could ask for the whole conversation again, any number of times."""
    pytest.importorskip("inspect_ai")
    branches = [{"shared": 1001, "messages": []}] * 1000
    own = {"metadata": {REST: {"run_id": "r", "branches": branches}}}
    messages = [{"role": "user", "content": "x"}] * 1000
    with pytest.raises(ValueError, match="its branches have more than 200,000 messages"):
        inspect_log.sample_events({"messages": messages, **own}, "m", "run")


def test_an_archive_that_is_not_a_log() -> None:
    assert "a ZIP archive" in refused(archive(other=b"{}"))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (archive(header=b"{}", samples__1_epoch_1=b"[" * 100_000 + b"]" * 100_000), "too deeply"),
        (archive(header=b"{" * 5_000_000), "objects and arrays"),
        (
            archive(header=b"{}", samples__1=ARRAYS, samples__2=ARRAYS, samples__3=ARRAYS),
            "objects and arrays",
        ),
        (archive(header=b'{"version": 2}'), "Inspect cannot read it"),
        (archive(header=b"{}")[:-40], "a ZIP archive"),
        (damaged(archive(header=b"{}" + b" " * 500)), "a damaged ZIP archive"),
        (b'{"version": 2, "eval": 3, "samples": []}', "Inspect cannot read it"),
    ],
    ids=["deep", "many", "many together", "empty", "cut", "damaged", "json"],
)
def test_a_damaged_log_is_one_sentence(data: bytes, why: str) -> None:
    pytest.importorskip("inspect_ai")
    assert why in refused(data)


BOMB = """
import sys
from pathlib import Path
from llm_sandbox_nb.formats import inspect_log
from llm_sandbox_nb.formats.records import NoRecordError, read_file
inspect_log.MAX_UNPACKED_BYTES = 32 * 1024**2
try:
    read_file(Path(sys.argv[1]))
except NoRecordError as error:
    print(error)
# Not the figure of getrusage, which begins with the memory of the process that started this one.
print(int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) // 1024)
"""


def attack(path: Path) -> tuple[str, int]:
    """What a process of its own says of a file, and the MiB of memory that it took at most."""
    done = subprocess.run(
        [sys.executable, "-c", BOMB, str(path)], capture_output=True, text=True, timeout=300, check=True
    )
    *said, most = done.stdout.splitlines()
    return " ".join(said), int(most)


def test_a_zip_bomb_takes_no_more_memory_than_a_log_may(tmp_path: Path) -> None:
    path = tmp_path / "bomb.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("header.json", b"{}")
        with packed.open("samples/1_epoch_1.json", "w", force_zip64=True) as file:
            for _ in range(400):
                file.write(b" " * 1024**2)
    assert path.stat().st_size < 1024**2
    said, most = attack(path)
    assert "its files have more than" in said
    assert most < 350


def test_a_bomb_of_objects_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json"
    path.write_bytes(b'{"messages": [' + b"[]," * 20_000_000 + b"[]]}")
    said, most = attack(path)
    assert "objects and arrays" in said
    assert most < 400


def test_the_bound_on_objects_stops_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"[" + b"{}," * 100 + b"{}]"
    monkeypatch.setattr(received, "MAX_CONTAINERS", 50)
    assert "more than 50 objects" in refused(data)
    lines = b"\n".join([b"[" + b"{}," * 30 + b"{}]"] * 3)
    assert "more than 50 objects" in refused(lines)
    monkeypatch.setattr(received, "MAX_CONTAINERS", 500)
    assert "a list of JSON objects" in refused(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(
        st.sampled_from(["messages", "role", "content", "steps", "source", "tool_calls", "function", "extra", "info",
                         "trajectory", "history", "action", "observation", "schema_version", REST, "kind", "type"]),
        inside, max_size=4,
    ),
    max_leaves=25,
)  # fmt: skip
BASES = [
    ATIF,
    RESPONSES,
    {"messages": OPENAI},
    ANTHROPIC,
    {"trajectory": [{"action": "a", "observation": "b"}], "history": []},
]


@settings(deadline=None)
@given(base=st.sampled_from(BASES), data=st.data())
def test_any_part_may_be_anything(base: Any, data: st.DataObject) -> None:
    """A part of a good record is replaced with anything: it is read, or refused in one sentence."""
    content = json.loads(json.dumps(base))
    holder, key = content, None
    while isinstance(holder, dict | list) and holder and data.draw(st.integers(0, 4)):
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        key = data.draw(st.sampled_from(list(keys)))
        if not isinstance(holder[key], dict | list) or not holder[key]:
            break
        holder = holder[key]
    if key is not None and isinstance(holder, dict | list) and holder:
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        holder[data.draw(st.sampled_from(list(keys)))] = data.draw(JSON)
    runs = []
    with contextlib.suppress(NoRecordError):
        runs = read_bytes(json.dumps(content).encode(), "x")
    for run in runs:
        assert run.trajectory.state(live=False).words
        list(run.trajectory.messages())
