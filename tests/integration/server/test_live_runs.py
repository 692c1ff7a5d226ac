"""Runs of real kernels, watched and controlled at their real server while they go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import SUBMIT, bash, script, turn
from jupyter_process import STUB, JupyterProcess, jupyter
from live_runs import API, Cell, gate, journal_of
from support import KEPT_PIDS, MIME, PATIENCE, eventually, own_mark, processes_with, record_of, run, until
from tornado.websocket import websocket_connect

from llm_sandbox_nb.notebook.server_client.address import ServerAddress
from llm_sandbox_nb.notebook.server_client.publisher import RunPublisher
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.trajectory.events import TRANSIENT


@pytest.fixture(scope="module")
def second_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterProcess]:
    options = ("--RunRegistry.away_grace=0.5", "--RunRegistry.unknown_grace=20")
    with jupyter(tmp_path_factory.mktemp("second"), *options) as running:
        yield running


@pytest.fixture
def second_server(second_process: JupyterProcess) -> Iterator[JupyterProcess]:
    """A running server that a test may kill and start again."""
    assert second_process.process is not None
    if second_process.process.poll() is not None:
        second_process.start()
    yield second_process
    KEPT_PIDS.add(second_process.process.pid)


class Watcher:
    """What a front end gets: it connects again with the number of events it has, as `lab/live.ts` does."""

    def __init__(self, server: JupyterProcess, run_id: str) -> None:
        self.address = ServerAddress(server.url, server.token)
        self.run_id = run_id
        self.events: list[dict[str, Any]] = []
        self.states: list[str] = []
        self.code: int | None = None
        self.next = 0

    async def watch(self, timeout: float = PATIENCE) -> None:
        """Until the server says that there is nothing more."""
        async with asyncio.timeout(timeout):
            while self.code not in (1000, 4404):
                with contextlib.suppress(OSError):
                    await self._once()
                await asyncio.sleep(0.1)

    async def _once(self) -> None:
        path = f"runs/{self.run_id}/events?since={self.next}"
        socket = await websocket_connect(self.address.channel(path, connect_timeout=20, request_timeout=60))
        while (message := await socket.read_message()) is not None:
            self._take(json.loads(message))
        self.code = socket.close_code

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "state":
            self.states.append(message["state"])
            return
        self.events += message["events"]
        self.next = message["next"]

    @property
    def written(self) -> list[dict[str, Any]]:
        """Without what is transient."""
        return [event for event in self.events if event["kind"] not in TRANSIENT]

    def output(self, call_id: str | None = None) -> str:
        text = ""
        for event in self.events:
            if event["kind"] == "call.output" and call_id in (None, event["call_id"]):
                text = text[: event["at"]] + event["text"]
        return text

    def check(self, folder: Path) -> None:
        assert self.written == journal_of(folder)
        ids = Counter(event["id"] for event in self.events)
        assert [id for id, count in ids.items() if count > 1] == []


def test_thirty_steps_come_complete_in_order_and_while_the_run_goes_on(
    server: JupyterProcess, kernel: str
) -> None:
    go, wait = gate(server)
    steps = [turn(bash(f"echo line {n}"), text=f"Step {n}.") for n in range(1, 30)]
    cell = Cell(server, kernel, *steps, turn(bash(wait)), SUBMIT)
    early, late = Watcher(server, cell.id), Watcher(server, cell.id)

    async def both() -> None:
        watching = [asyncio.create_task(early.watch())]
        await eventually(lambda: len(early.written) >= 60)
        watching.append(asyncio.create_task(late.watch()))
        await eventually(lambda: len(late.written) >= 60)
        go.touch()
        await asyncio.gather(*watching)

    run(both(), timeout=90)
    assert cell.wait()["status"] == "ok"
    early.check(cell.folder)
    late.check(cell.folder)
    assert early.states == ["live", "finished"]
    whole, bundles = record_of(cell.shown[-1]), [data[MIME] for data in cell.shown[:-1]]
    assert len(whole["events"]) == len(early.written)
    assert "live" not in whole
    assert bundles
    assert all(bundle["live"]["run_id"] == cell.id and not bundle["events"] for bundle in bundles)
    assert bundles[0]["live"]["folder"].endswith(cell.id)
    assert len(cell.shown) < cell.ended - cell.begun + 3, "the notebook is told once a second"


def test_output_comes_live_and_to_who_comes_late(server: JupyterProcess, kernel: str) -> None:
    go, first = gate(server)
    end, last = gate(server)
    count = f"seq -f 'line %g' 1 20; {first}; seq -f 'line %g' 21 40; {last}"
    cell = Cell(server, kernel, turn(bash(count)), SUBMIT)
    watchers = [Watcher(server, cell.id) for _ in range(3)]

    async def staggered() -> None:
        watching = []
        for watcher in watchers:
            watching.append(asyncio.create_task(watcher.watch()))
            await eventually(watcher.output)
        go.touch()
        await eventually(lambda: all("line 40\n" in watcher.output() for watcher in watchers))
        end.touch()
        await asyncio.gather(*watching)

    run(staggered(), timeout=60)
    cell.wait()
    [call] = cell.run().steps[0].calls
    for watcher in watchers:
        watcher.check(cell.folder)
        assert watcher.output(call.id) == "".join(f"line {n}\n" for n in range(1, 41))
        assert sum(event["kind"] == "call.output" for event in watcher.events) > 1


def test_files_are_had_while_a_run_goes_on_and_stop_ends_it(server: JupyterProcess, kernel: str) -> None:
    mark, page = own_mark(), "<script>alert(document.cookie)</script>"
    endless = f"echo begun; setsid sleep {mark} & (trap '' TERM INT; sleep {mark}) & sleep {mark}"
    write = turn(bash(f"mkdir -p output; printf '{page}' > output/a.html"))
    cell = Cell(server, kernel, write, turn(bash(endless)), SUBMIT)
    path = f"{API}/{cell.id}/files/content?path="
    until(lambda: server.ask(path + "a.html")[0] == 200)
    assert server.ask(path + "a.html")[1] == page.encode()
    for wrong in ("b.html", "../journal.jsonl", "/etc/passwd", "%00"):
        assert server.ask(path + wrong)[0] == 404
    until(lambda: len(processes_with(mark)) == 3)
    cell.control("stop")
    until(lambda: cell.state["state"] == "finished")
    until(lambda: not processes_with(mark))
    reply = cell.wait()
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    done = cell.run()
    assert done.stop_reason == "interrupted"
    [call] = done.steps[1].calls
    assert call.result is not None
    assert (call.result.error, call.result.stdout) == ("interrupted", "begun\n")
    assert [(one.action, one.source) for one in done.trajectory.controls] == [("stop", "server")]
    assert record_of(cell.shown[-1])["events"][-1]["stop_reason"] == "interrupted"
    status, answer = cell.decide(action="stop")
    assert (status, answer["error"]) == (409, "RunControlError")
    assert server.execute(kernel, "%sandbox sh echo alive").strip() == "alive"
    until(lambda: server.ask(path + "a.html")[0] == 409)


def test_pause_say_and_resume(server: JupyterProcess, kernel: str) -> None:
    go, wait = gate(server)
    cell = Cell(server, kernel, turn(bash(wait)), turn(bash("echo second")), SUBMIT)
    cell.pause_in_step_1(go)
    cell.control("say", text="Mind the gap.")
    assert cell.state["paused"]
    cell.control("resume")
    assert cell.wait()["status"] == "ok"
    done = cell.run()
    assert [one.action for one in done.trajectory.controls] == ["pause", "paused", "say", "resume"]
    noted = [(event.kind, getattr(event, "action", "")) for event in done.trajectory.events]
    held = noted[noted.index(("control", "paused")) + 1 : noted.index(("control", "resume"))]
    assert {kind for kind, _ in held} <= {"checkpoint", "control"}, "nothing happens while it is paused"
    roles = [message["role"] for message in done.messages]
    assert roles[:6] == ["system", "user", "assistant", "tool", "user", "assistant"]
    assert done.messages[4]["content"] == "Mind the gap."


async def publish(
    server: JupyterProcess, run_id: str, kernel_id: str, *more: object, **hello: Any
) -> tuple[Any, Any]:
    """Publish a run as a kernel does: the connection, and the first answer or the code of the refusal."""
    socket = await websocket_connect(
        ServerAddress(server.url, server.token).channel(f"runs/{run_id}/publish")
    )
    for message in ({"type": "hello", "kernel_id": kernel_id, "owner": "mine", **hello}, *more):
        await socket.write_message(json.dumps(message))
    answer = await socket.read_message()
    return socket, json.loads(answer) if answer else socket.close_code


def test_a_run_belongs_to_the_kernel_that_published_it(server: JupyterProcess, kernel: str) -> None:
    async def go() -> None:
        first, welcome = await publish(server, "r2", kernel)
        assert welcome["next"] == 0
        assert (await publish(server, "r2", kernel, owner="thief's"))[1] == 4403
        wrong = {"type": "events", "from": 3, "events": []}
        again, welcome = await publish(server, "r2", kernel, wrong)
        assert welcome["type"] == "welcome"
        for socket, code in ((first, 4409), (again, 4400)):
            assert await socket.read_message() is None
            assert socket.close_code == code

    run(go())


def test_only_kernels_of_this_server_publish(server: JupyterProcess, kernel: str) -> None:
    """A kernel that it did not start needs the ticket that an earlier server gave for this very run."""

    async def go() -> None:
        _, welcome = await publish(server, "r5", kernel, ticket=None)
        for run_id, ticket in (
            ("r6", None), ("r6", welcome["ticket"]), ("r6", ["x"]), ("r6", "\ud800"), ("r5", welcome["ticket"]),
        ):  # fmt: skip
            assert (await publish(server, run_id, "nobody", ticket=ticket))[1] == 4403, (run_id, ticket)
        assert server.ask(f"{API}/r6")[0] == 404
        assert server.ask(f"{API}/r5")[1]["kernel_id"] == kernel

    run(go())


def test_a_run_that_had_ended_goes_on(server: JupyterProcess, kernel: str) -> None:
    """Taken back and gone on with by its kernel: it is under way again, for who watches and who decides."""
    ended = {"id": "e1", "kind": "run.finished", "stop_reason": "submitted", "usage": {}}

    async def go() -> None:
        for more, expected in (({}, "finished"), ({}, "finished"), ({"goes_on": True}, "live")):
            socket, welcome = await publish(server, "r3", kernel, **more)
            if welcome["next"] == 0:
                await socket.write_message(json.dumps({"type": "events", "from": 0, "events": [ended]}))
            await eventually(lambda wanted=expected: server.ask(f"{API}/r3")[1]["state"] == wanted)
            socket.close()

    run(go())


def test_a_restarted_kernel_goes_on_with_what_it_left_behind(server: JupyterProcess, kernel: str) -> None:
    """Its secret is a new one. Another kernel does not get the run."""
    begun = {"type": "events", "from": 0, "events": [{"id": "e1", "kind": "run.started", "task": "t"}]}

    async def go() -> None:
        first, _ = await publish(server, "r4", kernel, begun, owner="before", goes_on=True)
        await eventually(lambda: server.ask(f"{API}/r4")[1].get("events") == 1)
        first.close()
        await eventually(lambda: server.ask(f"{API}/r4")[1]["state"] == "lost")
        with server.warm_kernel() as other:
            assert isinstance((await publish(server, "r4", other, owner="after", goes_on=True))[1], int)
        second, welcome = await publish(server, "r4", kernel, owner="after", goes_on=True)
        assert welcome["next"] == 1
        assert server.ask(f"{API}/r4")[1]["state"] == "live"
        second.close()

    run(go())


def test_the_next_kernel_resumes_the_run_of_a_kernel_that_was_shut_down(
    server: JupyterProcess, kernel: str
) -> None:
    begun = {"type": "events", "from": 0, "events": [{"id": "e1", "kind": "run.started", "task": "t"}]}
    earlier = server.start_kernel(STUB)

    async def go() -> None:
        first, _ = await publish(server, "r7", earlier, begun, owner="before", goes_on=True)
        await eventually(lambda: server.ask(f"{API}/r7")[1].get("events") == 1)
        first.close()
        await eventually(lambda: server.ask(f"{API}/r7")[1]["state"] == "lost")
        assert (await publish(server, "r7", kernel, owner="after", goes_on=True))[1] == 4403
        server.ask(f"api/kernels/{earlier}", "DELETE")
        second, welcome = await publish(server, "r7", kernel, owner="after", goes_on=True)
        assert welcome["next"] == 1
        state = server.ask(f"{API}/r7")[1]
        assert (state["state"], state["kernel_id"]) == ("live", kernel)
        second.close()

    run(go())


@pytest.mark.parametrize("how", ["restarted", "killed"])
def test_a_kernel_that_ends_in_a_run(how: str, server: JupyterProcess) -> None:
    """A restart ends the run in good order; of a kernel that was killed the run is lost, and that is told."""
    kernel = server.start_kernel()
    cell = Cell(server, kernel, turn(bash(f"echo x; sleep {own_mark()}")), SUBMIT)
    watcher = Watcher(server, cell.id)
    last = "finished" if how == "restarted" else "lost"

    async def go() -> None:
        watching = asyncio.create_task(watcher.watch())
        await eventually(watcher.output)
        if how == "restarted":
            await asyncio.to_thread(server.post, f"api/kernels/{kernel}/restart")
        else:
            os.kill(server.kernel_pid(kernel) or 0, signal.SIGKILL)
        await eventually(lambda: watcher.states[-1] == last)
        watching.cancel()

    run(go(), timeout=60)
    assert watcher.states == (["live", "finished"] if how == "restarted" else ["live", "away", "lost"])
    assert cell.state["stop_reason"] == ("interrupted" if how == "restarted" else None)
    watcher.check(cell.folder)
    status, answer = cell.decide(action="stop")
    assert (status, answer["error"]) == (409, "RunControlError")
    until(lambda: server.kernel_pid(kernel))
    assert server.execute(kernel, "print('new')").strip() == "new"
    assert Cell(server, kernel, turn(bash("echo y")), SUBMIT).wait()["status"] == "ok"


def test_a_server_that_is_restarted_gets_all_again(second_server: JupyterProcess, tmp_path: Path) -> None:
    """The run is of a process that outlives the server: nothing is lost, nothing doubled, controls work again."""
    server = second_server
    go, wait = gate(server)
    steps = [turn(bash(f"echo {n}")) for n in range(10)]

    async def outlive() -> None:
        publisher = RunPublisher(ServerAddress(server.url, server.token), server.start_kernel(STUB))
        runs: list[Run] = []

        def begun(new: Run) -> None:
            publisher.start(new)
            runs.append(new)

        work = asyncio.create_task(
            solve(
                "x",
                model=script(tmp_path, *steps, turn(bash(wait)), *steps, turn(bash(f"sleep {own_mark()}"))),
                isolation="process",
                output_dir=tmp_path / "runs",
                on_run=begun,
                listeners=[publisher.listen],
            )
        )
        await eventually(lambda: runs)
        [watched] = runs
        name = watched.folder.name
        watcher = Watcher(server, name)
        watching = asyncio.create_task(watcher.watch())
        await eventually(lambda: len(watcher.written) >= 30)
        await asyncio.to_thread(server.kill)
        go.touch()
        await eventually(lambda: len(watched.steps) >= 22)
        assert len(watcher.written) < len(watched.trajectory.events), "nobody was there to be told"
        await asyncio.to_thread(server.start)
        stop = (f"{API}/{name}/control", "POST", {"action": "stop"})
        await asyncio.to_thread(until, lambda: server.ask(*stop)[0] == 200)
        done = await work
        await publisher.finish()
        await watching
        assert done.stop_reason == "interrupted"
        watcher.check(done.folder)
        late = Watcher(server, name)
        await late.watch()
        late.check(done.folder)

    run(outlive(), timeout=90)


def test_a_server_that_dies_with_its_kernel_hangs_nobody(second_server: JupyterProcess) -> None:
    """The next server does not know the run and says so."""
    server = second_server
    kernel = server.start_kernel()
    cell = Cell(server, kernel, turn(bash(f"echo x; sleep {own_mark()}")), SUBMIT)
    watcher = Watcher(server, cell.id)
    pid = server.kernel_pid(kernel)
    assert pid is not None

    async def go() -> None:
        watching = asyncio.create_task(watcher.watch())
        await eventually(watcher.output)
        await asyncio.to_thread(server.kill)
        server.options[-1] = "--RunRegistry.unknown_grace=1"
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(server.start)
        await watching

    run(go(), timeout=60)
    assert watcher.code == 4404
    assert server.ask(f"{API}/{cell.id}")[0] == 404
