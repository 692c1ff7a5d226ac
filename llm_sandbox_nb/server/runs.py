"""The runs that kernels of this server publish. Events go to the watchers, and decisions go to the kernels.

The classes of events and decisions are imported with the first run, because their import would make the start of a
server a third longer.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import hashlib
import hmac
import itertools
import json
import logging
import os
import tempfile
import time
from array import array
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from traitlets import Float, Integer
from traitlets.config import LoggingConfigurable

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.sandbox.errors import OutputLimitExceededError, SandboxError
from llm_sandbox_nb.server.kernels import ServerKernels

Json = dict[str, Any]
Reach = Literal["live", "away", "lost", "finished"]
"""Connection to a run's kernel. `away`: the kernel has just disconnected. `lost`: it has not come back.
`finished`: the last event of the run has arrived."""
_CLIPPED_CHARACTERS = 2000
"""Maximum length of each text in an event that arrives after the store has reached its limit."""


logger = logging.getLogger(__name__)


class UnknownRunError(SandboxError):
    """Raised if this server does not know the run."""


class RunControlError(SandboxError):
    """Raised if a decision did not reach the run, or came too late."""


class ForeignRunError(SandboxError):
    """Raised if the run belongs to another kernel."""


class PublisherError(LLMSandboxError, ValueError):
    """Raised if a publisher breaks the protocol."""


class Kernel(Protocol):
    """The connection over which a run is published."""

    def send(self, message: Json) -> None:
        """Send a message to the kernel."""
        ...

    def dismiss(self, reason: str) -> None:
        """End the connection, because a newer connection has replaced it."""
        ...


class EventStore:
    """Store of events in an unnamed temporary file. The memory holds only the position of each event's end.

    If the file cannot be written, for example on a full disk, further events stay in memory, with long texts clipped.
    """

    def __init__(self, full_at: int) -> None:
        """Create the store. If it has more than `full_at` bytes, long texts of further events are clipped."""
        self._full_at = full_at
        self._ends = array("Q", [0])
        self._file: IO[bytes] | None = None
        self._in_memory: list[str] = []

    def __len__(self) -> int:
        return len(self._ends) - 1 + len(self._in_memory)

    @property
    def size(self) -> int:
        """Number of bytes in the file."""
        return self._ends[-1]

    def append(self, event: dict[str, Any]) -> None:
        """Store an event."""
        if not self._in_memory:
            try:
                self._write(_json(event, clip=self.size > self._full_at).encode())
            except OSError as error:
                logger.warning("Events of a run are shortened and kept in memory, not on disk: %s", error)
            else:
                return
        self._in_memory.append(_json(event, clip=True))

    def _write(self, data: bytes) -> None:
        if self._file is None:
            # No buffer: it would keep data that the disk has refused, and write this data later.
            self._file = tempfile.TemporaryFile(buffering=0, prefix="llm-sandbox-nb-")  # noqa: SIM115 - closed in `close`
        self._file.seek(self.size)
        if self._file.write(data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._ends.append(self.size + len(data))

    def read(self, start: int, most: int) -> list[str]:
        """Return events from number `start` on, as JSON: at least one event, then more up to `most` bytes."""
        written = len(self._ends) - 1
        if self._file is None or start >= written:
            lines: list[str] = []
            for line in self._in_memory[start - written :]:
                most -= len(line)
                if lines and most < 0:
                    break
                lines.append(line)
            return lines
        end = start + 1
        while end < written and self._ends[end + 1] - self._ends[start] <= most:
            end += 1
        self._file.seek(self._ends[start])
        data = self._file.read(self._ends[end] - self._ends[start])
        base = self._ends[start]
        return [
            data[self._ends[n] - base : self._ends[n + 1] - base].decode("ascii") for n in range(start, end)
        ]

    def close(self) -> None:
        """Remove all events."""
        if self._file is not None:
            self._file.close()
        self._file, self._ends, self._in_memory = None, array("Q", [0]), []


def _json(event: Json, *, clip: bool) -> str:
    return json.dumps(clip_texts(event, _CLIPPED_CHARACTERS) if clip else event, separators=(",", ":"))


def clip_texts(value: Any, limit: int) -> Any:
    """Return `value` with long texts cut. Each cut text ends with the number of characters left out."""
    if isinstance(value, str):
        return value if len(value) <= limit else f"{value[:limit]} [... {len(value) - limit} more characters]"
    if isinstance(value, dict):
        return {key: clip_texts(item, limit) for key, item in value.items()}
    if isinstance(value, list):
        return [clip_texts(item, limit) for item in value]
    return value


class PublishedRun:
    """A run that a kernel publishes, with its events and watchers."""

    def __init__(self, run_id: str, kernel_id: str, owner: str, full_at: int) -> None:
        from llm_sandbox_nb.trajectory.live_tail import LiveTail
        from llm_sandbox_nb.trajectory.watched_run import WatchedRun

        self.id = run_id
        self.kernel_id = kernel_id
        self.owner = owner
        """Secret of the kernel that publishes the run."""
        self.notebook: str | None = None
        self.folder: Path | None = None
        """Folder with the record of the run. None if the folder is not on this machine."""
        self.outside: str | None = None
        """Id of the sandbox that an outside agent uses in this run."""
        self.cell: Json | None = None
        """The cell that shows the run, in the form of `PageCell` in `notebook/display.py`."""
        self.ended: float | None = None
        """Time of the last event, in seconds since the epoch."""
        self.store = EventStore(full_at)
        self.tail = LiveTail()
        self.kernel: Kernel | None = None
        self.created = time.time()
        self.left_at: float | None = None
        self.lost = False
        self.watchers: set[Callable[[], None]] = set()
        self._said = WatchedRun()
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Json]] = {}

    @property
    def finished(self) -> bool:
        """True if the last event has arrived."""
        return self._said.over

    @property
    def state(self) -> Reach:
        """State of the connection to the run's kernel."""
        if self.finished:
            return "finished"
        return "live" if self.kernel else "lost" if self.lost else "away"

    def to_json(self) -> Json:
        """Return the description for clients."""
        return {
            "id": self.id,
            "kernel_id": self.kernel_id,
            "notebook": self.notebook,
            "state": self.state,
            **self._said.to_json(live=self.state == "live", away=self.state == "away"),
            "events": len(self.store),
            "watchers": len(self.watchers),
            "created": _iso(self.created),
            "ended": _iso(self.ended) if self.finished and self.ended else None,
            "cell": self.cell,
            "outside": self.outside,
        }

    # --- from the kernel ---

    def take(self, start: int, events: list[Json]) -> None:
        """Store recorded events, of which the first has number `start`. Skip events that are already stored.

        Raises:
            PublisherError: if earlier events are missing, or the events are invalid.
        """
        from llm_sandbox_nb.trajectory.watched_run import is_event

        if not 0 <= start <= len(self.store):
            raise PublisherError(f"Events from number {len(self.store)} on are missing.")
        for event in events[len(self.store) - start :]:
            if not is_event(event):
                raise PublisherError("The message is not an event.")
            self.store.append(event)
            self.tail.written(event)
            before = self._said.over
            self._said.add(event)
            self.ended = time.time() if self._said.over and not before else self.ended
        self.notify()

    def take_transient(self, events: list[Json]) -> None:
        """Store unfinished text. Raises PublisherError for any other event."""
        from llm_sandbox_nb.trajectory.watched_run import is_live_text

        if not all(map(is_live_text, events)):
            raise PublisherError("The message is not a transient event.")
        new = [self.tail.add(event) for event in events]
        if any(new):
            self.notify()

    def take_answer(self, message: Json) -> None:
        """Handle the kernel's answer to a question."""
        number = message.get("id")
        asked = self._asked.get(number) if isinstance(number, int) else None
        if asked is not None and not asked.done():
            asked.set_result(message)

    def go_on(self) -> None:
        """Reopen an ended run that is resumed."""
        self._said.go_on()

    # --- to the kernel ---

    async def control(self, body: Json, timeout: float) -> None:
        """Pass a decision to the run's kernel, and wait until the run has accepted it.

        Raises:
            ValueError: if the body is not a decision of `trajectory.decisions`.
            RunControlError: if the run is over, or its kernel is away, does not answer, or cannot do this now.
        """
        from llm_sandbox_nb.trajectory.decisions import TimeDecision, parse_decision

        decision = parse_decision(body)
        if self.finished:
            raise RunControlError("The run is over, so there is nothing to control any more.")
        patience = 12 * timeout if isinstance(decision, TimeDecision) else timeout
        await self._ask({"type": "control", **decision.model_dump(exclude_none=True)}, patience)

    async def file(self, path: str, most: int, timeout: float) -> bytes:
        """Return a file of the run's output folder. The run's kernel reads the file.

        Raises:
            FileNotFoundError: if the file is missing.
            RunControlError: if the run's kernel is away, or does not answer.
            OutputLimitExceededError: if the file is larger than `most` bytes.
        """
        answer = await self._ask({"type": "file", "path": path, "most": most}, timeout)
        size, data = answer.get("size"), answer.get("data")
        if size is None:
            raise FileNotFoundError(f"The run has no file {path!r}.")
        if not isinstance(data, str):
            raise OutputLimitExceededError(
                f"The file has {size} bytes and can be shown only after the end of the run."
            )
        return base64.b64decode(data)

    async def call_tool(
        self,
        tool: str,
        arguments: Json,
        client: str,
        agreed: str,
        principal: str = "",
        *,
        timeout: float | None = None,
    ) -> Json:
        """Let the run's kernel execute a call of an outside agent. Cancelling this coroutine ends the call.

        Args:
            agreed: see `OutsideCaller` in `runs/outside_calls.py`.
            principal: name of the caller's token.
            timeout: maximum seconds; None means no limit.

        Raises:
            RunControlError: if the kernel fails, is not connected, does not answer in time, or disconnects first.
        """
        question = {
            "type": "tool",
            "tool": tool,
            "arguments": arguments,
            "client": client,
            "agreed": agreed,
            "principal": principal,
        }
        answer = await self._ask(question, timeout, cancel={"type": "tool.cancel"})
        result = answer.get("result")
        if not isinstance(result, dict):
            raise RunControlError("The run's kernel gave no result; restart it.")
        return result

    async def _ask(self, question: Json, timeout: float | None, cancel: Json | None = None) -> Json:
        """Send a question to the kernel and return the answer. If this coroutine is cancelled, send `cancel`."""
        if self.kernel is None:
            raise RunControlError(
                "The run's kernel is not connected at this moment; try again, or restart it."
            )
        number = next(self._numbers)
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self.kernel.send({**question, "id": number})
            answer: Json = await asyncio.wait_for(asked, timeout)
        except TimeoutError:
            raise RunControlError("The run's kernel does not answer; interrupt or restart it.") from None
        except asyncio.CancelledError:
            if cancel is not None and self.kernel is not None:
                self.kernel.send({**cancel, "id": number})
            raise
        finally:
            del self._asked[number]
        if error := answer.get("error"):
            raise RunControlError(str(error))
        return answer

    def left(self) -> None:
        """Note that the kernel has disconnected."""
        self.kernel, self.left_at = None, time.monotonic()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_result({"error": "The run's kernel went away before it answered."})
        self.notify()

    def notify(self) -> None:
        """Wake the watchers, because the run has changed."""
        for wake in tuple(self.watchers):
            wake()


