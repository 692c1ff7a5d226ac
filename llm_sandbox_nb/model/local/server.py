"""The server of a local model: a child process, one for all runs of this process, that ends with it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx

from llm_sandbox_nb.formatting import format_size
from llm_sandbox_nb.known_keys import clean_key
from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.local import machine
from llm_sandbox_nb.model.local.gguf import GgufHeader
from llm_sandbox_nb.model.local.loading_progress import show
from llm_sandbox_nb.model.local.store import Stop

_WORKING = 300_000_000
"""Bytes that the engine needs beside the weights and the conversation."""
_WEIGHTS = 1.4
"""Memory of the weights, by the size of their file: much is kept in a second, faster form too."""
_LEAST_CONTEXT, _MOST_CONTEXT = 4096, 16_384
"""Tokens. Below the first, no run fits; above the second, a processor reads for many minutes."""
_SHARE = 0.8
"""Of the free memory that a model may take."""
_MOST_CACHE = 1024
"""MiB for conversations that were left and may continue."""
_TAIL = 400
"""Lines of the engine's log that are kept for runs to come and for errors."""
_LONGEST_LINE = 4000
_LARGEST_LOG = 5_000_000
"""Bytes of log in the folder of one run."""
_ENDING = 60.0
"""Seconds that a killed process may take to end."""


@dataclass(frozen=True)
class ServerPlan:
    """How a model is served."""

    file: Path
    name: str
    context: int
    threads: int
    cache_mib: int


