"""Conversion of the exception of a failed request to a `ModelError`, whose message is one sentence with advice."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.model.context_overflow import find_overflow
from llm_sandbox_nb.model.contract import ContextOverflowError, ModelError


def _pattern(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_UNREACHABLE = _pattern(
    r"connection refused|connect call failed|all connection attempts failed|cannot connect to host",
    r"name or service not known|nodename nor servname|temporary failure in name resolution|getaddrinfo",
    r"no route to host|network is unreachable|certificate verify failed",
    r"unsupported protocol|is missing an 'http|invalid url|not an? (?:absolute|valid) url|invalid port",
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
"""Matches the error of a server or chat template that does not accept tools, or messages with tool results."""
_TEMPLATE = _pattern(r"jinja|chat[ _]template|template error|raise_exception")
"""Matches the error of a chat template that refused the messages. A retry does not help, even if the HTTP status is
500 or higher."""
_LOADING = _pattern(
    r"loading (?:the )?model|model (?:is|was) (?:still |currently )?(?:being )?load|(?:still|currently) loading",
    r"is loading|is (?:currently |still )?(?:starting|initiali[sz]ing|warming)|warming up",
    r"not (?:yet )?(?:ready|loaded yet)",
)
_NOT_LOADED = _pattern(
    r"(?:error|fail\w{0,10}|unable|could not|cannot)[^.]{0,40}\bload", r"out of memory|insufficient memory"
)
"""Matches the error of a server that cannot load its model. Waiting does not help."""
_WRONG_PATH = _pattern(
    r"unexpected endpoint|404 page not found|invalid url \(|cannot post|no route matches|unknown request url",
)
"""Matches the answer of a server that has no API at the requested path. LM Studio gives this answer with status 200."""
_UNEXPECTED = _pattern(r"unexpected keyword argument")
_PER_MINUTE = re.compile(r"Limit:? *(\d[\d,]{0,15})[, ].{0,400}?Requested:? *(\d[\d,]{0,15})", re.DOTALL)
_WAIT = re.compile(
    r"(?:try again|retry) (?:in|after) (?=\d)(?:(\d{1,4})h)?(?:(\d{1,4})m(?!s))?(?:(\d{1,6}(?:\.\d{0,9})?) ?(ms|s))?",
    re.IGNORECASE,
)
"""Matches the wait in the message of a rate limit, such as `try again in 1m20.5s`."""
_TIMEOUTS = frozenset(
    {"TimeoutError", "APITimeoutError", "Timeout", "TimeoutException", "ServerTimeoutError"}
)
_BROKEN = frozenset({"NetworkError", "RemoteProtocolError", "ClientError", "ConnectionError"})


class ServerError(LLMSandboxError):
    """Error for an error answer of a model server, or for an error object in a streamed reply."""

    def __init__(self, body: object, response: httpx.Response | None = None) -> None:
        reason = (
            f"error {response.status_code} {response.reason_phrase}" if response else "error in the reply"
        )
        super().__init__(str(body) if body else reason.strip())
        self.body = body
        self.response = response


@dataclass(frozen=True)
class Target:
    """Facts about a request's model and server. Error messages need these facts for their advice."""

    model: str
    api_base: str | None = None
    has_key: bool = False
    key_names: tuple[str, ...] = ("OPENAI_API_KEY",)
    """Environment variables that can contain the provider's key."""
    answered: bool = False
    """True if the server has answered before. A failed connection then means that the server restarts."""

    @property
    def where(self) -> str:
        """Text with the server's address. Empty if the provider's default address is used."""
        return f" at {self.api_base}" if self.api_base else ""

    @property
    def key_help(self) -> str:
        """Advice about setting a key."""
        return (
            f"set {' or '.join(self.key_names)} or pass --api_key (in a cell: %sandbox key or --api-key-env)"
        )


def to_model_error(error: BaseException, target: Target) -> ModelError:
    """Convert any exception of a request to a `ModelError`.

    If the exception or one of its causes is already a `ModelError`, return this error unchanged.
    """
    for part in chain(error):
        if isinstance(part, ModelError):
            return part
    failure = examine(error)
    for rule in _RULES:
        if found := rule(failure, target):
            return found
    return ModelError(f"{target.model}{target.where} failed: {failure.detail}.", kind="unknown")


def refused_setting(error: BaseException, names: frozenset[str]) -> str | None:
    """Return the setting of `names` that the provider refused, or None if the error has another reason."""
    failure = examine(error)
    refused = _REFUSED if failure.status in (400, 422) else _UNEXPECTED if failure.status == 500 else None
    if not refused or not refused.search(failure.text) or find_overflow(failure.text):
        return None
    if (parameter := (failure.parameter or "").partition(".")[0]) in names:
        return parameter
    # The first name in the text is the refused setting. Some servers list the supported settings after it.
    found = re.search(rf"(?<![\w-])({'|'.join(sorted(names))})(?![\w-])", failure.text)
    return found[1] if found else None


