"""A server that is killed and started again takes its sandboxes back, and who was connected goes on."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from jupyter_process import STUB, JupyterProcess, jupyter
from support import KEPT_PIDS, PATIENCE, own_mark, run, until

from llm_sandbox_nb.notebook.server_client.address import ServerAddress
from llm_sandbox_nb.notebook.server_client.sandbox import ServerSandbox
from llm_sandbox_nb.sandbox.errors import SandboxLostError

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_engine")]
API = "llm-sandbox/api"


GRACE = 15
"""Seconds; a server that was just started is asked before they are over, on a busy machine too."""


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterProcess]:
    options = ["--SandboxManager.watch_interval=0.5", f"--SandboxManager.adoption_grace={GRACE}"]
    with jupyter(tmp_path_factory.mktemp("jupyter"), *options) as running:
        yield running


@pytest.fixture
def server(process: JupyterProcess) -> Iterator[JupyterProcess]:
    """The one server, running and without sandboxes; the test may kill it."""
    if process.process is None or process.process.poll() is not None:
        process.start()
    yield process
    if process.process is not None and process.process.poll() is None:
        KEPT_PIDS.add(process.process.pid)
        process.clear()


def containers(server: JupyterProcess) -> list[Any]:
    """The containers of this very server, whatever state they are in."""
    key = hashlib.sha256(f"{server.root}|/x/".encode()).hexdigest()[:32]
    with contextlib.closing(docker.from_env()) as client:
        return list(client.api.containers(all=True, filters={"label": f"llm-sandbox-nb.server={key}"}))


def start(server: JupyterProcess, notebook: str) -> dict[str, Any]:
    kernel = server.start_session(notebook, STUB)["kernel"]["id"]
    model: dict[str, Any] = server.post(f"{API}/sandboxes", {"kernel_id": kernel, "isolation": "docker"})
    return model


def test_who_comes_in_time_has_its_sandbox_again(server: JupyterProcess) -> None:
    """One client was connected and goes on, one notebook gets its next kernel, and for one nobody comes."""
    connected, reopened, _ = (start(server, f"{name}.ipynb") for name in "abc")
    kept, ended = own_mark(), own_mark()

    async def go() -> None:
        box = ServerSandbox(ServerAddress(server.url, server.token), connected)
        await box.run(f"cd /tmp; export KEPT=1; echo content > /testbed/file; (setsid sleep {kept} &)")
        begun = [asyncio.Event(), asyncio.Event()]
        calls = (
            box.run(f"echo begun; sleep {ended}", on_output=lambda *_: begun[0].set()),
            box.exec(["sh", "-c", f"echo begun; exec sleep {ended}"], on_output=lambda *_: begun[1].set()),
        )
        in_shell, beside = map(asyncio.create_task, calls)
        for event in begun:
            await event.wait()
        await asyncio.to_thread(server.kill)
        reading = asyncio.create_task(box.read_file("/testbed/file"))
        await asyncio.to_thread(server.start)
        again = await asyncio.to_thread(start, server, "b.ipynb")
        result = await in_shell
        assert result.interrupted
        assert result.exit_code is None
        assert result.stdout == b"begun\n"
        assert "connection to the Jupyter server broke" in result.notice
        assert (await beside).interrupted
        assert await reading == b"content\n"
        after = await box.run(f"echo $KEPT; pwd; pgrep -cf '[s]leep {kept}'; pgrep -cf '[s]leep {ended}'")
        assert after.stdout == b"1\n/tmp\n1\n0\n"
        assert again["kernel_id"] != reopened["kernel_id"]
        assert (again["id"], again["sandbox_id"]) == (reopened["id"], reopened["sandbox_id"])
        assert again["settings"] == reopened["settings"]
        assert again["protection"]["user"] == reopened["protection"]["user"]
        # The grace is over when the one for which nobody came is gone.
        left = {connected["id"], reopened["id"]}
        await asyncio.to_thread(until, lambda: {one["id"] for one in server.sandboxes()} == left)
        assert {one["state"] for one in server.sandboxes()} == {"running"}
        assert (await box.run("echo still")).stdout == b"still\n"
        reset = await asyncio.to_thread(server.post, f"{API}/sandboxes/{again['id']}/reset")
        assert reset["sandbox_id"] != reopened["sandbox_id"]
        await box.close()

    run(go(), timeout=120)
    until(lambda: len(containers(server)) == 1, "the client has gone, and its kernel did not come")
    assert [one["id"] for one in server.sandboxes()] == [reopened["id"]]


def test_a_prepared_sandbox_that_became_a_fork_stays_one(server: JupyterProcess) -> None:
    """It is older than the notebook's sandbox, which was reset meanwhile."""
    model = start(server, "fork.ipynb")

    def prepare(count: int) -> None:
        body = {"kernel_id": model["kernel_id"], "count": count, "seconds": 600, "isolation": "docker"}
        server.ask(f"{API}/sandboxes/prepare", "POST", body)

    prepare(1)
    fork = server.post(f"{API}/sandboxes/{model['id']}/fork")
    assert fork["fork_of"] == model["id"]
    assert len(containers(server)) == 2, "no third one was started"
    prepare(0)
    reset = server.post(f"{API}/sandboxes/{model['id']}/reset")
    server.kill()
    server.start()
    again = start(server, "fork.ipynb")
    assert again["sandbox_id"] == reset["sandbox_id"]
    forks = [one["sandbox_id"] for one in server.sandboxes() if one["fork_of"] == model["id"]]
    assert forks == [fork["sandbox_id"]]


