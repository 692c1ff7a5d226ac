"""Detection of error messages about a context overflow, which is a conversation that is too long for the model.

The token counts in such a message are read too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple


class Wording(NamedTuple):
    """Words with which a server reports a context overflow."""

    pattern: str
    """Regular expression for these words, which does not match other errors."""
    source: str
    """Server that uses the words, and a report or a file that contains them."""
    example: str
    """Example of the error message."""


WORDINGS = (
    Wording(
        r"context_length_exceeded|maximum context (?:length|limit)", "OpenAI, vLLM; vllm#20409",
        "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (7000 in the messages, "
        "2000 in the completion).",
    ),
    Wording(
        r"model's (?:maximum )?context length is", "vLLM; AIDotNet/OpenCowork#82",
        "This model's maximum context length is 8192 tokens. However, you requested 4096 output tokens and your prompt "
        "contains at least 4097 input tokens",
    ),
    Wording(
        r"passed \d+ input tokens and requested", "vLLM, renderers/params.py",
        "You passed 8000 input tokens and requested 0 output tokens. However, the model's context length is only 8192 "
        "tokens",
    ),
    Wording(
        r"passed \d+ input characters", "vLLM, renderers/params.py",
        "You passed 90000 input characters and requested 500 output tokens. However, the model's context length is "
        "only 8192 tokens",
    ),
    Wording(
        r"maximum model length", "vLLM, in copies",
        "The decoder prompt (length 9001) is longer than the maximum model length of 8192.",
    ),
    Wording(
        r"exceeds the available context size", "llama.cpp#15780, with n_prompt_tokens and n_ctx as fields",
        "the request exceeds the available context size. try increasing the context size or enable context shift",
    ),
    Wording(
        r"context shift is disabled", "ikawrakow/ik_llama.cpp#2051", "context shift is disabled",
    ),
    Wording(
        r"either disable context shift or increase context length", "llama.cpp#9544",
        "Input is too large to process. Either disable context shift or increase context length.",
    ),
    Wording(r"context size has been exceeded", "LM Studio", "Context size has been exceeded."),
    Wording(
        r"request \(\d+ tokens\) exceeds the available context", "ollama, llm/llama_server_test.go",
        "request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it",
    ),
    Wording(
        r"input (?:\(\d+ tokens\) )?is too large to process", "ollama, llm/llama_server_test.go",
        "input (9000 tokens) is too large to process. increase the physical batch size",
    ),
    Wording(
        r"(?:longer than|exceeds) the (?:model's |available |maximum )*(?:context|allowed length)",
        "ollama, server/routes.go; sglang#4048", "the input length exceeds the context length",
    ),
    Wording(
        r"exceeds? maximum context", "ollama, server/routes.go",
        "input after truncation exceeds maximum context length",
    ),
    Wording(
        r"trying to keep the first \d+ tokens when context", "LM Studio; cline#3664",
        "Trying to keep the first 9000 tokens when context the overflows. However, the model is loaded with context "
        "length of only 8192 tokens",
    ),
    Wording(
        r"tokens to keep from the initial prompt is greater than the context length", "LM Studio; opencode#2259",
        "The number of tokens to keep from the initial prompt is greater than the context length.",
    ),
    Wording(
        r"cannot truncate prompt with n_keep", "LM Studio; opencode#11141",
        "Cannot truncate prompt with n_keep (9000) >= n_ctx (8192)",
    ),
    Wording(
        r"is longer than the model's context length", "SGLang; QwenLM/Qwen3#1321",
        "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
    ),
    Wording(
        r"exceeds the maximum allowed length", "sglang#4048",
        "Input length (9000 tokens) exceeds the maximum allowed length (8192 tokens).",
    ),
    Wording(
        r"`inputs` tokens \+ `max_new_tokens` must be <=", "TGI, router/src/validation.rs",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8192. Given: 9000 `inputs` tokens and "
        "100 `max_new_tokens`",
    ),
    Wording(
        r"`inputs` must have less than \d+ tokens", "TGI, router/src/validation.rs",
        "Input validation error: `inputs` must have less than 8191 tokens. Given: 9000",
    ),
    Wording(
        r"exceed context window of", "llama-cpp-python; rllm-team/rllm#55",
        "Requested tokens (9000) exceed context window of 8192",
    ),
    Wording(
        r"your messages resulted in \d+ tokens", "OpenAI; bytedance/deer-flow#310",
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens (8500 in "
        "the messages, 500 in the functions). Please reduce the length of the messages or functions.",
    ),
    Wording(
        r"prompt is too long", "Anthropic; anthropics/claude-code#12556",
        "prompt is too long: 9000 tokens > 8192 maximum",
    ),
    Wording(
        r"input length and [`']?max_tokens[`']? exceed", "Anthropic; openclaude, providerMaxTokensCap.test.ts",
        "input length and max_tokens exceed maximum context length: 7000 + 2000 > 8192",
    ),
    Wording(
        r"context window exceeds limit|context window", "MiniMax; OpenHands, llm/exceptions/classifier.py",
        "invalid params, context window exceeds limit",
    ),
    Wording(
        r"current length is \d+ while limit is \d+", "Cerebras; LiteLLM, exception_mapping_utils.py",
        "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
    ),
    Wording(
        r"maximum (?:prompt|input) length (?:is|of)|prompt \(total length", "xAI, vLLM",
        "This model's maximum prompt length is 8192 but the request contains 9000 tokens.",
    ),
    Wording(
        r"context (?:window|size) of this model", "OpenAI", "Your input exceeds the context window of this model.",
    ),
    Wording(
        r"exceeds? (?:the )?context (?:limit|window|length|size)", "Anthropic",
        "input length and `max_tokens` exceed context limit: 7000 + 2000 > 8192",
    ),
    Wording(
        r"input is too long", "Amazon Bedrock", "Input is too long for requested model.",
    ),
    Wording(
        r"input tokens exceed the configured limit", "OpenAI",
        "Input tokens exceed the configured limit of 8192 tokens. Your messages resulted in 9000 tokens.",
    ),
    Wording(
        r"input token count \(?\d+\)? exceeds", "Gemini",
        "The input token count (9000) exceeds the maximum number of tokens allowed (8192).",
    ),
    Wording(
        r"max_tokens: \d+ > \d+", "Anthropic",
        "max_tokens: 9000 > 8192, which is the maximum allowed number of output tokens",
    ),
    Wording(
        r"max_(?:completion_)?tokens['`\"]* is too large", "OpenAI, vLLM",
        "max_tokens is too large: 9000. This model supports at most 8192 completion tokens",
    ),
    Wording(
        r"supports at most \d+ completion tokens", "OpenAI", "This model supports at most 8192 completion tokens",
    ),
)  # fmt: skip
"""Known wordings. If `source` names a report or a file, the wording is from there. The others are from providers with
which this package was tested."""
_KNOWN_WORDING = re.compile("|".join(wording.pattern for wording in WORDINGS), re.IGNORECASE)
_LIKELY_OVERFLOW = re.compile(r"\A(?=.*\bcontext)(?=.*\btokens?\b)(?=.*\d)", re.IGNORECASE | re.DOTALL)
"""Matches a refusal with an unknown wording that is probably an overflow."""
# Messages about rate limits have numbers of tokens too: tokens per minute.
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

    `refused` is True if the server refused the request (status 400 or 413). In this case, an unknown wording counts
    too if it contains the words "context" and "tokens" and a number.
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
