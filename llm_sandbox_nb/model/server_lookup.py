"""A look at a model server: which models it lists, at which address, and its own name for the one that a person named.

What answers may be any program, so its words are hostile: bounded in size and time, and only plain names are kept.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import httpx

from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.proxies import http_client

_TIMEOUT = 5.0
"""Seconds until a server is taken for silent, whatever it has sent."""
_MOST_BYTES = 1_000_000
_MOST_MODELS = 1000
_NAME = re.compile(r"[\w./:@+-]{1,200}", re.ASCII)
_ENDINGS = ("/chat/completions", "/completions", "/models", "/responses", "/messages", "/embeddings")
"""Paths of single requests, which people copy along with the address."""
SHOWN = 8
"""Names of models that an error message lists."""


class Found(NamedTuple):
    """A server of OpenAI's protocol."""

    api_base: str
    models: tuple[str, ...]


async def look_up(api_base: str, key: str | None) -> Found | None:
    """The server at this address, or at one that is meant by it: without the path of a request, or with `/v1`."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        async with http_client(api_base, timeout=_TIMEOUT, follow_redirects=False) as client:
            for address in meant_addresses(api_base):
                if models := await listed_models(client, address, headers, _TIMEOUT):
                    return Found(address, models)
    except ModelError:  # the request itself tells what is wrong
        return None
    return None


def meant_addresses(api_base: str) -> tuple[str, ...]:
    """Addresses that a person may mean with this one, the likeliest first."""
    url = httpx.URL(api_base).copy_with(query=None, fragment=None)
    path = url.path.rstrip("/")
    for ending in _ENDINGS:
        path = path.removesuffix(ending)
    paths = [path, f"{path}/v1", "/v1", "/api/v1", "/openai/v1"]
    return tuple(dict.fromkeys(str(url.copy_with(path=one or "/")).rstrip("/") for one in paths))


async def listed_models(
    client: httpx.AsyncClient, api_base: str, headers: Mapping[str, str], timeout: float
) -> tuple[str, ...]:
    """The plain names that `/models` lists; empty where it answers nothing of the kind."""
    body = bytearray()
    try:
        async with (
            asyncio.timeout(timeout),
            client.stream(
                "GET", f"{api_base}/models", headers={"accept-encoding": "identity", **headers}
            ) as response,
        ):
            if response.status_code != 200:
                return ()
            async for piece in response.aiter_raw():  # not decoded: what is small may unpack to much
                body += piece
                if len(body) > _MOST_BYTES:
                    return ()
        return _names(json.loads(body))
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError, RecursionError):
        return ()


def _names(listed: object) -> tuple[str, ...]:
    """The plain names in an answer of `/v1/models`."""
    data = listed.get("data") if isinstance(listed, dict) else None
    entries: Sequence[object] = data if isinstance(data, list) else ()
    names = [entry.get("id") for entry in entries if isinstance(entry, dict)]
    plain = [name for name in names if isinstance(name, str) and _NAME.fullmatch(name)]
    return tuple(dict.fromkeys(plain))[:_MOST_MODELS]


def name_there(whole: str, sent: str, models: Sequence[str]) -> str | None:
    """The server's own name for the model that the person called `whole`; None when it has no such model, or two."""
    for name in (sent, whole):
        if name in models:
            return name
    for same in (
        [one for one in models if one.casefold() in (sent.casefold(), whole.casefold())],
        [one for one in models if one.casefold().endswith(f"/{sent.casefold()}")],
    ):
        if len(same) == 1:
            return same[0]
    return None


def listed_text(models: Sequence[str]) -> str:
    """The names in words, not too many."""
    more = len(models) - SHOWN
    return ", ".join(models[:SHOWN]) + (f" and {more} more" if more > 0 else "")