def test_another_server_leaves_it_alone(server: JupyterProcess, tmp_path: Path) -> None:
    model = start(server, "d.ipynb")
    with jupyter(tmp_path / "other") as other:
        assert other.sandboxes() == []
    second = JupyterProcess(server.folder)  # the same folder, while the first server lives
    try:
        assert second.start().sandboxes() == []
    finally:
        second.stop()
    assert server.sandboxes()[0]["sandbox_id"] == model["sandbox_id"]
    assert len(containers(server)) == 1


def test_a_server_that_stays_away_is_not_waited_for_for_ever(server: JupyterProcess) -> None:
    model = start(server, "e.ipynb")

    async def go() -> None:
        box = ServerSandbox(ServerAddress(server.url, server.token), model, patience=3)
        waiting = await endless(box)
        await asyncio.to_thread(server.kill)
        with pytest.raises(SandboxLostError, match="restart the server"):
            await waiting
        with pytest.raises(SandboxLostError):
            await box.read_file("x")
        await box.close()

    run(go(), timeout=60)
    with contextlib.closing(docker.from_env()) as client:
        for container in containers(server):
            client.api.remove_container(container["Id"], force=True)


async def endless(box: ServerSandbox) -> asyncio.Task[Any]:
    """A command that has begun and does not end."""
    begun = asyncio.Event()
    command = f"echo begun; sleep {own_mark()}"
    waiting = asyncio.create_task(box.run(command, on_output=lambda *_: begun.set()))
    await begun.wait()
    return waiting


def test_a_start_can_be_stopped(server: JupyterProcess) -> None:
    """As it is when the kernel dies half-way through one."""
    kernel = server.start_kernel(STUB)
    answers: list[Any] = []
    body = {"kernel_id": kernel, "isolation": "docker"}
    asking = threading.Thread(target=lambda: answers.append(server.ask(f"{API}/sandboxes", "POST", body)))
    asking.start()
    found: list[dict[str, Any]] = []
    until(lambda: found.extend(server.sandboxes()) or found)
    if found[0]["state"] == "starting":
        assert server.ask(f"{API}/sandboxes/{found[0]['id']}", "DELETE")[0] == 204
        asking.join(PATIENCE)
        assert answers[0][0] == 410
        assert "stopped while it was starting" in answers[0][1]["message"]
    asking.join(PATIENCE)
    server.ask(f"api/kernels/{kernel}", "DELETE")
    until(lambda: not containers(server))
    assert server.sandboxes() == []


def test_a_container_that_dies_is_told_and_replaced(server: JupyterProcess) -> None:
    model = start(server, "f.ipynb")

    async def go() -> None:
        box = ServerSandbox(ServerAddress(server.url, server.token), model)
        waiting = await endless(box)
        [container] = containers(server)
        with contextlib.closing(docker.from_env()) as client:
            await asyncio.to_thread(client.api.kill, container["Id"])
        with pytest.raises(SandboxLostError, match="lost"):
            await waiting
        await box.close()

    run(go(), timeout=60)
    body = {"kernel_id": model["kernel_id"], "isolation": "docker"}
    fresh = server.post(f"{API}/sandboxes", body)
    assert fresh["sandbox_id"] != model["sandbox_id"]
