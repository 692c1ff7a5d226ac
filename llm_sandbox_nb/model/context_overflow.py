"""Detection of error messages about a context overflow, and of the token counts in such a message.

In a context overflow, the conversation is too long for the model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_WORDINGS = (
    r"context_length_exceeded|maximum context (?:length|limit)",  # OpenAI, vLLM; vllm#20409
    r"model's (?:maximum )?context length is",  # vLLM; AIDotNet/OpenCowork#82
    r"passed \d+ input (?:characters|tokens and requested)",  # vLLM, renderers/params.py
    r"maximum model length",  # copies of vLLM
    # llama.cpp#15780; ollama, server/routes.go; QwenLM/Qwen3#1321; sglang#4048
    r"(?:longer than|exceeds) the (?:model's |available |maximum )*(?:context|allowed length)",
    r"context shift is disabled",  # ikawrakow/ik_llama.cpp#2051
    r"either disable context shift or increase context length",  # llama.cpp#9544
    r"context size has been exceeded",  # LM Studio
    r"input (?:\(\d+ tokens\) )?is too large to process",  # Ollama, llm/llama_server_test.go
    r"exceeds? maximum context",  # Ollama, server/routes.go
    r"trying to keep the first \d+ tokens when context",  # LM Studio; cline#3664
    r"tokens to keep from the initial prompt is greater than the context length",  # LM Studio; opencode#2259
    r"cannot truncate prompt with n_keep",  # LM Studio; opencode#11141
    r"`inputs` tokens \+ `max_new_tokens` must be <=",  # TGI, router/src/validation.rs
    r"`inputs` must have less than \d+ tokens",  # TGI, router/src/validation.rs
    r"your messages resulted in \d+ tokens",  # OpenAI; bytedance/deer-flow#310
    r"prompt is too long",  # Anthropic; anthropics/claude-code#12556
    r"input length and [`']?max_tokens[`']? exceed",  # Anthropic; openclaude, providerMaxTokensCap.test.ts
    r"context window",  # OpenAI; rllm-team/rllm#55; OpenHands, llm/exceptions/classifier.py
    r"context size of this model",  # OpenAI
    r"current length is \d+ while limit is \d+",  # Cerebras; LiteLLM, exception_mapping_utils.py
    r"maximum (?:prompt|input) length (?:is|of)|prompt \(total length",  # xAI, vLLM
    r"exceeds? (?:the )?context (?:limit|length|size)",  # Anthropic
    r"input is too long",  # Amazon Bedrock
    r"input tokens exceed the configured limit",  # OpenAI
    r"input token count \(?\d+\)? exceeds",  # Gemini
    r"max_tokens: \d+ > \d+",  # Anthropic
    r"max_(?:completion_)?tokens['`\"]* is too large",  # OpenAI, vLLM
    r"supports at most \d+ completion tokens",  # OpenAI
)
"""Regular expressions for the words of servers.

The comments name the servers that use these words, and issues or source files that contain them.
"""
_KNOWN_WORDING = re.compile("|".join(_WORDINGS), re.IGNORECASE)
_LIKELY_OVERFLOW = re.compile(r"\A(?=.*\bcontext)(?=.*\btokens?\b)(?=.*\d)", re.IGNORECASE | re.DOTALL)
"""Matches an error message that probably reports an overflow, but in words that are not in `_WORDINGS`."""
# Messages about rate limits do not report an overflow, but also contain token counts: tokens per minute.
_RATE_LIMIT = re.compile(r"tokens per (?:min|day|hour)|\bTP[MD]\b|rate[ _-]?limit|per minute", re.IGNORECASE)

_N = r"(\d[\d,_]{0,20})"
_LIMITS = (
    rf"\bn_ctx\b\W{{1,4}}{_N}",
    rf"while limit is {_N}",
    rf"context of {_N}",
    rf"must be <= {_N}",
    rf"must have less than {_N} tokens",
    rf"maximum context length: *{_N} *\+ *{_N} *> *(?P<limit>\d{{1,20}})",
    rf"context (?:length|limit|size|window)(?: is)?(?: of)?(?: only)? \(?{_N}",
    rf"context limit: *{_N} *\+ *{_N} *> *(?P<limit>\d{{1,20}})",
    rf"tokens? *> *{_N} maximum",
    rf"maximum (?:model|allowed|prompt) length(?: of| is)? \(?{_N}",
    rf"configured limit of {_N}",
    rf"maximum number of tokens allowed \(?{_N}",
    rf"\(context length {_N}\)",
    rf"model with {_N} maximum context",
    rf"available context size \(?{_N}",
)
_PROMPTS = (
    rf"\bn_prompt_tokens\b\W{{1,4}}{_N}",
    rf"[Cc]urrent length is {_N} while",
    rf"Given: {_N}",
    rf"n_keep \({_N}\)",
    rf"keep the first {_N} tokens",
    rf"maximum context length: *{_N} *\+",
    rf"Requested tokens \({_N}\)",
    rf"^input \({_N} tokens\)",
    rf"request contains {_N} tokens",
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
    rf"max_(?:completion_)?tokens[^.]{{0,200}}(?:less than or equal to|at most|<=) {_N}",
)
_LOWER_BOUND = re.compile(rf"prompt contains at least|passed {_N} input tokens and requested [1-9]")


@dataclass(frozen=True)
class Overflow:
    """Token counts in an overflow message. A count is None if the message does not contain the count."""

    context_limit: int | None = None
    prompt_tokens: int | None = None
    completion_limit: int | None = None
    """Maximum token count of one reply of this model."""


def find_overflow(text: str, *, refused: bool = False) -> Overflow | None:
    """Return the numbers in an error message about an overflow, or None for any other error.

    `refused` is True if the server refused the request (status 400 or 413). In this case, a message in unknown words
    counts too, if it contains a number, the word "context", and the word "token" or "tokens".
    """
    completion = _first(_COMPLETION_LIMITS, text)
    overflow = _KNOWN_WORDING.search(text) or completion or (refused and _LIKELY_OVERFLOW.search(text))
    if _RATE_LIMIT.search(text) or not overflow:
        return None
    prompt = _first(_PROMPTS, text)
    if prompt is not None and (extra := _first((_PROMPT_EXTRAS,), text)):
        prompt += extra
    if _LOWER_BOUND.search(text):
        prompt = None  # vLLM stops counting at the limit, so the prompt may be longer
    return Overflow(_first(_LIMITS, text), prompt, completion)


def _first(patterns: tuple[str, ...], text: str) -> int | None:
    for pattern in patterns:
        if match := re.search(pattern, text):
            number = match.groupdict().get("limit") or match[1]
            return int(re.sub(r"[,_]", "", number))
    return None
