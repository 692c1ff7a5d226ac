"""Publication of a kernel's run at the Jupyter server. The server sends the decisions of watchers to the kernel.

The publisher reads recorded events from the run's record as fast as the server accepts them, so no queue grows and the
run never waits. Of a text that still grows, only the newest state is kept. After a broken connection, the publisher
connects again, and the server names the first event that it needs. A restarted server needs all events.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import logging
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.agent.control.frontends import execute_decision
from llm_sandbox_nb.agent.errors import ControlError, InputError
from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.decisions import parse_decision
from llm_sandbox_nb.trajectory.live_tail import LiveTail

if TYPE_CHECKING:
    from pathlib import Path

    from tornado.websocket import WebSocketClientConnection

    from llm_sandbox_nb.notebook.display import PageCell
    from llm_sandbox_nb.notebook.server_client.address import ServerAddress
    from llm_sandbox_nb.runs.outside_calls import OutsideCalls
    from llm_sandbox_nb.runs.run import Run

logger = logging.getLogger(__name__)
_BATCH_BYTES = 512 * 1024
_TEXT_INTERVAL = 0.02
"""Seconds between two messages that hold only unfinished text."""
_RETRY_FIRST, _RETRY_MAX = 0.1, 2.0
_ANSWER_TIMEOUT = 10.0
_AWAY_SECONDS = 5.0
"""Seconds to wait for a disconnected server to return."""
_OWNER = secrets.token_hex(16)
"""Secret by which the server recognises that a resumed run belongs to this kernel."""
_FINAL_CLOSE_CODES = (4403,)
"""Close codes after which connecting again cannot succeed."""


class _AwayError(LLMSandboxError):
    """Raised if the server does not answer at this moment."""


class RunPublisher:
    """Publisher of one run. Use it in the loop of the run; only `watched` may be read from other threads."""

    def __init__(self, address: ServerAddress, kernel_id: str) -> None:
        self._address = address
        self._kernel_id = kernel_id
        self._run: Run | None = None
        self._ended: ev.RunFinished | None = None
        """Event that ended the run before it was resumed. None for a new run, and for a run that was rewound."""
        self._goes_on = False
        self._cell: PageCell | None = None
        self._tail = LiveTail()
        self._news = asyncio.Event()
        self._sent = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._seen_at = time.monotonic()
        self._refused = False
        self._connected = False
        self._known = asyncio.Event()
        """Event that is set as soon as the server has accepted the run."""
        self.shared = False
        """True if all pages of the notebook share one document, so that a changed output reaches all of them."""
        self._ticket: str | None = None
        """Ticket from the server, which lets this kernel publish again after the server has restarted."""
        self._outside: tuple[OutsideCalls, str] | None = None
        self._calls: dict[int, asyncio.Task[None]] = {}
        """Running calls of an outside agent, by the server's numbers."""

    @property
    def run_id(self) -> str | None:
        return self._run.folder.name if self._run else None

    @property
    def watched(self) -> bool:
        """True if people can watch the run at the server, now or in a moment."""
        here = self._connected or time.monotonic() - self._seen_at < _AWAY_SECONDS
        return here and not self._refused and self._run is not None

    def take_calls(self, calls: OutsideCalls, sandbox_id: str) -> None:
        """Let this run execute outside agents' calls to the server's sandbox `sandbox_id`. Call this before `start`."""
        self._outside = calls, sandbox_id

    def start(self, run: Run, cell: PageCell | None = None) -> None:
        """Begin to publish; `cell` is the cell that shows the run."""
        self._cell = cell
        self._run, self._ended = run, run.trajectory.finish
        self._goes_on = run.trajectory.has_ended
        self._task = asyncio.ensure_future(self._publish(run))

    def listen(self, event: ev.Event) -> None:
        """Note an event of the run. This method is a listener of the run."""
        self._tail.follow(event)
        self._news.set()

    async def until_known(self, patience: float = _AWAY_SECONDS) -> None:
        """Wait until the server knows the run, but at most `patience` seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._known.wait(), patience)

    async def finish(self, patience: float = 2.0, longest: float = 60.0) -> None:
        """Wait at most `patience` seconds until the server has all events.

        After that, sending continues in the background for at most `longest` seconds.
        """
        if self._task is None:
            return
        self._news.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._task), patience)
        if not self._task.done():
            asyncio.get_running_loop().call_later(longest, self._task.cancel)

    async def _publish(self, run: Run) -> None:
        pause = _RETRY_FIRST
        while not self._refused and not self._sent.is_set():
            try:
                await self._session(run)
                pause = _RETRY_FIRST
            except _AwayError as error:
                logger.debug("the Jupyter server is away: %s", error)
            except Exception:
                logger.exception("publishing %s failed; the run continues without", run.folder.name)
                return
            if not self._sent.is_set():
                await asyncio.sleep(pause)
                pause = min(2 * pause, _RETRY_MAX)

    async def _session(self, run: Run) -> None:
        """Serve one connection until it breaks or all events are sent."""
        connection = await self._connect(run.folder.name)
        try:
            start = await self._greet(connection, run.folder)
            self._connected, self._seen_at = True, time.monotonic()
            self._known.set()
            sender = asyncio.ensure_future(self._send_all(run, connection, start))
            reader = asyncio.ensure_future(self._read_all(run, connection))
            await asyncio.wait({sender, reader}, return_when=asyncio.FIRST_COMPLETED)
            for task in (sender, reader, *self._calls.values()):
                task.cancel()
            results = await asyncio.gather(sender, reader, return_exceptions=True)
            for result in results:
                if isinstance(result, Exception):
                    raise result
        finally:
            if self._connected:
                self._seen_at = time.monotonic()
            self._connected = False
            self._refused = self._refused or connection.close_code in _FINAL_CLOSE_CODES
            connection.close()

    async def _connect(self, run_id: str) -> WebSocketClientConnection:
        from tornado.httpclient import HTTPClientError
        from tornado.websocket import WebSocketError, websocket_connect

        request = self._address.channel(f"runs/{run_id}/publish", request_timeout=_ANSWER_TIMEOUT)
        try:
            connection = await websocket_connect(request, ping_interval=10, ping_timeout=10)
        except (HTTPClientError, OSError, WebSocketError) as error:
            raise _AwayError(str(error)) from error
        if connection.protocol is not None and connection.protocol.stream is not None:
            connection.protocol.stream.set_nodelay(True)
        return connection

    async def _greet(self, connection: WebSocketClientConnection, folder: Path) -> int:
        """Announce the run, and return the number of the first event that the server wants."""
        hello = {"type": "hello", "kernel_id": self._kernel_id, "owner": _OWNER, "goes_on": self._goes_on}
        await _write(
            connection,
            {
                **hello,
                "folder": str(folder.absolute()),
                "ticket": self._ticket,
                "cell": self._cell,
                "outside": self._outside[1] if self._outside else None,
            },
        )
        try:
            message = await asyncio.wait_for(connection.read_message(), _ANSWER_TIMEOUT)
            welcome = json.loads(message or "{}")
            self._ticket = welcome.get("ticket")
            self.shared = welcome.get("shared") is True
            return int(welcome["next"])
        except (TimeoutError, ValueError, KeyError, TypeError) as error:
            raise _AwayError(f"no welcome ({error})") from error

    async def _send_all(self, run: Run, connection: WebSocketClientConnection, position: int) -> None:
        events, seen = run.trajectory.events, dict[int, int]()
        while True:
            self._news.clear()
            lines = _batch(events, position)
            if lines:
                body = f'{{"type":"events","from":{position},"events":[{",".join(lines)}]}}'
                position += len(lines)
                await _write(connection, body)
                continue
            if run.trajectory.finish not in (None, self._ended):
                self._sent.set()
                return
            if texts := list(self._tail.since(seen)):
                await _write(connection, {"type": "transient", "events": texts})
                await asyncio.sleep(_TEXT_INTERVAL)
                continue
            await self._news.wait()

    async def _read_all(self, run: Run, connection: WebSocketClientConnection) -> None:
        while (message := await connection.read_message()) is not None:
            asked = json.loads(message)
            if asked.get("type") == "control":
                problem = await _decide(run, asked)
                await _write(connection, {"type": "answer", "id": asked["id"], "error": problem})
            elif asked.get("type") == "tool" and self._outside is not None:
                number = int(asked["id"])
                self._calls[number] = task = asyncio.ensure_future(_call(self._outside[0], connection, asked))
                task.add_done_callback(functools.partial(self._forget, number))
            elif asked.get("type") == "tool.cancel" and asked.get("id") in self._calls:
                self._calls[asked["id"]].cancel()
            elif asked.get("type") == "file":
                found = await asyncio.to_thread(_file, run, str(asked["path"]), int(asked["most"]))
                await _write(connection, {"type": "answer", "id": asked["id"], **found})
        raise _AwayError("the connection broke")

    def _forget(self, number: int, task: asyncio.Task[None]) -> None:
        self._calls.pop(number, None)


async def _call(calls: OutsideCalls, connection: WebSocketClientConnection, asked: dict[str, Any]) -> None:
    """Execute a call of an outside agent, and answer with its result."""
    answer: dict[str, Any] = {"type": "answer", "id": asked["id"], "error": None}
    try:
        answer["result"] = await calls.call(
            str(asked["tool"]),
            dict(asked["arguments"]),
            str(asked["client"]),
            str(asked.get("agreed") or ""),
            str(asked.get("principal") or ""),
        )
    except Exception:
        logger.exception("a call of an outside agent failed")
        answer["error"] = "The call failed in the notebook's kernel: see the kernel's log."
    with suppress(_AwayError):
        await _write(connection, answer)


async def _decide(run: Run, asked: dict[str, Any]) -> str | None:
    """Execute a decision. Return an error message, or None if there was no error."""
    body = {name: value for name, value in asked.items() if name not in ("type", "id")}
    try:
        decision = parse_decision(body)
    except ValueError as error:
        return f"The kernel's version of llm_sandbox_nb refuses this decision; restart the kernel. {error}"
    try:
        await execute_decision(run, decision, source="server")
    except (ControlError, InputError, SandboxError, OSError) as error:
        return str(error)
    return None


def _file(run: Run, path: str, most: int) -> dict[str, Any]:
    """Return a file's size, and its content if the size is at most `most`. A missing file gives an empty object."""
    try:
        file = run.files[path]
        size = file.size
        data = base64.b64encode(file.read_bytes()).decode("ascii") if size <= most else None
    except (KeyError, ValueError, OSError):
        return {}
    return {"size": size, "data": data}


def _batch(events: list[ev.Event], start: int) -> list[str]:
    lines: list[str] = []
    size = 0
    while start < len(events) and size < _BATCH_BYTES:
        lines.append(ev.dump_event(events[start]))
        size += len(lines[-1])
        start += 1
    return lines


async def _write(connection: WebSocketClientConnection, message: dict[str, Any] | str) -> None:
    from tornado.websocket import WebSocketClosedError

    text = message if isinstance(message, str) else json.dumps(message)
    try:
        await connection.write_message(text)
    except WebSocketClosedError as error:
        raise _AwayError("the connection is closed") from error
