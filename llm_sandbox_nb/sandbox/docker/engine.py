"""The connection to the Docker engine, and the error messages for failures of the connection.

For an engine at an ssh:// address, this module listens on a local socket, and forwards each connection to
`ssh HOST docker system dial-stdio`. So the engine can be used like a local engine, and the user's ssh agent and
settings apply. docker-py's own ssh support is not used, because it needs a further library and cannot attach to stdin.
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
"""Prefix of all names, labels, networks and images of this package on an engine."""
OLDEST_API_VERSION = "1.41"
"""API version of Docker 20.10, the oldest supported Docker. The first request to an engine uses this version to ask for
the engine's newest API version, which all later requests use."""
REQUEST_TIMEOUT = 60.0
"""Seconds in which the engine must answer a request."""


@dataclass(frozen=True)
class Endpoint:
    """Address of an engine, which begins with `unix://`, `tcp://` (with or without TLS) or `ssh://`."""

    url: str
    tls: TLSConfig | None = None

    @property
    def reached_at(self) -> str:
        """The address for connections: `url`, or the address of `local_socket` for an engine at an ssh:// address."""
        return f"unix://{local_socket(self.url)}" if self.url.startswith("ssh://") else self.url


_clients: dict[tuple[int, str], DockerClient] = {}
_clients_lock = threading.Lock()
_tunnels: dict[tuple[int, str], _SshTunnel] = {}
_tunnels_lock = threading.Lock()


def find_endpoint() -> Endpoint:
    """Return the engine that the command `docker` would use.

    DOCKER_HOST names the engine. If it is not set, the current Docker context names the engine.

    Raises:
        IsolationUnavailableError: if the TLS files or the context cannot be read.
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
    """Return docker-py's client for the current engine. A process makes one client for each engine.

    Raises:
        IsolationUnavailableError: if no engine answers.
    """
    endpoint = find_endpoint()
    key = (os.getpid(), endpoint.url)
    with _clients_lock:
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = _new_client(endpoint, timeout)
    return client


def _new_client(endpoint: Endpoint, timeout: float) -> DockerClient:
    with engine_errors(endpoint.url):
        first = _client_of_version(endpoint, timeout, OLDEST_API_VERSION)
        with contextlib.closing(first):
            version = first.api.version(api_version=False)["ApiVersion"]
        return _client_of_version(endpoint, timeout, version)


def _client_of_version(endpoint: Endpoint, timeout: float, version: str) -> DockerClient:
    from llm_sandbox_nb.sandbox.docker.api import DockerClient

    client = DockerClient(
        base_url=endpoint.reached_at, tls=endpoint.tls or False, version=version, timeout=int(timeout)
    )
    # With True, the variable REQUESTS_CA_BUNDLE would replace the certificates, and HTTP_PROXY would redirect requests.
    client.api.trust_env = False
    return client


def engine_version(timeout: float = 15.0) -> str:
    """Return the engine's name and version, e.g. `Docker 27.3.1`.

    The client of `connect` is not used, because it may have another time limit.

    Raises:
        IsolationUnavailableError: if no engine answers within `timeout` seconds.
    """
    endpoint = find_endpoint()
    with contextlib.closing(_new_client(endpoint, timeout)) as client, engine_errors(endpoint.url):
        answer: dict[str, Any] = client.version()
    components = answer.get("Components") or [{"Name": "Docker"}]
    name = str(components[0].get("Name")).removesuffix("Engine").strip() or "Docker"
    return f"{name} {answer.get('Version', '?')}"


@contextlib.contextmanager
def engine_errors(where: str = "") -> Iterator[None]:
    """Raise IsolationUnavailableError if a request in this context gets no answer from an engine.

    `where` is the engine's address in the error message; the current engine's address if empty. If an engine answers
    with an error (`docker.errors.APIError`), that exception is raised unchanged, so that the caller can handle it.
    """
    import requests

    from llm_sandbox_nb.sandbox.docker.api import APIError, DockerException

    try:
        yield
    except APIError:
        raise
    except (DockerException, requests.RequestException, OSError) as error:
        raise no_engine(where or find_endpoint().url, error) from error


def no_engine(where: str, error: BaseException) -> IsolationUnavailableError:
    """Return the error for a request that no engine answers. `where` is the engine's address."""
    text = one_line(error)
    if "PermissionError" in text or "Permission denied" in text:
        return IsolationUnavailableError(
            f"This user may not use the Docker engine at {where}: join the group `docker` and log in again, "
            f"or set DOCKER_HOST to an engine of your own."
        )
    if "timed out" in text.lower():
        # https://github.com/moby/moby/issues/46661, seen with Docker 20.10 and 64 sandboxes
        return IsolationUnavailableError(
            f"The Docker engine at {where} does not answer: wait until it has less work, or restart it (Docker before "
            "23 can freeze while many containers start and end at once)."
        )
    # Libraries wrap the system's message in names of classes. Show only the system's message.
    found = re.search(r"\[Errno \d+\] ([\w ]+)|Error\(\d+, '([\w ]+)'", text)
    reason = (found[1] or found[2]).lower() if found else text[:200]
    return IsolationUnavailableError(
        f"No Docker engine answers at {where}: start it, or set DOCKER_HOST to an engine that runs, or use an "
        f"isolation that works here, as `llm-sandbox-nb doctor` says ({reason})."
    )


