"""Outside agents at a real server: their calls are steps of a run in the notebook's kernel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_process import JupyterProcess
from outside_agents import OpenNotebook, PlainClient
from support import own_mark, processes_with, until

from llm_sandbox_nb.trajectory import events as ev


@pytest.fixture
def notebook(server: JupyterProcess, kernel: str) -> Iterator[OpenNotebook]:
    opened = OpenNotebook(server, kernel)
    yield opened
    opened.execute("%sandbox mcp --revoke")


def test_a_task_with_rewind_and_fork_is_a_run_of_the_notebook(notebook: OpenNotebook) -> None:
    agent = notebook.client()
    assert notebook.printed.count("Bearer") == 0  # the token is in the file only
    first = agent.tool("run_command", command="echo one > a.txt; cat a.txt; echo no >&2; exit 3")
    assert (first["data"]["exit_code"], first["data"]["stdout"], first["data"]["stderr"]) == (
        3,
        "one\n",
        "no\n",
    )
    assert not first["error"]
    assert "one" in first["text"]
    assert "a.txt" in json.dumps(first["data"]["changes"])
    assert agent.tool("write_file", file_path="b.py", content="x = 1\ny = 1\n")["data"]["checkpoint"] == "2"
    assert agent.tool("create_checkpoint", label="good")["data"]["label"] == "good"
    assert (
        agent.tool("edit_file", path="b.py", old_str="1", new_str="2", replace_all=True)["data"][
            "replacements"
        ]
        == 2
    )
    assert agent.tool("read_file", path="b.py", offset=2)["data"]["content"] == "y = 2\n"
    assert "-x = 1" in agent.tool("show_changes", from_="good")["text"]
    fork = agent.tool("fork", from_="good", label="other")["data"]["sandbox"]
    assert agent.tool("read_file", path="b.py", sandbox=fork)["data"]["content"] == "x = 1\ny = 1\n"
    assert agent.tool("rewind", to="good")["data"]["step"] == 3
    assert agent.tool("read_file", path="b.py")["data"]["content"] == "x = 1\ny = 1\n"
    assert agent.tool("rewind", to="undo")["error"] is False
    assert agent.tool("read_file", path="b.py")["data"]["content"] == "x = 2\ny = 2\n"
    run = notebook.run()
    assert [step.calls[0].tool for step in run.steps if step.calls][:3] == [
        "execute_bash", "write_file", "create_checkpoint",
    ]  # fmt: skip
    assert sum(isinstance(event, ev.Rewound) for event in run.trajectory.events) == 2
    assert any(isinstance(event, ev.Forked) for event in run.trajectory.events)
    assert any("trajectory" in name for bundle in notebook.shown for name in bundle)


def test_a_client_of_the_old_era_does_the_same(notebook: OpenNotebook) -> None:
    agent = notebook.client(modern=False)
    assert {tool["name"] for tool in agent.result("tools/list")["tools"]} >= {"run_command", "rewind", "fork"}
    assert agent.tool("run_command", command="pwd")["data"]["exit_code"] == 0
    assert agent.tool("rewind", to=0)["data"]["step"] == 0


def test_a_person_approves_refuses_changes_and_stops(server: JupyterProcess, kernel: str) -> None:
    notebook = OpenNotebook(server, kernel, "--approve ask")
    agent = notebook.client()

    def ask(command: str) -> str:
        waiting = agent.tool("run_command", command=command, wait=0.1)
        assert waiting["data"]["status"] in ("waiting", "running"), waiting
        return str(waiting["data"]["command_id"])

    approved = ask("echo approved")
    assert notebook.decide(action="resume", call_id=notebook.held()["call_id"])[0] == 200
    assert agent.tool("wait_command", command_id=approved)["data"]["stdout"] == "approved\n"

    refused = ask("rm -rf /")
    assert notebook.decide(action="skip", text="Not that.", call_id=notebook.held()["call_id"])[0] == 200
    answer = agent.tool("wait_command", command_id=refused)
    assert answer["error"]
    assert "Not that." in answer["text"]
    assert answer["data"]["status"] == "refused"

    changed = ask("echo wrong")
    held = notebook.held()["call_id"]
    assert notebook.decide(action="edit", changes={"command": "echo right"}, call_id=held)[0] == 200
    answer = agent.tool("wait_command", command_id=changed)
    assert answer["data"]["stdout"] == "right\n"
    assert "echo right" in answer["text"]

    held_back = ask("echo never")
    notebook.held()
    assert notebook.decide(action="stop")[0] == 200
    assert agent.tool("wait_command", command_id=held_back)["error"]
    until(lambda: notebook.model["state"] == "finished")
    assert "%sandbox mcp" in agent.tool("run_command", command="true")["text"]
    assert notebook.run().stop_reason == "interrupted"
    notebook.open()
    assert agent.tool("run_command", command="true")["data"]["exit_code"] == 0  # the token stays valid


def test_another_approval_applies_to_a_sandbox_that_is_open_already(notebook: OpenNotebook) -> None:
    agent = notebook.client()
    assert agent.tool("run_command", command="true")["data"]["exit_code"] == 0
    assert "open to outside agents already" in notebook.open("--approve ask")
    asked = agent.tool("run_command", command="touch done", wait=0.1)["data"]["command_id"]
    assert notebook.decide(action="skip", text="No.", call_id=notebook.held()["call_id"])[0] == 200
    assert agent.tool("wait_command", command_id=asked)["data"]["status"] == "refused"
    notebook.open()
    waiting = agent.tool("run_command", command="true", wait=0.1)["data"]["command_id"]
    assert notebook.decide(action="resume", call_id=notebook.held()["call_id"])[0] == 200
    assert agent.tool("wait_command", command_id=waiting)["data"]["exit_code"] == 0
    notebook.open("--approve auto")
    assert agent.tool("run_command", command="true")["data"]["exit_code"] == 0


def test_a_token_that_could_not_be_written_is_not_kept(notebook: OpenNotebook) -> None:
    notebook.execute("%sandbox mcp --revoke")
    notebook.file.unlink()
    assert "cannot be written" in notebook.execute(f"%sandbox mcp --out {notebook.file}/none")
    notebook.open()
    assert notebook.client().tool("run_command", command="true")["data"]["exit_code"] == 0


def test_a_rewind_asks_before_it_undoes_what_a_person_or_a_run_did(notebook: OpenNotebook) -> None:
    asking, mute = notebook.client(elicits=True), notebook.client()
    asking.tool("run_command", command="echo agent > agent.txt")
    asking.tool("list_checkpoints")
    until(lambda: notebook.run().steps[-1].checkpoint is not None or len(notebook.run().steps) > 1)
    notebook.execute("%sandbox sh echo person > person.txt")
    refused = mute.tool("rewind", to="0")
    assert refused["error"]
    assert "person.txt" in refused["text"]
    question = asking.message("tools/call", {"name": "rewind", "arguments": {"to": "0"}})
    asked = asking.post(question)[2]["result"]
    assert asked["resultType"] == "input_required"
    [(key, request)] = asked["inputRequests"].items()
    assert "person.txt" in request["params"]["message"]

    def answer(agree: bool, state: str = asked["requestState"], to: str = "0") -> dict[str, object]:
        agreed = {"action": "accept", "content": {"undo": True}} if agree else {"action": "decline"}
        retry = {
            "name": "rewind",
            "arguments": {"to": to},
            "inputResponses": {key: agreed},
            "requestState": state,
        }
        body: dict[str, object] = asking.post(asking.message("tools/call", retry))[2]
        return body

    forged = asked["requestState"][:-4] + "AAAA"
    assert "error" in answer(True, forged)
    assert "error" in answer(True, to="undo")  # the state of another request
    assert asking.tool("run_command", command="ls")["data"]["stdout"].count("person.txt") == 1
    done = answer(True)
    assert done["result"]["isError"] is False, done  # type: ignore[index]
    assert "error" in answer(True)  # replayed
    assert "person.txt" not in asking.tool("run_command", command="ls")["data"]["stdout"]
    assert asking.tool("rewind", to="undo")["error"] is False


def test_a_closed_stream_ends_the_command(notebook: OpenNotebook, tmp_path: Path) -> None:
    agent, mark, word = notebook.client(), tmp_path / "begun", own_mark()
    command = f"touch {mark}; sleep {word}"
    connection = agent.start(
        agent.message("tools/call", {"name": "run_command", "arguments": {"command": command}})
    )
    until(mark.exists)
    connection.close()
    done = agent.tool("run_command", command="echo free", wait=60)
    assert done["data"]["stdout"] == "free\n"
    assert not processes_with(word)


def test_a_long_call_streams_progress(notebook: OpenNotebook) -> None:
    agent = notebook.client()
    params = {"name": "run_command", "arguments": {"command": "sleep 6"}, "_meta": {"progressToken": "p1"}}
    answer = agent.start(agent.message("tools/call", params)).getresponse()
    body = answer.read().decode()
    assert answer.headers["Content-Type"] == "text/event-stream"
    assert '"progressToken": "p1"' in body
    assert body.rstrip().split("\n")[-1].startswith("data: ")
    assert '"exit_code": 0' in body


def test_an_agent_and_the_notebook_take_turns(notebook: OpenNotebook, server: JupyterProcess) -> None:
    agent: PlainClient = notebook.client()
    agent.tool("run_command", command="echo agent > agent.txt")
    said = notebook.execute("%%sandbox -m scripted/strawberry --isolation process -o mine\nCount.")
    assert "Error" not in said, said
    again = agent.tool("run_command", command="cat agent.txt; ls")
    assert again["data"]["stdout"].startswith("agent\n")
    refused = agent.tool("rewind", to="1")
    assert refused["error"]
    assert "another run" in refused["text"]
