"""Published MCP servers, in an environment of their own, as tools of the model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from agent_scripts import SUBMIT, outputs, solved, turn
from support import PATIENCE, run

CACHE = Path(__file__).parents[3] / ".cache"
SERVERS = ("mcp-server-time", "mcp-server-git", "mcp-server-fetch")


def installed() -> Path:
    """The folder with the programs of the servers."""
    folder = CACHE / "mcp-servers"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, timeout=PATIENCE)
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *SERVERS]
        subprocess.run(install, check=True, timeout=10 * PATIENCE)
        (folder / "ready").touch()
    return folder / "bin"


@pytest.mark.campaign
def test_three_published_servers(tmp_path: Path) -> None:
    programs, repository = installed(), tmp_path / "repository"
    subprocess.run(["git", "init", "-q", "-b", "trunk", str(repository)], check=True)
    configured = {name.rpartition("-")[2]: {"command": str(programs / name)} for name in SERVERS}
    time = {"time": "12:00", "source_timezone": "Asia/Tokyo", "target_timezone": "America/Lima"}
    page = {"url": "http://127.0.0.1:1/page", "max_length": 10}
    result = run(
        solved(
            tmp_path,
            turn({"tool": "time__convert_time", "arguments": time}),
            turn({"tool": "git__git_status", "arguments": {"repo_path": str(repository)}}),
            turn({"tool": "fetch__fetch", "arguments": page}),
            turn({"tool": "time__convert_time", "arguments": {**time, "source_timezone": "Nowhere"}}),
            SUBMIT,
            mcp=configured,
            mcp_allow=list(configured),
        ),
        timeout=PATIENCE,
    )
    converted, status, fetched, wrong, _ = outputs(result)
    assert "-14.0h" in converted
    assert "trunk" in status
    assert fetched.startswith("Error: ")
    assert wrong.startswith("Error: ")
    start = result.trajectory.start
    assert start is not None
    facts = [server["server"] for server in start.settings["mcp"].values()]
    assert all(one["name"] and one["version"] and one["protocol"] for one in facts)
