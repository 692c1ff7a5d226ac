"""A rewound run, sent as OpenTelemetry spans to a real Phoenix, which shows them as an agent, models and tools.

Phoenix is large, so it has an environment of its own below `.cache`. It needs no network.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import SUBMIT, bash, script, solved, turn
from jupyter_process import free_port
from own_environments import environment
from support import PATIENCE, run, until

from llm_sandbox_nb.cli import main
from llm_sandbox_nb.runs.run import Run

PINNED = "arize-phoenix==20.26.1"


def asked(address: str) -> Any:
    """The JSON at an address; None if nothing answers."""
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
            return json.loads(answer.read() or b"null")
    except OSError:
        return None


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port = tmp_path_factory.mktemp("phoenix"), free_port()
    settings = {
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    address = f"http://127.0.0.1:{port}"
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [str(environment("phoenix", PINNED) / "phoenix"), "serve"],
            env=os.environ | settings,
            stdout=log,
            stderr=log,
        )
        try:
            until(lambda: asked(f"{address}/v1/projects") is not None)
            yield address
        finally:
            process.terminate()
            process.wait()


async def rewound_run(folder: Path) -> Run:
    turns = (turn(bash("echo one > a.txt")), turn(bash("exit 3")), SUBMIT)
    result = await solved(folder, *turns)
    await result.rewind(1)
    await result.resume(model=script(folder, *turns), isolation="process")
    await result.close()
    return result


@pytest.mark.campaign
def test_phoenix_shows_both_branches_with_the_kinds_and_the_tokens_of_their_spans(
    phoenix: str, tmp_path: Path
) -> None:
    result = run(rewound_run(tmp_path))
    assert main(["convert", str(result.folder), f"{phoenix}/v1/traces", "--content"]) == 0
    spans: list[dict[str, Any]] = []

    def all_arrived() -> bool:
        spans[:] = (asked(f"{phoenix}/v1/projects/default/spans?limit=100") or {}).get("data", [])
        return len(spans) == 12

    until(all_arrived)
    # HEAD has three replies and calls; the other branch shares the first, so it has two.
    assert Counter(span["span_kind"] for span in spans) == {"AGENT": 2, "LLM": 5, "TOOL": 5}
    roots = {span["context"]["span_id"]: span for span in spans if span["parent_id"] is None}
    assert {span["span_kind"] for span in roots.values()} == {"AGENT"}
    for span in spans:
        if span["parent_id"] is not None:
            assert span["context"]["trace_id"] == roots[span["parent_id"]]["context"]["trace_id"]
    models = [span["attributes"] for span in spans if span["span_kind"] == "LLM"]
    assert all(one["llm.token_count.prompt"] >= 0 and one["llm.model_name"] for one in models)
    tools = [span["attributes"] for span in spans if span["span_kind"] == "TOOL"]
    assert Counter(one["tool.name"] for one in tools) == {"execute_bash": 3, "submit": 2}
    assert "echo one > a.txt" in {one.get("tool.parameters.command") for one in tools}
    [agent, other] = sorted(roots.values(), key=lambda span: "llm_sandbox_nb.branch" in span["attributes"])
    assert agent["attributes"]["llm_sandbox_nb.stop_reason"] == "submitted"
    assert other["attributes"]["llm_sandbox_nb.branch"]
