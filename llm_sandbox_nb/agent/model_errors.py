"""Any failure of a request as one `ModelError`, with one sentence that says what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from llm_sandbox_nb.agent.model import ContextOverflowError, ModelError
from llm_sandbox_nb.agent.model_context import find_overflow
from llm_sandbox_nb.agent.model_failure import Failure, chain, examine, retry_after


def _words(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_UNREACHABLE = _words(
    r"connection refused|connect call failed|all connection attempts failed|cannot connect to host",
    r"name or service not known|nodename nor servname|temporary failure in name resolution|getaddrinfo",
    r"no route to host|network is unreachable|certificate verify failed",
    r"unsupported protocol|invalid url|not an? (?:absolute|valid) url|invalid port",
)
_CUT = _words(
    r"peer closed|incomplete|server disconnected|connection reset|broken pipe|payload is not completed",
    r"stream ended before",
)
_NO_KEY = _words(
    r"api_key client option must be set|missing (?:\w+ )?api key|no api[_ ]key|missing credentials",
    r"api key (?:is )?(?:required|missing)|didn't provide an api key|x-api-key header is required",
)
_BAD_KEY = _words(r"incorrect api key|invalid (?:x-)?api[- _]?key|authentication_error")
_QUOTA = _words(
    r"insufficient_quota|exceeded your current quota|credit balance is too low|payment required",
    r"insufficient (?:balance|credits|funds)|billing|spending limit",
)
_NO_MODEL = _words(
    r"model_not_found|model[^.]{0,80}(?:does not exist|not found|not supported)|no such model|unknown model"
)
_REFUSED = _words(r"(?:unsupported|unrecognized|unknown|invalid)[_ ](?:value|parameter|request argument)")
_PER_MINUTE = re.compile(r"Limit:? *(\d[\d,]*)[, ].*?Requested:? *(\d[\d,]*)", re.DOTALL)
_TIMEOUTS = frozenset(
    {"TimeoutError", "APITimeoutError", "Timeout", "TimeoutException", "ServerTimeoutError"}
)
_BROKEN = frozenset({"NetworkError", "RemoteProtocolError", "ClientError", "ConnectionError"})


@dataclass(frozen=True)
class Target:
    """What the request was for; used to say what to do."""

    model: str
    api_base: str | None = None
    has_key: bool = False
    key_names: tuple[str, ...] = ("OPENAI_API_KEY",)
    """Environment variables the provider's key is read from."""

    @property
    def where(self) -> str:
        """The server, in words, empty when it is the provider's own."""
        return f" at {self.api_base}" if self.api_base else ""

    @property
    def key_help(self) -> str:
        """How a key is given."""
        return f"set {' or '.join(self.key_names)} or pass --api_key (in a cell --api-key-env)"


def to_model_error(error: BaseException, target: Target) -> ModelError:
    """The `ModelError` for any exception that a request raised."""
    for part in chain(error):
        if isinstance(part, ModelError):
            return ModelError(str(part), kind=part.kind, retryable=part.retryable)
    failure = examine(error)
    for rule in _RULES:
        if found := rule(failure, target):
            return found
    return ModelError(f"{target.model}{target.where} failed: {failure.detail}.", kind="unknown")


def refused_setting(error: BaseException, names: frozenset[str]) -> str | None:
    """Which of the settings `names` the provider says it does not take, if that is what it says."""
    failure = examine(error)
    if failure.status not in (400, 422) or not _REFUSED.search(failure.text):
        return None
    if failure.parameter in names:
        return failure.parameter
    return next((name for name in sorted(names) if re.search(rf"['\"`]{name}['\"`]", failure.detail)), None)


def no_provider(model: str) -> ModelError:
    """The name says neither a provider nor is it known, and no address was given."""
    return ModelError(
        f"No provider is known for the model {model}: write provider/model, for example openai/{model}, "
        "or give the address of your server with --llm_base_url (in a cell --api-base).",
        kind="not_found",
    )


def broken_off(target: Target, detail: str = "the reply has no end") -> ModelError:
    """The connection ended before the reply did."""
    return ModelError(
        f"The connection to {target.model}{target.where} broke off ({detail}): try again.",
        kind="connection",
        retryable=True,
    )


def _connection(failure: Failure, target: Target) -> ModelError | None:
    if failure.status is not None:
        return None
    if failure.types & _TIMEOUTS and not _UNREACHABLE.search(failure.text):
        return _timeout(target)
    if _UNREACHABLE.search(failure.text) or (
        "ConnectError" in failure.types and not _CUT.search(failure.text)
    ):
        return ModelError(
            f"No model server answers{target.where or ' for ' + target.model} ({failure.detail}): "
            "check the address and that the server is running.",
            kind="unreachable",
            retryable=True,
        )
    if failure.types & _BROKEN or _CUT.search(failure.text):
        return broken_off(target, failure.detail)
    return None


def _timeout(target: Target) -> ModelError:
    return ModelError(
        f"{target.model}{target.where} did not answer in time: try again, or allow a longer timeout.",
        kind="timeout",
        retryable=True,
    )


