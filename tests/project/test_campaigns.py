"""The table that says which campaigns CI runs for a change."""

from __future__ import annotations

import fnmatch
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "campaigns.py"
ROWS = [line.split() for line in SCRIPT.with_suffix(".txt").read_text().splitlines() if line[:1].isdigit()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1])
def test_a_row_names_a_campaign_and_files_that_exist(row: list[str]) -> None:
    _, test, *patterns = row
    text = (ROOT / test).read_text()
    assert test.startswith(("tests/performance/", "tests/contract/")) or "campaign" in text.lower()
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    for pattern in patterns:
        assert fnmatch.filter(files, pattern), pattern


def choose(folder: Path, budget: int) -> tuple[list[str], str]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(budget)], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.split(), done.stderr


def commit(folder: Path, path: str) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text("x")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], [*who, "commit", "-qm", path]):
        subprocess.run(["git", *words], cwd=folder, check=True)


def test_what_was_changed_decides(tmp_path: Path) -> None:
    commit(tmp_path, "README.md")
    everything, told = choose(tmp_path, 10**6)
    assert len(everything) == len(ROWS)
    assert "git cannot tell" in told
    commit(tmp_path, "llm_sandbox_nb/sandbox/history/pack_store.py")
    chosen, _ = choose(tmp_path, 10**6)
    assert "tests/unit/sandbox/test_store_kills.py" in chosen
    assert "tests/unit/project/test_packaging.py" not in chosen
    commit(tmp_path, "docs/index.md")
    assert choose(tmp_path, 10**6)[0] == []
    subprocess.run(["git", "switch", "-qc", "work"], cwd=tmp_path, check=True)
    commit(tmp_path, "llm_sandbox_nb/server/relay.py")
    commit(tmp_path, "docs/more.md")
    assert "tests/integration/server/test_server_kills.py" in choose(tmp_path, 10**6)[0]


def test_a_budget_leaves_out_and_says_what(tmp_path: Path) -> None:
    commit(tmp_path, "README.md")
    chosen, told = choose(tmp_path, 20)
    assert chosen == ["tests/unit/sandbox/test_store_kills.py"]
    assert "left out for lack of time: tests/integration/sandbox/test_history_kills.py (60 s)" in told
