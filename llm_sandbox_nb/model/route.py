"""Route of requests for a model: the name that is sent, the provider, and the protocol."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Route:
    """Route of requests: LiteLLM's name for the model, and the provider."""

    model: str
    provider: str
    openai_compatible: bool
    asked: str = ""
    """Provider in the name of a model of the person's own server, which is asked in OpenAI's protocol; else empty."""

    @property
    def sent_name(self) -> str:
        """Name of the model in the request."""
        return self.model.removeprefix(f"{self.provider}/")

    @property
    def key_variable(self) -> str:
        """Environment variable of the key."""
        return f"{(self.asked or self.provider).upper()}_API_KEY"
