"""Lookup of the context limit with which a model server was started. Servers report this limit in different places:

| server | where |
|---|---|
| vLLM, SGLang, OpenRouter | `/v1/models`: `max_model_len`, `context_length` |
| llama.cpp | `/props`: `default_generation_settings.n_ctx` |
| Ollama | `/api/ps`: `context_length` of a loaded model; `/api/show`: `num_ctx` that the model's file sets |
| LM Studio | `/api/v1/models`: `context_length` of a loaded instance |
| TGI | `/info`: `max_total_tokens`, else `max_input_tokens` |

The context length that a model was trained for is not used, because servers often load a smaller context.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx

from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.proxies import http_client
from llm_sandbox_nb.model.server_lookup import json_answer

_TIMEOUT = 3.0
"""Seconds after which a request is given up if the server does not answer."""
_MAX_ANSWER_BYTES = 16_000_000
_MIN_CONTEXT_TOKENS, _MAX_CONTEXT_TOKENS = 256, 1 << 28
"""Smallest and largest plausible context limit. Other numbers are ignored."""
_NUM_CTX = re.compile(r"^[ \t]*num_ctx[ \t]+(\d{1,9})[ \t\r]*$", re.MULTILINE)


async def served_context(api_base: str, model: str, api_key: str | None = None) -> int | None:
    """Return the context limit of `model` at an OpenAI-compatible server, or None if the server reports no limit.

    `model` is the name that the server knows. Any program may answer, so the size and time of answers are limited.
    """
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        async with (
            asyncio.timeout(2 * _TIMEOUT),
            http_client(api_base, headers=headers, timeout=_TIMEOUT) as client,
        ):
            return await _Server(client, httpx.URL(api_base)).context(model)
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

    async def _ask(self, address: str, body: Mapping[str, str] | None = None) -> object:
        return await json_answer(self._client, address, _MAX_ANSWER_BYTES, body=body)


def _listed(answer: object, model: str) -> int | None:
    """Read the context limit from a list of models in OpenAI's form."""
    entry = _entry(_within(answer, "data"), model, ("id",))
    return _number(entry.get("max_model_len")) or _number(entry.get("context_length"))


def _of_loaded(answer: object, model: str) -> int | None:
    """Read the context limit from Ollama's list of loaded models. A name without a tag means `:latest`."""
    names = (model, f"{model}:latest")
    entry = _entry(_within(answer, "models"), names, ("name", "model"), alone=False)
    return _number(entry.get("context_length"))


def _set_by_file(answer: object) -> int | None:
    """Read the context limit from the parameters in Ollama's description of a model."""
    parameters = _within(answer, "parameters")
    found = _NUM_CTX.findall(parameters[:100_000]) if isinstance(parameters, str) else []
    return _number(int(found[-1])) if found else None


def _of_instances(answer: object, model: str) -> int | None:
    """Read the smallest context limit of the model's loaded instances from LM Studio's list.

    If no instance has the model's name and only one instance is loaded, this instance counts as the model's.
    """
    instances = [
        (entry.get("key"), instance.get("id"), _number(_within(instance, "config", "context_length")))
        for entry in _objects(_within(answer, "models"))
        for instance in _objects(entry.get("loaded_instances"))
    ]
    named = [tokens for key, name, tokens in instances if model in (key, name) and tokens]
    every = [tokens for *_, tokens in instances if tokens]
    return min(named) if named else every[0] if len(every) == 1 else None


def _of_info(answer: object) -> int | None:
    """Read the limit of prompt and reply together from TGI's description of its model."""
    totals = (_within(answer, name) for name in ("max_total_tokens", "max_input_tokens", "max_input_length"))
    return next(filter(None, map(_number, totals)), None)


def _entry(
    listed: object, model: str | Iterable[str], keys: Iterable[str], alone: bool = True
) -> dict[str, Any]:
    """Return the entry of a model in a list, or an empty dictionary if there is no such entry.

    `keys` are the fields of an entry that may contain the model's name. With `alone`, the only entry of a list is
    returned even if its name differs.
    """
    entries = list(_objects(listed))
    names = (model,) if isinstance(model, str) else tuple(model)
    named = [entry for entry in entries if any(entry.get(key) in names for key in keys)]
    if not named and alone and len(entries) == 1:
        named = entries
    return named[0] if named else {}


def _objects(listed: object) -> Iterator[dict[str, Any]]:
    yield from (entry for entry in (listed if isinstance(listed, list) else ()) if isinstance(entry, dict))


def _within(value: object, *names: str) -> object:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _number(value: object) -> int | None:
    """Return a plausible token count, or None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if _MIN_CONTEXT_TOKENS <= value <= _MAX_CONTEXT_TOKENS else None
