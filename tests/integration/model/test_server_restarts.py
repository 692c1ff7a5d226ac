"""A model server that is killed and started again in the middle of its replies: the run ends, each call made once."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from agent_scripts import SUBMIT, bash, check_record, script_text, turn
from support import PATIENCE, eventually, run

from llm_sandbox_nb.agent.errors import RunError
from llm_sandbox_nb.model.retries import RetryPolicy
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.trajectory import events as ev

TESTS = Path(__file__).parents[2]
TURNS = [
    turn(bash(f"echo {n} >> output/log"), text="I write a line to the log, slowly. " * 3) for n in range(1, 5)
]


class KilledServer:
    """The scripted server as a process of its own, always at the same port."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "script.yaml"
        self.script.write_text(script_text(*TURNS, SUBMIT, delay=0.02, chunk=4), "utf-8")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = [
            sys.executable,
            str(TESTS / "scripted_server.py"),
            str(self.script),
            "--port",
            str(self.port),
        ]
        environment = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
        self.process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), "it serves"

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=PATIENCE)


def test_a_server_that_is_killed_three_times_in_one_run(tmp_path: Path) -> None:
    server = KilledServer(tmp_path)
    begun: dict[int, int] = {}
    failed: list[ev.ModelFailed] = []

    def listen(event: ev.Event) -> None:
        if isinstance(event, ev.ModelDelta):
            begun[event.step] = begun.get(event.step, 0) + 1
        if isinstance(event, ev.ModelFailed):
            failed.append(event)

    async def kill_and_start() -> None:
        for step in (1, 2, 4):
            await eventually(lambda step=step: begun.get(step, 0) > 2, f"step {step} has not begun")
            before = len(failed)
            await asyncio.to_thread(server.kill)
            await eventually(lambda before=before: len(failed) > before + 1, "nobody missed it")
            await asyncio.to_thread(server.start)

    async def both() -> object:
        await asyncio.to_thread(server.start)
        killing = asyncio.ensure_future(kill_and_start())
        done = await solve(
            "Write.", model="m", api_base=f"http://127.0.0.1:{server.port}/v1", api_key="key", isolation="process",
            output_dir=tmp_path / "runs", listeners=[listen], retries=RetryPolicy(first_wait=0.1, loading_pause=0.5),
        )  # fmt: skip
        await killing
        return done

    try:
        done = run(both(), timeout=300)
    finally:
        server.kill()
    check_record(done)
    assert done.stop_reason == "submitted"
    assert (done.folder / "files" / "log").read_text() == "1\n2\n3\n4\n", "each call once"
    assert {event.error for event in failed} == {"connection", "loading"}


@pytest.mark.parametrize("wait", [0.3])
def test_a_server_that_does_not_come_back_ends_the_run_with_its_reason(tmp_path: Path, wait: float) -> None:
    server = KilledServer(tmp_path)
    events: list[ev.Event] = []

    def listen(event: ev.Event) -> None:
        events.append(event)
        if isinstance(event, ev.CallFinished) and event.step == 1:
            server.kill()

    async def attempt() -> object:
        await asyncio.to_thread(server.start)
        return await solve(
            "Write.", model="m", api_base=f"http://127.0.0.1:{server.port}/v1", api_key="key", isolation="process",
            output_dir=tmp_path / "runs", listeners=[listen],
            retries=RetryPolicy(first_wait=0.1, loading_wait=wait, loading_pause=0.1),
        )  # fmt: skip

    with pytest.raises(RunError, match=r"the run waited [01] seconds") as caught:
        run(attempt(), timeout=300)
    assert caught.value.run.stop_reason == "model_error"
