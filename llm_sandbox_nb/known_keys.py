"""API keys of this process: checked before use, and removed from every text that leaves the process.

This module knows every key that a person passed, typed or set in the environment. All texts for journals, cards, the
terminal, logs and errors pass through `without_keys`. From llm_sandbox_nb, this module imports only `errors`, so that
every other module can import it.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from llm_sandbox_nb.errors import LLMSandboxError

PROVIDERS = ("anthropic", "deepseek", "gemini", "groq", "mistral", "openai", "openrouter", "xai")
"""Model providers that need a key. `key_variable` names the environment variable with the key."""
HIDDEN = "(key)"
"""Text that replaces a key."""
_MIN_KEY_CHARACTERS = 8
"""Minimum length of a real key. A shorter text is a dummy for a local server that needs no key."""
_PLACEHOLDERS = frozenset(
    {"lm-studio", "no-key-required", "not-needed", "not-required", "sk-no-key-required", "anything", "unused"}
)
"""Dummy keys from the documentation of local servers. They are not secret, so texts may contain them."""
_KEY_VARIABLE = re.compile(r"(?:API_KEY|AUTH_TOKEN|ACCESS_TOKEN|SECRET_ACCESS_KEY|^HF_TOKEN)$")
_KEY_PARAMETER = re.compile(r"key|token|secret|sig|passw|auth|credential", re.IGNORECASE)
_BLANKS = " \t\r\n\v\f\ufeff\u00a0\u200b\u2060"
_ASCII_KEY = re.compile(r"[!-~]+")
_known: set[str] = set()


class KeyTextError(LLMSandboxError, ValueError):
    """Error for an empty or invalid key. The message names the source of the key, never the key."""


def key_variable(provider: str) -> str:
    """Return the name of the environment variable with a provider's key."""
    return f"{provider.upper()}_API_KEY"


def clean_key(key: str, source: str) -> str:
    """Return `key` without the blanks and line ends around it, and add it to the known keys.

    Error messages name the `source` of the key, such as an environment variable.

    Raises:
        KeyTextError: if nothing is left, or if the key has quotes around it or a character that is not printable ASCII.
    """
    cleaned = key.strip(_BLANKS)
    if not cleaned:
        raise KeyTextError(f"{source} is empty: put the key there")
    if not _ASCII_KEY.fullmatch(cleaned):
        raise KeyTextError(
            f"{source} has a character that is not allowed in a key ({_wrong_kind(cleaned)}): "
            "copy the key again, without quotes"
        )
    if len(cleaned) > 2 and cleaned[0] == cleaned[-1] and cleaned[0] in "\"'`":
        raise KeyTextError(f"{source} has quotes around the key: remove them")
    remember_key(cleaned)
    return cleaned


def _wrong_kind(key: str) -> str:
    """Describe the first wrong character without showing it, because it is a part of the key."""
    found = next(character for character in key if not "!" <= character <= "~")
    if found.isspace():
        return "a blank or the end of a line"
    if found in "\u2018\u2019\u201c\u201d\u201e\u00ab\u00bb":
        return "a curly quote"
    return "a control character" if not found.isprintable() else "one outside of ASCII"


def remember_key(key: str) -> None:
    """Add a key to the known keys, also in its form in JSON, where a quote has a backslash before it."""
    if len(key) >= _MIN_KEY_CHARACTERS and key.casefold() not in _PLACEHOLDERS:
        _known.update((key, json.dumps(key, ensure_ascii=False)[1:-1]))


def remember_address(address: str) -> None:
    """Add the password and the keys in an address to the known keys. A name like `token` marks a parameter as a key."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return
    parameters = [value for name, value in parse_qsl(parts.query) if _KEY_PARAMETER.search(name)]
    for value in (*parameters, parts.password or ""):
        remember_key(value)
        remember_key(unquote(value))


def public_address(address: str) -> str:
    """Return an address without user name, password, parameters and fragment."""
    parts = urlsplit(address)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def remember_environment(environment: Mapping[str, str] | None = None) -> None:
    """Add the keys in the environment to the known keys. Variable names show which values are keys."""
    for name, value in (os.environ if environment is None else environment).items():
        if _KEY_VARIABLE.search(name.upper()):
            remember_key(value.strip(_BLANKS))


def _longest_first() -> list[str]:
    """Return the known keys in an order in which a key that begins like another leaves nothing of the longer one."""
    return sorted(_known, key=len, reverse=True)


def without_keys(text: str) -> str:
    """Return the text with `HIDDEN` in place of every known key."""
    for key in _longest_first():
        if key in text:
            text = text.replace(key, HIDDEN)
    return text


def without_keys_in(data: bytes) -> bytes:
    """Return the data with `HIDDEN` in place of every known key."""
    for key in _longest_first():
        if (found := key.encode()) in data:
            data = data.replace(found, HIDDEN.encode())
    return data


def knows_keys() -> bool:
    """Return True if any key is known."""
    return bool(_known)


def has_key(texts: Iterable[str]) -> bool:
    """Return True if a text contains a known key."""
    return any(key in text for text in texts for key in tuple(_known))


_FORMATTER = logging.Formatter()


class KeyFilter(logging.Filter):
    """Filter that removes known keys from log records."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every log record, but remove the known keys from its message and its traceback."""
        if not _known:
            return True
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - wrong arguments: logging reports them when it writes the record
            message = ""
        if has_key([message]):
            record.msg, record.args = without_keys(message), ()
        if record.exc_info:
            record.exc_text = without_keys(record.exc_text or _FORMATTER.formatException(record.exc_info))
        return True
