"""The registry of isolations: the properties that the package needs before it imports the module of an isolation.

A new isolation needs a row in this registry, a module with the functions of `open.Implementation`, and descriptions for
people in `trajectory/protection.py:ISOLATION_WORDS`. The tests that run in each isolation then need a pytest marker of
its name in pyproject.toml, as pytest says. This module imports no other module of the package, so that
options, command lines and settings can import it quickly.
"""

from __future__ import annotations

from dataclasses import dataclass

PROFILES = ("standard", "strict")
NETWORKS = ("none", "allow", "public", "open")
"""Networks, safest first. The last network, `open`, is not safe, because programs can use services of this machine and
of its network."""


@dataclass(frozen=True)
class Isolation:
    """Properties of an isolation. In contrast, `contract.Protection` describes the protection of a certain sandbox."""

    name: str
    implementation: str
    """Name of the module with the functions of `open.Implementation`."""
    install_hint: str
    """Instructions that make the isolation work on a machine."""
    checkpoints: str
    """Sentences about the files that checkpoints cover."""
    automatic: bool = True
    """True if `auto` may choose this isolation. `auto` tries the rows in their order, the strongest isolation first."""
    isolates: bool = True
    """True if commands cannot change other files and processes of this machine."""
    takes_images: bool = False
    """True if a sandbox can be made from any image."""
    networks: tuple[str, ...] = NETWORKS
    """Networks that the isolation offers."""
    usual_network: str = "none"
    """Default network of the profile `standard`. The default of `strict` is `none` if the isolation offers that."""
    own_root: bool = False
    """True if each working directory is a folder of this machine, and checkpoints cover only this folder. Otherwise the
    working directory is `/testbed`, and checkpoints cover all writable files."""
    survives_owner: bool = False
    """True if a sandbox outlives a killed owner for a while and can be adopted; see `open.AdoptingImplementation`."""


ISOLATIONS: dict[str, Isolation] = {
    row.name: row
    for row in (
        Isolation(
            "docker",
            "llm_sandbox_nb.sandbox.docker.sandbox",
            "start an engine or point DOCKER_HOST to one; make the image: llm-sandbox-nb image build",
            "Checkpoints cover every file in the container, but not running processes.",
            takes_images=True,
            usual_network="public",
            survives_owner=True,
        ),
        Isolation(
            "bubblewrap",
            "llm_sandbox_nb.sandbox.bubblewrap.sandbox",
            "on Linux, install the package bubblewrap and allow unprivileged user namespaces",
            "Checkpoints cover every folder that can be written in the sandbox, but not running processes.",
        ),
        Isolation(
            "process",
            "llm_sandbox_nb.sandbox.process",
            "use Linux, and install bash",
            "Checkpoints cover the working directory only, and no running processes: everything else that "
            "commands can change here belongs to your own machine.",
            automatic=False,
            isolates=False,
            networks=("open",),
            usual_network="open",
            own_root=True,
        ),
    )
}


ISOLATION_VARIABLE = "LLM_SANDBOX_ISOLATION"
"""Environment variable that chooses the isolation."""


def isolation_choices() -> tuple[str, ...]:
    """Return the valid values of the option `isolation`: `auto` and the names."""
    return ("auto", *ISOLATIONS)


def automatic_isolations() -> list[str]:
    """Return the names from which `auto` chooses, the strongest first."""
    return [row.name for row in ISOLATIONS.values() if row.automatic]


def default_network(name: object, profile: object) -> str:
    """Return the default network of an isolation and profile. Return `"none"` for an unknown isolation."""
    if not isinstance(name, str) or name not in ISOLATIONS:
        return "none"
    row = ISOLATIONS[name]
    return "none" if profile == "strict" and "none" in row.networks else row.usual_network


def has_own_root(name: object) -> bool:
    """Return `Isolation.own_root`. Return False for an unknown name, e.g. in a file of another version."""
    return isinstance(name, str) and name in ISOLATIONS and ISOLATIONS[name].own_root


def isolates(name: object) -> bool:
    """Return `Isolation.isolates`. Return True for an unknown name, e.g. in a file of another version."""
    return not isinstance(name, str) or name not in ISOLATIONS or ISOLATIONS[name].isolates
