"""What a sandbox is asked to be: the same for Python, notebooks and requests to a server."""

from __future__ import annotations

import contextlib
import difflib
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from llm_sandbox_nb.sandbox.contract import Directories, Limits, Protection
from llm_sandbox_nb.sandbox.isolations import ISOLATIONS, NETWORKS, PROFILES, isolation_choices
from llm_sandbox_nb.sandbox.network.environment import CA_VARIABLES, door_variables, proxy_variables
from llm_sandbox_nb.sandbox.network.policy import checked_entries
from llm_sandbox_nb.sandbox.network.secrets import parse_secrets

_ALLOW = "allow"
_TEXTS = ("isolation", "profile", "image", "network", "index_url", "proxy")
GIT_EMAIL = "sandbox@localhost"
"""Variable EMAIL inside: git commits with it and the user's name, unless a setting names another."""
_LONGEST_TEXT = 4096
_MOST_ENTRIES = 1000
_LONGEST_PEM = 4 * 1024 * 1024


@dataclass(frozen=True)
class SandboxOptions:
    """Everything that can be asked of a new sandbox. `None` leaves it to the isolation, the profile, or the site."""

    isolation: str | None = None
    profile: str | None = None
    image: str | None = None
    """Only for isolations that take images."""
    network: str | None = None
    limits: Limits | None = None
    directories: Directories | None = None
    ca_bundle: Path | None = None
    """PEM file on this machine with the certificates of a site's proxy."""
    index_url: str | None = None
    """Python package index."""
    proxy: str | None = None
    """URL of an HTTP proxy."""
    env: Mapping[str, str] = field(default_factory=dict)
    """More environment variables for everything inside."""
    ca_bundle_pem: str | None = None
    """The certificates themselves, from a client whose files are not here."""
    allow: tuple[str, ...] = ()
    """With the network `allow`: the hosts that may be reached, see `network.policy.HostRule`."""
    secrets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """With the network `allow`: environment variables of the owner, each with the hosts that get its value."""

    def __post_init__(self) -> None:
        """Refuse invalid values and combinations, in one sentence.

        Raises:
            ValueError: a name or a limit is invalid; says which are valid.
        """
        if self.isolation is not None:
            check_choice("isolation", self.isolation, isolation_choices())
        if self.profile is not None:
            check_choice("profile", self.profile, PROFILES)
        if self.network is not None:
            check_choice("network", self.network, NETWORKS)
        self._check_allowed()
        isolation = ISOLATIONS.get(self.isolation or "auto")
        if isolation and self.image is not None and not isolation.takes_images:
            takers = " or ".join(repr(one.name) for one in ISOLATIONS.values() if one.takes_images)
            raise ValueError(
                f"An image ({self.image!r}) only goes with {takers}; leave it out for {isolation.name!r}."
            )
        if isolation and self.network is not None and self.network not in isolation.networks:
            possible = " or ".join(f"network={name!r}" for name in isolation.networks)
            if self.network == _ALLOW:
                raise ValueError(
                    f"isolation {isolation.name!r} cannot hold a list of allowed hosts, because nothing separates it "
                    "from this machine's network; use another isolation."
                )
            raise ValueError(
                f"isolation {isolation.name!r} has no network {self.network!r}: use another isolation, or {possible}."
            )
        _check_limits(self.resources)
        _check_environment(self.env)

    def _check_allowed(self) -> None:
        allow, secrets = checked_entries(self.allow), parse_secrets(self.secrets)
        network = self.network or (_ALLOW if allow or secrets else None)
        if network != _ALLOW and (allow or secrets):
            raise ValueError(
                f"network={network!r} takes no list of hosts and no secrets: say network='allow' instead."
            )
        if network == _ALLOW and self.proxy:
            raise ValueError(
                "network='allow' brings its own proxy into the sandbox: leave the option proxy out."
            )
        for name, value in (("allow", allow), ("secrets", secrets), ("network", network)):
            object.__setattr__(self, name, value)

    def check_files(self) -> None:
        """Refuse a CA bundle that does not exist.

        Raises:
            FileNotFoundError: always one sentence.
        """
        if self.ca_bundle is not None and not self.ca_bundle.is_file():
            raise FileNotFoundError(f"There is no CA bundle {self.ca_bundle}; give the path of a PEM file.")

    @property
    def has_door(self) -> bool:
        """Whether the network is a proxy of this package alone; Docker filters packets for `public`."""
        return self.network == _ALLOW or (self.network == "public" and self.isolation == "bubblewrap")

    @property
    def chosen_profile(self) -> str:
        """The profile to start with."""
        return self.profile or PROFILES[0]

    @property
    def resources(self) -> Limits:
        """The limits to start with."""
        return self.limits or Limits()

    def to_json(self) -> dict[str, Any]:
        """What a client and a server exchange, as plain JSON values; without the certificates themselves."""
        return {
            **{name: getattr(self, name) for name in _TEXTS},
            "limits": self.limits and asdict(self.limits),
            "ca_bundle": self.ca_bundle and str(self.ca_bundle),
            "allow": list(self.allow) or None,
            "secrets": {name: list(hosts) for name, hosts in self.secrets.items()} or None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, default_limits: Limits | None = None) -> SandboxOptions:
        """Read what `to_json` made, or a request of a client; other fields are ignored.

        Args:
            data: `limits` may name only some; `default_limits` are the others.
            default_limits: the package's own when None.

        Raises:
            ValueError: says which field is invalid.
        """
        bundle = _text(data, "ca_bundle")
        texts: dict[str, Any] = {name: _text(data, name) for name in _TEXTS}
        return cls(
            **texts,
            limits=_limits(data.get("limits"), default_limits or Limits()),
            ca_bundle=Path(bundle) if bundle else None,
            ca_bundle_pem=_text(data, "ca_bundle_pem", _LONGEST_PEM),
            allow=_texts(data, "allow"),
            secrets=_secrets(data.get("secrets")),
        )

    def unmet_by(self, running: SandboxOptions, protection: Protection) -> dict[str, tuple[object, object]]:
        """What is asked for here and differs from a running sandbox: each name, with both values.

        Args:
            running: what that was started with.
            protection: what is in force in it.
        """
        found: dict[str, tuple[object, object]] = {}
        for name in [one.name for one in fields(self) if one.name not in ("directories", "env")]:
            asked, started = getattr(self, name), getattr(running, name)
            in_force = getattr(protection, name) if name in _IN_FORCE else protection.details.get(name)
            if asked not in (None, (), {}, started, in_force) and not (
                name == "isolation" and asked == "auto"
            ):
                found[name] = (asked, in_force or started)
        return found


