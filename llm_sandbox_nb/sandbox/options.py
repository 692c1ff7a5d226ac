"""Options of a sandbox. They are the same in Python, in notebooks and in requests to a server."""

from __future__ import annotations

import contextlib
import difflib
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from llm_sandbox_nb.sandbox.contract import Directories, Protection
from llm_sandbox_nb.sandbox.isolations import ISOLATIONS, NETWORKS, PROFILES, isolation_choices
from llm_sandbox_nb.sandbox.limits import Limits
from llm_sandbox_nb.sandbox.network.environment import CA_VARIABLES, door_variables, proxy_variables
from llm_sandbox_nb.sandbox.network.policy import checked_entries
from llm_sandbox_nb.sandbox.network.secrets import parse_secrets

_ALLOW = "allow"
_TEXT_FIELDS = ("isolation", "profile", "image", "network", "index_url", "proxy")
GIT_EMAIL = "sandbox@localhost"
"""Value of the variable EMAIL inside. Git writes this address into commits, unless git is configured otherwise."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Value of PATH with the usual system folders, which only root can write."""
ROOT_ENVIRONMENT = {"HOME": "/root", "USER": "root", "LOGNAME": "root", "PATH": SYSTEM_PATH}
"""Environment variables of commands that run as root inside, and do not come from the model."""
_MAX_TEXT_LENGTH = 4096
_MAX_LIST_LENGTH = 1000
_MAX_PEM_LENGTH = 4 * 1024 * 1024


