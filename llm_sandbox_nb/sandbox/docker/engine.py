"""Finding the Docker engine, speaking to it, and saying in one sentence why it cannot be done.

An engine behind ssh gets a local socket, each connection to which becomes `ssh HOST docker system dial-stdio`.
docker-py reaches such engines only with a further library, and cannot attach to a program's stdin there. Behind a
local socket they are like any other; the user's own ssh, with its agent and settings, does the rest.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from urllib.parse import urlsplit

from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError, SandboxError, SandboxLostError
from llm_sandbox_nb.sandbox.leftover_folders import TemporaryFolder

if TYPE_CHECKING:
    from llm_sandbox_nb.sandbox.docker.api import DockerClient, TLSConfig

P = ParamSpec("P")
T = TypeVar("T")

PREFIX = "llm-sandbox-nb"
"""All that is ours on an engine (names, labels, the network, images) starts with this."""
OLDEST_API = "1.41"
"""Docker 20.10; what is asked with it is the engine's own version."""
REQUEST_TIMEOUT = 60.0
"""Seconds the engine may take to answer one request."""


@dataclass(frozen=True)
class Endpoint:
    """Where the engine listens: `unix://`, `tcp://` (with or without TLS) or `ssh://`."""

    url: str
    tls: TLSConfig | None = None

    @property
    def reached_at(self) -> str:
        """The address to connect to: for ssh a local socket that leads there."""
        return f"unix://{local_socket(self.url)}" if self.url.startswith("ssh://") else self.url


_clients: dict[tuple[int, str], DockerClient] = {}
_clients_lock = threading.Lock()
_tunnels: dict[tuple[int, str], _SshTunnel] = {}
_tunnels_lock = threading.Lock()


def find_endpoint() -> Endpoint:
    """The engine that `docker` on the command line would use: DOCKER_HOST, else the current Docker context.

    Raises:
        IsolationUnavailableError: the TLS files or the context it names cannot be read.
    """
    from llm_sandbox_nb.sandbox.docker.api import ContextAPI, DockerException, kwargs_from_env

    try:
        settings = kwargs_from_env()
        if "base_url" in settings:
            return Endpoint(settings["base_url"], settings.get("tls") or None)
        context = ContextAPI.get_current_context()
        if context is None or not context.Host:
            return Endpoint("unix:///var/run/docker.sock")
        return Endpoint(context.Host, context.TLSConfig)
    except (DockerException, OSError, ValueError) as error:
        raise IsolationUnavailableError(
            f"The settings of the Docker engine cannot be read: correct DOCKER_HOST, DOCKER_CERT_PATH or "
            f"the Docker context ({one_line(error)})."
        ) from error


def connect(timeout: float = REQUEST_TIMEOUT) -> DockerClient:
    """A client of the engine, kept for this process.

    Raises:
        IsolationUnavailableError: no engine answers.
    """
    endpoint = find_endpoint()
    key = (os.getpid(), endpoint.url)
    with _clients_lock:
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = _new_client(endpoint, timeout)
    return client


def disconnect() -> None:
    """Forget the clients that `connect` keeps; over ssh that ends the processes behind them."""
    with _clients_lock:
        while _clients:
            _clients.popitem()[1].close()
    close_tunnels()


def _new_client(endpoint: Endpoint, timeout: float) -> DockerClient:
    with engine_errors(endpoint.url):
        first = _client_of_version(endpoint, timeout, OLDEST_API)
        with contextlib.closing(first):
            version = first.api.version(api_version=False)["ApiVersion"]
        return _client_of_version(endpoint, timeout, version)


def _client_of_version(endpoint: Endpoint, timeout: float, version: str) -> DockerClient:
    """A client that has sent nothing yet, so that it can still be made to ignore the environment.

    Else REQUESTS_CA_BUNDLE would replace the engine's own authority, and HTTP_PROXY would stand before it.
    """
    from llm_sandbox_nb.sandbox.docker.api import DockerClient

    client = DockerClient(
        base_url=endpoint.reached_at, tls=endpoint.tls or False, version=version, timeout=int(timeout)
    )
    client.api.trust_env = False
    return client


def engine_version(timeout: float = 15.0) -> str:
    """What answers, e.g. `Docker 27.3.1`; asked anew each time.

    Raises:
        IsolationUnavailableError: no engine answers within `timeout` seconds.
    """
    endpoint = find_endpoint()
    with contextlib.closing(_new_client(endpoint, timeout)) as client, engine_errors(endpoint.url):
        answer: dict[str, Any] = client.version()
    components = answer.get("Components") or [{"Name": "Docker"}]
    name = str(components[0].get("Name")).removesuffix("Engine").strip() or "Docker"
    return f"{name} {answer.get('Version', '?')}"


