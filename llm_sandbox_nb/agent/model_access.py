"""Where a model is and with which key: what is sent, and what is said when it is missing."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import httpx

from llm_sandbox_nb.agent.model import ModelError
from llm_sandbox_nb.agent.model_errors import Target
from llm_sandbox_nb.agent.model_request import Route

_NO_KEY = "no-key"


@dataclass(frozen=True)
class Access:
    """Address and key as the person gave them; the environment fills in what they left out."""

    api_base: str | None = None
    api_key: str | None = field(default=None, repr=False)

    def check(self) -> None:
        """Raise ModelError when the address is none."""
        if self.api_base is None:
            return
        try:
            url = httpx.URL(self.api_base)
        except httpx.InvalidURL:
            url = httpx.URL("")
        if url.scheme not in ("http", "https") or not url.host or not 0 < (url.port or 80) < 65536:
            raise ModelError(
                f"{self.api_base!r} is not the address of a model server: give it as http://host:port/v1.",
                kind="unreachable",
            )

    def key(self, litellm: Any, route: Route) -> str | None:
        """The key to send; None leaves it to LiteLLM, which knows the variable of each provider."""
        if self.api_key or route.provider != "openai":
            return self.api_key
        found = litellm.api_key or litellm.openai_key or os.environ.get("OPENAI_API_KEY")
        # A server of one's own often wants no key, but the client insists on one.
        return found or (_NO_KEY if self.api_base else None)

    def check_key(self, litellm: Any, route: Route, target: Target) -> None:
        """Raise ModelError when there is no key and LiteLLM would ask the provider without one."""
        if target.has_key or self.api_base or not route.openai_compatible or litellm.api_key:
            return
        if not self.key(litellm, route):
            raise ModelError(f"No API key: {target.key_help}.", kind="authentication")

    def target(self, litellm: Any, route: Route, name: str) -> Target:
        """What error messages say of the model `name`."""
        environment = litellm.validate_environment(model=route.model)
        missing = () if environment.get("keys_in_environment") else environment.get("missing_keys") or ()
        names = tuple(key for key in missing if key.endswith("_API_KEY"))
        return Target(
            model=name,
            api_base=self._shown(),
            has_key=self.api_key is not None or not names,
            key_names=names or (f"{route.provider.upper()}_API_KEY",),
        )

    def _shown(self) -> str | None:
        """The address without a password or a token that stands in it."""
        if self.api_base is None:
            return None
        return str(httpx.URL(self.api_base).copy_with(userinfo=b"", query=None, fragment=None))