class RunRegistry(LoggingConfigurable):
    """Registry of all runs that this server knows. Use the registry from the Jupyter server's event loop only."""

    max_runs = Integer(
        50,
        help="Maximum number of runs that pages can watch. Beyond it, the server drops the oldest ended runs.",
    ).tag(config=True)
    max_run_bytes = Integer(
        256 * 1024 * 1024,
        help="Bytes of one run's events that the server keeps in full on disk. It shortens long texts of later events.",
    ).tag(config=True)
    away_grace = Float(
        5, help="Seconds after which a run is shown as lost if its kernel has disconnected."
    ).tag(config=True)
    unknown_grace = Float(
        20, help="Seconds for which a watcher waits for a run that the server does not know yet."
    ).tag(config=True)
    answer_timeout = Float(
        10, help="Seconds that a run may take to answer a decision, or to give a file."
    ).tag(config=True)
    max_file_bytes = Integer(
        32 * 1024 * 1024, help="Maximum size, in bytes, of a live run's file that is downloaded over REST."
    ).tag(config=True)

    def __init__(
        self,
        *,
        kernels: ServerKernels,
        secret: bytes,
        activity_times: MutableMapping[str, datetime] | None = None,
        **kwargs: Any,
    ) -> None:
        """Create the registry. A restarted server has the same `secret`."""
        super().__init__(**kwargs)
        self._kernels = kernels
        self._secret = secret
        self._activity_times = {} if activity_times is None else activity_times
        self._runs: dict[str, PublishedRun] = {}
        self._waiting: dict[str, set[Callable[[], None]]] = {}

    def all(self) -> list[PublishedRun]:
        """Return all runs, oldest first."""
        return list(self._runs.values())

    def live_kernels(self, *, outside: bool = True) -> set[str]:
        """Return the ids of the kernels with a run that is not over.

        The run of an outside agent lasts until a person ends it, so it tells little about the use of the sandbox. It
        counts only if `outside` is true.
        """
        live = (run for run in self._runs.values() if run.state in ("live", "away"))
        return {run.kernel_id for run in live if outside or run.outside is None}

    def outside_run(self, sandbox_id: str) -> PublishedRun | None:
        """Return the newest run, preferably a live run, in which an outside agent uses this sandbox."""
        found = [run for run in self._runs.values() if run.outside == sandbox_id]
        live = [run for run in found if run.state == "live"]
        known = live or found
        return known[-1] if known else None

    def get(self, run_id: str) -> PublishedRun:
        """Return the run with this id. Raises UnknownRunError."""
        try:
            return self._runs[run_id]
        except KeyError:
            raise UnknownRunError(
                "This server does not know the run: it ended long ago, or its kernel has ended; see the run's folder."
            ) from None

    async def describe(self, run: PublishedRun) -> Json:
        """Return the description of a run for clients, with the current path of its notebook."""
        await self.find_notebook(run)
        return run.to_json()

    async def find_notebook(self, run: PublishedRun) -> str | None:
        """Return the current path of a run's notebook, or the last known path if the kernel has ended."""
        if self._kernels.owns(run.kernel_id):
            run.notebook = await self._kernels.notebook(run.kernel_id) or run.notebook
        return run.notebook

    def ticket(self, run_id: str, kernel_id: str) -> str:
        """Return the ticket with which a kernel may publish its run at this server after a restart."""
        message = f"llm-sandbox-nb run {run_id} of {kernel_id}".encode()
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()

    def check_kernel(self, run_id: str, kernel_id: str, ticket: object) -> None:
        """Raise ForeignRunError unless this server started the kernel, or the kernel has an earlier server's ticket."""
        if self._kernels.owns(kernel_id):
            return
        expected = self.ticket(run_id, kernel_id).encode()
        if not isinstance(ticket, str) or not hmac.compare_digest(
            ticket.encode("utf-8", "replace"), expected
        ):
            raise ForeignRunError(f"No kernel {kernel_id:.64} on this server (it may have been restarted).")

    def publish(self, run_id: str, kernel_id: str, owner: str, kernel: Kernel) -> PublishedRun:
        """Register a run that a kernel publishes or resumes, and return it.

        `owner` is the secret of the kernel's process, so a restarted kernel has another one. A run whose kernel was
        shut down belongs to the next kernel that resumes it.

        Raises:
            ForeignRunError: if another kernel publishes the run.
        """
        run = self._runs.get(run_id)
        if run is None:
            run = self._runs[run_id] = PublishedRun(run_id, kernel_id, owner, self.max_run_bytes)
            self._make_room()
        left_behind = run.kernel is None and run.state in ("finished", "lost")
        if left_behind and not self._kernels.owns(run.kernel_id):
            run.kernel_id = kernel_id
        if run.kernel_id != kernel_id or (run.owner != owner and not left_behind):
            raise ForeignRunError("This run belongs to another kernel.")
        run.owner = owner
        before, run.kernel = run.kernel, kernel
        if before is not None:
            before.dismiss("The run's kernel has connected anew.")
        run.left_at, run.lost = None, False
        for wake in self._waiting.pop(run_id, ()):
            wake()
        run.notify()
        return run

    def leave(self, run: PublishedRun, kernel: Kernel) -> None:
        """Note that a kernel has disconnected. The run is lost unless the kernel reconnects soon."""
        if run.kernel is not kernel:
            return
        run.left()
        if not run.finished:
            asyncio.get_running_loop().call_later(self.away_grace, self._give_up, run)

    async def wait_for(self, run_id: str) -> PublishedRun:
        """Wait for a run to be published, and return it. Raises UnknownRunError after `unknown_grace` seconds."""
        if run_id not in self._runs:
            known = asyncio.Event()
            waiting = self._waiting.setdefault(run_id, set())
            waiting.add(known.set)
            try:
                await asyncio.wait_for(known.wait(), self.unknown_grace)
            except TimeoutError:
                pass
            finally:
                waiting.discard(known.set)
                if not waiting:
                    self._waiting.pop(run_id, None)
        return self.get(run_id)

    def note_activity(self) -> None:
        """Reset the server's idle timer, which JupyterHub reads."""
        self._activity_times["llm_sandbox_nb"] = datetime.now(UTC)

    def close(self) -> None:
        """Remove all runs. Kernels that are still running publish their runs again to the restarted server."""
        for run in self._runs.values():
            run.store.close()
        self._runs.clear()

    def _give_up(self, run: PublishedRun) -> None:
        if run.kernel is None and not run.finished and run.left_at is not None:
            run.lost = time.monotonic() - run.left_at >= self.away_grace * 0.9
            run.notify()

    def _make_room(self) -> None:
        over = [run for run in self._runs.values() if run.state in ("finished", "lost") and not run.watchers]
        for run in over[: max(0, len(self._runs) - self.max_runs)]:
            run.store.close()
            del self._runs[run.id]


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()
