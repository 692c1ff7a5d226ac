"""`start_run` at a real server that allows it: the run is one of the notebook's, with the notebook's model."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from jupyter_process import JupyterProcess
from live_runs import API
from outside_agents import OpenNotebook
from support import own_mark, processes_with, until

from llm_sandbox_nb.runs.run import Run


@pytest.fixture
def notebook(server: JupyterProcess, kernel: str) -> Iterator[OpenNotebook]:
    opened = OpenNotebook(server, kernel)
    yield opened
    opened.execute("%sandbox mcp --revoke")


def test_a_run_is_started_with_the_model_of_the_notebook(notebook: OpenNotebook) -> None:
    agent = notebook.client()
    task = f"How many r's are in strawberry? {own_mark()}"
    refused = agent.tool("start_run", task=task)
    assert refused["error"]
    assert "%sandbox model NAME" in refused["text"]
    assert "mcp_run_models" in agent.tool("start_run", task=task, model="openai/gpt-5")["text"]
    notebook.execute("%config SandboxMagics.model = 'scripted/strawberry'")
    for model in ({}, {"model": "scripted/strawberry"}):
        begun = agent.tool("start_run", task=task, **model)
        assert not begun["error"], begun
        found = agent.tool("get_run", run_id=begun["data"]["run_id"])
        while not found["data"]["ended"]:
            found = agent.tool("get_run", run_id=begun["data"]["run_id"], since=50, wait=5)
        assert "There are 3 r's" in found["data"]["answer"], found
    listed = [one for one in notebook.server.get(API)["runs"] if one["task"] == task]
    assert [(one["model"], one["kernel_id"]) for one in listed] == [
        ("scripted/strawberry", notebook.kernel_id)
    ] * 2
    assert all(one["cell"] for one in listed)  # the cell of `%sandbox mcp` shows the cards
    [journal] = notebook.server.folder.rglob(f"{listed[0]['id']}/journal.jsonl")
    assert Run.load(journal.parent).stop_reason == "submitted"


def test_no_run_is_started_while_a_person_uses_the_sandbox(notebook: OpenNotebook) -> None:
    agent, word = notebook.client(), own_mark()
    notebook.execute("%config SandboxMagics.model = 'scripted/strawberry'")
    cell = threading.Thread(target=notebook.execute, args=(f"%sandbox sh sleep {word}",))
    cell.start()
    until(lambda: processes_with(word))
    refused = agent.tool("start_run", task="Count.")
    assert refused["error"]
    assert (
        "This sandbox is in use now, by a person in a cell or a terminal, or by a command" in refused["text"]
    )
    assert notebook.server.ask(f"api/kernels/{notebook.kernel_id}/interrupt", "POST", {})[0] == 204
    cell.join()
