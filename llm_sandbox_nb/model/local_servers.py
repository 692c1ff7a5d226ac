"""Search for model servers on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

import httpx

from llm_sandbox_nb.model.server_lookup import listed_models

PORTS = {
    "Ollama": 11434, "LM Studio": 1234, "vLLM": 8000, "llama.cpp": 8080, "SGLang": 30000,
}  # fmt: skip
"""Servers that speak OpenAI's protocol, with their default ports."""
_TIMEOUT = 2.0
"""Maximum time in seconds for the answer of one server, even if the server is still sending."""
_MAX_MODELS = 100


class LocalServer(NamedTuple):
    """Model server on this machine. Cells can use the names in `models` together with `api_base`."""

    program: str
    """Program that usually uses this port. The server itself did not confirm the name."""
    api_base: str
    models: tuple[str, ...]


async def find_local_servers(ports: Iterable[tuple[str, int]] | None = None) -> list[LocalServer]:
    """Find the servers on 127.0.0.1 that list models. Each port gets one request of at most two seconds.

    Any program may listen on a port. So answers are limited in size and time, and model names with unusual characters
    are ignored. `ports` are pairs of program and port, by default `PORTS`.
    """
    asked = list(PORTS.items()) if ports is None else list(ports)
    # Neither a proxy nor a redirect may lead the request to another machine.
    async with httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=_TIMEOUT) as client:
        found = await asyncio.gather(
            *(listed_models(client, _address(port), {}, _TIMEOUT) for _, port in asked)
        )
    return [
        LocalServer(program, _address(port), tuple(f"openai/{name}" for name in models)[:_MAX_MODELS])
        for (program, port), models in zip(asked, found, strict=True)
        if models
    ]


def _address(port: int) -> str:
    return f"http://127.0.0.1:{port}/v1"
