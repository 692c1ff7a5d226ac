"""What the loop knows of a model: messages and tools in, one reply out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.known_keys import without_keys
from llm_sandbox_nb.trajectory.events import Usage

DeltaCallback = Callable[[str, str], None]
"""Called with (text, reasoning) for each streamed piece."""


BROKEN_OFF = "cut_off"
"""The `finish_reason` of a reply that broke off, as the one before did: no server sends this word."""


@dataclass(frozen=True)
class ToolCall:
    """A call as the model wrote it; `arguments` is the raw text, perhaps not JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Reply:
    """One reply. `message` is what goes back into the history, in the form the provider wants."""

    message: dict[str, Any]
    text: str = ""
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    finish_reason: str | None = None
    response_id: str | None = None
    response_model: str | None = None
    context_window: int | None = None
    """Tokens that the model can take in, when they are known."""
    left_out: tuple[str, ...] = ()
    """Names of settings that were asked for and not sent, because the model does not take them."""
    written: bool = False
    """Whether the calls were read out of the text."""
    raw_text: str | None = None
    """The text before calls or thoughts were taken out of it; None when none were."""
    refused_call: str = ""
    """Why a call that is written in the text does not count; empty when there is none, or all count."""


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
        """`authentication`, `not_found`, `unreachable`, `connection`, `rate_limit`, `quota`, `context`,
        `bad_request`, `setting` (the model refuses one, it is left out from now on), `content_policy`,
        `server`, `timeout`, `script`, `setup` (a package is missing, or a variable of the environment is wrong),
        `tools` (the server takes no tools, or no messages with their results), `loading` (it loads its model, or is
        started again), `unknown`."""
        self.retryable = retryable
        self.retry_after = retry_after
        """Seconds the provider asked to wait."""
        self.learned = dict(learned or {})
        """All that the server's refusals have taught so far, where this one taught something; see `Recalls`."""


class ContextOverflowError(ModelError):
    """The conversation and the reply asked for do not fit the model's context.

    `context_limit`, `prompt_tokens` and `completion_limit` (most tokens of one reply, whatever the prompt)
    are what the provider's message told, else None.
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
    """How to sample. None leaves the provider's own default. Names as in the paper's inference table."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    """Tokens of one reply. With None a limit is sent all the same, see `litellm_model.REPLY_TOKENS`."""
    timeout: float = 1200.0
    """Seconds of silence after which a request has failed; a reply that comes slowly may take longer."""
    extra_body: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class Model(Protocol):
    """A model. One implementation is LiteLLM, the scripted model another; a token-level policy for training a third."""

    name: str
    scripted: bool

    async def reply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        settings: ModelSettings,
        on_delta: DeltaCallback | None = None,
    ) -> Reply:
        """One request, no retries.

        Raises:
            ContextOverflowError: it does not fit.
            ModelError: anything else, with `retryable` set when trying again can help.
        """
        ...


@runtime_checkable
class Checkable(Protocol):
    """A model that can tell before its first request that it cannot be asked."""

    async def check(self) -> None:
        """Raise ModelError when it cannot be asked; sends nothing to a provider.

        For a local model this fetches its file and starts its server.
        """
        ...


@runtime_checkable
class AppendOnly(Protocol):
    """A model whose conversations may only be added to: it keeps their tokens."""

    append_only: bool


class ContextLimit(NamedTuple):
    """Tokens that a model can take in, prompt and reply together."""

    tokens: int
    served: bool
    """Whether its server says so; else it is from a list of models."""


@runtime_checkable
class KnowsContext(Protocol):
    """A model that can tell before a request how much it can take in."""

    async def context_limit(self) -> ContextLimit | None:
        """The limit; None when it is not known. Asks the server, which must not take long, and raises nothing."""
        ...


@runtime_checkable
class Recalls(Protocol):
    """A model that can know again what its server has taught, and what it has said, in another process."""

    def recall(
        self, learned: Mapping[str, Any], replies: Iterable[tuple[dict[str, Any], str | None, bool]]
    ) -> None:
        """Take what is recorded.

        `learned` is that of a `ModelError`; whoever made the record may be anybody. `replies` are messages with their
        reasoning, and whether their calls are native.
        """
        ...


@runtime_checkable
class ServedHere(Protocol):
    """A model whose server is a child of this process."""

    def served_by(self) -> Mapping[str, Any]:
        """Which file and engine answer, for the record; empty before `check`."""
        ...

    def introduction(self) -> str:
        """The same in one sentence; empty before `check`."""
        ...

    def log_to(self, folder: Path) -> None:
        """Write the server's log also into the folder of a run, until `end_log`."""
        ...

    def end_log(self, folder: Path) -> None:
        """Write no more into that folder."""
        ...


@runtime_checkable
class WritesCalls(Protocol):
    """A model that may be known to make no useful native calls: its runs then begin in text mode."""

    @property
    def writes_calls(self) -> bool:
        """Whether that is known of it."""
        ...


@runtime_checkable
class SlowToBegin(Protocol):
    """A model whose first reply needs preparations that take seconds."""

    def prepare(self) -> None:
        """Begin the preparations and do not wait for them. `reply` waits, and tells what went wrong.

        Called in the event loop of the run, when its sandbox begins to start.
        """
        ...

    async def prepared(self) -> None:
        """Wait for the end of the preparations, which are no part of a request's time. Raises nothing."""
        ...


async def until_prepared(model: Model) -> None:
    """Wait until a request to `model` takes only the time of the request."""
    if isinstance(model, SlowToBegin):
        await model.prepared()
