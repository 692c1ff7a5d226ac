"""Engines behind ssh: a local socket, each connection to which becomes `ssh HOST docker system dial-stdio`.

docker-py reaches such engines only with a further library, and cannot attach to a program's stdin there.
Behind a local socket they are like any other; the user's own ssh, with its agent and settings, does the rest.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from urllib.parse import urlsplit

from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError

_doors: dict[tuple[int, str], _SshTunnel] = {}
_lock = threading.Lock()


def local_socket(url: str) -> str:
    """The path of a socket that leads to the engine at an `ssh://` address.

    Raises:
        IsolationUnavailableError: there is no `ssh` here.
    """
    if shutil.which("ssh") is None:
        raise IsolationUnavailableError(f"Reaching {url} needs the program ssh: install an ssh client.")
    with _lock:
        key = (os.getpid(), url)
        if key not in _doors:
            _doors[key] = _SshTunnel(url)
        return str(_doors[key].path)


def close_all() -> None:
    """End every connection and remove the sockets."""
    with _lock:
        while _doors:
            (owner, _), door = _doors.popitem()
            if owner == os.getpid():
                door.close()


atexit.register(close_all)


class _SshTunnel:
    """A listening socket, in a folder of this user's own, and the ssh processes behind its connections."""

    def __init__(self, url: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="llm-sandbox-nb-"))
        self.path = self.folder / "docker.sock"
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
        shutil.rmtree(self.folder, ignore_errors=True)
