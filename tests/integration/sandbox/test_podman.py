"""Podman behind Docker's interface: a sandbox with the default network opens, and neighbours do not reach each other.

The service is this test's own: its storage, its settings and its network namespace are removed at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker_help import disconnect, docker_box
from support import require, run, until

from llm_sandbox_nb.sandbox.docker import network
from llm_sandbox_nb.sandbox.docker.engine import connect
from llm_sandbox_nb.sandbox.docker.images import SLIM_IMAGE
from llm_sandbox_nb.sandbox.docker.ownership import reap_orphans

pytestmark = [pytest.mark.docker, pytest.mark.campaign, pytest.mark.usefixtures("podman")]
CAP_SYS_RESOURCE = 1 << 24
# Podman asks for more processes and open files than a root without that capability may allow.
RUNTIME = """#!{python}
import json, os, sys
arguments = sys.argv[1:]
for option in ("--bundle", "--process"):
    if option in arguments:
        path = arguments[arguments.index(option) + 1] + ("/config.json" if option == "--bundle" else "")
        order = json.load(open(path))
        process = order.get("process", order)
        rlimits = process.get("rlimits", [])
        process["rlimits"] = [one for one in rlimits if one["hard"] < 1 << 20 or one["type"] == "RLIMIT_FSIZE"]
        json.dump(order, open(path, "w"))
os.execv({runc!r}, ["runc", *arguments])
"""
LISTENER = "import socket\nwith socket.create_server(('', 7000)) as one:\n while 1: one.accept()[0].close()"
CALLER = "import socket, sys\nsocket.create_connection((sys.argv[1], 7000), 3)\nprint('reached')"


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """DOCKER_HOST leads to a Podman of this module's own, which has the slim image."""
    require("docker")  # which has the image
    program = shutil.which("podman")
    if program is None or os.geteuid() != 0:
        missing = "Podman, and root to start its service, are needed: `apt-get install podman`"
        if os.environ.get("LLM_SANDBOX_REQUIRE_ENGINES") == "1":
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("podman")
    socket = folder / "podman.sock"
    configuration = folder / "containers.conf"
    configuration.write_text(settings(folder))
    (folder / "cni").mkdir()
    service = [program, "--root", folder / "storage", "--runroot", folder / "run", "system", "service"]
    command = ["unshare", "--net", *map(str, service), "--time=0", f"unix://{socket}"]
    process = subprocess.Popen(
        command,
        env={**os.environ, "CONTAINERS_CONF": str(configuration)},
        stdout=subprocess.DEVNULL,
        stderr=(folder / "log").open("w"),
    )
    with pytest.MonkeyPatch.context() as patch:
        try:
            image = connect().images.get(SLIM_IMAGE).save(named=True)
            disconnect()
            patch.setenv("DOCKER_HOST", f"unix://{socket}")
            until(socket.exists)
            connect(timeout=300).images.load(b"".join(image))
            disconnect()
            yield
            for container in connect().containers.list(all=True):
                container.remove(force=True)
        finally:
            disconnect()
            process.terminate()
            process.wait(30)
            for line in Path("/proc/mounts").read_text().splitlines():
                if str(folder) in line:
                    subprocess.run(["umount", line.split()[1]], check=False)


def settings(folder: Path) -> str:
    lines = [f'[network]\nnetwork_config_dir = "{folder}/cni"']
    lines.append(f'[engine]\nevents_logger = "file"\ntmp_dir = "{folder}/tmp"\ncgroup_manager = "cgroupfs"')
    rights = next(line for line in Path("/proc/self/status").read_text().splitlines() if "CapEff" in line)
    if not int(rights.split()[1], 16) & CAP_SYS_RESOURCE:
        runtime = folder / "runtime"
        runtime.write_text(RUNTIME.format(python=sys.executable, runc=shutil.which("runc")))
        runtime.chmod(0o755)
        lines.append(f'runtime = "own"\n[engine.runtimes]\nown = ["{runtime}"]')
    return "\n".join(lines)


def own_networks() -> set[str]:
    return {one["Name"] for one in connect().api.networks() if one["Name"].startswith(network.NETWORK_NAME)}


def test_a_sandbox_with_the_default_network_opens_and_leaves_no_network() -> None:
    async def body() -> None:
        async with docker_box(image=SLIM_IMAGE) as first, docker_box(image=SLIM_IMAGE) as second:
            assert first.protection.network == "public"
            assert "the gateway" in first.protection.details["closed"]
            assert own_networks() == {network.own_network_name(box.id) for box in (first, second)}
            assert (await second.run("echo hello")).stdout == b"hello\n"

    run(body())
    until(lambda: own_networks() == set())


def test_doctor_opens_a_sandbox() -> None:
    connect().images.get(SLIM_IMAGE).tag("llm-sandbox-nb", "0.1.0")
    done = subprocess.run(
        [sys.executable, "-m", "llm_sandbox_nb", "doctor"], capture_output=True, text=True, timeout=300
    )
    assert any(line.split() == ["docker", "works"] for line in done.stdout.splitlines()), done.stdout


def test_networks_of_two_sandboxes_are_apart() -> None:
    """Also for containers without the filter of packets that sandboxes have inside."""
    apart = [network.make_own_network(connect(), name) for name in ("a" * 12, "b" * 12)]
    shared = connect().networks.create("shared", driver="bridge").name
    listener = [started(LISTENER, network=name) for name in (apart[0], shared)]
    try:
        reached = [call(listener[0], apart[1]), call(listener[1], shared)]
        assert reached == [False, True], "the second is the canary: on one network they reach each other"
    finally:
        for container in listener:
            container.remove(force=True)
        for name in (*apart, shared):
            connect().api.remove_network(name)


def started(program: str, **options: Any) -> Any:
    return connect().containers.run(SLIM_IMAGE, ["python3", "-c", program], detach=True, **options)


def call(listener: Any, name: str) -> bool:
    listener.reload()
    (joined,) = listener.attrs["NetworkSettings"]["Networks"].values()
    until(lambda: ":1B58" in listener.exec_run(["cat", "/proc/net/tcp"]).output.decode())
    container = connect().containers.create(
        SLIM_IMAGE, ["python3", "-c", CALLER, joined["IPAddress"]], network=name
    )
    try:
        container.start()
        return container.wait(timeout=60)["StatusCode"] == 0
    finally:
        container.remove(force=True)


def test_a_network_whose_sandbox_has_ended_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    left, new = "c" * 12, "d" * 12
    monkeypatch.setattr(time, "time", lambda: 1_000_000.0)
    network.make_own_network(connect(), left)
    monkeypatch.undo()
    network.make_own_network(connect(), new)
    try:
        reap_orphans()
        assert own_networks() == {network.own_network_name(new)}, json.dumps(connect().api.networks())
    finally:
        connect().api.remove_network(network.own_network_name(new))
