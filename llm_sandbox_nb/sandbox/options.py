"""What a sandbox is asked to be, checked before anything is started."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llm_sandbox_nb.sandbox.contract import Directories, Limits

ISOLATIONS = ("auto", "docker", "bubblewrap", "process")
PROFILES = ("standard", "strict")
NETWORKS = ("none", "open")


@dataclass(frozen=True)
class SandboxOptions:
    """Everything that can be asked of a new sandbox. `None` leaves it to the isolation and profile."""

    isolation: str = "auto"
    profile: str = "standard"
    image: str | None = None
    """Docker only."""
    network: str | None = None
    limits: Limits = field(default_factory=Limits)
    directories: Directories | None = None
    ca_bundle: Path | None = None
    """PEM file on the host with the certificates of a site's proxy."""
    index_url: str | None = None
    """Python package index."""
    proxy: str | None = None
    """URL of an HTTP proxy."""
    env: Mapping[str, str] = field(default_factory=dict)
    """More environment variables for everything inside."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense, in one sentence.

        Raises:
            ValueError: a name or a limit is wrong; says which are right.
            FileNotFoundError: there is no such CA bundle.
        """
        check_choice("isolation", self.isolation, ISOLATIONS)
        check_choice("profile", self.profile, PROFILES)
        if self.network is not None:
            check_choice("network", self.network, NETWORKS)
        if self.image is not None and self.isolation in ("bubblewrap", "process"):
            raise ValueError(
                f"An image ({self.image!r}) only goes with 'docker'; leave it out for {self.isolation!r}."
            )
        if self.network == "none" and self.isolation == "process":
            raise ValueError(
                "isolation 'process' cannot take the network away; use another, or network='open'."
            )
        _check_limits(self.limits)
        _check_environment(self.env)
        if self.ca_bundle is not None and not self.ca_bundle.is_file():
            raise FileNotFoundError(f"There is no CA bundle {self.ca_bundle}; give the path of a PEM file.")


_LARGEST_LIMITS = {"memory_bytes": 2**60, "pids": 2**22, "cpus": 10_000}
"""What kernels and engines can take; beyond it they fail in ways that help nobody."""


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


def site_environment(options: SandboxOptions, ca_path: str | None) -> dict[str, str]:
    """Variables that tell the usual programs of a site's certificates (`ca_path` inside), index, proxy."""
    found: dict[str, str] = {}
    if ca_path is not None:
        found |= dict.fromkeys(_CA_VARIABLES, ca_path)
    if options.index_url is not None:
        found |= {"PIP_INDEX_URL": options.index_url, "UV_DEFAULT_INDEX": options.index_url}
    if options.proxy is not None:
        names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
        found |= dict.fromkeys(names, options.proxy) | dict.fromkeys(("no_proxy", "NO_PROXY"), _LOCAL)
    return found


_LOCAL = "localhost,127.0.0.1,::1"
_CA_VARIABLES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
)