def _setup(failure: Failure, target: Target) -> ModelError | None:
    if "UnsupportedParamsError" in failure.types:
        return ModelError(
            f"LiteLLM does not send this to {target.model}: {failure.detail}.", kind="bad_request"
        )
    if failure.types & {"ImportError", "ModuleNotFoundError"}:
        return ModelError(
            f"A package that {target.model} needs is not installed ({failure.detail}): install it.",
            kind="setup",
        )
    if re.search(
        r"unable to locate credentials|default credentials were not found", failure.text, re.IGNORECASE
    ):
        return ModelError(
            f"No credentials for {target.model} ({failure.detail}): set them as its provider describes.",
            kind="authentication",
        )
    return None


def _quota(failure: Failure, target: Target) -> ModelError | None:
    if failure.status not in (400, 402, 403, 429) or not _QUOTA.search(failure.text):
        return None
    return ModelError(
        f"The account has no quota for {target.model} ({failure.detail}): add credit or use another key.",
        kind="quota",
    )


def _rate_limit(failure: Failure, target: Target) -> ModelError | None:
    if failure.status != 429 and not (failure.status is None and "RateLimitError" in failure.types):
        return None
    match = _PER_MINUTE.search(failure.text)
    if match and (needed := _int(match[2])) > (allowed := _int(match[1])):
        return ModelError(
            f"One request needs {needed} tokens and the account may use {allowed} a minute with "
            f"{target.model}: lower the maximum tokens per call or ask for a higher limit.",
            kind="rate_limit",
        )
    return ModelError(
        f"{target.model} is rate limited ({failure.detail}): wait, or ask for a higher limit.",
        kind="rate_limit",
        retryable=True,
        retry_after=retry_after(failure.headers),
    )


def _int(text: str) -> int:
    return int(text.replace(",", ""))


def _overflow(failure: Failure, target: Target) -> ModelError | None:
    if failure.status not in (None, 400, 413, 422, 500):
        return None
    numbers = find_overflow(failure.text)
    if numbers is None:
        return None
    if numbers.completion_limit is not None:
        return ContextOverflowError(
            f"{target.model} writes at most {numbers.completion_limit} tokens in one reply: ask for no more.",
            completion_limit=numbers.completion_limit,
        )
    if numbers.context_limit is not None:
        facts = f"the {numbers.context_limit} tokens that {target.model} can hold"
    else:
        facts = f"the context of {target.model} ({failure.detail})"
    return ContextOverflowError(
        f"The conversation and the reply asked for do not fit {facts}: ask for fewer tokens per call, give a "
        "shorter task, or take a model with a longer context.",
        context_limit=numbers.context_limit,
        prompt_tokens=numbers.prompt_tokens,
        completion_limit=numbers.completion_limit,
    )


def _authentication(failure: Failure, target: Target) -> ModelError | None:
    refused = failure.status == 401 or _BAD_KEY.search(failure.text)
    if not target.has_key and (refused or failure.status == 403 or _NO_KEY.search(failure.text)):
        message = f"No API key: {target.key_help}."
    elif refused:
        message = f"The API key was refused{target.where} ({failure.detail}): {target.key_help}."
    elif failure.status == 403:
        message = (
            f"The key may not use {target.model}{target.where} ({failure.detail}): use another model or key."
        )
    else:
        return None
    return ModelError(message, kind="authentication")


def _policy(failure: Failure, target: Target) -> ModelError | None:
    if "ContentPolicyViolationError" not in failure.types:
        return None
    return ModelError(
        f"{target.model} declined by its content policy ({failure.detail}): rephrase the task.",
        kind="content_policy",
    )


def _not_found(failure: Failure, target: Target) -> ModelError | None:
    if failure.status != 404 and not (failure.status == 400 and _NO_MODEL.search(failure.text)):
        return None
    return ModelError(
        f"There is no model {target.model}{target.where} ({failure.detail}): check its name and the address.",
        kind="not_found",
    )


def _bad_request(failure: Failure, target: Target) -> ModelError | None:
    if failure.status is None or not 400 <= failure.status < 500 or failure.status in (408, 409, 425):
        return None
    return ModelError(
        f"{target.model}{target.where} refused the request: {failure.detail}.", kind="bad_request"
    )


def _server(failure: Failure, target: Target) -> ModelError | None:
    if failure.status == 408:
        return _timeout(target)
    if failure.status is None and not failure.types & {"APIError", "BaseLLMException"}:
        return None
    status = f" {failure.status}" if failure.status else ""
    return ModelError(
        f"The server of {target.model}{target.where} failed, error{status} ({failure.detail}): try later.",
        kind="server",
        retryable=True,
        retry_after=retry_after(failure.headers),
    )


_RULES: tuple[Callable[[Failure, Target], ModelError | None], ...] = (
    _setup, _connection, _quota, _rate_limit, _overflow, _authentication, _policy, _not_found, _bad_request,
    _server,
)  # fmt: skip
