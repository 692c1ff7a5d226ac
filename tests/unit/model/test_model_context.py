"""Context overflow in the words of the providers."""

import pytest

from llm_sandbox_nb.model.context_overflow import Overflow, find_overflow

SENTENCES = {
    "openai": (
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 130001 tokens. "
        "Please reduce the length of the messages.",
        Overflow(128000, 130001),
    ),
    "openai with completion": (
        "This model's maximum context length is 4097 tokens. However, you requested 4295 tokens (3245 in the messages, "
        "1050 in the completion). Please reduce the length of the messages or completion.",
        Overflow(4097, 3245),
    ),
    "openai with functions": (
        "This model's maximum context length is 16385 tokens. However, you requested 17000 tokens (900 in the "
        "messages, 100 in the functions, and 16000 in the completion).",
        Overflow(16385, 1000),
    ),
    "openai without numbers": (
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        Overflow(),
    ),
    "openai configured limit": (
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000 tokens. Please "
        "reduce the length of the messages.",
        Overflow(272000, 300000),
    ),
    "openai reply": (
        "max_tokens is too large: 65536. This model supports at most 16384 completion tokens, whereas you provided "
        "65536.",
        Overflow(completion_limit=16384),
    ),
    "anthropic prompt": (
        "prompt is too long: 208310 tokens > 200000 maximum",
        Overflow(200000, 208310),
    ),
    "anthropic both": (
        "input length and `max_tokens` exceed context limit: 189136 + 20000 > 204648, decrease input length or "
        "`max_tokens` and try again",
        Overflow(204648, 189136),
    ),
    "anthropic reply": (
        "max_tokens: 65536 > 8192, which is the maximum allowed number of output tokens for claude-3-5-sonnet",
        Overflow(completion_limit=8192),
    ),
    "vllm": (
        "'max_tokens' or 'max_completion_tokens' is too large: 16384. This model's maximum context length is 65536 "
        "tokens and your request has 52189 input tokens (16384 > 65536 - 52189). (parameter=max_tokens, value=16384)",
        Overflow(65536, 52189),
    ),
    "vllm older": (
        "This model's maximum context length is 16384 tokens. However, you requested 122946 tokens (112946 in the "
        "messages, 10000 in the completion). Please reduce the length of the messages or completion.",
        Overflow(16384, 112946),
    ),
    "vllm prompt only": (
        "This model's maximum context length is 32768 tokens. However, your request has 40000 input tokens. Please "
        "reduce the length of the input messages.",
        Overflow(32768, 40000),
    ),
    "vllm prompt alone, counted": (
        "You passed 102420 input tokens and requested 0 output tokens. However, the model's context length is only "
        "32768, resulting in a maximum input length of 32768. Please reduce the length of the input messages.",
        Overflow(32768, 102420),
    ),
    "vllm stops counting": (
        "You passed 98305 input tokens and requested 32768 output tokens. However, the model's context length is only "
        "131072 tokens, resulting in a maximum input length of 98304 tokens. Please reduce the length of the input "
        "prompt. (parameter=input_tokens, value=98305)",
        Overflow(131072, None),
    ),
    "vllm at least": (
        "This model's maximum context length is 51200 tokens. However, you requested 12054 output tokens and your "
        "prompt contains at least 39147 input tokens, for a total of at least 51201 tokens.",
        Overflow(51200, None),
    ),
    "vllm engine": (
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that "
        "`max_model_len` is no smaller than the number of text tokens.",
        Overflow(4096, 5000),
    ),
    "sglang input": (
        "The input (70000 tokens) is longer than the model's context length (65536 tokens).",
        Overflow(65536, 70000),
    ),
    "sglang total": (
        "Requested token count exceeds the model's maximum context length of 64000 tokens. You requested a total of "
        "71897 tokens: 7897 tokens from the input messages and 64000 tokens for the completion. Please reduce the "
        "number of tokens in the input messages or the completion to fit within the limit.",
        Overflow(64000, 7897),
    ),
    "sglang allowed": (
        "Input length (5000 tokens) exceeds the maximum allowed length (4096 tokens). Use a shorter input or enable "
        "--allow-auto-truncate.",
        Overflow(4096, 5000),
    ),
    "openrouter": (
        "This endpoint's maximum context length is 32768 tokens. However, you requested about 50000 tokens (29743 of "
        "text input, 20257 in the output).",
        Overflow(32768, 29743),
    ),
    "gemini": (
        "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
        Overflow(1048575, 1196265),
    ),
    "llama.cpp": (
        "request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it",
        Overflow(8192, 9000),
    ),
    "mistral": (
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        Overflow(32768, 40000),
    ),
    "xai": (
        "This model's maximum prompt length is 8192 but the request contains 9000 tokens.",
        Overflow(8192, 9000),
    ),
    "anthropic, the whole context": (
        "input length and max_tokens exceed maximum context length: 7000 + 2000 > 8192",
        Overflow(8192, 7000),
    ),
    "cerebras": (
        "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
        Overflow(8192, 9000),
    ),
    "bedrock": ("Input is too long for requested model.", Overflow()),
    "minimax": ("invalid params, context window exceeds limit", Overflow()),
    "vllm characters": (
        "You passed 90000 input characters and requested 500 output tokens. However, the model's context length is "
        "only 8192 tokens",
        Overflow(8192),
    ),
    "llama-cpp-python": ("Requested tokens (9000) exceed context window of 8192", Overflow(8192, 9000)),
    "llama.cpp, numbers in fields": (
        "the request exceeds the available context size. try increasing the context size or enable context shift",
        Overflow(),
    ),
    "llama.cpp without context shift": (
        "Input is too large to process. Either disable context shift or increase context length.",
        Overflow(),
    ),
    "ik_llama.cpp": ("context shift is disabled", Overflow()),
    "ollama batch": (
        "input (9000 tokens) is too large to process. increase the physical batch size",
        Overflow(None, 9000),
    ),
    "ollama": ("the input length exceeds the context length", Overflow()),
    "ollama truncation": ("input after truncation exceeds maximum context length", Overflow()),
    "lm studio": ("Context size has been exceeded.", Overflow()),
    "lm studio, the overflow": (
        "Trying to keep the first 9000 tokens when context the overflows. However, the model is loaded with context "
        "length of only 8192 tokens",
        Overflow(8192, 9000),
    ),
    "lm studio, initial prompt": (
        "The number of tokens to keep from the initial prompt is greater than the context length.",
        Overflow(),
    ),
    "lm studio, n_keep": ("Cannot truncate prompt with n_keep (9000) >= n_ctx (8192)", Overflow(8192, 9000)),
    "tgi total": (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8192. Given: 9000 `inputs` tokens and "
        "100 `max_new_tokens`",
        Overflow(8192, 9000),
    ),
    "tgi": (
        "Input validation error: `inputs` must have less than 8191 tokens. Given: 9000",
        Overflow(8191, 9000),
    ),
}

