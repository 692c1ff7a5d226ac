"""A run that somebody else made and sent: its record alone runs no command on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import SUBMIT, bash, script, turn

from llm_sandbox_nb import Run, solve
from llm_sandbox_nb.agent.errors import InputError

pytestmark = pytest.mark.engine
WAYS: dict[str, Callable[..., Any]] = {
    "replay": lambda run, **options: run.replay(**options),
    "rebuild": lambda run, **options: run.rebuild(**options),
    "resume": lambda run, **options: run.resume("Once more.", **options),
    "fork": lambda run, **options: run.fork(0, **options).resume().close(),
}


@pytest.fixture
def received(tmp_path: Path) -> Run:
    """A recorded run without isolation; its commands, also that of the model's next turns, touch the canary."""
    touch = bash(f"touch {tmp_path / 'canary'}")
    model = script(tmp_path, turn(touch), SUBMIT, turn(touch), SUBMIT)
    run = asyncio.run(solve("A task.", model=model, isolation="process", output_dir=tmp_path / "runs"))
    (tmp_path / "canary").unlink()
    return Run.load(run.folder)


@pytest.mark.parametrize("way", WAYS)
def test_the_record_alone_does_not_choose_to_run_without_isolation(
    way: str, received: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LLM_SANDBOX_ISOLATION", raising=False)
    with pytest.raises(InputError, match='isolation="process" if you trust the commands'):
        WAYS[way](received)
    assert not (tmp_path / "canary").exists()
    assert len(list((tmp_path / "runs").iterdir())) == 1
    WAYS[way](received, isolation="process")
    assert (tmp_path / "canary").exists(), "the canary: without the protection the command runs here"


@pytest.mark.parametrize("way", WAYS)
def test_whoever_chose_to_run_everything_without_isolation_is_not_asked(
    way: str, received: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a pod of Binder does."""
    monkeypatch.setenv("LLM_SANDBOX_ISOLATION", "process")
    WAYS[way](received)
    assert (tmp_path / "canary").exists()
