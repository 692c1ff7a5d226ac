"""What a client carries from a question to its answer: signed, for one caller and request, used once."""

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

LIFETIME = 600.0
"""Seconds that a person has for an answer."""
_LONGEST = 2000


class RequestStateError(LLMSandboxError, ValueError):
    """The state was made up or changed, is of another request or caller, is too old, or was used before."""


class StateSigner:
    """Makes and checks states. Its key is this process's, so a restart makes all states invalid."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._key = secrets.token_bytes(32)
        self._clock = clock
        self._used: dict[str, float] = {}
        """Each state that was used, with the time from which it is too old anyway."""

    def sign(self, principal: str, request: Mapping[str, Any], about: str) -> str:
        """A state for `request` of `principal`; `about` is what the question was about."""
        payload = {
            "who": principal,
            "what": _digest(request),
            "about": about,
            "until": self._clock() + LIFETIME,
            "once": secrets.token_hex(8),
        }
        data = json.dumps(payload).encode()
        return base64.urlsafe_b64encode(self._mac(data) + data).decode("ascii")

    def check(self, state: object, principal: str, request: Mapping[str, Any]) -> str:
        """What the question was about. Raises RequestStateError."""
        if not isinstance(state, str) or len(state) > _LONGEST:
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
        self._used = {one: until for one, until in self._used.items() if until > now}
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