@contextlib.contextmanager
def engine_errors(where: str = "") -> Iterator[None]:
    """Turn what docker-py and requests raise when there is no engine to speak to into one sentence.

    Errors that the engine itself answers (`docker.errors.APIError`) pass: they mean something to the caller.
    """
    import requests

    from llm_sandbox_nb.sandbox.docker.api import APIError, DockerException

    try:
        yield
    except APIError:
        raise
    except (DockerException, requests.RequestException, OSError) as error:
        raise IsolationUnavailableError(_no_engine(where or find_endpoint().url, error)) from error


def _no_engine(where: str, error: BaseException) -> str:
    text = one_line(error)
    if "PermissionError" in text or "Permission denied" in text:
        return (
            f"This user may not use the Docker engine at {where}: join the group `docker` and log in again, "
            f"or set DOCKER_HOST to an engine of your own."
        )
    # What the system said, without the names of classes around it.
    found = re.search(r"\[Errno \d+\] ([\w ]+)|Error\(\d+, '([\w ]+)'", text)
    reason = (found[1] or found[2]).lower() if found else text[:200]
    return (
        f"No Docker engine answers at {where}: start it, or set DOCKER_HOST to one that runs, or use an isolation that "
        f"works here, as `llm-sandbox-nb doctor` says ({reason})."
    )


@contextlib.contextmanager
def lost_errors(what: str) -> Iterator[None]:
    """As `engine_errors`, and everything the engine refuses too, for a sandbox that was already there."""
    from llm_sandbox_nb.sandbox.docker.api import APIError

    try:
        with engine_errors():
            yield
    except (APIError, IsolationUnavailableError) as error:
        raise SandboxLostError(f"The sandbox is lost: {what} ({one_line(error)}).") from error


def unexpected(error: Exception, doing: str) -> SandboxError:
    """A sentence for a refusal of the engine that has no better one."""
    return SandboxError(f"The Docker engine refused to {doing}: {one_line(error)}.")


def one_line(error: BaseException, limit: int = 300) -> str:
    """The message of an error, short enough for a sentence and without its final full stop."""
    explanation = getattr(error, "explanation", None)
    text = " ".join(str(explanation or error or type(error).__name__).split()).rstrip(".")
    return text if len(text) <= limit else text[: limit - 1] + "…"


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking call of docker-py beside the event loop; no engine means `IsolationUnavailableError`."""

    def call() -> T:
        with engine_errors():
            return function(*args, **kwargs)

    return await asyncio.to_thread(call)


def local_socket(url: str) -> str:
    """The path of a socket that leads to the engine at an `ssh://` address.

    Raises:
        IsolationUnavailableError: there is no `ssh` here.
    """
    if shutil.which("ssh") is None:
        raise IsolationUnavailableError(f"Reaching {url} needs the program ssh: install an ssh client.")
    with _tunnels_lock:
        key = (os.getpid(), url)
        if key not in _tunnels:
            _tunnels[key] = _SshTunnel(url)
        return str(_tunnels[key].path)


def close_tunnels() -> None:
    """End every connection and remove the sockets."""
    with _tunnels_lock:
        while _tunnels:
            (owner, _), tunnel = _tunnels.popitem()
            if owner == os.getpid():
                tunnel.close()


atexit.register(close_tunnels)


class _SshTunnel:
    """A listening socket, in a folder of this user's own, and the ssh processes behind its connections."""

    def __init__(self, url: str) -> None:
        self.folder = TemporaryFolder()
        self.path = self.folder.path / "docker.sock"
        parts = urlsplit(url)
        host = f"{parts.username}@{parts.hostname}" if parts.username else parts.hostname or ""
        port = ["-p", str(parts.port)] if parts.port else []
        self._command = [
            "ssh",
            "-o",
            "BatchMode=yes",
            "-T",
            *port,
            "--",
            host,
            "docker",
            "system",
            "dial-stdio",
        ]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, name="docker over ssh", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    self._processes = [process for process in self._processes if process.poll() is None]
                    self._processes.append(
                        subprocess.Popen(
                            self._command,
                            stdin=connection.fileno(),
                            stdout=connection.fileno(),
                            stderr=subprocess.DEVNULL,
                            start_new_session=True,
                        )
                    )

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        for process in self._processes:
            process.terminate()
            process.wait()
        self.folder.close()
