"""Contract between the agent's loop and a model: the model gets messages and tools, and returns one reply."""

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
"""The `finish_reason` of a reply that was accepted although its end marker is missing. No server sends this word."""


@dataclass(frozen=True)
class ToolCall:
    """Tool call as the model wrote the call. `arguments` is the raw text, which is not always valid JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Reply:
    """Reply of a model. `message` is the history message for the reply, in the form that the provider accepts."""

    message: dict[str, Any]
    text: str = ""
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    finish_reason: str | None = None
    response_id: str | None = None
    response_model: str | None = None
    context_window: int | None = None
    """Maximum token count of prompt and reply together, or None if the maximum is unknown."""
    left_out: tuple[str, ...] = ()
    """Names of settings that were not sent because the model does not accept them."""
    written: bool = False
    """True if the calls were read from the text."""
    raw_text: str | None = None
    """The text as it was before calls or thoughts were removed from it. None if the text was not changed."""
    refused_call: str = ""
    """Reason why a call in the text is not executed. Empty if the text has no such call."""


class ModelError(LLMSandboxError):
    """Error of a model that cannot be asked, or of a failed request to the model.

    `kind` names the cause. `retryable` is True if a retry may help. For example, the call
    `solve(task, model="scripted/missing")` raises this error, because this script does not exist.
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
        `context`, `bad_request`, `setting` (a refusal after which the next request is sent in a changed form),
        `content_policy`, `server`, `timeout`, `script`, `setup` (a package is missing, or an environment variable is
        wrong),
        `tools` (the server does not accept tools, or messages with their results), `loading` (the server loads its
        model, or restarts), `unknown`."""
        self.retryable = retryable
        self.retry_after = retry_after
        """Wait in seconds that the provider requests before the next attempt."""
        self.learned = dict(learned or {})
        """All knowledge from the server's refusals so far; see `Recalls`. Empty if this refusal added no knowledge."""


class ContextOverflowError(ModelError):
    """Error for a conversation that does not fit into the model's context together with the requested reply.

    `context_limit`, `prompt_tokens` and `completion_limit` are numbers from the provider's message. Each is None if
    the message does not contain it. `completion_limit` is the maximum token count of one reply to any prompt.
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
    """Sampling settings. If a setting except `max_tokens` is None, the provider chooses its value."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    """Maximum token count of one reply. If it is None, `model_list.reply_tokens` chooses the maximum."""
    timeout: float = 1200.0
    """Seconds without data after which a request fails. A slow reply may take longer in total."""
    extra_body: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class Model(Protocol):
    """Interface of a model. A model asks a server, plays a script, or samples tokens from a policy in training."""

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
            ModelError: after any other failure. `retryable` is True if another attempt can help.
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
    """Model that stores the tokens of its conversations, so that messages can be appended, but not changed."""

    append_only: bool


class ContextLimit(NamedTuple):
    """Maximum token count of prompt and reply together."""

    tokens: int
    served: bool
    """True if the server reported the number, False if the number is from a list of models."""


@runtime_checkable
class KnowsContext(Protocol):
    """Model whose context limit may be known before a request."""

    async def context_limit(self) -> ContextLimit | None:
        """Return the limit, or None if the limit is unknown. Answer fast, and raise no exceptions."""
        ...


@runtime_checkable
class Recalls(Protocol):
    """Model that can restore, in another process, knowledge about its server and about earlier replies."""

    def recall(
        self, learned: Mapping[str, Any], replies: Iterable[tuple[dict[str, Any], str | None, bool]]
    ) -> None:
        """Restore knowledge from the record of a run.

        Args:
            learned: `ModelError.learned`. The record may come from a stranger, so the values are not trusted.
            replies: message and reasoning of each earlier reply, and True if the calls in the message are native.
                Native calls are those that the server returned as calls, in contrast to calls in the text.
        """
        ...


@runtime_checkable
class ServedHere(Protocol):
    """Model whose server is a child of this process."""

    def served_by(self) -> Mapping[str, Any]:
        """Return the facts about the model's file and engine for the run's record. Before `check`, return no facts."""
        ...

    def introduction(self) -> str:
        """Return a sentence about the model's file and engine. Before `check`, return an empty text."""
        ...

    def log_to(self, folder: Path) -> None:
        """Write the server's log also to the folder of a run, until `end_log` is called."""
        ...

    def end_log(self, folder: Path) -> None:
        """Stop writing the server's log to a folder."""
        ...


@runtime_checkable
class WritesCalls(Protocol):
    """Model that may be unable to make native calls. In this case, the model writes its calls as text."""

    @property
    def writes_calls(self) -> bool:
        """True if the model is known to make no useful native calls."""
        ...


@runtime_checkable
class SlowToBegin(Protocol):
    """Model whose first reply needs preparations that take some seconds."""

    def prepare(self) -> None:
        """Start the preparations without waiting. `reply` waits for them, and raises their errors.

        A run calls this method in its event loop when its sandbox begins to start.
        """
        ...

    async def prepared(self) -> None:
        """Wait until the preparations end, so that they do not count as request time. Raise no exception."""
        ...


async def until_prepared(model: Model) -> None:
    """Wait until the preparations of `model` end, if the model needs any."""
    if isinstance(model, SlowToBegin):
        await model.prepared()