def no_provider(model: str) -> ModelError:
    """Return the error for a model that has neither a known provider nor the address of a server."""
    return ModelError(
        f"No provider is known for the model {model}: write provider/model, for example openai/{model}, "
        "or give the address of your server with --api-base.",
        kind="not_found",
    )


def broken_off(target: Target, detail: str = "the reply has no end") -> ModelError:
    """Return the error for a connection that ended before the reply was complete."""
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
            return _loading_error(f"cannot answer now ({failure.detail})", target)
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
    """Return the error for a server that loads its model or restarts, and will answer later."""
    loads = _LOADING.search(failure.text) and not _NOT_LOADED.search(failure.text)
    if failure.status in (None, 425, 500, 503) and loads:
        return _loading_error(f"is not ready ({failure.detail})", target, retry_after(failure.headers))
    if failure.status in (502, 503, 504) and target.answered and target.api_base:
        return _loading_error(f"cannot answer now, error {failure.status} ({failure.detail})", target)
    return None


def _loading_error(state: str, target: Target, after: float | None = None) -> ModelError:
    return ModelError(
        f"The server of {target.model}{target.where} {state}.",
        kind="loading",
        retryable=True,
        retry_after=after,
    )


def _tools(failure: Failure, target: Target) -> ModelError | None:
    if failure.status is None or failure.status < 400 or not _TOOLS.search(failure.text):
        return None
    return no_tools(target, failure.detail)


def no_tools(target: Target, detail: str) -> ModelError:
    """Return the error for a server that does not accept tools, or messages with tool results."""
    return ModelError(
        f"{target.model}{target.where} does not accept tools ({detail}): start its server with a tool parser, or let "
        "the model write its calls as text.",
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
    # A message about a rate limit may also have words about billing. If it names a wait, it is not about the quota.
    if failure.status == 429 and _WAIT.search(failure.text):
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
            f"One request needs {needed} tokens, but the account may use only {allowed} tokens a minute with "
            f"{target.model}: lower the maximum tokens per call or ask for a higher limit.",
            kind="rate_limit",
        )
    return ModelError(
        f"{target.model} is rate limited ({failure.detail}): wait, or ask for a higher limit.",
        kind="rate_limit",
        retryable=True,
        retry_after=_said_wait(failure.text) if (asked := retry_after(failure.headers)) is None else asked,
    )


