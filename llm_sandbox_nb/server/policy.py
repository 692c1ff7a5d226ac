"""What a site allows: isolations, profiles, images, networks and limits of sandboxes, and the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

from traitlets import Bool, Enum, Float, Integer, List, Unicode
from traitlets.config import Configurable

from llm_sandbox_nb.sandbox.contract import Limits
from llm_sandbox_nb.sandbox.docker_image import DEFAULT_IMAGE
from llm_sandbox_nb.sandbox.errors import PolicyError

ISOLATIONS = ("docker", "bubblewrap", "process")
PROFILES = ("standard", "strict")
NETWORKS = ("none", "open")
_AUTO_ORDER = ("docker", "bubblewrap")
_LONGEST_TEXT = 4096
_LONGEST_PEM = 4 * 1024 * 1024


@dataclass(frozen=True)
class SandboxRequest:
    """What a client asked for. `None` leaves the choice to the site; `limits` holds only what was named."""

    isolation: str | None = None
    profile: str | None = None
    image: str | None = None
    network: str | None = None
    limits: Mapping[str, float | None] | None = None
    index_url: str | None = None
    proxy: str | None = None
    ca_bundle_pem: str | None = None
    """Certificates themselves: a path would mean nothing here, or a file that is not the client's to read."""

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> SandboxRequest:
        """Check the types of a request body. Raises ValueError naming the first field that is wrong."""
        texts = {field.name: _text(body, field.name) for field in fields(cls) if field.name != "limits"}
        return cls(limits=_limits(body.get("limits")), **texts)


def _text(body: Mapping[str, Any], name: str) -> str | None:
    value, longest = body.get(name), _LONGEST_PEM if name == "ca_bundle_pem" else _LONGEST_TEXT
    if value is not None and not (isinstance(value, str) and 0 < len(value) <= longest):
        raise ValueError(f"{name!r} must be a text of 1 to {longest} characters, or be left out.")
    return value


def _limits(value: Any) -> dict[str, float | None] | None:
    if value is None:
        return None
    names = {field.name for field in fields(Limits)}
    if not isinstance(value, dict) or not set(value) <= names:
        raise ValueError(f"'limits' must be an object that names some of {', '.join(sorted(names))}.")
    for name, number in value.items():
        wrong = isinstance(number, bool) or not isinstance(number, int | float | None)
        if wrong or (number is not None and not 0 < number < float("inf")):
            raise ValueError(f"'limits.{name}' must be a number above zero, or null for no limit.")
    return value


@dataclass(frozen=True)
class SandboxSpec:
    """What a sandbox is started with, after the policy has filled in and agreed to everything."""

    isolation: str
    profile: str
    image: str | None
    network: str | None
    limits: Limits
    index_url: str | None = None
    proxy: str | None = None
    ca_bundle: str | None = None
    """Path of the site's PEM file."""
    ca_bundle_pem: str | None = None
    """The client's own certificates."""

    def to_json(self) -> dict[str, Any]:
        """The same as plain JSON values, without the certificates."""
        return {name: value for name, value in asdict(self).items() if name != "ca_bundle_pem"}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SandboxSpec:
        """The spec that `to_json` made `data` from. Raises TypeError when it is of another version."""
        return cls(**{**data, "limits": Limits(**data["limits"])})


