"""Requests to the Jupyter server's REST API; its refusals come back as the exceptions they were there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llm_sandbox_nb.notebook.server_client.address import ServerAddress
from llm_sandbox_nb.sandbox import errors
from llm_sandbox_nb.sandbox.errors import SandboxError, SandboxLostError

ANSWER_TIMEOUT = 15.0
START_TIMEOUT = 180.0
"""Seconds that a start may take: an engine that is busy, a large image."""


async def ask_server(
    address: ServerAddress,
    path: str,
    method: str = "GET",
    body: object = None,
    *,
    timeout: float = ANSWER_TIMEOUT,
) -> tuple[int, dict[str, Any]]:
    """A request to the server: status and answer.

    Raises:
        SandboxError: as the server says; SandboxLostError when it does not answer.
    """
    from tornado.httpclient import AsyncHTTPClient, HTTPClientError

    request = address.request(
        path,
        method=method,
        body=json.dumps(body) if body is not None else None,
        request_timeout=timeout,
    )
    try:
        response = await AsyncHTTPClient().fetch(request, raise_error=False)
    except (HTTPClientError, OSError) as error:
        raise _silent(address, error) from error
    if response.code == 599:
        raise _silent(address, response.error)
    answer = _json(response.body)
    if response.code >= 400:
        raise _refusal(response.code, answer)
    return response.code, answer


def _silent(address: ServerAddress, error: BaseException | None) -> SandboxLostError:
    return SandboxLostError(
        f"The Jupyter server at {address.url} does not answer ({error}); restart it and the kernel."
    )


def _json(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body or b"{}")
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _refusal(code: int, answer: Mapping[str, Any]) -> Exception:
    """The server's refusal as the exception it was there."""
    message = str(answer.get("message") or f"The Jupyter server refused with HTTP {code}.")
    kind = getattr(errors, str(answer.get("error")), None)
    if isinstance(kind, type) and issubclass(kind, SandboxError):
        return kind(message)
    return ValueError(message) if answer.get("error") == "ValueError" else SandboxError(message)
