"""Engines that are not behind the local socket: over TCP, with TLS (a second real dockerd), over ssh."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import support
from docker_help import disconnect, docker_box, one_sentence
from jupyter_process import free_port
from loopback_http import LoopbackHandler, LoopbackServer
from sandbox_commands import begun
from support import run

from llm_sandbox_nb.sandbox.docker.engine import close_tunnels, connect, engine_version, local_socket
from llm_sandbox_nb.sandbox.docker.images import SLIM_IMAGE
from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError, SandboxLostError

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_engine")]
LEASE = 2.0


@dataclass
class Engine:
    process: subprocess.Popen[bytes]
    folder: Path
    url: str


def make_certificates(folder: Path) -> None:
    """An authority, and certificates for a server on 127.0.0.1 and its client, as Docker's manual has it."""
    folder.mkdir()

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *new_key, "-subj", "/CN=authority", "-keyout", "ca-key.pem", "-out", "ca.pem")
    for name, extension in (
        ("server", "subjectAltName=IP:127.0.0.1"),
        ("client", "extendedKeyUsage=clientAuth"),
    ):
        (folder / "extension").write_text(extension)
        openssl("req", *new_key, "-subj", f"/CN={name}", "-keyout", f"{name}-key.pem", "-out", f"{name}.csr")
        signed = ("-in", f"{name}.csr", "-out", f"{name}-cert.pem", "-extfile", "extension")
        openssl("x509", "-req", *signed, "-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial")
    shutil.copy(folder / "client-cert.pem", folder / "cert.pem")
    shutil.copy(folder / "client-key.pem", folder / "key.pem")


