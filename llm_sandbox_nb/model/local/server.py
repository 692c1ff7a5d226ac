"""Server of a local model. The server is a child process that all runs of this process share.

The child process ends with this process.
"""

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
from llm_sandbox_nb.model.local.gguf import GgufHeader, part_files
from llm_sandbox_nb.model.local.loading_progress import show
from llm_sandbox_nb.model.local.store import Stop
from llm_sandbox_nb.own_folder import open_file, unshare_file

_ENGINE_BYTES = 300_000_000
"""Memory of the engine, in addition to the weights and the conversations."""
_WEIGHTS_FACTOR = 1.4
"""Ratio of the weights' memory to their file size. The engine also stores many weights in a second, faster form."""
_MIN_CONTEXT_TOKENS, _MAX_CONTEXT_TOKENS = 4096, 16_384
"""Smallest and largest context limit of a server. A run needs at least the smallest. A CPU would need many minutes to
read more tokens than the largest."""
_MAX_SLOTS = 4
"""Maximum number of requests that are answered at the same time. On 2 cores, 4 requests together give 1.8 times the
tokens per second of one request, and 16 give little more."""
_MEMORY_SHARE = 0.8
"""Share of the free memory that is planned for a model."""
_MAX_CACHE_MIB = 1024
"""Maximum memory, in MiB, in which the engine caches conversations that may continue."""
_LOG_LINES = 400
"""Number of log lines of the engine that are stored for later runs and for error messages."""
_MAX_LOG_LINE_BYTES = 4000
_MAX_LOG_BYTES = 5_000_000
"""Maximum size of the log in the folder of a run."""
_EXIT_TIMEOUT = 60.0
"""Seconds to wait for the end of a killed process."""


@dataclass(frozen=True)
class ServerPlan:
    """Settings of a model's server."""

    file: Path
    name: str
    context: int
    """Maximum token count of each conversation."""
    slots: int
    """Number of requests that are answered at the same time. Other requests wait."""
    threads: int
    cache_mib: int


