"""The official SDK's clients, of 1.28 and 2.3, in environments of their own, against the server and over stdio."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_process import JupyterProcess, jupyter
from outside_agents import OpenNotebook
from own_environments import environment
from pages import DOCS, examples_of
from support import PATIENCE, own_mark

from llm_sandbox_nb.mcp_server.tools import RUN_TOOLS, TOOLS
from llm_sandbox_nb.runs.run import Run

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "tests" / "mcp_sdk_client.py"
CLIENTS = (
    ("1.28.1", "legacy", "2025-11-25"),
    ("2.3.0", "legacy", "2025-11-25"),
    ("2.3.0", "auto", "2026-07-28"),
)
"""Version of the SDK, mode of its client, and version of the protocol that they agree on."""
STDIO = (sys.executable, "-c", "import sys; from llm_sandbox_nb.cli import main; sys.exit(main())", "mcp")


def sdk_python(version: str) -> Path:
    """A Python that has this version of `mcp`: 1.x and 2.x exclude each other in one environment."""
    return environment(f"mcp-{version}", f"mcp=={version}") / "python"


def task(sdk: str, *arguments: str, folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [str(sdk_python(sdk)), str(CLIENT), *arguments],
        cwd=folder, capture_output=True, text=True, timeout=4 * PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def check(found: dict[str, Any], version: str) -> None:
    """The files after the rewind, and those of the fork, are those before."""
    assert found["version"] == version
    assert found["tools"] == sorted(TOOLS.keys() - RUN_TOOLS)
    assert found["before"].count("\n") >= 2
    assert found["after"] == found["before"] == found["forked"]
    assert found["changes"] == ["added", "deleted", "modified"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterProcess]:
    with jupyter(tmp_path_factory.mktemp("jupyter")) as running:
        yield running


@pytest.fixture
def notebook(server: JupyterProcess) -> Iterator[OpenNotebook]:
    with server.warm_kernel() as kernel:
        opened = OpenNotebook(server, kernel)
        yield opened
        opened.execute("%sandbox mcp --revoke")


@pytest.mark.campaign
@pytest.mark.parametrize(("sdk", "mode", "version"), CLIENTS)
def test_the_sdk_over_http(notebook: OpenNotebook, tmp_path: Path, sdk: str, mode: str, version: str) -> None:
    url = f"{notebook.server.url}llm-sandbox/mcp"
    check(task(sdk, mode, "http", url, notebook.token, folder=tmp_path), version)
    assert len([step for step in notebook.run().steps if step.calls]) >= 6


@pytest.mark.campaign
def test_the_program_of_the_docs_page(notebook: OpenNotebook) -> None:
    examples = examples_of(DOCS / "how-to" / "mcp.md")
    (program,) = (example.text for example in examples if "import httpx2" in example.text)
    for given, ours in (("http://127.0.0.1:8888/", notebook.server.url), ("lsnb_...", notebook.token)):
        assert program.count(given) == 1
        program = program.replace(given, ours)
    done = subprocess.run(
        [str(sdk_python("2.3.0")), "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert "\na.txt\n" in done.stdout, done.stderr[-3000:]


@pytest.mark.campaign
@pytest.mark.parametrize(("sdk", "mode", "version"), CLIENTS)
def test_the_sdk_over_stdio_with_a_sandbox_of_its_own(
    tmp_path: Path, sdk: str, mode: str, version: str
) -> None:
    check(task(sdk, mode, "stdio", *STDIO, "--isolation", "process", folder=tmp_path), version)
    [folder, _] = sorted((tmp_path / "sandbox-runs").iterdir())
    assert Run.load(folder).stop_reason == "interrupted"


@pytest.mark.campaign
@pytest.mark.parametrize(("sdk", "mode", "version"), CLIENTS)
def test_the_sdk_over_stdio_in_an_open_notebook(
    notebook: OpenNotebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sdk: str, mode: str, version: str
) -> None:
    wrapper = tmp_path / "bridge.sh"
    wrapper.write_text(f"#!/bin/sh\nJUPYTER_RUNTIME_DIR={notebook.server.runtime} exec {shlex.join(STDIO)}\n")
    wrapper.chmod(0o700)
    check(task(sdk, mode, "stdio", str(wrapper), folder=tmp_path), version)
    assert not (tmp_path / "sandbox-runs").exists()
    assert len([step for step in notebook.run().steps if step.calls]) >= 6


class Stdio:
    """A plain client over stdio, of the old era."""

    def __init__(self, folder: Path, *words: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [*STDIO, *words], cwd=folder, env=env, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._number = 0

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        self.send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        return self.read()

    def send(self, message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{message if isinstance(message, str) else json.dumps(message)}\n")
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line: dict[str, Any] = json.loads(self.process.stdout.readline())
        return line

    def end(self) -> tuple[int, str]:
        """Close its stdin; its exit code, and what it wrote to stderr."""
        _, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, errors


def test_stdio_gives_a_sandbox_of_its_own_and_ends_with_its_client(tmp_path: Path) -> None:
    client = Stdio(tmp_path, "--isolation", "process")
    begun = client.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "c"})
    assert begun["result"]["protocolVersion"] == "2025-06-18"
    client.send("no json")
    assert client.read()["error"]["code"] == -32700
    client.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    called = client.ask("tools/call", name="run_command", arguments={"command": "echo noise; pwd"})
    assert called["result"]["structuredContent"]["exit_code"] == 0
    number = client._number + 1
    long = {"name": "run_command", "arguments": {"command": f"sleep {own_mark()}"}}
    client.send({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": long})
    client.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}})
    client._number = number
    after = client.ask("tools/call", name="run_command", arguments={"command": "echo free"})
    assert after["result"]["structuredContent"]["stdout"] == "free\n"
    code, errors = client.end()
    assert code == 0, errors
    [folder] = (tmp_path / "sandbox-runs").iterdir()
    assert next(step.calls[0].tool for step in Run.load(folder).steps if step.calls) == "execute_bash"


def test_a_signal_ends_stdio_while_it_waits_for_a_message(tmp_path: Path) -> None:
    client = Stdio(tmp_path, "--isolation", "process")
    client.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "c"})
    client.process.terminate()
    assert client.process.wait(PATIENCE) == 130
    assert "Fatal" not in client.end()[1]


def test_an_output_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    code, errors = Stdio(tmp_path, "--isolation", "process", "--output_dir", "/proc/none").end()
    assert (code, errors.count("\n")) == (2, 1), errors
    assert "choose another output folder" in errors


def test_a_notebook_that_is_not_open_is_said(tmp_path: Path) -> None:
    notebook = tmp_path / "a.ipynb"
    for said in ("does not exist; check the path", "%sandbox mcp"):
        code, errors = Stdio(tmp_path, "--notebook", str(notebook)).end()
        assert (code, said in errors) == (2, True)
        notebook.touch()
