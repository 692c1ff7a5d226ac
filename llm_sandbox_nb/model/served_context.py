"""The context that a model server was started with: asked where each server tells it.

| server | where |
|---|---|
| vLLM, SGLang, OpenRouter | `/v1/models`: `max_model_len`, `context_length` |
| llama.cpp | `/props`: `default_generation_settings.n_ctx` |
| Ollama | `/api/ps`: `context_length` of a loaded model; `/api/show`: `num_ctx` that its file sets |
| LM Studio | `/api/v1/models`: `context_length` of a loaded instance |
| TGI | `/info`: `max_total_tokens`, else `max_input_tokens` |

A context that a model was trained for is not used: servers often load less of it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx

from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.proxies import http_client

_TIMEOUT = 3.0
"""Seconds until a server is taken for silent."""
_MOST_BYTES = 16_000_000
_LEAST, _MOST = 256, 1 << 28
"""Tokens; another number is no context."""
_NUM_CTX = re.compile(r"^\s*num_ctx\s+(\d{1,9})\s*$", re.MULTILINE)


async def served_context(api_base: str, model: str, api_key: str | None = None) -> int | None:
    """Tokens that `model` can take in at the OpenAI-compatible server `api_base`; None when the server does not tell.

    `model` is the name that the server knows. What answers may be any program: its words are bounded in size and time.
    """
    try:
        base = httpx.URL(api_base)
    except httpx.InvalidURL:
        return None
    headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    try:
        async with (
            asyncio.timeout(2 * _TIMEOUT),
            http_client(api_base, headers=headers, timeout=_TIMEOUT) as client,
        ):
            return await _Server(client, base).context(model)
    except (ModelError, TimeoutError, httpx.HTTPError, httpx.InvalidURL, ValueError, OSError):
        return None


class _Server:
    def __init__(self, client: httpx.AsyncClient, base: httpx.URL) -> None:
        self._client = client
        self._base = str(base).rstrip("/")
        self._root = self._base.removesuffix("/v1")

    async def context(self, model: str) -> int | None:
        listed = await self._ask(f"{self._base}/models")
        if found := _listed(listed, model):
            return found
        name = quote(model, safe="")
        props, loaded, instances, info = await asyncio.gather(
            self._ask(f"{self._root}/props?model={name}&autoload=false"),
            self._ask(f"{self._root}/api/ps"),
            self._ask(f"{self._root}/api/v1/models"),
            self._ask(f"{self._root}/info"),
        )
        if found := _number(_within(props, "default_generation_settings", "n_ctx")):
            return found
        if found := _of_loaded(loaded, model) or _of_instances(instances, model) or _of_info(info):
            return found
        if isinstance(_within(loaded, "models"), list):  # Ollama, which has not loaded the model yet
            return _set_by_file(await self._ask(f"{self._root}/api/show", {"model": model}))
        return None

    async def _ask(self, address: str, body: Mapping[str, Any] | None = None) -> object:
        """The JSON that answers; None for anything else."""
        method = "GET" if body is None else "POST"
        found = bytearray()
        try:
            async with self._client.stream(method, address, json=body) as response:
                if response.status_code != 200:
                    return None
                async for piece in response.aiter_raw():  # not decoded: what is small may unpack to much
                    found += piece
                    if len(found) > _MOST_BYTES:
                        return None
            return json.loads(found)
        except (httpx.HTTPError, ValueError, RecursionError):
            return None


def _listed(answer: object, model: str) -> int | None:
    """From the list of OpenAI's protocol."""
    entry = _entry(_within(answer, "data"), model, ("id",))
    return _number(entry.get("max_model_len")) or _number(entry.get("context_length"))


def _of_loaded(answer: object, model: str) -> int | None:
    """From Ollama's list of loaded models. A name without a tag is that of the newest."""
    names = (model, f"{model}:latest")
    entry = _entry(_within(answer, "models"), names, ("name", "model"), alone=False)
    return _number(entry.get("context_length"))


def _set_by_file(answer: object) -> int | None:
    """From the parameters of Ollama's description of a model."""
    parameters = _within(answer, "parameters")
    found = _NUM_CTX.findall(parameters[:100_000]) if isinstance(parameters, str) else []
    return _number(int(found[-1])) if found else None


def _of_instances(answer: object, model: str) -> int | None:
    """From LM Studio's list: the smallest context of the loaded instances of the model."""
    instances = [
        (entry.get("key"), one.get("id"), _number(_within(one, "config", "context_length")))
        for entry in _objects(_within(answer, "models"))
        for one in _objects(entry.get("loaded_instances"))
    ]
    named = [tokens for key, name, tokens in instances if model in (key, name) and tokens]
    every = [tokens for *_, tokens in instances if tokens]
    return min(named) if named else every[0] if len(every) == 1 else None


def _of_info(answer: object) -> int | None:
    """From TGI's description of the model that it serves: what prompt and reply may have together."""
    totals = (_within(answer, name) for name in ("max_total_tokens", "max_input_tokens", "max_input_length"))
    return next(filter(None, map(_number, totals)), None)


def _entry(
    listed: object, model: str | Iterable[str], keys: Iterable[str], alone: bool = True
) -> dict[str, Any]:
    """The entry of a model in a list, or the only one of the list with `alone`; an empty one when there is none."""
    entries = list(_objects(listed))
    names = (model,) if isinstance(model, str) else tuple(model)
    named = [entry for entry in entries if any(entry.get(key) in names for key in keys)]
    if not named and alone and len(entries) == 1:
        named = entries
    return named[0] if named else {}


def _objects(listed: object) -> Iterator[dict[str, Any]]:
    yield from (one for one in (listed if isinstance(listed, list) else ()) if isinstance(one, dict))


def _within(value: object, *names: str) -> object:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _number(value: object) -> int | None:
    """A number of tokens; None for anything that can be none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not _LEAST <= value <= _MOST:
        return None
    return int(value)
