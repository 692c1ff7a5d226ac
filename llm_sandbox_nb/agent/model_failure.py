"""What an exception of LiteLLM, OpenAI's client, httpx or aiohttp says: status, headers, words.

LiteLLM maps errors by their words, and gets some wrong. The status, headers and body of the provider's own
answer are still there further down the chain of exceptions, and are believed first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

_LONGEST_DETAIL = 600
_SAID = ("message", "detail", "code", "type")


@dataclass(frozen=True)
class Failure:
    """What went wrong, in the provider's terms."""

    status: int | None
    headers: Mapping[str, str]
    text: str
    """What the provider said, with its codes; without an answer all that the exceptions say."""
    detail: str
    """The provider's own sentence, for the person."""
    types: frozenset[str]
    """Names of all exception classes in the chain, bases included."""
    parameter: str | None = None
    """The parameter the provider complains about."""


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """The exception and all it came from, outermost first."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        part = waiting.pop(0)
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        waiting += [getattr(part, "original_exception", None), part.__cause__, part.__context__]


def examine(error: BaseException) -> Failure:
    """What the whole chain of `error` says."""
    parts = list(chain(error))
    response = next((found for part in reversed(parts) if (found := _answer(part)) is not None), None)
    body = next((found for part in reversed(parts) if (found := _body(part))), {})
    texts = _texts(parts)
    return Failure(
        status=_status(parts, body) if response is None else int(response.status_code),
        headers={} if response is None else response.headers,
        text=" | ".join([str(body[key]) for key in _SAID if body.get(key)] or texts),
        detail=tidy(str(body.get("message") or body.get("detail") or _innermost(parts) or texts[-1])),
        types=frozenset(cls.__name__ for part in parts for cls in type(part).__mro__),
        parameter=body.get("param"),
    )


def _texts(parts: list[BaseException]) -> list[str]:
    """What was said, without LiteLLM's retelling of it, which brings tracebacks and links along."""
    told = [part for part in parts if not type(part).__module__.startswith("litellm.exceptions")]
    texts = [str(part) for part in told if str(part)] or [str(part) for part in parts if str(part)]
    return texts or [type(parts[-1]).__name__]


def _innermost(parts: list[BaseException]) -> str:
    """What the network said, when it was the network."""
    told = [str(part) for part in parts if isinstance(part, OSError | httpx.TransportError) and str(part)]
    return told[-1] if told else ""


def _answer(error: BaseException) -> Any:
    """The provider's own answer, when the exception carries it; LiteLLM makes one up where it has none."""
    response = getattr(error, "response", None)
    if type(error).__module__.startswith("litellm.") or not hasattr(response, "status_code"):
        return None
    return response


def _body(error: BaseException) -> dict[str, Any]:
    """The error object of the provider's answer, as far as the exception knows it."""
    for source in (getattr(error, "body", None), getattr(error, "message", None)):
        found = _as_object(source)
        found = found.get("error", found)
        if isinstance(found, dict) and ("message" in found or "detail" in found):
            return found
    return {}


def _as_object(source: object) -> dict[str, Any]:
    if isinstance(source, bytes):
        source = source.decode(errors="replace")
    if isinstance(source, str) and source.lstrip().startswith("{"):
        try:
            source = json.loads(source)
        except ValueError:
            return {}
    return source if isinstance(source, dict) else {}


def _status(parts: list[BaseException], body: Mapping[str, Any]) -> int | None:
    """The status when there is no answer; LiteLLM makes up a 500 for a connection that failed."""
    own = [part for part in reversed(parts) if not type(part).__module__.startswith("litellm.exceptions")]
    if any(isinstance(part, OSError | httpx.TransportError) for part in own):
        return None
    codes = [getattr(part, "status_code", None) for part in own] + [body.get("code")]
    return next((code for code in codes if isinstance(code, int) and 400 <= code < 600), None)


def tidy(text: str) -> str:
    """The sentence on one line, without the names of exception classes in front, and not too long."""
    text = " ".join(text.split())
    text = re.sub(r"^(?:(?:litellm\.)?\w*(?:Error|Exception|Timeout)(?: -|:) *)+", "", text).rstrip(". ")
    return text if len(text) <= _LONGEST_DETAIL else text[:_LONGEST_DETAIL] + "…"


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds the answer asks to wait: `retry-after-ms`, or `retry-after` as seconds or an HTTP date."""
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    if (seconds := _number(value)) is not None or value is None:
        return seconds
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())


def _number(value: str | None) -> float | None:
    try:
        number = float(value) if value is not None else None
    except ValueError:
        return None
    return number if number is not None and 0 <= number < float("inf") else None
