"""Context overflow, as the providers put it in words: is it one, and which numbers does the sentence tell?"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SIGNS = re.compile(
    "|".join(
        (
            r"context_length_exceeded",
            r"maximum context (?:length|limit)",
            r"maximum model length",
            r"(?:longer than|exceeds) the (?:model's |available |maximum )*(?:context|allowed length)",
            r"model's (?:maximum )?context length is",
            r"maximum (?:prompt|input) length (?:is|of)",
            r"context (?:window|size) of this model",
            r"context window",
            r"exceeds? (?:the )?context (?:limit|window|length|size)",
            r"prompt is too long",
            r"prompt \(total length",
            r"input is too long",
            r"input tokens exceed the configured limit",
            r"input token count \(?\d+\)? exceeds",
            r"max_tokens: \d+ > \d+",
            r"max_(?:completion_)?tokens['`\"]* is too large",
            r"supports at most \d+ completion tokens",
        )
    ),
    re.IGNORECASE,
)
# Rate limits talk about tokens too: tokens per minute, requested so and so many.
_RATE = re.compile(r"tokens per (?:min|day|hour)|\bTP[MD]\b|rate[ _-]?limit|per minute", re.IGNORECASE)

_N = r"(\d[\d,_]*)"
_LIMITS = (
    rf"context (?:length|limit|size|window)(?: is)?(?: only)?(?: of)? \(?{_N}",
    rf"context limit: *{_N} *\+ *{_N} *> *(?P<limit>\d+)",
    rf"tokens? *> *{_N} maximum",
    rf"maximum (?:model|allowed|prompt) length(?: of| is)? \(?{_N}",
    rf"configured limit of {_N}",
    rf"maximum number of tokens allowed \(?{_N}",
    rf"\(context length {_N}\)",
    rf"model with {_N} maximum context",
    rf"available context size \(?{_N}",
)
_PROMPTS = (
    rf"{_N} (?:tokens )?(?:in the messages|from the input messages|of text input|in your prompt)",
    rf"request has {_N} input tokens",
    rf"messages resulted in {_N} tokens",
    rf"prompt contains at least {_N} input tokens",
    rf"passed {_N} input tokens",
    rf"context limit: *{_N} *\+",
    rf"prompt is too long: {_N} tokens",
    rf"[Tt]he input \({_N} tokens\)",
    rf"Input length \(?{_N}",
    rf"prompt \((?:total )?length {_N}\)",
    rf"input token count \(?{_N}",
    rf"Prompt contains {_N} tokens",
    rf"request \({_N} tokens\) exceeds",
)
_PROMPT_EXTRAS = rf"{_N} in the functions"
_COMPLETION_LIMITS = (
    rf"supports at most {_N} completion tokens",
    rf"max_tokens: \d+ > {_N}",
    rf"max_(?:completion_)?tokens[^.]*(?:less than or equal to|at most|<=) {_N}",
)
_LOWER_BOUND = re.compile(rf"prompt contains at least|passed {_N} input tokens and requested [1-9]")


@dataclass(frozen=True)
class Overflow:
    """The numbers of an overflow message, each None when the sentence does not tell it. In tokens."""

    context_limit: int | None = None
    prompt_tokens: int | None = None
    completion_limit: int | None = None
    """Most tokens that one reply of this model may have."""


def find_overflow(text: str) -> Overflow | None:
    """What an error message tells about an overflow; None when it is about something else."""
    completion = _first(_COMPLETION_LIMITS, text)
    if _RATE.search(text) or not (_SIGNS.search(text) or completion):
        return None
    prompt = _first(_PROMPTS, text)
    if prompt is not None and (extra := _first((_PROMPT_EXTRAS,), text)):
        prompt += extra
    if _LOWER_BOUND.search(text):
        prompt = None  # vLLM stops counting at the limit, the real prompt may be longer
    return Overflow(_first(_LIMITS, text), prompt, completion)


def _first(patterns: tuple[str, ...], text: str) -> int | None:
    for pattern in patterns:
        if match := re.search(pattern, text):
            number = match.groupdict().get("limit") or match[1]
            return int(re.sub(r"[,_]", "", number))
    return None
