"""Model servers on this machine: which of the usual ports answer, and with which models.

What answers may be any program, so its words are hostile: bounded in size and time, and only plain names are kept.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import httpx

PORTS = {
    "Ollama": 11434, "LM Studio": 1234, "vLLM": 8000, "llama.cpp": 8080, "SGLang": 30000,
}  # fmt: skip
"""Servers that speak OpenAI's protocol, and the ports that they use when nobody chooses another."""
_TIMEOUT = 2.0
"""Seconds until a server is taken for silent, whatever it has sent."""
_MOST_BYTES = 1_000_000
_MOST_MODELS = 100
_NAME = re.compile(r"[\w./:@+-]{1,200}", re.ASCII)


class LocalServer(NamedTuple):
    """A server that answers; `models` are names as cells take them, with `api_base`."""

    program: str
    """What usually uses its port; not what it says."""
    api_base: str
    models: tuple[str, ...]


async def find_local_servers(ports: Iterable[tuple[str, int]] | None = None) -> list[LocalServer]:
    """The servers on 127.0.0.1 that list models; each is asked once, for two seconds at most."""
    asked = list(PORTS.items()) if ports is None else list(ports)
    # Neither a proxy nor a redirect may lead the request to another machine.
    async with httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=_TIMEOUT) as client:
        found = await asyncio.gather(*(_models(client, port) for _, port in asked))
    return [
        LocalServer(program, _address(port), models)
        for (program, port), models in zip(asked, found, strict=True)
        if models
    ]


def _address(port: int) -> str:
    return f"http://127.0.0.1:{port}/v1"


async def _models(client: httpx.AsyncClient, port: int) -> tuple[str, ...]:
    body = bytearray()
    try:
        async with (
            asyncio.timeout(_TIMEOUT),
            client.stream("GET", f"{_address(port)}/models") as response,
        ):
            if response.status_code != 200:
                return ()
            async for piece in response.aiter_raw():  # not decoded: what is small may unpack to much
                body += piece
                if len(body) > _MOST_BYTES:
                    return ()
        return _names(json.loads(body))
    except (httpx.HTTPError, TimeoutError, ValueError, RecursionError):
        return ()


def _names(listed: object) -> tuple[str, ...]:
    """The plain names in an answer of `/v1/models`."""
    data = listed.get("data") if isinstance(listed, dict) else None
    entries: Sequence[object] = data if isinstance(data, list) else ()
    names = [entry.get("id") for entry in entries if isinstance(entry, dict)]
    plain = [f"openai/{name}" for name in names if isinstance(name, str) and _NAME.fullmatch(name)]
    return tuple(dict.fromkeys(plain))[:_MOST_MODELS]
