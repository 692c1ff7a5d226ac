"""Signed states. The server sends a state with a question, and the client returns it with the person's answer.

A state is valid only once, for one caller and one request.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from llm_sandbox_nb.errors import LLMSandboxError

LIFETIME_SECONDS = 600.0
"""Seconds for which a state is valid. The person must answer the question in this time."""
_MAX_STATE_CHARACTERS = 2000


class RequestStateError(LLMSandboxError, ValueError):
    """Error for a state that is forged, expired, already used, or made for another request or caller."""


class StateSigner:
    """Signer that makes and checks states. The key is only in memory, so a restart invalidates all states."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._key = secrets.token_bytes(32)
        self._clock = clock
        self._used: dict[str, float] = {}
        """Ids of used states, with the time at which each expires."""

    def sign(self, principal: str, request: Mapping[str, Any], about: str) -> str:
        """Return a state for `request` of the caller `principal`. `about` is the subject of the question."""
        payload = {
            "who": principal,
            "what": _digest(request),
            "about": about,
            "until": self._clock() + LIFETIME_SECONDS,
            "once": secrets.token_hex(8),
        }
        data = json.dumps(payload).encode()
        return base64.urlsafe_b64encode(self._mac(data) + data).decode("ascii")

    def check(self, state: object, principal: str, request: Mapping[str, Any]) -> str:
        """Return the subject of the question, and mark the state as used.

        Raises:
            RequestStateError: if the state is not valid, or not for this caller and request.
        """
        if not isinstance(state, str) or len(state) > _MAX_STATE_CHARACTERS:
            raise RequestStateError
        try:
            raw = base64.b64decode(state.encode("ascii"), altchars=b"-_", validate=True)
        except ValueError:
            raise RequestStateError from None
        mac, data = raw[:32], raw[32:]
        if not hmac.compare_digest(mac, self._mac(data)):
            raise RequestStateError
        payload = json.loads(data)
        now = self._clock()
        self._used = {nonce: until for nonce, until in self._used.items() if until > now}
        same = payload["who"] == principal and payload["what"] == _digest(request)
        if not same or payload["until"] <= now or payload["once"] in self._used:
            raise RequestStateError
        self._used[payload["once"]] = payload["until"]
        about: str = payload["about"]
        return about

    def _mac(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, "sha256")


def _digest(request: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
