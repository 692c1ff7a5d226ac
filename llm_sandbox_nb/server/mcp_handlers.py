"""The MCP endpoint, `/llm-sandbox/mcp`: HTTP, authentication, and the connection to the kernel that executes the calls.

The endpoint is not part of the Jupyter API. It needs a token in the header `Authorization`, and ignores cookies,
because a page of another site could make a browser send them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import json
import re
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit

from jupyter_server.auth.decorator import allow_unauthenticated
from jupyter_server.base.handlers import JupyterHandler
from tornado import web
from tornado.iostream import StreamClosedError

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.mcp_server.connecting import connection_text
from llm_sandbox_nb.mcp_server.endpoint import LEGACY, MODERN, McpEndpoint, initialized, modern_client
from llm_sandbox_nb.mcp_server.messages import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    META_VERSION,
    Json,
    McpError,
    RpcMessage,
    read_message,
    response,
)
from llm_sandbox_nb.mcp_server.sessions import ClientFacts, McpSession, Sessions
from llm_sandbox_nb.mcp_server.tools import STOPPED
from llm_sandbox_nb.server.handlers import API, ID, SandboxAPIHandler, rest_verb
from llm_sandbox_nb.server.manager import SandboxManager, UnknownSandboxError
from llm_sandbox_nb.server.mcp_grants import McpGrants
from llm_sandbox_nb.server.runs import PublishedRun, RunControlError, RunRegistry

MCP = "/llm-sandbox/mcp"
_STREAM_AFTER_SECONDS = 0.5
"""Seconds after which the server begins a stream if the answer is still missing."""
_LIST_TIMEOUT = 5.0
"""Seconds that a kernel may take to list its sandboxes."""
_KEEP_ALIVE_SECONDS = 15.0
"""Seconds between two keep-alive comments on a stream."""
# The URL becomes a word of a shell command, so quotes, blanks and `$` are not accepted.
_BASE_URL_PATTERN = re.compile(r"https?://[\w.:\[\]~%/@+-]{1,1000}/", re.ASCII)
NOT_OPEN = (
    "The notebook does not offer its sandbox now: ask the person to execute %sandbox mcp in the notebook, then call "
    "again."
)
OTHER_MODEL = (
    "This site does not let outside agents choose this model: leave `model` out for the model of the notebook; "
    "SandboxPolicy.mcp_run_models lists the allowed ones."
)
SANDBOX_AT_WORK = (
    "This sandbox is in use now, by a person in a cell or a terminal, or by a command or run of an agent: "
    "try again later."
)
_SETTLE_TRIES, _SETTLE_PAUSE_SECONDS = 60, 0.05
"""Before a run starts: maximum number of polls until the sandbox has no pending requests, and seconds between polls."""
_TYPING_SECONDS = 30.0
"""Seconds after the last message from a terminal's page during which a person counts as using the sandbox."""
WHICH = "Several notebooks offer their sandboxes: name one as `sandbox`; list_sandboxes lists them."
_WELCOME = "This is an MCP endpoint: send the token that %sandbox mcp in a notebook shows, in the header Authorization."


class McpServices:
    """The state that the endpoint keeps between requests."""

    def __init__(self, grants: McpGrants, *, runs: bool = False) -> None:
        """Create the services. With `runs`, outside agents may start runs: see `SandboxPolicy.allow_mcp_runs`."""
        self.grants = grants
        self.sessions = Sessions()
        self.endpoint = McpEndpoint(runs=runs)
        grants.on_revoked = self.sessions.end_all_of


@dataclass(frozen=True)
class Caller:
    """The caller of a request. A sandbox's token is valid for that sandbox, the server's token for all."""

    principal: str
    sandbox_id: str | None


