"""The command line of one test, in a process of its own or in this one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import CommandLine, open_command_line


@pytest.fixture
def command_line(tmp_path: Path) -> Iterator[CommandLine]:
    yield from open_command_line(tmp_path)


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty folder and no key, address or proxy of this machine, for `main` in this process."""
    for name in list(os.environ):
        if name.endswith(("_API_KEY", "_BASE_URL", "_API_BASE")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
