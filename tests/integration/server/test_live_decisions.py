"""Decisions over REST on the run of a cell, while its kernel is busy in the cell."""

from __future__ import annotations

import threading
from typing import Any

from agent_scripts import SUBMIT, bash, check_messages, turn
from jupyter_process import JupyterProcess
from live_runs import Cell

from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.trajectory import events as ev


def decisions(run: Run) -> list[tuple[str, str]]:
    return [
        (event.action, event.source) for event in run.trajectory.events if isinstance(event, ev.CallDecided)
    ]


def test_a_run_under_way_can_be_forked_and_the_fork_gone_on_with(server: JupyterProcess, kernel: str) -> None:
    turns = (turn(bash("echo one > f")), turn(bash("echo two >> f; cat f")), SUBMIT)
    cell = Cell(server, kernel, *turns, options="--break \"'two' in command\"")
    held = cell.held("call")
    status, problem = cell.decide(action="fork", step=7)
    assert status == 409
    assert "no step 7" in str(problem)
    cell.control("fork", step=1)
    cell.control("fork", step=1)
    assert cell.state["held"]["call_id"] == held["call_id"]
    cell.control("resume")
    assert cell.wait()["status"] == "ok"
    done = cell.run()
    assert "[stdout]\none\ntwo\n" in done.steps[1].calls[0].output
    names = [fork.folder for fork in done.trajectory.events if isinstance(fork, ev.Forked)]
    assert len(set(names)) == 2
    told = server.execute(kernel, "%sandbox status")
    assert all(f"A fork is open: {name};" in told for name in names)
    go_on = [
        f"%sandbox load {names[0]} -o other",
        "box = other.context.box",
        "end = other.resume(breakpoints=[])",
    ]
    go_on += [
        "print('SAME', end.context.box is box, end.stop_reason, 'one\\ntwo' in end.steps[1].calls[0].output)"
    ]
    told = server.execute(kernel, "\n".join([*go_on, "other.close()", "%sandbox status"]))
    assert "SAME True submitted True" in told
    assert f"A fork is open: {names[0]};" not in told
    assert f"A fork is open: {names[1]};" in told


def test_a_browser_can_decide_everything_while_the_kernel_is_busy(
    server: JupyterProcess, kernel: str
) -> None:
    commands = ("rm -rf precious", "echo two", "echo three")
    cell = Cell(server, kernel, *(turn(bash(one)) for one in commands), SUBMIT, options="--step")
    first = cell.held("call")
    assert (first["step"], first["reason"]) == (1, "step")
    cell.control("edit", arguments={"command": "echo edited"}, call_id=first["call_id"])
    seen = cell.held("observation")
    assert seen["call_id"] == first["call_id"]
    cell.control("observe", text="I saw nothing.")
    second = cell.held("call", first["call_id"])
    cell.control("skip", text="Leave that.", call_id=second["call_id"])
    third = cell.held("call", second["call_id"])
    changed = cell.control("change", settings={"temperature": 0.5}, limits={"steps": 9}, approve="ask")
    assert changed["held"]["call_id"] == third["call_id"]
    cell.control("say", text="Be brief.")
    cell.control("step")
    cell.held("observation")
    cell.control("resume")
    last = cell.held("call", third["call_id"])
    assert last["reason"] == "approval"
    cell.control("resume", call_id=last["call_id"])
    assert cell.wait()["status"] == "ok"
    done = cell.run()
    assert done.stop_reason == "submitted"
    actions = [action for action, _ in decisions(done)]
    assert actions == ["edit", "observe", "skip", "run", "run", "run"]
    assert {source for _, source in decisions(done)} == {"server"}
    check_messages(done.messages)
    told = [message["content"] for message in done.messages if message["role"] == "tool"]
    assert told[0].startswith("I saw nothing.")
    assert told[1].startswith("Leave that.")
    assert done.steps[0].calls[0].arguments == {"command": "echo edited"}


def test_what_makes_no_sense_is_told_in_a_sentence_and_changes_nothing(
    server: JupyterProcess, kernel: str
) -> None:
    cell = Cell(server, kernel, turn(bash("echo one")), SUBMIT, options="--approve ask")
    held = cell.held("call")
    wrong: list[tuple[dict[str, Any], int, str]] = [
        ({"action": "edit"}, 400, "'edit' needs 'arguments'"),
        ({"action": "edit", "arguments": "ls"}, 400, "'arguments' must be an object"),
        ({"action": "edit", "arguments": {"comand": "ls"}}, 409, "needs `command`"),
        ({"action": "edit", "arguments": {"command": "ls"}, "tool": "rm"}, 409, "no tool"),
        ({"action": "skip", "text": 7}, 400, "'text' must be a text"),
        ({"action": "observe", "text": "x"}, 409, "not executed yet"),
        ({"action": "resume", "call_id": "another"}, 409, "does not wait"),
        ({"action": "pause", "text": "x"}, 400, "'pause' has no field 'text'"),
        ({"action": "step", "model": "x"}, 400, "'step' has no field 'model'"),
        ({"action": "change"}, 400, "needs at least one of"),
        ({"action": "change", "settings": {"heat": 1}}, 409, "no setting"),
        ({"action": "change", "limits": {"steps": -1}}, 409, "above zero"),
        ({"action": "change", "breakpoints": ["open('x')"]}, 409, "not allowed"),
        ({"action": "change", "breakpoints": [1]}, 400, "texts only"),
        ({"action": "change", "approve": "maybe"}, 400, "one of ask, edits, auto"),
        ({"action": "change", "model": "scripted/no-such-script"}, 409, "script"),
        ({"action": ["edit"]}, 400, "'action' must be one of"),
        ({"action": "dance"}, 400, "'action' must be one of"),
        ({}, 400, "'action' must be one of"),
        ({"action": "say"}, 400, "'say' needs 'text'"),
        ({"action": "say", "text": 3}, 400, "'text' must be a text"),
        ({"action": "stop", "text": "x"}, 400, "'stop' has no field 'text'"),
    ]
    for body, status, why in wrong:
        got, answer = cell.decide(**body)
        assert got == status, (body, answer)
        assert why in answer["message"], (body, answer)
        assert "\n" not in answer["message"]
        assert cell.state["held"] == held
    cell.control("resume")
    assert cell.decide(action="resume", call_id=held["call_id"])[0] == 409
    cell.held("call", held["call_id"])
    cell.control("stop")
    assert cell.wait()["ename"] == "KeyboardInterrupt"
    assert cell.run().stop_reason == "interrupted"


def test_two_people_decide_at_once_and_one_is_told_that_it_is_too_late(
    server: JupyterProcess, kernel: str
) -> None:
    cell = Cell(server, kernel, turn(bash("echo one")), SUBMIT, options="--step")
    held = cell.held("call")
    answers: list[int] = []
    bodies = [
        {"action": "edit", "arguments": {"command": f"echo {n}"}, "call_id": held["call_id"]}
        for n in range(6)
    ]
    people = [
        threading.Thread(target=lambda body=body: answers.append(cell.decide(**body)[0])) for body in bodies
    ]
    for one in people:
        one.start()
    for one in people:
        one.join()
    assert sorted(answers) == [200, *[409] * 5]
    cell.held("observation")
    cell.control("resume")
    cell.wait()
    assert [action for action, _ in decisions(cell.run())] == ["edit", "run"]