def plan_server(file: Path, name: str, header: GgufHeader) -> ServerPlan:
    """Choose the settings of a model's server for the free memory and the processors of this machine.

    Raises:
        ModelError: if the memory is too small.
    """
    free = machine.free_memory()
    size = sum(part.stat().st_size for part in part_files(file, header))
    fixed = int(size * _WEIGHTS_FACTOR) + _ENGINE_BYTES
    per_token = header.cache_bytes_per_token
    trained = header.context_length or _MIN_CONTEXT_TOKENS
    fits = int((free * _MEMORY_SHARE - fixed) / per_token) if per_token else _MIN_CONTEXT_TOKENS
    context = max(1, min(trained, _MAX_CONTEXT_TOKENS, max(fits, _MIN_CONTEXT_TOKENS)) // 256) * 256
    needed = fixed + per_token * context
    if needed > free:
        raise ModelError(
            f"{name} needs about {format_size(needed)} of memory, but only {format_size(free)} are free here: end "
            "other programs and kernels, or choose a smaller model (`llm-sandbox-nb models` lists some).",
            kind="setup",
        )
    slots = max(1, min(_MAX_SLOTS, fits // context))
    spare = int(free * _MEMORY_SHARE) - fixed - per_token * context * slots
    cache = min(_MAX_CACHE_MIB, max(0, spare) // 2**20 // 2)
    return ServerPlan(file, name, context, slots, machine.processors(), cache)


class ModelServer:
    """Server of a model, which the function `serve` starts."""

    def __init__(self, plan: ServerPlan) -> None:
        self.plan = plan
        self.key = clean_key(secrets.token_hex(24), "The key of the local model's server")
        self.address = self.engine = ""
        self.takes_tools = False
        """True if the model's chat template supports tools."""
        self.requests = 0
        """Number of requests that have no answer yet."""
        self._process: subprocess.Popen[bytes] | None = None
        self._answered = threading.Event()
        self._error = ""
        self._tail: deque[bytes] = deque(maxlen=_LOG_LINES)
        self._logs: dict[Path, IO[bytes]] = {}
        self._lock = threading.Lock()

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def used(self) -> bool:
        """True if a run stores the log of this server, or waits for a reply."""
        return bool(self._logs or self.requests)

    @property
    def process_id(self) -> int | None:
        """Id of the child process."""
        return self._process.pid if self._process else None

    def ending(self) -> str:
        """Return the predicate of a sentence about the end of the process, such as `ended with exit code 1`."""
        code = self._process.poll() if self._process else None
        if code is None or code >= 0:
            return f"ended with exit code {code}"
        if code == -signal.SIGKILL:
            return "was killed, most likely because memory ran out"
        return f"ended with signal {-code}"

    def start(self, stop: Stop) -> None:
        """Start the process and wait until the server is ready.

        Raises:
            ModelError: if the server cannot load the model.
            FetchStoppedError: if `stop` is set.
        """
        # The thread must live as long as the process: on Linux, the kernel kills the process when the thread
        # that started the process ends.
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
        """Start the server's process and send it the plan. Then read its reply, and wait for the end of the process.

        The reply has the server's address or an error.
        """
        try:
            self._process = process = subprocess.Popen(
                [sys.executable, "-P", "-m", "llm_sandbox_nb.model.local.engine"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C in a terminal is for the run, not for its model
                # Threads that wait actively for each other are very slow on a busy machine.
                env={"OMP_WAIT_POLICY": "passive", **os.environ},
            )
            assert process.stdin
            assert process.stdout
            assert process.stderr
            plan = {
                "file": str(self.plan.file), "alias": self.plan.name, "context": self.plan.context,
                "slots": self.plan.slots, "threads": self.plan.threads, "cache_mib": self.plan.cache_mib,
                "key": self.key, "parent": os.getpid(),
            }  # fmt: skip
            threading.Thread(target=self._read_log, args=(process.stderr,), daemon=True).start()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(plan).encode() + b"\n")
                process.stdin.flush()
            line = process.stdout.readline(100_000)
            answer = json.loads(line) if line else {}
            self.address, self.engine = answer.get("address", ""), answer.get("engine", "")
            if not self.address:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_EXIT_TIMEOUT if not line else 0.0)
                self._error = self._first_error() or answer.get("error", "") or f"its server {self.ending()}"
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
            while line := source.readline(_MAX_LOG_LINE_BYTES):
                with self._lock:
                    self._tail.append(line)
                    for path in tuple(self._logs):
                        self._write(path, line)

    def _write(self, path: Path, line: bytes) -> None:
        file = self._logs[path]
        with contextlib.suppress(OSError):  # a full disk ends the log, not the server
            if file.tell() < _MAX_LOG_BYTES:
                file.write(line)
                file.flush()

    def _first_error(self) -> str:
        """Return the first error in the stored lines of the engine's log, without the full stop."""
        with self._lock:
            lines = [line.decode("utf-8", "replace").strip() for line in self._tail]
        errors = [line for line in lines if " E " in line[:20]]
        return errors[0].partition(": ")[2][:300].rstrip(".") if errors else ""

    def _look_at_template(self) -> None:
        """Find out from the server if the model's chat template supports tools."""
        try:
            with httpx.Client(trust_env=False, timeout=30.0) as client:
                answer = client.get(f"{self.address}/props", headers={"Authorization": f"Bearer {self.key}"})
            self.takes_tools = answer.json()["chat_template_caps"]["supports_tools"] is True
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            self.takes_tools = False

    def log_to(self, path: Path) -> None:
        """Write the log also to a file, beginning with the stored lines."""
        with self._lock, contextlib.suppress(OSError):
            if path not in self._logs:
                # the folder of a resumed run may come from another person, so no link is followed
                unshare_file(path.parent, path.name)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                self._logs[path] = os.fdopen(open_file(path.parent, path.name, flags), "ab")
                for line in self._tail:
                    self._write(path, line)

    def end_log(self, path: Path) -> None:
        """Stop writing the log to a file."""
        with self._lock, contextlib.suppress(OSError):
            if file := self._logs.pop(path, None):
                file.close()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_TIMEOUT)


_servers: dict[Path, ModelServer] = {}
_starting = threading.Lock()


def _forget_servers() -> None:
    """Forget all servers in a forked child: they belong to the parent."""
    global _starting
    _servers.clear()
    _starting = threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_forget_servers)


def running_server(file: Path) -> ModelServer | None:
    """Return the running server of a file in this process, or None if no such server is running."""
    server = _servers.get(file)
    return server if server is not None and server.alive else None


def serve(file: Path, name: str, header: GgufHeader, stop: Stop) -> ModelServer:
    """Return the running server of a file, or start a server if this process has none for the file.

    If the memory is too small, unused servers of other models are ended first.

    Raises:
        ModelError: if the memory is too small, or the model cannot be loaded.
        FetchStoppedError: if `stop` is set.
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
