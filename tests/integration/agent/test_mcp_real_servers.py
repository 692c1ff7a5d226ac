"""Published MCP servers, in an environment of their own and without a network, as tools of the model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import mcp_tool_server
import pytest
from agent_scripts import SUBMIT, outputs, solved, turn
from npm_packages import installed
from support import PATIENCE, run

CACHE = Path(__file__).parents[3] / ".cache"
SERVERS = ("mcp-server-time", "mcp-server-git", "mcp-server-fetch")
NO_NETWORK = ("--dev-bind", "/", "/", "--unshare-net", "--die-with-parent", "--")
"""Arguments of bubblewrap before a program that gets all files and no network."""


def programs_of_servers() -> Path:
    folder = CACHE / "mcp-servers"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, timeout=PATIENCE)
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *SERVERS]
        subprocess.run(install, check=True, timeout=10 * PATIENCE)
        (folder / "ready").touch()
    return folder / "bin"


@pytest.mark.campaign
def test_three_published_servers(tmp_path: Path) -> None:
    programs, repository = programs_of_servers(), tmp_path / "repository"
    subprocess.run(["git", "init", "-q", "-b", "trunk", str(repository)], check=True)
    configured = {
        name.rpartition("-")[2]: {"command": "bwrap", "args": [*NO_NETWORK, str(programs / name)]}
        for name in SERVERS
    }
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


@pytest.mark.campaign
def test_the_published_server_of_files(tmp_path: Path) -> None:
    program = installed(Path(__file__).parent / "mcp_npm_servers") / ".bin" / "mcp-server-filesystem"
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "dot.png").write_bytes(mcp_tool_server.PICTURE)
    text = folder / "list.txt"

    def call(tool: str, **arguments: str) -> dict[str, Any]:
        return turn({"tool": f"files__{tool}", "arguments": arguments})

    result = run(
        solved(
            tmp_path,
            call("write_file", path=str(text), content="a\nb\n"),
            call("read_text_file", path=str(text)),
            call("list_directory", path=str(folder)),
            call("read_media_file", path=str(folder / "dot.png")),
            call("read_text_file", path="/etc/hostname"),
            SUBMIT,
            mcp={"files": {"command": "bwrap", "args": [*NO_NETWORK, str(program), str(folder)]}},
            mcp_allow="files",
        ),
        timeout=PATIENCE,
    )
    _, read, listed, picture, outside, _ = outputs(result)
    assert text.read_text() == "a\nb\n"
    assert read.startswith("a\nb")
    assert "list.txt" in listed
    assert picture.startswith("[file: ")
    assert outside.startswith("Error: ")
    (name,) = result.files
    assert Path(result.files[name].path).read_bytes() == mcp_tool_server.PICTURE
