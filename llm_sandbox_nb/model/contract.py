"""Contract between the loop and a model: messages and tools in, one reply out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.known_keys import without_keys
from llm_sandbox_nb.trajectory.events import Usage

DeltaCallback = Callable[[str, str], None]
"""Function called with (text, reasoning) for each streamed piece."""


BROKEN_OFF = "cut_off"
"""The `finish_reason` of a reply that broke off in two attempts; servers do not send this word."""


@dataclass(frozen=True)
class ToolCall:
    """Call as the model wrote it; `arguments` is the raw text, which may not be JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Reply:
    """Reply of a model. `message` is the reply in the history, in the form that the provider accepts."""

    message: dict[str, Any]
    text: str = ""
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    finish_reason: str | None = None
    response_id: str | None = None
    response_model: str | None = None
    context_window: int | None = None
    """Maximum tokens of prompt and reply together, if known."""
    left_out: tuple[str, ...] = ()
    """Names of settings that were not sent because the model does not accept them."""
    written: bool = False
    """True if the calls were read from the text."""
    raw_text: str | None = None
    """Text before calls or thoughts were removed; None if the text was not changed."""
    refused_call: str = ""
    """Reason why a call in the text is not executed; empty if there is no such call."""


class ModelError(LLMSandboxError):
    """The model cannot be asked, or its request failed. `kind` names the cause, `retryable` says if a retry may help.

    For example, `solve(task, model="scripted/missing")`: this script does not exist.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        retryable: bool = False,
        retry_after: float | None = None,
        learned: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(without_keys(message))
        self.kind = kind
        """Kind of the error: `authentication`, `not_found`, `unreachable`, `connection`, `rate_limit`, `quota`,
        `context`, `bad_request`, `setting` (the model refuses a setting, which is not sent any more), `content_policy`,
        `server`, `timeout`, `script`, `setup` (a package is missing, or an environment variable is wrong),
        `tools` (the server does not accept tools, or messages with their results), `loading` (the server loads its
        model, or restarts), `unknown`."""
        self.retryable = retryable
        self.retry_after = retry_after
        """Seconds to wait at the request of the provider."""
        self.learned = dict(learned or {})
        """Everything learned from the server's refusals so far, if this refusal added something; see `Recalls`."""


class ContextOverflowError(ModelError):
    """Error for a conversation that does not fit into the model's context, together with the requested reply.

    `context_limit`, `prompt_tokens` and `completion_limit` (maximum tokens of one reply with any prompt) are the
    numbers in the provider's message, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        context_limit: int | None = None,
        prompt_tokens: int | None = None,
        completion_limit: int | None = None,
    ) -> None:
        super().__init__(message, kind="context")
        self.context_limit = context_limit
        self.prompt_tokens = prompt_tokens
        self.completion_limit = completion_limit


@dataclass
class ModelSettings:
    """Sampling settings, named as in the paper's inference table. None leaves a setting to the provider."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    """Maximum tokens of one reply; None for `model_list.DEFAULT_REPLY_TOKENS`."""
    timeout: float = 1200.0
    """Seconds of silence after which a request fails; a slow reply may take longer."""
    extra_body: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class Model(Protocol):
    """Interface of a model, which is behind HTTP, a script, or a token-level policy for training."""

    name: str
    scripted: bool

    async def reply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        settings: ModelSettings,
        on_delta: DeltaCallback | None = None,
    ) -> Reply:
        """Send one request without retries.

        Raises:
            ContextOverflowError: if the conversation does not fit.
            ModelError: after other failures, with `retryable` set if another attempt can help.
        """
        ...


@runtime_checkable
class Checkable(Protocol):
    """Model that can detect problems before its first request."""

    async def check(self) -> None:
        """Raise ModelError if requests are not possible. Send nothing to a provider.

        A local model fetches its file and starts its server.
        """
        ...


@runtime_checkable
class AppendOnly(Protocol):
    """Model that stores the tokens of its conversations, so that messages can only be appended."""

    append_only: bool


class ContextLimit(NamedTuple):
    """Maximum tokens of prompt and reply together."""

    tokens: int
    served: bool
    """True if the server reported the number, False if the number is from a list of models."""


@runtime_checkable
class KnowsContext(Protocol):
    """Model whose context limit may be known before a request."""

    async def context_limit(self) -> ContextLimit | None:
        """Return the limit, or None if unknown. A request to the server must be fast; exceptions are not raised."""
        ...


@runtime_checkable
class Recalls(Protocol):
    """Model that can restore, in another process, knowledge about its server and about earlier replies."""

    def recall(
        self, learned: Mapping[str, Any], replies: Iterable[tuple[dict[str, Any], str | None, bool]]
    ) -> None:
        """Restore knowledge from a record.

        Args:
            learned: `ModelError.learned`. The record may come from a stranger, so the values are not trusted.
            replies: messages with their reasoning, and True if their calls are native.
        """
        ...


@runtime_checkable
class ServedHere(Protocol):
    """Model whose server is a child of this process."""

    def served_by(self) -> Mapping[str, Any]:
        """Return the file and engine of the model, for the record; empty before `check`."""
        ...

    def introduction(self) -> str:
        """Return a sentence about the file and engine; empty before `check`."""
        ...

    def log_to(self, folder: Path) -> None:
        """Also write the server's log to the folder of a run, until `end_log`."""
        ...

    def end_log(self, folder: Path) -> None:
        """Stop writing the server's log to a folder."""
        ...


@runtime_checkable
class WritesCalls(Protocol):
    """Model that may be unable to make native calls: its runs then begin in text mode."""

    @property
    def writes_calls(self) -> bool:
        """True if the model is known to make no useful native calls."""
        ...


@runtime_checkable
class SlowToBegin(Protocol):
    """Model whose first reply needs preparations for some seconds."""

    def prepare(self) -> None:
        """Start the preparations without waiting. `reply` waits for them, and raises their errors.

        Called in the event loop of the run, when its sandbox begins to start.
        """
        ...

    async def prepared(self) -> None:
        """Wait for the end of the preparations, so that they do not count as request time. Raise no exception."""
        ...


async def until_prepared(model: Model) -> None:
    """Wait for the preparations of `model`, if there are any."""
    if isinstance(model, SlowToBegin):
        await model.prepared()
