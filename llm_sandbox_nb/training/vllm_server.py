"""Replies from a vLLM server. Each rollout sends its own requests. Requests and replies contain token ids.

The server is `vllm serve` with its completions route. Sampling bypasses TRL, because TRL's own call expects the same
number of prompts from every training process, and rollouts have different numbers of turns. TRL still sends the
weights. This module was tested with a small server that follows vLLM's documented protocol, but not yet on a GPU.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Self

import httpx

from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.training.generation import Generated
from llm_sandbox_nb.training.policy import Sampling

_ATTEMPTS = 4
_PAUSE_SECONDS = 0.5
"""Seconds before the second attempt. Each further pause is twice as long."""


class ServerGenerator:
    """Generator that asks a vLLM server. `async with` closes the connections.

    Args:
        server: address of the server, such as `http://127.0.0.1:8000`.
        sampling: settings for the sampling of replies.
        timeout: time limit for one reply in seconds.
    """

    def __init__(self, server: str, sampling: Sampling, timeout: float) -> None:
        self.server = server.rstrip("/").removesuffix("/v1")
        self.seconds = 0.0
        """Seconds in which at least one request was open."""
        self.requests = 0
        self._sampling = sampling
        self._client = httpx.AsyncClient(
            base_url=self.server, timeout=timeout, limits=httpx.Limits(max_connections=None), trust_env=False
        )
        self._model = ""
        self._known = asyncio.Lock()
        self._open, self._since = 0, 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def generate(self, prompt: Sequence[int], limit: int, order: int = 0) -> Generated:
        """Request a reply from the server; see `Generator`.

        Raises:
            ModelError: if the server does not answer, refuses the request, or returns no token ids.
        """
        if not self._open:
            self._since = time.monotonic()
        self._open += 1
        try:
            return await self._generate(list(prompt), limit)
        finally:
            self._open -= 1
            if not self._open:
                self.seconds += time.monotonic() - self._since

    async def _generate(self, prompt: list[int], limit: int) -> Generated:
        async with self._known:
            if not self._model:
                self._model = str((await self._ask("GET", "/v1/models", "data"))["id"])
        sampling = self._sampling
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": limit,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            # The server would take each missing setting from the model's generation_config.json.
            "top_k": sampling.top_k or -1,
            "min_p": 0.0,
            "repetition_penalty": sampling.repetition_penalty,
            "logprobs": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,
        }
        self.requests += 1
        choice = await self._ask("POST", "/v1/completions", "choices", body)
        ids = choice.get("token_ids")
        if not ids:
            raise self._error("returns no token ids: use a vLLM that knows `return_token_ids`", "server")
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
        if logprobs is None or len(logprobs) != len(ids):
            raise self._error("does not return a log-probability for each token", "server")
        return Generated(
            tuple(map(int, ids[:limit])), tuple(float(logprob or 0.0) for logprob in logprobs[:limit])
        )

    async def _ask(
        self, method: str, path: str, part: str, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Send a request, and return the first entry of the list `part` in the answer."""
        pause, reason = _PAUSE_SECONDS, ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(pause)
                pause *= 2
            try:
                answer = await self._client.request(method, path, json=body)
                if answer.status_code < 500 and answer.status_code != 429:
                    break
                reason = f"answered {answer.status_code}"
            except httpx.HTTPError as error:
                reason = f"cannot be reached ({error or type(error).__name__})"
        else:
            raise self._error(f"{reason}: start it, or correct generation.server", "unreachable")
        if answer.status_code >= 400:
            raise self._error(f"refused a request ({answer.text[:200]!r})", "bad_request")
        try:
            return dict(answer.json()[part][0])
        except (ValueError, LookupError, TypeError) as error:
            raise self._error("did not answer as vLLM does: check generation.server", "server") from error

    def _error(self, problem: str, kind: str) -> ModelError:
        return ModelError(f"The model server at {self.server} {problem}.", kind=kind)
