"""Secrets whose values stay outside the sandbox. Programs inside use a placeholder, which the proxy replaces.

The value of a secret is read from this process's environment. The proxy inserts the value only into requests to the
hosts of the secret, and only after it has verified the host's TLS certificate. It inserts the value into headers, and
for hosts marked with `IN_BODY` also into bodies. In every reply of these hosts, the proxy replaces the value, because a
host may have stored the value from an earlier request.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_sandbox_nb.sandbox.network.policy import checked_host, is_literal

Headers = Sequence[tuple[bytes, bytes]]

_NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_MIN_VALUE_LENGTH = 8
IN_BODY = "+body"
"""Suffix of a host's name. Such a host gets the value in the bodies of requests too."""
_CREDENTIALS = frozenset(
    (b"authorization", b"cookie", b"x-api-key", b"api-key", b"apikey", b"x-goog-api-key", b"private-token",
     b"job-token", b"x-auth-token", b"x-access-token", b"x-amz-security-token")
)  # fmt: skip
"""Headers with which a sender proves its identity. In requests to a secret's hosts, such a header is left out unless it
has a placeholder. Otherwise an attacker's key in the header could make the host store data for the attacker."""


def parse_secrets(entries: Sequence[str] | Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the hosts of each secret, by the secret's name. A host may end in `IN_BODY`.

    `entries` is a list of texts `NAME=host[,host]`, or a mapping from names to hosts.

    Raises:
        ValueError: if an entry is invalid. The message never repeats the text after `=`, which may be a value.
    """
    if isinstance(entries, Mapping):
        pairs = [
            (name, hosts.split(",") if isinstance(hosts, str) else [*hosts])
            for name, hosts in entries.items()
        ]
    else:
        pairs = [
            (name.strip(), hosts.split(",")) for name, _, hosts in (entry.partition("=") for entry in entries)
        ]
    found: dict[str, tuple[str, ...]] = {}
    for name, hosts in pairs:
        try:
            parts = [(host.strip().removesuffix(IN_BODY), host.strip().endswith(IN_BODY)) for host in hosts]
            names = [checked_host(host) for host, _ in parts]
            valid = bool(_NAME_PATTERN.match(name) and names) and not any(map(is_literal, names))
            checked = tuple(host + IN_BODY * in_body for host, (_, in_body) in zip(names, parts, strict=True))
        except ValueError:
            valid = False
        if not valid:
            raise ValueError(
                "A secret is NAME=host[,host], as in GITHUB_TOKEN=api.github.com: the name of an environment variable "
                "and the exact names of the hosts that get its value; +body after a host inserts it into bodies too."
            )
        found[name] = (*found.get(name, ()), *checked)
    return found


def placeholder(name: str) -> str:
    """Return the placeholder of a secret in the sandbox.

    The placeholder reveals nothing. It is the same in every sandbox, so that files and shells that contain it still
    work in a fork of the sandbox.
    """
    return f"secret-{name}-is-put-in-outside"


@dataclass(frozen=True)
class Secret:
    """Secret with its value. `repr` never shows the value."""

    name: str
    hosts: tuple[str, ...]
    value: str = field(repr=False)
    body_hosts: frozenset[str] = frozenset()
    """Hosts for which the value is inserted into the bodies of requests too."""

    @property
    def placeholder(self) -> str:
        return placeholder(self.name)


def read_secrets(entries: Mapping[str, Sequence[str]]) -> list[Secret]:
    """Read the values of secrets from the environment. `entries` is a result of `parse_secrets`.

    Raises:
        ValueError: if a variable is not set, or if its value is too short or not printable ASCII. The message never
            contains the value.
    """
    found = []
    for name, names in entries.items():
        value = os.environ.get(name, "").strip()
        if not value:
            raise ValueError(
                f"The secret {name} has no value: set the environment variable {name} before you start this program."
            )
        if len(value) < _MIN_VALUE_LENGTH or not value.isascii() or not value.isprintable():
            raise ValueError(
                f"The environment variable {name} cannot be sent as a secret: at least {_MIN_VALUE_LENGTH} printable "
                "ASCII characters are needed."
            )
        hosts = tuple(name.removesuffix(IN_BODY) for name in names)
        bodies = frozenset(name.removesuffix(IN_BODY) for name in names if name.endswith(IN_BODY))
        found.append(Secret(name, hosts, value, bodies))
    return found


def put_in(
    headers: Headers, secrets: Sequence[Secret]
) -> tuple[list[tuple[bytes, bytes]], list[bytes], list[str]]:
    """Replace the placeholders in the headers of a request by the values.

    Headers in `_CREDENTIALS` are left out if they have no placeholder.

    Returns:
        The headers, the base64 texts in which a value was inserted (a reply must not repeat these texts), and the names
        of the inserted secrets.
    """
    pairs = [(secret.placeholder.encode(), secret.value.encode(), secret.name) for secret in secrets]
    result, hidden, used = [], [], []
    for name, text in headers:
        changed = text
        for stand_in, value, secret in pairs:
            replaced, encoded = _put_value(changed, stand_in, value)
            if replaced != changed:
                changed = replaced
                used.append(secret)
                hidden += encoded
        if name.lower() in _CREDENTIALS and changed == text:
            continue
        result.append((name, changed))
    return result, list(dict.fromkeys(hidden)), list(dict.fromkeys(used))


def put_in_body(body: bytes, kind: str, secrets: Sequence[Secret]) -> tuple[bytes, list[str]]:
    """Replace the placeholders in a body of content type `kind` by the values, in the form that this type needs.

    Return the body, and the names of the inserted secrets.
    """
    used = []
    for secret in secrets:
        stand_in = secret.placeholder.encode()
        if stand_in in body:
            value = secret.value
            if "json" in kind:
                value = json.dumps(value)[1:-1]
            elif "urlencoded" in kind:
                value = urllib.parse.quote_plus(value)
            body = body.replace(stand_in, value.encode())
            used.append(secret.name)
    return body, used


def forms_of(value: str) -> list[bytes]:
    """Return the forms in which a reply may repeat a value: plain, as in JSON, as in a URL, and in base64."""
    forms = [
        value,
        json.dumps(value)[1:-1],
        urllib.parse.quote_plus(value),
        urllib.parse.quote(value, safe=""),
    ]
    encoded = base64.b64encode(value.encode()).decode()
    return [form.encode() for form in dict.fromkeys([*forms, encoded])]


def _put_value(text: bytes, stand_in: bytes, value: bytes) -> tuple[bytes, list[bytes]]:
    """Replace a placeholder in a header's text, even within the base64 text of a `Basic` header.

    Return the new text of the header, and a list, which has the new base64 text or is empty. A reply must not repeat
    the base64 text.
    """
    text = text.replace(stand_in, value)
    kind, _, encoded = text.partition(b" ")
    if kind.lower() != b"basic":
        return text, []
    try:
        pair = base64.b64decode(encoded.strip(), validate=True)
    except binascii.Error:
        return text, []
    if stand_in not in pair:
        return text, []
    whole = base64.b64encode(pair.replace(stand_in, value))
    return kind + b" " + whole, [whole]


class Scrubber:
    """Filter that replaces the texts `hidden` in a stream. It delays only bytes that may begin such a text."""

    def __init__(self, hidden: Sequence[bytes]) -> None:
        self._hidden = sorted(hidden, key=len, reverse=True)
        self._held = b""

    def feed(self, data: bytes, *, last: bool = False) -> bytes:
        """Add bytes of the stream. Return the bytes that can be forwarded now. `last` is True at the end."""
        data = self.clean(self._held + data)
        held = 0 if last else self._beginning(data)
        self._held = data[len(data) - held :]
        return data[: len(data) - held]

    def clean(self, data: bytes) -> bytes:
        """Return `data` with `(secret)` in place of each hidden text."""
        for hidden in self._hidden:
            data = data.replace(hidden, b"(secret)")
        return data

    def finds(self, name: bytes) -> bool:
        """Return True if the name of a header, in lower case, contains a hidden text."""
        return any(hidden.lower() in name for hidden in self._hidden)

    def _beginning(self, data: bytes) -> int:
        """Return the number of bytes at the end that may begin a hidden text."""
        longest = max(map(len, self._hidden), default=1) - 1
        for size in range(min(longest, len(data)), 0, -1):
            if any(hidden.startswith(data[-size:]) for hidden in self._hidden):
                return size
        return 0