class SandboxPolicy(Configurable):
    """The site's rules. Every trait is an administrator's to set; what goes beyond them is refused."""

    allowed_isolations = List(
        Enum(ISOLATIONS),
        default_value=list(ISOLATIONS),
        help="Isolations a sandbox may use. `process` isolates nothing and is only used when asked for.",
    ).tag(config=True)
    default_isolation = Enum(
        ("auto", *ISOLATIONS),
        default_value="auto",
        help="Isolation when none is asked for. `auto` takes the strongest that works, never `process`.",
    ).tag(config=True)
    allowed_profiles = List(
        Enum(PROFILES), default_value=list(PROFILES), help="Profiles a sandbox may use."
    ).tag(config=True)
    default_profile = Enum(PROFILES, default_value="standard", help="Profile when none is asked for.").tag(
        config=True
    )
    allowed_images = List(
        Unicode(),
        help="Images a sandbox may use, as shell-style patterns such as `registry.example/team/*`. "
        "Empty allows any image. The default image is always allowed.",
    ).tag(config=True)
    default_image = Unicode(
        None, allow_none=True, help="Image when none is asked for; None means this package's own."
    ).tag(config=True)
    allowed_networks = List(
        Enum(NETWORKS), default_value=list(NETWORKS), help="Networks a sandbox may have."
    ).tag(config=True)
    default_network = Enum(
        (None, *NETWORKS),
        default_value=None,
        help="Network when none is asked for; None leaves it to the profile (`strict` has none).",
    ).tag(config=True)
    max_memory_bytes = Integer(
        None, allow_none=True, help="Most memory one sandbox may ask for, in bytes; None means any."
    ).tag(config=True)
    max_pids = Integer(
        None, allow_none=True, help="Most processes one sandbox may ask for; None means any."
    ).tag(config=True)
    max_cpus = Float(None, allow_none=True, help="Most CPUs one sandbox may ask for; None means any.").tag(
        config=True
    )
    default_memory_bytes = Integer(
        Limits().memory_bytes, allow_none=True, help="Memory of a sandbox in bytes; None means no limit."
    ).tag(config=True)
    default_pids = Integer(
        Limits().pids, allow_none=True, help="Processes a sandbox may have; None means no limit."
    ).tag(config=True)
    default_cpus = Float(Limits().cpus, allow_none=True, help="CPUs of a sandbox; None means no limit.").tag(
        config=True
    )
    ca_bundle = Unicode(
        None,
        allow_none=True,
        help="PEM file of the site's certificates for each sandbox; when set, it is the only one.",
    ).tag(config=True)
    index_url = Unicode(
        None, allow_none=True, help="Package index of each sandbox; when set, nobody may ask for another."
    ).tag(config=True)
    proxy = Unicode(
        None, allow_none=True, help="HTTP proxy of each sandbox; when set, nobody may ask for another."
    ).tag(config=True)

    allow_terminal = Bool(
        True, help="Whether people may open a terminal in a running sandbox from the side panel."
    ).tag(config=True)

    def resolve(self, request: SandboxRequest) -> SandboxSpec:
        """Fill in what was left open and check it all.

        Raises:
            PolicyError: the site does not allow what was asked for; says what it does allow.
        """
        return SandboxSpec(
            isolation=self._isolation(request.isolation or self.default_isolation),
            profile=_allowed("profile", request.profile or self.default_profile, self.allowed_profiles),
            image=self._image(request.image),
            network=self._network(request),
            limits=self._limits(request.limits or {}),
            index_url=_sites("package index", request.index_url, self.index_url),
            proxy=_sites("proxy", request.proxy, self.proxy),
            ca_bundle=self.ca_bundle,
            ca_bundle_pem=request.ca_bundle_pem
            and _sites("CA bundle", request.ca_bundle_pem, self.ca_bundle),
        )

    def to_json(self) -> dict[str, Any]:
        """What the rules are, for clients that offer choices."""
        names = ("isolations", "profiles", "images", "networks")
        return {
            **{f"allowed_{name}": list(getattr(self, f"allowed_{name}")) for name in names},
            **{f"default_{name[:-1]}": getattr(self, f"default_{name[:-1]}") for name in names},
            "max_limits": {field.name: self._maximum(field.name) for field in fields(Limits)},
            "default_limits": asdict(self._limits({})),
            "allow_terminal": self.allow_terminal,
        }

    def _isolation(self, wanted: str) -> str:
        if wanted != "auto":
            return _allowed("isolation", wanted, self.allowed_isolations)
        usable = [name for name in _AUTO_ORDER if name in self.allowed_isolations]
        if not usable:
            raise PolicyError(
                "This site allows only the isolation 'process', which protects nothing and so is never taken "
                "by itself; ask for it by name."
            )
        return "auto" if len(usable) == len(_AUTO_ORDER) else usable[0]

    def _image(self, wanted: str | None) -> str | None:
        default = self.default_image or DEFAULT_IMAGE
        if wanted is None or wanted == default or not self.allowed_images:
            return wanted or self.default_image
        if any(fnmatchcase(wanted, pattern) for pattern in self.allowed_images):
            return wanted
        raise PolicyError(
            f"This site does not allow the image {wanted!r}; use {_either(self.allowed_images)}, "
            "or leave it out."
        )

    def _network(self, request: SandboxRequest) -> str | None:
        network = request.network or self.default_network
        if network is None and set(self.allowed_networks) != set(NETWORKS):
            profile = request.profile or self.default_profile
            network = "none" if profile == "strict" else "open"
            if network not in self.allowed_networks:
                network = self.allowed_networks[0] if self.allowed_networks else network
        return network if network is None else _allowed("network", network, self.allowed_networks)

    def _limits(self, wanted: Mapping[str, float | None]) -> Limits:
        values = {
            field.name: self._limit(field.name, wanted[field.name])
            if field.name in wanted
            else self._default_limit(field.name)
            for field in fields(Limits)
        }
        pids, memory = values["pids"], values["memory_bytes"]
        return Limits(
            memory_bytes=None if memory is None else int(memory),
            pids=None if pids is None else int(pids),
            cpus=values["cpus"],
        )

    def _maximum(self, name: str) -> float | None:
        value: float | None = getattr(self, f"max_{name}")
        return value

    def _default_limit(self, name: str) -> float | None:
        default, maximum = getattr(self, f"default_{name}"), self._maximum(name)
        known = [value for value in (default, maximum) if value is not None]
        return min(known) if known else None

    def _limit(self, name: str, wanted: float | None) -> float | None:
        maximum = self._maximum(name)
        if maximum is not None and (wanted is None or wanted > maximum):
            asked = "no limit" if wanted is None else f"{wanted:g}"
            raise PolicyError(f"This site allows at most {maximum:g} for {name}; {asked} was asked for.")
        return wanted


def _allowed(what: str, wanted: str, allowed: list[str]) -> str:
    if wanted in allowed:
        return wanted
    raise PolicyError(f"This site does not allow the {what} {wanted!r}; ask for {_either(allowed)}.")


def _sites(what: str, wanted: str | None, fixed: str | None) -> str | None:
    """What the site has fixed, else what is wanted."""
    if fixed is not None and wanted not in (None, fixed):
        raise PolicyError(f"This site fixes the {what} of its sandboxes itself; leave yours out.")
    return fixed or wanted


def _either(names: list[str]) -> str:
    return " or ".join(repr(name) for name in names) or "none (an administrator has allowed none)"
