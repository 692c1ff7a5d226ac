"""A command that was killed because memory was used up says so, where the cgroup does."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_sandbox_nb.sandbox.executor import memory_kills as module

V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
V2 = "low 0\nhigh 0\nmax 12\noom 1\noom_kill 3\noom_group_kill 0\n"


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    places = ((tmp_path / "v2.events", tmp_path / "v2.max"), (tmp_path / "v1.oom", tmp_path / "v1.limit"))
    monkeypatch.setattr(module, "_PLACES", tuple((str(events), str(limit)) for events, limit in places))
    return tmp_path


@pytest.mark.parametrize(("name", "text"), [("v2.events", V2), ("v1.oom", V1)])
def test_the_kills_of_both_versions_are_counted(cgroup: Path, name: str, text: str) -> None:
    assert module.memory_kills() == 0, "no cgroup tells"
    (cgroup / name).write_text(text)
    assert module.memory_kills() == 3
    (cgroup / name).write_text("oom_kill many\n")
    assert module.memory_kills() == 0


@pytest.mark.parametrize(
    ("name", "limit", "said"),
    [
        ("v2.max", "4294967296\n", "Killed: out of memory (limit 4 GB)."),
        ("v1.limit", "536870912\n", "Killed: out of memory (limit 512 MB)."),
        ("v1.limit", "9223372036854771712\n", "Killed: out of memory."),
        ("v2.max", "max\n", "Killed: out of memory."),
    ],
)
def test_the_limit_is_named_where_there_is_one(cgroup: Path, name: str, limit: str, said: str) -> None:
    (cgroup / name).write_text(limit)
    assert module.describe_memory_kill() == said