def _said_wait(text: str) -> float | None:
    """Return the wait in seconds in the message of a rate limit, or None if the message names no wait."""
    if (found := _WAIT.search(text)) is None:
        return None
    hours, minutes, rest = (float(part or 0) for part in found.groups()[:3])
    return hours * 3600 + minutes * 60 + rest / (1000 if found[4] == "ms" else 1)


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
            f"{target.model} writes at most {numbers.completion_limit} tokens in one reply: request fewer.",
            completion_limit=numbers.completion_limit,
        )
    if numbers.context_limit is not None:
        facts = f"the {numbers.context_limit} tokens that {target.model} can hold"
    else:
        facts = f"the context of {target.model} ({failure.detail})"
    return ContextOverflowError(
        f"The conversation and the requested reply do not fit {facts}: request fewer tokens per call, give a "
        "shorter task, or use a model with a longer context.",
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
    if "ContentPolicyViolationError" not in failure.types and "content_policy_violation" not in failure.text:
        return None
    return ModelError(
        f"{target.model} refused to answer because of its content policy ({failure.detail}): rephrase the task.",
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
    if failure.status is None and not failure.types & {"ServerError", "APIError", "BaseLLMException"}:
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


# --- the content of exceptions: ServerError, and exceptions of LiteLLM, OpenAI's client, httpx and aiohttp ---
# LiteLLM chooses its exception by the text of an error, sometimes incorrectly. The status, headers and body of
# the provider's answer are further down the chain of exceptions, and take precedence.

_MAX_DETAIL_LENGTH = 600
_MAX_TEXT_LENGTH = 20_000
"""Maximum number of characters of an error that are searched. The patterns need quadratic time for hostile texts."""
_TEXT_FIELDS = ("message", "code", "type")


@dataclass(frozen=True)
class Failure:
    """Failure of a request, as the provider describes it."""

    status: int | None
    headers: Mapping[str, str]
    text: str
    """Message and codes of the provider's error. If the provider sent no error object: the texts of all exceptions."""
    detail: str
    """Error message of the provider, to be shown to the person."""
    types: frozenset[str]
    """Names of the classes of all exceptions in the chain, and of the base classes of these classes."""
    parameter: str | None = None
    """Parameter that the provider refuses."""


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and all its causes, beginning with the outermost exception."""
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
    """Collect the facts about a failure from the whole exception chain of `error`."""
    parts = list(chain(error))
    response = next((found for part in reversed(parts) if (found := _answer(part)) is not None), None)
    sources = [source for part in reversed(parts) for source in _sources(part)]
    body = next((found for source in sources if (found := error_object(source))), {})
    bodies: list[Any] = [getattr(part, "body", None) for part in parts]
    plain = next((body for body in bodies if isinstance(body, str)), "")
    texts = [*_texts(parts), *filter(None, [plain])]
    network = [str(part) for part in parts if isinstance(part, OSError | httpx.TransportError) and str(part)]
    detail = body.get("message") or plain or (network or texts)[-1]
    return Failure(
        status=_status(parts, body) if response is None else int(response.status_code),
        headers={} if response is None else response.headers,
        text=" | ".join([str(body[key]) for key in _TEXT_FIELDS if body.get(key)] or texts)[:_MAX_TEXT_LENGTH]
        + _numbers(body),
        detail=tidy(str(detail)[:_MAX_TEXT_LENGTH]),
        types=frozenset(cls.__name__ for part in parts for cls in type(part).__mro__),
        parameter=param if isinstance(param := body.get("param"), str) else None,
    )


def _texts(parts: list[BaseException]) -> list[str]:
    """Return the texts of the exceptions.

    The texts of LiteLLM's exceptions contain tracebacks and links. So they are used only if there is no other text.
    """
    originals = [part for part in parts if not type(part).__module__.startswith("litellm.exceptions")]
    texts = [str(part) for part in originals if str(part)] or [str(part) for part in parts if str(part)]
    return texts or [type(parts[-1]).__name__]


def _answer(error: BaseException) -> Any:
    """Return the HTTP response in an exception, or None. Responses that LiteLLM has invented are ignored."""
    response = getattr(error, "response", None)
    if type(error).__module__.startswith("litellm.") or not hasattr(response, "status_code"):
        return None
    return response


def _sources(error: BaseException) -> Iterator[object]:
    """Yield the attributes of an exception that may hold the provider's answer."""
    yield getattr(error, "body", None)
    yield getattr(error, "message", None)
    if (response := _answer(error)) is not None:
        try:
            yield response.text
        except (AttributeError, httpx.StreamError, UnicodeError):  # the body was not read
            return


_INSIDE = ("error", "errors", "detail", "details", "fault", "message", "exception", "base_resp")
"""Fields in which servers nest an error object, or a list of error objects, in another object."""
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
    "error_msg",
    "status_msg",
)
_MAX_DEPTH = 6


def error_object(source: object, depth: int = 0) -> dict[str, Any]:
    """Return the error object in an answer of any JSON form. The object has `message`, and often `code` or `param`.

    The object is empty if the answer contains no error. Plain text is not an error object.
    """
    if isinstance(source, bytes):
        source = source.decode(errors="replace")
    if isinstance(source, str) and source.lstrip("\ufeff \r\n\t").startswith(("{", "[")):
        try:
            source = json.loads(source.lstrip("\ufeff \r\n\t"))
        except (ValueError, RecursionError):
            return {}
    if depth > _MAX_DEPTH:
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


def _error_of_list(items: list[Any], depth: int) -> dict[str, Any]:
    """Return the first error of a list, with the joined messages of all errors. Pydantic makes such lists."""
    errors = [error for item in items[:20] if (error := error_object(item, depth + 1))]
    texts = [item for item in items[:20] if isinstance(item, str) and item.strip()]
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
    """Return a text with the token counts that are in separate fields, such as llama.cpp's `n_ctx`."""
    found = [
        f" | {name} = {body[name]}"
        for name in ("n_prompt_tokens", "n_ctx")
        if isinstance(body.get(name), int) and 0 <= body[name] < 1 << 53
    ]
    return "".join(found)


def _status(parts: list[BaseException], body: Mapping[str, Any]) -> int | None:
    """Return the HTTP status of a failure, or None if there is no status.

    If a connection failed, LiteLLM invents the status 500, which is ignored.
    """
    originals = [
        part for part in reversed(parts) if not type(part).__module__.startswith("litellm.exceptions")
    ]
    if any(isinstance(part, OSError | httpx.TransportError) for part in originals):
        return None
    codes = [getattr(part, "status_code", None) for part in originals] + [body.get("code")]
    return next((code for code in codes if isinstance(code, int) and 400 <= code < 600), None)


def tidy(text: str) -> str:
    """Put an error message on one line, remove exception class names at its beginning, and shorten a long message."""
    text = " ".join(text.split())
    text = re.sub(r"^(?:(?:litellm\.)?\w*(?:Error|Exception|Timeout)(?: -|:) *)+", "", text).rstrip(". ")
    return text if len(text) <= _MAX_DETAIL_LENGTH else text[:_MAX_DETAIL_LENGTH] + "…"


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return the wait in seconds that the headers request, or None if they request no wait.

    The header is `retry-after-ms`, or `retry-after` with a number of seconds or an HTTP date.
    """
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    if (seconds := _number(value)) is not None or value is None:
        return seconds
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())


def _number(value: str | None) -> float | None:
    try:
        number = float(value) if value is not None else None
    except ValueError:
        return None
    return number if number is not None and 0 <= number < float("inf") else None
