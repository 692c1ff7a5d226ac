"""Parsing of the JSON-RPC messages of MCP: requests, notifications and responses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_sandbox_nb.errors import LLMSandboxError

Json = dict[str, Any]
Id = str | int

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = (
    -32700,
    -32600,
    -32601,
    -32602,
    -32603,
)
HEADER_MISMATCH, UNSUPPORTED_VERSION = -32020, -32022
META_VERSION = "io.modelcontextprotocol/protocolVersion"
META_CLIENT = "io.modelcontextprotocol/clientInfo"
META_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
META_SERVER = "io.modelcontextprotocol/serverInfo"
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Maximum size of a message in bytes."""


class McpError(LLMSandboxError):
    """Error for a message that cannot be answered with a result. The text is one sentence."""

    def __init__(self, code: int, message: str, *, status: int = 400, data: Json | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        """HTTP status of the response."""
        self.data = data

    def to_json(self, id: Id | None = None) -> Json:
        error: Json = {"code": self.code, "message": str(self)}
        if self.data is not None:
            error["data"] = self.data
        return {"jsonrpc": "2.0", "error": error} | ({} if id is None else {"id": id})


@dataclass(frozen=True)
class RpcMessage:
    """A request (with an id and a method), a notification (without an id), or a response (without a method)."""

    method: str = ""
    id: Id | None = None
    params: Json = field(default_factory=dict)
    result: Json | None = None
    """Result of a response. None if the response reports an error."""
    error: str = ""
    """Error text of a response that reports an error. Otherwise empty."""

    @property
    def meta(self) -> Mapping[str, Any]:
        meta = self.params.get("_meta")
        return meta if isinstance(meta, dict) else {}

    @property
    def modern(self) -> bool:
        """True if the message names its protocol version in `_meta`, as in protocol versions since 2026-07-28."""
        return META_VERSION in self.meta

    @property
    def progress_token(self) -> Id | None:
        """Token for progress notifications, or None if the client does not want progress notifications."""
        token = self.meta.get("progressToken")
        return token if isinstance(token, str | int) and not isinstance(token, bool) else None


def read_message(data: bytes | str) -> RpcMessage:
    """Read one message.

    Raises:
        McpError: if `data` is not a message of JSON-RPC 2.0.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise McpError(INVALID_REQUEST, "The message is too large.", status=413)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise McpError(PARSE_ERROR, "The message is not JSON.") from None
    if isinstance(value, list):
        raise McpError(INVALID_REQUEST, "Send each message in a separate request, not in a list.")
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        raise McpError(INVALID_REQUEST, 'A message has to be an object with "jsonrpc": "2.0".')
    id, method, params = value.get("id"), value.get("method"), value.get("params", {})
    if "id" in value and (not isinstance(id, str | int) or isinstance(id, bool)):
        raise McpError(INVALID_REQUEST, "The id of a message has to be a text or a whole number.")
    if method is None and "id" in value and ("result" in value or "error" in value):
        result = value.get("result")
        error = value.get("error")
        text = str(error.get("message") or "") if isinstance(error, dict) else ""
        return RpcMessage(id=id, result=result if isinstance(result, dict) else None, error=text)
    if not isinstance(method, str):
        raise McpError(INVALID_REQUEST, "The method of a message has to be a text.")
    if not isinstance(params, dict):
        raise McpError(INVALID_PARAMS, "The parameters of a message have to be an object.")
    return RpcMessage(method=method, id=id, params=params)


def response(id: Id, result: Mapping[str, Any]) -> Json:
    return {"jsonrpc": "2.0", "id": id, "result": dict(result)}


def notification(method: str, params: Mapping[str, Any]) -> Json:
    return {"jsonrpc": "2.0", "method": method, "params": dict(params)}
