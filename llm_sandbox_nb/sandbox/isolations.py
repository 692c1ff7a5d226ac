"""The registry of isolations: everything that the rest of the package knows about one before it is loaded.

A new isolation needs one row here and one folder (or module) with the functions of `open.Implementation`. This module
imports no other, so that options, command lines and settings may read it at no cost.
"""

from __future__ import annotations

from dataclasses import dataclass

PROFILES = ("standard", "strict")
NETWORKS = ("none", "allow", "public", "open")
"""From the safest to the one that is not safe: `open` reaches what listens on this machine and around it."""


@dataclass(frozen=True)
class Isolation:
    """One isolation. The protection in force is read back from each sandbox: see `contract.Protection`."""

    name: str
    implementation: str
    """The module that starts it; see `open.Implementation`."""
    install_hint: str
    """What a person does so that it works here."""
    checkpoints: str
    """What its checkpoints keep, in sentences. One with checkpoints of its own also overrides the sandbox's methods."""
    automatic: bool = True
    """Whether `auto` may choose it. The rows are in the order in which it does: the strongest first."""
    isolates: bool = True
    takes_images: bool = False
    networks: tuple[str, ...] = NETWORKS
    usual_network: str = "none"
    """The network of the profile `standard` when none is named; `strict` has none where it can be taken away."""
    own_root: bool = False
    """Each sandbox's working directory is a folder of this machine, and checkpoints keep only that; else it is
    `/testbed`, and they keep everything that can be written."""
    survives_owner: bool = False
    """A sandbox outlives a killed owner for a while, and can be adopted; see `open.AdoptingImplementation`."""


ISOLATIONS: dict[str, Isolation] = {
    row.name: row
    for row in (
        Isolation(
            "docker",
            "llm_sandbox_nb.sandbox.docker.sandbox",
            "start an engine or point DOCKER_HOST to one; make the image: llm-sandbox-nb image build",
            "It covers every file in the container, but not running processes.",
            takes_images=True,
            usual_network="public",
            survives_owner=True,
        ),
        Isolation(
            "bubblewrap",
            "llm_sandbox_nb.sandbox.bubblewrap.sandbox",
            "on Linux, install the package bubblewrap and allow unprivileged user namespaces",
            "It covers every folder that can be written in the sandbox, but not running processes.",
        ),
        Isolation(
            "process",
            "llm_sandbox_nb.sandbox.process",
            "use Linux, and install bash",
            "It covers the working directory only, and no running processes: the rest of what commands can "
            "change here belongs to your own machine.",
            automatic=False,
            isolates=False,
            networks=("open",),
            usual_network="open",
            own_root=True,
        ),
    )
}


ISOLATION_VARIABLE = "LLM_SANDBOX_ISOLATION"
"""The environment variable by which a person or a site chooses the isolation."""


def isolation_choices() -> tuple[str, ...]:
    """What can be asked for: `auto` and the names."""
    return ("auto", *ISOLATIONS)


def automatic_isolations() -> list[str]:
    """The names that `auto` chooses from, the strongest first."""
    return [row.name for row in ISOLATIONS.values() if row.automatic]


def default_network(name: object, profile: object) -> str:
    """The network when none is named; `"none"` for names that this version does not know."""
    if not isinstance(name, str) or name not in ISOLATIONS:
        return "none"
    row = ISOLATIONS[name]
    return "none" if profile == "strict" and "none" in row.networks else row.usual_network


def has_own_root(name: object) -> bool:
    """See `Isolation.own_root`; false for a name from a record that this version does not know."""
    return isinstance(name, str) and name in ISOLATIONS and ISOLATIONS[name].own_root


def isolates(name: object) -> bool:
    """See `Isolation.isolates`; true for a name from a record that this version does not know."""
    return not isinstance(name, str) or name not in ISOLATIONS or ISOLATIONS[name].isolates