@dataclass(frozen=True)
class SandboxOptions:
    """Options of a new sandbox. If an option is None, the isolation, the profile or the site decides."""

    isolation: str | None = None
    profile: str | None = None
    image: str | None = None
    """Docker image. Only isolations with `Isolation.takes_images` accept an image."""
    network: str | None = None
    limits: Limits | None = None
    directories: Directories | None = None
    ca_bundle: Path | None = None
    """PEM file on this machine with certificates that programs inside trust."""
    index_url: str | None = None
    """URL of a Python package index."""
    proxy: str | None = None
    """URL of an HTTP proxy."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables for all programs inside."""
    ca_bundle_pem: str | None = None
    """Text of the certificates, in place of `ca_bundle`. A client on another machine sends the text, because a path
    there is of no use here."""
    allow: tuple[str, ...] = ()
    """Hosts that programs inside can reach. Needs the network `allow`. `network.policy.HostRule` has the format."""
    secrets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of environment variables of the process that opens the sandbox, each with the hosts that get its value.
    Needs the network `allow`."""

    def __post_init__(self) -> None:
        """Check each value and the combinations of values. Set `network` to `allow` if the other options need it.

        Raises:
            ValueError: if a value is invalid. The message names the valid values.
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
            takers = " or ".join(repr(row.name) for row in ISOLATIONS.values() if row.takes_images)
            raise ValueError(
                f"An image ({self.image!r}) needs isolation {takers}; leave it out for {isolation.name!r}."
            )
        if isolation and self.network is not None and self.network not in isolation.networks:
            possible = " or ".join(f"network={name!r}" for name in isolation.networks)
            if self.network == _ALLOW:
                raise ValueError(
                    f"isolation {isolation.name!r} cannot enforce a list of allowed hosts, because nothing separates "
                    "it from this machine's network; use another isolation."
                )
            raise ValueError(
                f"isolation {isolation.name!r} has no network {self.network!r}: use another isolation, or {possible}."
            )
        _check_limits(self.resources)
        _check_url("proxy", self.proxy, "http://proxy.example.org:3128")
        _check_url("index_url", self.index_url, "https://pypi.example.org/simple")
        check_environment(self.env)

    def _check_allowed(self) -> None:
        allow, secrets = checked_entries(self.allow), parse_secrets(self.secrets)
        network = self.network or (_ALLOW if allow or secrets else None)
        if network != _ALLOW and (allow or secrets):
            raise ValueError(
                f"network={network!r} takes no list of hosts and no secrets: use network='allow' instead."
            )
        for name, value in (("allow", allow), ("secrets", secrets), ("network", network)):
            object.__setattr__(self, name, value)
        if self.has_door and self.proxy:
            where = "" if network == _ALLOW else f" of {self.isolation}"
            raise ValueError(
                f"network={network!r}{where} brings its own proxy into the sandbox: leave the option proxy out."
            )

    def check_files(self) -> None:
        """Check that the CA bundle exists.

        Raises:
            FileNotFoundError: if the CA bundle is missing.
        """
        if self.ca_bundle is not None and not self.ca_bundle.is_file():
            raise FileNotFoundError(f"There is no CA bundle {self.ca_bundle}; give the path of a PEM file.")

    @property
    def has_door(self) -> bool:
        """True if programs inside reach the network only through a proxy of this package.

        The door is a socket inside that leads to the proxy. Docker's network `public` needs no door, because a packet
        filter closes the forbidden addresses.
        """
        isolation = ISOLATIONS.get(self.isolation or "")
        by_isolation = isolation is not None and isolation.door_for_public
        return self.network == _ALLOW or (self.network == "public" and by_isolation)

    @property
    def chosen_profile(self) -> str:
        """The requested profile, or the default profile if none was requested."""
        return self.profile or PROFILES[0]

    @property
    def resources(self) -> Limits:
        """The requested limits, or the default limits if none were requested."""
        return self.limits or Limits()

    def to_json(self) -> dict[str, Any]:
        """Return the options as JSON values for a client or server.

        The result lacks `ca_bundle_pem`, and `directories` and `env`, which only `open_sandbox` sets.
        """
        return {
            **{name: getattr(self, name) for name in _TEXT_FIELDS},
            "limits": self.limits and asdict(self.limits),
            "ca_bundle": self.ca_bundle and str(self.ca_bundle),
            "allow": list(self.allow) or None,
            "secrets": {name: list(hosts) for name, hosts in self.secrets.items()} or None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, default_limits: Limits | None = None) -> SandboxOptions:
        """Make options from the result of `to_json`, or from a client's request. Ignore unknown fields.

        Args:
            data: values of the fields by name. `limits` may lack some names.
            default_limits: values for names that `limits` lacks; the package's defaults if None.

        Raises:
            ValueError: if a field is invalid. The message names the field.
        """
        bundle = _text(data, "ca_bundle")
        texts: dict[str, Any] = {name: _text(data, name) for name in _TEXT_FIELDS}
        return cls(
            **texts,
            limits=_limits(data.get("limits"), default_limits or Limits()),
            ca_bundle=Path(bundle) if bundle else None,
            ca_bundle_pem=_text(data, "ca_bundle_pem", _MAX_PEM_LENGTH),
            allow=_texts(data.get("allow"), "allow"),
            secrets=_secrets(data.get("secrets")),
        )

    def unmet_by(self, running: SandboxOptions, protection: Protection) -> dict[str, tuple[object, object]]:
        """Return the options of this object that a running sandbox does not fulfil.

        `directories` and `env` are not compared, because only `open_sandbox` sets them, and it always starts a new
        sandbox.

        Args:
            running: the options with which the sandbox was started.
            protection: the sandbox's protection in force.

        Returns:
            For the name of each such option, a pair of the requested value and the actual value.
        """
        unmet: dict[str, tuple[object, object]] = {}
        for name in [option.name for option in fields(self) if option.name not in ("directories", "env")]:
            requested = getattr(self, name)
            started = running.resources if name == "limits" else getattr(running, name)
            in_force = (
                getattr(protection, name) if name in _PROTECTION_FIELDS else protection.details.get(name)
            )
            if requested not in (None, (), {}, started, in_force) and not (
                name == "isolation" and requested == "auto"
            ):
                unmet[name] = (requested, in_force or started)
        return unmet


_PROTECTION_FIELDS = ("isolation", "profile", "network")
_LIMIT_RANGES = {
    "memory_bytes": (16 * 1024**2, 2**60),
    "pids": (8, 2**22),
    "cpus": (0.01, 10_000),
    "disk_bytes": (1, 2**60),
    "files": (1, 2**40),
}
"""Values with which a sandbox starts, and which kernels and engines accept. This module refuses other values, because
the error messages of kernels and engines are hard to understand."""


