"""Runs of real kernels, watched and controlled at their real server while they go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import SUBMIT, bash, script, script_text, turn
from jupyter_process import JupyterProcess, jupyter
from support import KEPT_PIDS, PATIENCE, eventually, processes_with, record_of, run, until
from tornado.websocket import websocket_connect

from llm_sandbox_nb.notebook.server_client.address import ServerAddress
from llm_sandbox_nb.notebook.server_client.publisher import RunPublisher
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.trajectory.events import TRANSIENT
from llm_sandbox_nb.trajectory.journal import read_journal

API = "llm-sandbox/api/runs"
MARK = f"86397.{os.getpid()}"
QUICK = ("--RunRegistry.away_grace=0.5", "--RunRegistry.unknown_grace=20")
THIRTY = [turn(bash(f"echo line {n}; sleep 0.05"), text=f"Step {n}.") for n in range(1, 30)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterProcess]:
    with jupyter(tmp_path_factory.mktemp("jupyter"), *QUICK) as running:
        assert running.process is not None
        KEPT_PIDS.add(running.process.pid)
        yield running


@pytest.fixture
def kernel(server: JupyterProcess) -> Iterator[str]:
    """A kernel as new."""
    with server.warm_kernel() as kernel_id:
        yield kernel_id


class Watcher:
    """What a front end gets: it connects again with the number of events it has, as `lab/live.ts` does."""

    def __init__(self, server: JupyterProcess, run_id: str) -> None:
        self.address = ServerAddress(server.url, server.token)
        self.run_id = run_id
        self.events: list[dict[str, Any]] = []
        self.states: list[str] = []
        self.delays: list[float] = []
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
        self.delays += [time.time() - event["time"] for event in message["events"]]
        self.events += message["events"]
        self.next = message["next"]

    @property
    def written(self) -> list[dict[str, Any]]:
        """Without what is transient."""
        return [event for event in self.events if event["kind"] not in TRANSIENT]

    def output(self, call_id: str) -> str:
        """The live output of a call, as its pieces say where they belong."""
        text = ""
        for event in self.events:
            if event["kind"] == "call.output" and event["call_id"] == call_id:
                text = text[: event["at"]] + event["text"]
        return text

    def output_seen(self) -> bool:
        """Whether a command has written anything."""
        return any(event["kind"] == "call.output" for event in self.events)

    def check(self, folder: Path) -> None:
        """Everything came, once, in order, and as it is in the journal."""
        written = [json.loads(event.model_dump_json()) for event in read_journal(folder)]
        assert [event["id"] for event in self.written] == [event["id"] for event in written]
        assert self.written == written
        ids = Counter(event["id"] for event in self.events)
        assert [id for id, count in ids.items() if count > 1] == []


def run_of(server: JupyterProcess, kernel_id: str, timeout: float = PATIENCE) -> dict[str, Any]:
    """The newest run of a kernel that goes on."""
    deadline = time.monotonic() + timeout
    while True:
        for model in reversed(server.get(API)["runs"]):
            if model["kernel_id"] == kernel_id and model["state"] == "live":
                return dict(model)
        assert time.monotonic() < deadline, server.get(API)
        time.sleep(0.02)


def state_of(server: JupyterProcess, run_id: str) -> dict[str, Any]:
    """How a run stands."""
    model: dict[str, Any] = server.get(f"{API}/{run_id}")
    return model


class Cell:
    """A `%%sandbox` cell of a kernel of the server, in a thread."""

    def __init__(
        self, server: JupyterProcess, kernel_id: str, *turns: dict[str, Any], options: str = ""
    ) -> None:
        path = server.root / f"{time.monotonic_ns()}.yaml"
        path.write_text(script_text(*turns), "utf-8")
        self.server, self.kernel_id = server, kernel_id
        self.code = f"%%sandbox -m scripted/{path} --isolation process -o run {options}\nWork."
        self.reply: dict[str, Any] | None = None
        self.shown: list[dict[str, Any]] = []
        self.begun = time.monotonic()
        self.ended = 0.0
        self._thread = threading.Thread(target=self._execute, daemon=True)
        self._thread.start()

    def _execute(self) -> None:
        with contextlib.suppress(TimeoutError), self.server.client(self.kernel_id) as client:
            client.execute_interactive("%load_ext llm_sandbox_nb", timeout=PATIENCE, allow_stdin=False)
            self.reply = client.execute_interactive(
                self.code, output_hook=self._hook, timeout=2 * PATIENCE, allow_stdin=False
            )["content"]
            self.ended = time.monotonic()

    def _hook(self, message: dict[str, Any]) -> None:
        if message["msg_type"] in ("display_data", "update_display_data"):
            self.shown.append(message["content"]["data"])

    def wait(self, timeout: float = 2 * PATIENCE) -> dict[str, Any]:
        """The reply to the cell."""
        self._thread.join(timeout)
        assert self.reply is not None, "the cell hangs"
        return self.reply


MIME = "application/vnd.llm-sandbox.trajectory+json"


def folder_of(server: JupyterProcess, run_id: str) -> Path:
    """The folder in which a run was written."""
    [journal] = server.folder.rglob(f"{run_id}/journal.jsonl")
    return journal.parent


def control(server: JupyterProcess, run_id: str, action: str, text: str | None = None) -> dict[str, Any]:
    """A decision over REST."""
    model: dict[str, Any] = server.post(f"{API}/{run_id}/control", {"action": action, "text": text})
    return model


def waiting(server: JupyterProcess) -> tuple[Path, dict[str, Any]]:
    """A turn whose command lasts until this file is made."""
    go = server.root / f"go-{time.monotonic_ns()}"
    return go, turn(bash(f"until [ -e {go} ]; do sleep 0.05; done"))


def pause_in_step_1(server: JupyterProcess, run_id: str, go: Path) -> None:
    """Pause a run whose first command waits for `go`; it is held before its next request."""
    until(lambda: state_of(server, run_id)["steps"] == 1)
    control(server, run_id, "pause")
    noted = folder_of(server, run_id)
    until(lambda: any(getattr(event, "action", "") == "pause" for event in read_journal(noted)))
    go.touch()
    until(lambda: any(getattr(event, "action", "") == "paused" for event in read_journal(noted)))
    until(lambda: state_of(server, run_id)["paused"])


def test_thirty_steps_come_complete_and_in_order(server: JupyterProcess, kernel: str) -> None:
    cell = Cell(server, kernel, *THIRTY, SUBMIT)
    model = run_of(server, kernel)
    early, late = Watcher(server, model["id"]), Watcher(server, model["id"])

    async def both() -> None:
        watching = asyncio.create_task(early.watch())
        await eventually(lambda: len(early.written) >= 60)
        await late.watch()
        await watching

    run(both(), timeout=90)
    assert cell.wait()["status"] == "ok"
    folder = folder_of(server, model["id"])
    early.check(folder)
    late.check(folder)
    assert early.states == ["live", "finished"]
    live = sorted(early.delays[-100:])
    print(f"event to watcher: median {live[50] * 1000:.0f} ms, worst {live[-1] * 1000:.0f} ms")
    assert live[50] < 10, "not with the end of the run"
    whole, bundles = record_of(cell.shown[-1]), [data[MIME] for data in cell.shown[:-1]]
    assert len(whole["events"]) == len(early.written)
    assert "live" not in whole
    assert bundles
    assert all(bundle["live"]["run_id"] == model["id"] and not bundle["events"] for bundle in bundles)
    assert bundles[0]["live"]["folder"].endswith(model["id"])
    assert len(cell.shown) < cell.ended - cell.begun + 3, "the notebook is told once a second"


def test_output_comes_live_and_to_who_comes_late(server: JupyterProcess, kernel: str) -> None:
    go = server.root / f"go-{time.monotonic_ns()}"
    count = f"seq -f 'line %g' 1 20; until [ -e {go} ]; do sleep 0.05; done"
    count += "; for n in $(seq 21 40); do echo line $n; sleep 0.05; done"
    Cell(server, kernel, turn(bash(count), text="I count."), SUBMIT)
    model = run_of(server, kernel)
    watchers = [Watcher(server, model["id"]) for _ in range(3)]

    async def staggered() -> None:
        watching = []
        for watcher in watchers:
            watching.append(asyncio.create_task(watcher.watch()))
            await eventually(watcher.output_seen)
        go.touch()
        await asyncio.gather(*watching)

    run(staggered(), timeout=60)
    folder = folder_of(server, model["id"])
    [call] = Run.load(folder).steps[0].calls
    for watcher in watchers:
        watcher.check(folder)
        got = watcher.output(call.id)
        assert got == "".join(f"line {n}\n" for n in range(1, 41))[: len(got)]
        assert "line 30" in got
        assert sum(event["kind"] == "call.output" for event in watcher.events) > 5


def test_stop_ends_an_endless_command(server: JupyterProcess, kernel: str) -> None:
    command = f"echo begun; setsid sleep {MARK} & (trap '' TERM INT; sleep {MARK}) & sleep {MARK}"
    cell = Cell(server, kernel, turn(bash(command)), SUBMIT)
    model = run_of(server, kernel)
    until(lambda: len(processes_with(MARK)) == 3)
    begun = time.monotonic()
    control(server, model["id"], "stop")
    until(lambda: state_of(server, model["id"])["state"] == "finished")
    stopped = time.monotonic() - begun
    print(f"stopped after {stopped * 1000:.0f} ms")
    assert stopped < 60
    until(lambda: not processes_with(MARK))
    reply = cell.wait()
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    done = Run.load(folder_of(server, model["id"]))
    assert done.stop_reason == "interrupted"
    [call] = done.steps[0].calls
    assert call.result is not None
    assert (call.result.error, call.result.stdout) == ("interrupted", "begun\n")
    assert [(one.action, one.source) for one in done.trajectory.controls] == [("stop", "server")]
    assert record_of(cell.shown[-1])["events"][-1]["stop_reason"] == "interrupted"
    status, answer = server.ask(f"{API}/{model['id']}/control", "POST", {"action": "stop"})
    assert (status, answer["error"]) == (409, "RunControlError")
    assert server.execute(kernel, "%sandbox sh echo alive").strip() == "alive"


def test_pause_say_and_resume(server: JupyterProcess, kernel: str) -> None:
    go, waits = waiting(server)
    cell = Cell(server, kernel, waits, turn(bash("echo second")), SUBMIT)
    model = run_of(server, kernel)
    pause_in_step_1(server, model["id"], go)
    journal = folder_of(server, model["id"]) / "journal.jsonl"
    before = len(list(read_journal(journal)))
    time.sleep(1)
    after = [event.kind for event in list(read_journal(journal))[before:]]
    assert set(after) <= {"checkpoint"}, "nothing happens meanwhile; the files of the step may still be kept"
    control(server, model["id"], "say", "Mind the gap.")
    assert state_of(server, model["id"])["paused"]
    control(server, model["id"], "resume")
    assert cell.wait()["status"] == "ok"
    done = Run.load(folder_of(server, model["id"]))
    assert [one.action for one in done.trajectory.controls] == ["pause", "paused", "say", "resume"]
    roles = [message["role"] for message in done.messages]
    assert roles[:6] == ["system", "user", "assistant", "tool", "user", "assistant"]
    assert done.messages[4]["content"] == "Mind the gap."


def test_files_are_had_while_the_run_goes_on(server: JupyterProcess, kernel: str) -> None:
    page = "<script>alert(document.cookie)</script>"
    write = turn(bash(f"mkdir -p output; printf '{page}' > output/a.html"))
    cell = Cell(server, kernel, write, turn(bash("sleep 600")))
    model = run_of(server, kernel)
    path = f"{API}/{model['id']}/files/content?path="
    until(lambda: server.ask(path + "a.html")[0] == 200)
    assert server.ask(path + "a.html")[1] == page.encode()
    for wrong in ("b.html", "../journal.jsonl", "/etc/passwd", "%00"):
        assert server.ask(path + wrong)[0] == 404
    control(server, model["id"], "stop")
    cell.wait()
    until(lambda: server.ask(path + "a.html")[0] == 409)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"action": "dance"}, 400),
        ({"action": "say"}, 400),
        ({"action": "say", "text": 3}, 400),
        ({"action": "stop", "text": "x"}, 400),
        ({}, 400),
    ],
)
def test_what_makes_no_sense_is_refused(server: JupyterProcess, kernel: str, body: Any, status: int) -> None:
    async def go() -> None:
        address = ServerAddress(server.url, server.token)
        socket = await websocket_connect(address.channel("runs/r1/publish"))
        await socket.write_message(json.dumps({"type": "hello", "kernel_id": kernel, "owner": "o"}))
        assert json.loads(await socket.read_message() or "")["type"] == "welcome"
        answered, answer = await asyncio.to_thread(server.ask, f"{API}/r1/control", "POST", body)
        assert (answered, answer["error"]) == (status, "ValueError")
        socket.close()

    run(go())


def test_a_run_belongs_to_the_kernel_that_published_it(server: JupyterProcess, kernel: str) -> None:
    async def go() -> None:
        address = ServerAddress(server.url, server.token)

        async def publish(owner: str, *more: object) -> Any:
            socket = await websocket_connect(address.channel("runs/r2/publish"))
            for message in ({"type": "hello", "kernel_id": kernel, "owner": owner}, *more):
                await socket.write_message(json.dumps(message))
            return socket

        first = await publish("mine")
        assert json.loads(await first.read_message())["next"] == 0
        thief = await publish("thief's")
        assert await thief.read_message() is None
        assert thief.close_code == 4403
        again = await publish("mine", {"type": "events", "from": 3, "events": []})
        assert json.loads(await again.read_message())["type"] == "welcome"
        assert await first.read_message() is None
        assert first.close_code == 4409
        assert await again.read_message() is None
        assert again.close_code == 4400

    run(go())


def test_only_kernels_of_this_server_publish(server: JupyterProcess, kernel: str) -> None:
    """A kernel that it did not start needs the ticket that an earlier server gave for this very run."""

    async def go() -> None:
        address = ServerAddress(server.url, server.token)

        async def publish(run_id: str, kernel_id: str, ticket: object) -> Any:
            socket = await websocket_connect(address.channel(f"runs/{run_id}/publish"))
            hello = {"type": "hello", "kernel_id": kernel_id, "owner": "o", "ticket": ticket}
            await socket.write_message(json.dumps(hello))
            message = await socket.read_message()
            return json.loads(message) if message else socket.close_code

        welcome = await publish("r5", kernel, None)
        for run_id, kernel_id, ticket in (
            ("r6", "nobody", None),
            ("r6", "nobody", welcome["ticket"]),
            ("r6", "nobody", ["x"]),
            ("r6", "nobody", "\ud800"),
            ("r5", "nobody", welcome["ticket"]),
        ):
            assert await publish(run_id, kernel_id, ticket) == 4403, (run_id, kernel_id, ticket)
        assert server.ask(f"{API}/r6")[0] == 404
        assert server.ask(f"{API}/r5")[1]["kernel_id"] == kernel

    run(go())


def test_a_run_that_had_ended_goes_on(server: JupyterProcess, kernel: str) -> None:
    """Taken back and gone on with by its kernel: it is under way again, for who watches and who decides."""
    ended = {"id": "e1", "kind": "run.finished", "stop_reason": "submitted", "usage": {}}
    hello = {"type": "hello", "kernel_id": kernel, "owner": "mine"}

    def stands(expected: str) -> Callable[[], bool]:
        return lambda: bool(server.ask(f"{API}/r3")[1]["state"] == expected)

    async def go() -> None:
        address = ServerAddress(server.url, server.token)
        for first, expected in (
            (hello, "finished"),
            (hello, "finished"),
            ({**hello, "goes_on": True}, "live"),
        ):
            socket = await websocket_connect(address.channel("runs/r3/publish"))
            await socket.write_message(json.dumps(first))
            welcome = json.loads(await socket.read_message() or "")
            if welcome["next"] == 0:
                await socket.write_message(json.dumps({"type": "events", "from": 0, "events": [ended]}))
            await eventually(stands(expected))
            socket.close()

    run(go())


def test_a_restarted_kernel_goes_on_with_what_it_left_behind(server: JupyterProcess, kernel: str) -> None:
    """Its secret is a new one. Another kernel does not get the run."""

    async def go() -> None:
        address = ServerAddress(server.url, server.token)

        async def publish(kernel_id: str, owner: str) -> Any:
            socket = await websocket_connect(address.channel("runs/r4/publish"))
            hello = {"type": "hello", "kernel_id": kernel_id, "owner": owner, "goes_on": True}
            await socket.write_message(json.dumps(hello))
            return socket, await socket.read_message()

        first, _ = await publish(kernel, "before")
        begun = {"id": "e1", "kind": "run.started", "task": "t"}
        await first.write_message(json.dumps({"type": "events", "from": 0, "events": [begun]}))
        await eventually(lambda: server.ask(f"{API}/r4")[1].get("events") == 1)
        first.close()
        await eventually(lambda: server.ask(f"{API}/r4")[1]["state"] == "lost")
        with server.warm_kernel() as other:
            assert (await publish(other, "after"))[1] is None
        second, welcome = await publish(kernel, "after")
        assert json.loads(welcome)["next"] == 1
        assert server.ask(f"{API}/r4")[1]["state"] == "live"
        second.close()

    run(go())


@pytest.mark.parametrize("how", ["restarted", "killed"])
def test_a_kernel_that_ends_in_a_run(how: str, server: JupyterProcess) -> None:
    """A restart ends the run in good order; of a kernel that was killed the run is lost, and that is told."""
    kernel = server.start_kernel()
    Cell(server, kernel, turn(bash("echo x; sleep 600")), SUBMIT)
    model = run_of(server, kernel)
    watcher = Watcher(server, model["id"])
    last = "finished" if how == "restarted" else "lost"

    async def go() -> None:
        watching = asyncio.create_task(watcher.watch())
        await eventually(lambda: watcher.output_seen())
        if how == "restarted":
            await asyncio.to_thread(server.post, f"api/kernels/{kernel}/restart")
        else:
            os.kill(server.kernel_pid(kernel) or 0, signal.SIGKILL)
        await eventually(lambda: watcher.states[-1] == last)
        watching.cancel()

    run(go(), timeout=60)
    assert watcher.states == (["live", "finished"] if how == "restarted" else ["live", "away", "lost"])
    assert state_of(server, model["id"])["stop_reason"] == ("interrupted" if how == "restarted" else None)
    watcher.check(folder_of(server, model["id"]))
    status, answer = server.ask(f"{API}/{model['id']}/control", "POST", {"action": "stop"})
    assert (status, answer["error"]) == (409, "RunControlError")
    until(lambda: server.kernel_pid(kernel))
    assert server.execute(kernel, "print('new')").strip() == "new"
    cell = Cell(server, kernel, turn(bash("echo y")), SUBMIT)
    assert cell.wait()["status"] == "ok"


def test_a_server_that_is_restarted_gets_all_again(tmp_path: Path) -> None:
    """The run is of a process that outlives the server: nothing is lost, nothing doubled, controls work again."""
    turns = [turn(bash(f"echo {n}; sleep 0.1")) for n in range(20)]
    with jupyter(tmp_path / "jupyter", *QUICK) as server:

        async def go() -> None:
            publisher = RunPublisher(ServerAddress(server.url, server.token), server.start_kernel())
            runs: list[Run] = []

            def begun(new: Run) -> None:
                publisher.start(new)
                runs.append(new)

            work = asyncio.create_task(
                solve(
                    "x",
                    model=script(tmp_path, *turns, turn(bash("sleep 600"))),
                    isolation="process",
                    output_dir=tmp_path / "runs",
                    on_run=begun,
                    listeners=[publisher.listen],
                )
            )
            await eventually(lambda: runs)
            [watched] = runs
            watcher = Watcher(server, watched.folder.name)
            watching = asyncio.create_task(watcher.watch())
            await eventually(lambda: len(watcher.written) >= 30)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await eventually(lambda: len(watched.steps) >= 21)
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline:
                status, _ = await asyncio.to_thread(
                    server.ask, f"{API}/{watched.folder.name}/control", "POST", {"action": "stop"}
                )
                if status == 200:
                    break
                await asyncio.sleep(0.1)
            done = await work
            await publisher.finish()
            await watching
            assert done.stop_reason == "interrupted"
            watcher.check(done.folder)
            late = Watcher(server, done.folder.name)
            await late.watch()
            late.check(done.folder)

        run(go(), timeout=90)


def test_a_server_that_dies_with_its_kernel_hangs_nobody(tmp_path: Path) -> None:
    """The next server does not know the run and says so."""
    with jupyter(tmp_path / "jupyter", QUICK[0], "--RunRegistry.unknown_grace=1") as server:
        kernel = server.start_kernel()
        Cell(server, kernel, turn(bash("echo x; sleep 600")), SUBMIT)
        model = run_of(server, kernel)
        pid = server.kernel_pid(kernel)
        assert pid is not None
        watcher = Watcher(server, model["id"])

        async def go() -> None:
            watching = asyncio.create_task(watcher.watch())
            await eventually(lambda: watcher.output_seen())
            await asyncio.to_thread(server.kill)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(server.start)
            await watching

        run(go(), timeout=60)
        assert watcher.code == 4404
        assert server.ask(f"{API}/{model['id']}")[0] == 404
