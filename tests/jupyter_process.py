"""A real Jupyter server in a process of its own, for tests."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from support import PATIENCE, QUICK_IMPORTS
from warm_kernels import renew

_ANY_CERTIFICATE = ssl.create_default_context()
_ANY_CERTIFICATE.check_hostname = False
_ANY_CERTIFICATE.verify_mode = ssl.CERT_NONE
_XSRF = {"Cookie": "_xsrf=aa", "X-XSRFToken": "aa"}


_HELD: list[socket.socket] = []
"""Sockets that keep ports for servers of tests, until this process ends."""


def free_port() -> int:
    """A port of 127.0.0.1 that the system gives to nobody else: a socket that does not listen holds it.

    A server binds it as often as it starts: that socket and the server's have SO_REUSEADDR.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    _HELD.append(holder)
    return int(holder.getsockname()[1])


STUB = "stub"
"""Name of the kernel that `install_stub` installs."""


def install_stub(data: Path) -> None:
    """Install a kernel that executes nothing and ends with its server, for tests that need no more than its id.

    It starts in a hundredth of the time of a real one. The interrupt that Jupyter sends before a shutdown ends it.
    """
    spec = data / "kernels" / STUB
    spec.mkdir(parents=True, exist_ok=True)
    argv = ["sh", "-c", "while kill -0 $PPID; do sleep 1; done", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": STUB, "language": "none"}))


class JupyterProcess:
    """`jupyter server` with our extension, in folders of its own; can be killed and started again."""

    module = "jupyter_server"
    python = sys.executable
    without: tuple[str, ...] = (
        "jupyterlab", "jupyter_lsp", "jupyter_server_terminals", "notebook", "notebook_shim",
    )  # fmt: skip
    """Extensions that are installed here too and would take seconds of each start."""
    answers_at = "llm-sandbox/api/info"
    """Where it is asked whether it is up."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        env: Mapping[str, str] | None = None,
        certificate: tuple[Path, Path] | None = None,
        token: str | None = None,
    ) -> None:
        """`certificate` is a PEM file and its key, for a server that speaks TLS. An empty `token` lets everybody in."""
        self.folder = folder
        self.root = folder / "root"
        self.runtime = folder / "runtime"
        self.port = free_port()
        self.token = secrets.token_hex(16) if token is None else token
        self.url = f"http{'s' if certificate else ''}://127.0.0.1:{self.port}/x/"
        self.options = list(options)
        if certificate:
            self.options += [
                f"--ServerApp.certfile={certificate[0]}",
                f"--ServerApp.keyfile={certificate[1]}",
            ]
        self.env = dict(env or {})
        self.process: subprocess.Popen[bytes] | None = None
        self._idle: list[str] = []
        for part in (self.root, self.runtime):
            part.mkdir(parents=True, exist_ok=True)

    @property
    def log(self) -> str:
        return (self.folder / "server.log").read_text("utf-8", "replace")

    def start(self, timeout: float = PATIENCE) -> JupyterProcess:
        self._idle.clear()  # kernels of an earlier process are gone
        folders = {
            f"JUPYTER_{name.upper()}_DIR": str(self.folder / name) for name in ("config", "data", "runtime")
        }
        command = [self.python, "-m", self.module, "--no-browser", "--allow-root"]
        command += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.port={self.port}", "--ServerApp.port_retries=0"]
        command += [f"--IdentityProvider.token={self.token}", f"--ServerApp.root_dir={self.root}"]
        command += ["--ServerApp.base_url=/x/", "--ServerApp.jpserver_extensions=llm_sandbox_nb=True"]
        command += [f"--ServerApp.jpserver_extensions={name}=False" for name in self.without]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *self.options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **folders, **self._environment(), **self.env},
                cwd=self.folder,
                start_new_session=True,
            )
        self._wait_until_it_answers(timeout)
        return self

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(__file__).parents[1]), str(QUICK_IMPORTS)])
        return {"IPYTHONDIR": str(self.folder / "ipython"), "PYTHONPATH": path}

    def _wait_until_it_answers(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not self.is_up():
            assert self.process is not None
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.1)

    def is_up(self) -> bool:
        """Whether this very process answers: its own file names the address."""
        assert self.process is not None
        try:
            told = json.loads((self.runtime / f"jpserver-{self.process.pid}.json").read_text())
            assert told["url"].startswith(self.url.split("//")[0]), told
            assert told["port"] == self.port, told
            self.get(self.answers_at, timeout=30)
        except (OSError, ValueError):
            return False
        return True

    def kill(self) -> None:
        """SIGKILL, and nothing else."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """As a person who closes it; then whatever is left of its session."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def ask(
        self, path: str, method: str = "GET", body: Any = None, timeout: float = PATIENCE
    ) -> tuple[int, Any]:
        """A request; status and JSON, also of refusals."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Authorization": f"token {self.token}"} if self.token else _XSRF,
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout, context=_ANY_CERTIFICATE) as answer:
                return answer.status, _json(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, _json(error.read())

    def get(self, path: str, timeout: float = PATIENCE) -> Any:
        """The JSON at `path`; any refusal is a failure."""
        status, answer = self.ask(path, timeout=timeout)
        assert status == 200, (status, answer)
        return answer

    def post(self, path: str, body: Any = None, timeout: float = PATIENCE) -> Any:
        status, answer = self.ask(path, "POST", body or {}, timeout)
        assert status in (200, 201), (status, answer)
        return answer

    def start_kernel(self, name: str = "python3") -> str:
        """A kernel without a notebook."""
        self._install(name)
        kernel_id: str = self.post("api/kernels", {"name": name})["id"]
        return kernel_id

    @contextlib.contextmanager
    def warm_kernel(self) -> Iterator[str]:
        """A kernel without a notebook, as new; kept for later tests unless a test left it in the middle of a cell."""
        kernel_id = self._idle.pop() if self._idle else self._renew(self.start_kernel())
        yield kernel_id
        busy = self._stays_busy(kernel_id)
        if busy:
            self.ask(f"api/kernels/{kernel_id}", "DELETE")
        else:
            self._renew(kernel_id)
        for model in self.sandboxes():
            if model["kernel_id"] == kernel_id:
                self.ask(f"llm-sandbox/api/sandboxes/{model['id']}", "DELETE")
        if not busy:
            self._idle.append(kernel_id)

    def clear(self) -> None:
        """End all sandboxes, and all kernels but those that wait for the next test."""
        for model in self.sandboxes():
            self.ask(f"llm-sandbox/api/sandboxes/{model['id']}", "DELETE")
        for kernel in self.get("api/kernels"):
            if kernel["id"] not in self._idle:
                self.ask(f"api/kernels/{kernel['id']}", "DELETE")

    def _stays_busy(self, kernel_id: str) -> bool:
        """Return True if a cell still runs after some seconds: its test has failed, and nobody will end it."""
        deadline = time.monotonic() + 10
        while busy := self.get(f"api/kernels/{kernel_id}")["execution_state"] == "busy":
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return busy

    def _renew(self, kernel_id: str) -> str:
        with self.client(kernel_id) as client:
            renew(client)
        return kernel_id

    def _install(self, kernel: str) -> None:
        """Install the stub when it is asked for: pages of the other tests must not offer it."""
        if kernel == STUB:
            install_stub(self.folder / "data")

    def start_session(self, path: str, kernel: str = "python3") -> dict[str, Any]:
        self._install(kernel)
        body = {"path": path, "name": path, "type": "notebook", "kernel": {"name": kernel}}
        session: dict[str, Any] = self.post("api/sessions", body)
        return session

    @contextlib.contextmanager
    def client(self, kernel_id: str, patience: float = PATIENCE) -> Iterator[BlockingKernelClient]:
        client = BlockingKernelClient(connection_file=str(self.runtime / f"kernel-{kernel_id}.json"))
        client.load_connection_file()
        client.start_channels()
        try:
            _wait_until_ready(client, patience)
            yield client
        finally:
            client.stop_channels()

    def execute(self, kernel_id: str, code: str, timeout: float = 2 * PATIENCE) -> str:
        """Run code in a kernel; what it prints. An exception there is a failure here."""
        printed: list[str] = []

        def hook(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])

        with self.client(kernel_id) as client:
            reply = client.execute_interactive(code, output_hook=hook, timeout=timeout, allow_stdin=False)
        content = reply["content"]
        assert content["status"] == "ok", "\n".join(content.get("traceback", [str(content)]))
        return "".join(printed)

    def kernel_pid(self, kernel_id: str) -> int | None:
        """The process of a kernel, found by its connection file; None while there is none."""
        wanted = f"kernel-{kernel_id}.json".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if wanted in (entry / "cmdline").read_bytes():
                        return int(entry.name)
        return None

    def sandboxes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("llm-sandbox/api/sandboxes")["sandboxes"]
        return found


def _wait_until_ready(client: BlockingKernelClient, timeout: float = PATIENCE) -> None:
    """A kernel that was just started again answers no heartbeat at first, which the client takes for dead."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return client.wait_for_ready(timeout=timeout)
        except RuntimeError:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def _json(data: bytes) -> Any:
    try:
        return json.loads(data or b"null")
    except ValueError:
        return data


@contextlib.contextmanager
def jupyter(folder: Path, *options: str, **more: Any) -> Iterator[JupyterProcess]:
    """A running server that is stopped at the end."""
    server = JupyterProcess(folder, *options, **more)
    try:
        yield server.start()
    finally:
        server.stop()