@contextlib.contextmanager
def lost_errors() -> Iterator[None]:
    """Raise SandboxLostError if a request in this context fails. Use this context for requests about one sandbox."""
    from llm_sandbox_nb.sandbox.docker.api import APIError

    try:
        with engine_errors():
            yield
    except (APIError, IsolationUnavailableError) as error:
        raise SandboxLostError(f"The sandbox is lost: its container is gone ({one_line(error)}).") from error


def unexpected(error: Exception, doing: str) -> SandboxError:
    """Return the exception for a request that the engine refused. `doing` names the request: `start a container`."""
    return SandboxError(f"The Docker engine refused to {doing}: {one_line(error)}.")


def one_line(error: BaseException, limit: int = 300) -> str:
    """Return an error's message in one line, without a full stop at its end, and cut to `limit` characters."""
    explanation = getattr(error, "explanation", None)
    text = " ".join(str(explanation or error or type(error).__name__).split()).rstrip(".")
    return text if len(text) <= limit else text[: limit - 1] + "…"


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function`, which makes blocking requests, in a thread and in the context `engine_errors`."""

    def call() -> T:
        with engine_errors():
            return function(*args, **kwargs)

    return await asyncio.to_thread(call)


def local_socket(url: str) -> str:
    """Return the path of a local socket that forwards to the engine at an `ssh://` address.

    Raises:
        IsolationUnavailableError: if `ssh` is not installed.
    """
    if shutil.which("ssh") is None:
        raise IsolationUnavailableError(f"Reaching {url} needs the program ssh: install an ssh client.")
    with _tunnels_lock:
        key = (os.getpid(), url)
        if key not in _tunnels:
            _tunnels[key] = _SshTunnel(url)
        return str(_tunnels[key].path)


def close_tunnels() -> None:
    """End all ssh connections of this process, and remove their local sockets."""
    with _tunnels_lock:
        while _tunnels:
            (owner, _), tunnel = _tunnels.popitem()
            if owner == os.getpid():
                tunnel.close()


atexit.register(close_tunnels)


class _SshTunnel:
    """Forwarding from a local socket to an engine over ssh, with one ssh process for each connection.

    The socket is in a temporary folder that only this user can enter.
    """

    def __init__(self, url: str) -> None:
        self.folder = TemporaryFolder()
        self.path = self.folder.path / "docker.sock"
        parts = urlsplit(url)
        # `parts.hostname` would be in lower case, but names of hosts in ssh's settings may have capitals.
        host = re.sub(r"[\[\]]|:\d*$", "", parts.netloc)
        port = ["-p", str(parts.port)] if parts.port else []
        options = ["-o", "BatchMode=yes", "-T", *port]
        self._command = ["ssh", *options, "--", host, "docker", "system", "dial-stdio"]
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
                # If ssh cannot start, the client sees a closed connection, and the next client is served all the same.
                with connection, contextlib.suppress(OSError):
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
