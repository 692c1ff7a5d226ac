"""Secrets that never enter the sandbox: a placeholder stands for each inside, and the proxy puts the value in.

The value is read from this process's environment. It goes into headers of requests to the secret's own hosts, and into
their bodies where that was asked for, over TLS that the proxy has verified, and to nothing else. Everything that these
hosts send back is searched for it: they may have kept it from an earlier request.
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

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SHORTEST = 8
IN_BODY = "+body"
"""After a host: its requests get the value in their body too."""
_CREDENTIALS = frozenset(
    (b"authorization", b"cookie", b"x-api-key", b"api-key", b"apikey", b"x-goog-api-key", b"private-token",
     b"job-token", b"x-auth-token", b"x-access-token", b"x-amz-security-token")
)  # fmt: skip
"""Headers that say who asks. With a key of the attacker's own, an allowed host would take the data to the attacker."""


def parse_secrets(entries: Sequence[str] | Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The hosts of each secret, from `NAME=host[,host]` or a mapping; each may end in `IN_BODY`.

    Raises:
        ValueError: an entry is invalid; one sentence, which never repeats what stands after `=`: it may be a value.
    """
    if isinstance(entries, Mapping):
        pairs = [
            (name, hosts.split(",") if isinstance(hosts, str) else [*hosts])
            for name, hosts in entries.items()
        ]
    else:
        pairs = [
            (name.strip(), hosts.split(",")) for name, _, hosts in (one.partition("=") for one in entries)
        ]
    found = {}
    for name, hosts in pairs:
        try:
            parts = [(host.strip().removesuffix(IN_BODY), host.strip().endswith(IN_BODY)) for host in hosts]
            names = [checked_host(host) for host, _ in parts]
            valid = bool(_NAME.match(name) and names) and not any(map(is_literal, names))
            checked = tuple(host + IN_BODY * in_body for host, (_, in_body) in zip(names, parts, strict=True))
        except ValueError:
            valid = False
        if not valid:
            raise ValueError(
                "A secret is NAME=host[,host], as in GITHUB_TOKEN=api.github.com: the name of an environment variable "
                "and the exact names of the hosts that get its value, each with +body where bodies get it too."
            )
        found[name] = checked
    return found


def placeholder(name: str) -> str:
    """What the sandbox has in place of a value. It says nothing of it, and is the same in every sandbox, so that
    files and shells of one work in a fork of it."""
    return f"secret-{name}-is-put-in-outside"


@dataclass(frozen=True)
class Secret:
    """One secret with its value, which `repr` never shows."""

    name: str
    hosts: tuple[str, ...]
    value: str = field(repr=False)
    body_hosts: frozenset[str] = frozenset()
    """Those of the hosts whose requests get it in their body too."""

    @property
    def placeholder(self) -> str:
        """See `placeholder`."""
        return placeholder(self.name)


def read_secrets(
    entries: Mapping[str, Sequence[str]], environment: Mapping[str, str] | None = None
) -> list[Secret]:
    """Read the values of `parse_secrets`' entries from the environment.

    Raises:
        ValueError: a variable is not set, or holds nothing that can be a secret; one sentence without the value.
    """
    found = []
    for name, names in entries.items():
        value = (os.environ if environment is None else environment).get(name, "").strip()
        if not value:
            raise ValueError(
                f"The secret {name} has no value: set the environment variable {name} where you start this."
            )
        if len(value) < _SHORTEST or not value.isascii() or not value.isprintable():
            raise ValueError(
                f"The environment variable {name} holds no secret that can be sent: at least {_SHORTEST} printable "
                "ASCII characters are needed."
            )
        hosts = tuple(one.removesuffix(IN_BODY) for one in names)
        bodies = frozenset(one.removesuffix(IN_BODY) for one in names if one.endswith(IN_BODY))
        found.append(Secret(name, hosts, value, bodies))
    return found


def put_in(
    headers: Headers, secrets: Sequence[Secret]
) -> tuple[list[tuple[bytes, bytes]], list[bytes], list[str]]:
    """The headers of a request with the values in the places of their placeholders.

    Credentials without a placeholder are left out: see `_CREDENTIALS`.

    Returns:
        The headers, what a reply must not repeat beside the values, and the names of the secrets that were put in.
    """
    pairs = [(one.placeholder.encode(), one.value.encode(), one.name) for one in secrets]
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
    """A body of the content type `kind` with the values, and the names of the secrets that were put in."""
    used = []
    for one in secrets:
        stand_in = one.placeholder.encode()
        if stand_in in body:
            value = one.value
            if "json" in kind:
                value = json.dumps(value)[1:-1]
            elif "urlencoded" in kind:
                value = urllib.parse.quote_plus(value)
            body = body.replace(stand_in, value.encode())
            used.append(one.name)
    return body, used


def forms_of(value: str) -> list[bytes]:
    """A value as replies may repeat it: plain, in JSON, in a URL, in base64."""
    forms = [
        value,
        json.dumps(value)[1:-1],
        urllib.parse.quote_plus(value),
        urllib.parse.quote(value, safe=""),
    ]
    encoded = base64.b64encode(value.encode()).decode()
    return [one.encode() for one in dict.fromkeys([*forms, encoded])]


def _put_value(text: bytes, stand_in: bytes, value: bytes) -> tuple[bytes, list[bytes]]:
    """A header's text with the value, also in the base64 of `Basic`; with that base64, which is as secret."""
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
    """Replaces in a stream what must not be seen. It holds back only what may be the beginning of such."""

    def __init__(self, hidden: Sequence[bytes]) -> None:
        self._hidden = sorted(hidden, key=len, reverse=True)
        self._held = b""

    def feed(self, data: bytes, *, last: bool = False) -> bytes:
        """The next piece that may be passed on."""
        data = self.clean(self._held + data)
        held = 0 if last else self._beginning(data)
        self._held = data[len(data) - held :]
        return data[: len(data) - held]

    def clean(self, data: bytes) -> bytes:
        """A whole text without what must not be seen."""
        for one in self._hidden:
            data = data.replace(one, b"(secret)")
        return data

    def finds(self, name: bytes) -> bool:
        """Whether a name of a header, which is in small letters, has something that must not be seen."""
        return any(one.lower() in name for one in self._hidden)

    def _beginning(self, data: bytes) -> int:
        """How many bytes at the end may be the beginning of something hidden."""
        longest = max(map(len, self._hidden), default=1) - 1
        for size in range(min(longest, len(data)), 0, -1):
            if any(one.startswith(data[-size:]) for one in self._hidden):
                return size
        return 0
