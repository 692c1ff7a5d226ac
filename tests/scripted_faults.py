"""What a model server does instead of answering, for `ScriptedServer.fail_next`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any


@dataclass(frozen=True)
class Fault:
    """What happens in place of a reply, or to it."""

    status: int = 200
    message: str = ""
    type: str = "invalid_request_error"
    code: str | int | None = None
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] | None = None
    """The whole error body, when it is not of OpenAI's form."""
    delay: float = 0.0
    """Seconds of silence before anything is sent."""
    pieces: int | None = None
    """With status 200: pieces sent before it breaks."""
    how: str = "drop"
    """`drop` (connection reset), `cut` (the stream ends early, politely), `error` (one in the stream)."""


def rate_limited(retry_after: float | str | None = None, message: str = "Rate limit reached.") -> Fault:
    """429; `retry_after` in seconds or as an HTTP date."""
    value = f"{retry_after:g}" if isinstance(retry_after, int | float) else retry_after
    headers = {} if value is None else {"Retry-After": value}
    return Fault(429, message, "requests", "rate_limit_exceeded", headers=headers)


def http_date(seconds: float) -> str:
    """An HTTP date that many seconds from now."""
    return formatdate(time.time() + seconds, usegmt=True)


TOKENS_PER_MINUTE = Fault(
    429,
    "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested "
    "70000. The input or output tokens must be reduced in order to run successfully.",
    "tokens",
    "rate_limit_exceeded",
)
QUOTA = Fault(
    429,
    "You exceeded your current quota, please check your plan and billing details.",
    "insufficient_quota",
    "insufficient_quota",
)
UNAUTHORIZED = Fault(401, "Incorrect API key provided: wrong.", code="invalid_api_key")
FORBIDDEN = Fault(403, "Project does not have access to model.", code="model_not_found")
NOT_FOUND = Fault(404, "The model `nope` does not exist or you lack access to it.", code="model_not_found")
SERVER_ERROR = Fault(500, "The server had an error while processing your request.", "server_error")
OVERLOADED = Fault(503, "The engine is currently overloaded, please try again later.", "server_error")
TEMPERATURE_REFUSED = Fault(
    400,
    "Unsupported value: 'temperature' does not support 0.3 with this model. Only the default (1) value is "
    "supported.",
    code="unsupported_value",
    param="temperature",
)
DROP_AT_ONCE = Fault(pieces=0)

OVERFLOW_SENTENCES = {
    "openai": "This model's maximum context length is {limit} tokens. However, you requested {total} tokens "
    "({prompt} in the messages, {asked} in the completion). Please reduce the length of the messages or "
    "completion.",
    "anthropic": "input length and `max_tokens` exceed context limit: {prompt} + {asked} > {limit}, decrease "
    "input length or `max_tokens` and try again",
    "vllm": "'max_tokens' or 'max_completion_tokens' is too large: {asked}. This model's maximum context "
    "length is {limit} tokens and your request has {prompt} input tokens ({asked} > {limit} - {prompt}). "
    "(parameter=max_tokens, value={asked})",
    "sglang": "Requested token count exceeds the model's maximum context length of {limit} tokens. You "
    "requested a total of {total} tokens: {prompt} tokens from the input messages and {asked} tokens for the "
    "completion. Please reduce the number of tokens in the input messages or the completion to fit within "
    "the limit.",
}


def overflow(vendor: str, limit: int, prompt: int, asked: int) -> Fault:
    """400: the context does not hold it, in the vendor's words and form."""
    message = OVERFLOW_SENTENCES[vendor].format(limit=limit, prompt=prompt, asked=asked, total=prompt + asked)
    if vendor == "anthropic":
        error = {"type": "invalid_request_error", "message": message}
        return Fault(400, message, body={"type": "error", "error": error, "request_id": "req_1"})
    if vendor == "sglang":
        return Fault(400, body={"object": "error", "message": message, "type": "BadRequest", "code": 400})
    if vendor == "vllm":
        return Fault(400, message, "BadRequestError", 400, "max_tokens")
    return Fault(400, message, code="context_length_exceeded", param="messages")
