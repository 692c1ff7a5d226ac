"""A model that cannot be asked is found before a sandbox is started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import support

from llm_sandbox_nb.cli import main
from llm_sandbox_nb.model import remote_model
from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.sandbox.contract import Sandbox


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        one for one in os.environ if one.endswith(("_API_KEY", "_AUTH_TOKEN", "_BASE_URL", "_API_BASE"))
    ]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("model", "message", "imports"),
    [
        ("openai/gpt-5", "No API key: set OPENAI_API_KEY", 0),
        ("anthropic/claude-sonnet-4-5", "No API key: set ANTHROPIC_API_KEY", 0),
        ("opnai/gpt-5", "opnai", 1),
    ],
)
def test_a_missing_key_or_provider_starts_nothing(
    model: str, message: str, imports: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LiteLLM, whose import takes seconds, is imported only for a provider that nothing else knows."""
    monkeypatch.delitem(sys.modules, "litellm", raising=False)
    imported: list[object] = []

    async def loaded() -> object:
        imported.append(await load())
        return imported[-1]

    load = remote_model.loaded
    monkeypatch.setattr(remote_model, "loaded", loaded)
    opened: list[str] = []

    async def open_box() -> Sandbox:
        opened.append("box")
        raise AssertionError

    async def attempt() -> None:
        opening = open_box()
        try:
            await solve("Do it.", model=model, sandbox=opening, output_dir=tmp_path)
        finally:
            opening.close()

    with pytest.raises(ModelError, match=message):
        support.run(attempt())
    assert len(imported) == imports
    assert not opened
    assert not list(tmp_path.iterdir()), "nor a folder"


def test_the_command_line_says_it_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "Do it.", "--model", "openai/gpt-5", "--isolation", "process"]) == 3
    told = capsys.readouterr()
    assert told.err.startswith("No API key")
    assert len(told.err.strip().splitlines()) == 1
    assert "Step 1" not in told.out
    assert not (tmp_path / "output").exists()
