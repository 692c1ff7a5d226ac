"""Decisions over REST on the run of a cell, while its kernel is busy in the cell."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import SUBMIT, bash, check_messages, script, turn
from jupyter_process import JupyterProcess, jupyter

from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.trajectory import events as ev

API = "llm-sandbox/api/runs"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterProcess]:
    with jupyter(tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.fixture
def kernel(server: JupyterProcess) -> Iterator[str]:
    """A kernel as new."""
    with server.warm_kernel() as kernel_id:
        yield kernel_id


class Cell:
    """A `%%sandbox` cell of a kernel, with nobody to ask in it."""

    def __init__(self, server: JupyterProcess, kernel: str, options: str, *turns: dict[str, Any]) -> None:
        self.server = server
        self.kernel = kernel
        self.error: str | None = None
        model = script(server.folder, *turns)
        magic = f"get_ipython().run_cell_magic('sandbox', {f'-m {model} {options}'!r}, 'Work.')"
        code = f"%load_ext llm_sandbox_nb\n{magic}"
        self._thread = threading.Thread(target=self._run, args=(code,), daemon=True)
        self._thread.start()
        self.id = str(self.until(self._find)["id"])

    def _run(self, code: str) -> None:
        try:
            self.server.execute(self.kernel, code, timeout=240)
        except AssertionError as error:
            self.error = str(error)

    def _find(self) -> Any:
        runs = self.server.get(API)["runs"]
        return next((one for one in runs if one["kernel_id"] == self.kernel and one["state"] == "live"), None)

    def until(self, found: Callable[[], Any], timeout: float = 120) -> Any:
        deadline = time.monotonic() + timeout
        while not (value := found()):
            assert time.monotonic() < deadline, "it did not come"
            time.sleep(0.05)
        return value

    def held(self, at: str, call_id: str | None = None) -> dict[str, Any]:
        """The call that waits, once it does."""

        def look() -> Any:
            held = self.server.get(f"{API}/{self.id}")["held"]
            return held if held and held["at"] == at and held["call_id"] != call_id else None

        found: dict[str, Any] = self.until(look)
        return found

    def decide(self, **body: Any) -> tuple[int, Any]:
        return self.server.ask(f"{API}/{self.id}/control", "POST", body)

    def finished(self) -> Run:
        self._thread.join(120)
        [journal] = Path(self.server.folder).rglob(f"{self.id}/journal.jsonl")
        return Run.load(journal.parent)


def decisions(run: Run) -> list[tuple[str, str]]:
    return [
        (event.action, event.source) for event in run.trajectory.events if isinstance(event, ev.CallDecided)
    ]


def test_a_run_under_way_can_be_forked_and_the_fork_gone_on_with(server: JupyterProcess, kernel: str) -> None:
    options = "--isolation process --break \"'two' in command\""
    cell = Cell(
        server, kernel, options, turn(bash("echo one > f")), turn(bash("echo two >> f; cat f")), SUBMIT
    )
    held = cell.held("call")
    status, problem = cell.decide(action="fork", step=7)
    assert status == 409
    assert "no step 7" in str(problem)
    assert cell.decide(action="fork", step=1)[0] == 200
    assert cell.decide(action="fork", step=1)[0] == 200
    assert server.get(f"{API}/{cell.id}")["held"]["call_id"] == held["call_id"]
    assert cell.decide(action="resume")[0] == 200
    done = cell.finished()
    assert cell.error is None
    assert "[stdout]\none\ntwo\n" in done.steps[1].calls[0].output
    names = [fork.folder for fork in done.trajectory.forks]
    assert len(set(names)) == 2
    told = server.execute(cell.kernel, "%sandbox status")
    assert all(f"A fork is open: {name};" in told for name in names)
    go_on = [
        f"%sandbox load {names[0]} -o other",
        "box = other.context.box",
        "end = other.resume(breakpoints=[])",
    ]
    go_on += [
        "print('SAME', end.context.box is box, end.stop_reason, 'one\\ntwo' in end.steps[1].calls[0].output)"
    ]
    told = server.execute(cell.kernel, "\n".join([*go_on, "other.close()", "%sandbox status"]))
    assert "SAME True submitted True" in told
    assert f"A fork is open: {names[0]};" not in told
    assert f"A fork is open: {names[1]};" in told


def test_a_browser_can_decide_everything_while_the_kernel_is_busy(
    server: JupyterProcess, kernel: str
) -> None:
    cell = Cell(server, kernel, "--isolation process --step", turn(bash("rm -rf precious")), turn(bash("echo two")),
                turn(bash("echo three")), SUBMIT)  # fmt: skip
    first = cell.held("call")
    assert (first["step"], first["reason"]) == (1, "step")
    assert (
        cell.decide(action="edit", arguments={"command": "echo edited"}, call_id=first["call_id"])[0] == 200
    )
    seen = cell.held("observation")
    assert seen["call_id"] == first["call_id"]
    assert cell.decide(action="observe", text="I saw nothing.")[0] == 200
    second = cell.held("call", first["call_id"])
    assert cell.decide(action="skip", text="Leave that.", call_id=second["call_id"])[0] == 200
    third = cell.held("call", second["call_id"])
    status, run = cell.decide(
        action="change", settings={"temperature": 0.5}, limits={"steps": 9}, approve="ask"
    )
    assert (status, run["held"]["call_id"]) == (200, third["call_id"])
    assert cell.decide(action="say", text="Be brief.")[0] == 200
    assert cell.decide(action="step")[0] == 200
    cell.held("observation")
    assert cell.decide(action="resume")[0] == 200
    last = cell.held("call", third["call_id"])
    assert last["reason"] == "approval"
    assert cell.decide(action="resume", call_id=last["call_id"])[0] == 200
    done = cell.finished()
    assert (cell.error, done.stop_reason) == (None, "submitted")
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
    cell = Cell(server, kernel, "--isolation process --approve ask", turn(bash("echo one")), SUBMIT)
    held = cell.held("call")
    wrong: list[tuple[dict[str, Any], int, str]] = [
        ({"action": "edit"}, 400, "'arguments' must be given"),
        ({"action": "edit", "arguments": "ls"}, 400, "'arguments' must be an object"),
        ({"action": "edit", "arguments": {"comand": "ls"}}, 409, "needs `command`"),
        ({"action": "edit", "arguments": {"command": "ls"}, "tool": "rm"}, 409, "no tool"),
        ({"action": "skip", "text": 7}, 400, "'text' must be a text"),
        ({"action": "observe", "text": "x"}, 409, "not executed yet"),
        ({"action": "resume", "call_id": "another"}, 409, "does not wait"),
        ({"action": "pause", "text": "x"}, 400, "'pause' takes nothing else"),
        ({"action": "step", "model": "x"}, 400, "'step' takes call_id"),
        ({"action": "change"}, 400, "must say what"),
        ({"action": "change", "settings": {"heat": 1}}, 409, "no setting"),
        ({"action": "change", "limits": {"steps": -1}}, 409, "above zero"),
        ({"action": "change", "breakpoints": ["open('x')"]}, 409, "cannot stand"),
        ({"action": "change", "breakpoints": [1]}, 400, "texts only"),
        ({"action": "change", "approve": "maybe"}, 400, "one of ask, edits, auto"),
        ({"action": "change", "model": "scripted/no-such-script"}, 409, "script"),
        ({"action": ["edit"]}, 400, "'action' must be one of"),
    ]
    for body, status, why in wrong:
        got, answer = cell.decide(**body)
        assert got == status, (body, answer)
        assert why in answer["message"], (body, answer)
        assert "\n" not in answer["message"]
        assert server.get(f"{API}/{cell.id}")["held"] == held
    assert cell.decide(action="resume")[0] == 200
    assert cell.decide(action="resume", call_id=held["call_id"])[0] == 409
    cell.held("call", held["call_id"])
    assert cell.decide(action="stop")[0] == 200
    assert cell.finished().stop_reason == "interrupted"


def test_two_people_decide_at_once_and_one_is_told_that_it_is_too_late(
    server: JupyterProcess, kernel: str
) -> None:
    cell = Cell(server, kernel, "--isolation process --step", turn(bash("echo one")), SUBMIT)
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
        one.join(60)
    assert sorted(answers) == [200, *[409] * 5]
    cell.held("observation")
    cell.decide(action="resume")
    done = cell.finished()
    assert [action for action, _ in decisions(done)] == ["edit", "run"]
