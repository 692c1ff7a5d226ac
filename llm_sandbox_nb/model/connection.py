"""Address and key for the requests to a model."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

import httpx

from llm_sandbox_nb.known_keys import (
    PROVIDERS,
    KeyTextError,
    clean_key,
    key_variable,
    public_address,
    remember_address,
)
from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.errors import Target
from llm_sandbox_nb.model.route import Route

_CREDENTIALS = re.compile(r"//[^/@]*@")


@dataclass(frozen=True)
class Access:
    """Address and key that the person gave.

    If `api_key` is None, the method `key` returns the key that the person typed after `%sandbox key`. If there is no
    such key, it returns the key in the environment.
    """

    api_base: str | None = None
    api_key: str | None = field(default=None, repr=False)

    def check(self) -> None:
        """Raise ModelError if the address or the key is malformed."""
        if self.api_key is not None:
            _checked_key(self.api_key, "The API key")
        if self.api_base is None:
            return
        remember_address(self.api_base)
        try:
            url = httpx.URL(self.api_base)
        except httpx.InvalidURL:
            url = httpx.URL("")
        if url.scheme not in ("http", "https") or not url.host or not 0 < (url.port or 80) < 65536:
            shown = _CREDENTIALS.sub("//", self.api_base)
            raise ModelError(
                f"{shown!r} is not the address of a model server: give it as http://host:port/v1.",
                kind="unreachable",
            )

    def key(self, route: Route) -> str | None:
        """Return the key for the route's provider, or None if there is no key.

        Raises:
            ModelError: if the key has invalid characters.
        """
        if given := self.api_key or typed_key(route.asked or route.provider):
            return _checked_key(given, "The API key")
        found = os.environ.get(route.key_variable)
        return _checked_key(found, f"The environment variable {route.key_variable}") if found else None

    def has_known_key(self, provider: str) -> bool:
        """Return True if the provider is well known and a key for it is set. The check does not import LiteLLM."""
        return provider in PROVIDERS and bool(
            self.api_key or typed_key(provider) or os.environ.get(key_variable(provider))
        )

    def target(
        self, route: Route, name: str, key_names: tuple[str, ...], *, answered: bool = False
    ) -> Target:
        """Return the facts that error messages need about the model `name` and its server.

        `key_names` are the environment variables that can contain the key, or an empty tuple if one of them is set.
        `answered` is True after the first reply.
        """
        return Target(
            model=name,
            api_base=self.api_base and public_address(self.api_base),
            has_key=self.api_key is not None
            or typed_key(route.asked or route.provider) is not None
            or not key_names,
            key_names=key_names or (route.key_variable,),
            answered=answered,
        )


def _checked_key(key: str, source: str) -> str:
    try:
        return clean_key(key, source)
    except KeyTextError as error:
        raise ModelError(f"{error}.", kind="authentication") from None


_keys: dict[str, str] = {}
"""Keys that a person typed, by provider. They are not put into `os.environ`, because child processes and sandboxes with
the isolation `process` inherit the environment. Each request looks up its key, so a new key applies to runs in
progress too."""


def keep_key(provider: str, key: str) -> None:
    """Use the key for the models of a provider, even if the environment has another key."""
    _keys[provider] = key


def forget_keys(provider: str | None = None) -> list[str]:
    """Forget the typed key of a provider, or all typed keys if `provider` is None. Return the providers whose keys
    were forgotten.
    """
    forgotten = [name for name in _keys if provider in (None, name)]
    for name in forgotten:
        del _keys[name]
    return forgotten


def typed_key(provider: str) -> str | None:
    """Return the key that was typed for a provider such as `openai`, or None if no key was typed."""
    return _keys.get(provider)


def typed_providers() -> list[str]:
    """Return the providers with a typed key."""
    return list(_keys)
