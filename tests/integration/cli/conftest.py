"""The command line of one test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import CommandLine, open_command_line


@pytest.fixture
def command_line(tmp_path: Path) -> Iterator[CommandLine]:
    """In an empty folder."""
    yield from open_command_line(tmp_path)
