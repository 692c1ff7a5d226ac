"""Route of the requests to a model: the name that is sent, the provider, and the protocol."""

from __future__ import annotations

from dataclasses import dataclass

from llm_sandbox_nb.known_keys import key_variable


@dataclass(frozen=True)
class Route:
    """Route of the requests to a model. `model` is LiteLLM's name for the model."""

    model: str
    provider: str
    openai_compatible: bool
    asked: str = ""
    """Provider in the model's name, if requests go to the person's own server instead. Otherwise empty."""

    @property
    def sent_name(self) -> str:
        """Name of the model in the request."""
        return self.model.removeprefix(f"{self.provider}/")

    @property
    def key_variable(self) -> str:
        """Name of the environment variable that contains the key."""
        return key_variable(self.asked or self.provider)