OTHERS = [
    "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested 70000. The "
    "input or output tokens must be reduced in order to run successfully.",
    "Rate limit reached for gpt-4 on tokens per minute. Limit: 10000 / min. Please try again in 6ms.",
    "This request would exceed your organization's rate limit of 80,000 input tokens per minute.",
    "Invalid 'temperature': decimal above maximum value.",
    "The model `gpt-9` does not exist.",
    "Incorrect API key provided.",
    "The server had an error while processing your request.",
    "max_tokens must be at least 1, got 0.",
]


@pytest.mark.parametrize(("sentence", "expected"), SENTENCES.values(), ids=SENTENCES)
def test_the_sentence_is_recognised_and_its_numbers_are_read(sentence: str, expected: Overflow) -> None:
    assert find_overflow(sentence) == expected


@pytest.mark.parametrize("sentence", OTHERS)
def test_other_sentences_are_no_overflow(sentence: str) -> None:
    assert find_overflow(sentence) is None


def test_words_that_nobody_knows_count_when_the_server_refused_the_request() -> None:
    said = "Sorry: 9001 tokens are more than a context of 8192 takes"
    assert find_overflow(said) is None
    assert find_overflow(said, refused=True) == Overflow(8192, None)
    assert find_overflow("a context without numbers of tokens", refused=True) is None
    assert find_overflow("Rate limit: 9000 tokens per minute, whatever the context", refused=True) is None
