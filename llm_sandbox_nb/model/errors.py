"""Any failure of a request as one `ModelError`, with one sentence that says what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from llm_sandbox_nb.model.context_overflow import find_overflow
from llm_sandbox_nb.model.contract import ContextOverflowError, ModelError


def _pattern(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_UNREACHABLE = _pattern(
    r"connection refused|connect call failed|all connection attempts failed|cannot connect to host",
    r"name or service not known|nodename nor servname|temporary failure in name resolution|getaddrinfo",
    r"no route to host|network is unreachable|certificate verify failed",
    r"unsupported protocol|invalid url|not an? (?:absolute|valid) url|invalid port",
)
_CUT = _pattern(
    r"peer closed|incomplete|server disconnected|connection reset|broken pipe|payload is not completed",
    r"stream ended before",
)
_NO_KEY = _pattern(
    r"api_key client option must be set|missing (?:\w+ )?api key|no api[_ ]key|missing credentials",
    r"api key (?:is )?(?:required|missing)|didn't provide an api key|x-api-key header is required",
)
_BAD_KEY = _pattern(r"incorrect api key|invalid (?:x-)?api[- _]?key|authentication_error")
_QUOTA = _pattern(
    r"insufficient_quota|exceeded your current quota|credit balance is too low|payment required",
    r"insufficient (?:balance|credits|funds)|billing|spending limit",
)
_NO_MODEL = _pattern(
    r"model_not_found|model[^.]{0,80}(?:does not exist|not found|not supported)|no such model|unknown model"
)
_REFUSED = _pattern(
    r"(?:unsupported|unrecognized|unknown|invalid)[_ ](?:value|parameter|request argument|argument|field|property)",
    r"extra_forbidden|extra (?:inputs|fields) (?:are )?not permitted|was unexpected",
    r"(?:is|are) (?:not (?:supported|allowed|permitted|a valid)|unsupported)|does not support|^not supported",
)
_TOOLS = _pattern(
    r"does(?: not|n't) support (?:the )?(?:tools?\b|tool[ _-]?(?:use|call)|function[ _-]?call)",
    r"\b(?:tools?|tool[ _-]?(?:use|calls?|calling|choice)|functions?|function[ _-]?call(?:s|ing)?)[`'\"]*"
    r" (?:param\w* )?(?:is|are) (?:not (?:supported|enabled|allowed|available|implemented)|unsupported|disabled)",
    r"tool choice requires --|tools param requires|no endpoints found that support tool use",
    r"only user(?:,| and) (?:system and )?assistant roles|'user',? (?:and|or) 'assistant' roles",
    r"role:? [`'\"]?tool\b[^.]{0,40}(?:not|unknown|invalid|unsupported)",
    r"(?:unknown|unexpected|invalid|unsupported|unrecognized)(?: message)? role:? *[`'\"]?tool\b",
    r"(?:tool|function) (?:role|message)s?[^.]{0,30} not (?:supported|allowed)|'tool' found using 'role'",
    r"role[^.]{0,40}(?:should|must) be (?:one of )?(?:'system', )?'user'(?:,)? (?:and|or) 'assistant'",
)
"""The server, or the chat template of its model, takes no tools or no messages with their results."""
_TEMPLATE = _pattern(r"jinja|chat[ _]template|template error|raise_exception")
"""A chat template refused the messages: the same messages never pass, whatever the status."""
_LOADING = _pattern(
    r"loading (?:the )?model|model (?:is|was) (?:still |currently )?(?:being )?load|(?:still|currently) loading",
    r"is loading|is (?:currently |still )?(?:starting|initiali[sz]ing|warming)|warming up",
    r"not (?:yet )?(?:ready|loaded yet)",
)
_NOT_LOADED = _pattern(
    r"(?:error|fail\w*|unable|could not|cannot)[^.]{0,40}\bload", r"out of memory|insufficient memory"
)
"""Loading has failed: waiting does not help."""
_WRONG_PATH = _pattern(
    r"unexpected endpoint|404 page not found|invalid url \(|cannot post|no route matches|unknown request url",
)
"""There is a server, and it has nothing at the path; LM Studio says so with status 200."""
_UNEXPECTED = _pattern(r"unexpected keyword argument")
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
    answered: bool = False
    """Whether the server has answered before, so that a silence is taken for a restart."""

    @property
    def where(self) -> str:
        """The server, in words, empty when it is the provider's own."""
        return f" at {self.api_base}" if self.api_base else ""

    @property
    def key_help(self) -> str:
        """How a key is given."""
        return (
            f"set {' or '.join(self.key_names)} or pass --api_key (in a cell: %sandbox key or --api-key-env)"
        )


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
    refused = _REFUSED if failure.status in (400, 422) else _UNEXPECTED if failure.status == 500 else None
    if not refused or not refused.search(failure.text) or find_overflow(failure.text):
        return None
    if (parameter := (failure.parameter or "").partition(".")[0]) in names:
        return parameter
    # The first one: some servers list what they take after it.
    found = re.search(rf"(?<![\w-])({'|'.join(sorted(names))})(?![\w-])", failure.text)
    return found[1] if found else None


