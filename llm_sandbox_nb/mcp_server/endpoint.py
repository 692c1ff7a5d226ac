"""Answers to the requests of MCP clients, independent of the transport.

Up to protocol version 2025-11-25, a client begins with the request `initialize`. Since version 2026-07-28, each request
names the version, the client and the client's abilities in `_meta`, and the server stores nothing about clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any, Final, Protocol

from llm_sandbox_nb.mcp_server.messages import (
    INVALID_PARAMS,
    META_CAPABILITIES,
    META_CLIENT,
    META_SERVER,
    META_VERSION,
    METHOD_NOT_FOUND,
    UNSUPPORTED_VERSION,
    Json,
    McpError,
    RpcMessage,
    notification,
)
from llm_sandbox_nb.mcp_server.request_state import RequestStateError, StateSigner
from llm_sandbox_nb.mcp_server.sessions import ClientFacts
from llm_sandbox_nb.mcp_server.tools import (
    INSTRUCTIONS,
    RUN_TOOLS,
    TOOLS,
    ToolInputError,
    checked_arguments,
    listed_tools,
)
from llm_sandbox_nb.version import __version__

MODERN: Final = "2026-07-28"
LEGACY: Final = ("2025-11-25", "2025-06-18", "2025-03-26")
PROGRESS_SECONDS = 5.0
_TOOL_LIST_TTL_MS = 3_600_000
"""Milliseconds for which a client may cache the list of tools. The list never changes while the server runs."""
_QUESTION_KEY = "undo_others"
_SERVER: Final = {"name": "llm-sandbox-nb", "title": "Notebook sandbox", "version": __version__}
_ANSWER_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "undo": {
            "type": "boolean",
            "title": "Undo these changes too",
            "description": "They can be brought back: rewind to `undo`.",
        }
    },
    "required": ["undo"],
}
DECLINED = "The person did not agree, so nothing was changed. Work with the files as they are, or fork an earlier step."


RUNS_OFF = "Starting runs is off: an administrator of the Jupyter server turns it on with SandboxPolicy.allow_mcp_runs."


class ToolHost(Protocol):
    """Interface that executes the tool calls of one caller. The caller is identified by its token."""

    @property
    def principal(self) -> str:
        """Name of the caller's token, never the token itself."""
        ...

    async def call(self, tool: str, arguments: Json, client: ClientFacts, agreed: str) -> Json:
        """Execute a call with checked arguments. Cancelling this coroutine ends the call.

        Returns:
            Either `text`, `data` and `error`, or `ask` and `about`: a question for a person, and the question's
            subject. If the person answers yes, the call is repeated with this subject as `agreed`. In a first call,
            `agreed` is empty.
        """
        ...


class ClientLink(Protocol):
    """Sender of messages to the client while one of its requests is being answered."""

    def notify(self, message: Json) -> None:
        """Send a notification, if the transport can send one before the answer."""
        ...

    async def elicit(self, params: Json) -> Json | None:
        """Ask the client's user and return the answer, or None if the client cannot ask or does not answer in time."""
        ...


