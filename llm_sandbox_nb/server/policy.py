"""Rules of a site for the isolation, profile, image, network and limits of its sandboxes, and the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from traitlets import Bool, Enum, Float, Integer, List, Unicode
from traitlets.config import Configurable

from llm_sandbox_nb.sandbox.docker.images import DEFAULT_IMAGE
from llm_sandbox_nb.sandbox.errors import PolicyError
from llm_sandbox_nb.sandbox.isolations import (
    NETWORKS,
    PROFILES,
    automatic_isolations,
    default_network,
    isolation_choices,
)
from llm_sandbox_nb.sandbox.limits import Limits
from llm_sandbox_nb.sandbox.options import SandboxOptions


def _limit(kind: type[Any], default: float | None, help: str) -> Any:
    return kind(default, allow_none=True, help=help).tag(config=True)


class SandboxPolicy(Configurable):
    """The site's rules, set by an administrator. Requests that break a rule are refused."""

    allow_mcp = Bool(True, help="Let notebooks offer their sandboxes to outside agents, over MCP.").tag(
        config=True
    )
    allow_mcp_runs = Bool(
        False, help="Let outside agents start runs of this package's agent over MCP. Each run costs tokens."
    ).tag(config=True)
    mcp_run_models = List(
        Unicode(),
        help="Models that outside agents may name for such a run, as shell-style patterns such as `openai/*`. If "
        "empty, only the model of the notebook is allowed.",
    ).tag(config=True)
    allowed_isolations = List(
        Enum(isolation_choices()[1:]),
        default_value=list(isolation_choices()[1:]),
        help="Isolations that a sandbox may use. `process` isolates nothing, so it is used only if a request names it.",
    ).tag(config=True)
    default_isolation = Enum(
        isolation_choices(),
        default_value="auto",
        help="Isolation if a request names no isolation. `auto`: the strongest that works, never `process`.",
    ).tag(config=True)
    allowed_profiles = List(
        Enum(PROFILES), default_value=list(PROFILES), help="Profiles that a sandbox may use."
    ).tag(config=True)
    default_profile = Enum(
        PROFILES, default_value="standard", help="Profile if a request names no profile."
    ).tag(config=True)
    allowed_images = List(
        Unicode(),
        help="Images that a sandbox may use, as shell-style patterns such as `registry.example/team/*`. "
        "An empty list allows any image. The default image is always allowed.",
    ).tag(config=True)
    default_image = Unicode(
        None, allow_none=True, help="Image if a request names no image. None: the image of this package."
    ).tag(config=True)
    allowed_networks = List(
        Enum(NETWORKS),
        default_value=list(NETWORKS),
        help="Networks that a sandbox may have. `open` is not safe: it reaches servers on this machine and in its "
        "local network. If `open` is allowed, `public` and `allow` are allowed too.",
    ).tag(config=True)
    default_network = Enum(
        (None, *NETWORKS),
        default_value=None,
        help="Network if a request names no network. None: the profile decides (`strict` has no network).",
    ).tag(config=True)
    max_memory_bytes = _limit(
        Integer, None, "Maximum bytes of memory that a request may ask for; None: no maximum."
    )
    max_pids = _limit(Integer, None, "Maximum processes that a request may ask for; None: no maximum.")
    max_cpus = _limit(Float, None, "Maximum CPUs that a request may ask for; None: no maximum.")
    max_disk_bytes = _limit(
        Integer, None, "Maximum bytes of files that a request may ask for; None: no maximum."
    )
    max_files = _limit(Integer, None, "Maximum number of files that a request may ask for; None: no maximum.")
    default_memory_bytes = _limit(
        Integer,
        Limits().memory_bytes,
        "Memory of a sandbox, in bytes, if the request names none; None: no limit.",
    )
    default_pids = _limit(
        Integer, Limits().pids, "Maximum processes if the request names none; None: no limit."
    )
    default_cpus = _limit(
        Float, Limits().cpus, "CPUs of a sandbox if the request names none; None: no limit."
    )
    default_disk_bytes = _limit(
        Integer, Limits().disk_bytes, "Maximum bytes of all files if the request names none; None: no limit."
    )
    default_files = _limit(
        Integer, Limits().files, "Maximum number of files if the request names none; None: no limit."
    )
    ca_bundle = Unicode(
        None,
        allow_none=True,
        help="PEM file with the site's certificates, for all sandboxes; if set, a request may name no other file.",
    ).tag(config=True)
    index_url = Unicode(
        None, allow_none=True, help="Package index of all sandboxes; if set, a request may name no other."
    ).tag(config=True)
    proxy = Unicode(
        None, allow_none=True, help="HTTP proxy of all sandboxes; if set, a request may name no other."
    ).tag(config=True)

    allow_terminal = Bool(
        True, help="Let people open a terminal in a running sandbox from the side panel."
    ).tag(config=True)

    def read_request(self, body: Mapping[str, Any]) -> SandboxOptions:
        """Return the options in a client's request. Missing limits get the site's defaults.

        The path `ca_bundle` in the request is ignored, because `ca_bundle_pem` has the certificates themselves.

        Raises:
            ValueError: if a field is invalid; the message names the field.
            PolicyError: if a name is unknown, or not allowed on this site.
        """
        for what in ("isolation", "profile", "network"):
            asked = body.get(what)
            if isinstance(asked, str) and asked not in ("", "auto"):
                _allowed(
                    what, asked, self._networks if what == "network" else getattr(self, f"allowed_{what}s")
                )
        return SandboxOptions.from_json({**body, "ca_bundle": None}, default_limits=self._default_limits())

    def resolve(self, request: SandboxOptions) -> SandboxOptions:
        """Check the request, and return its options, with the site's defaults in place of missing ones.

        Raises:
            PolicyError: if the site does not allow the request; the message names the allowed values.
            ValueError: if a default of the site contradicts the request.
        """
        isolation = self._isolation(request.isolation or self.default_isolation)
        return SandboxOptions(
            isolation=isolation,
            profile=_allowed("profile", request.profile or self.default_profile, self.allowed_profiles),
            image=self._image(request.image),
            network=self._network(request, isolation),
            limits=self._limits(request.limits or self._default_limits()),
            index_url=_sites("package index", request.index_url, self.index_url),
            proxy=_sites("proxy", request.proxy, self.proxy),
            allow=request.allow,
            secrets=request.secrets,
            ca_bundle=Path(self.ca_bundle) if self.ca_bundle else None,
            ca_bundle_pem=request.ca_bundle_pem
            and _sites("CA bundle", request.ca_bundle_pem, self.ca_bundle),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the rules, for clients that offer choices."""
        names = ("isolations", "profiles", "images", "networks")
        return {
            **{f"allowed_{name}": list(getattr(self, f"allowed_{name}")) for name in names},
            **{f"default_{name[:-1]}": getattr(self, f"default_{name[:-1]}") for name in names},
            "max_limits": {field.name: self._maximum(field.name) for field in fields(Limits)},
            "default_limits": asdict(self._default_limits()),
            "allow_terminal": self.allow_terminal,
        }

    def _isolation(self, wanted: str) -> str:
        if wanted != "auto":
            return _allowed("isolation", wanted, self.allowed_isolations)
        automatic = automatic_isolations()
        usable = [name for name in automatic if name in self.allowed_isolations]
        if not usable:
            raise PolicyError(
                "This site allows only the isolation 'process', which protects nothing and so is never "
                "chosen automatically; ask for it by name."
            )
        return "auto" if usable == automatic else usable[0]

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

    @property
    def _networks(self) -> list[str]:
        """Allowed networks. If `open` is allowed, so are `public` and `allow`, which reach less."""
        allowed = {*self.allowed_networks, *(("public", "allow") if "open" in self.allowed_networks else ())}
        return [name for name in NETWORKS if name in allowed]

    def _network(self, request: SandboxOptions, isolation: str) -> str | None:
        network = request.network or self.default_network
        if network is None and set(self._networks) != set(NETWORKS):
            profile = request.profile or self.default_profile
            names = automatic_isolations() if isolation == "auto" else [isolation]
            usual = {default_network(name, profile) for name in names}
            if not usual <= {*self._networks}:
                network = self.allowed_networks[0] if self.allowed_networks else "none"
            elif len(usual) == 1:
                network = usual.pop()
        return network if network is None else _allowed("network", network, self._networks)

    def _limits(self, wanted: Limits) -> Limits:
        for field in fields(Limits):
            value, maximum = getattr(wanted, field.name), self._maximum(field.name)
            if maximum is not None and (value is None or value > maximum):
                asked = "no limit" if value is None else value
                raise PolicyError(
                    f"This site allows at most {maximum} for {field.name}; {asked} was asked for."
                )
        return wanted

    def _default_limits(self) -> Limits:
        """Return the site's default limits, reduced to its maximum limits."""

        def smaller(name: str) -> Any:
            known = [
                value
                for value in (getattr(self, f"default_{name}"), self._maximum(name))
                if value is not None
            ]
            return min(known, default=None)

        return Limits(**{field.name: smaller(field.name) for field in fields(Limits)})

    def _maximum(self, name: str) -> float | None:
        value: float | None = getattr(self, f"max_{name}")
        return value


def _allowed(what: str, wanted: str, allowed: list[str]) -> str:
    if wanted in allowed:
        return wanted
    raise PolicyError(f"This site does not allow the {what} {wanted!r}; ask for {_either(allowed)}.")


def _sites(what: str, wanted: str | None, fixed: str | None) -> str | None:
    """Return the value that the site fixes, or the requested value if the site fixes none."""
    if fixed is not None and wanted not in (None, fixed):
        raise PolicyError(f"This site fixes the {what} of its sandboxes itself; leave yours out.")
    return fixed or wanted


def _either(names: list[str]) -> str:
    return " or ".join(repr(name) for name in names) or "none (an administrator has allowed none)"
