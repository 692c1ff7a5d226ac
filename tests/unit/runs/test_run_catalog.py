"""`llm-sandbox-nb runs`, `%sandbox runs`, and a run by a part of its name."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from llm_sandbox_nb import Run, solve
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.runs.catalog import disk_use, list_runs, plan_prune, prune
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import Journal
from llm_sandbox_nb.trajectory.replay_outcome import OUTCOME, write_outcome
from llm_sandbox_nb.trajectory.run_folder import (
    JOURNAL,
    RunNotFoundError,
    find_run_folder,
    short_ids,
)
from llm_sandbox_nb.trajectory.run_summary import summaries

DAY = 86400.0


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(name: str, *more: ev.Event, days: float = 0, root: str = "sandbox-runs", **start: Any) -> Path:
    folder = Path(root) / name
    ended = time.time() - days * DAY
    journal = Journal(folder)
    start = {"model": "scripted/x", "task": "Draw a poster.\nLarge.", "time": ended - 60, **start}
    journal.append(ev.RunStarted(run_id=folder.name, **start))
    for event in more or (ev.RunFinished(stop_reason="submitted", steps=3, usage=ev.Usage(prompt_tokens=5)),):
        journal.append(event)
    journal.close()
    (folder / "files").mkdir()
    (folder / "files" / "a.bin").write_bytes(b"x" * 100_000)
    os.utime(folder / JOURNAL, (ended, ended))
    return folder.absolute()


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["runs", *words]) == code
    out, err = capsys.readouterr()
    return out + err


def test_a_real_run_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    run = asyncio.run(solve("How many r's?", model="scripted/strawberry", isolation="process", name="nb"))
    line = said(capsys).splitlines()[0]
    assert re.match(
        r"[0-9a-f]{4}  +\d\d \w{3} \d\d:\d\d  Submitted, not checked +3 steps +[\d.]+ KB  scripted/strawberry  How",
        line,
    )
    (entry,) = json.loads(said(capsys, "--json"))
    assert entry["id"] == run.id
    assert entry["folder"] == str(Path("sandbox-runs/nb") / str(run.id))
    assert (entry["state"], entry["steps"], entry["tokens"]) == ("submitted", 3, run.usage.total_tokens)
    assert entry["bytes"] == disk_use([run.folder]) > 0
    assert Run.load(entry["short_id"]).folder == run.folder


def test_runs_of_all_notebooks_are_in_the_order_of_their_start(capsys: pytest.CaptureFixture[str]) -> None:
    make("20260101-120000-aaaa1111", time=300.0, root="sandbox-runs/one")
    make("20260101-120000-bbbb2222", time=100.0, root="sandbox-runs/two")
    make("20260101-120000-cccc3333", time=200.0)
    assert [entry.short_id for entry in list_runs(Path("sandbox-runs"))] == ["bbbb", "cccc", "aaaa"]
    assert [len(list_runs(Path("sandbox-runs"), most)) for most in (0, 1, 3, 4)] == [0, 1, 3, 3]
    assert said(capsys).splitlines()[-1].startswith("3 runs, ")


def test_states(capsys: pytest.CaptureFixture[str]) -> None:
    replied = ev.ModelReplied(step=1, message={"role": "assistant", "content": "Hm."})
    limits = {"limits": {"steps": 5}}
    make("20260101-120000-aaaa1111", ev.RunFinished(stop_reason="steps", steps=5), settings=limits)
    make("20260101-120000-bbbb2222", replied)
    make("20260101-120000-cccc3333", ev.RunFinished(stop_reason="submitted", steps=1), ev.Noted(text="later"))
    (make("20260101-120000-dddd4444") / JOURNAL).write_text("no event\nno event\n")
    opened = ev.SandboxReady(sandbox_id="s", protection={}, start_time=0.1, root="/testbed")
    running = make("20260101-120000-eeee5555", opened, replied)
    journal = Journal(running)
    out = said(capsys)
    states = {entry["short_id"]: entry["state"] for entry in json.loads(said(capsys, "--json"))}
    journal.close()
    assert "Step limit reached (5)" in out
    assert "Cut off at step 1" in out
    assert "Running · step 1" in out
    assert states == {
        "aaaa": "steps", "bbbb": "not_finished", "cccc": "submitted", "dddd": "unreadable", "eeee": "running",
    }  # fmt: skip


def test_a_list_shows_hostile_text_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    make("20260101-120000-aaaa1111", task="\x1b[31mred\nsecond", model="\x1b]0;title\x07")
    assert "\x1b" not in said(capsys)
    assert "\x07" not in said(capsys)


# --- a part of the name ---


def test_a_run_is_found_by_a_part_of_its_name() -> None:
    first, second = make("20260101-120000-abcd1111"), make("20260102-130000-abce2222", root="sandbox-runs/nb")
    root = Path("sandbox-runs")
    assert set(short_ids([first, second]).values()) == {"abcd", "abce"}
    for name, folder in (
        ("abcd", first), ("2222", second), ("20260102-130000-abce2222", second), ("130000", second), ("abcd1", first),
        (str(first), first),
    ):  # fmt: skip
        assert find_run_folder(name, root).resolve() == folder
        assert Run.load(name).folder == folder
    with pytest.raises(RunNotFoundError, match=r"'abc' matches 2 runs, .*write a longer part"):
        find_run_folder("abc", root)
    later = [make(f"2026010{day}-130000-abc{day}3333").name for day in (3, 4)]
    named = ", ".join([second.name, *later])
    with pytest.raises(
        RunNotFoundError, match=f"^'abc' matches 4 runs, such as {named}: write a longer part.$"
    ):
        find_run_folder("abc", root)
    with pytest.raises(FileNotFoundError, match=r"There is no run 'zzzz'.*`llm-sandbox-nb runs`"):
        Run.load("zzzz")


@pytest.mark.parametrize("name", ["", "..", "../x", "a/../../b", "*"])
def test_a_part_of_a_name_is_no_path_and_no_pattern(name: str) -> None:
    make("20260101-120000-abcd1111", root="sandbox-runs/nb")
    found = find_run_folder(name, Path("sandbox-runs")) if Path(name).exists() else None
    assert found is None or "abcd1111" not in found.name


def test_short_ids_are_longer_where_they_must_be() -> None:
    folders = [
        Path("20260101-120000-abcd1111"),
        Path("20260101-120000-abcd1222"),
        Path("20260102-120000-ffff0000"),
    ]
    assert list(short_ids(folders).values()) == ["abcd11", "abcd12", "ffff"]
    same = [Path("20260101-120000-abcd"), Path("20260102-120000-abcd")]
    assert list(short_ids(same).values()) == [one.name for one in same]


def test_show_and_export_take_a_short_id(capsys: pytest.CaptureFixture[str]) -> None:
    folder = make("20260101-120000-abcd1111")
    assert main(["show", "abcd"]) == 0
    assert "Draw a poster." in capsys.readouterr().out
    assert main(["export", "abcd", "--out", "run.html"]) == 0
    assert main(["show", "dcba"]) == 2
    assert "There is no run 'dcba'" in capsys.readouterr().err
    assert folder.is_dir()


# --- prune ---


def names(root: str = "sandbox-runs") -> list[str]:
    return sorted(path.parent.name[-8:-4] for path in Path(root).rglob(JOURNAL))


def test_prune_removes_what_the_rule_names_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    for days, letter in ((40, "a"), (31, "b"), (29, "c"), (1, "d")):
        make(f"20260101-120000-{letter * 4}1111", days=days)
    assert "Removed 2 of 2." in said(capsys, "--prune", "--older-than", "30", "--yes")
    assert names() == ["cccc", "dddd"]
    assert "0 runs to remove" in said(capsys, "--prune", "--older-than", "30", "--yes")
    assert "Removed 1 of 1." in said(capsys, "--prune", "--keep", "1", "--yes")
    assert names() == ["dddd"]
    assert [path.name for path in Path("sandbox-runs").iterdir()] == ["20260101-120000-dddd1111"]


def test_both_rules_together_spare_more() -> None:
    for days, letter in ((40, "a"), (39, "b"), (38, "c")):
        make(f"20260101-120000-{letter * 4}1111", days=days)
    plan = plan_prune(list_runs(Path("sandbox-runs")), days=30, keep=2)
    assert [entry.short_id for entry in plan.remove] == ["aaaa"]


def test_prune_asks_and_without_a_terminal_needs_yes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make("20260101-120000-aaaa1111", days=40)
    assert "add --yes" in said(capsys, "--prune", "--keep", "0", code=2)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    for answer in ("", "n", "no", "yes please"):
        monkeypatch.setattr("builtins.input", lambda _, answer=answer: answer)
        assert "Nothing was removed." in said(capsys, "--prune", "--keep", "0")
    assert names() == ["aaaa"]
    monkeypatch.setattr("builtins.input", lambda _: "y")
    assert "Removed 1 of 1." in said(capsys, "--prune", "--keep", "0")
    assert names() == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--prune",), "Choose the runs"),
        (("--keep", "3"), "add --prune"),
        (("--yes",), "add --prune"),
        (("--prune", "--keep", "many"), "--keep must be the number"),
        (("--prune", "--older-than", "soon"), "--older-than must be a number of days"),
        (("--prune", "--older-than", "-1"), "--older-than"),
        (("nowhere",), "There is no folder nowhere"),
    ],
)
def test_a_wrong_rule_removes_nothing(
    words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make("20260101-120000-aaaa1111", days=40)
    assert sentence in said(capsys, *words, code=2)
    assert names() == ["aaaa"]


def test_a_run_that_executes_stays(capsys: pytest.CaptureFixture[str]) -> None:
    folder = make("20260101-120000-aaaa1111", days=40)
    journal = Journal(folder)
    os.utime(folder / JOURNAL, (0, 0))
    assert "keeps  aaaa  it is in use" in said(capsys, "--prune", "--older-than", "30", "--yes")
    journal.close()
    assert names() == ["aaaa"]
    assert "Removed 1 of 1." in said(capsys, "--prune", "--older-than", "30", "--yes")


def test_a_run_that_begins_to_execute_after_the_plan_stays() -> None:
    folder = make("20260101-120000-aaaa1111", days=40)
    plan = plan_prune(list_runs(Path("sandbox-runs")), keep=0)
    assert len(plan.remove) == 1
    journal = Journal(folder)
    assert prune(plan) == ["20260101-120000-aaaa1111 is in use now, so it stays."]
    journal.close()
    assert names() == ["aaaa"]


def test_a_run_whose_sandbox_is_open_stays(capsys: pytest.CaptureFixture[str]) -> None:
    from llm_sandbox_nb.sandbox.history.pack_store import PackStore

    folder = make("20260101-120000-aaaa1111", days=40)
    store = PackStore(folder / "history")
    assert "it is in use" in said(capsys, "--prune", "--keep", "0", "--yes")
    store.close()
    assert "Removed 1 of 1." in said(capsys, "--prune", "--keep", "0", "--yes")


def test_what_a_fork_that_stays_was_forked_from_stays_too(capsys: pytest.CaptureFixture[str]) -> None:
    parent = make("20260101-120000-aaaa1111", days=40)
    came_from = ev.ForkedFrom(run_id="x", folder=parent.name, step=1, event="e")
    middle = make("20260101-120000-bbbb1111", days=39, forked_from=came_from)
    make("20260101-120000-cccc1111", days=1, forked_from=came_from.model_copy(update={"folder": middle.name}))
    make("20260101-120000-dddd1111", days=40)
    out = said(capsys, "--prune", "--older-than", "30", "--yes")
    assert "keeps  bbbb  cccc was forked from it" in out
    assert "keeps  aaaa  bbbb was forked from it" in out
    assert names() == ["aaaa", "bbbb", "cccc"]
    assert "Removed 3 of 3." in said(capsys, "--prune", "--keep", "0", "--yes")


def test_a_run_that_cannot_be_read_stays(capsys: pytest.CaptureFixture[str]) -> None:
    (make("20260101-120000-aaaa1111", days=40) / JOURNAL).write_text("no event\nno event\n")
    assert "it cannot be read" in said(capsys, "--prune", "--keep", "0", "--yes")
    assert names() == ["aaaa"]


def test_links_are_not_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = make("20260101-120000-eeee1111", days=40, root="elsewhere/nb")
    mine = make("20260101-120000-aaaa1111", days=40)
    root = Path("sandbox-runs")
    (root / "linked-run").symlink_to(elsewhere)
    (root / "linked-notebook").symlink_to(elsewhere.parent)
    (mine / "files" / "out").symlink_to(elsewhere)
    (mine / "files" / "one").symlink_to(elsewhere / "files" / "a.bin")
    assert [entry.short_id for entry in list_runs(root)] == ["aaaa"]
    assert disk_use([mine]) < 150_000
    assert "Removed 1 of 1." in said(capsys, "--prune", "--keep", "0", "--yes")
    assert (elsewhere / "files" / "a.bin").stat().st_size == 100_000
    assert (root / "linked-run").is_symlink()


def test_a_file_with_two_names_counts_once() -> None:
    folder = make("20260101-120000-aaaa1111")
    before = disk_use([folder])
    os.link(folder / "files" / "a.bin", folder / "files" / "b.bin")
    assert disk_use([folder]) == before


# --- what a list says ---


def test_the_newest_run_is_first_with_its_answer(capsys: pytest.CaptureFixture[str]) -> None:
    end = ev.RunFinished(stop_reason="submitted", answer="3 cities\nmore", steps=1)
    make("20260101-120000-aaaa1111", end, time=100.0)
    make("20260101-120001-bbbb2222", end.model_copy(update={"answer": None}), time=200.0)
    first, second, _ = said(capsys).splitlines()
    assert first.startswith("bbbb")
    assert first.endswith("Draw a poster.")
    assert second.endswith("Draw a poster.  → 3 cities")
    assert [entry["answer"] for entry in json.loads(said(capsys, "--json"))] == ["3 cities\nmore", None]


def test_a_replay_is_no_run_that_reached_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    first = make("20260101-120000-ffb91111").name
    of = {"settings": {"limits": {"steps": 100}, "replay_of": first}}
    end = ev.RunFinished(stop_reason="steps", steps=3)
    same = make("20260101-120001-aaaa2222", end, **of)
    other = make("20260101-120002-bbbb3333", end, **of)
    make("20260101-120003-cccc4444", end, **of)
    broken = make("20260101-120004-dddd5555", end, **of)
    write_outcome(same, [])
    write_outcome(other, [4, 2])
    (broken / OUTCOME).write_text('{"differing": "\\u001b[31m", "differing_steps": [{}]}')
    out = said(capsys)
    assert "Replay of ffb9: nothing differs" in out
    assert "Replay of ffb9: 2 steps differ, first step 2" in out
    assert out.count("Replay of ffb9  ") == 2, "nothing is known, or nothing that can be read"
    assert "Step limit" not in out
    listed = json.loads(said(capsys, "--json"))
    assert [(entry["state"], entry["replay_of"]) for entry in listed[1:]] == [("replay", first)] * 4
    in_lists = [one.run_state(live=False).words for one in summaries(same.parent, 9)[0]]
    assert sorted(in_lists) == [
        "Replay of ffb91111",
        "Replay of ffb91111",
        "Replay of ffb91111: 2 steps differ, first step 2",
        "Replay of ffb91111: nothing differs",
        "Submitted, not checked",
    ]
    assert main(["show", "aaaa"]) == 0
    shown = capsys.readouterr().out
    assert f"Replay of {first}: nothing differs" in shown
    assert "Step limit" not in shown


def test_a_replay_is_not_analyzed(capsys: pytest.CaptureFixture[str]) -> None:
    replied = ev.ModelReplied(step=1, message={"role": "assistant", "content": "3"})
    make("20260101-120000-aaaa1111", replied, ev.RunFinished(stop_reason="answered", steps=1))
    make("20260101-120001-bbbb2222", settings={"replay_of": "20260101-120000-aaaa1111"})
    assert main(["analyze", "sandbox-runs"]) == 0
    out, err = capsys.readouterr()
    assert re.search(r"^runs +1$", out, re.MULTILINE)
    assert "1 replay of a run left out" in err