class McpEndpoint:
    """Endpoint for all callers of a server. It stores only a signing key and the ids of used request states."""

    def __init__(self, *, runs: bool = False) -> None:
        """Make the endpoint. With `runs`, it offers the tools that start and stop runs of this package's agent."""
        self._runs = runs
        self._signer = StateSigner()

    async def answer(
        self, message: RpcMessage, client: ClientFacts | None, host: ToolHost, link: ClientLink
    ) -> Json:
        """Return the result of a request.

        Args:
            client: the client of an earlier handshake. It is ignored for a modern request, which names its own client.

        Raises:
            McpError: if the request is refused.
        """
        if message.modern:
            return await self._modern(message, host, link)
        match message.method:
            case "ping":
                return {}
            case "tools/list":
                return {"tools": listed_tools(runs=self._runs)}
            case "tools/call":
                return await self._call(message, client or ClientFacts(), host, link)
        raise _no_method()

    async def _modern(self, message: RpcMessage, host: ToolHost, link: ClientLink) -> Json:
        client = modern_client(message)
        kept = {"ttlMs": _TOOL_LIST_TTL_MS, "cacheScope": "public"}
        match message.method:
            case "server/discover":
                result: Json = {
                    "supportedVersions": [MODERN, *LEGACY],
                    "capabilities": {"tools": {}},
                    "instructions": INSTRUCTIONS,
                    **kept,
                }
            case "tools/list":
                result = {"tools": listed_tools(runs=self._runs), **kept}
            case "tools/call":
                result = await self._call(message, client, host, link)
            case _:
                raise _no_method()
        return {"resultType": "complete", **result, "_meta": {META_SERVER: _SERVER}}

    async def _call(self, message: RpcMessage, client: ClientFacts, host: ToolHost, link: ClientLink) -> Json:
        name = message.params.get("name")
        if not isinstance(name, str) or name not in TOOLS:
            names = ", ".join(tool["name"] for tool in listed_tools(runs=self._runs))
            raise McpError(INVALID_PARAMS, f"There is no tool of this name: the tools are {names}.")
        if name in RUN_TOOLS and not self._runs:
            return tool_error(RUNS_OFF)
        try:
            arguments = checked_arguments(name, message.params.get("arguments"))
        except ToolInputError as error:
            return tool_error(str(error))
        request = {"tool": name, "arguments": arguments}
        agreed = ""
        if (state := message.params.get("requestState")) is not None:
            try:
                agreed = self._signer.check(state, host.principal, request)
            except RequestStateError:
                raise McpError(
                    INVALID_PARAMS,
                    "This requestState belongs to another request, was already used, or has expired: call the tool "
                    "again.",
                ) from None
            answers = message.params.get("inputResponses")
            if not _agrees(answers.get(_QUESTION_KEY) if isinstance(answers, dict) else None):
                return tool_error(DECLINED)
        while True:
            reply = await self._with_progress(message, host.call(name, arguments, client, agreed), link)
            if "ask" not in reply:
                return _tool_result(reply)
            question = {"mode": "form", "message": reply["ask"], "requestedSchema": _ANSWER_SCHEMA}
            if not client.elicits:
                return tool_error(
                    f"{reply['ask']} Nothing was changed. Your client cannot show this question: ask the person, who "
                    "can rewind in the notebook; or fork an earlier step instead."
                )
            if message.modern:
                return {
                    "resultType": "input_required",
                    "inputRequests": {_QUESTION_KEY: {"method": "elicitation/create", "params": question}},
                    "requestState": self._signer.sign(host.principal, request, reply["about"]),
                }
            if not _agrees(await link.elicit({key: question[key] for key in ("message", "requestedSchema")})):
                return tool_error(DECLINED)
            agreed = reply["about"]

    async def _with_progress(self, message: RpcMessage, calling: Any, link: ClientLink) -> Json:
        token = message.progress_token
        if token is None:
            answer: Json = await calling
            return answer
        started = time.monotonic()

        async def report() -> None:
            while True:
                await asyncio.sleep(PROGRESS_SECONDS)
                seconds = round(time.monotonic() - started, 1)
                params = {
                    "progressToken": token,
                    "progress": seconds,
                    "message": f"Running for {seconds:.0f} s",
                }
                link.notify(notification("notifications/progress", params))

        reporting = asyncio.ensure_future(report())
        try:
            reply: Json = await calling
            return reply
        finally:
            reporting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reporting


def initialized(message: RpcMessage) -> tuple[ClientFacts, Json]:
    """Return the client that the request `initialize` names, and the result for the answer.

    Raises:
        McpError: if the message has no protocol version.
    """
    asked = message.params.get("protocolVersion")
    if not isinstance(asked, str):
        raise McpError(INVALID_PARAMS, "initialize needs a protocolVersion.")
    client = ClientFacts.read(message.params.get("clientInfo"), message.params.get("capabilities"))
    return client, {
        "protocolVersion": asked if asked in LEGACY else LEGACY[0],
        "capabilities": {"tools": {}},
        "serverInfo": _SERVER,
        "instructions": INSTRUCTIONS,
    }


def modern_client(message: RpcMessage) -> ClientFacts:
    """Return the client that a modern request names.

    Raises:
        McpError: if the request names no version, a version other than `MODERN`, or no capabilities.
    """
    version, capabilities = message.meta.get(META_VERSION), message.meta.get(META_CAPABILITIES)
    if not isinstance(version, str):
        raise McpError(INVALID_PARAMS, f"The _meta of a request needs {META_VERSION}.")
    if version != MODERN:
        asked = version if len(version) < 40 else ""
        raise McpError(
            UNSUPPORTED_VERSION,
            f"This server speaks the protocol version {MODERN}, and after a handshake also {', '.join(LEGACY)}.",
            data={"supported": [MODERN, *LEGACY], "requested": asked},
        )
    if not isinstance(capabilities, dict):
        raise McpError(INVALID_PARAMS, f"The _meta of a request needs {META_CAPABILITIES}.")
    return ClientFacts.read(message.meta.get(META_CLIENT), capabilities)


def tool_error(text: str) -> Json:
    """Return the error result of a call that was not executed."""
    return _tool_result({"text": text, "data": {"error": text}, "error": True})


def _tool_result(reply: Mapping[str, Any]) -> Json:
    return {
        "content": [{"type": "text", "text": reply["text"]}],
        "structuredContent": reply["data"],
        "isError": reply["error"],
    }


def _agrees(answer: object) -> bool:
    if not isinstance(answer, dict) or answer.get("action") != "accept":
        return False
    content = answer.get("content")
    return isinstance(content, dict) and content.get("undo") is True


def _no_method() -> McpError:
    return McpError(METHOD_NOT_FOUND, "This server does not have this method.", status=404)