@dataclass(eq=False)
class KernelHost:
    """A `ToolHost` that executes calls in the kernels that have opened their sandboxes to outside agents."""

    caller: Caller
    manager: SandboxManager
    runs: RunRegistry

    @property
    def principal(self) -> str:
        return self.caller.principal

    async def call(self, tool: str, arguments: Json, client: ClientFacts, agreed: str) -> Json:
        if self.caller.sandbox_id is None and tool == "list_sandboxes":
            return await self._list(client)
        try:
            run, inside = self._run(arguments)
            if tool == "start_run":
                await self._check_start(run, arguments)
            name = f"{client.name} {client.version}".strip()
            arguments = {**arguments, "sandbox": inside}
            found = await run.call_tool(tool, arguments, name, agreed, self.caller.principal)
        except (RunControlError, _NotOpenError) as error:
            return {"text": str(error), "data": {"error": str(error)}, "error": True}
        return found

    def _run(self, arguments: Json) -> tuple[PublishedRun, str]:
        """Return the run that executes a call, and the name of the sandbox inside its kernel."""
        named = str(arguments.get("sandbox") or "")
        sandbox_id, inside = self.caller.sandbox_id, named
        if sandbox_id is None:
            if named:
                sandbox_id, _, inside = named.partition("/")
            else:
                open_ones = [run.outside for run in self.runs.all() if run.outside and run.state == "live"]
                if len(set(open_ones)) > 1:
                    raise _NotOpenError(WHICH)
                sandbox_id = open_ones[0] if open_ones else ""
        run = self.runs.outside_run(sandbox_id or "")
        if run is None:
            raise _NotOpenError(NOT_OPEN)
        if run.finished:
            raise _NotOpenError(STOPPED)
        self.runs.note_activity()
        return run, inside

    async def _check_start(self, run: PublishedRun, arguments: Json) -> None:
        """Raise _NotOpenError unless the site allows the model of the run, and nobody uses the sandbox."""
        model = str(arguments.get("model") or "")
        patterns = self.manager.policy.mcp_run_models
        if model and not any(fnmatchcase(model, pattern) for pattern in patterns):
            raise _NotOpenError(OTHER_MODEL)
        try:
            managed = self.manager.get(run.outside or "")
        except UnknownSandboxError:
            raise _NotOpenError(NOT_OPEN) from None
        # A pending request may come from a person, or from the checkpoint after the caller's last step. A checkpoint
        # ends soon, so wait a moment.
        for _ in range(_SETTLE_TRIES):
            if not managed.requests:
                break
            await asyncio.sleep(_SETTLE_PAUSE_SECONDS)
        if managed.requests or time.time() - managed.typed < _TYPING_SECONDS:
            raise _NotOpenError(SANDBOX_AT_WORK)

    async def _list(self, client: ClientFacts) -> Json:
        offered = [
            run
            for run in self.runs.all()
            if run.outside is not None and run.state == "live" and self.runs.outside_run(run.outside) is run
        ]
        listed = await asyncio.gather(*(self._list_notebook(run, client) for run in offered))
        found = [box for boxes in listed for box in boxes]
        text = "\n".join(f"{box['sandbox']}: of {box['notebook']}, {box['state']}" for box in found)
        return {"text": text or NOT_OPEN, "data": {"sandboxes": found}, "error": False}

    async def _list_notebook(self, run: PublishedRun, client: ClientFacts) -> list[Json]:
        """Return the sandboxes of one notebook. If its kernel fails, the `state` of its only entry is the reason."""
        outside = run.outside
        try:
            reply = await run.call_tool("list_sandboxes", {}, client.name, "", timeout=_LIST_TIMEOUT)
            boxes = reply["data"].get("sandboxes", [])
        except RunControlError as error:
            boxes = [{"sandbox": "main", "state": str(error)}]
        notebook = (await self.runs.describe(run))["notebook"]
        return [
            {**box, "sandbox": f"{outside}/{box['sandbox']}".removesuffix("/main"), "notebook": notebook}
            for box in boxes
        ]


class _NotOpenError(LLMSandboxError):
    """Raised if no run accepts the call."""