def plan_server(file: Path, name: str, header: GgufHeader) -> ServerPlan:
    """How this machine can serve a model.

    Raises:
        ModelError: its memory does not suffice.
    """
    free = machine.free_memory()
    weights, each = int(file.stat().st_size * _WEIGHTS) + _WORKING, header.cache_bytes_per_token
    trained = header.context_length or _LEAST_CONTEXT
    fits = int((free * _SHARE - weights) / each) if each else _LEAST_CONTEXT
    context = min(trained, _MOST_CONTEXT, max(fits, _LEAST_CONTEXT)) // 256 * 256
    needed = weights + each * context
    if needed > free:
        raise ModelError(
            f"{name} needs about {format_size(needed)} of memory, and {format_size(free)} are free here: end other "
            "programs and kernels, or choose a smaller model (`llm-sandbox-nb models` lists some).",
            kind="setup",
        )
    cache = min(_MOST_CACHE, max(0, int(free * _SHARE) - needed) // 2**20 // 2)
    return ServerPlan(file, name, context, machine.processors(), cache)


class ModelServer:
    """A server that runs. Made by `serve`."""

    def __init__(self, plan: ServerPlan) -> None:
        self.plan = plan
        self.key = clean_key(secrets.token_hex(24), "The key of the local model's server")
        self.address = self.engine = ""
        self.takes_tools = False
        """Whether its chat template has a place for tools."""
        self.requests = 0
        """How many are being answered."""
        self._process: subprocess.Popen[bytes] | None = None
        self._answered = threading.Event()
        self._error = ""
        self._tail: deque[bytes] = deque(maxlen=_TAIL)
        self._logs: dict[Path, IO[bytes]] = {}
        self._lock = threading.Lock()

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def used(self) -> bool:
        """Whether a run logs what it does, or waits for a reply."""
        return bool(self._logs or self.requests)

    @property
    def process_id(self) -> int | None:
        """Of the child process."""
        return self._process.pid if self._process else None

    def ending(self) -> str:
        """How its process ended, for a sentence."""
        code = self._process.poll() if self._process else None
        if code is None or code >= 0:
            return f"ended with exit code {code}"
        if code == -signal.SIGKILL:
            return "was killed, most likely because memory ran out"
        return f"ended with signal {-code}"

    def start(self, stop: Stop) -> None:
        """Start the process and wait until it serves.

        Raises:
            ModelError: it cannot load the model.
            FetchStoppedError: nobody waits any more.
        """
        # The thread lives as long as the process: on Linux the kernel ends a child whose thread has ended.
        threading.Thread(target=self._keep, name="local-model-server", daemon=True).start()
        began = time.monotonic()
        while not self._answered.wait(0.2):
            if stop.is_set():
                self.close()
                stop.check()
            show(f"Loading {self.plan.name}: {time.monotonic() - began:.0f} s")
        if self._error or not self.alive:
            self.close()
            reason = self._error or f"its server {self.ending()}"
            raise ModelError(f"{self.plan.name} could not be loaded: {reason}.", kind="setup")
        self._look_at_template()

    def _keep(self) -> None:
        """Start the process, read what it says, and wait for its end."""
        try:
            self._process = process = subprocess.Popen(
                [sys.executable, "-P", "-m", "llm_sandbox_nb.model.local.engine"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C in a terminal is for the run, not for its model
                # Threads that wait actively for each other stand still on a busy machine.
                env={"OMP_WAIT_POLICY": "passive", **os.environ},
            )
            assert process.stdin
            assert process.stdout
            assert process.stderr
            plan = {
                "file": str(self.plan.file), "alias": self.plan.name, "context": self.plan.context,
                "threads": self.plan.threads, "cache_mib": self.plan.cache_mib, "key": self.key, "parent": os.getpid(),
            }  # fmt: skip
            threading.Thread(target=self._read_log, args=(process.stderr,), daemon=True).start()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(plan).encode() + b"\n")
                process.stdin.flush()
            line = process.stdout.readline(100_000)
            said = json.loads(line) if line else {}
            self.address, self.engine = said.get("address", ""), said.get("engine", "")
            if not self.address:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_ENDING if not line else 0.0)
                self._error = self._last_error() or said.get("error", "") or f"its server {self.ending()}"
        except (OSError, ValueError) as error:
            self._error = str(error)
        finally:
            self._answered.set()
        if self._process is not None:
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()

    def _read_log(self, source: IO[bytes]) -> None:
        with source:
            while line := source.readline(_LONGEST_LINE):
                with self._lock:
                    self._tail.append(line)
                    for path in tuple(self._logs):
                        self._write(path, line)

    def _write(self, path: Path, line: bytes) -> None:
        file = self._logs[path]
        with contextlib.suppress(OSError):  # a full disk ends the log, not the server
            if file.tell() < _LARGEST_LOG:
                file.write(line)
                file.flush()

    def _last_error(self) -> str:
        """What the engine's log says last of an error, without its full stop."""
        with self._lock:
            lines = [line.decode("utf-8", "replace").strip() for line in self._tail]
        errors = [line for line in lines if " E " in line[:20]]
        return errors[0].partition(": ")[2][:300].rstrip(".") if errors else ""

    def _look_at_template(self) -> None:
        """Ask whether the model's chat template takes tools."""
        try:
            with httpx.Client(trust_env=False, timeout=30.0) as client:
                answer = client.get(f"{self.address}/props", headers={"Authorization": f"Bearer {self.key}"})
            self.takes_tools = answer.json()["chat_template_caps"]["supports_tools"] is True
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            self.takes_tools = False

    def log_to(self, path: Path) -> None:
        """Write the log into a file too, from the server's start."""
        with self._lock, contextlib.suppress(OSError):
            if path not in self._logs:
                self._logs[path] = path.open("ab")
                for line in self._tail:
                    self._write(path, line)

    def end_log(self, path: Path) -> None:
        """Write no more into that file."""
        with self._lock, contextlib.suppress(OSError):
            if file := self._logs.pop(path, None):
                file.close()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDING)


_servers: dict[Path, ModelServer] = {}
_starting = threading.Lock()


def _forget_servers() -> None:
    """After a fork: the servers are those of the parent."""
    global _starting
    _servers.clear()
    _starting = threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_forget_servers)


def running_server(file: Path) -> ModelServer | None:
    """The server of a file in this process, when it runs."""
    server = _servers.get(file)
    return server if server is not None and server.alive else None


def serve(file: Path, name: str, header: GgufHeader, stop: Stop) -> ModelServer:
    """The server of a file: the one that runs in this process, else a new one.

    Where memory does not suffice, servers of other models that no run uses are ended first.

    Raises:
        ModelError: the machine's memory does not suffice, or the model cannot be loaded.
        FetchStoppedError: nobody waits any more.
    """
    while not _starting.acquire(timeout=0.2):
        stop.check()
        show(f"Waiting: {name} is being loaded")
    try:
        if (running := running_server(file)) is not None:
            return running
        try:
            plan = plan_server(file, name, header)
        except ModelError:
            idle = [other for other, server in _servers.items() if not server.used]
            if not idle:
                raise
            for other in idle:
                _servers.pop(other).close()
            plan = plan_server(file, name, header)
        server = ModelServer(plan)
        server.start(stop)
        _servers[file] = server
        return server
    finally:
        _starting.release()
