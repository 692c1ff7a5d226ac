"""Requests to servers that speak OpenAI's protocol, without LiteLLM. Each reply takes one HTTP request.

Each request opens a connection of its own, and closes it at the end or when the request is cancelled. So no connection
stays open after a run, or goes stale during a long tool call. This module does not repeat a failed request.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import httpx

from llm_sandbox_nb.model import proxies
from llm_sandbox_nb.model.connection import Access
from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.errors import ServerError, Target
from llm_sandbox_nb.model.known_history import compact_json
from llm_sandbox_nb.model.model_list import cost
from llm_sandbox_nb.model.request import (
    accepts_setting,
    reasons,
)
from llm_sandbox_nb.model.route import Route
from llm_sandbox_nb.model.route_choice import OPENAI, address_of_environment, is_openai_itself
from llm_sandbox_nb.model.server_habits import ServerHabits
from llm_sandbox_nb.model.server_replies import read_reply
from llm_sandbox_nb.model.stream import Piece
from llm_sandbox_nb.model.transport import ModelRequest

_MAX_ERROR_BYTES = 1 << 20
_REFUSED_AT_TOP = frozenset({"oneOf", "anyOf", "allOf", "enum", "const", "not"})
"""Keywords that OpenAI refuses at the top level of a tool's schema."""
_ADDRESSES = {"openai": OPENAI, "deepseek": "https://api.deepseek.com/beta"}
_NO_KEY = {"openai": "no-key", "hosted_vllm": "fake-api-key"}
"""Texts that are sent to a provider's server in place of a key, if the person gave no key."""


class DirectTransport:
    """Sender of requests that go to a model's server without LiteLLM."""

    def __init__(self, route: Route, access: Access, habits: ServerHabits) -> None:
        self.route = route
        self._access = access
        self._habits = habits

    def accepts(self, name: str, value: Any) -> bool:
        return accepts_setting(self.route, name, value)

    def target(self, name: str, *, answered: bool) -> Target:
        missing = () if os.environ.get(self.route.key_variable) else (self.route.key_variable,)
        return self._access.target(self.route, name, missing, answered=answered)

    def check_key(self, target: Target) -> None:
        if not target.has_key and not self._access.api_base and self.route.provider in _ADDRESSES:
            raise ModelError(f"No API key: {target.key_help}.", kind="authentication")

    async def pieces(self, request: ModelRequest, heard: Callable[[], None]) -> AsyncGenerator[Piece, None]:
        """Send a request and yield the pieces of the reply. `heard` is called when data arrives.

        Raises:
            ServerError: if the server refuses the request, or fails.
        """
        provider = self.route.provider
        address = self._access.api_base or address_of_environment(provider) or _ADDRESSES.get(provider)
        if address is None:
            raise httpx.ConnectError(f"no address: pass --api-base or set {provider.upper()}_API_BASE")
        body, headers = self._body(request, address), self._headers()
        timeout = httpx.Timeout(request.timeout, connect=min(request.timeout, 30.0))
        async with (
            proxies.http_client(address, follow_redirects=True, timeout=timeout) as client,
            client.stream("POST", _url(address), content=body, headers=headers) as response,
        ):
            heard()
            if not response.is_success:
                raise ServerError(await _beginning(response), response)
            async with aclosing(read_reply(response, self._habits, heard)) as pieces:
                async for piece in pieces:
                    if piece.usage:
                        piece.usage.cost = cost(self.route, piece.usage)
                    yield piece

    def _headers(self) -> dict[str, str]:
        key = self._access.key(self.route) or _NO_KEY.get(self.route.provider)
        headers = {
            "accept": "application/json",
            "content-type": "application/json",
            "user-agent": "llm-sandbox-nb",
        }
        if key:
            headers["authorization"] = f"Bearer {key}"
        if self.route.provider == "openai" and not self.route.asked:
            named = {"openai-organization": "OPENAI_ORG_ID", "openai-project": "OPENAI_PROJECT_ID"}
            headers |= {
                name: value for name, variable in named.items() if (value := os.environ.get(variable))
            }
        return headers

    def _body(self, request: ModelRequest, address: str) -> bytes:
        fields = {**request.settings}
        extra = fields.pop("extra_body", {})
        if "max_tokens" in fields and reasons(self.route):
            fields["max_completion_tokens"] = fields.pop("max_tokens")
        if request.tools:
            of_openai = self.route.provider == "openai" and is_openai_itself(address)
            fields["tools"] = [_accepted(tool) for tool in request.tools] if of_openai else request.tools
        if request.stream:
            fields["stream"] = True
        if request.stream_options:
            fields["stream_options"] = request.stream_options
        body = {"model": compact_json(self.route.sent_name), "messages": request.messages_json()}
        body |= {name: compact_json(value) for name, value in (fields | extra).items()}
        return f"{{{','.join(f'{compact_json(name)}:{value}' for name, value in body.items())}}}".encode()


def _accepted(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool without the schema parts that OpenAI refuses. Tools of MCP servers may have such parts."""
    function = tool["function"]
    schema = {
        name: value for name, value in function.get("parameters", {}).items() if name not in _REFUSED_AT_TOP
    }
    return {**tool, "function": {**function, "parameters": _without_odd_patterns(schema)}}


def _without_odd_patterns(schema: Any) -> Any:
    """Return a schema without regular expressions that Python cannot compile."""
    match schema:
        case list():
            return [_without_odd_patterns(part) for part in schema]
        case dict():
            return {
                name: _without_odd_patterns(part)
                for name, part in schema.items()
                if name != "pattern" or not isinstance(part, str) or _compiles(part)
            }
    return schema


@functools.lru_cache(maxsize=1024)
def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _url(address: str) -> httpx.URL:
    url = httpx.URL(address)
    path = url.path.rstrip("/").removesuffix("/chat/completions")
    return url.copy_with(path=f"{path}/chat/completions")


async def _beginning(response: httpx.Response) -> str:
    """Read an error answer, but not more than its first `_MAX_ERROR_BYTES`."""
    data = b""
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > _MAX_ERROR_BYTES:
            break
    return data[:_MAX_ERROR_BYTES].decode(errors="replace").strip()
