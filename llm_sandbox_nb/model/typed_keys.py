"""Keys that a person typed into this process, by provider: in its memory only, until it ends or forgets them.

They are not put into `os.environ`: every process that is started here would get them, those of isolation `process` too.
A request looks its key up when it is sent, so that a key that is typed or forgotten counts for runs that have begun.
"""

from __future__ import annotations

_keys: dict[str, str] = {}


def keep_key(provider: str, key: str) -> None:
    """Use this key for the models of a provider, whatever the environment says."""
    _keys[provider] = key


def forget_keys(provider: str | None = None) -> list[str]:
    """Forget the key of a provider, or all keys. Gives the providers that had one."""
    forgotten = [name for name in _keys if provider in (None, name)]
    for name in forgotten:
        del _keys[name]
    return forgotten


def typed_key(provider: str) -> str | None:
    """The key that was typed for a provider, such as `openai`."""
    return _keys.get(provider)


def typed_providers() -> list[str]:
    """The providers that have one."""
    return list(_keys)
