"""Interface between the agent's loop and a model: the model gets messages and tools, and returns one reply."""

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
    """Tool call of a model. `arguments` is the text that the model wrote, which is not always valid JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Reply:
    """Reply of a model. `message` is the reply in the form in which later requests send it as a part of the history."""

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
    """True if the calls were found in the text that the model wrote."""
    raw_text: str | None = None
    """Text before calls or thoughts were removed from it. None if nothing was removed."""
    refused_call: str = ""
    """Reason why a call in the text is not executed. Empty if the text has no such call."""


class ModelError(LLMSandboxError):
    """Error for a model that cannot be asked, or for a failed request to a model.

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
        wrong), `tools` (the server does not accept tools, or messages with their results), `loading` (the server
        loads its model, or restarts), `unknown`."""
        self.retryable = retryable
        self.retry_after = retry_after
        """Wait in seconds that the provider requests before the next attempt."""
        self.learned = dict(learned or {})
        """Facts that the server's refusals have shown so far, for `Recalls.recall`. Empty if this error shows no new
        fact."""


class ContextOverflowError(ModelError):
    """Error for a conversation that does not fit into the model's context together with the requested reply.

    `context_limit`, `prompt_tokens` and `completion_limit` are token counts from the provider's message. A count is
    None if the message does not contain it. `completion_limit` is the maximum for one reply, even to a short prompt.
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
    """Maximum token count of one reply. If None, `model_list.reply_tokens` chooses the maximum."""
    timeout: float = 1200.0
    """Seconds without data after which a request fails. A slow reply may take longer in total."""
    extra_body: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class Model(Protocol):
    """Interface of a model: it asks a server, plays a script or, in a training, samples tokens from the policy."""

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
    """Model that can restore facts about its server and about earlier replies from the record of a run."""

    def recall(
        self, learned: Mapping[str, Any], replies: Iterable[tuple[dict[str, Any], str | None, bool]]
    ) -> None:
        """Restore facts from the record of a run, which another process may have written.

        Args:
            learned: newest `ModelError.learned`. The record may come from a stranger, so the values are not trusted.
            replies: for each earlier reply, its message, its reasoning, and True if its calls are native. A call is
                native if the server returned it as a call, and not in the text.
        """
        ...


@runtime_checkable
class ServedHere(Protocol):
    """Model whose server is a child process of this process."""

    def served_by(self) -> Mapping[str, Any]:
        """Return facts about the model's file and engine for the record of a run. Before `check`, return no facts."""
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
        """Wait until the preparations end, so that they do not count as time of the request. Raise no exception."""
        ...


async def until_prepared(model: Model) -> None:
    """Wait until the preparations of `model` end, if the model needs any."""
    if isinstance(model, SlowToBegin):
        await model.prepared()