def start_engine(folder: Path, port: int) -> subprocess.Popen[bytes]:
    command = [
        "dockerd", "--data-root", folder / "data", "--exec-root", folder / "run",
        "--pidfile", folder / "pid",
        # With `none` a dockerd removes docker0, which is the other engine's.
        "--bridge", "docker0", "--iptables=false", "--ip-forward=false",
        "-H", f"unix://{folder}/docker.sock", "-H", f"tcp://127.0.0.1:{port}",
        "--tlsverify", f"--tlscacert={folder}/tls/ca.pem", f"--tlscert={folder}/tls/server-cert.pem",
        f"--tlskey={folder}/tls/server-key.pem",
    ]  # fmt: skip
    with (folder / "dockerd.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def wait_for_engine(folder: Path, process: subprocess.Popen[bytes]) -> None:
    ask = ["docker", "-H", f"unix://{folder}/docker.sock", "version"]

    def answers() -> bool:
        assert process.poll() is None, (folder / "dockerd.log").read_text()[-2000:]
        return subprocess.run(ask, capture_output=True).returncode == 0

    support.until(answers, f"no answer; see {folder}/dockerd.log")


@pytest.fixture(scope="module")
def second_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A dockerd of the tests' own, with our slim image, that may be killed."""
    folder = tmp_path_factory.mktemp("engine")
    make_certificates(folder / "tls")
    port = free_port()
    process = start_engine(folder, port)
    support.KEPT_PIDS.add(process.pid)
    engine = Engine(process, folder, f"tcp://127.0.0.1:{port}")
    try:
        wait_for_engine(folder, process)
        copy = f"docker save {SLIM_IMAGE} | docker -H unix://{folder}/docker.sock load"
        subprocess.run(["bash", "-o", "pipefail", "-c", copy], check=True, capture_output=True)
        yield engine
    finally:
        end_engine(engine)


def end_engine(engine: Engine) -> None:
    engine.process.terminate()
    engine.process.wait(support.PATIENCE)
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in reversed([mount for mount in mounts if mount.startswith(str(engine.folder))]):
        subprocess.run(["umount", "-l", mount], check=False)
    shutil.rmtree(engine.folder, ignore_errors=True)


@pytest.fixture
def secure(second_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setenv("DOCKER_HOST", second_engine.url)
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(second_engine.folder / "tls"))
    return second_engine


async def work() -> None:
    """A little of everything, enough to fill the buffers of whatever is in between."""
    data = os.urandom(3_000_000)
    async with docker_box(image=SLIM_IMAGE, network="none") as box:
        await box.write_file("data", data)
        assert await box.read_file("data") == data
        result = await box.run("head -c 5000000 /dev/zero | tr '\\0' x; echo error >&2; exit 3")
        assert (result.exit_code, len(result.stdout), result.stderr) == (3, 5_000_000, b"error\n")
        assert box.protection.memory_bytes == 2 * 1024**3


@pytest.mark.campaign
def test_tls(secure: Engine) -> None:
    run(work())
    assert connect().api.containers(all=True) == []
    assert engine_version().startswith("Docker ")


def test_tls_of_an_unknown_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection ends before the first request, so that any server with TLS will do."""
    for name in ("engine", "other"):
        make_certificates(tmp_path / name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "engine/server-cert.pem", tmp_path / "engine/server-key.pem")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path / "other"))
    server = LoopbackServer(LoopbackHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with server:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.server_port}")
        with pytest.raises(IsolationUnavailableError) as caught:
            engine_version()
    assert "certificate" in one_sentence(caught.value)


@pytest.mark.campaign
def test_engine_killed_in_use(secure: Engine) -> None:
    """The call ends with one sentence, and the sandbox ends by itself although nobody is there to tell it."""

    async def body() -> str:
        async with docker_box(image=SLIM_IMAGE, network="none", lease=LEASE) as box:
            running = await begun(box, "echo begun; sleep infinity")
            assert executors_of(secure.folder)
            secure.process.send_signal(signal.SIGKILL)
            secure.process.wait()
            with pytest.raises(SandboxLostError) as caught:
                await running
            await box.close()
            return one_sentence(caught.value)

    assert run(body()).startswith("The sandbox is lost: ")
    with pytest.raises(IsolationUnavailableError, match="No Docker engine answers at tcp://"):
        engine_version()
    support.until(lambda: not executors_of(secure.folder))


def executors_of(folder: Path) -> list[str]:
    """First processes of containers whose root is in this folder's engine; this machine's own mounts name it too."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            mounts = (process / "mountinfo").read_text().splitlines()
            root = next((line for line in mounts if line.split()[4] == "/"), "")
            if "executor" in (process / "cmdline").read_text() and str(folder / "data") in root:
                found.append(process.name)
        except OSError:
            continue
    return found


class Forwarder:
    """Plain TCP in front of the engine's own socket, as `socat` would do it."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.sockets: list[socket.socket] = []
        self.thread = threading.Thread(target=self.accept, daemon=True)
        self.thread.start()

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect("/var/run/docker.sock")
                self.sockets += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self.pump, args=(source, target), daemon=True).start()

    def pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for one in (self.listener, *self.sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[Forwarder]:
    forwarder = Forwarder()
    monkeypatch.setenv("DOCKER_HOST", forwarder.url)
    yield forwarder
    forwarder.close()


@pytest.mark.usefixtures("plain")
def test_plain_tcp() -> None:
    run(work())


async def test_connection_that_breaks_in_use(plain: Forwarder) -> None:
    async with docker_box(image=SLIM_IMAGE, network="none", lease=LEASE, labels={"test": "broken"}) as box:
        running = await begun(box, "echo begun; sleep infinity")
        plain.close()
        with pytest.raises(SandboxLostError):
            await running


def test_ssh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Everything but the encryption: what `ssh` would start on the other machine is started here."""
    program = tmp_path / "ssh"
    program.write_text(
        "#!/bin/bash\n"
        f'echo "$*" >> {tmp_path}/calls\n'
        "unset DOCKER_HOST\n"
        'while [ $# -gt 0 ] && [ "$1" != docker ]; do shift; done\n'
        'exec "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_HOST", "ssh://someone@machine:2222")
    try:
        run(work())
    finally:
        disconnect()
    calls = (tmp_path / "calls").read_text().splitlines()
    assert all("someone@machine" in call and "2222" in call for call in calls)
    assert all(call.endswith("docker system dial-stdio") for call in calls)


def test_an_ssh_that_cannot_be_started_once_hinders_no_later_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "ssh"

    def answer() -> str:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(support.PATIENCE)
            client.connect(path)
            return client.makefile().read()

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    try:
        path = local_socket("ssh://BuildBox:2222")
        program.chmod(0o644)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert answer() == ""
        program.chmod(0o755)
        assert answer().endswith("-p 2222 -- BuildBox docker system dial-stdio\n")
    finally:
        close_tunnels()