def check_choice(option: str, value: str, choices: Sequence[str]) -> None:
    """Check the value of an option. `option` is the option's name.

    Raises:
        ValueError: if `value` is not one of `choices`. The message lists the choices.
    """
    if value in choices:
        return
    near = difflib.get_close_matches(str(value), choices, 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    listed = ", ".join(repr(choice) for choice in choices[:-1])
    raise ValueError(f"Unknown {option} {value!r}{hint}: choose {listed} or {choices[-1]!r}.")


def _check_limits(limits: Limits) -> None:
    for name, (minimum, maximum) in _LIMIT_RANGES.items():
        value = getattr(limits, name)
        if value is None:
            continue
        if not value >= minimum:
            raise ValueError(f"The limit {name} is {value!r}; give at least {minimum}, or None for no limit.")
        if value > maximum:
            # a larger integer cannot be converted to a float for the format
            shown = f"{value:g}" if value <= 10**308 else "far too large"
            raise ValueError(f"The limit {name} is {shown}; give at most {maximum}, or None for no limit.")


def _check_url(option: str, url: str | None, example: str) -> None:
    if url is None:
        return
    with contextlib.suppress(ValueError):  # urlsplit raises it for a bad address, `port` for a bad port
        parts = urlsplit(url)
        _ = parts.port
        if parts.hostname or parts.scheme == "file":
            return
    raise ValueError(f"The {option} {url!r} is not a URL with a host; give one such as {example}.")


def check_environment(env: Mapping[str, str]) -> None:
    """Raise ValueError if `env` has an invalid name or value, so that no program could start with these variables."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(
                f"{name!r} cannot be an environment variable: no '=' in names, no NUL bytes anywhere."
            )


def _text(data: Mapping[str, Any], name: str, max_length: int = _MAX_TEXT_LENGTH) -> str | None:
    value = data.get(name)
    if value is not None and not (isinstance(value, str) and 0 < len(value) <= max_length):
        raise ValueError(f"{name!r} must be a text of 1 to {max_length} characters, or be left out.")
    return value


def _texts(value: Any, name: str) -> tuple[str, ...]:
    if value is None:
        return ()
    valid = isinstance(value, list) and len(value) <= _MAX_LIST_LENGTH
    if not valid or not all(isinstance(text, str) for text in value):
        raise ValueError(f"{name!r} must be a list of at most {_MAX_LIST_LENGTH} texts, or be left out.")
    return tuple(value)


def _secrets(value: Any) -> dict[str, tuple[str, ...]]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > _MAX_LIST_LENGTH:
        raise ValueError("'secrets' must be an object of names, each with a list of hosts, or be left out.")
    return {str(name): _texts(hosts, name) for name, hosts in value.items()}


def _limits(value: Any, defaults: Limits) -> Limits | None:
    if value is None:
        return None
    names = {limit.name for limit in fields(Limits)}
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
    """Return environment variables with which common programs use a site's certificates, package index and proxy.

    `ca_path` is the path of the certificates inside. None if the site has no certificates.
    """
    variables: dict[str, str] = {}
    if ca_path is not None:
        variables |= dict.fromkeys(CA_VARIABLES, ca_path)
    if options.index_url is not None:
        variables |= {"PIP_INDEX_URL": options.index_url, "UV_DEFAULT_INDEX": options.index_url}
    if options.proxy is not None:
        variables |= proxy_variables(options.proxy)
    if options.has_door:
        variables |= door_variables(options.secrets)
    return variables


def stated_addresses(options: SandboxOptions) -> tuple[tuple[str, int], ...]:
    """Return address and port of the proxy and of the package index. A URL with a host name is left out."""
    addresses = []
    for url in filter(None, (options.proxy, options.index_url)):
        parts = urlsplit(url)
        with contextlib.suppress(ValueError):
            address = str(ipaddress.ip_address(parts.hostname or ""))
            addresses.append((address, parts.port or {"https": 443}.get(parts.scheme, 80)))
    return tuple(addresses)