def no_provider(model: str) -> ModelError:
    """The name says neither a provider nor is it known, and no address was given."""
    return ModelError(
        f"No provider is known for the model {model}: write provider/model, for example openai/{model}, "
        "or give the address of your server with --api-base.",
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
        if target.answered and "certificate" not in failure.text:
            return _loading_error(f"does not answer now ({failure.detail})", target)
        return ModelError(
            f"No model server answers{target.where or ' for ' + target.model} ({failure.detail}): "
            "check the address and that the server is running.",
            kind="unreachable",
            retryable=True,
        )
    if failure.types & _BROKEN or _CUT.search(failure.text):
        return broken_off(target, failure.detail)
    return None


def _loading(failure: Failure, target: Target) -> ModelError | None:
    """The server loads its model, or is started again: it will answer later."""
    loads = _LOADING.search(failure.text) and not _NOT_LOADED.search(failure.text)
    if failure.status in (None, 425, 500, 503) and loads:
        return _loading_error(f"is not ready ({failure.detail})", target, retry_after(failure.headers))
    if failure.status in (502, 503, 504) and target.answered and target.api_base:
        return _loading_error(f"does not answer now, error {failure.status} ({failure.detail})", target)
    return None


WAITED_FOR = "it is waited for"
"""How the sentence about a server ends that is not ready."""


def _loading_error(state: str, target: Target, after: float | None = None) -> ModelError:
    return ModelError(
        f"The server of {target.model}{target.where} {state}: {WAITED_FOR}.",
        kind="loading",
        retryable=True,
        retry_after=after,
    )


def _tools(failure: Failure, target: Target) -> ModelError | None:
    if failure.status is None or failure.status < 400 or not _TOOLS.search(failure.text):
        return None
    return no_tools(target, failure.detail)


def no_tools(target: Target, detail: str) -> ModelError:
    """The server takes no tools, or no messages with the results of calls."""
    return ModelError(
        f"{target.model}{target.where} takes no tools ({detail}): start its server with a tool parser, or let the "
        "model write its calls as text.",
        kind="tools",
    )


def _timeout(target: Target) -> ModelError:
    return ModelError(
        f"{target.model}{target.where} did not answer in time: try again, or allow a longer silence with "
        "--model-timeout.",
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
    numbers = find_overflow(failure.text, refused=failure.status in (400, 413))
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
    if failure.status not in (404, 405) and not (
        (failure.status == 400 and _NO_MODEL.search(failure.text))
        or (failure.status is None and _WRONG_PATH.search(failure.text))
    ):
        return None
    return ModelError(
        f"There is no model {target.model}{target.where} ({failure.detail}): check its name and the address.",
        kind="not_found",
    )


def _bad_request(failure: Failure, target: Target) -> ModelError | None:
    if failure.status is None or failure.status in (408, 409, 425):
        return None
    if failure.status >= 500 and not _TEMPLATE.search(failure.text):
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
    _setup, _connection, _loading, _quota, _rate_limit, _overflow, _tools, _authentication, _policy, _not_found,
    _bad_request, _server,
)  # fmt: skip


# --- what the exceptions of LiteLLM, OpenAI's client, httpx and aiohttp say ---
# LiteLLM maps errors by their text, and gets some wrong. The status, headers and body of the provider's own answer are
# further down the chain of exceptions, and count first.

_LONGEST_DETAIL = 600
_SAID = ("message", "code", "type")


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
    sources = [source for part in reversed(parts) for source in _sources(part)]
    body = next((found for source in sources if (found := error_object(source))), {})
    bodies: list[Any] = [getattr(part, "body", None) for part in parts]
    plain = next((said for said in bodies if isinstance(said, str)), "")
    texts = [*_texts(parts), *filter(None, [plain])]
    network = [str(part) for part in parts if isinstance(part, OSError | httpx.TransportError) and str(part)]
    detail = body.get("message") or plain or (network or texts)[-1]
    return Failure(
        status=_status(parts, body) if response is None else int(response.status_code),
        headers={} if response is None else response.headers,
        text=" | ".join([str(body[key]) for key in _SAID if body.get(key)] or texts) + _numbers(body),
        detail=tidy(str(detail)),
        types=frozenset(cls.__name__ for part in parts for cls in type(part).__mro__),
        parameter=param if isinstance(param := body.get("param"), str) else None,
    )


def _texts(parts: list[BaseException]) -> list[str]:
    """What was said, without LiteLLM's retelling of it, which brings tracebacks and links along."""
    told = [part for part in parts if not type(part).__module__.startswith("litellm.exceptions")]
    texts = [str(part) for part in told if str(part)] or [str(part) for part in parts if str(part)]
    return texts or [type(parts[-1]).__name__]


def _answer(error: BaseException) -> Any:
    """The provider's own answer, when the exception carries it; LiteLLM makes one up where it has none."""
    response = getattr(error, "response", None)
    if type(error).__module__.startswith("litellm.") or not hasattr(response, "status_code"):
        return None
    return response


def _sources(error: BaseException) -> Iterator[object]:
    """Where an exception may keep the provider's answer."""
    yield getattr(error, "body", None)
    yield getattr(error, "message", None)
    if (response := _answer(error)) is not None:
        try:
            yield response.text
        except (AttributeError, httpx.StreamError, UnicodeError):  # it was not read
            return


_INSIDE = ("error", "errors", "detail", "details", "fault", "message", "exception")
"""Fields in which servers put an error object, or a list of them, inside another."""
_SENTENCE = (
    "message",
    "detail",
    "msg",
    "error",
    "error_description",
    "errorMessage",
    "reason",
    "faultstring",
    "title",
)
_DEEPEST = 6


def error_object(source: object, depth: int = 0) -> dict[str, Any]:
    """What an answer says of an error, whatever its JSON looks like: `message`, with `code`, `type`, `param`.

    Empty where it says nothing: a text alone is no error object.
    """
    if isinstance(source, bytes):
        source = source.decode(errors="replace")
    if isinstance(source, str) and source.lstrip("\ufeff \r\n\t").startswith(("{", "[")):
        try:
            source = json.loads(source.lstrip("\ufeff \r\n\t"))
        except (ValueError, RecursionError):
            return {}
    if depth > _DEEPEST:
        return {}
    if isinstance(source, list):
        return _error_of_list(source, depth)
    if not isinstance(source, dict):
        return {}
    for name in _INSIDE:
        inside = source.get(name)
        found = error_object(inside, depth + 1) if isinstance(inside, dict | list) or _is_json(inside) else {}
        if found:
            return {key: value for key, value in source.items() if key not in _INSIDE} | found
    sentence = next(
        (source[name] for name in _SENTENCE if source.get(name) and isinstance(source[name], str)), None
    )
    return {**source, "message": sentence} if sentence else {}


def _error_of_list(found: list[Any], depth: int) -> dict[str, Any]:
    """The first error of a list, with the sentences of all: pydantic lists a place, a sentence and a type for each."""
    errors = [error for one in found[:20] if (error := error_object(one, depth + 1))]
    texts = [one for one in found[:20] if isinstance(one, str) and one.strip()]
    if not errors:
        return {"message": "; ".join(texts)} if texts and depth else {}
    sentences = []
    for error in errors:
        place = ".".join(map(str, error["loc"])) if isinstance(error.get("loc"), list) else ""
        kind = f" ({error['type']})" if place and error.get("type") else ""
        sentences.append(f"{place}: {error['message']}{kind}" if place else str(error["message"]))
    return {**errors[0], "message": "; ".join(sentences)}


def _is_json(value: object) -> bool:
    return isinstance(value, str) and value.lstrip().startswith(("{", "["))


def _numbers(body: Mapping[str, Any]) -> str:
    """Counts of tokens that stand in fields of their own, as llama.cpp's `n_ctx`."""
    found = [
        f" | {name} = {body[name]}"
        for name in ("n_prompt_tokens", "n_ctx")
        if isinstance(body.get(name), int)
    ]
    return "".join(found)


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