class McpHandler(JupyterHandler):
    """Handler for the requests of MCP clients."""

    _answering: asyncio.Task[Json] | None = None
    _streaming = False
    _session: McpSession | None = None

    async def prepare(self) -> None:  # type: ignore[override]  # as in JupyterHandler, without cookies and login pages
        """Refuse requests with a foreign host name or from a foreign page, before the body is read."""
        self.current_user = None
        if not self.check_host():
            raise web.HTTPError(
                421, "The host name of the request is not allowed: see ServerApp.allow_remote_access."
            )
        origin = self.request.headers.get("Origin")
        if origin is not None and not self._is_own(origin):
            raise web.HTTPError(403, "Pages of other sites may not use this address.")

    def _is_own(self, origin: str) -> bool:
        if self.allow_origin == "*":
            return True
        with contextlib.suppress(ValueError):
            if urlsplit(origin.lower()).netloc == self.request.host.lower():
                return True
        if self.allow_origin:
            return bool(self.allow_origin == origin)
        pattern = self.allow_origin_pat
        return pattern is not None and re.fullmatch(pattern, origin) is not None

    def check_xsrf_cookie(self) -> None:
        """Accept every request: cookies have no effect here, so they cannot be misused."""

    @property
    def services(self) -> McpServices:
        """The state that the endpoint keeps between requests."""
        services: McpServices = self.settings["llm_sandbox_mcp"]
        return services

    @allow_unauthenticated
    def get(self, sandbox: str | None = None) -> None:
        """Refuse the request: this server sends messages only as answers to `POST`."""
        self._caller(sandbox)
        self.set_status(405)
        self.set_header("Allow", "POST, DELETE")
        self.finish({"message": _WELCOME})

    @allow_unauthenticated
    def delete(self, sandbox: str | None = None) -> None:
        """End a session."""
        caller = self._caller(sandbox)
        session = self._known_session(caller)
        if session is not None:
            self.services.sessions.end(session)
        self.set_status(204)
        self.finish()

    @allow_unauthenticated
    async def post(self, sandbox: str | None = None) -> None:
        """Answer one message."""
        caller = self._caller(sandbox)
        id = None
        try:
            message = read_message(self.request.body)
            id = message.id if message.method else None
            await self._take(message, caller)
        except McpError as error:
            self._fail(error, id)
        except asyncio.CancelledError:
            return  # the client has gone
        except StreamClosedError:
            return
        except web.HTTPError:
            raise
        except Exception:
            self.log.exception("an MCP request failed")
            self._fail(McpError(INTERNAL_ERROR, "The server failed: see its log.", status=500), id)

    async def _take(self, message: RpcMessage, caller: Caller) -> None:
        header = self.request.headers.get("MCP-Protocol-Version")
        modern = message.modern or header == MODERN or (header is not None and header not in LEGACY)
        if message.method == "initialize" and not message.modern:
            client, result = initialized(message)
            if message.id is None:
                raise McpError(INVALID_REQUEST, "initialize is a request, so it needs an id.")
            session = self.services.sessions.begin(caller.principal, client)
            self.set_header("Mcp-Session-Id", session.id)
            self._send(response(message.id, result))
            return
        if modern:
            self._check_headers(message, header)
        else:
            self._session = self._known_session(caller)
        if message.method and message.id is not None:
            await self._answer(message, caller)
            return
        if not message.method and (self._session is None or not self._session.take_answer(message)):
            raise McpError(INVALID_REQUEST, "The message is not a request, notification or response.")
        self.set_status(202)
        self.finish()

    def _check_headers(self, message: RpcMessage, header: str | None) -> None:
        """Check that the headers of a modern request agree with its body. Raises McpError."""
        if not message.method:
            raise McpError(INVALID_REQUEST, "A response is not expected here.")
        if header is not None and header != message.meta.get(META_VERSION, header):
            raise _header_mismatch("MCP-Protocol-Version")
        if header is not None and header != MODERN:
            said = {**message.params, "_meta": {**message.meta, META_VERSION: header}}
            modern_client(RpcMessage(message.method, message.id, said))
        if message.id is not None:
            modern_client(message)
        names: dict[str, tuple[str | None, str]] = {"MCP-Protocol-Version": (header, MODERN)}
        if message.id is not None:
            names["Mcp-Method"] = (self.request.headers.get("Mcp-Method"), message.method)
        if message.method == "tools/call":
            name = message.params.get("name")
            names["Mcp-Name"] = (
                _decoded(self.request.headers.get("Mcp-Name")),
                name if isinstance(name, str) else "",
            )
        for which, (sent, meant) in names.items():
            if sent != meant:
                raise _header_mismatch(which)

    def _known_session(self, caller: Caller) -> McpSession | None:
        """Return the session named by the request, or None. Raises HTTPError for an unknown session."""
        id = self.request.headers.get("Mcp-Session-Id")
        if id is None:
            return None
        session = self.services.sessions.find(id, caller.principal)
        if session is None:
            raise web.HTTPError(404, "The session is unknown or has ended: begin with initialize.")
        return session

    async def _answer(self, message: RpcMessage, caller: Caller) -> None:
        assert message.id is not None
        host = KernelHost(caller, self.settings["llm_sandbox_manager"], self.settings["llm_sandbox_runs"])
        client = self._session.client if self._session else None
        self._answering = asyncio.ensure_future(self.services.endpoint.answer(message, client, host, self))
        streams = "text/event-stream" in self.request.headers.get("Accept", "")
        try:
            await asyncio.wait({self._answering}, timeout=_STREAM_AFTER_SECONDS if streams else None)
            while not self._answering.done():
                self._write_event(None)
                await asyncio.wait({self._answering}, timeout=_KEEP_ALIVE_SECONDS)
            result = self._answering.result()
        finally:
            self._answering.cancel()
        self._send(response(message.id, result))

    def on_connection_close(self) -> None:
        """Cancel the request of a client that has disconnected."""
        super().on_connection_close()
        if self._answering is not None:
            self._answering.cancel()

    # --- messages to the client: see `ClientLink` ---

    def notify(self, message: Json) -> None:
        if self._streaming:
            self._write_event(message)

    async def elicit(self, params: Json) -> Json | None:
        if self._session is None or "text/event-stream" not in self.request.headers.get("Accept", ""):
            return None
        return await self._session.elicit(params, self._write_event)

    def _write_event(self, message: Json | None) -> None:
        """Write a message to the stream, or a keep-alive comment if None. The first call begins the stream."""
        if not self._streaming:
            self._streaming = True
            self.set_header("Content-Type", "text/event-stream")
            self.set_header("Cache-Control", "no-store")
            self.set_header("X-Accel-Buffering", "no")
        self.write(":\n\n" if message is None else f"event: message\ndata: {json.dumps(message)}\n\n")
        flushed = asyncio.ensure_future(self.flush())
        flushed.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _send(self, message: Json) -> None:
        if self._streaming:
            self._write_event(message)
            self.finish()
            return
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps(message))

    def _fail(self, error: McpError, id: str | int | None) -> None:
        if not self._streaming:
            self.set_status(error.status)
        self._send(error.to_json(id))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer an error with a JSON message instead of a page."""
        error = kwargs.get("exc_info", (None, None))[1]
        # `log_message` is a format, in which each % is doubled
        said = (error.log_message or "") % error.args if isinstance(error, web.HTTPError) else ""
        self.set_header("Content-Type", "application/json")
        if status_code == 401:
            self.set_header("WWW-Authenticate", "Bearer")
        self.finish(json.dumps({"message": said or "The request failed."}))

    def _log(self) -> None:
        """Log the request, except one with status 405: each client asks once for a stream, which is refused."""
        if self.get_status() != 405:
            super()._log()

    # --- the caller ---

    def _caller(self, sandbox: str | None) -> Caller:
        """Return the caller that the header `Authorization` names. Raises HTTPError."""
        if not self.settings["llm_sandbox_manager"].policy.allow_mcp:
            raise web.HTTPError(403, "This site does not allow MCP: see SandboxPolicy.allow_mcp.")
        scheme, _, token = self.request.headers.get("Authorization", "").partition(" ")
        token = token.strip()
        if scheme.casefold() not in ("bearer", "token") or not token:
            raise web.HTTPError(401, _WELCOME)
        grant = self.services.grants.find(token)
        if grant is not None:
            if sandbox not in (None, grant.sandbox_id):
                raise web.HTTPError(404, "This token is not for that sandbox.")
            return Caller(grant.name, grant.sandbox_id)
        own = self.identity_provider.token
        if own and hmac.compare_digest(own.encode(), token.encode("utf-8", "replace")):
            return Caller("jupyter", sandbox)
        raise web.HTTPError(401, _WELCOME)


class McpTokenHandler(SandboxAPIHandler):
    """Handler for the token that opens a sandbox to outside agents."""

    @rest_verb
    async def get(self, sandbox_id: str) -> None:
        """Return `exists`, true if the sandbox has a token, and `run`, the id of an outside agent's live run."""
        grant = self._grants.keep(*self._holder(sandbox_id))
        run = self.runs.outside_run(sandbox_id)
        live = run is not None and run.state in ("live", "away")
        self.finish({"exists": grant is not None, "run": run.id if run is not None and live else None})

    @rest_verb
    async def post(self, sandbox_id: str) -> None:
        """Make a token, and revoke the earlier token. With `keep`, an existing token stays, and `token` is null."""
        if not self.manager.policy.allow_mcp:
            raise web.HTTPError(403, "This site does not allow MCP: see SandboxPolicy.allow_mcp.")
        holder, address = self._holder(sandbox_id), self._address()
        kept = self._grants.keep(*holder) if self.flag("keep") else None
        token = None if kept else self._grants.mint(*holder)
        self.set_status(200 if kept else 201)
        connect = connection_text(address, token) if token else None
        self.finish({"token": token, "path": f"{self.base_url.rstrip('/')}{MCP}", "connect": connect})

    @rest_verb
    async def delete(self, sandbox_id: str) -> None:
        """Revoke the token."""
        self._grants.revoke(*self._holder(sandbox_id))
        self.set_status(204)
        self.finish()

    def _holder(self, sandbox_id: str) -> tuple[str, str | None]:
        """Return the holder of a token: a sandbox and its notebook. A fork has its own token, not the notebook's."""
        managed = self.manager.get(sandbox_id)
        return managed.id, None if managed.fork_of else managed.notebook

    def _address(self) -> str:
        """Return the field `url` of the body; default: the URL of the request. Raises HTTPError for an invalid URL."""
        url = self.body().get("url", f"{self.request.protocol}://{self.request.host}{self.base_url}")
        if not isinstance(url, str) or not _BASE_URL_PATTERN.fullmatch(url):
            raise web.HTTPError(
                400, "`url` has to be the http or https address of this server, ending in a slash."
            )
        return url

    @property
    def _grants(self) -> McpGrants:
        services: McpServices = self.settings["llm_sandbox_mcp"]
        return services.grants


def _header_mismatch(name: str) -> McpError:
    return McpError(HEADER_MISMATCH, f"The header {name} does not agree with the body.")


def _decoded(value: str | None) -> str | None:
    """Return the value of a header that may be encoded in base64."""
    if value is None or not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[9:-2], validate=True).decode()
    except ValueError:
        return None


mcp_routes: list[tuple[str, type[Any]]] = [
    (MCP, McpHandler),
    (rf"{MCP}/(?P<sandbox>[0-9a-f]{{32}})", McpHandler),
]
"""Routes of the endpoint, below the server's base URL."""
mcp_token_routes: list[tuple[str, type[SandboxAPIHandler]]] = [
    (rf"{API}/sandboxes/{ID}/mcp-token", McpTokenHandler)
]
"""Route of the tokens, below the server's base URL."""