_IN_FORCE = ("isolation", "profile", "network")
_LARGEST_LIMITS = {"memory_bytes": 2**60, "pids": 2**22, "cpus": 10_000, "disk_bytes": 2**60, "files": 2**40}
"""What kernels and engines accept; larger values fail with errors that do not help."""


def check_choice(what: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a value that is none of `choices`, and name them.

    Raises:
        ValueError: always one sentence.
    """
    if value in choices:
        return
    near = difflib.get_close_matches(str(value), choices, 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    listed = ", ".join(repr(choice) for choice in choices[:-1])
    raise ValueError(f"Unknown {what} {value!r}{hint}: choose {listed} or {choices[-1]!r}.")


def _check_limits(limits: Limits) -> None:
    for name, most in _LARGEST_LIMITS.items():
        value = getattr(limits, name)
        if value is None:
            continue
        if not value > 0:
            raise ValueError(
                f"The limit {name} is {value!r}; give a number above zero, or None for no limit."
            )
        if value > most:
            raise ValueError(f"The limit {name} is {value:g}; give at most {most}, or None for no limit.")


def _check_environment(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(
                f"{name!r} cannot be an environment variable: no '=' in names, no NUL bytes anywhere."
            )


def _text(data: Mapping[str, Any], name: str, longest: int = _LONGEST_TEXT) -> str | None:
    value = data.get(name)
    if value is not None and not (isinstance(value, str) and 0 < len(value) <= longest):
        raise ValueError(f"{name!r} must be a text of 1 to {longest} characters, or be left out.")
    return value


def _texts(data: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = data.get(name)
    if value is None:
        return ()
    if (
        not isinstance(value, list)
        or len(value) > _MOST_ENTRIES
        or not all(isinstance(one, str) for one in value)
    ):
        raise ValueError(f"{name!r} must be a list of at most {_MOST_ENTRIES} texts, or be left out.")
    return tuple(value)


def _secrets(value: Any) -> dict[str, tuple[str, ...]]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > _MOST_ENTRIES:
        raise ValueError("'secrets' must be an object of names, each with a list of hosts, or be left out.")
    return {str(name): _texts(value, name) for name in value}


def _limits(value: Any, defaults: Limits) -> Limits | None:
    if value is None:
        return None
    names = {one.name for one in fields(Limits)}
    if not isinstance(value, dict) or not set(value) <= names:
        raise ValueError(f"'limits' must be an object that names some of {', '.join(sorted(names))}.")
    for name, number in value.items():
        invalid = isinstance(number, bool) or not isinstance(number, int | float | None)
        if invalid or (number is not None and not 0 < number < float("inf")):
            raise ValueError(f"'limits.{name}' must be a number above zero, or null for no limit.")
    given = {**asdict(defaults), **value}
    whole = {name: number and int(number) for name, number in given.items() if name != "cpus"}
    return Limits(**whole, cpus=given["cpus"])


def site_environment(options: SandboxOptions, ca_path: str | None) -> dict[str, str]:
    """Variables that point the usual programs to a site's certificates (`ca_path` inside), index, proxy."""
    found: dict[str, str] = {}
    if ca_path is not None:
        found |= dict.fromkeys(CA_VARIABLES, ca_path)
    if options.index_url is not None:
        found |= {"PIP_INDEX_URL": options.index_url, "UV_DEFAULT_INDEX": options.index_url}
    if options.proxy is not None:
        found |= proxy_variables(options.proxy)
    if options.has_door:
        found |= door_variables(options.secrets)
    return found


def stated_addresses(options: SandboxOptions) -> tuple[tuple[str, int], ...]:
    """The addresses and ports of a site's proxy and package index, as far as they are stated as numbers."""
    found = []
    for url in filter(None, (options.proxy, options.index_url)):
        parts = urlsplit(url)
        with contextlib.suppress(ValueError):
            address = str(ipaddress.ip_address(parts.hostname or ""))
            found.append((address, parts.port or {"https": 443}.get(parts.scheme, 80)))
    return tuple(found)
