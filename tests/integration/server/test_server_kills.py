"""`kill -9` of kernels and of servers, twenty times each: no container stays, and journals are readable."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_scripts import SUBMIT, bash, script, turn
from jupyter_process import JupyterProcess, jupyter
from support import PATIENCE, until

from llm_sandbox_nb.sandbox.docker.engine import connect
from llm_sandbox_nb.sandbox.docker.images import SLIM_IMAGE
from llm_sandbox_nb.trajectory.journal import read_journal

pytestmark = [pytest.mark.campaign, pytest.mark.docker, pytest.mark.usefixtures("docker_engine")]
KILLS = 20

CELL = """
get_ipython().run_line_magic("load_ext", "llm_sandbox_nb")
get_ipython().run_cell_magic("sandbox", "-m {model} --isolation docker", "A task.")
"""


@pytest.fixture(autouse=True)
def _bystander() -> Iterator[None]:
    """Somebody else's container with a name like ours, which must be as it was at the end."""
    settings = {"network_mode": "none", "name": f"llm-sandbox-nb-bystander-{secrets.token_hex(4)}"}
    other = connect().containers.run(SLIM_IMAGE, ["sleep", "infinity"], detach=True, **settings)
    try:
        other.reload()
        before = other.attrs["State"]
        yield
        other.reload()
        assert other.attrs["State"] == before
    finally:
        other.remove(force=True)


def containers(server: JupyterProcess) -> list[str]:
    key = hashlib.sha256(f"{server.root}|/x/".encode()).hexdigest()[:32]
    found = connect().api.containers(all=True, filters={"label": f"llm-sandbox-nb.server={key}"})
    return [container["Id"] for container in found]


def all_gone(server: JupyterProcess) -> None:
    until(lambda: not containers(server), "containers are left")


def random_moment(server: JupyterProcess, kernel: str, dice: random.Random, number: int) -> None:
    """Wait for a random time: each fourth time after nothing, else after the kernel's sandbox starts or runs."""
    if number % 4:
        states = {(kernel, state) for state in (("starting", "running") if number % 2 else ("running",))}
        until(lambda: any((one["kernel_id"], one["state"]) in states for one in server.sandboxes()))
    time.sleep(dice.uniform(0.02, 2))


def journals(folder: Path) -> int:
    """How many journals there are; each is readable to its last event."""
    found = list(folder.rglob("journal.jsonl"))
    for path in found:
        assert list(read_journal(path))
    return len(found)


@pytest.mark.timeout(900)
def test_kernels_are_killed(tmp_path: Path) -> None:
    """With everything as it is by default, but kernels that Jupyter does not start again."""
    steps = [turn(bash(f"echo {n} > output/{n}.txt; sleep 0.1")) for n in range(200)]
    model = script(tmp_path, *steps, SUBMIT)
    dice = random.Random(20)
    options = ["--SandboxManager.max_sandboxes=0", "--SandboxManager.adoption_grace=1"]
    options += ["--KernelManager.autorestart=False", "--AsyncIOLoopKernelManager.autorestart=False"]
    seen: set[str] = set()
    with jupyter(tmp_path / "jupyter", *options) as server:
        for number in range(KILLS):
            kernel = server.start_session(f"{number}.ipynb")["kernel"]["id"]
            with server.client(kernel) as client:
                client.execute(CELL.format(model=model))
                random_moment(server, kernel, dice, number)
                pid = server.kernel_pid(kernel)
                assert pid
                os.kill(pid, signal.SIGKILL)
            seen |= set(containers(server))
        all_gone(server)
        assert server.sandboxes() == []
        assert journals(server.root) >= KILLS / 4
    assert len(seen) >= KILLS / 4, "most kernels were killed before they had a sandbox"


@pytest.mark.timeout(900)
def test_servers_are_killed(tmp_path: Path) -> None:
    """At any instant of a start, between create and start of a container too; the next server cleans up."""
    model = script(tmp_path, *[turn(bash("sleep 0.1")) for _ in range(200)], SUBMIT)
    dice = random.Random(21)
    # Sandboxes of killed servers count until their leases end.
    server = JupyterProcess(tmp_path / "jupyter", "--SandboxManager.max_sandboxes=0")
    seen: set[str] = set()
    try:
        for number in range(KILLS):
            server.start()
            kernel = server.start_session(f"{number}.ipynb")["kernel"]["id"]
            asking = _use(server, kernel, CELL.format(model=model) if number % 4 == 0 else None)
            random_moment(server, kernel, dice, number)
            server.kill()
            seen |= set(containers(server))
            asking.join(PATIENCE)
            assert not asking.is_alive()
        server.start()
        all_gone(server)
        assert server.sandboxes() == []
        journals(server.root)
    finally:
        server.stop()
    assert len(seen) >= KILLS / 4, "most servers were killed before they had a sandbox"


def _use(server: JupyterProcess, kernel: str, cell: str | None) -> threading.Thread:
    """Use a sandbox beside the test: by a cell, or by asking for it alone, which takes less time to begin."""

    def by_cell() -> None:
        # A kernel that is not ready yet ends with its server: then nobody answers.
        with contextlib.suppress(RuntimeError, AssertionError), server.client(kernel, 20) as client:
            client.execute(str(cell))

    def by_request() -> None:
        body = {"kernel_id": kernel, "isolation": "docker"}
        with contextlib.suppress(OSError):
            server.ask("llm-sandbox/api/sandboxes", "POST", body)

    thread = threading.Thread(target=by_cell if cell else by_request)
    thread.start()
    return thread


def test_a_lease_alone_ends_what_a_killed_server_leaves(tmp_path: Path) -> None:
    """No server is started again: the sandbox ends with its lease, which is 45 s."""
    server = JupyterProcess(tmp_path)
    try:
        kernel = server.start().start_kernel()
        server.post("llm-sandbox/api/sandboxes", {"kernel_id": kernel, "isolation": "docker"})
        server.kill()
        assert len(containers(server)) == 1
        all_gone(server)
    finally:
        server.stop()
