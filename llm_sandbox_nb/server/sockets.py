"""The WebSockets below `/llm-sandbox/api`: their common base, a sandbox's channel and its terminals.

A terminal is a shell in a sandbox, which ends when its tab is closed. The messages are JSON lists like those of
Jupyter's terminals, so that Jupyter's widget can show them. In addition, each piece of output has its size in bytes,
which the page sends back after showing the piece.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import re
import time
from collections import deque
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from llm_sandbox_nb.sandbox.errors import SandboxError, SandboxLostError
from llm_sandbox_nb.sandbox.protocol.frames import MESSAGE_LIMIT, SANDBOX_ENDED
from llm_sandbox_nb.sandbox.terminal import MAX_TYPED_BYTES, Terminal
from llm_sandbox_nb.server.handlers import API, AUTH_RESOURCE, ID
from llm_sandbox_nb.server.managed_sandbox import ManagedSandbox
from llm_sandbox_nb.server.manager import SandboxManager, UnknownSandboxError
from llm_sandbox_nb.server.relay import BROKE_PROTOCOL, RelayClient

MAX_TERMINALS = 8
"""Maximum number of open terminals per sandbox."""
TOO_MANY = 4429
ENDED, FAILED = 1000, 4500
_LAST_OUTPUT_SECONDS = 5.0
REPORT = re.compile(
    r"\x1b(?:"
    r"\[[?>]?[\d;]*(?:c|n|R|t|\$y)"  # identity, status, cursor position, size, modes
    r"|\[<[\d;]*[Mm]|\[[IO]"  # mouse, focus
    r"|P[01]\$r[^\x1b]*\x1b\\|\]\d+;(?:\d+;)?rgb:[\da-f/]+\x1b\\"  # settings, colours
    r")"
)
"""Matches the automatic reports of a terminal. Of all keys, only F3 with Shift, Alt or Ctrl matches too."""


class Socket(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """Base of WebSockets for users with the permission to execute. The `get` of a subclass must call `authorise`."""

    auth_resource = AUTH_RESOURCE

    def open(self, *args: Any, **kwargs: Any) -> None:
        """Let each message be sent at once."""
        super().open(*args, **kwargs)
        self.set_nodelay(True)

    def set_default_headers(self) -> None:
        """Set no headers, because the headers of JupyterHandler have no effect on a WebSocket."""

    def get_compression_options(self) -> None:
        """Disable compression, which costs more than it saves for clients on this machine."""

    async def authorise(self) -> None:
        """Refuse a user without the permission to execute. Raises HTTPError."""
        allowed = await ensure_async(
            self.authorizer.is_authorized(self, self.current_user, "execute", AUTH_RESOURCE)
        )
        if not allowed:
            raise web.HTTPError(403, f"User is not authorized to execute on resource: {AUTH_RESOURCE}.")


class SandboxSocket(Socket):
    """Base of WebSockets of a running sandbox. The `get` of a subclass must call `admit`."""

    @property
    def manager(self) -> SandboxManager:
        manager: SandboxManager = self.settings["llm_sandbox_manager"]
        return manager

    async def admit(self, sandbox_id: str) -> None:
        """Refuse a user without the permission to execute, and a sandbox that does not run. Raises HTTPError."""
        await self.authorise()
        try:
            await self.manager.ready()
            self.manager.running(sandbox_id)
        except UnknownSandboxError as error:
            raise web.HTTPError(404, str(error)) from error
        except SandboxLostError as error:
            raise web.HTTPError(410, str(error)) from error


class ChannelHandler(SandboxSocket):
    """The connection of a client to a sandbox."""

    max_message_size = MESSAGE_LIMIT
    _client: RelayClient | None = None

    @ws_authenticated
    async def get(self, sandbox_id: str) -> None:
        """Authorise the request before the switch to a WebSocket."""
        await self.admit(sandbox_id)
        await super().get(sandbox_id=sandbox_id)

    def open(self, sandbox_id: str) -> None:
        """Connect the client to the sandbox."""
        super().open()
        try:
            self._client = self.manager.connect(sandbox_id, self._send, self.close)
        except (UnknownSandboxError, SandboxLostError) as error:
            self.close(SANDBOX_ENDED, str(error)[:100])

    def on_message(self, message: bytes | str) -> None:
        if self._client is not None:
            self._client.receive(message)

    def on_close(self) -> None:
        """Release the client that has disconnected."""
        client, self._client = self._client, None
        if client is not None:
            client.leave()

    async def _send(self, message: bytes) -> None:
        try:
            await self.write_message(message, binary=True)
        except WebSocketClosedError as error:
            raise ConnectionError("the client has gone") from error


class TerminalHandler(SandboxSocket):
    """A terminal of a sandbox. Input and output reset the sandbox's idle timer; a terminal without both does not."""

    max_message_size = 2 * MAX_TYPED_BYTES
    requests = 0
    """Always zero, so that a sandbox with only idle terminals is idle."""
    _managed: ManagedSandbox
    _terminal: Terminal | None = None
    _task: asyncio.Task[None] | None = None

    @ws_authenticated
    async def get(self, sandbox_id: str) -> None:
        """Authorise, and check that the site allows terminals, before the switch to a WebSocket."""
        await self.authorise()
        if not self.manager.policy.allow_terminal:
            raise web.HTTPError(403, "This site allows no terminals in sandboxes.")
        await self.admit(sandbox_id)
        await super().get(sandbox_id=sandbox_id)

    def open(self, sandbox_id: str) -> None:
        """Start the shell."""
        super().open()
        try:
            self._managed, sandbox = self.manager.get(sandbox_id), self.manager.running(sandbox_id)
        except (UnknownSandboxError, SandboxLostError) as error:
            self.close(SANDBOX_ENDED, str(error)[:100])
            return
        if sum(isinstance(client, TerminalHandler) for client in self._managed.clients) >= MAX_TERMINALS:
            self.close(TOO_MANY, f"A sandbox may have {MAX_TERMINALS} terminals; close one first.")
            return
        self._managed.clients.add(self)
        self._output: deque[bytes] = deque()
        self._more = asyncio.Event()
        rows, columns = self._number("rows", 24), self._number("columns", 80)
        self._terminal = Terminal(sandbox, self._show, rows=rows, columns=columns)
        self._task = asyncio.create_task(self._serve(self._terminal))

    def _number(self, name: str, default: int) -> int:
        text = self.get_query_argument(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else default

    def on_message(self, message: bytes | str) -> None:
        if self._terminal is None:
            return
        try:
            if _act(self._terminal, json.loads(message)):
                self._managed.typed = time.time()
                self.manager.note_activity(self._managed)
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            self._hang(BROKE_PROTOCOL, str(error))

    def on_close(self) -> None:
        """End all processes of the terminal after its tab was closed."""
        if self._terminal is not None:
            self._managed.clients.discard(self)
        if self._task is not None:
            self._task.cancel()

    def dismiss(self, reason: str) -> None:
        """Close the terminal of a sandbox that has ended."""
        self._hang(SANDBOX_ENDED, reason)

    def _hang(self, code: int, reason: str) -> None:
        self._managed.clients.discard(self)
        self._terminal = None
        self.close(code, reason.encode()[:120].decode("utf-8", "ignore"))
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    def _show(self, data: bytes) -> None:
        """Queue output. `Terminal` limits the queue, because the page has to confirm earlier output first."""
        self._output.append(data)
        self._more.set()
        self.manager.note_activity(self._managed)

    async def _serve(self, terminal: Terminal) -> None:
        sender = asyncio.create_task(self._send_output())
        try:
            code, reason = await _outcome(terminal)
            self._show(b"")
            await asyncio.wait({sender}, timeout=_LAST_OUTPUT_SECONDS)
            self._hang(code, reason)
        finally:
            sender.cancel()

    async def _send_output(self) -> None:
        """Send the output as text. Join characters that are split between pieces. Stop at an empty piece."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with contextlib.suppress(WebSocketClosedError):
            await self._send(["setup"])
            while True:
                while not self._output:
                    self._more.clear()
                    await self._more.wait()
                data = self._output.popleft()
                if not data:
                    return
                await self._send(["stdout", decoder.decode(data), len(data)])

    async def _send(self, message: list[Any]) -> None:
        await self.write_message(json.dumps(message))


async def _outcome(terminal: Terminal) -> tuple[int, str]:
    """Run the terminal to its end, and return the close code and the reason."""
    try:
        status = await terminal.run()
    except SandboxLostError as error:
        return SANDBOX_ENDED, str(error)
    except (SandboxError, OSError) as error:
        return FAILED, f"The sandbox can open no terminal: {error}"
    return ENDED, f"The shell has ended{f' with exit code {status}' if status else ''}."


def _act(terminal: Terminal, message: object) -> bool:
    """Handle a message of the page. Return True if a person typed: the page sends all other messages automatically.

    Raises ValueError, TypeError or LookupError for an invalid message.
    """
    if not isinstance(message, list):
        raise TypeError("A message is a list.")
    kind, *content = message
    if kind == "stdin":
        text = content[0]
        is_report = REPORT.fullmatch(text) is not None
        take = terminal.report if is_report else terminal.type
        take(text.encode("utf-8", "replace"))
        return not is_report
    if kind == "set_size":
        terminal.resize(int(content[0]), int(content[1]))
    elif kind == "ack":
        terminal.acknowledge(int(content[0]))
    else:
        raise ValueError("A message of this kind is not known.")
    return False


socket_routes: list[tuple[str, type[Any]]] = [
    (rf"{API}/sandboxes/{ID}/channel", ChannelHandler),
    (rf"{API}/sandboxes/{ID}/terminal", TerminalHandler),
]
"""The WebSocket routes of sandboxes below the server's base URL. Runs have routes of their own."""
