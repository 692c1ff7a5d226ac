"""A server that is killed and started again takes its sandboxes back, and who was connected goes on."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from jupyter_process import JupyterProcess, jupyter
from support import KEPT_PIDS, PATIENCE, run

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
        for model in process.sandboxes():
            process.ask(f"{API}/sandboxes/{model['id']}", "DELETE")
        for kernel in process.get("api/kernels"):
            process.ask(f"api/kernels/{kernel['id']}", "DELETE")


def containers(server: JupyterProcess) -> list[Any]:
    """The containers of this very server, whatever state they are in."""
    key = hashlib.sha256(f"{server.root}|/x/".encode()).hexdigest()[:32]
    client = docker.from_env()
    try:
        return list(client.api.containers(all=True, filters={"label": f"llm-sandbox-nb.server={key}"}))
    finally:
        client.close()


def start(server: JupyterProcess, notebook: str) -> dict[str, Any]:
    """A notebook's sandbox."""
    kernel = server.start_session(notebook)["kernel"]["id"]
    model: dict[str, Any] = server.post(f"{API}/sandboxes", {"kernel_id": kernel, "isolation": "docker"})
    return model


def gone_within(server: JupyterProcess, seconds: float) -> None:
    """Wait until there is no container of this server."""
    deadline = time.monotonic() + seconds
    while left := containers(server):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def test_a_call_under_way_ends_and_the_run_goes_on(server: JupyterProcess) -> None:
    model = start(server, "a.ipynb")

    async def go() -> None:
        box = ServerSandbox(ServerAddress(server.url, server.token), model)
        await box.run("cd /tmp; export KEPT=1; echo content > /testbed/file; (setsid sleep 5432 &)")
        begun = [asyncio.Event(), asyncio.Event()]
        under_way = asyncio.create_task(
            box.run("echo begun; sleep 1000", on_output=lambda *_: begun[0].set())
        )
        beside = asyncio.create_task(
            box.exec(["sh", "-c", "echo begun; exec sleep 1000"], on_output=lambda *_: begun[1].set())
        )
        for event in begun:
            await event.wait()
        await asyncio.to_thread(server.kill)
        reading = asyncio.create_task(box.read_file("/testbed/file"))
        await asyncio.to_thread(server.start)
        result = await under_way
        assert result.interrupted
        assert result.exit_code is None
        assert result.stdout == b"begun\n"
        assert "connection to the Jupyter server broke" in result.notice
        assert (await beside).interrupted
        assert await reading == b"content\n"
        after = await box.run("echo $KEPT; pwd; pgrep -cf '[s]leep 5432'; pgrep -cf '[s]leep 1000'")
        assert after.stdout == b"1\n/tmp\n1\n0\n"
        await asyncio.sleep(GRACE + 1.5)  # longer than the grace: a client that is connected claims it
        assert (await box.run("echo still")).stdout == b"still\n"
        await box.close()

    run(go(), timeout=120)
    [adopted] = server.sandboxes() or [model]
    assert adopted["id"] == model["id"]
    assert len(containers(server)) <= 1
    gone_within(server, PATIENCE)


def test_the_notebooks_next_kernel_gets_it(server: JupyterProcess) -> None:
    model = start(server, "b.ipynb")
    server.kill()
    server.start()
    again = start(server, "b.ipynb")
    assert again["kernel_id"] != model["kernel_id"]
    assert (again["id"], again["sandbox_id"]) == (model["id"], model["sandbox_id"])
    assert again["settings"] == model["settings"]
    assert again["protection"]["user"] == model["protection"]["user"]
    time.sleep(GRACE + 1.5)
    assert server.sandboxes()[0]["state"] == "running"
    reset = server.post(f"{API}/sandboxes/{again['id']}/reset")
    assert reset["sandbox_id"] != model["sandbox_id"]


def test_nobody_comes(server: JupyterProcess) -> None:
    start(server, "c.ipynb")
    server.kill()
    server.start()
    assert len(server.sandboxes()) == 1
    gone_within(server, PATIENCE)
    assert server.sandboxes() == []


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
        await box.run("true")
        under_way = asyncio.create_task(box.run("sleep 1000"))
        await asyncio.sleep(0.3)
        await asyncio.to_thread(server.kill)
        with pytest.raises(SandboxLostError, match="restart the server"):
            await under_way
        with pytest.raises(SandboxLostError):
            await box.read_file("x")
        await box.close()

    run(go(), timeout=60)
    for container in containers(server):
        client = docker.from_env()
        client.api.remove_container(container["Id"], force=True)
        client.close()


def test_a_start_can_be_stopped(server: JupyterProcess) -> None:
    """As it is when the kernel dies half-way through one."""
    kernel = server.start_kernel()
    answers: list[Any] = []
    body = {"kernel_id": kernel, "isolation": "docker"}
    asking = threading.Thread(target=lambda: answers.append(server.ask(f"{API}/sandboxes", "POST", body)))
    asking.start()
    while not (found := server.sandboxes()):
        time.sleep(0.005)
    if found[0]["state"] == "starting":
        assert server.ask(f"{API}/sandboxes/{found[0]['id']}", "DELETE")[0] == 204
        asking.join(PATIENCE)
        assert answers[0][0] == 410
        assert "stopped while it was starting" in answers[0][1]["message"]
    asking.join(PATIENCE)
    server.ask(f"api/kernels/{kernel}", "DELETE")
    gone_within(server, PATIENCE)


def test_a_container_that_dies_is_told_and_replaced(server: JupyterProcess) -> None:
    model = start(server, "f.ipynb")

    async def go() -> None:
        box = ServerSandbox(ServerAddress(server.url, server.token), model)
        under_way = asyncio.create_task(box.run("sleep 1000"))
        await asyncio.sleep(0.5)
        [container] = containers(server)
        client = docker.from_env()
        await asyncio.to_thread(client.api.kill, container["Id"])
        client.close()
        with pytest.raises(SandboxLostError, match="lost"):
            await under_way
        await box.close()

    run(go(), timeout=60)
    body = {"kernel_id": model["kernel_id"], "isolation": "docker"}
    fresh = server.post(f"{API}/sandboxes", body)
    assert fresh["sandbox_id"] != model["sandbox_id"]
