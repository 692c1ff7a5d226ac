"""Lookup of models at a server: the correct address, the listed models, and the server's name for a model.

Any program may answer at an address. So answers are limited in size and time, and model names with unusual characters
are ignored.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import httpx

from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.proxies import http_client

_TIMEOUT = 5.0
"""Seconds until a request ends, even if the server is still sending."""
_MAX_ANSWER_BYTES = 1_000_000
_MAX_MODELS = 1000
_MODEL_NAME = re.compile(r"[\w./:@+-]{1,200}", re.ASCII)
"""Matches a plain name of a model, which has only usual characters."""
_REQUEST_PATHS = ("/chat/completions", "/completions", "/models", "/responses", "/messages", "/embeddings")
"""Paths of requests. People often copy such a path together with the address of the server."""
MAX_SHOWN_MODELS = 8
"""Maximum number of model names in an error message."""


class Found(NamedTuple):
    """Server with OpenAI's protocol that lists its models."""

    api_base: str
    models: tuple[str, ...]


async def look_up(api_base: str, key: str | None) -> Found | None:
    """Find the server at `api_base`, or at a similar address: without a request path, or with `/v1` at its end.

    Return None if no server there lists models.
    """
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        async with http_client(api_base, timeout=_TIMEOUT, follow_redirects=False) as client:
            for address in meant_addresses(api_base):
                if models := await listed_models(client, address, headers, _TIMEOUT):
                    return Found(address, models)
    except ModelError:  # the request itself raises this error
        return None
    return None


def meant_addresses(api_base: str) -> tuple[str, ...]:
    """Return the addresses that a person may mean with `api_base`. The likeliest address is first."""
    url = httpx.URL(api_base).copy_with(query=None, fragment=None)
    base = url.path.rstrip("/")
    for ending in _REQUEST_PATHS:
        base = base.removesuffix(ending)
    paths = [base, f"{base}/v1", "/v1", "/api/v1", "/openai/v1"]
    return tuple(dict.fromkeys(str(url.copy_with(path=path or "/")).rstrip("/") for path in paths))


async def listed_models(
    client: httpx.AsyncClient, api_base: str, headers: Mapping[str, str], timeout: float
) -> tuple[str, ...]:
    """Request `/models` and return the plain names in the answer. The result is empty if the answer has no list."""
    try:
        async with asyncio.timeout(timeout):
            return _names(await json_answer(client, f"{api_base}/models", _MAX_ANSWER_BYTES, headers))
    except TimeoutError:
        return ()


async def json_answer(
    client: httpx.AsyncClient,
    address: str,
    limit: int,
    headers: Mapping[str, str] = MappingProxyType({}),
    body: Mapping[str, str] | None = None,
) -> object:
    """Request a JSON answer of at most `limit` bytes, with GET, or with POST if `body` is given.

    Return None for any other answer.
    """
    method = "GET" if body is None else "POST"
    named = {"accept-encoding": "identity", **headers}
    found = bytearray()
    try:
        async with client.stream(method, address, headers=named, json=body) as response:
            if response.status_code != 200:
                return None
            async for piece in response.aiter_raw():  # not decoded: a small answer may unpack to a huge text
                found += piece
                if len(found) > limit:
                    return None
        return json.loads(found)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError):
        return None


def _names(listed: object) -> tuple[str, ...]:
    """Return the plain names in an answer of `/v1/models`."""
    data = listed.get("data") if isinstance(listed, dict) else None
    entries: Sequence[object] = data if isinstance(data, list) else ()
    names = [entry.get("id") for entry in entries if isinstance(entry, dict)]
    plain = [name for name in names if isinstance(name, str) and _MODEL_NAME.fullmatch(name)]
    return tuple(dict.fromkeys(plain))[:_MAX_MODELS]


def name_there(whole: str, sent: str, models: Sequence[str]) -> str | None:
    """Return the server's name for the model that the person called `whole`, and that requests called `sent`.

    An equal name wins, then the only name that is equal except for upper and lower case, then the only name that ends
    with `/` and `sent`. Return None if no name fits, or several fit equally well.
    """
    for name in (sent, whole):
        if name in models:
            return name
    for same in (
        [model for model in models if model.casefold() in (sent.casefold(), whole.casefold())],
        [model for model in models if model.casefold().endswith(f"/{sent.casefold()}")],
    ):
        if len(same) == 1:
            return same[0]
    return None


def listed_text(models: Sequence[str]) -> str:
    """Return the first model names and the number of the others as text for an error message."""
    more = len(models) - MAX_SHOWN_MODELS
    return ", ".join(models[:MAX_SHOWN_MODELS]) + (f" and {more} more" if more > 0 else "")
