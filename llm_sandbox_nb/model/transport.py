"""Interface between a model and its transport, the code that sends requests and receives the pieces of replies."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from llm_sandbox_nb.model.errors import Target
from llm_sandbox_nb.model.route import Route
from llm_sandbox_nb.model.stream import Piece


@dataclass(frozen=True)
class ModelRequest:
    """Content of a request."""

    messages: Callable[[], list[dict[str, Any]]]
    """Function that converts the whole history to the form that the provider accepts."""
    messages_json: Callable[[], str]
    """Function that returns the converted history as JSON. Only messages that are new since the last request are
    converted."""
    tools: list[dict[str, Any]]
    settings: dict[str, Any]
    """Sampling settings, and `extra_body` with all settings outside of OpenAI's protocol."""
    stream: bool
    stream_options: dict[str, Any]
    timeout: float
    """Seconds without data after which the request fails."""


class ModelTransport(Protocol):
    """Sender of requests to a model. Implementations are `DirectTransport` and `LiteLLMTransport`."""

    route: Route

    def accepts(self, name: str, value: Any) -> bool:
        """Return True if the model accepts a standard setting with this value."""
        ...

    def target(self, name: str, *, answered: bool) -> Target:
        """Return the facts that error messages need about the model `name` and its server.

        `answered` is True after the first reply.
        """
        ...

    def check_key(self, target: Target) -> None:
        """Raise ModelError if the provider needs a key, but the person gave no key."""
        ...

    def pieces(self, request: ModelRequest, heard: Callable[[], None]) -> AsyncGenerator[Piece, None]:
        """Send a request and yield the pieces of the reply. `heard` is called when data arrives.

        Raises:
            Exception: any failure. `errors.to_model_error` explains the failure.
        """
        ...
